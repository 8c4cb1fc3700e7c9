"""The report: one HTML page on a pipeline, readable without a network, a server or a JVM."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from pyarrow import fs

from checkpoints.ledger import Ledger
from checkpoints.places import Places
from jobs.report import page
from jobs.report.curves import Curves, read_curves
from jobs.report.quality import read_quality
from jobs.report.tables import BATCHES_SHOWN, open_table, read_quarantine
from windowing.spec import Pipeline

__all__ = ["write_report"]


def write_report(pipeline: Pipeline, *, out: str | None = None) -> str:
    """Write the report page of ``pipeline`` and return its path.

    Tables that do not exist yet leave their section saying so. The page stays below 3 MB, and the memory taken grows with the number
    of distinct keys, not with the rows.

    Parameters
    ----------
    out
        Path or URI of the page; by default ``report.html`` among the pipeline's own tables.

    Raises
    ------
    ReportError
        If a table is there but cannot be read; a page written before stays as it is.
    """
    places = Places.of(pipeline)
    batches = Ledger.open(pipeline).batches()
    first_shown = batches[-BATCHES_SHOWN:][0].number if batches else 0
    sink = open_table(pipeline.sink.path) if pipeline.sink and pipeline.sink.path else None
    facts = page.Facts(
        pipeline=pipeline,
        places=places,
        batches=batches,
        curves=read_curves(pipeline, sink) if sink else Curves([], [], [], []),
        quarantine=read_quarantine(places.quarantine, first_shown, (*pipeline.keys, pipeline.time.column, *pipeline.time.tie_break)),
        quality=read_quality(places.quality),
        made_at=datetime.now(UTC),
    )
    target = out or places.report
    _write(target, page.render(facts, target))
    return target


def _write(target: str, html: str) -> None:
    if "://" in target:
        filesystem, path = fs.FileSystem.from_uri(target)
        with filesystem.open_output_stream(path) as stream:
            stream.write(html.encode())
        return
    path = Path(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place: whoever has the page open never loads half of it.
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(html, encoding="utf-8")
    unfinished.replace(path)
