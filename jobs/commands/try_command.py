"""``windowmill try``: a spec over JSON lines, without Airflow and without tables."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TextIO

import numpy as np
import pyarrow as pa
import typer

from windowmill.jobs.commands.terminal import Spec, as_written, load_pipeline
from windowmill.jobs.commands.try_engine import KernelEngine, Results, TryBatch, TryEngine
from windowmill.jobs.conditions.truths import evaluate
from windowmill.jobs.json_lines import JsonRows, RefusedRow, read_rows, refused_lines, result_lines
from windowmill.jobs.spec_checks import condition_problems, function_problems, import_from_here, refuse_first
from windowmill.windowing import reference
from windowmill.windowing.aggregates import argument_types
from windowmill.windowing.bounds import check_lengths
from windowmill.windowing.columnar.added_columns import RETRACTED
from windowmill.windowing.errors import SpecError, UnsupportedError
from windowmill.windowing.spec import Pipeline


class ReferenceEngine:
    """The oracle: keeps every row and recomputes every window."""

    def __init__(self, pipeline: Pipeline, latest: float) -> None:
        self._pipeline, self._latest = pipeline, latest
        self._records: list[reference.Record] = []
        self._commits: list[int] = []

    def feed(self, batch: TryBatch) -> None:
        types = {field.name: field.type for field in batch.rows.schema}
        for name, spec in self._pipeline.aggregates.items():
            argument_types(spec, types, f"pipeline {self._pipeline.pipeline}: aggregates.{name}")
        self._commits += batch.commits.tolist()
        columns = [batch.rows.column(name) for name in batch.rows.column_names]
        cells = [(column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist() for column in columns]
        true = {text: mask.to_pylist() for text, mask in batch.conditions.items()}
        for index, row in enumerate(zip(*cells, strict=True)):
            held = frozenset(text for text, mask in true.items() if mask[index])
            self._records.append(reference.Record(dict(zip(batch.rows.column_names, row, strict=True)), held))

    def finish(self, *, final: bool) -> Results:
        outcome = reference.evaluate(self._pipeline, self._records, commits=self._commits, final=final, latest=self._latest)
        return Results(outcome.rows, outcome.quarantined)


def _spark_engine(pipeline: Pipeline, latest: float) -> TryEngine:
    from windowmill.jobs.commands.try_spark import SparkEngine  # the others need no pyspark

    return SparkEngine(pipeline, latest)


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
    if engine != "spark":
        rows, masks = _judged(rows, pipeline)
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
    return TryOutcome(shown, sorted([*rows.refused, *late], key=lambda row: row.line))


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
    _write(result_lines(outcome.rows, pipeline), out)
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


def _judged(rows: JsonRows, pipeline: Pipeline) -> tuple[JsonRows, dict[str, pa.BooleanArray]]:
    """The rows that the source's filter leaves and on which no condition fails, and where each of the spec's conditions is true of them.

    A condition reads one row, so conditions are evaluated for all rows at once: a query a batch costs 20 ms and more.
    """
    wanted = pipeline.source.filter if pipeline.source and pipeline.source.filter else None
    conditions = pipeline.conditions()
    if not rows.table.num_rows or not (wanted or conditions):
        return rows, {condition: pa.array([], pa.bool_()) for condition in conditions}
    # Times of JSON are instants in UTC.
    fields = [field.with_type(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(field.type) else field for field in rows.table.schema]
    found = evaluate(tuple(dict.fromkeys([*([wanted] if wanted else []), *conditions])), rows.table.cast(pa.schema(fields)))
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
