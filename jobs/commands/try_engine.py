"""What ``windowmill try`` asks of an engine, and the engine that computes with the kernels of runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.state.readers import MemoryState
from windowmill.jobs.layouts.choose import parts_of
from windowmill.jobs.layouts.input import Input
from windowmill.jobs.layouts.lateness import seen_after
from windowmill.jobs.layouts.output import Output, Role, RowWriter
from windowmill.jobs.schedulers.local import NewRows, compute_parts, load
from windowmill.jobs.sources.unusable_rows import EventTimes
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.added_columns import FILE, NUMBER_OF, REASON, ROW, TAKEN
from windowmill.windowing.columnar.results import Column, ResultTable, gives_json, key_ranks, with_retracted
from windowmill.windowing.columnar.rows import Keys, plain
from windowmill.windowing.counts import Counts
from windowmill.windowing.errors import SourceSchemaError
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.watermark import COMMIT_SHIFT

if TYPE_CHECKING:
    from windowmill.checkpoints.state.readers import State
    from windowmill.jobs.layouts.input import Emission
    from windowmill.jobs.schedulers.local import NewRows
    from windowmill.windowing.kernels.combine import Ints
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
    """The output of a batch."""

    #: Result rows, in tables of one window of the spec each; with ``RETRACTED`` where late rows bring revisions.
    results: list[pa.Table]
    #: Rows for the state.
    state: list[pa.Table]
    #: The new rows, each with the reason if it is refused; null if the batch has none.
    judged: NewRows | None
    counts: Counts

    @classmethod
    def of(cls, batch: Input, writer: MemoryWriter, judged: NewRows | None, output: Output) -> Self:
        """The output of ``batch`` from the rows that ``writer`` has kept."""
        results = [*writer.tables("sink"), *writer.tables("retracted")]
        return cls(
            [with_retracted(rows) for rows in results] if batch.rule.revises else results, writer.tables("state"), judged, output.counts
        )


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
        """Compute a batch of ``new`` rows with their numbers, all of file 0; null for none.

        ``last`` is whether no batch follows, ``ended`` whether the input ends with it, so that all windows are complete.
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


@dataclass(frozen=True, slots=True)
class TryBatch:
    """Neighbouring rows of an input."""

    #: Typed columns; instants as timestamps without zone (UTC), integer axes as int64.
    rows: pa.Table
    #: For each condition of the spec whether it is true of each row.
    conditions: Mapping[str, pa.BooleanArray]
    #: Number of each row's commit, ascending, also from batch to batch; int64, shape (n_rows,). No commit is split between batches.
    commits: np.ndarray


@dataclass(frozen=True, slots=True)
class Results:
    """What an engine makes of its input."""

    #: Result rows in (key, window, window_end, trigger, revision, window_start) order, nulls first; instants in microseconds.
    rows: Sequence[Mapping[str, Any]]
    #: (position of the row in all that was fed, reason).
    quarantined: Sequence[tuple[int, str]]


class TryEngine(Protocol):
    """One run of a pipeline over an input fed in batches; how it is cut makes no difference to the results."""

    def feed(self, batch: TryBatch) -> None:
        """Take the next rows in the order of arrival."""

    def finish(self, *, final: bool) -> Results:
        """Every row that the input has brought; ``final`` takes the watermark to infinity first."""


