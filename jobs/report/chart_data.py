"""The data of the page's charts as compact JSON values; page.js reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from windowmill.jobs.report.curves import Curves, WindowCurves
from windowmill.jobs.report.result_rows import Figure, Key, KeyFigures, Point, key_text
from windowmill.windowing.spec import Pipeline

#: Decimal digits to which values are rounded that are no integers.
_DIGITS = 6
#: Greatest integer of which a double holds every smaller one.
_EXACT = 2.0**53


def charts_of(curves: Curves, pipeline: Pipeline) -> dict[str, Any]:
    """The charts of all windows.

    A line is a pair of the position of its instants in ``times``, and its values. Instants are distances to the one before, the first to
    ``low``, in units of ``unit``; lines of the same instants share them.
    """
    return {
        "integer": pipeline.time.integer_axis,
        "aggregates": [{"name": name, "about": _about(pipeline, name)} for name in curves.aggregates],
        "keys": [key_text(key) or pipeline.pipeline for key in curves.keys],
        "windows": [_window(window, curves.keys, curves.aggregates) for window in curves.windows],
    }


def bars_of(labels: Sequence[int], stacks: Mapping[str, tuple[str, Sequence[float]]]) -> dict[str, Any] | None:
    """Stacked bars: one a label, split into ``stacks``: colour -> (name, one value per label); null if all values are zero."""
    if not any(any(values) for _, values in stacks.values()):
        return None
    series = [{"colour": colour, "name": name, "values": [rounded(value) for value in values]} for colour, (name, values) in stacks.items()]
    return {"labels": list(labels), "series": series}


def _about(pipeline: Pipeline, name: str) -> str:
    aggregate = pipeline.aggregates[name]
    arguments = ", ".join(aggregate.columns) or "rows"
    return f"{aggregate.function.replace('_', ' ')} of {arguments}"


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
    """By key its volume, and by aggregate its rank; null for a key without figures."""
    by_key = {figure.key: figure for figure in figures}
    return [[rounded(found.volume), [_rank(figure) for figure in found.figures]] if (found := by_key.get(key)) else None for key in keys]


def _line(points: Sequence[Point] | None, low: int, unit: int, times: dict[tuple[int, ...], int]) -> list[Any] | None:
    if not points:
        return None
    ends = [(t - low) // unit for t, _ in points]
    distances = tuple(after - before for before, after in zip([0, *ends], ends, strict=False))
    return [times.setdefault(distances, len(times)), [rounded(value) for _, value in points]]


def _rank(figure: Figure | None) -> list[float] | None:
    """Highest value, and change."""
    return None if figure is None else [rounded(figure.high), rounded(figure.change)]


def rounded(value: float) -> float | int:
    """``value`` as a number of few characters; integers stay exact.

    >>> rounded(12345678.0), rounded(0.1 + 0.2), rounded(-1234.56789)
    (12345678, 0.3, -1234.57)
    """
    if value == int(value) and abs(value) < _EXACT:
        return int(value)
    return float(f"{value:.{_DIGITS}g}")
