"""Comparisons, choices among values, arithmetic and functions of numbers as Spark's ANSI mode has them.

An overflow and a division by zero fail. A choice evaluates no more of its values than it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from functools import partial, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.conditions import evaluated
from windowmill.jobs.conditions.casts import EXACT, cast, cast_to_common, fitting, holds
from windowmill.jobs.conditions.evaluated import (
    BOOL,
    DOUBLE,
    FLOAT,
    INT,
    INTERVAL,
    LONG,
    NULL,
    TEXT,
    Call,
    Computed,
    Mask,
    OutsideError,
    Value,
    applied,
    array_of,
    at,
    by_rows,
    by_value,
    calls,
    chosen,
    decimal_of,
    either,
    function,
    is_number,
    is_time,
    is_whole,
    mask_of,
    name_of,
    numbers_of,
    of_values,
    outside,
    without,
)

_COMPARED: Mapping[str, Callable[[pa.Array, pa.Array], pa.Array]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
#: Digits behind the point to which Spark divides decimals before it rounds to the result's type.
_DIVIDED_SCALE = 38
#: Digits of Arrow's widest decimals.
_MOST_DIGITS = 76
_NEGATED = Context(prec=34, rounding=ROUND_HALF_EVEN)


def compared(sign: str, left: Value, right: Value) -> Value:
    """A comparison by ``sign``, one of Spark's, but for ``<=>``."""
    for value, opposite in ((left, right), (right, left)):
        if is_whole(value.kind) and isinstance(opposite.literal, Decimal) and abs(opposite.literal) >= 1 << 63 and sign not in ("=", "<>"):
            # Spark says true or false even where the integer is null.
            raise outside(f"a comparison of {name_of(value.kind)} with {opposite.literal}")
    return applied(lambda one, other: _compare(sign, one, other), _operands(left, right))


def same(left: Value, right: Value) -> Value:
    """``left <=> right``: null is the same as null."""
    left, right = _operands(left, right)
    equal = pc.fill_null(_compare("=", left.array, right.array), False)
    both = pc.and_(pc.is_null(left.array), pc.is_null(right.array))
    failed = either(left.failed, right.failed)
    return Value(without(pc.or_(equal, both), failed), failed)


def _operands(left: Value, right: Value) -> list[Value]:
    left, right = cast_to_common(*_literals_as_decimals(left, right))
    if not (is_number(left.kind) or is_time(left.kind) or left.kind in (TEXT, BOOL, INTERVAL, evaluated.BINARY, NULL)):
        raise outside("a comparison", left.kind)
    return [left, right]


def _literals_as_decimals(left: Value, right: Value) -> tuple[Value, Value]:
    """A whole number that is written out takes no more digits than it has where the other operand is a decimal."""
    one, other = (
        cast(value, pa.decimal128(len(str(abs(value.literal))), 0))
        if is_whole(value.kind) and isinstance(value.literal, int) and pa.types.is_decimal(opposite.kind)
        else value
        for value, opposite in ((left, right), (right, left))
    )
    return one, other


def _compare(sign: str, one: pa.Array, other: pa.Array) -> pa.Array:
    if one.type == NULL:
        return pa.nulls(len(one), BOOL)
    if one.type == BOOL:
        one, other = one.cast(pa.int8()), other.cast(pa.int8())
    elif one.type == INTERVAL:
        one, other = one.view(pa.int64()), other.view(pa.int64())
    found = _COMPARED[sign](one, other)
    if one.type in (FLOAT, DOUBLE):
        return _with_nan(sign, found, one, other)
    return found


def _with_nan(sign: str, found: pa.Array, one: pa.Array, other: pa.Array) -> pa.Array:
    """NaN is equal to itself and greater than all other numbers."""
    left, right = np.isnan(numbers_of(one)), np.isnan(numbers_of(other))
    if not left.any() and not right.any():
        return found
    equal, less = left & right, ~left & right
    holds = {"=": equal, "<>": ~equal, "<": less, "<=": less | equal, ">": ~less & ~equal, ">=": ~less}[sign]
    return pc.if_else(pa.array((left | right) & mask_of(found.is_valid())), pa.array(holds), found)


