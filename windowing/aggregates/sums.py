"""Sums, means and products.

Whole numbers and decimals are summed exactly and may be deducted. Floating-point sums carry their rounding error along
(``windowmill.windowing.numerics``) and are only ever combined: a slice fed row by row is then as accurate as one summed as a tree.
"""

# ruff: noqa: ARG001 - every lift and every builder is called alike, whether or not it needs the position or the types
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from typing import Any

from windowmill.windowing.aggregates.values import DECIMAL_DIGITS, WIDE, fit_int64, require_number
from windowmill.windowing.algebra import Aggregate, Args, Field, Position
from windowmill.windowing.catalogue import AggregateSpec
from windowmill.windowing.errors import AggregateOverflowError
from windowmill.windowing.numerics import (
    UNIT_PRODUCT,
    ZERO_SUM,
    add_sums,
    multiply,
    product_root,
    product_value,
    sum_over,
    sum_value,
    to_product,
    to_sum,
)

IntSum = tuple[int, int]
DecimalSum = tuple[int, Decimal]
FloatSum = tuple[int, float, float, int]
Weighted = tuple[int, float, float, int, float, float, int]
Scaled = tuple[int, float, float, int, int]

_RESULT = Context(prec=DECIMAL_DIGITS)

_NO_INTS: IntSum = (0, 0)
_NO_DECIMALS: DecimalSum = (0, Decimal(0))
_NO_FLOATS: FloatSum = (0, *ZERO_SUM)
_NO_WEIGHTS: Weighted = (0, *ZERO_SUM, *ZERO_SUM)
_NO_FACTORS: Scaled = (0, *UNIT_PRODUCT, 0)

_FLOAT_SUM_FIELDS = (Field("high", "float64"), Field("low", "float64"), Field("carry", "int64"))


def _lift_int(args: Args, at: Position) -> IntSum:
    return _NO_INTS if args[0] is None else (1, int(args[0]))


def _add_ints(a: IntSum, b: IntSum) -> IntSum:
    return a[0] + b[0], a[1] + b[1]


def _subtract_ints(total: IntSum, oldest: IntSum) -> IntSum:
    return total[0] - oldest[0], total[1] - oldest[1]


def _int_sum(partial: IntSum) -> int | None:
    return fit_int64(partial[1], "sum") if partial[0] else None


def _int_mean(partial: IntSum) -> float | None:
    return partial[1] / partial[0] if partial[0] else None


def _lift_decimal(args: Args, at: Position) -> DecimalSum:
    return _NO_DECIMALS if args[0] is None else (1, args[0])


def _add_decimals(a: DecimalSum, b: DecimalSum) -> DecimalSum:
    # An empty operand must return the other with its scale unchanged: 0 + 1.50 would, 1E+2 + 0 would not.
    if not a[0] or not b[0]:
        return a if a[0] else b
    return a[0] + b[0], WIDE.add(a[1], b[1])


def _subtract_decimals(total: DecimalSum, oldest: DecimalSum) -> DecimalSum:
    n = total[0] - oldest[0]
    return (n, WIDE.subtract(total[1], oldest[1])) if n else _NO_DECIMALS


def _decimal_sum(partial: DecimalSum) -> Decimal | None:
    n, total = partial
    if n and len(total.as_tuple().digits) > DECIMAL_DIGITS:
        raise AggregateOverflowError(
            f"sum: {total} needs more than {DECIMAL_DIGITS} digits. Reduce the column's scale, or choose shorter windows"
        )
    return total if n else None


def _decimal_mean(partial: DecimalSum) -> Decimal | None:
    return _RESULT.divide(partial[1], Decimal(partial[0])) if partial[0] else None


def _lift_float(args: Args, at: Position) -> FloatSum:
    return _NO_FLOATS if args[0] is None else (1, *to_sum(float(args[0])))


def _add_floats(a: FloatSum, b: FloatSum) -> FloatSum:
    if not a[0] or not b[0]:
        return a if a[0] else b
    return a[0] + b[0], *add_sums(a[1:], b[1:])


def _float_sum(partial: FloatSum) -> float | None:
    return sum_value(partial[1:]) if partial[0] else None


def _float_mean(partial: FloatSum) -> float | None:
    return sum_over(partial[1:], partial[0]) if partial[0] else None


def _summing(name: str, type_: str, lower: Mapping[str, Callable[[Any], Any]], result: Mapping[str, str]) -> Aggregate[Any]:
    if type_ == "int64":
        return Aggregate(
            name,
            kind="sum_int64",
            fields=(Field("n", "int64"), Field("total", "int128")),
            identity=_NO_INTS,
            lift=_lift_int,
            combine=_add_ints,
            lower=lower["int64"],
            deduct=_subtract_ints,
            commutative=True,
            result=result["int64"],
        )
    if type_ == "decimal":
        return Aggregate(
            name,
            kind="sum_decimal",
            fields=(Field("n", "int64"), Field("total", "decimal")),
            identity=_NO_DECIMALS,
            lift=_lift_decimal,
            combine=_add_decimals,
            lower=lower["decimal"],
            deduct=_subtract_decimals,
            commutative=True,
            result=result["decimal"],
        )
    return Aggregate(
        name,
        kind="sum_float64",
        fields=(Field("n", "int64"), *_FLOAT_SUM_FIELDS),
        identity=_NO_FLOATS,
        lift=_lift_float,
        combine=_add_floats,
        lower=lower["float64"],
        commutative=True,
        exact=False,
        result=result["float64"],
    )


