"""Geometry of the report's charts: lines over an axis, stacked bars per batch; round ticks, short figures, instants in UTC.

This module computes positions; the template draws them. Plots stretch to any width (``preserveAspectRatio="none"``). Labels are text at
percentages beside them, so that a phone and a printer show the same type size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from windowmill.windowing.axis import from_us, to_us
from windowmill.windowing.durations import DAY_US, SECOND_US

#: Units of a plot's box: a tooltip reads a point back with an error below one pixel.
WIDTH, HEIGHT = 20_000, 5_000
#: The scale ends this many widths of the middle 98 % outside it, if that shrinks the scale by the second factor or more.
_CUT, _WORTH_CUTTING = 1.2, 1.5

Point = tuple[int, float]
_MINUTE_US, _HOUR_US = 60 * SECOND_US, 3_600 * SECOND_US
#: Distances between time ticks in microseconds, and in calendar months.
_STEPS_US = [n * SECOND_US for n in (1, 5, 15, 30)] + [n * _MINUTE_US for n in (1, 5, 15, 30)]
_STEPS_US += [n * _HOUR_US for n in (1, 3, 6, 12)] + [n * DAY_US for n in (1, 2, 7, 14)]
_STEPS_MONTHS = (1, 3, 6, 12, 24, 60, 120, 600, 1200, 6000)
_MONTH_US = 2_629_746 * SECOND_US
#: The first Monday after the epoch: steps of whole weeks start there.
_MONDAY_US = 4 * DAY_US

Ticks = list[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class ValueScale:
    """A vertical axis that several panels share.

    Attributes
    ----------
    low, high
        Values at the bottom and the top.
    ticks
        Height above the bottom in percent, and label.
    beyond
        Number of points outside the scale; they are drawn at its edge.
    greatest, least
        The extremes of all points, also of those outside.
    """

    low: float
    high: float
    ticks: Ticks
    beyond: int
    greatest: float
    least: float


@dataclass(frozen=True, slots=True)
class Line:
    """One series: ``slot`` selects its colour, ``path`` is an SVG path in the plot's box, and ``dots`` a path of its isolated points."""

    slot: int
    label: str
    path: str
    dots: str


