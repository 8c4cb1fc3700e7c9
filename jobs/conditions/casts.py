"""Casts between Spark's types, as its ANSI mode makes them, and of arguments of functions: a value that the other type does not hold fails.

Every instant is of UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.conditions import evaluated
from windowmill.jobs.conditions.evaluated import (
    BINARY,
    BOOL,
    DATE,
    DOUBLE,
    FLOAT,
    INSTANT,
    INT,
    LOCAL_TIME,
    LONG,
    NULL,
    TEXT,
    Computed,
    Mask,
    NoValueError,
    Takes,
    Value,
    applied,
    array_of,
    by_value,
    is_number,
    is_time,
    is_whole,
    mask_of,
    numbers_of,
    outside,
)

_DATE_TEXT = re.compile(r"([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_CLOCK = r"([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9.].*)?)?)?"
_INSTANT_TEXT = re.compile(rf"([+-]?)([0-9]{{4,6}})(?:-([0-9]{{1,2}})(?:-([0-9]{{1,2}})(?:[ T]{_CLOCK})?)?)?", re.DOTALL)
#: A zone by its distance from UTC, with one or two digits of an hour or minute; Java takes up to 18 hours.
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{2})(?::?([0-9]{2}))?|:([0-9]))?")
_MOST_OFFSET = 18 * 3_600
_SECOND, _DAY = 1_000_000, 86_400_000_000
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - of UTC
_CYCLE_DAYS, _CYCLE_YEARS = 146_097, 400
_CYCLE_SECONDS = _CYCLE_DAYS * 86_400
#: Seconds since 1970 of the first and the last July that Python has in all zones.
_FIRST, _LAST = (round((datetime(year, 7, 1) - _EPOCH).total_seconds()) for year in (1, 9_999))  # noqa: DTZ001
#: Days from 0000-03-01 to 1970-01-01.
_MARCH_TO_EPOCH = 719_468


def days_of(year: int, month: int, day: int) -> int:
    """Days since 1970 of a date in the proleptic Gregorian calendar; raises ``ValueError`` if there is none.

    >>> days_of(1970, 1, 1), days_of(2000, 3, 1)
    (0, 11017)
    """
    return int(np.datetime64(f"{year:+05}-{month:02}-{day:02}", "D").astype(np.int64))


def day_of_text(text: str) -> int:
    """Days since 1970 of a text without spaces around it; raises ``ValueError`` for one that is no date."""
    found = _DATE_TEXT.fullmatch(text)
    if found is None:
        raise ValueError(text)
    sign, year, month, day = found.groups()
    days = days_of(int(sign + year), int(month or 1), int(day or 1))
    if not -(2**31) <= days < 2**31:
        raise ValueError(text)
    return days


def instant_of_text(text: str, *, zoned: bool) -> int:
    """Microseconds since 1970 of a text without spaces around it; raises ``ValueError`` for one that is no instant.

    A time of day is no instant: its date would be that of the clock. Without ``zoned`` a zone in the text does not count.
    """
    found = _INSTANT_TEXT.fullmatch(text)
    if found is None:
        raise ValueError(text)
    sign, year, month, day, hour, minute, second, fraction, zone = found.groups()
    days = days_of(int(sign + year), int(month or 1), int(day or 1))
    clock = [int(part or 0) for part in (hour, minute, second)]
    if clock[0] > 23 or clock[1] > 59 or clock[2] > 59:
        raise ValueError(text)
    seconds = days * 86_400 + clock[0] * 3_600 + clock[1] * 60 + clock[2]
    offset = 0 if zone is None else seconds_ahead(zone_of(zone.strip()), seconds, local=True)
    micros = (seconds - (offset if zoned else 0)) * _SECOND + int((fraction or "")[:6].ljust(6, "0"))
    if not -(2**63) <= micros < 2**63:
        raise ValueError(text)
    return micros


def zone_of(name: str) -> ZoneInfo | int:
    """A zone of Java's, or how many seconds it is ahead of UTC; raises ``ValueError`` for another text."""
    if name in ("Z", "UTC", "GMT", "UT"):
        return 0
    if found := _OFFSET.fullmatch(name):
        hours, minutes, seconds = int(found[2]), int(found[3] or found[5] or 0), int(found[4] or 0)
        offset = hours * 3_600 + minutes * 60 + seconds
        if offset > _MOST_OFFSET or minutes > 59 or seconds > 59:
            raise ValueError(name)
        return -offset if found[1] == "-" else offset
    if name not in _zones():
        raise ValueError(name)
    try:
        return ZoneInfo(name)
    except ZoneInfoNotFoundError as err:
        raise ValueError(name) from err


