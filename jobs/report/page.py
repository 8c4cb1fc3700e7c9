"""The page of a pipeline: what its template shows, read from the ledger and the pipeline's tables, in texts, figures and data of charts.

And one page over the pipelines of a folder: what each needs from the people who run it. No JVM.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import orjson
import pyarrow as pa
from croniter import croniter
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from windowmill.checkpoints.batches import Batch, undone_of
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places, local_path
from windowmill.checkpoints.stores import is_disk_full, located, remote_store_of, use_options_of
from windowmill.expectations.docs import Folder, pages_of_batches
from windowmill.expectations.rule import compare_age
from windowmill.jobs.batch.engine import describe_briefly
from windowmill.jobs.batch.planning import Waiting
from windowmill.jobs.batch.progress import late_missed, missed_windows, warnings_of
from windowmill.jobs.batch.window_history import rulings
from windowmill.jobs.report.cost import COMPARED, Month, bytes_of, cost_bars, median_seconds, seconds_of, timings_of, trend_of
from windowmill.jobs.report.curves import ChartSelection, Curves, WindowCurves, bars_of, charts_of, read_curves
from windowmill.jobs.report.quality import read_held, read_quality
from windowmill.jobs.report.queries import BATCHES_SHOWN, Quarantine, ReportError, clipped, key_text, open_table, read_quarantine, rows_of
from windowmill.jobs.short_texts import elapsed, instant, moment, short
from windowmill.windowing.axis import DAY_US
from windowmill.windowing.counts import Counts, Totals
from windowmill.windowing.errors import first_line
from windowmill.windowing.redaction import holds_credentials, redacted
from windowmill.windowing.spec import FRESHNESS, AssetSchedule, Pipeline
from windowmill.windowing.watermark import LatenessRule

#: Verdict or status -> (tone of its badge, words).
_VERDICTS = {
    "passed": ("good", "passed"),
    "released": ("warn", "released by hand"),
    "warned": ("warn", "passed with warnings"),
    "held": ("bad", "held"),
    "discarded": ("warn", "discarded by hand"),
    "abandoned": ("idle", "abandoned"),
    "none": ("idle", "never run"),
}
_DISCARDED_SHOWN = 5
OUTCOMES = {"passed": "✓", "warned": "!", "failed": "✕", "broken": "?"}
#: Instants of the schedule are counted up to so many.
_COUNTED = 1_000
#: From this share of late or quarantined rows on, their numbers are marked.
WORTH_A_LOOK = 0.01
#: Tones of verdicts, what needs somebody first.
_TONES = ("bad", "warn", "idle", "good")
#: The next command for a changed spec: without a held batch, and with one. Only the spec of its plan can release or discard a held batch.
_FOR_CHANGED = ("plan", "abandon")


def templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("windowmill.jobs.report", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"short": short, "moment": moment, "elapsed": elapsed, "clipped": clipped}
    return environment


def write_report(pipeline: Pipeline, *, out: str | None = None, spec: str = "SPEC", choice: ChartSelection | None = None) -> str:
    """Write the report page of ``pipeline`` to the path or URI ``out``, or among the pipeline's own tables, and return its path.

    The section of a table that does not exist yet says so. The page stays below 3 MB. Memory grows with the number of distinct keys,
    not with the number of rows. ``spec`` is the pipeline's file, as the page names it in commands.

    Raises ``SpecError`` if an aggregate of the ``choice`` is not a number, or no row has one of its keys; ``ReportError`` if a table exists
    but cannot be read, or the page cannot be written. An earlier page then stays as it is.
    """
    target = out or Places.of(pipeline).report
    write_page(target, report_page(pipeline, target=target, spec=spec, choice=choice))
    return target


def report_page(pipeline: Pipeline, *, target: str, spec: str, docs: str | None = None, choice: ChartSelection | None = None) -> str:
    """The report page of ``pipeline`` as HTML, for the path ``target``: links to local files are relative to it.

    ``docs`` links to the index of the Data Docs, where a server has another than the file system.
    """
    use_options_of(pipeline)
    places, ledger, now = Places.of(pipeline), Ledger.open(pipeline), datetime.now(UTC)
    computed = ledger.as_computed(pipeline) or pipeline
    recent, totals, last_advance = ledger.recent(BATCHES_SHOWN), ledger.totals, ledger.last_commit
    first_shown = recent[0].number if recent else 0
    undone = undone_of(recent)
    batches = [batch for batch in recent if batch.number not in undone]
    begun = [batch for batch in batches if batch.status != "committed"]
    last_ended = next((batch.ended_at for batch in reversed(batches) if batch.ended_at), None)
    committed = next((batch for batch in reversed(batches) if batch.status == "committed"), None)
    table = located(pipeline).sink
    sink = open_table(table.path) if table and table.path else None
    curves = read_curves(computed, sink, choice) if sink else Curves([], [], [], [], [])
    quarantine = read_quarantine(places.quarantine, first_shown, (*computed.keys, computed.time.column, *computed.time.tie_break))
    bars = {"rows": _rows_bars(batches, quarantine), **cost_bars(batches)}
    docs = link_to(f"{places.docs}/index.html", target) if docs is None else docs
    about = {
        "Keys": ", ".join(computed.keys) or "none: one global group",
        "Windows": ", ".join(window.name for window in computed.windows),
        "Event time": computed.time.column,
        "Schedule": schedule_of(computed),
    }
    environment = templates()
    environment.filters |= {"engine": describe_briefly, "inlined": _inlined, "window_ends": _window_ends, "key": key_text}
    environment.filters |= {"seconds": seconds_of, "bytes_written": bytes_of}
    environment.filters |= {"at": lambda t: moment(t if computed.time.integer_axis else instant(t))}
    return environment.get_template("template.html.j2").render(
        pipeline=computed,
        about=[(name, clipped(text, 160)) for name, text in about.items()],
        made_at=now,
        verdict=verdict_of(batches),
        last=batches[-1] if batches else None,
        last_ended=last_ended,
        freshness=freshness_of(
            pipeline, last_advance.seen if last_advance else None, last_ended, now, lambda: Waiting.of(pipeline, ledger).n
        ),
        seen=last_advance.seen if last_advance else None,
        shares=_shares(totals.counts, batches[-1].counts if batches else None),
        held=read_held(ledger, pipeline, places),
        spec=redacted(spec),
        discarded=[batch for batch in batches if batch.verdict == "discarded"][-_DISCARDED_SHOWN:],
        watermark=_watermark(computed, last_advance),
        emitted=last_advance.emitted if last_advance else None,
        totals=_totals(totals, begun) | {"published": rows_of(sink) if sink else 0},
        windows=curves.windows,
        near=partial(_length, integer_axis=computed.time.integer_axis),
        left_out=partial(_left_out, pipeline=computed, chosen=curves.chosen),
        curves=curves,
        drawn={key: i for i, key in enumerate(curves.keys)},
        batches=batches,
        batch_count=totals.batches + len(begun),
        undone=len(undone),
        bars=bars,
        data={"bars": bars} | charts_of(curves, computed),
        quarantine=quarantine,
        missed=missed_windows(late_missed(batches)),
        committed=committed,
        warnings=warnings_of(committed.counts, computed, places) if committed else [],
        quality=read_quality(places.quality, first_shown, undone),
        outcomes=OUTCOMES,
        verdicts=_VERDICTS,
        timings=timings_of(batches),
        trend=trend_of(batches),
        month=Month.of(computed, batches),
        links=_links(computed, places, docs, target),
        docs=docs,
        validations=_validations(places.docs, docs),
        uplot=_uplot(),
    )


def _inlined(data: object) -> Markup:
    """``data`` as JSON inside of a script element, which ``<`` cannot end."""
    return Markup(orjson.dumps(data).decode().replace("<", "\\u003c"))


def _uplot() -> dict[str, Markup]:
    """Script, styles and licence of uPlot, without the script's first line, which only names its home."""
    folder = files("windowmill.jobs.report") / "uplot"
    script, styles, licence = ((folder / name).read_text(encoding="utf-8") for name in ("uPlot.iife.min.js", "uPlot.min.css", "LICENSE"))
    return {"script": Markup(script.partition("\n")[2]), "styles": Markup(styles), "licence": Markup(licence)}


