"""What the charts show: results of keys and aggregates that a reader has chosen, or that the report chooses, as page.js reads it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any, NamedTuple

from deltalake import DeltaTable
from deltalake.schema import PrimitiveType

from windowmill.expectations.suites import rules
from windowmill.jobs.report import queries
from windowmill.jobs.report.queries import Key, KeyFigures, Lines, Point, ResultRows, joined, key_text, literal, text_of
from windowmill.jobs.short_texts import short
from windowmill.windowing.axis import DAY_US
from windowmill.windowing.errors import SpecError
from windowmill.windowing.spec import Pipeline


@dataclass(frozen=True, slots=True)
class ChartSelection:
    """Aggregates to draw, in the order of the charts, and by key column the values wanted, as text; empty for what the report chooses."""

    aggregates: tuple[str, ...] = ()
    keys: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, pipeline: Pipeline, aggregates: Sequence[str], keys: Sequence[str]) -> ChartSelection:
        """The choice by options of a command: names of aggregates, and ``NAME=VALUE`` or ``NAME`` of key columns."""
        for name in aggregates:
            if name not in pipeline.aggregates:
                raise SpecError(f"report --aggregate: got {name!r}; expected one of {', '.join(pipeline.aggregates)}")
        chosen: dict[str, tuple[str | None, ...]] = {}
        for given in keys:
            name, equals, value = given.partition("=")
            if name not in pipeline.keys:
                columns = f"NAME=VALUE with a key column: {', '.join(pipeline.keys)}"
                raise SpecError(f"report --key: got {given!r}; expected {columns if pipeline.keys else 'none: the pipeline has no keys'}")
            chosen[name] = (*chosen.get(name, ()), value if equals else None)
        return cls(tuple(dict.fromkeys(aggregates)), chosen)

    @property
    def conditions(self) -> list[str]:
        """Conditions on result rows in SQL, all of which hold for the chosen keys."""
        return [
            f"({' OR '.join(f'({text_of(name)} IS NOT DISTINCT FROM {literal(value)})' for value in values)})"
            for name, values in self.keys.items()
        ]

    def describe(self) -> str:
        """The keys in words: ``origin JFK or LGA, carrier null``; empty if none are chosen."""
        return ", ".join(
            f"{name} {' or '.join('null' if value is None else value for value in values)}" for name, values in self.keys.items()
        )


_BETWEEN = "expect_column_values_to_be_between"
#: Severities, the gravest first.
SEVERITIES = ("critical", "warning", "info")
_WINDOWS_SHOWN, _AGGREGATES_SHOWN, KEYS_SHOWN = 6, 3, 300
#: Keys of each window that are drawn with more points than the others: those that rank highest in it.
_KEYS_DETAILED = 24
#: Points of the page for either kind of keys, and of one of their lines; a point takes about 8 bytes.
_DETAILED, _BRIEF = (80_000, 80, 500), (120_000, 24, 120)
#: The near stretch has this many steps of a window, or four of its lengths if that is longer.
_NEAR_STEPS, _NEAR_SIZES = 96, 4
#: A line breaks where this many consecutive steps of a window have no row.
_GAP_STEPS = 4
_WORST_SHOWN = 20
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
class Limit:
    """A rule that the values of a column lie between two bounds; null where there is none."""

    severity: str
    least: float | None
    greatest: float | None

    def excess(self, value: float) -> float:
        """By how much ``value`` lies outside; 0 if it is inside."""
        below = self.least - value if self.least is not None else 0.0
        above = value - self.greatest if self.greatest is not None else 0.0
        return max(below, above, 0.0)

    def describe(self) -> str:
        """The rule in a few words: ``at least −120 [warning]``."""
        parts = [f"{words} {short(bound)}" for words, bound in (("at least", self.least), ("at most", self.greatest)) if bound is not None]
        return f"{', '.join(parts)} [{self.severity}]"


def limits_of(pipeline: Pipeline, aggregate: str) -> list[Limit]:
    """Limits of ``aggregate`` for every window, the gravest first; a rule with a condition on the row sets none."""
    limits = []
    for rule in rules(pipeline):
        if rule.type == _BETWEEN and rule.arguments.get("column") == aggregate and not rule.arguments.get("row_condition"):
            bounds = (rule.arguments.get(name) for name in ("min_value", "max_value"))
            limits.append(Limit(rule.severity, *(float(bound) if isinstance(bound, int | float) else None for bound in bounds)))
    return sorted(limits, key=lambda limit: SEVERITIES.index(limit.severity))


@dataclass(frozen=True, slots=True)
class Worst:
    """The worst value of an aggregate for a key, and the limit that it breaks."""

    key: Key
    aggregate: str
    end: int
    value: float
    broken: Limit | None


@dataclass(frozen=True, slots=True)
class WindowCurves:
    """The curves of one window; ``rows`` and ``keys`` include those not drawn. Numbers of more than 100,000 keys are estimates."""

    name: str
    about: str
    rows: int
    keys: int
    #: First window end, start of the near stretch, in which lines have more points, and last window end.
    low: int
    near: int
    high: int
    #: A line breaks where two points are farther apart, before ``near`` and after.
    gap_far: float
    gap_near: float
    #: By aggregate, the points of each key.
    lines: dict[str, Lines]
    #: Of the keys drawn, highest rank first; and over the near stretch, which the page shows first, of those with a row in it.
    figures: list[KeyFigures]
    near_figures: list[KeyFigures]
    worst: list[Worst]


@dataclass(frozen=True, slots=True)
class Curves:
    """The windows, aggregates and keys drawn, highest rank first, the windows and aggregates left out, and the keys chosen, in words."""

    windows: list[WindowCurves]
    aggregates: list[str]
    keys: list[Key]
    aggregates_left_out: list[str]
    windows_left_out: list[str]
    chosen: str = ""


class _Extent(NamedTuple):
    """Numbers of rows and keys of a window, its first and last window end."""

    rows: int
    keys: int
    low: int
    high: int


def drawable_aggregates(pipeline: Pipeline, table: DeltaTable, wanted: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Choose the aggregates to draw, most informative first; returns them and the rest, which is not numeric or beyond the limit."""
    numeric = {
        field.name
        for field in table.schema().fields
        if isinstance(field.type, PrimitiveType) and (field.type.type in _NUMERIC or field.type.type.startswith("decimal"))
    }
    candidates = [name for name, aggregate in pipeline.aggregates.items() if name in numeric and aggregate.function not in _NOT_A_CURVE]
    for name in wanted:
        if name not in numeric:
            raise SpecError(f"report --aggregate: got {name!r}, whose results are no numbers; expected some of {', '.join(candidates)}")
    chosen = list(wanted)
    for family in () if wanted else (*_FAMILIES, None):
        if len(chosen) < _AGGREGATES_SHOWN:
            # One of each family before a second of any: a mean, a count and a maximum are more informative than three means.
            fit = (name for name in candidates if name not in chosen and (family is None or pipeline.aggregates[name].function in family))
            chosen += list(fit)[: 1 if family else _AGGREGATES_SHOWN - len(chosen)]
    return chosen, [name for name in pipeline.aggregates if name not in chosen]


