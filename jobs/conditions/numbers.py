"""Functions of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.conditions import value_types
from windowmill.jobs.conditions.arithmetic import absolute, arithmetic, compared, negative
from windowmill.jobs.conditions.casts import EXACT, cast, cast_to_common, fitting, holds
from windowmill.jobs.conditions.evaluated import (
    Computed,
    Value,
    applied,
    array_of,
    by_value,
    chosen,
    either,
    mask_of,
    numbers_of,
    outside,
    without,
)
from windowmill.jobs.conditions.functions import Call, calls, function
from windowmill.jobs.conditions.value_types import BOOL, DOUBLE, FLOAT, INT, LONG, NULL, TEXT, is_number, is_time, is_whole

#: Casts by their types' names.
_CASTS = {
    "tinyint": value_types.BYTE,
    "smallint": value_types.SHORT,
    "int": INT,
    "bigint": LONG,
    "float": FLOAT,
    "double": DOUBLE,
    "boolean": BOOL,
    "string": TEXT,
    "date": value_types.DATE,
    "timestamp": value_types.INSTANT,
    "decimal": pa.decimal128(10, 0),
}
#: Doubles that hold every whole number up to them.
_EXACT = 2.0**52


@calls(*_CASTS)
def _named_cast(call: Call) -> Value:
    [value] = call.values(1, 1)
    return cast(value, _CASTS[call.name])


@calls("abs")
def _abs(call: Call) -> Value:
    return absolute(*call.values(1, 1))


@calls("negative")
def _negative(call: Call) -> Value:
    return negative(*call.values(1, 1))


@calls("positive")
def _positive(call: Call) -> Value:
    [value] = call.values(1, 1)
    return cast(value, DOUBLE) if value.kind in (TEXT, NULL) else value


@calls("mod")
def _mod(call: Call) -> Value:
    return arithmetic("%", *call.values(2, 2))


@calls("pmod")
def _pmod(call: Call) -> Value:
    return arithmetic("pmod", *call.values(2, 2))


@calls("div")
def _div(call: Call) -> Value:
    return arithmetic("div", *call.values(2, 2))


_TRIED = {"try_add": "+", "try_subtract": "-", "try_multiply": "*", "try_divide": "/", "try_mod": "%"}


@calls(*_TRIED)
def _tried(call: Call) -> Value:
    left, right = call.values(2, 2)
    if not (is_number(left.kind) and is_number(right.kind)):
        raise call.refused(left, right)
    if left.failed is not None or right.failed is not None:
        raise outside(f"{call.name}() of an operand that may fail, whose overflow Spark overlooks there")
    return Value(arithmetic(_TRIED[call.name], left, right).array)


def _double(value: Value) -> Value:
    if not (is_number(value.kind) or value.kind in (TEXT, NULL)):
        raise outside("a number", value.kind)
    return cast(value, DOUBLE)


@function("sqrt", takes=[_double])
def _sqrt(numbers: pa.Array) -> Computed:
    return pc.sqrt(numbers)


@function("sign", "signum", takes=[_double])
def _sign(numbers: pa.Array) -> Computed:
    given = numbers_of(numbers)
    return array_of(np.where(given == 0, given, np.sign(given)), DOUBLE)


@calls("isnan")
def _is_nan(call: Call) -> Value:
    [value] = call.values(1, 1)
    value = value if value.kind == FLOAT else _double(value)
    return Value(without(pc.fill_null(pc.is_nan(value.array), False), value.failed), value.failed)


@calls("nanvl")
def _nan_else(call: Call) -> Value:
    value, other = cast_to_common(*call.values(2, 2))
    if value.kind not in (FLOAT, DOUBLE):
        raise call.refused(value, other)
    nan = holds(pc.is_nan(value.array))
    return chosen([nan, ~nan], [other, value], value.kind)


@calls("power", "pow")
def _power(call: Call) -> Value:
    base, exponent = call.values(2, 2)
    powers: dict[object, Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]] = {
        0: np.ones_like,
        1: lambda numbers: numbers,
        2: lambda numbers: numbers * numbers,
        -1: lambda numbers: 1.0 / numbers,
        Decimal("0.5"): lambda numbers: np.where(np.isneginf(numbers), np.inf, np.sqrt(numbers + 0.0)),
    }
    own = powers.get(exponent.literal)
    if own is None:
        raise outside("power() with an exponent other than 0, 1, 2, -1 and 0.5", instead="a product")
    with np.errstate(all="ignore"):
        return applied(lambda numbers, _: array_of(own(numbers_of(numbers)), DOUBLE), [_double(base), _double(exponent)])


@calls("ceil", "ceiling", "floor")
def _ceil(call: Call) -> Value:
    [value] = call.values(1, 1)
    up = call.name != "floor"
    if pa.types.is_decimal(value.kind):
        kind = pa.decimal128(min(value.kind.precision - value.kind.scale + 1, value_types.MAX_DIGITS), 0)
        mode = ROUND_CEILING if up else ROUND_FLOOR
        return applied(lambda array: by_value(array, lambda each: each.to_integral_value(mode), kind), [value])
    if value.kind == LONG:
        return Value(value.array, value.failed)
    return applied(lambda array: _saturated((np.ceil if up else np.floor)(numbers_of(array))), [_double(value)])


def _saturated(numbers: npt.NDArray[np.float64]) -> pa.Array:
    """Doubles as Java casts them to integers: NaN to 0, and what is beyond 64 bits to the nearest."""
    beyond = ~(np.abs(numbers) < 2.0**63)
    found = np.where(beyond, 0.0, numbers).astype(np.int64)
    edge = np.where(numbers > 0, np.int64(2**63 - 1), np.where(np.isnan(numbers), np.int64(0), np.int64(-(2**63))))
    return array_of(np.where(beyond, edge, found), LONG)


@calls("round", "bround")
def _round(call: Call) -> Value:
    value, *places = call.values(1, 2)
    scale = places[0].literal if places else 0
    if not isinstance(scale, int) or not (is_number(value.kind) or value.kind in (TEXT, NULL)):
        raise outside(f"{call.name}() to a changing number of digits", value.kind)
    value = _double(value) if value.kind in (TEXT, NULL) else value
    mode = ROUND_HALF_UP if call.name == "round" else ROUND_HALF_EVEN
    if is_whole(value.kind):
        return Value(value.array, value.failed) if scale >= 0 else applied(lambda array: _rounded_wholes(array, scale, mode), [value])
    if pa.types.is_decimal(value.kind):
        kept = max(0, min(value.kind.scale, scale))
        digits = max(value.kind.precision - value.kind.scale + 1 + kept, 1 - scale)
        kind = pa.decimal128(min(digits, value_types.MAX_DIGITS), kept)
        places_ = min(kept, scale)
        return applied(lambda array: by_value(array, lambda each: fitting(_rounded(each, places_, mode), kind), kind), [value])
    return applied(lambda array: _rounded_floats(array, scale, mode), [value])


def _rounded(value: Decimal, scale: int, mode: str) -> Decimal:
    return value.quantize(Decimal(1).scaleb(-scale), mode, EXACT) if scale < -value.as_tuple().exponent else value  # type: ignore[operator]


def _rounded_wholes(array: pa.Array, scale: int, mode: str) -> Computed:
    bound = 1 << array.type.bit_width - 1

    def rounded(value: int) -> int:
        found = int(_rounded(Decimal(value), scale, mode))
        if not -bound <= found < bound:
            raise ValueError(value)
        return found

    return by_value(array, rounded, array.type)


def _rounded_floats(array: pa.Array, scale: int, mode: str) -> Computed:
    numbers = numbers_of(array).astype(np.float64)
    ten = 10.0 ** min(scale, 22)
    with np.errstate(all="ignore"):
        scaled = np.abs(numbers) * ten
        rest = scaled - np.floor(scaled)
        # Where it is plain to which side a number goes, and both the digits and the power of ten are exact.
        plain = (scaled < _EXACT / 1_000) & (np.abs(rest - 0.5) > 1e-6) & (0 <= scale <= 22) & (array.type == DOUBLE)
        found = np.copysign(np.floor(scaled + 0.5) / ten, numbers)
    found = np.where(found == 0, 0.0, found)
    for place in np.flatnonzero(~plain & np.isfinite(numbers)).tolist():
        found[place] = float(_rounded(Decimal(repr(float(numbers[place]))), scale, mode))
    found = np.where(np.isfinite(numbers), found, numbers)
    return array_of(np.where((found == 0) & np.isfinite(numbers), 0.0, found).astype(array.type.to_pandas_dtype()), array.type)


_SHIFTS: dict[str, Callable[..., npt.NDArray[Any]]] = {"shiftleft": np.left_shift, "shiftright": np.right_shift}


@calls("shiftleft", "shiftright", "shiftrightunsigned")
def _shifted(call: Call) -> Value:
    value, by = call.values(2, 2)
    if not is_whole(value.kind) or not is_whole(by.kind) or by.kind == LONG:
        raise call.refused(value, by)
    value = value if value.kind == LONG else cast(value, INT)

    def shifted(array: pa.Array, places: pa.Array) -> Computed:
        numbers, bits = numbers_of(array), numbers_of(places) & (array.type.bit_width - 1)
        if call.name == "shiftrightunsigned":
            unsigned = numbers.view(f"u{numbers.dtype.itemsize}")
            return array_of((unsigned >> bits.astype(unsigned.dtype)).view(numbers.dtype), array.type)
        return array_of(_SHIFTS[call.name](numbers, bits.astype(numbers.dtype)), array.type)

    return applied(shifted, [value, by])


@calls("greatest", "least")
def _extreme(call: Call) -> Value:
    given = call.values(2)
    if len({value.kind for value in given} - {NULL}) > 1 and TEXT in {value.kind for value in given}:
        raise call.refused(*given)
    values = cast_to_common(*given, what=call.name)
    kind = values[0].kind
    if not (is_number(kind) or is_time(kind) or kind in (TEXT, BOOL)):
        raise call.refused(*values)
    return extreme(call.name, values)


def extreme(name: str, values: Sequence[Value]) -> Value:
    """The ``greatest`` or ``least`` of values of one type, without nulls."""
    sign = ">" if name == "greatest" else "<"

    def better(one: Value, other: Value) -> Value:
        taken = holds(compared(sign, other, one).array) | (mask_of(one.array.is_null()) & other.valid)
        return Value(pc.if_else(pa.array(taken), other.array, one.array))

    found = reduce(better, [Value(value.array) for value in values])
    failed = either(*(value.failed for value in values))
    return Value(without(found.array, failed), failed)
