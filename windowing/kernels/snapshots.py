"""Snapshots, key by key: the spans between neighbouring start and end points of rows, found by a sweep over the points.

Windows before the last closed point are final: a row that begins before that point counts from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windowmill.windowing.kernels.arrays import distinct, grown, put
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.compilation import helper, inlined, inner, njit
from windowmill.windowing.kernels.rows import Rows, suspects_of


@njit
def snapshots(rows: Rows, marks: Ints, late: Bools, held: Bools, fixed: Ints, through: int) -> Any:
    """Find the spans that end at or before ``through`` and hold a row.

    Parameters
    ----------
    marks
        Instant through which windows were closed at each row's arrival; shape (n_rows,).
    late
        Mask of accepted rows that begin before that instant.
    held
        Mask of accepted rows.
    fixed
        Last point of each key through which spans are closed, shape (n_keys,); updated in place.

    Returns
    -------
    tuple
        Key, start and end of each span, shapes (n_spans,); offsets of its rows, shape (n_spans + 1,), and the rows; the instant from which
        each row counts, shape (n_rows,).
    """
    offsets, stop, n = rows.offsets, rows.stop, len(rows.time)
    begins = np.empty(n, np.int64)
    out_key, out_start, out_end = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64), np.empty(2 * n, np.int64)
    member_offsets, members = np.zeros(2 * n + 1, np.int64), np.empty(2 * n + 16, np.int64)
    count = listed = 0
    for key in range(len(offsets) - 1):
        first, last = offsets[key], offsets[key + 1]
        if first == last:
            continue
        _begin(rows, first, last, marks, late, held, fixed[key], begins)
        points, entering = _points(rows, first, last, held, begins)
        active = np.empty(len(entering), np.int64)
        n_active = entered = 0
        for place in range(len(points) - 1):
            start, end = points[place], points[place + 1]
            if end > through:
                break
            n_active, entered = _step(start, stop, begins, entering, entered, active, n_active)
            if n_active:
                if listed + n_active > len(members):
                    members = grown(members, listed + n_active)
                put(np.sort(active[:n_active]), members[listed:])
                listed += n_active
                out_key[count], out_start[count], out_end[count] = key, start, end
                member_offsets[count + 1] = listed
                count += 1
        for point in points:
            if point <= through:
                fixed[key] = max(fixed[key], point)
    return out_key[:count], out_start[:count], out_end[:count], member_offsets[: count + 1], members[:listed], begins


@helper
def _begin(rows: Rows, first: int, last: int, marks: Ints, late: Bools, held: Bools, fixed: int, begins: Ints) -> None:
    """Effective start of each of a key's rows: the greatest of its own start, ``fixed``, and the last point closed at its arrival."""
    time = rows.time
    for row in range(first, last):
        begins[row] = max(time[row], fixed)
    for row in suspects_of(first, last, late, rows.moment, False):
        begins[row] = max(time[row], _closed_point(rows, first, last, marks[row], held, fixed, begins, row))


@inner
def _closed_point(rows: Rows, first: int, last: int, mark: int, held: Bools, fixed: int, begins: Ints, row: int) -> Any:
    """The last point up to ``mark`` of the rows that had arrived before ``row``."""
    point = fixed
    for other in range(first, last):
        if held[other] and rows.moment[other] < rows.moment[row]:
            if begins[other] <= mark:
                point = max(point, begins[other])
            if rows.stop[other] <= mark:
                point = max(point, rows.stop[other])
    return point


@helper
def _points(rows: Rows, first: int, last: int, held: Bools, begins: Ints) -> Any:
    """Distinct start and end points of a key's held rows, ascending, and these rows in order of their effective start."""
    stop, points, entering = rows.stop, np.empty(2 * (last - first), np.int64), np.empty(last - first, np.int64)
    n = 0
    for row in range(first, last):
        if held[row]:
            points[2 * n], points[2 * n + 1] = begins[row], stop[row]
            entering[n] = row
            n += 1
    return distinct(points[: 2 * n]), entering[:n][np.argsort(begins[entering[:n]], kind="mergesort")]


@inlined
def _step(start: int, stop: Ints, begins: Ints, entering: Ints, entered: int, active: Ints, n_active: int) -> Any:
    """Drop ``active`` rows that end at or before ``start``, add rows that begin by then; returns numbers of active and added rows."""
    kept = 0
    for index in range(n_active):
        if stop[active[index]] > start:
            active[kept] = active[index]
            kept += 1
    while entered < len(entering) and begins[entering[entered]] <= start:
        active[kept] = entering[entered]
        kept, entered = kept + 1, entered + 1
    return kept, entered