def read_curves(pipeline: Pipeline, table: DeltaTable, choice: ChartSelection | None = None) -> Curves:
    """Read the curves of each window of ``pipeline`` that has rows in the sink ``table``."""
    choice = choice or ChartSelection()
    drawn, left_out = drawable_aggregates(pipeline, table, choice.aggregates)
    extents = _extents(pipeline, table, choice)
    if choice.keys and not extents:
        raise SpecError(f"report --key: no result row has {choice.describe()}; give values as the report shows them")
    names = [window.name for window in pipeline.windows if window.name in extents]
    shown = names[:_WINDOWS_SHOWN] if drawn else []
    volume = next((i for i, name in enumerate(drawn) if pipeline.aggregates[name].function == "count"), None)
    rows = {name: ResultRows(table, pipeline, name, drawn, volume, choice.conditions) for name in shown}
    figures = {name: rows[name].figures(extents[name].keys) for name in shown}
    nears = {name: _near(pipeline, extents[name], name) for name in shown}
    nearly = {
        name: rows[name].figures(extents[name].keys, near) if near > extents[name].low else figures[name] for name, near in nears.items()
    }
    # If keys come and go, the keys that matter over the whole range may have no row in the stretch that is shown first.
    keys = choose_keys([*nearly.values(), *figures.values()], KEYS_SHOWN)
    lines = len(drawn) * len(shown)
    detailed = min(len(keys), _KEYS_DETAILED)
    points = [_points(detailed * lines, *_DETAILED), _points((len(keys) - detailed) * lines, *_BRIEF)]
    windows = [_read_window(pipeline, extents[name], nears[name], rows[name], figures[name], nearly[name], keys, points) for name in shown]
    return Curves(windows, drawn, keys, left_out, names[_WINDOWS_SHOWN:], choice.describe())