def schedule_of(pipeline: Pipeline) -> str:
    return f"asset {pipeline.schedule.asset}" if isinstance(pipeline.schedule, AssetSchedule) else pipeline.schedule or "on demand"


def verdict_of(batches: Sequence[Batch]) -> tuple[str, str]:
    if not batches:
        return _VERDICTS["none"]
    word = batches[-1].verdict
    return _VERDICTS.get(word, ("idle", word))


def _watermark(pipeline: Pipeline, last: Batch | None) -> datetime | int | None:
    """Greatest event time less the disorder, or what earlier settings have reached; or the end of the interval that was asserted."""
    if last is None:
        return None
    if pipeline.time.watermark == "data_interval_end":
        asserted = last.plan.interval_end
        return asserted if asserted is None or last.integer_axis else instant(asserted)
    if last.outcome.seen is None:
        return None
    watermark = LatenessRule.of(pipeline).watermark(last.outcome.seen)
    watermark = watermark if last.outcome.watermark is None else max(watermark, last.outcome.watermark)
    return watermark if last.integer_axis else instant(watermark)


def _window_ends(batch: Batch) -> str:
    """First and last end of the windows whose rows the batch computed; empty if it computed none."""
    return " – ".join(moment(end if batch.integer_axis else instant(end)) for end in batch.outcome.counts.window_ends or ())