def seconds_ahead(zone: ZoneInfo | int, seconds: int, *, local: bool) -> int:
    """How many seconds ``zone`` is ahead of UTC at a time on its wall clock, or at one of UTC."""
    if isinstance(zone, int):
        return zone
    # Calendar and rules repeat after 400 years, of which Python knows those from 1 to 9999.
    cycles = min(0, (seconds - _FIRST) // _CYCLE_SECONDS) + max(0, -((_LAST - seconds) // _CYCLE_SECONDS))
    at = _EPOCH + timedelta(seconds=seconds - cycles * _CYCLE_SECONDS)
    ahead = (at.replace(tzinfo=zone) if local else at.replace(tzinfo=UTC).astimezone(zone)).utcoffset()
    assert ahead is not None
    return round(ahead.total_seconds())


@lru_cache(1)
def _zones() -> frozenset[str]:
    return frozenset(name for name in available_timezones() if "/" in name)


def date_of(days: int) -> tuple[int, int, int]:
    """Year, month and day of days since 1970.

    >>> date_of(-719_528), date_of(11_017)
    ((0, 1, 1), (2000, 3, 1))
    """
    cycle, of_cycle = divmod(days + _MARCH_TO_EPOCH, _CYCLE_DAYS)
    year = (of_cycle - of_cycle // 1_460 + of_cycle // 36_524 - of_cycle // 146_096) // 365
    of_year = of_cycle - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    return cycle * _CYCLE_YEARS + year + (month > 9), month + 3 if month < 10 else month - 9, day


def date_text(days: int) -> str:
    """A date as Spark writes it.

    >>> date_text(0), date_text(2_932_897)
    ('1970-01-01', '+10000-01-01')
    """
    year, month, day = date_of(days)
    sign = "-" if year < 0 else "+" if year > 9_999 else ""
    return f"{sign}{abs(year):04}-{month:02}-{day:02}"


def instant_text(micros: int) -> str:
    """An instant as Spark writes it in a session of UTC.

    >>> instant_text(0), instant_text(-500_000)
    ('1970-01-01 00:00:00', '1969-12-31 23:59:59.5')
    """
    days, of_day = divmod(micros, _DAY)
    seconds, fraction = divmod(of_day, _SECOND)
    clock = f"{seconds // 3_600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{date_text(days)} {clock}" + (f".{fraction:06}".rstrip("0") if fraction else "")


#: What Spark trims of a text before it reads a value: spaces and control characters.
_TRIMMED = "".join(map(chr, [*range(33), 127]))
_WHOLE = re.compile(r"[+-]?[0-9]+")
#: Java reads the suffixes of its own literals, such as ``1d``, and takes a sign before ``NaN`` only in this spelling.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
#: Java's decimals take digits of all scripts.
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_JAVA_NUMBER = re.compile(rf"({_NUMBER.pattern})[dDfF]?")
_JAVA_HEXADECIMAL = re.compile(r"([+-]?)0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)([pP][+-]?[0-9]+)[dDfF]?")
_INFINITE = re.compile("([+-]?)(?:inf|infinity)", re.IGNORECASE)
_NAN = re.compile("[nN][aA][nN]|[+-]?NaN")
_TRUE, _FALSE = ("t", "true", "y", "yes", "1"), ("f", "false", "n", "no", "0")
#: Digits of a float that every version of Java prints the same; a decimal is made from these.
_PRINTED_DIGITS = {FLOAT: 6, DOUBLE: 15}
#: Digits enough for every result of two decimals.
EXACT = Context(prec=200, Emax=10**6, Emin=-(10**6))
_PLAIN_INSTANT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?)?$"
_DAY_US = 86_400_000_000
#: Digits of decimals that 64 bits hold.
_LONG_DIGITS = 18


def cast(value: Value, kind: pa.DataType) -> Value:
    """``value`` as ``kind``.

    Raises ``OutsideError`` for a cast that is not made here, and ``NoValueError`` for a constant text that is no value of ``kind``.
    """
    if value.kind == kind:
        return value
    if value.kind == NULL:
        return Value(pa.nulls(len(value.array), kind), value.failed)
    if isinstance(value.literal, str) and kind != TEXT and _as_kind(Value(pa.array([value.literal])), kind).array[0].as_py() is None:
        raise NoValueError(f"{value.literal!r} is no {evaluated.name_of(kind)}")
    return _as_kind(value, kind)


def try_cast(value: Value, kind: pa.DataType) -> Value:
    """As :func:`cast`, with null instead of failures of the cast."""
    return cast(value, kind) if value.kind in (NULL, kind) else Value(_as_kind(value, kind).array, value.failed)


def _as_kind(value: Value, kind: pa.DataType) -> Value:
    converter = _converter(value.kind, kind)
    return applied(lambda array: converter(array, kind), [value])


def cast_to_common(*values: Value, what: str = "a comparison") -> list[Value]:
    """``values`` cast to the type that they have in common; raises ``OutsideError`` if they have none."""
    kind = evaluated.common_of([value.kind for value in values])
    if kind is None:
        raise outside(what, *(value.kind for value in values), instead="a cast of one of them")
    return [cast(value, kind) for value in values]


def _converter(source: pa.DataType, kind: pa.DataType) -> Callable[[pa.Array, pa.DataType], Computed]:
    if source == TEXT:
        found = _of_text(kind)
    elif kind == TEXT:
        found = _as_text(source)
    elif is_number(source) or source == BOOL:
        found = _of_number(source, kind)
    elif is_time(source):
        found = _of_time(source, kind)
    else:
        found = None
    if found is None:
        raise outside(f"a cast to {evaluated.name_of(kind)}", source)
    return found


def _of_text(kind: pa.DataType) -> Callable[[pa.Array, pa.DataType], Computed] | None:
    if is_whole(kind):
        return _whole_of_text
    if kind in (FLOAT, DOUBLE):
        return _float_of_texts
    if pa.types.is_decimal(kind):
        return lambda texts, kind: by_value(texts, lambda text: _fitting(_decimal_of_text(text), kind), kind)
    if kind == BOOL:
        return lambda texts, _: by_value(texts, _truth_of_text, BOOL)
    if kind == DATE:
        return lambda texts, _: by_value(texts, lambda text: day_of_text(text.strip(_TRIMMED)), DATE)
    if kind in (INSTANT, LOCAL_TIME):
        return _instants
    return None


def _whole_of_text(texts: pa.Array, kind: pa.DataType) -> Computed:
    bound = 1 << kind.bit_width - 1

    def read(text: str) -> int:
        text = text.strip(_TRIMMED)
        if not _WHOLE.fullmatch(text) or not text.isascii() or not -bound <= int(text) < bound:
            raise ValueError(text)
        return int(text)

    with suppress(pa.ArrowInvalid):  # the plainest texts at once
        if pc.all(pc.match_substring_regex(texts, "^-?[0-9]+$")).as_py() is not False:
            return texts.cast(kind), None
    return by_value(texts, read, kind)


def _float_of_texts(texts: pa.Array, kind: pa.DataType) -> Computed:
    if kind == DOUBLE and pc.all(pc.match_substring_regex(texts, r"^-?[0-9]+(?:\.[0-9]+)?$")).as_py() is not False:
        return texts.cast(kind), None  # the plainest texts at once
    with np.errstate(over="ignore"):
        return by_value(texts, _float_of_text if kind == DOUBLE else lambda text: float(np.float32(_float_of_text(text))), kind)


def _float_of_text(text: str) -> float:
    text = text.strip(_TRIMMED[:-1])
    if found := _JAVA_NUMBER.fullmatch(text):
        return float(found[1])
    if found := _INFINITE.fullmatch(text):
        return float(found[1] + "inf")
    if _NAN.fullmatch(text):
        return float("nan")
    if found := _JAVA_HEXADECIMAL.fullmatch(text):
        with suppress(OverflowError):
            return float.fromhex(f"{found[1]}0x{found[2]}{found[3]}")
        return float(found[1] + "inf")
    raise ValueError(text)


def _decimal_of_text(text: str) -> Decimal:
    text = text.strip(_TRIMMED[:-1])
    if not _DECIMAL.fullmatch(text):
        raise ValueError(text)
    try:
        return Decimal(text)
    except InvalidOperation as err:
        raise ValueError(text) from err


def _truth_of_text(text: str) -> bool:
    text = text.strip(_TRIMMED).lower()
    if text not in (*_TRUE, *_FALSE):
        raise ValueError(text)
    return text in _TRUE


def _instants(texts: pa.Array, kind: pa.DataType) -> Computed:
    with suppress(pa.ArrowInvalid):  # the plainest texts at once
        if pc.all(pc.match_substring_regex(texts, _PLAIN_INSTANT)).as_py() is not False:
            return texts.cast(LOCAL_TIME).view(pa.int64()).view(kind), None
    return by_value(texts, lambda text: instant_of_text(text.strip(_TRIMMED), zoned=kind == INSTANT), kind)


def _as_text(source: pa.DataType) -> Callable[[pa.Array, pa.DataType], Computed] | None:
    if is_whole(source):
        return lambda array, _: array.cast(TEXT)
    if source == BOOL:
        return lambda array, _: pc.if_else(array, "true", "false")
    if pa.types.is_decimal(source):
        return lambda array, _: by_value(array, lambda value: f"{value:f}", TEXT)
    if source == DATE:
        return lambda array, _: by_value(array, date_text, TEXT)
    if is_time(source):
        return lambda array, _: by_value(array, instant_text, TEXT)
    return None


def _of_number(source: pa.DataType, kind: pa.DataType) -> Callable[[pa.Array, pa.DataType], Computed] | None:
    decimal = pa.types.is_decimal(source)
    if kind == BOOL:
        return lambda array, _: pc.not_equal(array, pa.scalar(Decimal(0), source)) if decimal else array_of(numbers_of(array) != 0, BOOL)
    if is_whole(kind):
        return _whole_of_decimal if decimal else _whole_of_float if source in (FLOAT, DOUBLE) else _whole_of_whole
    if kind in (FLOAT, DOUBLE):
        return _float_of_decimal if decimal else _float_of_number
    if pa.types.is_decimal(kind):
        if source in (FLOAT, DOUBLE) and kind.precision > _PRINTED_DIGITS[source]:
            raise outside(f"a cast to {evaluated.name_of(kind)}", source, instead=f"a decimal of at most {_PRINTED_DIGITS[source]} digits")
        return _decimal_of_decimal if decimal else _decimal_of_number
    if kind == INSTANT and is_whole(source):
        return _instant_of_seconds
    return None


def _whole_of_whole(array: pa.Array, kind: pa.DataType) -> Computed:
    numbers, bound = numbers_of(array).astype(np.int64, copy=False), 1 << kind.bit_width - 1
    return array_of(numbers.astype(kind.to_pandas_dtype()), kind), (numbers < -bound) | (numbers > bound - 1)


def _whole_of_float(array: pa.Array, kind: pa.DataType) -> Computed:
    numbers = numbers_of(array).astype(np.float64)
    # Narrow integers are cast through 32 bits.
    bound = 1 << max(kind.bit_width, 32) - 1
    greatest = float(bound - 1)
    bad = ~((np.floor(numbers) <= greatest) & (np.ceil(numbers) >= -bound))
    whole = np.where(bad, 0.0, np.trunc(numbers))
    # 2^63, which is as near to the greatest integer as a double comes.
    whole, top = np.where(whole >= 2.0**63, 0.0, whole), whole >= 2.0**63
    found = np.where(top, np.int64(2**63 - 1), whole.astype(np.int64))
    if kind.bit_width < 32:
        bad |= (found < -(1 << kind.bit_width - 1)) | (found >= 1 << kind.bit_width - 1)
    return array_of(np.where(bad, 0, found).astype(kind.to_pandas_dtype()), kind), bad


def _float_of_number(array: pa.Array, kind: pa.DataType) -> Computed:
    with np.errstate(over="ignore"):
        return array_of(numbers_of(array).astype(kind.to_pandas_dtype()), kind)


def _whole_of_decimal(array: pa.Array, kind: pa.DataType) -> Computed:
    bound = 1 << kind.bit_width - 1

    # Spark casts a decimal that 64 bits do not hold to a narrow integer through a double.
    rounded = array.type.precision > _LONG_DIGITS and kind != LONG

    def read(value: Decimal) -> int:
        whole = int(float(value)) if rounded else int(value)
        if not -bound <= whole < bound:
            raise ValueError(value)
        return whole

    return by_value(array, read, kind)


def _float_of_decimal(array: pa.Array, kind: pa.DataType) -> Computed:
    # Arrow would divide the digits by a power of ten, and round twice.
    return by_value(array, float if kind == DOUBLE else lambda value: float(np.float32(str(value))), kind)


def fitting(value: Decimal, kind: pa.DataType) -> Decimal:
    """``value`` rounded to the scale of ``kind``; raises ``ValueError`` if it has too many digits."""
    found = value.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, EXACT)
    if found.adjusted() >= kind.precision - kind.scale and found:
        raise ValueError(value)
    return found


