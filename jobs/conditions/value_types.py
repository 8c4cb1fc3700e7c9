"""Spark's types in Arrow, and the type that its ANSI mode gives operands of different types."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import pyarrow as pa
from pyarrow import types as is_

NULL, BOOL, TEXT, BINARY, DATE = pa.null(), pa.bool_(), pa.string(), pa.binary(), pa.date32()
BYTE, SHORT, INT, LONG, FLOAT, DOUBLE = pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()
#: An instant; a time without a zone, which is one of UTC; an interval of days and time; one of months.
INSTANT, LOCAL_TIME = pa.timestamp("us", "UTC"), pa.timestamp("us")
INTERVAL, MONTHS = pa.duration("us"), pa.month_day_nano_interval()
#: Numbers from the narrowest to the widest, and the digits of the decimal that holds all integers of a type.
_WIDTHS = (BYTE, SHORT, INT, LONG, FLOAT, DOUBLE)
_DIGITS = {BYTE: 3, SHORT: 5, INT: 10, LONG: 20}
#: Digits of Spark's greatest decimal, and digits behind the point that a result keeps at least.
MAX_DIGITS, _LEAST_SCALE = 38, 6
_NAMES = {
    NULL: "void", BOOL: "boolean", TEXT: "string", BYTE: "tinyint", SHORT: "smallint", INT: "int", LONG: "bigint", FLOAT: "float",
    DOUBLE: "double", DATE: "date", INSTANT: "timestamp", LOCAL_TIME: "timestamp_ntz", INTERVAL: "interval day to second",
    MONTHS: "interval year to month", BINARY: "binary",
}  # fmt: skip


def name_of(kind: pa.DataType) -> str:
    """Spark's name of a type.

    >>> name_of(pa.list_(pa.decimal128(10, 2)))
    'array<decimal(10,2)>'
    """
    if is_.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if is_.is_map(kind):
        return f"map<{name_of(kind.key_type)},{name_of(kind.item_type)}>"
    if is_.is_list(kind):
        return f"array<{name_of(kind.value_type)}>"
    if is_.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{name_of(field.type)}' for field in kind)}>"
    return _NAMES.get(kind, str(kind))


def is_whole(kind: pa.DataType) -> bool:
    """Whether ``kind`` is one of Spark's integers."""
    return kind in _DIGITS


def is_number(kind: pa.DataType) -> bool:
    """Whether ``kind`` is one of Spark's numbers."""
    return kind in _WIDTHS or is_.is_decimal(kind)


def is_time(kind: pa.DataType) -> bool:
    """Whether ``kind`` is a date, an instant or a time without a zone."""
    return kind in (DATE, INSTANT, LOCAL_TIME)


def decimal_of(kind: pa.DataType) -> pa.DataType:
    """The decimal that holds all values of ``kind``, an integer or a decimal."""
    return pa.decimal128(_DIGITS[kind], 0) if kind in _DIGITS else kind


def adjusted(digits: int, scale: int) -> pa.DataType:
    """The type of a decimal result that needs these digits: beyond 38 in all it loses some behind the point, down to six."""
    if digits > MAX_DIGITS:
        scale = max(MAX_DIGITS - (digits - scale), min(scale, _LEAST_SCALE))
    return pa.decimal128(min(digits, MAX_DIGITS), scale)


def _wider_decimal(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    scale = max(one.scale, other.scale)
    digits = max(one.precision - one.scale, other.precision - other.scale) + scale
    return pa.decimal128(min(digits, MAX_DIGITS), max(0, scale - max(0, digits - MAX_DIGITS)))


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type of two of which none is a text or null, and that differ."""
    if is_number(one) and is_number(other):
        if one in _WIDTHS and other in _WIDTHS:
            widest = max(one, other, key=_WIDTHS.index)
            # Single precision does not hold all integers.
            return DOUBLE if widest == FLOAT else widest
        if one in (FLOAT, DOUBLE) or other in (FLOAT, DOUBLE):
            return DOUBLE
        return _wider_decimal(decimal_of(one), decimal_of(other))
    if is_time(one) and is_time(other):
        return INSTANT if INSTANT in (one, other) else LOCAL_TIME
    return None


def common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type to which Spark casts values of two types that are compared or of which one is chosen; null if it refuses them."""
    if other in (one, NULL):
        return one
    if one == NULL:
        return other
    if TEXT not in (one, other):
        return _wider(one, other)
    typed = other if one == TEXT else one
    if is_whole(typed):
        return LONG
    if is_number(typed):
        return DOUBLE
    return typed if typed in (BOOL, BINARY) or is_time(typed) else None


def common_of(kinds: Iterable[pa.DataType]) -> pa.DataType | None:
    """:func:`common` of any number of types."""
    return reduce(lambda one, other: None if one is None else common(one, other), kinds, NULL)
