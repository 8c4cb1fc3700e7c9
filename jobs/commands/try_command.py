"""``windowmill try``: a spec over JSON lines, without Airflow and without tables, by the kernels of runs or by another engine."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, Self, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer

from windowmill.checkpoints.state.readers import MemoryState
from windowmill.jobs.batch.job import parts_of
from windowmill.jobs.commands.terminal import Spec, as_written, load_pipeline
from windowmill.jobs.conditions.expressions import Expressions
from windowmill.jobs.conditions.truths import evaluate, every_condition
from windowmill.jobs.json_lines import JsonRows, RefusedRow, read_rows, refused_lines, result_lines
from windowmill.jobs.layouts.input import Input
from windowmill.jobs.layouts.lateness import seen_after
from windowmill.jobs.layouts.output import Output, Role, RowWriter
from windowmill.jobs.schedulers.local import NewRows, compute_parts, load
from windowmill.jobs.sources.text_values import TextTimes
from windowmill.jobs.sources.unusable_rows import BAD_TIME, EventTimes, details_of, on_axis, reasons_of
from windowmill.jobs.spec_checks import condition_problems, function_problems, import_from_here, refuse_first
from windowmill.windowing import reference
from windowmill.windowing.aggregates import argument_types
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.bounds import check_lengths
from windowmill.windowing.columnar.added_columns import FILE, NUMBER_OF, REASON, RETRACTED, ROW, TAKEN, UNREAD
from windowmill.windowing.columnar.results import Column, ResultTable, gives_json, key_ranks, with_retracted
from windowmill.windowing.columnar.rows import Keys, plain
from windowmill.windowing.counts import Counts
from windowmill.windowing.errors import SourceSchemaError, SpecError, UnsupportedError
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.registry import imported
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import COMMIT_SHIFT

if TYPE_CHECKING:
    from windowmill.checkpoints.state.readers import State
    from windowmill.jobs.layouts.input import Emission
    from windowmill.jobs.layouts.unique import EntriesInMemory
    from windowmill.jobs.sources.row_steps import RowSteps
    from windowmill.windowing.kernels.combine import Ints


class MemoryWriter(RowWriter):
    """Keeps rows in memory."""

    def __init__(self) -> None:
        super().__init__()
        self._tables: dict[Role, list[pa.Table]] = {}

    def write(self, role: Role, rows: pa.Table) -> None:
        self._tables.setdefault(role, []).append(rows)

    def tables(self, role: Role) -> list[pa.Table]:
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
        self._remembered: EntriesInMemory | None = None

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
        if new is not None and self._pipeline.dedup is not None:
            new = self._unique(new, batch)
        done = compute(batch, self.state, new, emission)
        for rows in done.state:
            self.state.append(rows)
        self._batch, self._seen, self._emitted = self._batch + 1, emission.seen, emission.emitted
        return done

    def _unique(self, new: NewRows, batch: Input) -> NewRows:
        """The ``new`` rows of ``batch`` without duplicates."""
        from windowmill.jobs.layouts.unique import Deduplication, EntriesInMemory  # loads what a spec without dedup does without

        if self._remembered is None:
            self._remembered = EntriesInMemory()
        left, found = Deduplication.of(batch, self._remembered).of_new(new, batch)
        self._remembered.add(found.entries)
        return left


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
            types = {field.name: field.type for field in rows.schema}
            self._run, self._expressions = MemoryRun(self._pipeline, types), Expressions.of(self._pipeline, types)
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
        self._results += map(self._expressions.over, done.results)
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
    encoded = names.dictionary_encode()
    ranks = np.argsort(np.argsort(np.array(encoded.dictionary.to_pylist())))
    return np.asarray(ranks[encoded.indices.to_numpy()], np.int64)


def _numbers(column: pa.Array) -> Ints:
    return np.asarray(pc.fill_null(column.cast(pa.int64()), np.iinfo(np.int64).min).to_numpy(zero_copy_only=False), np.int64)


class ReferenceEngine:
    """The oracle: keeps every row and recomputes every window."""

    def __init__(self, pipeline: Pipeline, latest: float) -> None:
        self._pipeline, self._latest = pipeline, latest
        self._expressions: Expressions | None = None
        self._records: list[reference.Record] = []
        self._commits: list[int] = []

    def feed(self, batch: TryBatch) -> None:
        types = {field.name: field.type for field in batch.rows.schema}
        for name, spec in self._pipeline.over_rows().aggregates.items():
            argument_types(spec, types, f"pipeline {self._pipeline.pipeline}: aggregates.{name}")
        self._expressions = Expressions.of(self._pipeline, {field.name: field.type for field in _with_types(batch.rows).schema})
        self._commits += batch.commits.tolist()
        columns = [batch.rows.column(name) for name in batch.rows.column_names]
        cells = [(column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist() for column in columns]
        true = {text: mask.to_pylist() for text, mask in batch.conditions.items()}
        for index, row in enumerate(zip(*cells, strict=True)):
            held = frozenset(text for text, mask in true.items() if mask[index])
            self._records.append(reference.Record(dict(zip(batch.rows.column_names, row, strict=True)), held))

    def finish(self, *, final: bool) -> Results:
        outcome = reference.evaluate(self._pipeline, self._records, commits=self._commits, final=final, latest=self._latest)
        if self._expressions is None or not self._expressions.texts:
            return Results(outcome.rows, outcome.quarantined)
        rows = [row | own for row, own in zip(outcome.rows, self._expressions.of_records(outcome.rows), strict=True)]
        return Results([{name: row[name] for name in self._order(row)} for row in rows], outcome.quarantined)

    def _order(self, row: Mapping[str, Any]) -> list[str]:
        """The columns of ``row``, its aggregates in the spec's order."""
        aggregates = self._pipeline.aggregates
        own = [name for name in row if name not in aggregates]
        return [*own[: own.index("revision") + 1], *aggregates, *own[own.index("revision") + 1 :]]