def _fitting(value: Decimal, kind: pa.DataType) -> Decimal:
    if value.adjusted() > evaluated.MAX_DIGITS and value:
        raise ValueError(value)
    return fitting(value, kind)


def _decimal_of_decimal(array: pa.Array, kind: pa.DataType) -> Computed:
    source = array.type
    if kind.scale >= source.scale and kind.precision - kind.scale >= source.precision - source.scale:
        return array.cast(kind)
    return by_value(array, lambda value: fitting(value, kind), kind)


def _decimal_of_number(array: pa.Array, kind: pa.DataType) -> Computed:
    if array.type == BOOL:
        array = array.cast(pa.int8())
    if is_whole(array.type):
        if kind.precision - kind.scale >= evaluated.decimal_of(array.type).precision - (array.type == LONG):
            return array.cast(pa.decimal128(20, 0)).cast(kind) if kind.precision >= 20 else _by_decimals(array, kind)
        return _by_decimals(array, kind)

    # Java casts the digits that it would print for the double; NaN and infinity give null.
    def read(value: float) -> Decimal | None:
        return _fitting(Decimal(repr(value)), kind) if np.isfinite(value) else None

    return by_value(array, read, kind)


def _by_decimals(array: pa.Array, kind: pa.DataType) -> Computed:
    return by_value(array, lambda value: fitting(Decimal(value), kind), kind)


