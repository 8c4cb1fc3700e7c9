"""Renders the page: turns facts into texts, figures and the data of charts, and fills the template."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import orjson
import pyarrow as pa
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from windowmill.checkpoints.batches import Batch
from windowmill.checkpoints.places import Places, local_path
from windowmill.checkpoints.stores import is_disk_full, remote_store_of, use_options_of
from windowmill.expectations.docs import Folder, pages_of_batches
from windowmill.jobs.batch.engine import describe_briefly
from windowmill.jobs.batch.progress import late_missed, missed_windows, warnings_of
from windowmill.jobs.report.cost import Month, bytes_of, cost_bars, seconds_of, timings_of, trend_of
from windowmill.jobs.report.curves import Curves, WindowCurves, bars_of, charts_of
from windowmill.jobs.report.freshness import WORTH_A_LOOK, Freshness, share_of
from windowmill.jobs.report.quality import Held, Quality
from windowmill.jobs.report.queries import Quarantine, ReportError, clipped, key_text
from windowmill.jobs.report.short_texts import elapsed, instant, moment, short
from windowmill.windowing.axis import DAY_US
from windowmill.windowing.counts import Totals
from windowmill.windowing.errors import first_line
from windowmill.windowing.redaction import holds_credentials, redacted
from windowmill.windowing.spec import AssetSchedule, Pipeline
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


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the page shows."""

    pipeline: Pipeline
    places: Places
    #: The newest batches that count, oldest first.
    batches: list[Batch]
    #: Number of those among the newest that a restoration has undone.
    undone: int
    last_advance: Batch | None
    #: When the newest of the batches that have ended did so.
    last_ended: datetime | None
    freshness: Freshness
    totals: Totals
    #: Rows of the sink.
    published: int
    curves: Curves
    quarantine: Quarantine
    quality: Quality
    held: Held | None
    #: The spec as commands name it.
    spec: str
    made_at: datetime
    #: Link to the Data Docs, where it is not that of the file.
    docs: str | None = None
    #: Name of the page of Data Docs by batch.
    docs_pages: Mapping[int, str] = field(default_factory=dict)


