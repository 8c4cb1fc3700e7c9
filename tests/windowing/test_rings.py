"""Circular leaves and the tree over them: what leaves enter and leave, in any cut into batches, against lists."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowmill.windowing.kernels import combine as op
from windowmill.windowing.kernels.flatfat import tree_windows
from windowmill.windowing.kernels.rings import ring_changes
from windowmill.windowing.slicing.leaves import Ring

PROGRAM = np.array([[op.ADD, 0, 0, 1, 0], [op.MOMENTS, 1, 0, 1, 3], [op.PICK_GREATEST, 2, 3, 2, 0], [op.COUNT_LEAST, 4, 3, 2, 0]])
#: A window: how many leaves have entered since the one before, and which have left then, counted from the oldest and round again.
Step = tuple[int, list[int]]
STEPS = st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 60), max_size=9)), max_size=25)


class Fed:
    """Keys whose windows come batch by batch; each leaf is a number, and its partial a row of the arenas."""

    def __init__(self, n_keys: int, n_leaves: int) -> None:
        self.values = np.random.default_rng(3).normal(1e6, 1.0, n_leaves)
        self.ints, self.floats = np.ones((n_leaves, 6), np.int64), np.zeros((n_leaves, 3))
        self.ints[:, 2] = self.ints[:, 4] = self.values * 1e9
        self.ints[:, 3] = np.arange(n_leaves)
        self.floats[:, 0] = self.values
        self.n_keys, self.fed = n_keys, [0] * n_keys
        self.held: list[dict[int, int]] = [{} for _ in range(n_keys)]
        self.capacities = np.zeros(n_keys, np.int64)

    def batch(self, steps: list[list[Step]]) -> tuple[list[list[int]], Ring, np.ndarray, np.ndarray]:
        """The next windows of each key: their leaves, their ring, and their partials."""
        sequence, slots, removed, gone, hi, counts, begins, wanted = [], [], [], [], [], [], [], []
        for key, windows in enumerate(steps):
            begins.append(len(sequence))
            place_of = {leaf: len(sequence) + rank for rank, leaf in enumerate(self.held[key])}
            sequence += self.held[key]
            slots += self.held[key].values()
            inside = list(self.held[key])
            for entering, leaving in windows:
                new = [key + self.n_keys * (self.fed[key] + rank) for rank in range(entering)]
                self.fed[key] += entering
                place_of |= {leaf: len(sequence) + rank for rank, leaf in enumerate(new)}
                sequence, slots, inside, before = sequence + new, slots + [-1] * entering, inside + new, len(removed)
                removed += [place_of[inside.pop(rank % len(inside))] for rank in leaving[: len(inside)]]
                gone.append((before, len(removed)))
                hi.append(len(sequence))
                wanted.append(list(inside))
            self.held[key] = dict.fromkeys(inside, -1)
            counts.append(len(windows))
        keys = np.flatnonzero(counts)
        offsets = np.concatenate(([0], np.cumsum(np.array(counts)[keys]))).astype(np.int64)
        own, leaves = np.array(slots, np.int64), np.array(sequence, np.int64)
        *columns, places = ring_changes(
            offsets,
            keys,
            np.array(begins)[keys],
            np.array(hi, np.int64),
            np.array(gone, np.int64).reshape(-1, 2),
            np.array(removed, np.int64),
            own,
            self.capacities,
        )
        slot_of = dict(zip(sequence, own.tolist(), strict=True))
        self.held = [{leaf: slot_of[leaf] for leaf in held} for held in self.held]
        ring = Ring(*columns, np.array([leaves[place] if place >= 0 else -1 for place in places], np.int64))
        ints, floats = np.empty((len(wanted), 6), np.int64), np.empty((len(wanted), 3))
        tree_windows(PROGRAM, self.ints, self.floats, ring.capacity, ring.fresh, ring.change_offsets, ring.slots, ring.leaves, ints, floats)
        return wanted, ring, ints, floats


@given(st.lists(STEPS, min_size=1, max_size=3), st.lists(st.integers(0, 25), max_size=5))
def test_windows_hold_what_has_entered_and_not_left(steps: list[list[Step]], cuts: list[int]):
    """Leaves in order, counts and extremes exact, moments as of the list; and all of it the same to the bit in any cut."""
    n_leaves = len(steps) * max(1, *(sum(entering for entering, _ in windows) for windows in steps))
    whole = Fed(len(steps), n_leaves)
    wanted, ring, ints, floats = whole.batch(steps)
    offsets, members = ring.members()
    assert [members[a:b].tolist() for a, b in pairwise(offsets)] == wanted
    for window, leaves in enumerate(wanted):
        n, moments_n, _, greatest, _, times = ints[window].tolist()
        assert n == moments_n == len(leaves)
        assert (greatest, times) == ((max(leaves, key=lambda leaf: whole.values[leaf]), 1) if leaves else (-1, 0))
        if leaves:
            anchor, mean, m2 = floats[window]
            assert anchor in whole.values[leaves]
            assert anchor + mean == pytest.approx(np.mean(whole.values[leaves]), rel=1e-14)
            assert m2 == pytest.approx(np.var(whole.values[leaves]) * n, rel=1e-8, abs=1e-8)
    parts, fed = [], Fed(len(steps), n_leaves)
    for begin, end in pairwise([0, *sorted(cuts), 25]):
        parts.append(fed.batch([windows[begin:end] for windows in steps]))
    pieces = [part[2 + kind][row] for kind in (0, 1) for key in range(len(steps)) for part, row in rows_of(parts, steps, cuts, key)]
    assert b"".join(piece.tobytes() for piece in pieces) == ints.tobytes() + floats.tobytes()
    assert fed.held == whole.held
    assert fed.capacities.tolist() == whole.capacities.tolist()


def rows_of(parts: list, steps: list[list[Step]], cuts: list[int], key: int):
    """Each window of ``key`` in order: its batch, and its row there."""
    for part, (begin, end) in zip(parts, pairwise([0, *sorted(cuts), 25]), strict=True):
        before = sum(len(windows[begin:end]) for windows in steps[:key])
        for rank in range(len(steps[key][begin:end])):
            yield part, before + rank


def test_a_ring_fits_its_window():
    """Doubled when full, compacted where a quarter is empty, halved below a quarter in use."""
    fed = Fed(1, 1000)
    _, ring, *_ = fed.batch([[(100, []), (1, []), (0, list(range(70))), (0, [0] * 25), (200, []), (0, [1] * 203)]])
    assert ring.capacity.tolist() == [128, 128, 64, 16, 256, 8]
    assert np.diff(ring.members()[0]).tolist() == [100, 101, 31, 6, 206, 3]
