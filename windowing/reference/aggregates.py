"""The built-in aggregates a second time, by name, as plain computations over the rows of one window. Sums are exact (``fractions``)."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from typing import Any

from windowmill.windowing.aggregates import aggregate_for
from windowmill.windowing.catalogue import AggregateSpec
from windowmill.windowing.errors import AggregateOverflowError
from windowmill.windowing.reference.events import EventWindow, rank
from windowmill.windowing.registry import imported_for, resolve

_LEAST, _GREATEST = -(2**63), 2**63 - 1


def compute(name: str, spec: AggregateSpec, span: EventWindow) -> Any:
    """The aggregate ``spec`` over the events of ``span``, given in (time, tie_break, arrival) order.

    Raises ``AggregateOverflowError`` if an exact integer result does not fit in 64 bits.
    """
    events = [event for event in span.events if spec.where is None or spec.where in event.record.holds]
    if spec.function == "count" and not spec.columns:
        return len(events)
    rows = [tuple(event.record.values.get(column) for column in spec.columns) for event in events]
    if spec.function == "time_weighted_mean":
        start = span.end if span.start is None else span.start
        weights = [min(event.stop, span.end) - max(event.time, start) for event in events]
        return _weighted_mean([(value, weight) for (value,), weight in zip(rows, weights, strict=True) if value is not None])
    if spec.function in ("arg_min", "arg_max"):
        return _arg(spec.function, [(by, value) for by, value in rows if by is not None])
    # A row counts when none of its arguments is null.
    full = [row for row in rows if None not in row]
    if spec.use:
        return _user_defined(spec.use, full)
    argument = [value for (value,) in full] if len(spec.columns) == 1 else full
    if spec.function in _FUNCTIONS:
        value = _FUNCTIONS[spec.function](argument, **spec.options) if argument else 0 if spec.function in _COUNTS else None
    else:
        value = _registered(spec, rows, argument)
    if isinstance(value, int) and not _LEAST <= value <= _GREATEST:
        raise AggregateOverflowError(
            f"aggregates.{name}: {spec.function} over [{span.start}, {span.end}) is {value}, beyond 64 bits; "
            "make the column floating-point in the source"
        )
    return value


_COUNTS = {"count", "count_distinct", "approx_distinct"}


def _finite(values: Iterable[Any]) -> bool:
    return all(math.isfinite(value) for value in values)


def _float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _total(values: Sequence[Any]) -> Fraction:
    return sum(map(Fraction, values), Fraction(0))


def _sum(values: Sequence[Any]) -> Any:
    if all(isinstance(value, int) for value in values):
        return sum(values)
    if isinstance(values[0], Decimal):
        return _as_decimal(_total(values), _digits(values))
    return _float(_total(values)) if _finite(values) else sum(value for value in values if not math.isfinite(value))


def _digits(values: Sequence[Decimal]) -> int:
    return max(-int(value.as_tuple().exponent) for value in values)


def _as_decimal(value: Fraction, digits: int) -> Decimal:
    """``value`` with so many fractional digits, halves away from zero."""
    unscaled = math.floor(abs(value) * 10**digits + Fraction(1, 2))
    if unscaled >= 10**38:
        raise AggregateOverflowError(f"the result needs more than 38 digits: {unscaled}, {digits} of them behind the point")
    return Decimal(unscaled if value >= 0 else -unscaled).scaleb(-digits, Context(prec=38))


def _mean(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Decimal):
        return _as_decimal(_total(values) / len(values), _digits(values) + 4)
    return _float(_total(values) / len(values)) if _finite(values) else float(_sum(values))


def _product(values: Sequence[Any]) -> float:
    if not _finite(values):
        # An infinity outweighs every finite factor but zero, even one that underflows.
        signs = [math.copysign(1.0, value) * (value != 0) if not math.isnan(value) else math.nan for value in values]
        return math.prod(signs) * math.inf
    return _float(math.prod(map(Fraction, values), start=Fraction(1)))


def _geometric_mean(values: Sequence[Any]) -> float:
    if any(value < 0 or math.isnan(value) for value in values) or (0 in values and math.inf in values):
        return math.nan
    if 0 in values or math.inf in values:
        return 0.0 if 0 in values else math.inf
    with localcontext(prec=40):  # far beyond a float's digits, so that the mean of a single value is that value
        return float((sum((Decimal(value).ln() for value in values), Decimal(0)) / len(values)).exp())


def _weighted_mean(pairs: Sequence[tuple[Any, Any]]) -> float | None:
    if not pairs:
        return None
    if not all(map(_finite, pairs)):
        weights = float(_sum([float(weight) for _, weight in pairs]))
        return float(_sum([float(value) * float(weight) for value, weight in pairs])) / weights if weights else None
    total = _total([weight for _, weight in pairs])
    return _float(sum((Fraction(value) * Fraction(weight) for value, weight in pairs), Fraction(0)) / total) if total else None


def _zero(value: Any) -> Any:
    """``value`` with −0.0 as 0.0: the two are equal, so results must not depend on which came first."""
    return value + 0.0 if isinstance(value, float) else value


def _least(values: Sequence[Any]) -> Any:
    return _zero(min(values, key=rank))


def _greatest(values: Sequence[Any]) -> Any:
    return _zero(max(values, key=rank))


def _arg(function: str, rows: Sequence[tuple[Any, Any]]) -> Any:
    if not rows:
        return None
    # min and max return the first of equal rows: the earliest row wins a tie.
    choose = min if function == "arg_min" else max
    return choose(rows, key=lambda row: rank(row[0]))[1]


def _distinct(values: Sequence[Any]) -> list[Any]:
    first: dict[Any, Any] = {}
    for value in map(_zero, values):
        first.setdefault(_hashable(value), value)
    return list(first.values())


def _hashable(value: Any) -> tuple[Any, ...]:
    """Equal for equal values, nested ones among them."""
    if isinstance(value, list | tuple | dict):
        return tuple(map(_hashable, value.items() if isinstance(value, dict) else value))
    return rank(value)


def _moment(values: Sequence[Any], power: int) -> Fraction:
    """Central moment: mean of the ``power``-th powers of the deviations from the mean."""
    mean = _total(values) / len(values)
    return sum(((Fraction(value) - mean) ** power for value in values), Fraction(0)) / len(values)


def _variance(values: Sequence[Any], freedom: int) -> float | None:
    if len(values) <= freedom:
        return None
    if not _finite(values):
        return math.nan
    return _float(_moment(values, 2) * len(values) / (len(values) - freedom))


def _deviation(values: Sequence[Any], freedom: int) -> float | None:
    variance = _variance(values, freedom)
    return None if variance is None else math.sqrt(variance)


def _root(square: Fraction, sign: Fraction) -> float:
    return math.copysign(math.sqrt(_float(square)), _float(sign)) if square else 0.0


def _skewness(values: Sequence[Any]) -> float | None:
    if not _finite(values):
        return math.nan
    second, third = _moment(values, 2), _moment(values, 3)
    return _root(third**2 / second**3, third) if second else None


def _kurtosis(values: Sequence[Any]) -> float | None:
    if not _finite(values):
        return math.nan
    second = _moment(values, 2)
    return _float(_moment(values, 4) / second**2 - 3) if second else None


def _comoment(pairs: Sequence[tuple[Any, Any]]) -> Fraction:
    """Mean of the products of the deviations of both columns from their means."""
    (x, y), n = zip(*pairs, strict=True), len(pairs)
    return sum((Fraction(a) * Fraction(b) for a, b in pairs), Fraction(0)) / n - _total(x) * _total(y) / n**2


def _covariance(pairs: Sequence[tuple[Any, Any]]) -> float | None:
    if len(pairs) < 2:
        return None
    return _float(_comoment(pairs) * len(pairs) / (len(pairs) - 1)) if all(map(_finite, pairs)) else math.nan


def _correlation(pairs: Sequence[tuple[Any, Any]]) -> float | None:
    if not all(map(_finite, pairs)):
        return math.nan if len(pairs) > 1 else None
    together, (x, y) = _comoment(pairs), zip(*pairs, strict=True)
    spread = _moment(x, 2) * _moment(y, 2)
    return _root(together**2 / spread, together) if spread else None


def _trend(pairs: Sequence[tuple[Any, Any]]) -> dict[str, float] | None:
    (x, y), n = zip(*pairs, strict=True), len(pairs)
    if not all(map(_finite, pairs)):
        return {"slope": math.nan, "intercept": math.nan} if n > 1 else None
    spread = _moment(x, 2)
    if not spread:
        return None
    slope = _comoment(pairs) / spread
    return {"slope": _float(slope), "intercept": _float((_total(y) - slope * _total(x)) / n)}


def _ordered(values: Sequence[Any], k: int, reverse: bool) -> list[Any]:
    return sorted(map(_zero, values), key=rank, reverse=reverse)[:k]


def _quantile(values: Sequence[Any], q: float, exact: bool = False) -> float:
    """The least value v such that at least the fraction ``q`` of the values is at most v.

    Of more than 4,096 different values, unless ``exact``, the least whose place differs from v's in no more than its last bits: as few as
    leave 4,096 places. The greatest value is itself.
    """
    ordered: list[float] = _ordered([float(value) for value in values], len(values), False)
    last = sum(not math.isnan(value) for value in ordered) - 1
    found = max(0, math.ceil(Fraction(str(q)) * len(ordered)) - 1)
    if exact or found >= last:
        return ordered[found]
    places = [_place(value) for value in ordered[: last + 1]]
    bits = 0
    while len({place >> bits for place in places}) > 4096:
        bits += 1
    return next(value for value, place in zip(ordered, places, strict=False) if place >> bits == places[found] >> bits)


def _place(value: float) -> int:
    """The number of ``value`` among all 64-bit floating-point numbers in ascending order, 0.0 being the first of the positive ones."""
    magnitude = int.from_bytes(struct.pack(">d", abs(value)))
    return magnitude if value >= 0 else ~magnitude


def _median(values: Sequence[Any]) -> float:
    """The middle value, or the mean of the two middle ones."""
    ordered = _ordered([float(value) for value in values], len(values), False)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return float(_mean([low, high]))


def _histogram(values: Sequence[Any], edges: Sequence[float]) -> list[int]:
    """Number of values in each bin [edge, next edge); the last bin includes both edges, values outside all bins do not count."""
    last = len(edges) - 2
    exact = [Decimal(str(edge)) for edge in edges] if isinstance(values[0], Decimal) else edges
    bounds = enumerate(pairwise(exact))
    return [sum(low <= value < high or (index == last and value == high) for value in values) for index, (low, high) in bounds]


def _range(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Decimal):
        return _as_decimal(Fraction(_greatest(values)) - Fraction(_least(values)), _digits(values))
    return _greatest(values) - _least(values)


def _text(value: Any) -> str:
    if isinstance(value, Decimal):
        return f"{value:f}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _registered(spec: AggregateSpec, rows: Sequence[tuple[Any, ...]], argument: Sequence[Any]) -> Any:
    """An aggregate without an implementation in this module: its own plain computation, or its algebra folded over the rows."""
    declared = spec.declaration
    if declared.plain is not None:
        return resolve(declared.plain)(argument, **spec.options) if argument else None
    types = [_type_of([value for value in column if value is not None]) for column in zip(*rows, strict=True)]
    aggregate = aggregate_for(spec, types or ["any"] * len(spec.columns))
    return aggregate.lower(aggregate.of(rows))


def _type_of(values: Sequence[Any]) -> str:
    """Name of the type of ``values``, as builders of algebras take it."""
    named = {"bool": bool, "int64": int, "float64": float, "decimal": Decimal, "string": str}
    kinds = {next((name for name, kind in named.items() if isinstance(value, kind)), "any") for value in values}
    return kinds.pop() if len(kinds) == 1 else "any"


def _user_defined(name: str, rows: Sequence[tuple[Any, ...]]) -> Any:
    imported = imported_for("use", name)
    aggregate = imported() if isinstance(imported, type) else imported
    lifted = [aggregate.lift(*row) for row in rows]
    return aggregate.lower(functools.reduce(aggregate.combine, lifted)) if lifted else None


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "count": len,
    "count_distinct": lambda values: len(_distinct(values)),
    "approx_distinct": lambda values: len(_distinct(values)),
    "sum": _sum,
    "mean": _mean,
    "geometric_mean": _geometric_mean,
    "product": _product,
    "weighted_mean": _weighted_mean,
    "min": _least,
    "max": _greatest,
    "min_count": lambda values: [rank(value) for value in values].count(rank(_least(values))),
    "max_count": lambda values: [rank(value) for value in values].count(rank(_greatest(values))),
    "range": _range,
    "top_k": lambda values, k: _ordered(values, k, True),
    "bottom_k": lambda values, k: _ordered(values, k, False),
    "var_samp": lambda values: _variance(values, 1),
    "var_pop": lambda values: _variance(values, 0),
    "stddev_samp": lambda values: _deviation(values, 1),
    "stddev_pop": lambda values: _deviation(values, 0),
    "skewness": _skewness,
    "kurtosis": _kurtosis,
    "covar_samp": _covariance,
    "corr": _correlation,
    "linear_trend": _trend,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "collect": list,
    "collect_distinct": _distinct,
    "concat": lambda values: "".join(map(_text, values)),
    "median": _median,
    "quantile": _quantile,
    "histogram": _histogram,
    "bool_and": all,
    "bool_or": any,
}
