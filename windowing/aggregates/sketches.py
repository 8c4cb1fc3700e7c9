"""Summaries of bounded size: approximate distinct counts, quantiles, histograms.

The sketches are Apache DataSketches'. Partials hold them serialised: immutable, and the bytes that state tables store.
"""

# ruff: noqa: ARG001 - every lift and every builder is called alike, whether or not it needs the position or the types
from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from datasketches import hll_sketch, hll_union, tdigest_double, tgt_hll_type

from windowing.aggregates.values import Builder, frozen_value, require_number
from windowing.algebra import Aggregate, Args, Field, Position
from windowing.catalogue import AggregateSpec

#: 2**12 registers: standard error 1.04 / 64 = 1.6 %, 4 KiB a partial once it holds many values, fewer bytes before.
LOG2_REGISTERS = 12
#: Compression of the t-digest; docs/numerics.md has the rank errors measured with it.
COMPRESSION = 200
#: Up to this many values a quantile is exact; a digest also takes its rows in such runs, since each merge costs a compression.
EXACT_VALUES = 512

Registers = tuple[bytes]
Quantile = tuple[int, int, int, tuple[float, ...], bytes]


def _lift_registers(args: Args, at: Position) -> Registers:
    value = args[0]
    if value is None:
        return (b"",)
    key = frozen_value(value)
    sketch = hll_sketch(LOG2_REGISTERS, tgt_hll_type.HLL_8)
    sketch.update(key if isinstance(key, int | float | str) and not _beyond_int64(key) else repr(key))
    return (sketch.serialize_compact(),)


def _beyond_int64(key: Any) -> bool:
    return isinstance(key, int) and not -(2**63) <= key < 2**63


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
    # Through a union even when there is one sketch: a union's estimate is a function of the registers, a sketch's own also of
    # the order of its updates, and batches must not show in the result.
    return round(_union(partial[0]).get_estimate()) if partial[0] else 0


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
    )


_NO_VALUES: Quantile = (0, 0, 0, (), b"")


def _lift_quantile(args: Args, at: Position) -> Quantile:
    if args[0] is None:
        return _NO_VALUES
    value = float(args[0])
    if value - value == 0.0:
        return 0, 0, 0, (value + 0.0,), b""
    return int(value == -math.inf), int(value == math.inf), int(math.isnan(value)), (), b""


def _digest(serialised: bytes) -> Any:
    return tdigest_double.deserialize(serialised) if serialised else tdigest_double(COMPRESSION)


def _merge_quantiles(a: Quantile, b: Quantile) -> Quantile:
    values, serialised = a[3] + b[3], a[4] or b[4]
    if (a[4] and b[4]) or len(values) > EXACT_VALUES:
        digest = _digest(a[4])
        if b[4]:
            digest.merge(_digest(b[4]))
        if len(values) > EXACT_VALUES:
            for value in values:
                digest.update(value)
            values = ()
        serialised = digest.serialize()
    return a[0] + b[0], a[1] + b[1], a[2] + b[2], values, serialised


def _finite_quantile(values: tuple[float, ...], serialised: bytes, rank: int) -> float:
    if not serialised:
        return sorted(values)[rank - 1]
    digest = _digest(serialised)
    for value in values:
        digest.update(value)
    n = digest.get_total_weight()
    if rank in (1, n):
        return float(digest.get_min_value() if rank == 1 else digest.get_max_value())
    return float(digest.get_quantile((rank - 0.5) / n))


def build_quantile(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Quantile]:
    """The smallest value that at least the share q of the values do not exceed.

    Exact up to ``EXACT_VALUES`` values; beyond by a t-digest, whose merging is deterministic, unlike the KLL sketch's: a repeated
    run must write the same rows. Infinities and NaN (the greatest) are counted beside it.
    """
    require_number(spec, types)
    # The decimal that was written, not its binary neighbour: 0.1 of 30 values is rank 3, where 0.1 * 30 > 3.
    q = Fraction(str(spec.options["q"]))

    def lower(partial: Quantile) -> float | None:
        below, above, nans, values, serialised = partial
        finite = len(values) + (int(_digest(serialised).get_total_weight()) if serialised else 0)
        n = below + finite + above + nans
        if not n:
            return None
        rank = max(1, math.ceil(q * n))
        if rank <= below:
            return -math.inf
        if rank <= below + finite:
            return _finite_quantile(values, serialised, rank - below)
        return math.inf if rank <= n - nans else math.nan

    return Aggregate(
        "quantile",
        kind="tdigest",
        fields=(
            Field("below", "int64"),
            Field("above", "int64"),
            Field("nans", "int64"),
            Field("values", "list"),
            Field("digest", "bytes"),
        ),
        identity=_NO_VALUES,
        lift=_lift_quantile,
        combine=_merge_quantiles,
        lower=lower,
        commutative=True,
        exact=False,
    )


def build_histogram(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[tuple[int, ...]]:
    """How many values lie in each [edge, next edge), the last one closed; values outside and NaN are in none; O(edges)."""
    require_number(spec, types)
    edges: list[float] = spec.options["edges"]
    buckets = len(edges) - 1
    nothing = (0,) * (buckets + 1)

    def lift(args: Args, at: Position) -> tuple[int, ...]:
        value = args[0]
        if value is None:
            return nothing
        inside = edges[0] <= value <= edges[-1]
        bucket = min(bisect_right(edges, value), buckets) if inside else 0
        return (1, *(int(index == bucket) for index in range(1, buckets + 1)))

    return Aggregate(
        "histogram",
        kind=f"histogram_{'_'.join(map(repr, edges))}",
        fields=(Field("n", "int64"), *(Field(f"bucket_{index}", "int64") for index in range(buckets))),
        identity=nothing,
        lift=lift,
        combine=lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True)),
        lower=lambda partial: list(partial[1:]) if partial[0] else None,
        deduct=lambda total, oldest: tuple(x - y for x, y in zip(total, oldest, strict=True)),
        commutative=True,
        result="list<int64>",
    )


BUILDERS: Mapping[str, Builder] = {"approx_distinct": build_approx_distinct, "quantile": build_quantile, "histogram": build_histogram}
