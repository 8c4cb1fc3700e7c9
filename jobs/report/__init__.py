"""The report: one HTML page on a pipeline, readable without a network, a server or a JVM."""

from __future__ import annotations

from datetime import UTC, datetime

from windowmill.checkpoints.batches import undone_of
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.stores import located, use_options_of
from windowmill.jobs.batch.planning import Waiting
from windowmill.jobs.report import page
from windowmill.jobs.report.curves import ChartSelection, Curves, read_curves
from windowmill.jobs.report.freshness import freshness_of
from windowmill.jobs.report.page import docs_pages, write_page
from windowmill.jobs.report.quality import read_held, read_quality
from windowmill.jobs.report.queries import BATCHES_SHOWN, ReportError, open_table, read_quarantine, rows_of
from windowmill.windowing.redaction import redacted
from windowmill.windowing.spec import Pipeline

__all__ = ["ChartSelection", "ReportError", "report_page", "write_report"]


def write_report(pipeline: Pipeline, *, out: str | None = None, spec: str = "SPEC", choice: ChartSelection | None = None) -> str:
    """Write the report page of ``pipeline`` and return its path.

    The section of a table that does not exist yet says so. The page stays below 3 MB. Memory grows with the number of distinct keys,
    not with the number of rows.

    Parameters
    ----------
    out
        Path or URI of the page; by default ``report.html`` among the pipeline's own tables.
    spec
        The pipeline's file, as the page names it in commands.
    choice
        Aggregates and keys to draw; by default those that matter most.

    Raises
    ------
    SpecError
        If an aggregate of the choice is not a number, or no row has one of its keys.
    ReportError
        If a table exists but cannot be read, or the page cannot be written; an earlier page then stays as it is.
    """
    target = out or Places.of(pipeline).report
    write_page(target, report_page(pipeline, target=target, spec=spec, choice=choice))
    return target


def report_page(pipeline: Pipeline, *, target: str, spec: str, docs: str | None = None, choice: ChartSelection | None = None) -> str:
    """The report page of ``pipeline`` as HTML.

    Parameters
    ----------
    target
        Where the page will be; links to files on this machine are relative to it.
    docs
        Link to the index of the Data Docs, where a server has another than the file system.
    choice
        As in :func:`write_report`.

    Raises
    ------
    SpecError
        As in :func:`write_report`.
    ReportError
        If a table exists but cannot be read.
    """
    use_options_of(pipeline)
    places = Places.of(pipeline)
    ledger = Ledger.open(pipeline)
    computed = ledger.as_computed(pipeline) or pipeline
    recent = ledger.recent(BATCHES_SHOWN)
    first_shown = recent[0].number if recent else 0
    undone = undone_of(recent)
    batches = [batch for batch in recent if batch.number not in undone]
    table = located(pipeline).sink
    sink = open_table(table.path) if table and table.path else None
    now, last = datetime.now(UTC), ledger.last_commit
    last_ended = next((batch.ended_at for batch in reversed(batches) if batch.ended_at), None)
    facts = page.Facts(
        pipeline=computed,
        places=places,
        batches=batches,
        undone=len(undone),
        last_advance=last,
        last_ended=last_ended,
        freshness=freshness_of(pipeline, last.seen if last else None, last_ended, now, lambda: Waiting.of(pipeline, ledger).n),
        totals=ledger.totals,
        published=rows_of(sink) if sink else 0,
        curves=read_curves(computed, sink, choice) if sink else Curves([], [], [], [], []),
        quarantine=read_quarantine(places.quarantine, first_shown, (*computed.keys, computed.time.column, *computed.time.tie_break)),
        quality=read_quality(places.quality, first_shown, undone),
        held=read_held(ledger, pipeline, places),
        spec=redacted(spec),
        made_at=now,
        docs=docs,
        docs_pages=docs_pages(places),
    )
    return page.render(facts, target)
