"""Commands that compute batches or rule on them: ``run``, ``backfill``, ``release``, ``discard``, ``abandon``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from windowmill.jobs.batch import loop
from windowmill.jobs.commands.previews import backfill_preview
from windowmill.jobs.commands.savepoint_commands import savepoint_of
from windowmill.jobs.commands.summaries import summary_of
from windowmill.jobs.commands.terminal import (
    AcceptChanges,
    AcceptCode,
    Answer,
    Arrival,
    AsJson,
    By,
    Spec,
    acceptance,
    exit_code_of,
    instant_of,
    load_pipeline,
    new_progress,
    report,
    show,
)
from windowmill.windowing.errors import HeldError, SpecError, WindowmillError
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from windowmill.jobs.batch.planning import Acceptance
    from windowmill.jobs.batch.progress import CommittedBatch, Progress, Ruling
    from windowmill.jobs.sources.reading import History


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
    accepted = acceptance(accept_changes, accept_code)
    advance = partial(
        _advance, max_batches=max_batches, interval_end=data_interval_end, arrival=arrival, accepted=accepted, as_json=as_json
    )
    if len(specs) == 1:
        advance(specs[0])
        return 0
    codes = {spec: exit_code_of(partial(advance, spec)) for spec in specs}
    failed = {spec: code for spec, code in codes.items() if code}
    if failed:
        listed = ", ".join(f"{spec} (exit code {code})" for spec, code in failed.items())
        report(f"windowmill: {len(failed)} of {len(codes)} pipelines failed: {listed}")
    return next(iter(failed.values()), 0)


def _advance(
    spec: Path, *, max_batches: int | None, interval_end: datetime | None, arrival: Arrival, accepted: Acceptance, as_json: bool
) -> None:
    pipeline, progress = load_pipeline(spec), new_progress()
    with _told_in_json(pipeline, progress, as_json):
        done = loop.run(pipeline, progress, max_batches=max_batches, interval_end=interval_end, arrival=arrival, accepted=accepted)
    _show_summary(pipeline, done, as_json)


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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be read and replaced, and about how long it takes; change nothing.")
    ] = False,
    accept_changes: AcceptChanges = False,
    accept_code: AcceptCode = False,
    as_json: AsJson = False,
) -> None:
    """Recompute the windows that end in (from, to] from the rows that the source holds now, as one batch."""
    pipeline = load_pipeline(spec)
    first, last = instant_of("--from", begin, pipeline), instant_of("--to", end, pipeline)
    if first >= last:
        raise SpecError(f"--from {begin} is not before --to {end}; windows that end in (from, to] are recomputed")
    if as_arrived and arrival == "event_time":
        raise SpecError("--as-arrived and --arrival event_time contradict each other; give one of them")
    history: History = "log" if as_arrived else arrival or "current"
    accepted = acceptance(accept_changes, accept_code)
    if dry_run:
        show(backfill_preview(pipeline, first, last, history=history, accepted=accepted), as_json)
        return
    progress = new_progress()
    with _told_in_json(pipeline, progress, as_json):
        done = loop.backfill(pipeline, progress, begin=first, end=last, history=history, accepted=accepted)
    _show_summary(pipeline, [done], as_json)


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
        accepted = acceptance(accept_changes, accept_code)
        _show_summary(pipeline, loop.run(pipeline, progress, ruling=ruling, held=batch, by=by, accepted=accepted), as_json)

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


def savepoint(
    spec: Spec,
    action: Annotated[Literal["create", "list", "restore", "drop"], typer.Argument(metavar="create|list|restore|drop", help="What to do.")],
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The savepoint; list takes none.")] = None,
    accept_changes: AcceptChanges = False,
    accept_code: AcceptCode = False,
    as_json: AsJson = False,
) -> None:
    """Make, list or drop a named state of the pipeline, or go back to one: the next run reads what came after it."""
    accepted = acceptance(accept_changes, accept_code)
    show(savepoint_of(load_pipeline(spec), new_progress(), action, name, accepted), as_json)


@contextmanager
def _told_in_json(pipeline: Pipeline, progress: Progress, as_json: bool) -> Iterator[None]:
    """With ``--json``, print the summary also where a batch is held, or where an error follows batches that are committed."""
    try:
        yield
    except WindowmillError as err:
        held = isinstance(err, HeldError)
        if as_json and (held or progress.committed):
            show(summary_of(pipeline, progress.committed, "held" if held else "failed"), as_json)
        raise


def _show_summary(pipeline: Pipeline, done: list[CommittedBatch], as_json: bool) -> None:
    show(summary_of(pipeline, done), as_json)
