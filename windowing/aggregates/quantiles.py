"""Quantiles: exact for small windows, by a mergeable summary of bounded rank error for large ones.

The summary keeps levels of values; one at level h stands for 2**h rows. A level that outgrows ``LEVEL_VALUES`` is sorted, every
second value is promoted to the next level, the others are dropped, and the next time the other half goes. One such step moves a
rank by at most 2**h, and level h takes at most n / (LEVEL_VALUES · 2**h) steps, so after H levels no rank is off by more than
n · H / LEVEL_VALUES; the alternation cancels most of that (docs/numerics.md has the measured errors).

DataSketches' KLL sketch has the same shape but promotes by a random coin that cannot be seeded (apache/datasketches-cpp#361): two
runs over the same rows would publish different rows. Its t-digest is deterministic, but interpolates: between two far peaks the
median it gives is a value that nobody has seen, 1 % off in rank with 9 KB.

References
----------
Munro and Paterson (1980), doi:10.1016/0304-3975(80)90061-4; Manku, Rajagopalan and Lindsay (SIGMOD 1998),
doi:10.1145/276304.276342; Agarwal et al., "Mergeable summaries" (2013), doi:10.1145/2500128.
"""

# ruff: noqa: ARG001 - every lift and every builder is called alike, whether or not it needs the position or the types
from __future__ import annotations

import math
from fractions import Fraction
from itertools import chain, zip_longest

from windowmill.windowing.aggregates.values import require_number
from windowmill.windowing.algebra import Aggregate, Args, Field, Position
from windowmill.windowing.catalogue import AggregateSpec

#: Values a level holds before it is halved; up to this many values of a window, quantiles are exact.
LEVEL_VALUES = 512

Levels = tuple[tuple[float, ...], ...]
Summary = tuple[int, int, int, float | None, float | None, int, Levels]

_NOTHING: Summary = (0, 0, 0, None, None, 0, ())


def _lift(args: Args, at: Position) -> Summary:
    if args[0] is None:
        return _NOTHING
    value = float(args[0]) + 0.0
    if math.isfinite(value):
        return 0, 0, 0, value, value, 0, ((value,),)
    return int(value == -math.inf), int(value == math.inf), int(math.isnan(value)), None, None, 0, ()


def _merge(a: Summary, b: Summary) -> Summary:
    below_a, above_a, nans_a, least_a, greatest_a, turns_a, levels_a = a
    below_b, above_b, nans_b, least_b, greatest_b, turns_b, levels_b = b
    least = least_a if least_b is None else least_b if least_a is None else min(least_a, least_b)
    greatest = greatest_a if greatest_b is None else greatest_b if greatest_a is None else max(greatest_a, greatest_b)
    turns, levels = _shrink(turns_a ^ turns_b, [x + y for x, y in zip_longest(levels_a, levels_b, fillvalue=())])
    return below_a + below_b, above_a + above_b, nans_a + nans_b, least, greatest, turns, levels


def _shrink(turns: int, levels: list[tuple[float, ...]]) -> tuple[int, Levels]:
    """Halve every level that is too long; bit h of ``turns`` says which half of level h goes up next."""
    level = 0
    while level < len(levels):
        if len(levels[level]) > LEVEL_VALUES:
            ordered = sorted(levels[level])
            paired = len(ordered) // 2 * 2
            promoted = tuple(ordered[turns >> level & 1 : paired : 2])
            levels[level] = tuple(ordered[paired:])
            levels[level + 1 : level + 2] = [(*chain(*levels[level + 1 : level + 2]), *promoted)]
            turns ^= 1 << level
        level += 1
    return turns, tuple(levels)


def _value_at(levels: Levels, rank: int) -> float:
    """The value at ``rank``, from 1, when every value counts for as many rows as its level says."""
    if len(levels) == 1:
        return sorted(levels[0])[rank - 1]
    weighted = sorted((value, 1 << level) for level, values in enumerate(levels) for value in values)
    for value, weight in weighted:
        rank -= weight
        if rank <= 0:
            return value
    return weighted[-1][0]


def build_quantile(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Summary]:
    """The smallest value that at least the share q of the values do not exceed; q = 0 and 1 are the exact extremes.

    Exact up to ``LEVEL_VALUES`` values. NaN is the greatest value, infinities have their rank. Combine O(LEVEL_VALUES); space
    O(LEVEL_VALUES · log n).
    """
    require_number(spec, types)
    # The decimal that was written, not its binary neighbour: 0.1 of 30 values is rank 3, where 0.1 * 30 > 3.
    q = Fraction(str(spec.options["q"]))

    def lower(partial: Summary) -> float | None:
        below, above, nans, least, greatest, _, levels = partial
        finite = sum(len(values) << level for level, values in enumerate(levels))
        n = below + finite + above + nans
        if not n:
            return None
        rank = max(1, math.ceil(q * n))
        if rank <= below:
            return -math.inf
        if rank > below + finite:
            return math.inf if rank <= n - nans else math.nan
        if rank - below in (1, finite):
            return least if rank - below == 1 else greatest
        return _value_at(levels, rank - below)

    return Aggregate(
        "quantile",
        kind="summary",
        fields=(
            Field("below", "int64"),
            Field("above", "int64"),
            Field("nans", "int64"),
            Field("least", "float64"),
            Field("greatest", "float64"),
            Field("turns", "int64"),
            Field("levels", "list"),
        ),
        identity=_NOTHING,
        lift=_lift,
        combine=_merge,
        lower=lower,
        commutative=True,
        exact=False,
    )