def _shares(totals: Counts, latest: Counts | None) -> dict[str, dict[str, Any]]:
    """Late and quarantined rows as shares of the rows read, in all batches and in the latest; whether either is worth a look."""
    shares = {}
    for name in ("late", "quarantined"):
        whole, last = (share_of(getattr(each, f"rows_{name}"), each.rows_kept) if each else 0.0 for each in (totals, latest))
        shares[name] = {"all": whole, "latest": last, "warn": max(whole, last) >= WORTH_A_LOOK}
    return shares


def _totals(totals: Totals, begun: Sequence[Batch]) -> dict[str, int]:
    """Totals over all batches; one that has ``begun`` counts as a run or backfill, but its rows do not count yet."""
    counts = {name: getattr(totals.counts, f"rows_{name}") for name in ("read", "applied", "late", "quarantined")}
    return counts | {
        "runs": totals.batches - totals.backfills + sum(not batch.is_backfill for batch in begun),
        "backfills": totals.backfills + sum(batch.is_backfill for batch in begun),
        "held": sum(batch.status == "held" for batch in begun),
    }


def _left_out(window: WindowCurves, *, pipeline: Pipeline, chosen: str) -> str:
    if not pipeline.keys:
        return f"{window.rows:,} rows."
    columns, drawn = ", ".join(pipeline.keys), len(window.figures)
    most = f"{drawn:,} of {window.keys:,}, those with the greatest volume, the highest value or the greatest change"
    columns += f"; only {chosen}" if chosen else ""
    return f"{window.rows:,} rows. Keys on this page ({columns}): {f'all {drawn:,}' if drawn == window.keys else most}."


