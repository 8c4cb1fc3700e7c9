"""Reads results over time for charts: chooses aggregates and keys, and thins each line to a few hundred points.

The table is never loaded whole: DataFusion scans it and returns the extremes of each stretch of time, which are actual rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltalake import DeltaTable
from deltalake.schema import PrimitiveType

from windowmill.jobs.report.keys import Key, KeyChoice, KeyRanking, pick, rank_keys
from windowmill.jobs.report.lines import DrawnRows, Lines
from windowmill.windowing.durations import DAY_US, Duration
from windowmill.windowing.spec import Pipeline

_WINDOWS_SHOWN, _AGGREGATES_SHOWN = 6, 3
#: Limit on points of the whole page; at about 11 bytes each they keep it far below 3 MB.
_POINTS = 120_000
_POINTS_A_LINE = (40, 500)
#: The near view shows this many steps of a window, or four of its lengths if that is longer.
_NEAR_STEPS, _NEAR_SIZES = 96, 4
#: A line breaks where this many consecutive steps of a window have no row.
_GAP_STEPS = 4
#: Families of functions to draw, most informative first; other functions are drawn only if too few of these are present.
_FAMILIES = (
    ("mean", "weighted_mean", "time_weighted_mean", "geometric_mean"),
    ("count",),
    ("median", "quantile", "max"),
    ("sum", "count_distinct", "approx_distinct"),
    ("stddev_samp", "stddev_pop", "min", "range", "var_samp", "var_pop"),
)
#: Functions whose results do not form a curve.
_NOT_A_CURVE = ("arg_min", "arg_max", "max_count", "min_count")
_NUMERIC = {"byte", "short", "integer", "long", "float", "double"}


@dataclass(frozen=True, slots=True)
class TimeChart:
    """One stretch of time: lines by aggregate and key."""

    title: str
    start: int
    end: int
    gap: float
    lines: dict[str, Lines]


@dataclass(frozen=True, slots=True)
class WindowCurves:
    """The curves of one window.

    Attributes
    ----------
    rows, keys
        Numbers for the whole window, drawn or not; above 100,000 keys the count is approximate, to a few percent.
    facets
        Values of the first key column, one panel each; one empty key if there are fewer than two key columns.
    series
        Values of the other key columns, one colour each.
    step
        Distance between window ends on their grid; None if the data determine the ends.
    overlapping
        Whether neighbouring windows share events.
    latest
        Newest row of each drawn key, if it is in the near view: key, window end, values of the drawn aggregates.
    """

    name: str
    about: str
    rows: int
    keys: int
    keys_drawn: int
    facets: list[Key]
    series: list[Key]
    step: int | None
    overlapping: bool
    views: list[TimeChart]
    latest: list[tuple[Key, int, list[float | None]]]


@dataclass(frozen=True, slots=True)
class Curves:
    """The windows drawn, the aggregates drawn, and those left out."""

    windows: list[WindowCurves]
    aggregates: list[str]
    aggregates_left_out: list[str]
    windows_left_out: list[str]


def drawable_aggregates(pipeline: Pipeline, table: DeltaTable) -> tuple[list[str], list[str]]:
    """Choose the aggregates to draw, most informative first; returns them and the rest, which is not numeric or beyond the limit."""
    numeric = {
        field.name
        for field in table.schema().fields
        if isinstance(field.type, PrimitiveType) and (field.type.type in _NUMERIC or field.type.type.startswith("decimal"))
    }
    candidates = [name for name, aggregate in pipeline.aggregates.items() if name in numeric and aggregate.function not in _NOT_A_CURVE]
    chosen: list[str] = []
    for family in (*_FAMILIES, None):
        if len(chosen) < _AGGREGATES_SHOWN:
            # One of each family before a second of any: a mean, a count and a maximum are more informative than three means.
            fit = (name for name in candidates if name not in chosen and (family is None or pipeline.aggregates[name].function in family))
            chosen += list(fit)[: 1 if family else _AGGREGATES_SHOWN - len(chosen)]
    return chosen, [name for name in pipeline.aggregates if name not in chosen]


def read_curves(pipeline: Pipeline, table: DeltaTable) -> Curves:
    """Read the curves of each window of ``pipeline`` that has rows in the sink ``table``."""
    drawn, left_out = drawable_aggregates(pipeline, table)
    ranked = rank_keys(pipeline, table)
    names = [window.name for window in pipeline.windows if window.name in ranked]
    shown = names[:_WINDOWS_SHOWN] if drawn else []
    picked = pick(ranked[name].keys for name in shown)
    lines = 2 * len(drawn) * len(shown) * len(picked.keys)
    points = min(max(_POINTS // max(lines, 1), _POINTS_A_LINE[0]), _POINTS_A_LINE[1])
    windows = [_read_window(pipeline, ranked[name], picked, DrawnRows(table, pipeline, name, picked.keys, drawn), points) for name in shown]
    return Curves(windows, drawn, left_out, names[_WINDOWS_SHOWN:])


def _read_window(pipeline: Pipeline, ranked: KeyRanking, picked: KeyChoice, selection: DrawnRows, points: int) -> WindowCurves:
    about, size, step = _grid(pipeline, selection.window)
    span = ranked.high - ranked.low
    pace = step or max(span * ranked.keys_count // max(ranked.rows, 1), 1)
    near = max(_NEAR_STEPS * pace, _NEAR_SIZES * (size or 0))
    stretches = [("All", ranked.low)]
    if near < 0.6 * span:
        stretches.insert(0, (f"Latest {_length(near, pipeline)}", ranked.high - near))
    views = []
    for title, start in stretches:
        gap = max(_GAP_STEPS * step, 2.5 * (ranked.high - start) / (points // 2)) if step else float("inf")
        views.append(TimeChart(title, start, ranked.high, gap, selection.lines(start, ranked.high, points // 2)))
    return WindowCurves(
        name=selection.window,
        about=about,
        rows=ranked.rows,
        keys=ranked.keys_count,
        keys_drawn=sum(key in picked.keys for key, _ in ranked.keys),
        facets=picked.facets,
        series=picked.series,
        step=step,
        overlapping=bool(size and step and step < size),
        views=views,
        latest=selection.latest(stretches[0][1]),
    )


def _grid(pipeline: Pipeline, name: str) -> tuple[str, int | None, int | None]:
    """A window in words, its length and the distance between its ends; both are None if the data determine them."""
    window = next(window for window in pipeline.windows if window.name == name)
    spacing = window.spacing()
    return spacing.words, _ticks(spacing.size), _ticks(spacing.step)


def _ticks(length: Duration | None) -> int | None:
    """Length along the axis; a month counts as a mean month, which is exact enough for drawing."""
    return None if length is None else length.ticks + length.days * DAY_US + round(length.months * 30.436875 * DAY_US)


def _length(ticks: int, pipeline: Pipeline) -> str:
    if pipeline.time.unit is not None:
        return f"{ticks:,}"
    for unit, name in ((DAY_US, "days"), (DAY_US // 24, "hours"), (DAY_US // 1440, "minutes")):
        if ticks >= 3 * unit:
            return f"{ticks / unit:.0f} {name}"
    return f"{ticks / 1e6:.3g} seconds"
