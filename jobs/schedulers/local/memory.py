"""Computes the batches of a pipeline in this process over a state in memory: the parts of a run, without tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from windowmill.checkpoints.state.memory import MemoryState
from windowmill.jobs.layouts.choose import parts_of
from windowmill.jobs.layouts.input import Input
from windowmill.jobs.layouts.lateness import seen_after
from windowmill.jobs.layouts.output import Output, Role, RowWriter
from windowmill.jobs.schedulers.local.parts import compute_parts, load
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.results import with_retracted
from windowmill.windowing.counts import Counts

if TYPE_CHECKING:
    from windowmill.checkpoints.state.readers import State
    from windowmill.jobs.layouts.emission import Emission
    from windowmill.jobs.schedulers.local.new_rows import NewRows
    from windowmill.windowing.spec import Pipeline


class MemoryWriter(RowWriter):
    """Keeps rows in memory."""

    def __init__(self) -> None:
        super().__init__()
        self._tables: dict[Role, list[pa.Table]] = {}

    def write(self, role: Role, rows: pa.Table) -> None:
        self._tables.setdefault(role, []).append(rows)

    def tables(self, role: Role) -> list[pa.Table]:
        """The rows that were written to the table of this role."""
        return self._tables.get(role, [])


@dataclass(frozen=True)
class MemoryBatch:
    """The output of a batch.

    Attributes
    ----------
    results
        Result rows, in tables of one window of the spec each; with ``RETRACTED`` where late rows bring revisions.
    state
        Rows for the state.
    judged
        The new rows, each with the reason if it is refused; null if the batch has none.
    counts
        Its rows.
    """

    results: list[pa.Table]
    state: list[pa.Table]
    judged: NewRows | None
    counts: Counts

    @classmethod
    def of(cls, batch: Input, writer: MemoryWriter, judged: NewRows | None, output: Output) -> Self:
        """The output of ``batch`` from the rows that ``writer`` has kept."""
        results = [*writer.tables("sink"), *writer.tables("retracted")]
        return cls([with_retracted(rows) for rows in results] if batch.revises else results, writer.tables("state"), judged, output.counts)


def compute(batch: Input, state: State, new: NewRows | None, emission: Emission) -> MemoryBatch:
    """Compute the ``new`` rows of a batch, null for none, by its parts, and emit the windows of ``emission``."""
    parts = parts_of(batch, state)
    writer = MemoryWriter()
    counts, judged = compute_parts(new, parts, [load(part, new, emission, state) for part in parts], batch, writer)
    return MemoryBatch.of(batch, writer, judged, counts)


class MemoryRun:
    """The batches of a pipeline over columns of ``types``, one after another; later ones continue from the state of earlier ones."""

    def __init__(self, pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> None:
        self._pipeline, self._types, self._batch = pipeline, types, 0
        self._seen: int | None = None
        self._emitted: int | None = None
        self.state = MemoryState()

    def advance(self, new: NewRows | None, *, last: bool = False, ended: bool = False) -> MemoryBatch:
        """Compute a batch of ``new`` rows.

        Parameters
        ----------
        new
            Rows with their numbers, all of file 0; null for none.
        last
            Whether no batch follows.
        ended
            Whether the input ends with this batch, so that all windows are complete; then it is the last.
        """
        asserted = self._pipeline.time.watermark == "data_interval_end"
        batch = Input(
            pipeline=self._pipeline,
            types=self._types,
            batch=self._batch,
            seen=self._seen,
            emitted=self._emitted,
            builds_state=not (last or ended),
            ended=ended,
            # No data interval has been asserted yet.
            closed_by_file=(AXIS_BEGIN,) if asserted else None,
        )
        emission = batch.emission(self._seen if new is None else seen_after(new.table, self._seen))
        done = compute(batch, self.state, new, emission)
        for rows in done.state:
            self.state.append(rows)
        self._batch, self._seen, self._emitted = self._batch + 1, emission.seen, emission.emitted
        return done