def _spark_engine(pipeline: Pipeline, latest: float) -> TryEngine:
    engine: TryEngine = imported("windowmill.jobs.commands.try_spark:SparkEngine")(pipeline, latest)  # the others need no pyspark
    return engine


#: Engines by the name that ``--engine`` takes; each is built with the pipeline and the latest event time that is accepted.
ENGINES: dict[str, Callable[[Pipeline, float], TryEngine]] = {
    "kernel": KernelEngine,
    "reference": ReferenceEngine,
    "spark": _spark_engine,
}

#: What the product computes with. The oracle keeps every row and is there to be compared with.
DEFAULT_ENGINE = "kernel"


@dataclass(frozen=True, slots=True)
class TryOutcome:
    """What a pipeline makes of an input: rows as :class:`Results` has them, and those in quarantine, in the order of the input."""

    rows: Sequence[Mapping[str, Any]]
    refused: Sequence[RefusedRow]
    instants: frozenset[str] = frozenset()  #: Columns of instants that steps make.


def attempt(
    pipeline: Pipeline,
    data: bytes,
    batch_rows: int | None = None,
    engine: str = DEFAULT_ENGINE,
    final: bool = True,
    now: float | None = None,
    commit_rows: int = 1,
) -> TryOutcome:
    """Run ``pipeline`` over JSON lines, the ``data``, of which ``commit_rows`` are a commit.

    Batches have ``batch_rows`` rows, or more where their last commit has more; by default the whole input is one. ``final`` is whether the
    watermark goes to infinity at its end. ``max_future_skew`` counts from ``now``, seconds since 1970; by default from the present.
    """
    if engine not in ENGINES:
        raise UnsupportedError(f"--engine {engine}: not available here; use {' or '.join(sorted(ENGINES))}")
    for option, given in (("--batch-rows", batch_rows), ("--commit-rows", commit_rows)):
        if given is not None and given < 1:
            raise SpecError(f"{option} {given}: expected a whole number from 1")
    check_lengths(pipeline)
    refuse_first(pipeline, chain(condition_problems(pipeline), function_problems(pipeline)))
    rows = read_rows(data, pipeline)
    masks: dict[str, pa.BooleanArray] = {}
    steps = _steps_of(rows, pipeline)
    instants = frozenset() if steps is None else frozenset(name for name, kind in steps.made.items() if pa.types.is_timestamp(kind))
    if engine != "spark":
        rows, masks = _judged(rows if steps is None else _evaluate_steps(rows, steps, pipeline), pipeline)
    # Unless the spec asks for it, results do not depend on the clock.
    latest = pipeline.time.latest(int((time.time() if now is None else now) * 1_000_000), by_default=False)
    run = ENGINES[engine](pipeline, math.inf if latest is None else latest)
    commits = (np.array(rows.lines, np.int64) - 1) // commit_rows
    for start, stop in _batches(commits, batch_rows or max(1, len(commits))):
        length = stop - start
        conditions = {condition: mask.slice(start, length) for condition, mask in masks.items()}
        run.feed(TryBatch(rows.table.slice(start, length), conditions, commits[start:stop]))
    results = run.finish(final=final)
    late = [RefusedRow(rows.lines[position], reason, None, rows.raw[position]) for position, reason in results.quarantined]
    shown = results.rows
    if pipeline.emit != "final":  # each version of a window, and no row that retracts one, as a sink has it
        shown = [{name: value for name, value in row.items() if name != RETRACTED} for row in shown if not row[RETRACTED]]
    return TryOutcome(shown, sorted([*rows.refused, *late], key=lambda row: row.line), instants)


