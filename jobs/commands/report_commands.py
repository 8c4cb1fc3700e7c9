"""``windowmill cost``, ``report`` and ``views``: what batches cost, pages about pipelines, and SQL that makes views of their sinks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from windowmill.checkpoints.batches import Batch
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch.engine import describe_briefly
from windowmill.jobs.commands.summaries import titled
from windowmill.jobs.commands.terminal import Answer, AsJson, Last, Spec, as_written, counted, in_bytes, load_pipeline, show
from windowmill.jobs.published import view_statements
from windowmill.jobs.report import ChartSelection, write_report
from windowmill.jobs.report.cost import Month, figures_of, trend_of
from windowmill.jobs.report.overview import PipelineRow, row_of, unreadable, write_overview
from windowmill.windowing.errors import SpecError, WindowmillError
from windowmill.windowing.paths import specs_in
from windowmill.windowing.redaction import redacted
from windowmill.windowing.settings import PRICE_PER_HOUR
from windowmill.windowing.spec import Pipeline

#: Columns of the table by their names in JSON.
_SECONDS = {"seconds": "seconds", "processor_seconds": "processor"}
_BYTES = {"bytes_read": "read", "bytes_written": "written", "state_bytes": "state"}


def cost_of(pipeline: Pipeline, last: int, price_per_hour: float | None) -> Answer:
    batches = Ledger.open(pipeline).recent(last)
    month, trend = Month.of(pipeline, batches, price_per_hour), trend_of(batches)
    data = {
        "pipeline": pipeline.pipeline,
        "batches": [
            {"batch": batch.number, "action": batch.action, **figures_of(batch), "compute": batch.outcome.compute} for batch in batches
        ],
        "trend": trend or None,
        "month": None if month is None else month.as_json(),
    }
    unknown = "a month: not known; wait for a run after the first batch, which reads history, or without a schedule for three runs"
    elsewhere = "processor: – where a Connect server or a cluster computed the batch; see its own metrics"
    note = elsewhere if any("client_processor_seconds" in batch.outcome.used for batch in batches) else ""
    lines = [line for line in (trend, unknown if month is None else month.describe(), note) if line]
    return Answer(data, Group(_table(pipeline, batches), *lines))


def _table(pipeline: Pipeline, batches: Sequence[Batch]) -> Table:
    table = titled(f"cost of {pipeline.pipeline}'s batches", ("batch", *_SECONDS.values(), *_BYTES.values(), "tasks"))
    for batch in batches:
        figures = figures_of(batch)
        cells = ["–" if figures[name] is None else f"{figures[name]:.1f}" for name in _SECONDS]
        cells += ["–" if figures[name] is None else in_bytes(figures[name]) for name in _BYTES]
        table.add_row(str(batch.number), *cells, describe_briefly(batch.outcome.compute))
    return table


def overview_of(folder: Path, out: str | None) -> Answer:
    """Write the overview of the specs in ``folder``; a pipeline that cannot be read is a row that says why."""
    if not folder.is_dir():
        raise SpecError(f"report --all: {folder} is not a folder; name one that holds *.yaml files of pipelines")
    target = out or str(folder / "overview.html")
    rows = write_overview(redacted(str(folder)), [_row(spec, target) for spec in specs_in(folder)], target)
    page, counts = redacted(target), Counter(row.verdict for row in rows)
    listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    text = f"{page}: {counted(len(rows), 'pipeline')}{f' ({listed})' if listed else ''}"
    return Answer({"folder": str(folder), "report": page, "pipelines": [asdict(row) for row in rows]}, Text(text))


def _row(spec: Path, target: str) -> PipelineRow:
    name = spec.stem
    try:
        pipeline = load_pipeline(spec)
        name = pipeline.pipeline
        return row_of(pipeline, str(spec), target)
    except WindowmillError as err:
        return unreadable(name, str(spec), redacted(as_written(str(err))))


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
    show(cost_of(load_pipeline(spec), last, price), as_json)


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
        show(overview_of(every, out), as_json)
    elif spec is not None:
        pipeline = load_pipeline(spec)
        choice = ChartSelection.of(pipeline, aggregates or (), keys or ())
        page = redacted(write_report(pipeline, out=out, spec=str(spec), choice=choice))
        show(Answer({"pipeline": pipeline.pipeline, "report": page}, Text(page)), as_json)


def views(
    spec: Spec,
    schema: Annotated[str | None, typer.Option("--schema", help="Schema of the views; by default the current one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the statements of Spark's SQL that make views of the sink: all rows, and the newest revisions."""
    pipeline = load_pipeline(spec)
    statements = view_statements(pipeline, schema)
    text = Text("\n".join(f"{statement};" for statement in statements.values()))
    show(Answer({"pipeline": pipeline.pipeline, "views": statements}, text), as_json)