@dataclass(frozen=True, slots=True)
class LinePlot:
    """Lines over the axis between ``start`` and ``end``; ticks are in percent of the plot's width or height."""

    title: str
    lines: Sequence[Line]
    scale: ValueScale
    start: int
    end: int
    x_ticks: Ticks


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle in percent of the plot; ``words`` is its tooltip."""

    x: float
    y: float
    width: float
    height: float
    slot: str
    words: str


@dataclass(frozen=True, slots=True)
class BarPlot:
    """Stacked bars, one stack a batch."""

    bars: Sequence[Bar]
    x_ticks: Ticks
    y_ticks: Ticks
    names: Mapping[str, str] = field(default_factory=dict)


def value_scale(values: Sequence[float]) -> ValueScale | None:
    """Choose a vertical scale for ``values``: it starts at zero if zero is near, and omits outliers. None for no values; O(n log n)."""
    ordered = sorted(values)
    if not ordered:
        return None
    least, greatest = ordered[0], ordered[-1]
    inner_low, inner_high = ordered[len(ordered) // 100], ordered[-1 - len(ordered) // 100]
    margin = _CUT * (inner_high - inner_low) or math.inf
    low, high = max(least, inner_low - margin), min(greatest, inner_high + margin)
    if greatest - least < _WORTH_CUTTING * (high - low):
        low, high = least, greatest
    if low > 0 and low < 0.6 * high:
        low = 0.0
    if high < 0 and high > 0.6 * low:
        high = 0.0
    if low == high:
        low, high = low - (abs(low) * 0.5 or 0.5), high + (abs(high) * 0.5 or 0.5)
    padding = 0.05 * (high - low)
    low, high = low - (padding if low else 0), high + (padding if high else 0)
    ticks = [(100 * (value - low) / (high - low), label) for value, label in value_ticks(low, high)]
    beyond = sum(not low <= value <= high for value in ordered)
    return ValueScale(low, high, ticks, beyond, greatest, least)


def draw_line(slot: int, label: str, points: Sequence[Point], scale: ValueScale, start: int, end: int, gap: float) -> Line:
    """The line through ``points``, ascending in time; a point more than ``gap`` after the one before starts a new segment."""
    across, up = WIDTH / max(end - start, 1), HEIGHT / (scale.high - scale.low)
    runs: list[list[str]] = []
    before: int | None = None
    for t, value in points:
        at = f"{round((t - start) * across)} {round(HEIGHT - (min(max(value, scale.low), scale.high) - scale.low) * up)}"
        if before is None or t - before > gap:
            runs.append([at])
        elif runs[-1][-1] != at:
            runs[-1].append(at)
        before = t
    # A stroke of length zero is drawn as a dot, because its cap is round.
    dots = "".join(f"M{run[0]}h0" for run in runs if len(run) == 1)
    return Line(slot, label, "".join("M" + "L".join(run) for run in runs), dots)


def axis_ticks(start: int, end: int, *, integer_axis: bool) -> Ticks:
    """Ticks of the axis, in percent of its width; omits those whose label would not fit at an edge."""
    ticks = integer_ticks(start, end, 4) if integer_axis else time_ticks(start, end, 4)
    placed = [(100 * (tick - start) / max(end - start, 1), label) for tick, label in ticks]
    return [(at, label) for at, label in placed if 3 <= at <= 97]


def stacked_bars(labels: Sequence[str], stacks: Mapping[str, tuple[str, Sequence[float]]], words: str) -> BarPlot | None:
    """One bar per label, split into ``stacks``: slot -> (name, one value per label). None if every value is zero.

    ``words`` formats a bar's tooltip from {label}, {name} and {value}.
    """
    totals = [sum(values[i] for _, values in stacks.values()) for i in range(len(labels))]
    top = max(totals, default=0)
    if top <= 0:
        return None
    high, step, bars = 1.04 * top, 100 / max(len(labels), 8), []
    for i, label in enumerate(labels):
        filled = 0.0
        for slot, (name, values) in stacks.items():
            if values[i] > 0:
                height = 100 * values[i] / high
                bars.append(
                    Bar(
                        (i + 0.14) * step,
                        100 - filled - height,
                        0.72 * step,
                        height,
                        slot,
                        words.format(label=label, name=name, value=values[i]),
                    )
                )
                filled += height
    every = -(-len(labels) // 12)
    x_ticks = [((i + 0.5) * step, label) for i, label in enumerate(labels) if i % every == 0]
    y_ticks = [(100 * value / high, text) for value, text in value_ticks(0, high)]
    return BarPlot(bars, x_ticks, y_ticks, {slot: name for slot, (name, _) in stacks.items()})


def instant(t_us: int) -> datetime:
    """The instant ``t_us`` microseconds after the epoch, clipped to the range of ``datetime``.

    >>> instant(1_000_000)
    datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.timezone.utc)
    """
    try:
        return from_us(t_us)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC) if t_us < 0 else datetime.max.replace(tzinfo=UTC)


def value_ticks(low: float, high: float, count: int = 4) -> Ticks:
    """About ``count`` round values inside [low, high].

    Examples
    --------
    >>> value_ticks(-3, 47)
    [(0.0, '0'), (20.0, '20'), (40.0, '40')]
    """
    if not high > low:
        return [(low, short(low))]
    step = _round_up((high - low) / count)
    first = math.ceil(low / step - 1e-9)
    ticks = [k * step for k in range(first, first + 4 * count) if k * step <= high + 1e-9 * step]
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return [(float(tick), short(tick, digits)) for tick in ticks]


def _round_up(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def time_ticks(low_us: int, high_us: int, count: int = 5) -> Ticks:
    """At most about ``count`` instants on edges of the clock or the calendar inside [low_us, high_us].

    Examples
    --------
    >>> time_ticks(0, 2 * DAY_US, 4)
    [(0.0, '1 Jan'), (43200000000.0, '12:00'), (86400000000.0, '2 Jan'), (129600000000.0, '12:00'), (172800000000.0, '3 Jan')]
    """
    wanted = max(high_us - low_us, 1) / count
    step = next((step for step in _STEPS_US if step >= wanted), None)
    if step is None:
        return _month_ticks(low_us, high_us, wanted)
    origin = _MONDAY_US if step % (7 * DAY_US) == 0 else 0
    first = -((origin - low_us) // step)
    return [(float(tick), _clock_label(tick, step)) for tick in range(origin + first * step, high_us + 1, step)]


def _clock_label(tick: int, step: int) -> str:
    at = instant(tick)
    if tick % DAY_US == 0:
        return f"{at.day} {at:%b}"
    return f"{at:%H:%M:%S}" if step < _MINUTE_US else f"{at:%H:%M}"


def _month_ticks(low_us: int, high_us: int, wanted: float) -> Ticks:
    step = next((step for step in _STEPS_MONTHS if step * _MONTH_US >= wanted), _STEPS_MONTHS[-1])
    start, ticks = instant(low_us), []
    for month in range((start.year * 12 // step) * step, 9999 * 12, step):
        at = datetime(max(month // 12, 1), month % 12 + 1, 1, tzinfo=UTC)
        tick = to_us(at)
        if tick > high_us:
            break
        if tick >= low_us:
            ticks.append((float(tick), f"{at.year}" if at.month == 1 else f"{at:%b}"))
    return ticks


def integer_ticks(low: int, high: int, count: int = 5) -> Ticks:
    """About ``count`` round integers inside [low, high], for an integer axis.

    >>> integer_ticks(0, 3)
    [(0.0, '0'), (1.0, '1'), (2.0, '2'), (3.0, '3')]
    """
    if high - low < count:
        return [(float(tick), moment(tick)) for tick in range(low, high + 1)]
    return [(tick, moment(int(tick))) for tick, _ in value_ticks(low, high, count)]


def short(value: float, digits: int | None = None) -> str:
    """A figure in few characters, with ``digits`` decimals if given.

    Examples
    --------
    >>> short(12_345.0), short(0.12345), short(3_400_000), short(-7)
    ('12,345', '0.123', '3.4M', '−7')
    """
    sign, size = ("−" if value < 0 else ""), abs(value)
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if size >= limit:
            return f"{sign}{size / limit:,.4g}{unit}" if size < 1e15 else f"{value:.2e}"
    if digits is not None and digits <= 6:
        return f"{sign}{size:,.{digits}f}"
    if size and size < 1e-3:
        return f"{value:.2e}"
    text = f"{size:,.0f}" if size >= 1000 or size == int(size) else f"{size:.3g}"
    return f"{sign}{text}"


def moment(at: datetime | int | None, *, seconds: bool = False) -> str:
    """An instant in UTC, or a point of an integer axis, as text; a dash for none.

    >>> moment(1234), moment(None)
    ('1,234', '–')
    """
    if at is None:
        return "–"
    if not isinstance(at, datetime):
        return f"{at:,}".replace("-", "−")
    at = at.astimezone(UTC)
    return f"{at.day} {at:%b %Y %H:%M:%S}" if seconds else f"{at.day} {at:%b %Y %H:%M}"


def elapsed(seconds: float) -> str:
    """A duration as text; one unit, rounded.

    Examples
    --------
    >>> elapsed(0.042), elapsed(7.31), elapsed(312), elapsed(93_600)
    ('42 ms', '7.3 s', '5 min', '26 h')
    """
    for limit, unit, name in ((1, 0.001, "ms"), (90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.1f} {name}" if name == "s" else f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.0f} days"
