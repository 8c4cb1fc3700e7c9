"""Plays an example: lands its deliveries one after another, runs its pipelines after each, and prints what they published."""

from __future__ import annotations

import argparse
import io
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
from deltalake import write_deltalake
from rich.console import Console

from examples.flights.results import published_rows
from windowmill.jobs.batch import loop
from windowmill.jobs.batch.progress import Progress
from windowmill.windowing.specfile import load_pipeline


@dataclass(frozen=True)
class Delivery:
    """Rows that arrive together, as one commit of the source."""

    title: str
    rows: pa.Table


@dataclass(frozen=True)
class Example:
    """An example of this folder.

    Attributes
    ----------
    folder
        Where its specs are; they read ``${WAREHOUSE}/<source>``.
    source
        Name of the table of events.
    deliveries
        What arrives there, in order.
    questions
        Title of a table -> SQL over the rows of its pipelines, each by the pipeline's name.
    """

    folder: Path
    source: str
    deliveries: Callable[[], Sequence[Delivery]]
    questions: dict[str, str]


def play(example: Example, warehouse: Path, out: Console) -> None:
    """Play ``example`` with its tables in ``warehouse``, an empty folder."""
    pipelines = [load_pipeline(spec, {"WAREHOUSE": str(warehouse)}) for spec in sorted(example.folder.glob("*.yaml"))]
    quiet = Progress(Console(file=io.StringIO()))
    for number, delivery in enumerate(example.deliveries(), 1):
        write_deltalake(str(warehouse / example.source), delivery.rows, mode="append")
        out.print(f"{number}. {delivery.title}: {delivery.rows.num_rows:,} rows land")
        for pipeline in pipelines:
            for batch in loop.run(pipeline, quiet):
                done = batch.outcome.counts
                out.print(
                    f"   {pipeline.pipeline}: {done.rows_read:,} rows read, {done.rows_late:,} late, "
                    f"{done.rows_quarantined:,} quarantined, {done.rows_published:,} rows published"
                )
    with duckdb.connect() as database:
        for pipeline in pipelines:
            database.register(pipeline.pipeline, published_rows(pipeline))
        for title, question in example.questions.items():
            out.print(f"\n{title}")
            out.print(_aligned(database.execute(question)))


def _aligned(found: duckdb.DuckDBPyConnection) -> str:
    """The rows of a query as aligned columns, numbers at the right."""
    names, rows = [column[0] for column in found.description or ()], found.fetchall()
    numbers = [all(isinstance(row[place], int | float) or row[place] is None for row in rows) for place in range(len(names))]
    cells = [names, *([_text(value) for value in row] for row in rows)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(names))]
    lines = []
    for line in cells:
        aligned = (text.rjust(width) if right else text.ljust(width) for text, width, right in zip(line, widths, numbers, strict=True))
        lines.append(("  " + "  ".join(aligned)).rstrip())
    return "\n".join(lines)


def _text(value: object) -> str:
    return "–" if value is None else f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def main(example: Example) -> None:
    """Play ``example`` as a program: in the folder that it is given, or in one that is removed at the end."""
    parser = argparse.ArgumentParser(description=f"Play the example of {example.folder.name}.")
    parser.add_argument("--folder", type=Path, help="an empty folder for the tables, which are kept; a temporary one unless given")
    folder: Path | None = parser.parse_args().folder
    out = Console(highlight=False, soft_wrap=True, markup=False)
    if folder is None:
        with tempfile.TemporaryDirectory(prefix=f"windowmill-{example.folder.name}-") as temporary:
            play(example, Path(temporary), out)
        return
    if folder.exists() and any(folder.iterdir()):
        parser.error(f"--folder {folder}: is not empty; name a new folder, or remove what an earlier run has left there")
    folder.mkdir(parents=True, exist_ok=True)
    play(example, folder.resolve(), out)
    specs = " ".join(
        str(spec.relative_to(Path.cwd()) if spec.is_relative_to(Path.cwd()) else spec) for spec in sorted(example.folder.glob("*.yaml"))
    )
    out.print(f"\nThe tables are in {folder}. Look at them: WAREHOUSE={folder.resolve()} windowmill status {specs.split()[0]}")