class KernelEngine:
    """Computes each batch only when the next one comes, or the input ends: the last batch keeps no state."""

    def __init__(self, pipeline: Pipeline, latest: float) -> None:
        self._pipeline, self._times = pipeline, EventTimes(pipeline, None if latest == math.inf else int(latest))
        self._run: MemoryRun | None = None
        self._waiting: NewRows | None = None
        self._results: list[pa.Table] = []
        self._refused: list[tuple[int, str]] = []
        self._fed = 0

    def feed(self, batch: TryBatch) -> None:
        rows = _with_types(batch.rows)
        if self._run is None:
            self._run = MemoryRun(self._pipeline, {field.name: field.type for field in rows.schema})
        else:
            self._advance(self._run, last=False, ended=False)
        self._waiting = NewRows(self._numbered(self._times.of(rows), batch))
        self._fed += rows.num_rows

    def finish(self, *, final: bool) -> Results:
        if self._run is not None:
            self._advance(self._run, last=True, ended=final)
        return Results(results_in_order(self._results, self._pipeline), sorted(self._refused))

    def _advance(self, run: MemoryRun, *, last: bool, ended: bool) -> None:
        done = run.advance(self._waiting, last=last, ended=ended)
        self._results += done.results
        if done.judged is not None:
            refused = done.judged.table.filter(pc.is_valid(done.judged.table.column(REASON)))
            self._refused += zip(refused.column(ROW).to_pylist(), refused.column(REASON).to_pylist(), strict=True)

    def _numbered(self, rows: pa.Table, batch: TryBatch) -> pa.Table:
        """``rows`` with conditions, place in the input and number."""
        places = np.arange(self._fed, self._fed + rows.num_rows)
        own = {ROW: pa.array(places), NUMBER_OF: pa.array((batch.commits << COMMIT_SHIFT) + places)}
        own[FILE] = pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows)
        own |= {condition_column(text): holds for text, holds in batch.conditions.items()}
        for name, column in own.items():
            rows = rows.append_column(name, column)
        return rows


def _with_types(rows: pa.Table) -> pa.Table:
    """``rows`` with the types of a source: instants in UTC, and columns of nothing but nulls as texts."""
    clash = next((name for name in rows.column_names if name.lower() in TAKEN), None)
    if clash is not None:
        raise SourceSchemaError(f"the column name {clash!r} is taken by windowmill; rename it in the input")
    fields = []
    for field in rows.schema:
        kind = pa.timestamp("us", "UTC") if pa.types.is_timestamp(field.type) else field.type
        fields.append((field.name, pa.string() if pa.types.is_null(kind) else kind))
    return rows.cast(pa.schema(fields))


def results_in_order(tables: Sequence[pa.Table], pipeline: Pipeline) -> ResultTable:
    """The rows of ``tables``, which have the columns of the pipeline's sink, in the order of a :class:`.ResultTable`; O(n log n)."""
    if not tables:
        return ResultTable({}, 0)
    table = pa.concat_tables(tables)
    cells = {name: _along_axis(table.column(name)) for name in table.column_names if name != "batch"}
    sorting = [_numbers(cells[name]) for name in ("window_start", "revision", "trigger", "window_end")]
    sorting = [numbers for numbers in sorting if len(numbers) and (numbers != numbers[0]).any()]
    sorting.append(_ranks(cells["window"]))
    if pipeline.keys:
        own = {name: cells[name] for name in pipeline.keys}
        keys = Keys(pa.table({name: column[:0] for name, column in own.items()}))
        key = keys.learn(own, table.num_rows)
        sorting.append(key_ranks(keys.table)[key])
    order = pa.array(np.lexsort(sorting))
    taken = {name: column.take(order) for name, column in cells.items()}
    columns: dict[str, Column] = dict(taken)
    for name, spec in pipeline.aggregates.items():
        if gives_json(spec):
            columns[name] = [None if text is None else json.loads(text) for text in taken[name].to_pylist()]
    return ResultTable(columns, table.num_rows)


def _along_axis(column: pa.ChunkedArray) -> pa.Array:
    """``column`` with instants, and those in lists, as integers along the axis."""
    kind = column.type
    if pa.types.is_list(kind) and pa.types.is_timestamp(kind.value_type):
        column = column.cast(pa.list_(pa.int64()))
    return plain(column)


def _ranks(names: pa.Array) -> Ints:
    """The rank of each name among all."""
    encoded = names.dictionary_encode()
    ranks = np.argsort(np.argsort(np.array(encoded.dictionary.to_pylist())))
    return np.asarray(ranks[encoded.indices.to_numpy()], np.int64)


def _numbers(column: pa.Array) -> Ints:
    return np.asarray(pc.fill_null(column.cast(pa.int64()), np.iinfo(np.int64).min).to_numpy(zero_copy_only=False), np.int64)
