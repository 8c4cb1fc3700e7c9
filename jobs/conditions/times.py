"""Functions of dates and instants, their arithmetic and formats, and times by the clocks of zones; every instant is one of UTC."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlglot import exp

from windowmill.jobs.conditions.casts import cast, date_of, date_text, days_of, literal_of, whole
from windowmill.jobs.conditions.evaluated import (
    DATE,
    INSTANT,
    INT,
    INTERVAL,
    LOCAL_TIME,
    LONG,
    MONTHS,
    NULL,
    TEXT,
    Call,
    Computed,
    Evaluator,
    Value,
    applied,
    array_of,
    by_value,
    calls,
    function,
    is_time,
    is_whole,
    mask_of,
    numbers_of,
    outside,
    repeated,
)
from windowmill.jobs.conditions.numbers import exactly
from windowmill.jobs.instants import PatternError, pattern_of

Ints = npt.NDArray[np.int64]
DAY, HOUR, MINUTE, SECOND = 86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000
#: Microseconds of units of time.
CLOCK = {"HOUR": HOUR, "MINUTE": MINUTE, "SECOND": SECOND, "MILLISECOND": 1_000, "MICROSECOND": 1, "DAY": DAY, "WEEK": 7 * DAY}
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
#: Months and days beyond which no instant of 64 bits is moved, or lies.
_MOST_MONTHS, _MOST_DAYS = 10_000_000, (2**63 - 1) // DAY - 1
#: Names of units in date_trunc and trunc.
_TRUNCATED = {
    **dict.fromkeys(("YEAR", "YYYY", "YY"), "YEAR"),
    **dict.fromkeys(("MONTH", "MON", "MM"), "MONTH"),
    **{name: name for name in ("QUARTER", "WEEK")},
}
_TRUNCATED_CLOCK = {"DAY": "DAY", "DD": "DAY", **{name: name for name in CLOCK if name not in ("DAY", "WEEK")}}
#: 1970-01-01 was a Thursday.
_THURSDAY = 3


def days_in(array: pa.Array) -> Ints:
    """Days since 1970 of dates, instants or times without a zone."""
    numbers = numbers_of(array).astype(np.int64)
    return numbers if array.type == DATE else np.floor_divide(numbers, DAY)


def _months(days: Ints) -> Ints:
    """Months since January 1970."""
    return days.astype("M8[D]").astype("M8[M]").astype(np.int64)


def _first_days(months: Ints) -> Ints:
    return months.astype("M8[M]").astype("M8[D]").astype(np.int64)


def _day_of_month(days: Ints) -> Ints:
    return days - _first_days(_months(days)) + 1


def _weekday(days: Ints) -> Ints:
    """0 for Monday."""
    return (days + _THURSDAY) % 7


def _iso_thursday(days: Ints) -> Ints:
    return days - _weekday(days) + _THURSDAY


def _year_start(days: Ints) -> Ints:
    return _first_days(_months(days) // 12 * 12)


#: Parts of a date, by the function's name.
_DATE_PARTS: Mapping[str, Callable[[Ints], Ints]] = {
    "year": lambda days: _months(days) // 12 + 1970,
    "quarter": lambda days: _months(days) % 12 // 3 + 1,
    "month": lambda days: _months(days) % 12 + 1,
    "day": _day_of_month,
    "dayofweek": lambda days: (days + _THURSDAY + 1) % 7 + 1,
    "weekday": _weekday,
    "dayofyear": lambda days: days - _year_start(days) + 1,
    "weekofyear": lambda days: (_iso_thursday(days) - _year_start(_iso_thursday(days))) // 7 + 1,
}
_CLOCK_PARTS = {"hour": (DAY, HOUR), "minute": (HOUR, MINUTE), "second": (MINUTE, SECOND)}
#: The parts that extract() and date_part() take, with the functions that give them.
_PARTS = {name: name for name in ("year", "quarter", "month", "day", "dayofweek", "hour", "minute")} | {
    "week": "weekofyear",
    "dow": "dayofweek",
    "doy": "dayofyear",
}


def date(value: Value) -> Value:
    """An argument that is a date, or that Spark casts to one."""
    if not (is_time(value.kind) or value.kind in (TEXT, NULL)):
        raise outside("a date", value.kind)
    return cast(value, DATE)


def instant(value: Value) -> Value:
    """An argument that is an instant, or that Spark casts to one."""
    if value.kind == LOCAL_TIME:
        return value
    if not (is_time(value.kind) or value.kind in (TEXT, NULL)):
        raise outside("an instant", value.kind)
    return cast(value, INSTANT)


def _part(name: str, value: Value) -> Value:
    if name in _DATE_PARTS:
        return applied(lambda dates: array_of(_DATE_PARTS[name](days_in(dates)), INT), [date(value)])
    whole_us, unit = _CLOCK_PARTS[name]
    return applied(lambda instants: array_of(numbers_of(instants) % whole_us // unit, INT), [instant(value)])


@calls("year", "quarter", "month", "day", "dayofmonth", "dayofweek", "weekday", "dayofyear", "weekofyear", "hour", "minute", "second")
def _named_part(call: Call) -> Value:
    return _part(call.name.replace("dayofmonth", "day"), *call.values(1, 1))


@calls("date_part", "datepart", "extract")
def _date_part(call: Call) -> Value:
    part, value = call.values(2, 2)
    name = _PARTS.get(literal_of(part, call.name).lower())
    if name is None or not (is_time(value.kind) or value.kind == TEXT):
        raise outside(f"{call.name}() of {part.literal!r}", value.kind)
    return _part(name, value)


def _truncated(days: Ints, unit: str) -> Ints:
    if unit == "WEEK":
        return days - _weekday(days)
    months = _months(days)
    return _first_days(months - months % _MONTHS[unit])


@calls("date_trunc")
def _date_trunc(call: Call) -> Value:
    unit, value = call.values(2, 2)
    name = literal_of(unit, call.name).upper()
    # Spark makes an instant of a date; of a time without a zone too.
    value = cast(instant(value), INSTANT)
    if name in _TRUNCATED:
        return applied(lambda array: array_of(_truncated(days_in(array), _TRUNCATED[name]) * DAY, INSTANT), [value])
    if name not in _TRUNCATED_CLOCK:
        return call.own.constant(None, INSTANT)
    length = CLOCK[_TRUNCATED_CLOCK[name]]
    return applied(lambda array: array_of(np.floor_divide(numbers_of(array), length) * length, INSTANT), [value])


@calls("trunc")
def _trunc(call: Call) -> Value:
    value, unit = call.values(2, 2)
    name = _TRUNCATED.get(literal_of(unit, call.name).upper())
    if name is None:
        return cast(call.own.constant(None, NULL), date(value).kind)  # whatever the value is
    return applied(lambda array: array_of(_truncated(days_in(array), name), DATE), [date(value)])


@function("last_day", takes=[date])
def _last_day(dates: pa.Array) -> Computed:
    return array_of(_first_days(_months(days_in(dates)) + 1) - 1, DATE)


def _small(value: Value) -> Value:
    if value.kind == LONG and (value.literal is None or not -(2**31) <= value.literal < 2**31):
        raise outside("a number of days", LONG, instead="cast(… as int)")
    return whole()(value)


@calls("date_add", "dateadd", "date_sub")
def _date_add(call: Call) -> Value:
    if len(call.nodes) == 3:
        return _add_units(call)
    value, days = call.values(2, 2)
    sign = -1 if call.name == "date_sub" else 1
    return applied(lambda dates, each: moved(days_in(dates) + sign * numbers_of(each).astype(np.int64)), [date(value), _small(days)])


def moved(days: Ints) -> Computed:
    return array_of(days.astype(np.int32), DATE)


@function("add_months", takes=[date, whole()])
def _add_months(dates: pa.Array, months: pa.Array) -> Computed:
    return dates_later(dates, numbers_of(months).astype(np.int64))


def dates_later(dates: pa.Array, months: Ints | np.int64) -> Computed:
    found = _months_later(days_in(dates), months)
    return array_of(found.astype(np.int32), DATE), (found < -(2**31)) | (found >= 2**31)


def _months_later(days: Ints, months: Ints | np.int64) -> Ints:
    """Days of the same day of a later month, or of its last one."""
    target = _months(days) + months
    first = _first_days(target)
    length = _first_days(target + 1) - first
    found: Ints = first + np.minimum(_day_of_month(days), length) - 1
    return found


@calls("datediff", "date_diff")
def _date_difference(call: Call) -> Value:
    if len(call.nodes) == 3:
        return _units_between(call)
    end, start = call.values(2, 2)
    return applied(lambda one, other: array_of(days_in(one) - days_in(other), INT), [date(end), date(start)])


def _unit_of(call: Call) -> str:
    name = call.nodes[0].name.upper()
    if name not in (*CLOCK, *_MONTHS):
        raise outside(f"{call.name}() by {name}")
    return name


@calls("timestampadd")
def _add_units(call: Call) -> Value:
    unit = _unit_of(call)
    if len(call.nodes) != 3:
        raise outside(f"{call.name}() of {len(call.nodes)} arguments")
    count, value = whole(LONG)(call.own.value(call.nodes[1])), instant(call.own.value(call.nodes[2]))
    if unit in _MONTHS:
        return applied(lambda each, times: times_later(times, numbers_of(each), _MONTHS[unit]), [count, value])
    return applied(lambda each, times: later(times, numbers_of(each), CLOCK[unit]), [count, value])


def later(times: pa.Array, counts: Ints, unit: int) -> Computed:
    """``times`` moved by ``counts`` of a unit in microseconds; beyond 64 bits it fails."""
    numbers, bound = numbers_of(times).astype(np.int64), (2**63 - 1) // unit
    beyond = (counts > bound) | (counts < -(2**63 // unit))
    shift = np.where(beyond, 0, counts) * unit
    with np.errstate(over="ignore"):
        found = numbers + shift
    return array_of(found, times.type), beyond | (((numbers ^ found) & (shift ^ found)) < 0)


def times_later(times: pa.Array, counts: Ints | np.int64, unit: int = 1) -> Computed:
    """``times`` moved by ``counts`` of a unit in months; beyond 64 bits it fails."""
    beyond = (counts > _MOST_MONTHS) | (counts < -_MOST_MONTHS)
    days, of_day = np.divmod(numbers_of(times).astype(np.int64), DAY)
    found = _months_later(days, np.where(beyond, 0, counts) * unit)
    return array_of(np.clip(found, -_MOST_DAYS, _MOST_DAYS) * DAY + of_day, times.type), beyond | (np.abs(found) > _MOST_DAYS)


@calls("timestampdiff")
def _units_between(call: Call) -> Value:
    unit = _unit_of(call)
    if len(call.nodes) != 3:
        raise outside(f"{call.name}() of {len(call.nodes)} arguments")
    start, end = (instant(call.own.value(node)) for node in call.nodes[1:])

    def between(one: pa.Array, other: pa.Array) -> Computed:
        a, b = numbers_of(one).astype(np.int64), numbers_of(other).astype(np.int64)
        if unit in _MONTHS:
            return array_of(toward_zero(_whole_months(a, b), _MONTHS[unit]), LONG)
        return array_of(toward_zero(b - a, CLOCK[unit]), LONG)

    return applied(between, [start, end])


def toward_zero(numbers: Ints, unit: int) -> Ints:
    floor = np.floor_divide(numbers, unit)
    found: Ints = floor + ((floor < 0) & (floor * unit != numbers))
    return found


def _whole_months(start: Ints, end: Ints) -> Ints:
    """Months from ``start`` to ``end`` that are complete, negative backwards."""
    (first, time), (last, later) = (np.divmod(micros, DAY) for micros in (start, end))
    # As Java has it: first a day that is not complete is taken away, then the dates alone are compared.
    last = last - ((last > first) & (later < time)) + ((last < first) & (later > time))
    one, other = (_months(days) * 32 + _day_of_month(days) for days in (first, last))
    return toward_zero(other - one, 32)


#: Microseconds of the units in which functions count from 1970.
_SINCE_1970 = {"seconds": SECOND, "millis": 1_000, "micros": 1}


@calls(*(f"unix_{unit}" for unit in _SINCE_1970))
def _unix(call: Call) -> Value:
    [value] = call.values(1, 1)
    if value.kind != INSTANT:
        raise call.refused(value)
    unit = _SINCE_1970[call.name.removeprefix("unix_")]
    return applied(lambda array: array_of(np.floor_divide(numbers_of(array), unit), LONG), [value])


@calls(*(f"timestamp_{unit}" for unit in _SINCE_1970))
def _of_unix(call: Call) -> Value:
    [value] = call.values(1, 1)
    if value.kind == TEXT:
        raise call.refused(value)
    zero, unit = repeated(0, LONG, call.own.n).view(INSTANT), _SINCE_1970[call.name.removeprefix("timestamp_")]
    return applied(lambda array: later(zero, numbers_of(array).astype(np.int64), unit), [whole(LONG)(value)])


def literal_interval(own: Evaluator, node: exp.Interval) -> Value:
    """A literal interval of one unit: ``interval 1 day``, ``interval '2' hours`` or ``interval '1 month'``."""
    unit, amount = node.args.get("unit"), node.this.name.strip() if isinstance(node.this, exp.Literal) else ""
    name = unit.name.upper().removesuffix("S") if isinstance(unit, exp.Var) else ""
    months = {"MONTH": 1, "YEAR": 12}.get(name)
    length = months or CLOCK.get(name)
    if length is None or not re.fullmatch("[+-]?[0-9]{1,9}", amount) or abs(int(amount)) * length >= 1 << (31 if months else 63):
        raise outside(node.sql("spark"), instead="a whole number of one unit, such as interval 90 minutes")
    total = int(amount) * length
    if months:
        return own.constant((total, 0, 0), MONTHS)
    return own.constant(total, INTERVAL, "DAY" if name in ("DAY", "WEEK") else name)


def moved_by_interval(sign: str, left: Value, right: Value) -> Value:
    """Sums and differences of dates, instants and intervals."""
    if sign == "+" and not is_time(left.kind) and is_time(right.kind):
        left, right = right, left
    if sign not in ("+", "-"):
        raise outside(f"arithmetic ({sign})", left.kind, right.kind)
    direction = 1 if sign == "+" else -1
    if is_time(left.kind) and right.kind == INTERVAL:
        return _by_interval(left, right, direction)
    if is_time(left.kind) and right.kind == MONTHS and right.literal is not None:
        months = direction * right.literal[0]
        if left.kind == DATE:
            return applied(lambda dates: dates_later(dates, np.int64(months)), [left])
        return applied(lambda times: times_later(times, np.int64(months)), [left])
    if left.kind == DATE and is_whole(right.kind) and right.kind != LONG:
        return applied(lambda dates, each: moved(days_in(dates) + direction * numbers_of(each).astype(np.int64)), [left, right])
    if sign == "-" and is_time(left.kind) and is_time(right.kind):
        if left.kind == right.kind == DATE:
            return applied(lambda one, other: array_of((days_in(one) - days_in(other)) * DAY, INTERVAL), [left, right])
        kind = INSTANT if INSTANT in (left.kind, right.kind) else LOCAL_TIME
        return applied(partial(exactly, np.subtract, kind=INTERVAL), [cast(left, kind), cast(right, kind)])
    if left.kind == right.kind == INTERVAL:
        return applied(lambda one, other: array_of(numbers_of(one) + direction * numbers_of(other), INTERVAL), [left, right])
    raise outside(f"a sum or difference ({sign})", left.kind, right.kind)


def _by_interval(left: Value, right: Value, direction: int) -> Value:
    if left.kind == DATE:
        if right.unit == "DAY":
            return applied(lambda dates, each: moved(days_in(dates) + direction * numbers_of(each) // DAY), [left, right])
        left = cast(left, INSTANT)
    return applied(lambda times, each: later(times, direction * numbers_of(each), 1), [left, right])


_PATTERN = re.compile(r"([A-Za-z])\1*|'(?:[^']|'')*'|[^A-Za-z'#{}\[\]]")
_FORMAT_INSTEAD = "parts such as yyyy, MM, dd, HH, mm, ss, SSS or a"
#: Parts of formats by which this module reads texts; :mod:`windowmill.jobs.instants` reads other formats, in the years 1 to 9999.
_FIELDS = {
    "yyyy": r"(?P<yyyy>[0-9]{4}|\+[0-9]{5,9}|-[0-9]{4,9})",
    "SSS": "(?P<SSS>[0-9]{1,3})",
    "SSSSSS": "(?P<SSSSSS>[0-9]{1,6})",
    **{part: f"(?P<{part}>[0-9]{{2}})" for part in ("MM", "dd", "HH", "mm", "ss")},
}


def _digits(width: int, number: Callable[[int, int], int]) -> Callable[[int, int], str]:
    return lambda days, of_day: f"{number(days, of_day):0{width}}"


_NUMBERS: dict[str, Callable[[int, int], int]] = {
    "M": lambda days, _: date_of(days)[1],
    "d": lambda days, _: date_of(days)[2],
    "H": lambda _, of_day: of_day // HOUR,
    "h": lambda _, of_day: (of_day // HOUR - 1) % 12 + 1,
    "m": lambda _, of_day: of_day // MINUTE % 60,
    "s": lambda _, of_day: of_day // SECOND % 60,
}
#: What each part of a format writes for days since 1970 and microseconds since midnight.
_WRITTEN: dict[str, Callable[[int, int], str]] = {
    "yyyy": lambda days, _: date_text(days)[:-6],
    "yy": lambda days, _: f"{abs(date_of(days)[0]) % 100:02}",
    "a": lambda _, of_day: "AM" if of_day < DAY // 2 else "PM",
    "SSS": lambda _, of_day: f"{of_day % SECOND:06}"[:3],
    "SSSSSS": lambda _, of_day: f"{of_day % SECOND:06}",
    **{letter * width: _digits(width, number) for letter, number in _NUMBERS.items() for width in (1, 2)},
}


def _parts(written: str) -> list[str]:
    """The parts of a format of dates; none if it is not made of such parts."""
    parts = [found[0] for found in _PATTERN.finditer(written)]
    return parts if "".join(parts) == written else []


@calls("date_format")
def _date_format(call: Call) -> Value:
    value, written = call.values(2, 2)
    return _formatted(value, literal_of(written, call.name))


def _formatted(value: Value, written: str) -> Value:
    """Dates or instants as texts of a format; raises ``OutsideError`` if a part of it is not written here."""
    parts = _parts(written)
    if not parts or any(part.isalpha() and part.isascii() and part not in _WRITTEN for part in parts):
        raise outside(f"the format {written!r}", instead=_FORMAT_INSTEAD)

    def shown(micros: int) -> str:
        days, of_day = divmod(micros, DAY)
        return "".join(_WRITTEN[part](days, of_day) if part in _WRITTEN else _unquoted(part) for part in parts)

    return applied(lambda array: by_value(array, shown, TEXT), [cast(instant(value), INSTANT)])


def _unquoted(part: str) -> str:
    if part == "''":
        return "'"
    return part[1:-1].replace("''", "'") if part.startswith("'") else part


@lru_cache(100)
def _reader(written: str) -> Callable[[str], int] | None:
    """Reads texts of a format: microseconds since 1970; ``ValueError`` for any other text.

    Null if the format has a part that is not in ``_FIELDS``, or one part twice.
    """
    parts = _parts(written)
    letters = [part for part in parts if part.isalpha()]
    if len(set(letters)) != len(letters) or not letters or set(letters) - _FIELDS.keys():
        return None
    pattern = re.compile("".join(_FIELDS.get(part) or re.escape(_unquoted(part)) for part in parts), re.IGNORECASE)

    def read(each: str) -> int:
        found = pattern.fullmatch(each)
        if found is None:
            raise ValueError(each)
        given: dict[str, int] = {name: int(digits) for name, digits in found.groupdict().items() if "S" not in name}
        hour, minute, second = (given.get(name, 0) for name in ("HH", "mm", "ss"))
        if hour > 23 or minute > 59 or second > 59:
            raise ValueError(each)
        days = days_of(given.get("yyyy", 1970), given.get("MM", 1), given.get("dd", 1))
        fraction = "".join(digits for name, digits in found.groupdict().items() if "S" in name)
        return days * DAY + hour * HOUR + minute * MINUTE + second * SECOND + int(fraction.ljust(6, "0"))

    return read


@calls("to_timestamp", "try_to_timestamp", "to_date", "try_to_date")
def _to_time(call: Call) -> Value:
    value, *written = call.values(1, 2)
    kind = INSTANT if call.name.endswith("timestamp") else DATE
    found = date(value) if kind == DATE and not written else cast(value, kind) if not written else None
    if found is None:
        if value.kind != TEXT:
            raise call.refused(value)
        found = cast(applied(_read_by(literal_of(written[0], call.name)), [value]), kind)
    return Value(found.array, value.failed) if call.name.startswith("try_") else found


def _read_by(written: str) -> Callable[[pa.Array], Computed]:
    """What reads texts of a format as instants; raises ``OutsideError`` for one that is not read here."""
    own = _reader(written)
    if own is not None:
        return lambda texts: by_value(texts, own, INSTANT)
    try:
        pattern = pattern_of(written)
    except PatternError as err:
        raise outside(f"the format {written!r}", instead=_FORMAT_INSTEAD) from err

    def read(texts: pa.Array) -> Computed:
        instants = pattern.instants(texts).view(INSTANT)
        return instants, mask_of(instants.is_null())

    return read


@calls("unix_timestamp", "to_unix_timestamp")
def _unix_timestamp(call: Call) -> Value:
    value, *written = call.values(1, 2)
    if value.kind == TEXT:
        value = applied(_read_by(literal_of(written[0], call.name) if written else "yyyy-MM-dd HH:mm:ss"), [value])
    return applied(lambda array: array_of(toward_zero(numbers_of(array), SECOND), LONG), [cast(instant(value), INSTANT)])


@calls("from_unixtime")
def _from_unixtime(call: Call) -> Value:
    value, *written = call.values(1, 2)

    def instants(seconds: pa.Array) -> Computed:
        with np.errstate(over="ignore"):  # as Spark's own
            micros = numbers_of(seconds).astype(np.int64) * SECOND
        return array_of(micros - micros % SECOND, INSTANT)

    found = applied(instants, [whole(LONG)(value)])
    return _formatted(found, literal_of(written[0], call.name)) if written else cast(found, TEXT)
