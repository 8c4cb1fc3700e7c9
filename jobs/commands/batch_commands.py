"""Commands that run pipelines or rule on a held batch: ``run``, ``backfill``, ``release``, ``discard``, ``abandon``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import typer

from windowmill.checkpoints.batches import BackfillPlan
from windowmill.checkpoints.committer import ReplacedRange
from windowmill.checkpoints.data_files import rows_of
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.stores import is_table, table_at
from windowmill.jobs.batch import loop, planning
from windowmill.jobs.batch.planning import Acceptance
from windowmill.jobs.commands import terminal
from windowmill.jobs.commands.summaries import bound, new_progress, summarized_in_json, summary_of
from windowmill.jobs.commands.terminal import AcceptChanges, AcceptCode, Answer, Arrival, AsJson, By, Spec, load_pipeline, show
from windowmill.jobs.runnables import runnable_of
from windowmill.jobs.sources.base import Reading
from windowmill.windowing.axis import AXIS_END
from windowmill.windowing.errors import SpecError
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from windowmill.jobs.batch.progress import Ruling
    from windowmill.jobs.sources.reading import History


def backfill(
    spec: Spec,
    begin: Annotated[
        str, typer.Option("--from", help="Windows that end after this instant (ISO 8601, UTC; an integer on an integer axis).")
    ],
    end: Annotated[str, typer.Option("--to", help="… and at or before this one.")],
    as_arrived: Annotated[
        bool, typer.Option("--as-arrived", help="Take the rows that earlier batches read, also where the source has changed them since.")
    ] = False,
    arrival: Annotated[
        Literal["log", "event_time"] | None,
        typer.Option("--arrival", help="log: as --as-arrived; event_time: all rows that the table holds, in event-time order, none late."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be read and replaced; change nothing.")] = False,
    accept_changes: AcceptChanges = False,
    accept_code: AcceptCode = False,
    as_json: AsJson = False,
) -> None:
    """Recompute the windows that end in (from, to] from the rows that the source holds now, as one batch."""
    pipeline = load_pipeline(spec)
    first, last = terminal.instant_of("--from", begin, pipeline), terminal.instant_of("--to", end, pipeline)
    if first >= last:
        raise SpecError(f"--from {begin} is not before --to {end}; windows that end in (from, to] are recomputed")
    if as_arrived and arrival == "event_time":
        raise SpecError("--as-arrived and --arrival event_time contradict each other; give one of them")
    history: History = "log" if as_arrived else arrival or "current"
    accepted = Acceptance(changes=accept_changes, code=accept_code)
    if dry_run:
        show(backfill_preview(pipeline, first, last, history=history, accepted=accepted), as_json)
        return
    progress = new_progress()
    with summarized_in_json(pipeline, progress, as_json):
        done = loop.backfill(pipeline, progress, begin=first, end=last, history=history, accepted=accepted)
    show(summary_of(pipeline, [done]), as_json)


def backfill_preview(pipeline: Pipeline, begin: int, end: int, *, history: History, accepted: Acceptance) -> Answer:
    """What ``windowmill backfill`` would do with these arguments; raises what it would raise before its work."""
    runnable, ledger = runnable_of(pipeline), Ledger.open(pipeline)
    readings: list[Reading] = []
    reasons: list[str] = []
    plan = planning.next_backfill(
        runnable,
        ledger,
        begin=begin,
        end=end,
        history=history,
        accepted=accepted,
        on_reading=lambda _, reading: readings.append(reading),
        on_other_rows=reasons.append,
    )
    [reading] = readings
    rows = terminal.total([file.rows for file in reading.files])
    replaced = _replaced(runnable, plan) if plan.rereads else {}
    instants = not pipeline.time.integer_axis
    data: dict[str, Any] = {
        "pipeline": pipeline.pipeline,
        "status": "dry run",
        "action": plan.action,
        "from": bound(begin, instants),
        "to": bound(end, instants),
        "emitted": bound(plan.emitted, instants),
        "builds_state": plan.builds_state,
        "versions": [plan.reads_from + 1, plan.to_version],
        "snapshot": plan.snapshot,
        "reason": reasons[0] if reasons else None,
        "files": len(reading.files),
        "bytes": reading.size_bytes,
        "rows": rows,
        "rows_replaced": sum(replaced.values()),
        "windows": replaced,
    }
    return Answer(data, "\n".join(_lines(data, plan, instants=instants)))


def _lines(data: dict[str, Any], plan: BackfillPlan, *, instants: bool) -> list[str]:
    name, rows = data["pipeline"], data["rows"]
    counted = "rows not counted by the log" if rows is None else f"{rows:,} rows"
    lines = [f"{name}: {plan.describe(instants=instants)}"]
    if data["reason"] is not None:
        lines.append(f"  {data['reason']}")
    lines.append(f"  reads {counted} in {data['files']:,} files ({data['bytes'] / 1e6:,.1f} MB)")
    if not plan.rereads:
        lines.append("  replaces nothing: it is the pipeline's first batch, and builds the state")
    else:
        by_window = ", ".join(f"{window} {n:,}" for window, n in data["windows"].items())
        state = ", and the state, which is to be of the same rows" if plan.replaces_state else ""
        lines.append(f"  replaces {data['rows_replaced']:,} rows in the sink{f' ({by_window})' if by_window else ''}{state}")
    return [*lines, f"{name}: nothing has been changed"]


def _replaced(runnable: Runnable, plan: BackfillPlan) -> dict[str, int]:
    """Rows of the sink in the plan's range, by window."""
    if not is_table(runnable.sink_path):
        return {}
    begin, end = plan.range
    end = AXIS_END if plan.replaces_state else end
    through = begin if plan.emitted is None else max(begin, min(end, plan.emitted))
    replaced = ReplacedRange.of(runnable.sink_path, table_at(runnable.sink_path), (begin, through))
    schema = pa.schema([replaced.schema.field(name) for name in ("window", "window_end")])
    counts: Counter[str] = Counter()
    for rows in rows_of(runnable.sink_path, replaced.files, schema):
        ends = rows.column("window_end").cast(pa.int64())
        within = pc.and_(pc.greater(ends, begin), pc.less_equal(ends, through)).fill_null(False)
        for each in pc.value_counts(rows.column("window").filter(within)).to_pylist():
            counts[each["values"]] += each["counts"]
    return {window.name: counts[window.name] for window in runnable.pipeline.windows if counts[window.name]}


