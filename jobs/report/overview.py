"""One page over the pipelines of a folder: what each needs from the people who run it. No JVM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.jobs.batch.engine import describe_briefly
from windowmill.jobs.batch.planning import Waiting
from windowmill.jobs.batch.window_history import rulings
from windowmill.jobs.report.cost import COMPARED, Month, median_seconds, trend_of
from windowmill.jobs.report.freshness import WORTH_A_LOOK, freshness_of, share_of
from windowmill.jobs.report.page import link_to, schedule_of, templates, verdict_of, write_page
from windowmill.jobs.report.queries import BATCHES_SHOWN
from windowmill.jobs.report.short_texts import moment
from windowmill.windowing.redaction import redacted
from windowmill.windowing.spec import Pipeline

#: Tones of verdicts, what needs somebody first.
_TONES = ("bad", "warn", "idle", "good")

#: The next command for a changed spec: without a held batch, and with one. Only the spec of its plan can release or discard a held batch.
_FOR_CHANGED = ("plan", "abandon")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRow:
    """A pipeline's row of the overview."""

    name: str
    spec: str
    #: The verdict on the newest batch.
    tone: str
    verdict: str
    #: Why spec or ledger cannot be read; then most other fields have no meaning.
    error: str = ""
    #: The commands that come next: for a held batch, or for a spec that means something else than what runs.
    next: tuple[str, ...] = ()
    #: Where the pipeline's ledger is, and further specs of the same pipeline: those that :func:`merged` has left out.
    place: str = ""
    others: tuple[str, ...] = ()
    event: str = "–"
    #: End of the newest batch.
    ended: str = "–"
    batch: str = ""
    missed: int | None = None
    schedule: str = ""
    rows_read: int = 0
    #: Shares of all rows read.
    late: float = 0.0
    quarantined: float = 0.0
    #: Median seconds of the latest runs, how they compare with those before, and the seconds of all runs of a month, if it is known.
    seconds: float | None = None
    trend: str = ""
    month: float | None = None
    computed: str = "–"
    #: Link to the pipeline's report; empty if there is none.
    href: str = ""


def unreadable(name: str, spec: str, error: str) -> PipelineRow:
    return PipelineRow(name=name, spec=spec, tone="bad", verdict="cannot be read", error=error)


def row_of(pipeline: Pipeline, spec: str, target: str) -> PipelineRow:
    """The row of ``pipeline`` on the page ``target``; ``spec`` is its file as commands name it."""
    ledger, now = Ledger.open(pipeline), datetime.now(UTC)
    batches, last, totals = ledger.recent(BATCHES_SHOWN), ledger.last_commit, ledger.totals
    tone, verdict, trend = *verdict_of(batches), trend_of(batches)
    month = Month.of(pipeline, batches)
    ended = batches[-1].ended_at if batches else None
    kept = ledger.newest_kept
    commands: tuple[str, ...] = rulings(ledger, ledger.held_batch.plan) if ledger.held_batch else ()
    if kept is not None and not pipeline.means(kept.plan.definition, kept.plan.meaning):
        commands = (_FOR_CHANGED[ledger.held_batch is not None],)
    fresh = freshness_of(pipeline, last.seen if last else None, ended, now, lambda: Waiting.of(pipeline, ledger).n)
    return PipelineRow(
        name=pipeline.pipeline,
        spec=spec,
        tone=tone,
        verdict=verdict,
        next=tuple(f"windowmill {command} {spec}" for command in commands),
        place=redacted(ledger.path),
        event=fresh.event,
        ended=moment(ended),
        batch=fresh.batch,
        missed=fresh.missed,
        schedule=schedule_of(pipeline),
        rows_read=totals.counts.rows_read,
        late=share_of(totals.counts.rows_late, totals.counts.rows_read),
        quarantined=share_of(totals.counts.rows_quarantined, totals.counts.rows_read),
        seconds=median_seconds(batches),
        trend=trend.rpartition(", ")[2],
        month=None if month is None else round(month.seconds, 1),
        computed=describe_briefly(batches[-1].outcome.compute) if batches else "–",
        href=link_to(Places.of(pipeline).report, target),
    )


def merged(rows: Sequence[PipelineRow]) -> list[PipelineRow]:
    """One row for each pipeline: of several specs with the same name and ledger the one that means what runs, else the first."""
    groups: dict[tuple[str, str], list[PipelineRow]] = {}
    for row in rows:
        groups.setdefault((row.name, row.place or row.spec), []).append(row)
    found = []
    for group in groups.values():
        changed = {f"windowmill {command} {row.spec}" for row in group for command in _FOR_CHANGED}
        chosen = next((row for row in group if changed.isdisjoint(row.next)), group[0])
        found.append(replace(chosen, others=tuple(row.spec for row in group if row is not chosen)))
    return found


def overview_page(folder: str, rows: Sequence[PipelineRow]) -> tuple[list[PipelineRow], str]:
    """The rows as the page orders them, what needs somebody first, one for each pipeline; and the page of ``folder`` as HTML."""
    ordered = sorted(merged(rows), key=lambda row: (_TONES.index(row.tone), row.name))
    counts = {words: sum(row.verdict == words for row in ordered) for words in dict.fromkeys(row.verdict for row in ordered)}
    tones = {row.verdict: row.tone for row in ordered}
    badges = [(tones[words], f"{count} {words}") for words, count in counts.items()]
    page, limits = templates().get_template("overview.html.j2"), {"worth_a_look": WORTH_A_LOOK, "compared": COMPARED}
    return ordered, page.render(folder=folder, pipelines=ordered, badges=badges, made_at=datetime.now(UTC), **limits)


def write_overview(folder: str, rows: Sequence[PipelineRow], target: str) -> list[PipelineRow]:
    """Write the page of ``rows`` to ``target``; returns them as it orders them."""
    ordered, html = overview_page(folder, rows)
    write_page(target, html)
    return ordered