def arithmetic(sign: str, left: Value, right: Value) -> Value:
    """``left sign right`` for ``+``, ``-``, ``*``, ``/``, ``%``, ``div`` and ``pmod``."""
    for value in (left, right):
        if not (is_number(value.kind) or value.kind in (TEXT, NULL)):
            raise outside(f"arithmetic ({sign})", left.kind, right.kind)
    if TEXT in (left.kind, right.kind):
        opposite = right.kind if left.kind == TEXT else left.kind
        if opposite in (TEXT, NULL):
            raise outside(f"arithmetic ({sign})", left.kind, right.kind, instead="a cast to a number")
        kind = LONG if is_whole(opposite) else DOUBLE
        left, right = cast(left, kind), cast(right, kind)
    left, right = _literals_as_decimals(left, right)
    if left.kind == right.kind == NULL:
        left = right = cast(left, DOUBLE)
    # Spark evaluates the divisor first: where it is null, nothing else is evaluated.
    order = None if sign in ("+", "-", "*") else (1, 0)
    if sign != "pmod" and any(pa.types.is_decimal(value.kind) for value in (left, right)) and not {FLOAT, DOUBLE} & {left.kind, right.kind}:
        return _of_decimals(sign, left, right, order)
    if sign == "/":
        return applied(_divided, [cast(left, DOUBLE), cast(right, DOUBLE)], order)
    kind = evaluated.common(left.kind, right.kind)
    if kind is None or (sign in ("div", "pmod") and not is_whole(kind)):
        raise outside(f"arithmetic ({sign})", left.kind, right.kind)
    kind = LONG if sign == "div" else kind
    function = _FLOATS[sign] if kind in (FLOAT, DOUBLE) else _WHOLE[sign]
    return applied(function, [cast(left, kind), cast(right, kind)], order)


def _number(value: Value, what: str) -> Value:
    """An operand of ``what`` that is a number, or that Spark casts to one."""
    value = cast(value, DOUBLE) if value.kind in (TEXT, NULL) else value
    if not is_number(value.kind):
        raise outside(what, value.kind)
    return value


def _double(value: Value) -> Value:
    return cast(_number(value, "a number"), DOUBLE)


def negative(value: Value) -> Value:
    """``- value``."""
    if isinstance(value.literal, int | float | Decimal) and not isinstance(value.literal, bool):
        return Value(pc.negate(value.array), value.failed, -value.literal)
    if value.kind == INTERVAL:
        return applied(lambda array: array_of(-numbers_of(array), INTERVAL), [value])
    return applied(_negated, [_number(value, "-")])


def absolute(value: Value) -> Value:
    """``abs(value)``."""
    value = _number(value, "abs")
    if pa.types.is_decimal(value.kind):
        return applied(lambda array: by_value(array, lambda each: _turned(each, array.type) if each < 0 else each, array.type), [value])
    if not is_whole(value.kind):
        return applied(pc.abs, [value])
    least = -(1 << value.kind.bit_width - 1)
    return applied(lambda array: (pc.abs(array), numbers_of(array) == least), [value])


def _turned(value: Decimal, kind: pa.DataType) -> Decimal:
    """A decimal with the other sign; Spark keeps 34 of its digits."""
    return fitting(_NEGATED.minus(value), kind)


def _negated(array: pa.Array) -> Computed:
    if pa.types.is_decimal(array.type):
        return by_value(array, lambda each: _turned(each, array.type), array.type)
    if not is_whole(array.type):
        return pc.negate(array), None
    return pc.negate(array), numbers_of(array) == -(1 << array.type.bit_width - 1)