def _batches(commits: np.ndarray, size: int) -> Iterator[tuple[int, int]]:
    """Begin and end of batches of at least ``size`` rows, but for the last one, of rows with these ``commits``, which no batch splits."""
    start = 0
    while start < len(commits):
        stop = start + size
        if stop < len(commits):
            stop = int(np.searchsorted(commits, commits[stop - 1], side="right"))
        yield start, min(stop, len(commits))
        start = stop


def run_try(
    spec_path: str | os.PathLike[str],
    input_path: str | os.PathLike[str],
    batch_rows: int | None = None,
    engine: str = DEFAULT_ENGINE,
    final: bool = True,
    commit_rows: int = 1,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
) -> int:
    """:func:`attempt` on the lines of a file (``-``: standard input): result rows on ``stdout``, then quarantined rows on ``stderr``.

    Returns the exit code 0; an error's ``exit_code`` is what the command ends with.
    """
    pipeline = load_pipeline(spec_path, opens_tables=False)
    import_from_here()
    try:
        data = sys.stdin.buffer.read() if str(input_path) == "-" else Path(input_path).read_bytes()
    except OSError as err:
        raise SpecError(f"--input: {input_path}: cannot be read ({err.strerror}); give a file of JSON lines") from err
    try:
        outcome = attempt(pipeline, data, batch_rows, engine, final, commit_rows=commit_rows)
    except UnicodeDecodeError as err:
        raise SpecError(f"--input: {input_path}: not UTF-8 text ({err.reason} at byte {err.start}); save it as UTF-8") from err
    out, err_out = stdout or sys.stdout, stderr or sys.stderr
    _write(result_lines(outcome.rows, pipeline, outcome.instants), out)
    refused = [replace(row, detail=None if row.detail is None else as_written(row.detail)) for row in outcome.refused]
    err_out.writelines(line + "\n" for line in refused_lines(refused))
    return 0


def _write(pieces: Iterable[bytes | pa.Buffer], out: TextIO) -> None:
    """``pieces`` of UTF-8 text, past the encoder where there are bytes beneath ``out``: JSON is UTF-8 whatever the locale."""
    out.flush()
    beneath = getattr(out, "buffer", None)
    for piece in pieces:
        if beneath is not None:
            beneath.write(piece)
        else:
            out.write(str(piece, "utf-8"))
    out.flush()


def _steps_of(rows: JsonRows, pipeline: Pipeline) -> RowSteps | None:
    """The steps of the pipeline over the columns of ``rows``; null if it has none, or there are no rows."""
    if not pipeline.steps or not rows.table.num_rows:
        return None
    from windowmill.jobs.sources.row_steps import RowSteps  # loads the parser

    return RowSteps.of(pipeline, {field.name: field.type for field in _in_utc(rows.table).schema})


def _evaluate_steps(rows: JsonRows, steps: RowSteps, pipeline: Pipeline) -> JsonRows:
    """The rows that filters of the steps leave, with the columns that steps make; those on which one fails are refused."""
    for where, why in steps.outside.items():
        raise UnsupportedError(f"pipeline {pipeline.pipeline}: {where}: {why}; use --engine spark")
    behind = steps.over(_in_utc(rows.table).append_column(ROW, pa.array(np.arange(rows.table.num_rows))))
    unread, places = behind.column(UNREAD), behind.column(ROW).to_numpy()
    wrong = {
        place: (str(reason), detail)
        for place, reason, detail in zip(places.tolist(), reasons_of(unread).to_pylist(), details_of(unread), strict=True)
        if reason is not None
    }
    for name in [name for name in (pipeline.time.column, pipeline.time.end) if name is not None and name in steps.made]:
        made = behind.column(name)
        column, bad = _event_times(made, name, pipeline)
        behind = behind.set_column(behind.schema.get_field_index(name), name, column)
        for index in np.flatnonzero(bad).tolist():
            wrong.setdefault(int(places[index]), (BAD_TIME, f"{name}: got {json.dumps(made[index].as_py())}; expected an instant"))
    refused = [RefusedRow(rows.lines[place], reason, detail, rows.raw[place]) for place, (reason, detail) in wrong.items()]
    on = ~np.isin(places, list(wrong))
    left = np.zeros(rows.table.num_rows, np.bool_)
    left[places[on]] = True
    kept = rows.where(pa.array(left))
    return replace(kept, table=behind.filter(pa.array(on)).drop_columns([ROW, UNREAD]), refused=[*rows.refused, *refused])


