"""Grids of windows along the axis: the bounds of a window by number, and window numbers by instant.

Hopping windows are numbered by arithmetic. Calendar windows are listed, and found by bisection.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from windowmill.windowing.kernels.arrays import bisect_left, bisect_right
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.kernels.compilation import inner

HOPPING, CUMULATIVE, LISTED = 0, 1, 2


class NumberedWindows(NamedTuple):
    """Windows numbered along the axis, in ticks.

    Attributes
    ----------
    rule
        Mode, origin, hop, size, step, steps per period; shape (6,). Windows are numbered from the origin (HOPPING: one per hop;
        CUMULATIVE: ``steps`` per period of ``size``) or listed (LISTED: calendars).
    starts, ends
        Bounds of listed windows, ends ascending; empty in other modes.
    """

    rule: Ints
    starts: Ints
    ends: Ints


@inner
def start_of(grid: NumberedWindows, window: int) -> Any:
    rule = grid.rule
    if rule[0] == HOPPING:
        return rule[1] + window * rule[2]
    if rule[0] == CUMULATIVE:
        return rule[1] + window // rule[5] * rule[3]
    return grid.starts[window]


@inner
def end_of(grid: NumberedWindows, window: int) -> Any:
    rule = grid.rule
    if rule[0] == HOPPING:
        return rule[1] + window * rule[2] + rule[3]
    if rule[0] == CUMULATIVE:
        return rule[1] + window // rule[5] * rule[3] + (window % rule[5] + 1) * rule[4]
    return grid.ends[window]


@inner
def is_listed_past(grid: NumberedWindows, window: int) -> Any:
    """Whether ``window`` lies past the end of a listed grid; other grids are unbounded."""
    return grid.rule[0] == LISTED and window >= len(grid.ends)


@inner
def first_after(grid: NumberedWindows, instant: int) -> Any:
    """The first window that ends after ``instant``."""
    rule = grid.rule
    if rule[0] == HOPPING:
        return (instant - rule[3] - rule[1]) // rule[2] + 1
    if rule[0] == CUMULATIVE:
        period = (instant - rule[1]) // rule[3]
        return period * rule[5] + (instant - rule[1] - period * rule[3]) // rule[4]
    return bisect_right(grid.ends, instant, 0, len(grid.ends))


@inner
def first_from(grid: NumberedWindows, instant: int) -> Any:
    """The first window that starts at or after ``instant``."""
    rule = grid.rule
    if rule[0] == HOPPING:
        return -((rule[1] - instant) // rule[2])
    if rule[0] == CUMULATIVE:
        return -((rule[1] - instant) // rule[3]) * rule[5]
    return bisect_left(grid.starts, instant, 0, len(grid.starts))
