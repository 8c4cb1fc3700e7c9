"""Subtract-on-evict: windows whose total deducts what leaves have the bits of those combined afresh, for two operations a window."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowmill.windowing.aggregates import adapt_own
from windowmill.windowing.aggregates.order import mergeable
from windowmill.windowing.algebra import Aggregate
from windowmill.windowing.columnar.objects import combine_windows
from windowmill.windowing.kernels import combine as op
from windowmill.windowing.kernels.two_stacks import fifo_ranges
from windowmill.windowing.slicing.leaves import Windows

#: A count, three bins of a histogram, a sum of whole numbers and one of decimals: operation, first int and float column, numbers of these.
EXACT = np.array([[op.ADD, 0, 0, 1, 0], [op.ADD, 1, 0, 3, 0], [op.WIDE, 4, 0, 2, 0], [op.WIDER, 6, 0, 3, 0]])
#: Columns of each number, the lowest limb first.
NUMBERS = [(0,), (1,), (2,), (3,), (4, 5), (6, 7, 8)]
LIMBS = st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63), 2**32]) | st.integers(-(2**63), 2**63 - 1)
LEAVES = st.lists(st.lists(LIMBS, min_size=9, max_size=9), min_size=1, max_size=12)


@st.composite
def ranges(draw: st.DrawFn, n: int) -> list[tuple[int, int]]:
    """Ranges of n leaves, most of which follow from the one before; some are empty, a few begin or end before it."""
    found, lo, hi = [], 0, 0
    for _ in range(draw(st.integers(1, 12))):
        if draw(st.integers(0, 9)) == 0:
            lo, hi = sorted((draw(st.integers(0, n)), draw(st.integers(0, n))))
        else:
            hi = min(n, hi + draw(st.integers(0, 3)))
            lo = min(hi, lo + draw(st.integers(0, 3)))
        found.append((lo, hi))
    return found


def whole(row: Any, columns: tuple[int, ...]) -> int:
    return sum((int(row[column]) % 2**64) << 64 * limb for limb, column in enumerate(columns)) % 2 ** (64 * len(columns))


@given(st.data(), LEAVES, st.integers(0, 12))
def test_sums_of_any_limbs_are_those_of_whole_numbers(data, leaves, middle):
    """However far the total leaves its limbs on the way."""
    of_keys = [data.draw(ranges(len(leaves))) for _ in range(2)]
    windows = [window for key in of_keys for window in key]
    lo, hi = np.array(windows).T.copy()
    ints = np.array(leaves, np.int64)
    found, none = np.empty((len(windows), 9), np.int64), np.empty((len(leaves), 0))
    offsets, middles = np.array([0, len(of_keys[0]), len(windows)]), np.array([min(middle, len(leaves)), -1])
    fifo_ranges(EXACT, ints, none, np.arange(len(leaves)), offsets, lo, hi, middles, found, np.empty((len(windows), 0)))
    for row, (first, stop) in zip(found, windows, strict=True):
        for columns in NUMBERS:
            assert whole(row, columns) == sum(whole(leaf, columns) for leaf in leaves[first:stop]) % 2 ** (64 * len(columns))


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        pytest.param(2**128 - 1, 1, id="a carry into a full limb"),
        pytest.param(5 * 2**64 + 1, -1, id="a borrow from an equal limb"),
        pytest.param(-(2**191), 2**191 - 1, id="the greatest and the least"),
    ],
)
def test_carries_and_borrows_pass_through_whole_limbs(older, newer):
    ints = np.zeros((2, 9), np.uint64)
    for row, number in zip(ints, (older, newer), strict=True):
        row[list(NUMBERS[-1])] = [number >> 64 * limb & 2**64 - 1 for limb in range(3)]
    found, none = np.empty((2, 9), np.int64), np.empty((2, 0))
    window = np.array([0, 1]), np.array([2, 2])  # both leaves, then the newer alone
    fifo_ranges(EXACT, ints.view(np.int64), none, np.arange(2), np.array([0, 2]), *window, np.array([-1]), found, np.empty((2, 0)))
    assert [whole(row, NUMBERS[-1]) for row in found] == [(older + newer) % 2**192, newer % 2**192]


class Tally:
    """What two aggregates below have in common: they count their calls."""

    calls: tuple[int, int] = (0, 0)

    def __init__(self) -> None:
        self.combined = self.deducted = 0

    def lower(self, partial: Any) -> Any:
        return partial


class Sum(Tally):
    commutative = True

    def lift(self, value: int) -> int:
        return value

    def combine(self, older: int, newer: int) -> int:
        self.combined += 1
        return older + newer

    def deduct(self, total: int, oldest: int) -> int:
        self.deducted += 1
        return total - oldest


class Joined(Tally):
    """Depends on the order of its rows: ``deduct`` takes away the oldest alone."""

    def lift(self, value: int) -> str:
        return f"{value};"

    def combine(self, older: str, newer: str) -> str:
        self.combined += 1
        return older + newer

    def deduct(self, total: str, oldest: str) -> str:
        self.deducted += 1
        assert total.startswith(oldest)
        return total[len(oldest) :]


def windows_of(of_keys: list[list[tuple[int, int]]], n: int) -> Windows:
    windows = np.array([window for key in of_keys for window in key], np.int64).reshape(-1, 2)
    key = np.repeat(np.arange(len(of_keys)), [len(key) for key in of_keys])
    return Windows.of(key, windows[:, 0], windows[:, 1], ranges=(np.arange(n), windows[:, 0].copy(), windows[:, 1].copy()))


def built(kind: type[Tally]) -> tuple[Tally, Aggregate[Any]]:
    made = kind()
    return made, mergeable(adapt_own(made, kind.__name__))


@pytest.mark.parametrize("kind", [Sum, Joined])
@given(st.data(), st.lists(st.none() | st.integers(-9, 9), min_size=1, max_size=12))
def test_a_users_deduct_gives_what_combining_gives(kind, data, values):
    of_keys = [data.draw(ranges(len(values))) for _ in range(2)]
    _, aggregate = built(kind)
    partials = [aggregate.lift((value,), (at, ())) for at, value in enumerate(values)]
    found = combine_windows(aggregate, partials, windows_of(of_keys, len(values)))
    wanted = [aggregate.fold(partials[first:stop]) for key in of_keys for first, stop in key]
    assert found == wanted


@pytest.mark.parametrize("kind", [Sum, Joined])
@pytest.mark.parametrize(("width", "hop"), [(2, 1), (12, 1), (60, 1), (60, 7), (5, 5), (7, 6)])
def test_a_window_costs_one_call_for_each_leaf_that_enters_or_leaves_at_most(kind, width, hop):
    made, aggregate = built(kind)
    n = 600
    partials = [aggregate.lift((at,), (at, ())) for at in range(n)]
    ranges = [(max(0, end - width), min(n, end)) for end in range(hop, n + width, hop)]
    ranges = [(first, stop) for first, stop in ranges if first < stop]
    combine_windows(aggregate, partials, windows_of([ranges], n))
    moved = sum(
        min(next_first - first + next_stop - stop, next_stop - next_first) for (first, stop), (next_first, next_stop) in pairwise(ranges)
    )
    assert made.combined + made.deducted <= moved + hop
    assert (made.deducted > 0) == (width > 2 * hop)
