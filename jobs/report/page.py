"""Renders the page: turns facts into texts, figures and chart geometry, and fills the template."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from windowmill.checkpoints.assembling import Totals
from windowmill.checkpoints.batches import Batch, RunPlan
from windowmill.checkpoints.places import Places, local_path
from windowmill.jobs.batch.engine import describe_briefly
from windowmill.jobs.batch.progress import warnings_of
from windowmill.jobs.report import charts
from windowmill.jobs.report.charts import elapsed, instant, moment, short
from windowmill.jobs.report.curves import Curves, TimeChart, WindowCurves, key_text
from windowmill.jobs.report.quality import Quality
from windowmill.jobs.report.tables import Quarantine, clipped
from windowmill.windowing.redaction import holds_credentials, redacted
from windowmill.windowing.spec import AssetSchedule, Pipeline

#: Steps of a run in their order -> the colour of each; ``start`` is that of Spark.
_STEPS = {"start": "start"} | {
    step: f"t{i}" for i, step in enumerate(("survey", "restore", "apply", "validate", "publish", "remember", "commit"))
}
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
OUTCOMES = {"passed": "✓", "warned": "!", "failed": "✕", "broken": "?"}


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the page shows."""

    pipeline: Pipeline
    places: Places
    #: The newest batches, oldest first.
    batches: list[Batch]
    last_advance: Batch | None
    totals: Totals
    #: Rows of the sink.
    published: int
    curves: Curves
    quarantine: Quarantine
    quality: Quality
    made_at: datetime