def _points(lines: int, together: int, least: int, most: int) -> int:
    return min(max(together // max(lines, 1), least), most)


def _extents(pipeline: Pipeline, table: DeltaTable, choice: ChartSelection) -> dict[str, _Extent]:
    whole = joined([text_of(key) for key in pipeline.keys])
    where = f" WHERE {' AND '.join(choice.conditions)}" if choice.keys else ""
    rows = f"SELECT \"window\" AS w, arrow_cast(window_end, 'Int64') AS e, {whole} AS k FROM t{where}"
    columns = "w, count(*) AS n, min(e) AS low, max(e) AS high, approx_distinct(k) AS keys"
    found = queries.query(table, f"SELECT {columns} FROM ({rows}) GROUP BY w")
    return {row["w"]: _Extent(row["n"], row["keys"], row["low"], row["high"]) for row in found.to_pylist()}


def _near(pipeline: Pipeline, extent: _Extent, window: str) -> int:
    """Begin of the stretch that the page shows first: a part of the window's extent, or all of it."""
    _, size, step = _grid(pipeline, window)
    span = extent.high - extent.low
    pace = step or max(span * extent.keys // max(extent.rows, 1), 1)
    length = max(_NEAR_STEPS * pace, _NEAR_SIZES * (size or 0))
    return extent.high - length if length < 0.6 * span else extent.low


def _read_window(
    pipeline: Pipeline,
    extent: _Extent,
    near: int,
    rows: ResultRows,
    figures: Sequence[KeyFigures],
    near_figures: Sequence[KeyFigures],
    keys: Sequence[Key],
    points: Sequence[int],
) -> WindowCurves:
    about, _, step = _grid(pipeline, rows.window)
    low, high = extent.low, extent.high
    here, nearly = {figure.key: figure for figure in figures}, {figure.key: figure for figure in near_figures}
    detailed = set(choose_keys([near_figures, figures], _KEYS_DETAILED))
    kinds = [key for key in keys if key in detailed], [key for key in keys if key in here and key not in detailed]
    lines: list[Lines] = [{} for _ in rows.aggregates]
    for some, most in zip(kinds, points, strict=True):
        for start, end in [(low, near), (near, high + 1)] if near > low else [(low, high + 1)]:
            # Two points a bucket, half of them in either stretch.
            read = rows.lines(start, end, most // (4 if near > low else 2), some) if some else []
            for all_lines, more in zip(lines, read, strict=False):
                for key, found in more.items():
                    all_lines.setdefault(key, []).extend(found)
    breaks = _GAP_STEPS * step if step else float("inf")
    return WindowCurves(
        name=rows.window,
        about=about,
        rows=extent.rows,
        keys=len(figures) if extent.keys <= queries.KEYS_COUNTED else extent.keys,
        low=low,
        near=near,
        high=high,
        gap_far=max(breaks, 2.5 * (near - low) / (points[-1] // 4)),
        gap_near=max(breaks, 2.5 * (high - near) / (points[-1] // 4)),
        lines=dict(zip(rows.aggregates, lines, strict=True)),
        figures=[here[key] for key in keys if key in here],
        near_figures=[nearly[key] for key in keys if key in nearly],
        worst=worst_values(pipeline, rows.aggregates, figures),
    )


def _grid(pipeline: Pipeline, name: str) -> tuple[str, int | None, int | None]:
    """A window in words, its length and the distance between its ends; both are None if the data determine them."""
    window = next(window for window in pipeline.windows if window.name == name)
    spacing = window.spacing()
    # A month counts as a mean month, which is exact enough for drawing.
    size, step = (
        None if length is None else length.ticks + length.days * DAY_US + round(length.months * 30.436875 * DAY_US)
        for length in (spacing.size, spacing.step)
    )
    return spacing.words, size, step


def choose_keys(windows: Iterable[Sequence[KeyFigures]], most: int) -> list[Key]:
    """The keys that matter: from each window in turn, the keys with the greatest volume, the highest value and the greatest change."""
    rankings = []
    for figures in windows:
        rankings.append(sorted(figures, key=lambda key: -key.volume))
        rankings.append(sorted(figures, key=lambda key: -(key.figures[0].high if key.figures[0] else float("-inf"))))
        rankings.append(sorted(figures, key=lambda key: -(key.figures[0].change if key.figures[0] else -1.0)))
    found = dict.fromkeys(figure.key for figure in chain.from_iterable(zip_longest(*rankings)) if figure is not None)
    return list(found)[:most]


def worst_values(pipeline: Pipeline, aggregates: Sequence[str], figures: Sequence[KeyFigures]) -> list[Worst]:
    """The worst value of each key: first those that break a rule, the gravest rule and the farthest value first; then of one aggregate.

    This is the first one. If rules limit it only from below, its least values are the worst, else its greatest.
    """
    # By the severity, the position of the aggregate, and how far outside the value lies.
    broken: list[tuple[tuple[int, int, float], Worst]] = []
    others: list[Worst] = []
    for i, aggregate in enumerate(aggregates):
        limits = limits_of(pipeline, aggregate)
        sign = -1 if limits and all(limit.greatest is None for limit in limits) else 1
        for key in figures:
            if (figure := key.figures[i]) is not None:
                ends = [(figure.high, figure.high_end), (figure.low, figure.low_end)]
                value, end = max(ends, key=lambda pair: (max((limit.excess(pair[0]) for limit in limits), default=0), sign * pair[0]))
                gravest = next((limit for limit in limits if limit.excess(value) > 0), None)
                worst = Worst(key.key, aggregate, end, value, gravest)
                if gravest is not None:
                    broken.append(((SEVERITIES.index(gravest.severity), i, -gravest.excess(value)), worst))
                elif i == 0:
                    others.append(worst)
        if i == 0:
            others.sort(key=lambda worst: -sign * worst.value)
    return [*(worst for _, worst in sorted(broken, key=lambda each: each[0])), *others][:_WORST_SHOWN]


#: Decimal digits to which values other than integers are rounded.
_DIGITS = 6
#: A double holds every integer up to this one.
_EXACT = 2.0**53


def charts_of(curves: Curves, pipeline: Pipeline) -> dict[str, Any]:
    """The charts of all windows.

    A line is a pair of the position of its instants in ``times``, and its values. Instants are distances to the one before, the first to
    ``low``, in units of ``unit``; lines of the same instants share them.
    """
    return {
        "integer": pipeline.time.integer_axis,
        "aggregates": [
            {"name": name, "about": f"{spec.function.replace('_', ' ')} of {', '.join(spec.columns) or 'rows'}"}
            for name, spec in ((name, pipeline.aggregates[name]) for name in curves.aggregates)
        ],
        "keys": [key_text(key) or pipeline.pipeline for key in curves.keys],
        "windows": [_window(window, curves.keys, curves.aggregates) for window in curves.windows],
    }


def bars_of(labels: Sequence[int], stacks: Mapping[str, tuple[str, Sequence[float]]]) -> dict[str, Any] | None:
    """Stacked bars: one a label, split into ``stacks``: colour -> (name, one value per label); null if all values are zero."""
    if not any(any(values) for _, values in stacks.values()):
        return None
    series = [{"colour": colour, "name": name, "values": [rounded(value) for value in values]} for colour, (name, values) in stacks.items()]
    return {"labels": list(labels), "series": series}


def _window(window: WindowCurves, keys: Sequence[Key], aggregates: Sequence[str]) -> dict[str, Any]:
    ends = [t - window.low for lines in window.lines.values() for points in lines.values() for t, _ in points]
    unit = math.gcd(*ends, window.near - window.low, window.high - window.low) or 1
    times: dict[tuple[int, ...], int] = {}
    lines = [[_line(window.lines[name].get(key), window.low, unit, times) for key in keys] for name in aggregates]
    ranks = [_ranks(figures, keys) for figures in (window.near_figures, window.figures)]
    return {
        "name": window.name,
        "low": window.low,
        "unit": unit,
        "near": (window.near - window.low) // unit,
        "end": (window.high - window.low) // unit,
        "gaps": [None if math.isinf(gap) else gap / unit for gap in (window.gap_far, window.gap_near)],
        "times": list(times),
        "lines": lines,
        "ranks": ranks[0 if window.near > window.low else 1 :],
    }


def _ranks(figures: Sequence[KeyFigures], keys: Sequence[Key]) -> list[list[Any] | None]:
    """For each key, its volume, and its highest value and change of each aggregate; null for a key without figures."""
    ranks = {}
    for found in figures:
        shown = [None if figure is None else [rounded(figure.high), rounded(figure.change)] for figure in found.figures]
        ranks[found.key] = [rounded(found.volume), shown]
    return [ranks.get(key) for key in keys]


def _line(points: Sequence[Point] | None, low: int, unit: int, times: dict[tuple[int, ...], int]) -> list[Any] | None:
    if not points:
        return None
    ends = [(t - low) // unit for t, _ in points]
    distances = tuple(after - before for before, after in zip([0, *ends], ends, strict=False))
    return [times.setdefault(distances, len(times)), [rounded(value) for _, value in points]]


def rounded(value: float) -> float | int:
    """``value`` as a number of few characters; integers stay exact."""
    if value == int(value) and abs(value) < _EXACT:
        return int(value)
    return float(f"{value:.{_DIGITS}g}")
