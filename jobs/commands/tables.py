"""Commands about what runs have left: ``status``, ``history``, ``quality``, ``state``, ``report``, ``maintain``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from windowmill.jobs.commands.terminal import Answer, AsJson, Last, Spec, as_written, errors, load_pipeline, show
from windowmill.windowing.redaction import redacted


def status(spec: Spec, as_json: AsJson = False) -> None:
    """Show the pipeline's progress and open batch."""
    from windowmill.jobs.commands.answers import status_of

    show(status_of(load_pipeline(spec)), as_json)


def history(
    spec: Spec,
    last: Last = 20,
    timings: Annotated[bool, typer.Option("--timings", help="Show the seconds of each step.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the pipeline's batches."""
    from windowmill.jobs.commands.answers import history_of

    show(history_of(load_pipeline(spec), last, timings=timings), as_json)


def quality(spec: Spec, last: Last = 5, as_json: AsJson = False) -> None:
    """Show the validation results of the last batches."""
    from windowmill.jobs.commands.answers import quality_of

    show(quality_of(load_pipeline(spec), last), as_json)


def state(
    spec: Spec,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="NAME=VALUE", help="A key; give the option once per key column. NAME alone means null."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of lines of each list.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the stored state; for a key, what the next run would restore, and for which windows."""
    from windowmill.jobs.commands.state import state_of

    show(state_of(load_pipeline(spec), key or [], limit), as_json)


def report(
    spec: Spec,
    out: Annotated[str | None, typer.Option("--out", help="Path or URI of the page; by default next to the pipeline's tables.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the HTML report."""
    from windowmill.jobs.report import write_report

    pipeline = load_pipeline(spec)
    page = redacted(write_report(pipeline, out=str(out) if out else None))
    show(Answer({"pipeline": pipeline.pipeline, "report": page}, Text(page)), as_json)


def maintain(spec: Spec, as_json: AsJson = False) -> None:
    """Drop expired slices, compact and vacuum the pipeline's own tables."""
    from windowmill.jobs.batch.progress import Progress
    from windowmill.jobs.commands.maintenance import maintain as maintain_tables

    show(maintain_tables(load_pipeline(spec), Progress(errors, as_written)), as_json)
