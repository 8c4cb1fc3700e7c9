"""Snapshots, key by key: the spans between neighbouring start and end points of rows.

What lies before the last point that windows had been closed to is fixed: a row that reaches back over it begins there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windowmill.windowing.kernels.combine import Bools, Ints, njit
from windowmill.windowing.kernels.sessions import suspects_of


@njit
def snapshots(  # noqa: PLR0915 - judging and cutting share the points of a key
    offsets: Ints, time: Ints, stop: Ints, number: Ints, marks: Ints, late: Bools, held: Bools, fixed: Ints, through: int
) -> Any:
    """The spans that end at or before ``through`` and hold a row.

    Parameters
    ----------
    marks
        Through where windows had been closed when each row arrived.
    late
        Accepted rows that begin before that.
    held
        Accepted rows.
    fixed
        Last point of each key through which spans have been closed; moved on.

    Returns
    -------
    tuple
        Key, start and end of each span; where its rows begin, and those.
    """
    n = len(time)
    begins = np.empty(n, np.int64)
    out_key, out_start, out_end = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64), np.empty(2 * n, np.int64)
    member_offsets, members = np.zeros(2 * n + 1, np.int64), np.empty(2 * n + 16, np.int64)
    count = listed = 0
    for key in range(len(offsets) - 1):
        first, last = offsets[key], offsets[key + 1]
        if first == last:
            continue
        for row in range(first, last):
            begins[row] = max(time[row], fixed[key])
        for row in suspects_of(first, last, late, number):
            point = fixed[key]
            for other in range(first, last):
                if held[other] and number[other] < number[row]:
                    if begins[other] <= marks[row]:
                        point = max(point, begins[other])
                    if stop[other] <= marks[row]:
                        point = max(point, stop[other])
            begins[row] = max(time[row], point)
        points = np.empty(2 * (last - first), np.int64)
        n_points = 0
        rows = np.empty(last - first, np.int64)
        n_rows = 0
        for row in range(first, last):
            if held[row]:
                points[n_points], points[n_points + 1] = begins[row], stop[row]
                rows[n_rows] = row
                n_points, n_rows = n_points + 2, n_rows + 1
        points = np.unique(points[:n_points])
        rows = rows[:n_rows][np.argsort(begins[rows[:n_rows]], kind="mergesort")]
        active = np.empty(n_rows, np.int64)
        n_active = entered = 0
        for place in range(len(points) - 1):
            start, end = points[place], points[place + 1]
            if end > through:
                break
            kept = 0
            for index in range(n_active):
                if stop[active[index]] > start:
                    active[kept] = active[index]
                    kept += 1
            while entered < n_rows and begins[rows[entered]] <= start:
                active[kept] = rows[entered]
                kept, entered = kept + 1, entered + 1
            n_active = kept
            if n_active:
                if listed + n_active > len(members):
                    grown = np.empty(2 * (listed + n_active), np.int64)
                    grown[:listed] = members[:listed]
                    members = grown
                members[listed : listed + n_active] = np.sort(active[:n_active])
                listed += n_active
                out_key[count], out_start[count], out_end[count] = key, start, end
                member_offsets[count + 1] = listed
                count += 1
        for place in range(len(points)):
            if points[place] <= through:
                fixed[key] = max(fixed[key], points[place])
    return out_key[:count], out_start[:count], out_end[:count], member_offsets[: count + 1], members[:listed]
