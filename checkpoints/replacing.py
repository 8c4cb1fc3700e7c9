"""Replaces a range of window ends in a table of result rows: which files hold rows of it, and what stays of them. No JVM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from windowmill.checkpoints.data_files import DataFile, rows_of, write_files
from windowmill.checkpoints.delta_tables import files_of
from windowmill.windowing.axis import to_us

_END, _WINDOW = "window_end", "window"
#: Writers cut off a timestamp in a statistic to milliseconds.
_CUT_OFF_US = 999


@dataclass(frozen=True, slots=True)
class ReplacedRange:
    """The range (``begin``, ``end``] of window ends, instants on the axis, in the table at ``table``."""

    table: str
    #: All columns of the table.
    schema: pa.Schema
    begin: int
    end: int
    #: Names of the windows whose rows of the range are meant; null for all.
    windows: tuple[str, ...] | None = None
    #: Paths of files with rows of the range alone.
    whole: tuple[str, ...] = ()
    #: Paths of files that may also have other rows.
    partly: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: str, snapshot: DeltaTable, ends: tuple[int, int], windows: tuple[str, ...] | None = None) -> ReplacedRange:
        """The files of ``snapshot``, the table at ``table``, that may hold rows of these ``windows`` in the range ``ends``.

        Reads only its log.
        """
        begin, end = ends
        whole, partly = [], []
        for file in files_of(snapshot):
            low, high = _point(file.get(f"min.{_END}")), _point(file.get(f"max.{_END}"), cut_off=_CUT_OFF_US)
            if low is None or high is None or file.get(f"null_count.{_END}") != 0:
                partly.append(file["path"])
            elif low > begin and high <= end and windows is None:
                whole.append(file["path"])
            elif high > begin and low <= end:
                partly.append(file["path"])
        return cls(table, pa.schema(snapshot.schema().to_arrow()), begin, end, windows, tuple(whole), tuple(partly))

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of all files that the range's new rows replace."""
        return self.whole + self.partly

    def keep(self, paths: Sequence[str], *, batch: int, attempt: str, task: int) -> tuple[DataFile, ...]:
        """Write the rows of the files ``paths`` that are not in the range to files of their own; runs in an executor, too."""
        staying = (rows.filter(pc.invert(self.within(rows))) for rows in rows_of(self.table, paths, self.schema))
        return write_files(self.table, self.schema, staying, batch=batch, attempt=attempt, task=task)

    def within(self, rows: pa.Table) -> pa.ChunkedArray:
        """Mask of the ``rows`` that are in the range, and whose window is meant."""
        ends = rows.column(_END).cast(pa.int64())
        within = pc.and_(pc.greater(ends, self.begin), pc.less_equal(ends, self.end)).fill_null(False)
        if self.windows is not None:
            within = pc.and_(within, pc.is_in(rows.column(_WINDOW), pa.array(self.windows, rows.column(_WINDOW).type)))
        return within


def _point(value: Any, *, cut_off: int = 0) -> int | None:
    """A statistic as an instant on the axis, plus what its writer may have ``cut_off`` of a timestamp."""
    return to_us(value) + cut_off if isinstance(value, datetime) else value
