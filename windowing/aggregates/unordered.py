"""Aggregates for which the order of events is of no account: distinct counts, the k first or last values, quantiles.

NaN is the greatest value and equal to itself, as in Spark; -0.0 is taken as 0.0. The HyperLogLog sketch of ``approx_distinct`` is Apache
DataSketches'. Partials hold it serialised: immutable, and the bytes that state tables store.

The summary of a quantile is a function of the values alone: neither the order of combining nor the cut into batches shows in it. It holds
each different value until there are more than ``BUCKETS`` of them. Then values whose bit patterns agree but for the last ``level`` bits
share a bucket, and ``level`` is the least that leaves at most ``BUCKETS`` of them. A bucket keeps its least value and its count. So the
bucket of a rank is always the right one, and the value given for it is at most one bucket's width, ``2**(level - 52)`` of its magnitude,
too small.

Merging keeps this: the values of a part have at most as many buckets as those of the whole at any level, so no part is coarser than the
whole, and buckets of a coarser level are unions of those of a finer one.

References
----------
HdrHistogram's buckets likewise follow from a value's leading bits. Epicoco et al., "UDDSketch" (IEEE Access 8, 2020,
doi:10.1109/ACCESS.2020.3015599), merge buckets of logarithms two by two, after Masson, Rim and Lee, "DDSketch" (PVLDB 12(12), 2019).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cmp_to_key
from typing import Any

import numpy as np
import numpy.typing as npt
from datasketches import hll_sketch, hll_union, tgt_hll_type

from windowmill.windowing.algebra import (
    INT64_MAX,
    INT64_MIN,
    Aggregate,
    Args,
    Field,
    Position,
    frozen_value,
    is_nan,
    less_nan_greatest,
    positive_zero,
    require_number,
)
from windowmill.windowing.catalogue import AggregateSpec

# ruff: noqa: ARG001 - every lift and every builder has the same arguments, whether or not it needs the position or the types


Distinct = tuple[frozenset[Any], bool]

_NO_VALUES: Distinct = (frozenset(), False)


def _lift_distinct(args: Args, at: Position) -> Distinct:
    value = args[0]
    if value is None:
        return _NO_VALUES
    # A NaN is kept as a flag: after a restore, two NaN objects would be two members of a set.
    return (frozenset(), True) if is_nan(value) else (frozenset((frozen_value(value),)), False)


def _unite_all(partials: Iterable[Distinct]) -> Distinct:
    values: set[Any] = set()
    nan = False
    for others, other_nan in partials:
        values |= others
        nan |= other_nan
    return frozenset(values), nan


def build_count_distinct(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Distinct]:
    """Exact number of distinct non-null values (all NaN are one, -0.0 is 0.0); space and combine O(distinct values).

    Uniting n partials copies each value once; n combines would copy the values so far n times.
    """
    return Aggregate(
        "count_distinct",
        kind="distinct",
        fields=(Field("values", "set"), Field("nan", "bool")),
        identity=_NO_VALUES,
        lift=_lift_distinct,
        combine=lambda a, b: ((a[0] | b[0] if a[0] and b[0] else a[0] or b[0]), a[1] or b[1]),
        lower=lambda partial: len(partial[0]) + partial[1],
        unite=_unite_all,
        commutative=True,
        idempotent=True,
        fixed_size=False,
        result="int64",
    )


Ranked = tuple[tuple[Any, ...]]


def _rank_key(type_: str, smallest: bool) -> tuple[Callable[[Any], Any], bool]:
    """Sort key and whether to reverse; a plain key where the type has one, since a comparison function costs five times as much."""
    if type_ == "float64":
        return (lambda value: (math.isnan(value), value)), not smallest
    if type_ != "any":
        return (lambda value: value), not smallest
    less = less_nan_greatest
    return cmp_to_key(lambda a, b: -1 if less(a, b) else int(less(b, a))), not smallest


def _ranked(name: str, spec: AggregateSpec, type_: str, smallest: bool) -> Aggregate[Ranked]:
    k: int = spec.options["k"]
    key, reverse = _rank_key(type_, smallest)

    def combine(a: Ranked, b: Ranked) -> Ranked:
        if not a[0] or not b[0]:
            return a if a[0] else b
        return (tuple(sorted(a[0] + b[0], key=key, reverse=reverse)[:k]),)

    return Aggregate(
        name,
        kind=f"{name}_{k}",
        fields=(Field("values", "list"),),
        identity=((),),
        lift=lambda args, _at: ((),) if args[0] is None else ((positive_zero(args[0]),),),
        combine=combine,
        lower=lambda partial: list(partial[0]) or None,
        commutative=True,
        result="list<same>",
    )


def build_top_k(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Ranked]:
    """The k greatest values, greatest first, equals repeated; combine O(k)."""
    return _ranked("top_k", spec, types[0], smallest=False)


def build_bottom_k(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Ranked]:
    """The k smallest values, smallest first, equals repeated; combine O(k)."""
    return _ranked("bottom_k", spec, types[0], smallest=True)


#: 2**12 registers: standard error 1.04 / 64 = 1.6 %, 4 KiB a partial once it holds many values, fewer bytes before.
LOG2_REGISTERS = 12

Registers = tuple[bytes]


def _lift_registers(args: Args, at: Position) -> Registers:
    value = args[0]
    if value is None:
        return (b"",)
    key = frozen_value(value)
    sketch = hll_sketch(LOG2_REGISTERS, tgt_hll_type.HLL_8)
    # Text is hashed as its repr because the library skips the empty string; whole numbers beyond 64 bits as theirs.
    sketch.update(key if isinstance(key, float) or (isinstance(key, int) and INT64_MIN <= key <= INT64_MAX) else repr(key))
    return (sketch.serialize_compact(),)


def _union(*parts: bytes) -> Any:
    union = hll_union(LOG2_REGISTERS)
    for part in parts:
        union.update(hll_sketch.deserialize(part))
    return union


def _unite_registers(a: Registers, b: Registers) -> Registers:
    if not a[0] or not b[0]:
        return a if a[0] else b
    return (_union(a[0], b[0]).get_result(tgt_hll_type.HLL_8).serialize_compact(),)


def _distinct(partial: Registers) -> int:
    # The union of a sketch with itself estimates from its registers alone. The sketch itself also uses the order of its updates, which
    # depends on how rows are divided into batches.
    return round(_union(partial[0], partial[0]).get_estimate()) if partial[0] else 0


def build_approx_distinct(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Registers]:
    """Approximate number of distinct non-null values by HyperLogLog; standard error 1.6 %, exact to a handful; O(1)."""
    return Aggregate(
        "approx_distinct",
        kind="hll",
        fields=(Field("sketch", "bytes"),),
        identity=(b"",),
        lift=_lift_registers,
        combine=_unite_registers,
        lower=_distinct,
        commutative=True,
        idempotent=True,
        result="int64",
        accuracy="estimate, with a standard error of 1.6 %",
    )


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

_FIELDS = (
    Field("nans", "int64"),
    Field("few", "list"),
    Field("level", "int64"),
    Field("greatest", "float64"),
    Field("values", "bytes"),
    Field("counts", "bytes"),
)
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

    def combine(a: Summary, b: Summary) -> Summary:
        if a == _NOTHING:
            return b
        return a if b == _NOTHING else unite((a, b))

    return Aggregate(
        name,
        kind="values_in_order" if exact else "summary",
        fields=_FIELDS,
        identity=_NOTHING,
        lift=_lift,
        combine=combine,
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
