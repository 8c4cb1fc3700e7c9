"""Commands that run pipelines or rule on a held batch: ``run``, ``release``, ``discard``, ``abandon``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windowmill.jobs.batch import loop
from windowmill.jobs.batch.planning import Acceptance
from windowmill.jobs.commands.summaries import new_progress, summarized_in_json, summary_of
from windowmill.jobs.commands.terminal import (
    AcceptChanges,
    AcceptCode,
    Answer,
    Arrival,
    AsJson,
    By,
    Spec,
    exit_code_of,
    load_pipeline,
    report,
    show,
)

if TYPE_CHECKING:
    from windowmill.jobs.batch.progress import Ruling


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
    with summarized_in_json(pipeline, progress, as_json):
        done = loop.run(pipeline, progress, max_batches=max_batches, interval_end=interval_end, arrival=arrival, accepted=accepted)
    show(summary_of(pipeline, done), as_json)


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
