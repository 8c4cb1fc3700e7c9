"""Commands about what runs left: progress, batches and their cost, quality, rules to add, state, report, views, verification, upkeep."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from windowmill.jobs.commands.summaries import history_of, quality_of, status_of
from windowmill.jobs.commands.terminal import (
    Answer,
    AsJson,
    Last,
    Spec,
    duration_of,
    load_pipeline,
    new_progress,
    range_of,
    show,
)
from windowmill.windowing.errors import SpecError
from windowmill.windowing.redaction import redacted
from windowmill.windowing.settings import PRICE_PER_HOUR


def status(spec: Spec, as_json: AsJson = False) -> None:
    """Show the pipeline's progress and open batch."""
    show(status_of(load_pipeline(spec)), as_json)


def history(
    spec: Spec,
    last: Last = 20,
    timings: Annotated[bool, typer.Option("--timings", help="Show the seconds of each step.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the pipeline's batches."""
    show(history_of(load_pipeline(spec), last, timings=timings), as_json)


def cost(
    spec: Spec,
    last: Last = 20,
    price: Annotated[
        float | None,
        typer.Option("--price-per-hour", envvar=PRICE_PER_HOUR.name, min=0, help="Price of an hour of computing, in any currency."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what the last batches cost, whether that grows, and what it comes to a month at the pipeline's schedule."""
    from windowmill.jobs.commands.report_commands import cost_of

    show(cost_of(load_pipeline(spec), last, price), as_json)


def quality(spec: Spec, last: Last = 5, as_json: AsJson = False) -> None:
    """Show the validation results of the last batches."""
    show(quality_of(load_pipeline(spec), last), as_json)


def suggest(spec: Spec, as_json: AsJson = False) -> None:
    """Propose rules of quality from what the pipeline has published, as YAML to paste, each with the history that it rests on."""
    from windowmill.jobs.commands.suggest import suggestions_of

    show(suggestions_of(load_pipeline(spec)), as_json)


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
    spec: Annotated[Path | None, typer.Argument(metavar="[SPEC]", help="The pipeline's YAML file.", show_default=False)] = None,
    every: Annotated[
        Path | None, typer.Option("--all", metavar="FOLDER", help="One page over the pipelines of this folder's *.yaml files.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", help="Path or URI of the page; by default next to the pipeline's tables, or in the folder.")
    ] = None,
    aggregates: Annotated[
        list[str] | None,
        typer.Option("--aggregate", metavar="NAME", help="Draw this aggregate; give the option for each. By default up to three."),
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option(
            "--key", metavar="NAME=VALUE", help="Draw only keys with this value of a key column; any of several. NAME alone means null."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the HTML report of a pipeline, or an overview of all pipelines of a folder."""
    if (spec is None) == (every is None):
        raise SpecError("report: expected a SPEC, or --all FOLDER; give one of them")
    if every is not None:
        if aggregates or keys:
            raise SpecError("report --all: the overview has no charts; give --aggregate and --key with a SPEC")
        from windowmill.jobs.commands.report_commands import overview_of

        show(overview_of(every, out), as_json)
    elif spec is not None:
        from windowmill.jobs.report import ChartSelection, write_report

        pipeline = load_pipeline(spec)
        choice = ChartSelection.of(pipeline, aggregates or (), keys or ())
        page = redacted(write_report(pipeline, out=out, spec=str(spec), choice=choice))
        show(Answer({"pipeline": pipeline.pipeline, "report": page}, Text(page)), as_json)


def verify(
    spec: Spec,
    sample: Annotated[int, typer.Option("--sample", min=1, help="Number of published rows to recompute.")] = 100,
    begin: Annotated[
        str | None,
        typer.Option("--from", help="Only windows that end after this instant (ISO 8601, UTC; an integer on an integer axis)."),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="… and at or before this one.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Choose the same rows as an earlier verification with this seed.")] = None,
    as_json: AsJson = False,
) -> int:
    """Recompute random published rows from the source as it is now, by Spark SQL, and compare; exit code 1 if one differs."""
    from windowmill.jobs.commands.verify import verification_of

    pipeline = load_pipeline(spec)
    ends, chosen = range_of(begin, end, pipeline, "verified"), random.randrange(1 << 31) if seed is None else seed
    answer, agrees = verification_of(pipeline, new_progress(), number=sample, seed=chosen, ends=ends)
    show(answer, as_json)
    return 0 if agrees else 1


def maintain(
    spec: Spec,
    now: Annotated[
        bool,
        typer.Option(
            "--now",
            help="Remove files and log entries of older versions whatever their age, as after a purge. Running queries, time travel and "
            "pipelines that have not read the sink's newest version lose them.",
        ),
    ] = False,
    fold_revisions: Annotated[
        str | None,
        typer.Option(
            help="Keep only the newest revision of a window from this age on, such as `30 days`; by default the spec's fold_revisions."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Drop expired slices, compact and vacuum the pipeline's own tables."""
    from windowmill.jobs.commands.maintenance_command import maintain as maintain_tables

    fold = None if fold_revisions is None else duration_of("--fold-revisions", fold_revisions)
    show(maintain_tables(load_pipeline(spec), new_progress(), now=now, fold=fold), as_json)


def views(
    spec: Spec,
    schema: Annotated[str | None, typer.Option("--schema", help="Schema of the views; by default the current one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the statements of Spark's SQL that make views of the sink: all rows, and the newest revisions."""
    from windowmill.jobs.published import view_statements

    pipeline = load_pipeline(spec)
    statements = view_statements(pipeline, schema)
    text = Text("\n".join(f"{statement};" for statement in statements.values()))
    show(Answer({"pipeline": pipeline.pipeline, "views": statements}, text), as_json)
