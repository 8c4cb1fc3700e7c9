"""The state table of windows over positions: rows of keys, waiting tuples, and nodes of a FlatFAT; batches only append.

See :mod:`windowmill.windowing.columnar.positions` for the kinds of rows.
"""

from __future__ import annotations

import pyarrow as pa

from windowmill.checkpoints.delta_tables import newest
from windowmill.checkpoints.state.base import StateTable
from windowmill.checkpoints.state.reading import reporting_damage
from windowmill.checkpoints.state.searched_files import SearchedRows
from windowmill.checkpoints.state.wanted import ReadLimit
from windowmill.windowing.columnar.positions import PositionStage


class PositionTable(StateTable):
    """The table at ``path`` of one pipeline's windows over positions, with the columns of ``schema``, which include checksums."""

    def empty(self) -> pa.Table:
        """A table without rows."""
        return self._schema.empty_table()

    def read(self, stage: PositionStage, rows: pa.Table, limit: ReadLimit) -> pa.Table | None:
        """The rows of the batches before that of ``stage`` that new ``rows`` need, read by this process; none if they exceed ``limit``.

        The caller verifies the checksums.
        """
        if not self._exists:
            return self.empty()
        with reporting_damage(self._path):
            return SearchedRows.of_table(newest(self._path), stage, limit, self._only).needed(rows)
