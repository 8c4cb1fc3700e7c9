"""Quantiles and the median, from the values of a window in order with how often each occurs.

A summary is a function of the values alone: neither the order of combining nor the cut into batches shows in it. It holds each different
value until there are more than ``BUCKETS`` of them. Then values whose bit patterns agree but for the last ``level`` bits share a bucket,
and ``level`` is the least that leaves at most ``BUCKETS`` of them. A bucket keeps its least value and its count. So the bucket of a rank
is always the right one, and the value given for it is at most one bucket's width, ``2**(level - 52)`` of its magnitude, too small.

Merging keeps this: the values of a part have at most as many buckets as those of the whole at any level, so no part is coarser than the
whole, and buckets of a coarser level are unions of those of a finer one.

References
----------
HdrHistogram's buckets likewise follow from a value's leading bits. Epicoco et al., "UDDSketch" (IEEE Access 8, 2020,
doi:10.1109/ACCESS.2020.3015599), merge buckets of logarithms two by two, after Masson, Rim and Lee, "DDSketch" (PVLDB 12(12), 2019).
"""

# ruff: noqa: ARG001 - every lift and every builder has the same arguments, whether or not it needs the position or the types
from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from windowmill.windowing.aggregates.values import require_number
from windowmill.windowing.algebra import Aggregate, Args, Field, Position
from windowmill.windowing.catalogue import AggregateSpec

#: Most different values that a bounded summary holds exactly, and most buckets beyond. At level 52 a bucket is a sign and an exponent, of
#: which there are as many: 2 · 2047, and the infinities. So every set of values fits.
BUCKETS = 4096
LEVELS = range(53)
#: Values up to which a summary is a sorted tuple, which combines faster than arrays.
FEW = 256

_EXACT = "exact; a partial holds every different value"
_BOUNDED = (
    f"exact for up to {BUCKETS:,} different values in a window; of more, a value that is too small by less than 0.8 % where the values "
    "span a factor of 2 billion, by less where they span less; `exact: true` keeps every different value"
)

Floats = npt.NDArray[np.float64]
#: Number of NaN; the other values, sorted, while they are few, else these: level, greatest value, least values of the buckets, counts.
Summary = tuple[int, tuple[float, ...], int, float | None, bytes, bytes]

_NOTHING: Summary = (0, (), 0, None, b"", b"")


def _lift(args: Args, at: Position) -> Summary:
    if args[0] is None:
        return _NOTHING
    value = float(args[0]) + 0.0  # -0.0 becomes 0.0
    return (1, (), 0, None, b"", b"") if math.isnan(value) else (0, (value,), 0, None, b"", b"")


def _uniting(most: int | None) -> Callable[[Iterable[Summary]], Summary]:
    """Unites summaries of at most ``most`` buckets; null: all values are kept."""

    def unite(partials: Iterable[Summary]) -> Summary:
        nans, level = 0, 0
        few: list[float] = []
        many: list[Summary] = []
        for partial in partials:
            nans += partial[0]
            few += partial[1]
            if partial[4]:
                many.append(partial)
                level = max(level, partial[2])
        if not many and len(few) <= FEW:
            return (nans, tuple(sorted(few)), 0, None, b"", b"")
        held = [np.array(few), *(np.frombuffer(partial[4]) for partial in many)]
        counts = [np.ones(len(few), np.int64), *map(_counts, many)]
        greatest = max([*(partial[3] for partial in many if partial[3] is not None), *few])
        return (nans, (), *_bucketed(np.concatenate(held), np.concatenate(counts), greatest, level, most))

    return unite


