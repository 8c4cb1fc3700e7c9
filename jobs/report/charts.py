"""Geometry of the report's charts: lines over an axis, stacked bars per batch.

This module computes positions; the template draws them. Plots stretch to any width (``preserveAspectRatio="none"``). Labels are text at
percentages beside them, so that a phone and a printer show the same type size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from windowmill.jobs.report import scales

#: Units of a plot's box: a tooltip reads a point back with an error below one pixel.
WIDTH, HEIGHT = 20_000, 5_000
#: The scale ends this many widths of the middle 98 % outside it, if that shrinks the scale by the second factor or more.
_CUT, _WORTH_CUTTING = 1.2, 1.5

Point = tuple[int, float]


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
    ticks: scales.Ticks
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
    x_ticks: scales.Ticks


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
    x_ticks: scales.Ticks
    y_ticks: scales.Ticks
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
    ticks = [(100 * (value - low) / (high - low), label) for value, label in scales.value_ticks(low, high)]
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


def axis_ticks(start: int, end: int, *, integer_axis: bool) -> scales.Ticks:
    """Ticks of the axis, in percent of its width; omits those whose label would not fit at an edge."""
    ticks = scales.integer_ticks(start, end, 4) if integer_axis else scales.time_ticks(start, end, 4)
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
    y_ticks = [(100 * value / high, text) for value, text in scales.value_ticks(0, high)]
    return BarPlot(bars, x_ticks, y_ticks, {slot: name for slot, (name, _) in stacks.items()})