def render(facts: Facts, target: str) -> str:
    """Render the HTML page for the path ``target``; links to local files are relative to it."""
    environment = Environment(
        loader=PackageLoader("windowmill.jobs.report", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"short": short, "moment": moment, "elapsed": elapsed, "clipped": clipped}
    environment.filters["engine"] = describe_briefly
    last_advance = facts.last_advance
    committed = next((batch for batch in reversed(facts.batches) if batch.status == "committed"), None)
    return environment.get_template("template.html.j2").render(
        pipeline=facts.pipeline,
        about=_about(facts.pipeline),
        made_at=facts.made_at,
        verdict=_verdict(facts.batches),
        last=facts.batches[-1] if facts.batches else None,
        last_ended=next((batch.ended_at for batch in reversed(facts.batches) if batch.ended_at), None),
        watermark=_watermark(facts.pipeline, last_advance),
        emitted=last_advance.emitted if last_advance else None,
        totals=_totals(facts),
        windows=[_window(window, facts) for window in facts.curves.windows],
        first_window=next((i for i, window in enumerate(facts.curves.windows) if window.overlapping), 0),
        curves=facts.curves,
        batches=facts.batches,
        batch_count=facts.batches[-1].number + 1 if facts.batches else 0,
        rows_plot=_rows_plot(facts.batches, facts.quarantine),
        quarantine=facts.quarantine,
        committed=committed,
        warnings=warnings_of(committed.outcome, facts.pipeline, facts.places) if committed and committed.outcome else [],
        quality=facts.quality,
        outcomes=OUTCOMES,
        verdicts=_VERDICTS,
        timings_plot=_timings_plot(facts.batches),
        timings=_timings(facts.batches),
        links=_links(facts, target),
        box=(charts.WIDTH, charts.HEIGHT),
    )


def _about(pipeline: Pipeline) -> list[tuple[str, str]]:
    schedule = pipeline.schedule
    facts = [
        ("Keys", ", ".join(pipeline.keys) or "none: one global group"),
        ("Windows", ", ".join(window.name for window in pipeline.windows)),
        ("Event time", pipeline.time.column),
        ("Schedule", f"asset {schedule.asset}" if isinstance(schedule, AssetSchedule) else schedule or "on demand"),
    ]
    return [(name, clipped(text, 160)) for name, text in facts]


def _verdict(batches: Sequence[Batch]) -> tuple[str, str]:
    if not batches:
        return _VERDICTS["none"]
    word = batches[-1].verdict
    return _VERDICTS.get(word, ("idle", word))


def _watermark(pipeline: Pipeline, last: Batch | None) -> datetime | int | None:
    """Greatest event time less the disorder allowed, or the end that the orchestrator vouched for."""
    if last is None:
        return None
    if pipeline.time.watermark == "data_interval_end":
        vouched = last.plan.interval_end if isinstance(last.plan, RunPlan) else None
        return None if vouched is None else instant(vouched)
    disorder = pipeline.time.disorder.elapsed()
    return (
        last.seen - timedelta(microseconds=disorder)
        if isinstance(last.seen, datetime)
        else None
        if last.seen is None
        else last.seen - disorder
    )


def _totals(facts: Facts) -> dict[str, int]:
    """Totals over all batches; a batch in progress counts as a run or backfill, but its rows do not count yet.

    Published are the rows that the sink holds: a backfill writes rows anew that were published before.
    """
    totals = facts.totals
    begun = [batch for batch in facts.batches if batch.status != "committed"]
    counts = {name: getattr(totals, f"rows_{name}") for name in ("read", "applied", "late", "quarantined")}
    return counts | {
        "published": facts.published,
        "runs": totals.batches - totals.backfills + sum(not batch.is_backfill for batch in begun),
        "backfills": totals.backfills + sum(batch.is_backfill for batch in begun),
        "held": sum(batch.status == "held" for batch in begun),
    }


def _window(window: WindowCurves, facts: Facts) -> dict[str, Any]:
    integer_axis = facts.pipeline.time.unit is not None
    views = [_view(view, window, facts.curves.aggregates, integer_axis=integer_axis) for view in window.views]
    return {
        "name": window.name,
        "about": window.about,
        "step": window.step or 0,
        # Neighbours of overlapping windows share most of their events, so even the whole history is a smooth curve.
        "first_view": len(views) - 1 if window.overlapping else 0,
        "series": [(slot, key_text(rest) or facts.pipeline.pipeline) for slot, rest in enumerate(window.series)],
        "views": views,
        "faceted": len(window.facets) > 1 or window.facets != [()],
        "left_out": _left_out(window, facts.pipeline),
        "latest": [
            (
                key_text(key) or "all",
                moment(end if integer_axis else instant(end)),
                ["–" if v is None else short(v) for v in values],
            )
            for key, end, values in window.latest
        ],
    }


def _left_out(window: WindowCurves, pipeline: Pipeline) -> str:
    if not pipeline.keys:
        return f"{window.rows:,} rows."
    columns = ", ".join(pipeline.keys)
    chosen = f"all {window.keys:,}" if window.keys_drawn == window.keys else f"the {window.keys_drawn:,} with most rows of {window.keys:,}"
    return f"{window.rows:,} rows. Keys drawn ({columns}): {chosen}."


def _view(view: TimeChart, window: WindowCurves, aggregates: Sequence[str], *, integer_axis: bool) -> dict[str, Any]:
    x_ticks = charts.axis_ticks(view.start, view.end, integer_axis=integer_axis)
    split = len(window.facets[0])
    groups: list[dict[str, Any]] = []
    for aggregate in aggregates:
        lines = view.lines[aggregate]
        scale = charts.value_scale([value for points in lines.values() for _, value in points])
        if scale is None:
            groups.append({"aggregate": aggregate, "plots": [], "note": "no values in this stretch"})
            continue
        plots = []
        for facet in window.facets:
            drawn = [
                charts.draw_line(slot, key_text(rest), lines[facet + rest], scale, view.start, view.end, view.gap)
                for slot, rest in enumerate(window.series)
                if facet + rest in lines
            ]
            plots.append(charts.LinePlot(key_text(facet) if split else aggregate, drawn, scale, view.start, view.end, x_ticks))
        note = f"{scale.beyond:,} points lie beyond the scale ({short(scale.least)} to {short(scale.greatest)})" if scale.beyond else ""
        groups.append({"aggregate": aggregate, "plots": plots, "note": note})
    start, end = (view.start, view.end) if integer_axis else (instant(view.start), instant(view.end))
    return {"title": view.title, "span": f"{moment(start)} – {moment(end)}", "groups": groups}


def _rows_plot(shown: Sequence[Batch], quarantine: Quarantine) -> charts.BarPlot | None:
    reasons = list(quarantine.by_batch)
    named, rest = reasons[:4], reasons[4:]
    stacks: dict[str, tuple[str, Sequence[float]]] = {"late": ("late, still counted", [batch.rows_late for batch in shown])}
    for slot, reason in enumerate(named):
        stacks[f"q{slot}"] = (f"quarantined: {reason}", [quarantine.by_batch[reason].get(batch.number, 0) for batch in shown])
    # The ledger's counts are authoritative; the quarantine table supplies only the reasons.
    explained = [sum(quarantine.by_batch[reason].get(batch.number, 0) for reason in named) for batch in shown]
    others = [max(batch.rows_quarantined - known, 0) for batch, known in zip(shown, explained, strict=True)]
    if any(others):
        stacks["other"] = ("quarantined: other reasons" if rest else "quarantined", others)
    return charts.stacked_bars([str(batch.number) for batch in shown], stacks, "Batch {label}: {value:,} {name}")


def _timings_plot(shown: Sequence[Batch]) -> charts.BarPlot | None:
    stacks = {slot: (step, [batch.timings.get(step, 0.0) for batch in shown]) for step, slot in _STEPS.items()}
    taken = {slot: (step, seconds) for slot, (step, seconds) in stacks.items() if any(seconds)}
    return charts.stacked_bars([str(batch.number) for batch in shown], taken, "Batch {label}: {name} {value:.2f} s")


def _timings(shown: Sequence[Batch]) -> list[tuple[str, float, float, float]]:
    """Step, median, maximum and sum of its seconds over the batches shown; the last row is the whole run."""
    timed = [batch.timings for batch in shown if batch.timings]
    if not timed:
        return []
    columns = {step: [timings.get(step, 0.0) for timings in timed] for step in _STEPS if any(step in timings for timings in timed)}
    columns["whole run"] = [sum(timings.get(step, 0.0) for step in _STEPS) for timings in timed]
    return [(name, statistics.median(values), max(values), sum(values)) for name, values in columns.items()]


def _links(facts: Facts, target: str) -> list[dict[str, str]]:
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
    return [
        {"name": name, "about": about, "place": redacted(place), "href": "" if holds_credentials(place) else _href(place, target)}
        for name, about, place in listed
        if place
    ]


def _href(place: str, target: str) -> str:
    """A link relative to the page, so that the folder can be moved or served as a whole; empty unless ``place`` exists locally."""
    path, page = local_path(place), local_path(target)
    if path is None or page is None or not path.exists():
        return ""
    return quote(Path(os.path.relpath(path.resolve(), page.resolve().parent)).as_posix())