def build_sum(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Any]:
    """Sum: exact for whole numbers (error beyond 64 bits) and decimals; for floats within 2**-53 of itself; O(1)."""
    require_number(spec, types)
    lower: dict[str, Callable[[Any], Any]] = {"int64": _int_sum, "decimal": _decimal_sum, "float64": _float_sum}
    return _summing("sum", types[0], lower, {"int64": "int64", "decimal": "decimal", "float64": "float64"})


def build_mean(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Any]:
    """Arithmetic mean, from the partial that ``sum`` has; finite even where the sum of floats is not; O(1)."""
    require_number(spec, types)
    lower: dict[str, Callable[[Any], Any]] = {"int64": _int_mean, "decimal": _decimal_mean, "float64": _float_mean}
    return _summing("mean", types[0], lower, {"int64": "float64", "decimal": "decimal", "float64": "float64"})


def _lift_weighted(args: Args, at: Position) -> Weighted:
    value, weight = args
    if value is None or weight is None:
        return _NO_WEIGHTS
    return 1, *to_sum(float(value) * float(weight)), *to_sum(float(weight))


def _add_weighted(a: Weighted, b: Weighted) -> Weighted:
    if not a[0] or not b[0]:
        return a if a[0] else b
    return a[0] + b[0], *add_sums(a[1:4], b[1:4]), *add_sums(a[4:], b[4:])


def _weighted_mean(partial: Weighted) -> float | None:
    weight = sum_value(partial[4:])
    return sum_over(partial[1:4], weight) if weight != 0.0 else None


def _weighted(name: str, kind: str) -> Aggregate[Weighted]:
    weight_fields = tuple(Field(f"weight_{name}", type_) for name, type_ in _FLOAT_SUM_FIELDS)
    return Aggregate(
        name,
        kind=kind,
        fields=(Field("n", "int64"), *_FLOAT_SUM_FIELDS, *weight_fields),
        identity=_NO_WEIGHTS,
        lift=_lift_weighted,
        combine=_add_weighted,
        lower=_weighted_mean,
        commutative=True,
        exact=False,
    )


def build_weighted_mean(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Weighted]:
    """``[value, weight]``: sum of weight * value over sum of weight; null where the weights sum to zero; O(1)."""
    require_number(spec, types)
    return _weighted("weighted_mean", "weighted")


def build_time_weighted_mean(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Weighted]:
    """Mean over time: lifted from ``(value, length)``, the length being the event's interval clipped to the slice; O(1)."""
    require_number(spec, types)
    return _weighted("time_weighted_mean", "time_weighted")


def _lift_factor(args: Args, at: Position) -> Scaled:
    if args[0] is None:
        return _NO_FACTORS
    value = float(args[0])
    return (1, *UNIT_PRODUCT, 1) if value == 0.0 else (1, *to_product(value), 0)


def _multiply(a: Scaled, b: Scaled) -> Scaled:
    if not a[0] or not b[0]:
        return a if a[0] else b
    return a[0] + b[0], *multiply(a[1:4], b[1:4]), a[4] + b[4]


def _product(partial: Scaled) -> float | None:
    n, high, low, exponent, zeros = partial
    if not n:
        return None
    if zeros:
        return 0.0 if math.isfinite(high) else math.nan
    return product_value((high, low, exponent))


def _geometric_mean(partial: Scaled) -> float | None:
    n, high, low, exponent, zeros = partial
    if not n:
        return None
    if zeros:
        return 0.0 if math.isfinite(high) else math.nan
    return product_root((high, low, exponent), n) if high > 0.0 else math.nan


def _scaled(name: str, kind: str, lift: Callable[[Args, Position], Scaled], lower: Callable[[Scaled], float | None]) -> Aggregate[Scaled]:
    return Aggregate(
        name,
        kind=kind,
        fields=(
            Field("n", "int64"),
            Field("high", "float64"),
            Field("low", "float64"),
            Field("exponent", "int64"),
            Field("zeros", "int64"),
        ),
        identity=_NO_FACTORS,
        lift=lift,
        combine=_multiply,
        lower=lower,
        commutative=True,
        exact=False,
    )


def build_product(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Scaled]:
    """Product as float64, as Spark's is, whatever the column's type; partial results never overflow; O(1)."""
    require_number(spec, types)
    return _scaled("product", "product", _lift_factor, _product)


def _lift_magnitude(args: Args, at: Position) -> Scaled:
    # A negative factor makes the mean undefined for good; as NaN it stays so for as long as it is in the window.
    value = args[0]
    return _lift_factor((math.nan if value is not None and value < 0 else value,), at)


def build_geometric_mean(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Scaled]:
    """n-th root of the product; zero if a value is zero, NaN if one is negative; O(1)."""
    require_number(spec, types)
    return _scaled("geometric_mean", "magnitude", _lift_magnitude, _geometric_mean)