def _bucketed(
    values: Floats, counts: npt.NDArray[np.int64], greatest: float, level: int, most: int | None
) -> tuple[int, float, bytes, bytes]:
    """The buckets of ``values`` at the least level from ``level`` on that leaves at most ``most``."""
    order = np.argsort(values, kind="stable")
    values, counts = values[order], counts[order]
    bits = values.view(np.int64)
    # Ascending with the values: of negative ones all bits but the sign are inverted. Two values share a bucket if they agree but for the
    # last bits, so neighbours show where buckets begin.
    keys = bits ^ ((bits >> 63) & np.int64(2**63 - 1))
    differing = (keys[1:] ^ keys[:-1]).view(np.uint64)
    if most is not None:
        level = bisect_left(LEVELS, True, lo=level, key=lambda at: int(np.count_nonzero(differing >> np.uint64(at))) < most)
    begins = np.concatenate(([0], np.flatnonzero(differing >> np.uint64(level)) + 1))
    totals = np.add.reduceat(counts, begins)
    return level, greatest, values[begins].tobytes(), totals.astype(np.min_scalar_type(int(totals.max()))).tobytes()


def _counts(partial: Summary) -> npt.NDArray[np.int64]:
    """How many values each bucket holds; they are stored in as few bytes as the greatest needs."""
    width = 8 * len(partial[5]) // len(partial[4])
    return np.frombuffer(partial[5], f"<u{width}").astype(np.int64)


def _combining(unite: Callable[[Iterable[Summary]], Summary]) -> Callable[[Summary, Summary], Summary]:
    def combine(a: Summary, b: Summary) -> Summary:
        if a == _NOTHING:
            return b
        return a if b == _NOTHING else unite((a, b))

    return combine


def _values_at(partial: Summary, ranks: Callable[[int], tuple[int, ...]]) -> list[float] | None:
    """The values at the ``ranks``, from 1, of n values, NaN last; null if there are none."""
    nans, few, _, greatest, least, _ = partial
    if few or not least:
        placed, ends = len(few), None
    else:
        ends = np.cumsum(_counts(partial))
        placed = int(ends[-1])
    if not placed + nans:
        return None
    found = []
    for rank in ranks(placed + nans):
        if rank > placed:
            found.append(math.nan)
        elif ends is None:
            found.append(few[rank - 1])
        elif rank == placed and greatest is not None:
            found.append(greatest)
        else:
            found.append(float(np.frombuffer(least)[np.searchsorted(ends, rank)]))
    return found


def _aggregate(name: str, *, exact: bool, lower: Callable[[Summary], float | None]) -> Aggregate[Summary]:
    unite = _uniting(None if exact else BUCKETS)
    return Aggregate(
        name,
        kind="values_in_order" if exact else "summary",
        fields=(
            Field("nans", "int64"),
            Field("few", "list"),
            Field("level", "int64"),
            Field("greatest", "float64"),
            Field("values", "bytes"),
            Field("counts", "bytes"),
        ),
        identity=_NOTHING,
        lift=_lift,
        combine=_combining(unite),
        lower=lower,
        unite=unite,
        commutative=True,
        fixed_size=not exact,
        accuracy=_EXACT if exact else _BOUNDED,
    )


def build_quantile(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Summary]:
    """The smallest value that at least the share q of the values do not exceed; q = 0 and 1 are the exact extremes.

    NaN is the greatest value, infinities have their rank. Exact for up to ``BUCKETS`` different values, and with ``exact: true`` for any
    number. Combine and space O(different values), at most O(BUCKETS) unless ``exact``.
    """
    require_number(spec, types)
    # The decimal that was written, not its binary neighbour: 0.1 of 30 values is rank 3, where 0.1 * 30 > 3.
    q = Fraction(str(spec.options["q"]))

    def lower(partial: Summary) -> float | None:
        found = _values_at(partial, lambda n: (max(1, math.ceil(q * n)),))
        return None if found is None else found[0]

    return _aggregate("quantile", exact=spec.options.get("exact", False), lower=lower)


def build_median(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Summary]:
    """The middle value, the mean of the two middle ones for an even number; NaN is the greatest value.

    Exact. Combine and space O(different values).
    """
    require_number(spec, types)

    def lower(partial: Summary) -> float | None:
        found = _values_at(partial, lambda n: ((n + 1) // 2, n // 2 + 1))
        if found is None:
            return None
        low, high = found
        middle = (low + high) / 2
        return middle if math.isfinite(middle) else low / 2 + high / 2

    return _aggregate("median", exact=True, lower=lower)