def run(
    specs: Annotated[list[Path], typer.Argument(metavar="SPEC...", help="The pipelines' YAML files, which run one after the other.")],
    max_batches: Annotated[
        int | None, typer.Option("--max-batches", min=1, help="Stop after this many batches; by default when the source is drained.")
    ] = None,
    data_interval_end: Annotated[
        datetime | None, typer.Option("--data-interval-end", help="Instant (UTC) through which the input is complete.")
    ] = None,
    arrival: Arrival = "log",
    accept_changes: AcceptChanges = False,
    accept_code: AcceptCode = False,
    as_json: AsJson = False,
) -> int:
    """Advance pipelines over their sources' new rows, all in one process and Spark session.

    An error of one pipeline does not stop the others. The exit code is that of the first one that failed.
    """
    accepted = Acceptance(changes=accept_changes, code=accept_code)

    def advance(spec: Path) -> None:
        pipeline, progress = load_pipeline(spec), new_progress()
        with summarized_in_json(pipeline, progress, as_json):
            done = loop.run(pipeline, progress, max_batches=max_batches, interval_end=data_interval_end, arrival=arrival, accepted=accepted)
        show(summary_of(pipeline, done), as_json)

    if len(specs) == 1:
        advance(specs[0])
        return 0
    codes = {spec: terminal.exit_code_of(partial(advance, spec)) for spec in specs}
    failed = {spec: code for spec, code in codes.items() if code}
    if failed:
        listed = ", ".join(f"{spec} (exit code {code})" for spec, code in failed.items())
        terminal.report(f"windowmill: {len(failed)} of {len(codes)} pipelines failed: {listed}")
    return next(iter(failed.values()), 0)


def _ruling(ruling: Ruling, about: str) -> Callable[..., None]:
    """The command that rules on the held batch."""

    def command(
        spec: Spec,
        batch: Annotated[int | None, typer.Option("--batch", help="Refuse unless this batch is the held one.")] = None,
        by: By = None,
        accept_changes: AcceptChanges = False,
        accept_code: AcceptCode = False,
        as_json: AsJson = False,
    ) -> None:
        pipeline, progress = load_pipeline(spec), new_progress()
        accepted = Acceptance(changes=accept_changes, code=accept_code)
        show(summary_of(pipeline, loop.run(pipeline, progress, ruling=ruling, held=batch, by=by, accepted=accepted)), as_json)

    command.__name__, command.__doc__ = ruling, about
    return command


release = _ruling("release", "Publish the held batch although a critical expectation failed.")
discard = _ruling("discard", "Commit the held batch without publishing its rows; later windows still count its events.")


def abandon(spec: Spec, as_json: AsJson = False) -> None:
    """Drop the held batch, of which nothing has been published; the next run makes a new plan."""
    pipeline = load_pipeline(spec)
    plan = loop.abandon(pipeline, new_progress())
    data = {"pipeline": pipeline.pipeline, "status": "abandoned", "batch": plan.batch, "action": plan.action}
    show(Answer(data, f"{pipeline.pipeline}: batch {plan.batch} ({plan.action}) is abandoned; no row was published"), as_json)