def _ints(one: pa.Array, other: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    return numbers_of(one).astype(np.int64, copy=False), numbers_of(other).astype(np.int64, copy=False)


def _in_width(wide: npt.NDArray[Any], failed: Mask, kind: pa.DataType) -> Computed:
    if kind.bit_width < LONG.bit_width:
        bound = 1 << kind.bit_width - 1
        failed = failed | (wide < -bound) | (wide >= bound)
    return array_of(np.where(failed, 0, wide) if failed.any() else wide, kind), failed


def exactly(operation: Callable[..., npt.NDArray[Any]], one: pa.Array, other: pa.Array, kind: pa.DataType | None = None) -> Computed:
    """A sum, difference or product of whole numbers, or of times, in ``kind`` or their own type; where it is beyond that, it fails."""
    a, b = _ints(one, other)
    with np.errstate(over="ignore"):
        found = operation(a, b)
    first, second = (max(-int(each.min()), int(each.max())) if len(each) else 0 for each in (a, b))
    if (first * second if operation is np.multiply else first + second) < 1 << 62:
        return _in_width(found, np.zeros(len(found), np.bool_), kind or one.type)
    # What overflows is off by 2^64 at least, and doubles are off by a 2^53rd.
    return _in_width(found, np.abs(operation(a.astype(np.float64), b.astype(np.float64)) - found) > 2.0**62, kind or one.type)


def _quotient(one: pa.Array, other: pa.Array) -> Computed:
    a, b = _ints(one, other)
    failed = (b == 0) | ((a == -(2**63)) & (b == -1))
    safe = np.where(failed, 1, b)
    floor = np.floor_divide(a, safe)
    return _in_width(floor + ((floor < 0) & (floor * safe != a)), failed, one.type)


def _rest(one: pa.Array, other: pa.Array) -> Computed:
    a, b = _ints(one, other)
    return _in_width(np.fmod(a, np.where((b == 0) | (b == -1), 1, b)), b == 0, one.type)


def _positive_rest(one: pa.Array, other: pa.Array) -> Computed:
    a, b = _ints(one, other)
    safe = np.where((b == 0) | (b == -1), 1, b)
    rest = np.fmod(a, safe)
    with np.errstate(over="ignore"):
        # Java adds bytes and shorts as 32 bits, and overlooks an overflow.
        turned = (rest + safe).astype(np.int64 if one.type == LONG else np.int32).astype(np.int64)
    return _in_width(np.where(rest < 0, np.fmod(turned, safe), rest), b == 0, one.type)


def _float_rest(one: pa.Array, other: pa.Array) -> Computed:
    a, b = numbers_of(one), numbers_of(other)
    with np.errstate(invalid="ignore"):
        return array_of(np.fmod(a, b), one.type), b == 0


def _divided(one: pa.Array, other: pa.Array) -> Computed:
    a, b = numbers_of(one), numbers_of(other)
    with np.errstate(all="ignore"):
        return array_of(a / b, DOUBLE), b == 0


_WHOLE: Mapping[str, Callable[..., Computed]] = {
    "+": partial(exactly, np.add),
    "-": partial(exactly, np.subtract),
    "*": partial(exactly, np.multiply),
    "%": _rest,
    "div": _quotient,
    "pmod": _positive_rest,
}
_FLOATS: Mapping[str, Callable[..., Computed]] = {
    "+": pc.add,
    "-": pc.subtract,
    "*": pc.multiply,
    "%": _float_rest,
}


def _result_of_decimals(sign: str, one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type of an operation of two decimals."""
    scale, left, right = max(one.scale, other.scale), one.precision - one.scale, other.precision - other.scale
    if sign in ("+", "-"):
        return evaluated.adjusted(max(left, right) + scale + 1, scale)
    if sign == "*":
        return evaluated.adjusted(one.precision + other.precision + 1, one.scale + other.scale)
    if sign == "/":
        scale = max(6, one.scale + other.precision + 1)
        return evaluated.adjusted(left + other.scale + scale, scale)
    return evaluated.adjusted(min(left, right) + scale, scale)


def _of_decimals(sign: str, left: Value, right: Value, order: tuple[int, int] | None) -> Value:
    one, other = (NULL if value.kind == NULL else decimal_of(value.kind) for value in (left, right))
    one, other = (other if one == NULL else one), (one if other == NULL else other)
    left, right = cast(left, one), cast(right, other)
    if sign == "div":
        return applied(lambda a, b: by_rows(_decimal_whole_quotient, LONG, a, b), [left, right], order)
    kind = _result_of_decimals(sign, one, other)
    plain = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}.get(sign)
    scale = max(one.scale, other.scale)
    needed = one.precision + other.precision if sign == "*" else max(one.precision - one.scale, other.precision - other.scale) + scale
    if plain is not None and needed < evaluated.MAX_DIGITS:
        # Arrow takes the operands to one scale first, for which 38 digits may be too few.
        return applied(lambda a, b: plain(_wide(a), _wide(b)).cast(kind), [left, right], order)
    before_point = one.precision - one.scale + other.scale
    if sign == "/" and before_point <= kind.precision - kind.scale and before_point + _quotient_scale(one, other) <= _MOST_DIGITS:
        return applied(partial(_decimal_quotients, kind), [left, right], order)
    function = _DECIMALS[sign]
    return applied(lambda a, b: by_rows(lambda one, other: fitting(function(one, other), kind), kind, a, b), [left, right], order)


def _wide(array: pa.Array) -> pa.Array:
    return array.cast(pa.decimal256(array.type.precision, array.type.scale))


def _quotient_scale(one: pa.DataType, other: pa.DataType) -> int:
    """Digits behind the point behind which Arrow cuts a quotient off: at least one more than are rounded, which decides how."""
    scale: int = max(one.scale + other.precision - other.scale, _DIVIDED_SCALE)
    return scale + 1


def _decimal_quotients(kind: pa.DataType, a: pa.Array, b: pa.Array) -> Computed:
    """Quotients of decimals, of which no digit before the point is lost in ``kind``."""
    one, other = a.type, b.type
    scale = _quotient_scale(one, other) - 1 - other.precision + other.scale
    zero = pc.equal(b, pa.scalar(Decimal(0), other))
    divisor = pc.if_else(zero, pa.scalar(Decimal(1).scaleb(-other.scale), other), b)
    found = pc.divide(a.cast(pa.decimal256(one.precision - one.scale + scale, scale)), _wide(divisor))
    for digits in (_DIVIDED_SCALE, kind.scale):
        found = pc.round(found, digits, "half_towards_infinity")
    return found.cast(kind), mask_of(zero.fill_null(False))


def _decimal_quotient(a: Decimal, b: Decimal) -> Decimal:
    if not b:
        raise ValueError(b)
    return EXACT.divide(a, b).quantize(Decimal(1).scaleb(-_DIVIDED_SCALE), ROUND_HALF_UP, EXACT)


def _decimal_whole_quotient(a: Decimal, b: Decimal) -> int:
    whole = int(EXACT.divide_int(a, b)) if b else 10**evaluated.MAX_DIGITS
    if abs(whole) >= 10**evaluated.MAX_DIGITS:
        raise ValueError(b)
    # Spark keeps the low 64 bits of a quotient of decimals.
    return (whole + (1 << 63)) % (1 << 64) - (1 << 63)


def _decimal_rest(a: Decimal, b: Decimal) -> Decimal:
    if not b:
        raise ValueError(b)
    return EXACT.subtract(a, EXACT.multiply(EXACT.divide(a, b).to_integral_value(ROUND_DOWN), b))


_DECIMALS: Mapping[str, Callable[[Decimal, Decimal], Decimal]] = {
    "+": EXACT.add,
    "-": EXACT.subtract,
    "*": EXACT.multiply,
    "/": _decimal_quotient,
    "%": _decimal_rest,
}


#: Types by the names of their casts.
CASTS = {
    "tinyint": evaluated.BYTE,
    "smallint": evaluated.SHORT,
    "int": INT,
    "bigint": LONG,
    "float": FLOAT,
    "double": DOUBLE,
    "boolean": BOOL,
    "string": TEXT,
    "date": evaluated.DATE,
    "timestamp": evaluated.INSTANT,
    "decimal": pa.decimal128(10, 0),
}
#: Doubles that hold every whole number up to them.
_EXACT = 2.0**52


@calls(*CASTS)
def _named_cast(call: Call) -> Value:
    [value] = call.values(1, 1)
    return cast(value, CASTS[call.name])


of_values("abs", 1, absolute)
of_values("negative", 1, negative)
of_values("mod", 2, partial(arithmetic, "%"))
of_values("pmod", 2, partial(arithmetic, "pmod"))
of_values("div", 2, partial(arithmetic, "div"))
_TRIED = {"try_add": "+", "try_subtract": "-", "try_multiply": "*", "try_divide": "/", "try_mod": "%"}


@calls(*_TRIED)
def _tried(call: Call) -> Value:
    left, right = call.values(2, 2)
    if not (is_number(left.kind) and is_number(right.kind)):
        raise call.refused(left, right)
    if left.failed is not None or right.failed is not None:
        raise outside(f"{call.name}() of an operand that may fail, whose overflow Spark overlooks there")
    return Value(arithmetic(_TRIED[call.name], left, right).array)


function("sqrt", takes=[_double])(pc.sqrt)


@function("sign", "signum", takes=[_double])
def _sign(numbers: pa.Array) -> Computed:
    given = numbers_of(numbers)
    return array_of(np.where(given == 0, given, np.sign(given)), DOUBLE)


@calls("isnan")
def _is_nan(call: Call) -> Value:
    [value] = call.values(1, 1)
    value = value if value.kind == FLOAT else _double(value)
    return Value(without(pc.fill_null(pc.is_nan(value.array), False), value.failed), value.failed)


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
        kind = pa.decimal128(min(value.kind.precision - value.kind.scale + 1, evaluated.MAX_DIGITS), 0)
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


@calls("round")
def _round(call: Call) -> Value:
    value, *places = call.values(1, 2)
    scale = places[0].literal if places else 0
    if not isinstance(scale, int) or scale < 0:
        raise outside("round() to a changing or negative number of digits")
    value = _number(value, "round()")
    if is_whole(value.kind):
        return Value(value.array, value.failed)
    if pa.types.is_decimal(value.kind):
        kept = min(value.kind.scale, scale)
        kind = pa.decimal128(min(value.kind.precision - value.kind.scale + 1 + kept, evaluated.MAX_DIGITS), kept)
        return applied(lambda array: by_value(array, lambda each: fitting(each, kind), kind), [value])
    return applied(lambda array: _rounded_floats(array, scale), [value])


def _rounded_floats(array: pa.Array, scale: int) -> Computed:
    numbers = numbers_of(array).astype(np.float64)
    ten = 10.0 ** min(scale, 22)
    with np.errstate(all="ignore"):
        scaled = np.abs(numbers) * ten
        rest = scaled - np.floor(scaled)
        # Where it is plain to which side a number goes, and both the digits and the power of ten are exact.
        plain = (scaled < _EXACT / 1_000) & (np.abs(rest - 0.5) > 1e-6) & (scale <= 22) & (array.type == DOUBLE)
        found = np.copysign(np.floor(scaled + 0.5) / ten, numbers)
    found = np.where(found == 0, 0.0, found)
    for place in np.flatnonzero(~plain & np.isfinite(numbers)).tolist():
        written = Decimal(repr(float(numbers[place])))
        digits = -int(written.as_tuple().exponent)
        found[place] = float(written.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, EXACT) if scale < digits else written)
    found = np.where(np.isfinite(numbers), found, numbers)
    return array_of(np.where((found == 0) & np.isfinite(numbers), 0.0, found).astype(array.type.to_pandas_dtype()), array.type)


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


def choice(tests: Sequence[Value], values: Sequence[Value]) -> Value:
    """The first of ``values`` whose test holds; the last, for which there is no test, where none does."""
    values = cast_to_common(*values, what="a choice")
    open_, failed = np.ones(len(values[0].array), np.bool_), None
    reached = []
    for test in tests:
        failed = either(failed, at(test.failed, open_))
        own = open_ & holds(test.array)
        reached.append(own)
        open_ = open_ & ~own if test.failed is None else open_ & ~own & ~test.failed
    found = chosen([*reached, open_], values, values[0].kind)
    return Value(found.array, either(failed, found.failed))


def is_null(value: Value) -> Value:
    """Whether a value is null; where the value fails, the result fails, too."""
    return Value(without(pc.is_null(value.array), value.failed), value.failed)


@calls("coalesce", "nvl", "ifnull")
def _coalesce(call: Call) -> Value:
    values = cast_to_common(*(call.values(1) if call.name == "coalesce" else call.values(2, 2)), what=call.name)
    open_, conditions = np.ones(call.own.n, np.bool_), []
    for value in values:
        conditions.append(open_ & (value.valid if value.failed is None else value.valid | value.failed))
        open_ = open_ & ~conditions[-1]
    return chosen(conditions, values, values[0].kind)


@calls("nullif")
def _null_if(call: Call) -> Value:
    left, right = call.values(2, 2)
    equal = compared("=", left, right)
    return choice([equal], [cast(call.own.constant(None, NULL), left.kind), left])


of_values("nvl2", 3, lambda value, given, missing: choice([is_null(value)], [missing, given]))
of_values("isnull", 1, is_null)
of_values("isnotnull", 1, lambda value: Value(without(pc.is_valid(value.array), value.failed), value.failed))
of_values("equal_null", 2, same)


@calls("if")
def _if(call: Call) -> Value:
    if len(call.nodes) != 3:
        raise OutsideError("if() of other than three arguments")
    return choice([call.own.truth(call.nodes[0])], [call.own.value(node) for node in call.nodes[1:]])