def _event_times(column: pa.ChunkedArray, name: str, pipeline: Pipeline) -> tuple[pa.ChunkedArray, np.ndarray]:
    """The ``column`` of event times that steps make, as instants or integers; and the rows whose text is no time, bool, shape (n,).

    Null stays null. Raises ``SourceSchemaError`` for a type that is none of a time, or does not fit ``time.unit``.
    """
    kind, unit, texts = column.type, pipeline.time.unit, TextTimes.of(pipeline.source)
    where = f"pipeline {pipeline.pipeline}: time.{'unit' if unit is not None else 'column'}: {name!r} is {kind}"
    if pa.types.is_integer(kind) != (unit is not None):
        remedy = "say what it counts with time.unit (us, ms, s or none)" if unit is None else "not an integer; leave time.unit out"
        raise SourceSchemaError(f"{where}; {remedy}")
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
        return column, np.zeros(len(column), np.bool_)
    if not (pa.types.is_string(kind) or pa.types.is_date(kind)):
        raise SourceSchemaError(f"{where}; expected a timestamp, a date or an integer")
    values = on_axis(column, texts)
    bad = np.asarray(pc.and_(pc.is_valid(column), pc.is_null(values)).to_numpy(zero_copy_only=False), np.bool_)
    return values.cast(pa.timestamp("us", "UTC")), bad


def _in_utc(table: pa.Table) -> pa.Table:
    """``table`` with instants in UTC, as those of JSON are."""
    fields = [field.with_type(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(field.type) else field for field in table.schema]
    return table.cast(pa.schema(fields))


def _judged(rows: JsonRows, pipeline: Pipeline) -> tuple[JsonRows, dict[str, pa.BooleanArray]]:
    """The rows that the source's filter leaves and on which no condition fails, and where each of the spec's conditions is true of them.

    A condition reads one row, so conditions are evaluated for all rows at once: a query a batch costs 20 ms and more.
    """
    wanted, conditions, every = pipeline.own_filter, pipeline.conditions(), every_condition(pipeline)
    if not rows.table.num_rows or not every:
        return rows, {condition: pa.array([], pa.bool_()) for condition in conditions}
    found = evaluate(every, _in_utc(rows.table))
    read = np.ones(rows.table.num_rows, np.bool_)
    if wanted:
        read = _mask(found[wanted].holds) | _mask(found[wanted].failed)
    reasons: dict[int, str] = {}
    for condition, truth in found.items():
        for row in np.flatnonzero(read & _mask(truth.failed)).tolist():
            reasons.setdefault(row, condition)
    why = {row: f"condition {condition!r} fails on the row" for row, condition in reasons.items()}
    refused = [RefusedRow(rows.lines[row], "bad_condition", detail, rows.raw[row]) for row, detail in why.items()]
    kept = read.copy()
    kept[list(reasons)] = False
    masks = {condition: found[condition].holds for condition in conditions}
    if not kept.all():
        chosen = pa.array(kept)
        rows, masks = rows.where(chosen), {condition: mask.filter(chosen) for condition, mask in masks.items()}
    return replace(rows, refused=[*rows.refused, *refused]), masks


def _mask(truth: pa.BooleanArray) -> np.ndarray:
    return np.asarray(truth.to_numpy(zero_copy_only=False), np.bool_)


def try_(
    spec: Spec,
    input_: Annotated[Path, typer.Option("--input", help="JSON lines; - for standard input.")],
    batch_rows: Annotated[int | None, typer.Option("--batch-rows", min=1, help="Split the input into batches of this many rows.")] = None,
    commit_rows: Annotated[int, typer.Option("--commit-rows", min=1, help="Lines per commit: rows of one commit arrive together.")] = 1,
    engine: Annotated[str, typer.Option("--engine", help="kernel; spark, as runs; or reference, the oracle: plain and slow.")] = "kernel",
    final: Annotated[bool, typer.Option("--final/--no-final", help="Whether the watermark goes to infinity at the end of input.")] = True,
    _as_json: Annotated[bool, typer.Option("--json", help="No effect: the output is JSON lines.")] = False,
) -> None:
    """Run the spec on JSON lines and print its rows as JSON lines. No Airflow, no tables."""
    raise typer.Exit(run_try(spec, input_, batch_rows, engine, final, commit_rows, stdout=sys.stdout, stderr=sys.stderr))
