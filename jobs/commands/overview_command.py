"""``windowmill report --all``: the overview of the pipelines of a folder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.text import Text

from windowmill.jobs.commands.terminal import Answer, as_written, load_pipeline
from windowmill.jobs.report.overview import PipelineRow, row_of, unreadable, write_overview
from windowmill.windowing.errors import SpecError, WindowmillError
from windowmill.windowing.redaction import redacted


def overview_of(folder: Path, out: str | None) -> Answer:
    """Write the overview of the specs in ``folder``; a pipeline that cannot be read is a row that says why."""
    if not folder.is_dir():
        raise SpecError(f"report --all: {folder} is not a folder; name one that holds *.yaml files of pipelines")
    target = out or str(folder / "overview.html")
    rows = write_overview(redacted(str(folder)), [_row(spec, target) for spec in sorted(folder.glob("*.yaml"))], target)
    page, counts = redacted(target), Counter(row.verdict for row in rows)
    listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    text = f"{page}: {len(rows)} pipeline{'' if len(rows) == 1 else 's'}{f' ({listed})' if listed else ''}"
    return Answer({"folder": str(folder), "report": page, "pipelines": [row.as_json() for row in rows]}, Text(text))


def _row(spec: Path, target: str) -> PipelineRow:
    name = spec.stem
    try:
        pipeline = load_pipeline(spec)
        name = pipeline.pipeline
        return row_of(pipeline, str(spec), target)
    except WindowmillError as err:
        return unreadable(name, str(spec), redacted(as_written(str(err))))
