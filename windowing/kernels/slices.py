"""Assigns rows to slices: groups by key, sorts along the axis, and combines the rows of a slice."""

from __future__ import annotations

from typing import Any

import numpy as np

from windowmill.windowing.kernels import combine as op
from windowmill.windowing.kernels.arrays import put
from windowmill.windowing.kernels.combine import Floats, Ints, combine_atom, copy_atom
from windowmill.windowing.kernels.compilation import inlined, inner, njit


@njit
def slice_starts(time: Ints, periods: Ints, phases: Ints) -> Ints:
    """:meth:`windowmill.windowing.slicing.edges.Edges.slice_start` of each instant."""
    starts = np.empty(len(time), np.int64)
    for row in range(len(time)):
        t = time[row]
        start = t - (t - phases[0]) % periods[0]
        for train in range(1, len(periods)):
            start = max(start, t - (t - phases[train]) % periods[train])
        starts[row] = start
    return starts


@njit
def by_key(codes: Ints, n_keys: int) -> Any:
    """Stable order of rows by key code, and each key's offset, shape (n_keys + 1,). A counting sort, O(n)."""
    offsets = np.zeros(n_keys + 1, np.int64)
    for code in codes:
        offsets[code + 1] += 1
    for key in range(n_keys):
        offsets[key + 1] += offsets[key]
    place, order = offsets[:-1].copy(), np.empty(len(codes), np.int64)
    for row in range(len(codes)):
        order[place[codes[row]]] = row
        place[codes[row]] += 1
    return order, offsets


@njit
def along_axis(offsets: Ints, starts: Ints, closed: Ints, batches: Ints) -> Ints:
    """Stable order of rows by (start, closed, batch) within each key; empty if they are sorted already.

    Rows arrive nearly in order: a key whose rows are sorted costs one comparison per row.
    """
    order = np.empty(0, np.int64)
    for key in range(len(offsets) - 1):
        ascending = True
        for b in range(offsets[key] + 1, offsets[key + 1]):
            a = b - 1
            if starts[a] != starts[b]:
                ascending = starts[a] < starts[b]
            elif closed[a] != closed[b]:
                ascending = closed[a] < closed[b]
            else:
                ascending = batches[a] <= batches[b]
            if not ascending:
                break
        if ascending:
            continue
        if not len(order):
            order = np.arange(len(starts))
        rows = order[offsets[key] : offsets[key + 1]]
        for column in (batches, closed, starts):
            rows = rows[np.argsort(column[rows], kind="mergesort")]
        put(rows, order[offsets[key] :])
    return order


@njit
def runs(offsets: Ints, starts: Ints, closed: Ints, batches: Ints) -> Ints:
    """Offsets of the runs of rows with equal key, start, closed and batch; shape (n_runs + 1,). O(n)."""
    bounds, n = np.empty(len(starts) + 1, np.int64), 0
    for key in range(len(offsets) - 1):
        for row in range(offsets[key], offsets[key + 1]):
            first = row == offsets[key]
            if first or starts[row] != starts[row - 1] or closed[row] != closed[row - 1] or batches[row] != batches[row - 1]:
                bounds[n] = row
                n += 1
    bounds[n] = len(starts)
    return bounds[: n + 1].copy()


@njit
def combine_runs(program: Ints, begins: Ints, ends: Ints, ints: Ints, floats: Floats) -> Any:
    """Combine the rows [begin, end) of each run in order; returns arenas with one row per run. O(n)."""
    n = len(begins)
    out_ints, out_floats = np.empty((n, ints.shape[1]), np.int64), np.empty((n, floats.shape[1]), np.float64)
    for line in range(len(program)):
        _one_atom(program[line], (begins, ends), (ints, floats), (out_ints, out_floats))
    return out_ints, out_floats


@inner
def _one_atom(line: Ints, runs_of: Any, given: Any, out: Any) -> None:
    """Combine all runs of one atom; calls with constants are specialized, as in :mod:`windowmill.windowing.kernels.two_stacks`."""
    i, f = line[1], line[2]
    if line[0] == op.ADD and line[3] == 1:
        _fold(op.ADD, i, f, 1, 0, runs_of, given, out)
    elif line[0] == op.MOMENTS:
        _fold(op.MOMENTS, i, f, 1, 3, runs_of, given, out)
    elif line[0] == op.SUM:
        _fold(op.SUM, i, f, 1, 2, runs_of, given, out)
    elif line[0] == op.PICK_GREATEST:
        _fold(op.PICK_GREATEST, i, f, 2, 0, runs_of, given, out)
    else:
        _fold(line[0], i, f, line[3], line[4], runs_of, given, out)


@inlined
def _fold(operation: int, i: int, f: int, n_ints: int, n_floats: int, runs_of: Any, given: Any, out: Any) -> None:
    begins, ends = runs_of
    ints, floats = given
    out_ints, out_floats = out
    for run in range(len(begins)):
        copy_atom(i, f, n_ints, n_floats, ints, floats, begins[run], out_ints, out_floats, run)
        for row in range(begins[run] + 1, ends[run]):
            combine_atom(operation, i, f, n_ints, out_ints, out_floats, run, ints, floats, row, out_ints, out_floats, run)