def _length(ticks: int, *, integer_axis: bool) -> str:
    if integer_axis:
        return f"{ticks:,}"
    for unit, name in ((DAY_US, "days"), (DAY_US // 24, "hours"), (DAY_US // 1440, "minutes")):
        if ticks >= 3 * unit:
            return f"{ticks / unit:.0f} {name}"
    return f"{ticks / 1e6:.3g} seconds"


def _rows_bars(shown: Sequence[Batch], quarantine: Quarantine) -> dict[str, Any] | None:
    reasons = list(quarantine.by_batch)
    named, rest = reasons[:4], reasons[4:]
    stacks: dict[str, tuple[str, Sequence[float]]] = {"b-late": ("late, still counted", [batch.counts.rows_late for batch in shown])}
    for slot, reason in enumerate(named):
        stacks[f"b-q{slot}"] = (f"quarantined: {reason}", [quarantine.by_batch[reason].get(batch.number, 0) for batch in shown])
    # The ledger's counts are authoritative; the quarantine table supplies only the reasons.
    explained = [sum(quarantine.by_batch[reason].get(batch.number, 0) for reason in named) for batch in shown]
    others = [max(batch.counts.rows_quarantined - known, 0) for batch, known in zip(shown, explained, strict=True)]
    if any(others):
        stacks["b-other"] = ("quarantined: other reasons" if rest else "quarantined", others)
    if any(duplicates := [batch.counts.duplicates for batch in shown]):
        stacks["b-copies"] = ("duplicates, left out", duplicates)
    return bars_of([batch.number for batch in shown], stacks)


def _links(pipeline: Pipeline, places: Places, docs: str, target: str) -> list[dict[str, Any]]:
    listed = [
        ("Data Docs", "each validation as Great Expectations shows it", f"{places.docs}/index.html"),
        ("Results", "the sink table", pipeline.sink.place if pipeline.sink else ""),
        ("Source", "the events", pipeline.source.place if pipeline.source else ""),
        ("Quarantine", "rows never applied, with reasons", places.quarantine),
        ("Quality history", "every rule in every batch", places.quality),
        ("Held batches", "rows that a critical rule kept back", places.held),
        ("State", "slices that coming windows need", places.state),
        ("Ledger", "plans and commits", places.ledger),
    ]
    return [
        {
            "name": name,
            "about": about,
            "place": redacted(place),
            "href": (docs if name == "Data Docs" else "") or ("" if holds_credentials(place) else link_to(place, target)),
            "missing": (path := local_path(place)) is not None and not path.exists(),
        }
        for name, about, place in listed
        if place
    ]


def link_to(place: str, target: str) -> str:
    """A link relative to the page, so that the folder can be moved or served as a whole; empty unless ``place`` exists locally."""
    path, page = local_path(place), local_path(target)
    if path is None or page is None or not path.exists():
        return ""
    return quote(Path(os.path.relpath(path.resolve(), page.resolve().parent)).as_posix())


def docs_page(pipeline: Pipeline, name: str) -> str | None:
    """The HTML of the page ``name``; none if no page of the folder has that name."""
    use_options_of(pipeline)
    docs = Places.of(pipeline).docs
    folder = Folder(docs, remote_store_of(docs))
    return folder.read(name) if name.endswith(".html") and name in folder.names() else None


def _validations(folder: str, docs: str) -> dict[int, str]:
    """Links to the newest page of each batch in the Data Docs' ``folder``; empty if it cannot be read, for the report does without it."""
    try:
        pages = pages_of_batches(Folder(folder, remote_store_of(folder))) if docs else {}
    except (OSError, pa.ArrowException):
        return {}
    return {batch: str(PurePosixPath(docs).with_name(name)) for batch, name in pages.items()}


def write_page(target: str, html: str) -> None:
    """Write ``html`` to the path or URI ``target``; raises ``ReportError`` if that cannot be, and an earlier page stays as it is."""
    try:
        page_at = local_path(target)
        folder, name = (str(page_at.parent), page_at.name) if page_at else (target.rpartition("/")[0], target.rpartition("/")[2])
        Folder(folder, remote_store_of(folder)).write(name, html)
    except (OSError, pa.ArrowException) as err:
        advice = "free some space and run again" if is_disk_full(err) else "name a place that can be by --out"
        raise ReportError(f"report {target}: cannot be written ({first_line(err)}); {advice}") from err


@dataclass(frozen=True, slots=True)
class Freshness:
    """The newest event and the newest batch in words."""

    #: Distance of the newest event from now, such as ``4 days behind``; for an integer axis the event itself.
    event: str
    #: Time since the newest batch ended, and how many instants of the schedule have passed since.
    batch: str
    #: Number of these instants at which something waited, as far as it is known; null without a schedule by the clock.
    missed: int | None


def freshness_of(
    pipeline: Pipeline, seen: datetime | int | None, ended: datetime | None, now: datetime, waits: Callable[[], int | None]
) -> Freshness:
    """Compare the newest event ``seen`` and the end of the newest batch with ``now``; ``waits`` counts versions that no batch has read."""
    missed = _missed(pipeline.schedule, ended, now) if isinstance(pipeline.schedule, str) else None
    batch = "no batch yet" if ended is None else f"{elapsed(max((now - ended).total_seconds(), 0))} ago"
    if missed and waits() == 0:
        missed, batch = 0, f"{batch}; the source has nothing new since"
    elif missed:
        counted = f"{missed:,}{' or more' if missed == _COUNTED else ''}"
        batch += f"; {counted} scheduled instant{'' if missed == 1 else 's'} since without a batch"
    if not isinstance(seen, datetime):
        return Freshness(moment(seen), batch, missed)
    seconds = (now - seen).total_seconds()
    return Freshness(f"{elapsed(abs(seconds))} {'behind' if seconds >= 0 else 'ahead'}", batch, missed)


def staleness_of(pipeline: Pipeline, seen: datetime | int | None, now: datetime) -> Iterator[tuple[str, str]]:
    """Severity and message of each freshness rule that the newest event ``seen`` breaks now: where nothing arrives no batch is judged."""
    age_us = (now - seen) // timedelta(microseconds=1) if isinstance(seen, datetime) else None
    for rule in pipeline.expectations:
        if rule.type == FRESHNESS and not (found := compare_age(rule.arguments["freshness"], age_us)).kept:
            yield rule.severity, found.message


def _missed(schedule: str, ended: datetime | None, now: datetime) -> int | None:
    if ended is None or not croniter.is_valid(schedule):
        return None
    instants = croniter(schedule, ended)
    missed = 0
    while missed < _COUNTED and instants.get_next(datetime) <= now.astimezone(UTC):
        missed += 1
    return missed


def share_of(part: int, whole: int) -> float:
    """``part`` of ``whole`` from 0 to 1; 0 of nothing."""
    return part / whole if whole else 0.0


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
        late=share_of(totals.counts.rows_late, totals.counts.rows_kept),
        quarantined=share_of(totals.counts.rows_quarantined, totals.counts.rows_kept),
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
