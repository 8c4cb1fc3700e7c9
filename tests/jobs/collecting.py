"""Computes batches in this process as a run does, with the rows kept in memory where a run writes files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.sources.columns import REASON
from windowmill.jobs.ways.base import Loaded, Part
from windowmill.jobs.ways.input import Input
from windowmill.jobs.ways.joining import compute_parts
from windowmill.jobs.ways.new_rows import NewRows
from windowmill.jobs.ways.task_output import OutputWriter, Role, Target, Targets


class Collected(NewRows):
    """New rows of which those to quarantine keep the columns that are read."""

    def refused(self) -> Any:
        return self.table.filter(pc.is_valid(self.table.column(REASON)))


class Collecting(OutputWriter):
    """Keeps rows in memory; those of the state have the columns of ``state``."""

    def __init__(self, state: pa.Schema) -> None:
        super().__init__(Targets(0, "0", {"state": Target("", state)}))
        self._tables: dict[Role, list[pa.Table]] = {}

    def write(self, role: Role, rows: pa.Table) -> None:
        if rows.num_rows:
            self._tables.setdefault(role, []).append(rows)

    def table(self, role: Role) -> pa.Table | None:
        return pa.concat_tables(self._tables[role]) if role in self._tables else None


@dataclass(frozen=True)
class Done:
    """What a batch has made: result rows, state rows and rows to quarantine, null for none, and counts."""

    rows: pa.Table | None
    state: pa.Table | None
    judged: pa.Table | None
    rows_applied: int
    rows_late: int
    new_state: int


def computed(new: NewRows | None, parts: Sequence[Part], loaded: Sequence[Loaded], batch: Input, state: pa.Schema) -> Done:
    """Compute the ``loaded`` batch of each part; ``state`` are the columns of the state table."""
    writer = Collecting(state)
    counts, judged = compute_parts(new, parts, loaded, batch, writer)
    return Done(writer.table("sink"), writer.table("state"), judged, counts.rows_applied, counts.rows_late, counts.new_state)


def collected(table: pa.Table) -> Collected:
    """New rows that this process has read."""
    return Collected(table, lambda: None)