def templates() -> Environment:
    """The templates of pages, with filters for texts."""
    environment = Environment(
        loader=PackageLoader("windowmill.jobs.report", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"short": short, "moment": moment, "elapsed": elapsed, "clipped": clipped}
    return environment


def render(facts: Facts, target: str) -> str:
    """Render the HTML page for the path ``target``; links to local files are relative to it."""
    environment = templates()
    environment.filters |= {"engine": describe_briefly, "inlined": _inlined, "window_ends": _window_ends}
    environment.filters |= {"seconds": seconds_of, "bytes_written": bytes_of}
    last_advance = facts.last_advance
    committed = next((batch for batch in reversed(facts.batches) if batch.status == "committed"), None)
    bars = {"rows": _rows_bars(facts.batches, facts.quarantine), **cost_bars(facts.batches)}
    return environment.get_template("template.html.j2").render(
        pipeline=facts.pipeline,
        about=_about(facts.pipeline),
        made_at=facts.made_at,
        verdict=verdict_of(facts.batches),
        last=facts.batches[-1] if facts.batches else None,
        last_ended=facts.last_ended,
        freshness=facts.freshness,
        seen=last_advance.seen if last_advance else None,
        shares=_shares(facts),
        held=facts.held,
        spec=facts.spec,
        discarded=[batch for batch in facts.batches if batch.verdict == "discarded"][-_DISCARDED_SHOWN:],
        watermark=_watermark(facts.pipeline, last_advance),
        emitted=last_advance.emitted if last_advance else None,
        totals=_totals(facts),
        windows=[_window(window, facts) for window in facts.curves.windows],
        curves=facts.curves,
        batches=facts.batches,
        batch_count=facts.totals.batches + sum(batch.status != "committed" for batch in facts.batches),
        undone=facts.undone,
        bars=bars,
        data={"bars": bars} | charts_of(facts.curves, facts.pipeline),
        quarantine=facts.quarantine,
        missed=missed_windows(late_missed(facts.batches)),
        committed=committed,
        warnings=warnings_of(committed.counts, facts.pipeline, facts.places) if committed else [],
        quality=facts.quality,
        outcomes=OUTCOMES,
        verdicts=_VERDICTS,
        timings=timings_of(facts.batches),
        trend=trend_of(facts.batches),
        month=Month.of(facts.pipeline, facts.batches),
        links=_links(facts, target),
        docs=_docs(facts, target),
        validations=_validations(facts, target),
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


def _about(pipeline: Pipeline) -> list[tuple[str, str]]:
    schedule = pipeline.schedule
    facts = [
        ("Keys", ", ".join(pipeline.keys) or "none: one global group"),
        ("Windows", ", ".join(window.name for window in pipeline.windows)),
        ("Event time", pipeline.time.column),
        ("Schedule", f"asset {schedule.asset}" if isinstance(schedule, AssetSchedule) else schedule or "on demand"),
    ]
    return [(name, clipped(text, 160)) for name, text in facts]


def verdict_of(batches: Sequence[Batch]) -> tuple[str, str]:
    """Tone and words for the verdict on the newest batch."""
    if not batches:
        return _VERDICTS["none"]
    word = batches[-1].verdict
    return _VERDICTS.get(word, ("idle", word))


def _watermark(pipeline: Pipeline, last: Batch | None) -> datetime | int | None:
    """Greatest event time less the disorder allowed, or the end of the interval that the orchestrator asserted."""
    if last is None:
        return None
    if pipeline.time.watermark == "data_interval_end":
        asserted = last.plan.interval_end
        return None if asserted is None else instant(asserted)
    if last.outcome.seen is None:
        return None
    watermark = LatenessRule.of(pipeline).watermark(last.outcome.seen)
    return watermark if last.integer_axis else instant(watermark)


def _window_ends(batch: Batch) -> str:
    """First and last end of the windows whose rows the batch computed; empty if it computed none."""
    return " – ".join(moment(end if batch.integer_axis else instant(end)) for end in batch.outcome.counts.window_ends or ())


def _shares(facts: Facts) -> dict[str, dict[str, Any]]:
    """Late and quarantined rows as shares of the rows read, in all batches and in the latest; whether either is worth a look."""
    totals, latest = facts.totals, facts.batches[-1] if facts.batches else None
    shares = {}
    for name in ("late", "quarantined"):
        all_batches = share_of(getattr(totals.counts, f"rows_{name}"), totals.counts.rows_read)
        of_latest = share_of(getattr(latest.counts, f"rows_{name}"), latest.counts.rows_read) if latest else 0.0
        shares[name] = {"all": all_batches, "latest": of_latest, "warn": max(all_batches, of_latest) >= WORTH_A_LOOK}
    return shares


def _totals(facts: Facts) -> dict[str, int]:
    """Totals over all batches; a batch in progress counts as a run or backfill, but its rows do not count yet.

    Published are the rows that the sink holds: a backfill rewrites rows that were published before.
    """
    totals = facts.totals
    begun = [batch for batch in facts.batches if batch.status != "committed"]
    counts = {name: getattr(totals.counts, f"rows_{name}") for name in ("read", "applied", "late", "quarantined")}
    return counts | {
        "published": facts.published,
        "runs": totals.batches - totals.backfills + sum(not batch.is_backfill for batch in begun),
        "backfills": totals.backfills + sum(batch.is_backfill for batch in begun),
        "held": sum(batch.status == "held" for batch in begun),
    }


def _window(window: WindowCurves, facts: Facts) -> dict[str, Any]:
    integer_axis, keys = facts.pipeline.time.integer_axis, {key: i for i, key in enumerate(facts.curves.keys)}

    def at(t: int) -> str:
        return moment(t if integer_axis else instant(t))

    return {
        "name": window.name,
        "about": window.about,
        "near": f"Latest {_length(window.high - window.near, integer_axis=integer_axis)}",
        "span": f"{at(window.low)} – {at(window.high)}",
        "left_out": _left_out(window, facts.pipeline, facts.curves.chosen),
        "latest": [
            (key_text(found.key) or "all", at(found.last_end), [figure and figure.last for figure in found.figures])
            for found in window.figures
        ],
        "worst": [
            {
                "key": key_text(worst.key) or "all",
                "drawn": keys.get(worst.key),
                "end": at(worst.end),
                "at": worst.end,
                "aggregate": worst.aggregate,
                "value": worst.value,
                "broken": worst.broken,
            }
            for worst in window.worst
        ],
    }


def _left_out(window: WindowCurves, pipeline: Pipeline, chosen: str) -> str:
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
    return bars_of([batch.number for batch in shown], stacks)


def _links(facts: Facts, target: str) -> list[dict[str, Any]]:
    places, pipeline = facts.places, facts.pipeline
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
    own = {"Data Docs": _docs(facts, target)}
    return [
        {
            "name": name,
            "about": about,
            "place": redacted(place),
            "href": own.get(name) or ("" if holds_credentials(place) else link_to(place, target)),
            "missing": (path := local_path(place)) is not None and not path.exists(),
        }
        for name, about, place in listed
        if place
    ]


def _docs(facts: Facts, target: str) -> str:
    """Link to the index of the Data Docs; empty if there is none."""
    return link_to(f"{facts.places.docs}/index.html", target) if facts.docs is None else facts.docs


def _validations(facts: Facts, target: str) -> dict[int, str]:
    """Links to the pages of Data Docs by batch."""
    index = _docs(facts, target)
    return {batch: str(PurePosixPath(index).with_name(page)) for batch, page in facts.docs_pages.items()} if index else {}


def link_to(place: str, target: str) -> str:
    """A link relative to the page, so that the folder can be moved or served as a whole; empty unless ``place`` exists locally."""
    path, page = local_path(place), local_path(target)
    if path is None or page is None or not path.exists():
        return ""
    return quote(Path(os.path.relpath(path.resolve(), page.resolve().parent)).as_posix())


def docs_page(pipeline: Pipeline, name: str) -> str | None:
    """The HTML of the page ``name``; none if no page of the folder has that name."""
    use_options_of(pipeline)
    folder = _folder(Places.of(pipeline))
    return folder.read(name) if name.endswith(".html") and name in folder.names() else None


def docs_pages(places: Places) -> dict[int, str]:
    """The name of the newest page of each batch; empty if the folder cannot be read, for the report does without it."""
    try:
        return pages_of_batches(_folder(places))
    except (OSError, pa.ArrowException):
        return {}


def _folder(places: Places) -> Folder:
    return Folder(places.docs, remote_store_of(places.docs))


def write_page(target: str, html: str) -> None:
    """Write ``html`` to the path or URI ``target``; raises ``ReportError`` if that cannot be, and an earlier page stays as it is."""
    try:
        page_at = local_path(target)
        folder, name = (str(page_at.parent), page_at.name) if page_at else (target.rpartition("/")[0], target.rpartition("/")[2])
        Folder(folder, remote_store_of(folder)).write(name, html)
    except (OSError, pa.ArrowException) as err:
        advice = "free some space and run again" if is_disk_full(err) else "name a place that can be by --out"
        raise ReportError(f"report {target}: cannot be written ({first_line(err)}); {advice}") from err
