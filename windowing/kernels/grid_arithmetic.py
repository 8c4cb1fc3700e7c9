"""Grids of windows along the axis: bounds of a window by its number, and the number of a window by an instant.

Windows that hop are numbered by arithmetic, those of a calendar are listed and found by bisection.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from windowmill.windowing.kernels.combine import Ints, inner, njit

HOPPING, CUMULATIVE, LISTED = 0, 1, 2


class Grid(NamedTuple):
    """Windows numbered along the axis, in ticks.

    Attributes
    ----------
    rule
        Mode, origin, hop, size, step, steps a period; shape (6,). Windows are numbered from origin (HOPPING: one a hop; CUMULATIVE:
        ``steps`` a period of ``size``) or listed (LISTED: calendars).
    starts, ends
        Of listed windows, ends ascending; else empty.
    """

    rule: Ints
    starts: Ints
    ends: Ints


@inner
def start_of(grid: Grid, window: int) -> Any:
    rule = grid.rule
    if rule[0] == HOPPING:
        return rule[1] + window * rule[2]
    if rule[0] == CUMULATIVE:
        return rule[1] + window // rule[5] * rule[3]
    return grid.starts[window]


@inner
def end_of(grid: Grid, window: int) -> Any:
    rule = grid.rule
    if rule[0] == HOPPING:
        return rule[1] + window * rule[2] + rule[3]
    if rule[0] == CUMULATIVE:
        return rule[1] + window // rule[5] * rule[3] + (window % rule[5] + 1) * rule[4]
    return grid.ends[window]


@inner
def is_listed_past(grid: Grid, window: int) -> Any:
    """Whether ``window`` comes after the last of a listed grid; others have no last one."""
    return grid.rule[0] == LISTED and window >= len(grid.ends)


@inner
def first_after(grid: Grid, instant: int) -> Any:
    """The first window that ends after ``instant``."""
    rule = grid.rule
    if rule[0] == HOPPING:
        return (instant - rule[3] - rule[1]) // rule[2] + 1
    if rule[0] == CUMULATIVE:
        period = (instant - rule[1]) // rule[3]
        return period * rule[5] + (instant - rule[1] - period * rule[3]) // rule[4]
    return np.searchsorted(grid.ends, instant, side="right")


@inner
def first_from(grid: Grid, instant: int) -> Any:
    """The first window that starts at or after ``instant``."""
    rule = grid.rule
    if rule[0] == HOPPING:
        return -((rule[1] - instant) // rule[2])
    if rule[0] == CUMULATIVE:
        return -((rule[1] - instant) // rule[3]) * rule[5]
    return np.searchsorted(grid.starts, instant, side="left")


@njit
def firsts_after(grid: Grid, instants: Ints) -> Any:
    """Start and end of the first window that ends after each instant; a start and end beyond the instant where there is none."""
    first_starts, first_ends = np.empty_like(instants), np.empty_like(instants)
    for row in range(len(instants)):
        window = first_after(grid, instants[row])
        if is_listed_past(grid, window):
            first_starts[row] = first_ends[row] = np.iinfo(np.int64).max
        else:
            first_starts[row], first_ends[row] = start_of(grid, window), end_of(grid, window)
            if first_ends[row] < first_starts[row]:
                first_ends[row] = np.iinfo(np.int64).max
    return first_starts, first_ends