def _instant_of_seconds(array: pa.Array, kind: pa.DataType) -> Computed:
    bound = (2**63 - 1) // 1_000_000
    seconds = numbers_of(array).astype(np.int64)
    micros = np.clip(seconds, -bound, bound) * 1_000_000
    micros = np.where(seconds > bound, np.int64(2**63 - 1), np.where(seconds < -bound, np.int64(-(2**63)), micros))
    return array_of(micros, kind)


def _of_time(source: pa.DataType, kind: pa.DataType) -> Callable[[pa.Array, pa.DataType], Computed] | None:
    if source == DATE and kind in (INSTANT, LOCAL_TIME):
        return _instant_of_day
    if kind == DATE:
        return lambda array, kind: array_of(np.floor_divide(numbers_of(array), _DAY_US), kind)
    if kind in (INSTANT, LOCAL_TIME):
        return lambda array, kind: array.view(pa.int64()).view(kind)
    if source == INSTANT and is_whole(kind):
        return lambda array, kind: _whole_of_whole(pc.cast(array_of(np.floor_divide(numbers_of(array), 1_000_000), LONG), LONG), kind)
    if source == INSTANT and kind in (FLOAT, DOUBLE):
        return lambda array, kind: array_of(numbers_of(array) / 1_000_000.0, kind)
    return None


def _instant_of_day(array: pa.Array, kind: pa.DataType) -> Computed:
    days, bound = numbers_of(array).astype(np.int64), (2**63 - 1) // _DAY_US
    beyond = (days > bound) | (days < -bound)
    return array_of(np.where(beyond, 0, days) * _DAY_US, kind), beyond


def holds(array: pa.Array) -> Mask:
    """Where a truth is true, neither false nor null."""
    return mask_of(pc.fill_null(array, False))


def text(value: Value) -> Value:
    """An argument that is a text, or that Spark writes as one."""
    if value.kind in (FLOAT, DOUBLE, BINARY):
        raise outside("a text", value.kind, instead="a cast to decimal")
    return cast(value, TEXT)


def whole(kind: pa.DataType = INT) -> Takes:
    """An argument that is a whole number of ``kind``."""

    def take(value: Value) -> Value:
        if not (is_whole(value.kind) or value.kind in (TEXT, NULL)):
            raise outside("a whole number", value.kind)
        found = cast(value, kind)
        return Value(found.array, found.failed, value.literal)

    return take


def literal_of(value: Value, name: str) -> str:
    """The text of an argument that must be written as a constant."""
    if not isinstance(value.literal, str):
        raise outside(f"{name}() with an argument that is no constant text")
    return value.literal
