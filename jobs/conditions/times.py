"""Functions of dates and instants, and their arithmetic; every instant is one of UTC."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windowmill.jobs.conditions.casts import cast
from windowmill.jobs.conditions.functions import Call, calls, function, literal_of, whole
from windowmill.jobs.conditions.kinds import DATE, INSTANT, INT, INTERVAL, LOCAL_TIME, LONG, MONTHS, NULL, TEXT, is_time, is_whole
from windowmill.jobs.conditions.time_texts import days_of
from windowmill.jobs.conditions.values import Computed, Value, applied, array_of, numbers_of, outside, repeated

Ints = npt.NDArray[np.int64]
DAY, HOUR, MINUTE, SECOND = 86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000
#: Microseconds of units of time.
CLOCK = {"HOUR": HOUR, "MINUTE": MINUTE, "SECOND": SECOND, "MILLISECOND": 1_000, "MICROSECOND": 1, "DAY": DAY, "WEEK": 7 * DAY}
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
#: Names of units in date_trunc and trunc.
_TRUNCATED = {
    "YEAR": "YEAR",
    "YYYY": "YEAR",
    "YY": "YEAR",
    "QUARTER": "QUARTER",
    "MONTH": "MONTH",
    "MON": "MONTH",
    "MM": "MONTH",
    "WEEK": "WEEK",
}
_TRUNCATED_CLOCK = {"DAY": "DAY", "DD": "DAY", **{name: name for name in CLOCK if name not in ("DAY", "WEEK")}}
#: 1970-01-01 was a Thursday.
_THURSDAY = 3


def _days(array: pa.Array) -> Ints:
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
    "dayofweek_iso": lambda days: _weekday(days) + 1,
    "weekday": _weekday,
    "dayofyear": lambda days: days - _year_start(days) + 1,
    "weekofyear": lambda days: (_iso_thursday(days) - _year_start(_iso_thursday(days))) // 7 + 1,
    "yearofweek": lambda days: _months(_iso_thursday(days)) // 12 + 1970,
}
_CLOCK_PARTS = {"hour": (DAY, HOUR), "minute": (HOUR, MINUTE), "second": (MINUTE, SECOND)}
#: Names of the parts that extract() and date_part() take.
_PART_NAMES = {
    **dict.fromkeys(("year", "y", "years", "yr", "yrs"), "year"),
    **dict.fromkeys(("quarter", "qtr"), "quarter"),
    **dict.fromkeys(("month", "mon", "mons", "months"), "month"),
    **dict.fromkeys(("week", "w", "weeks"), "weekofyear"),
    **dict.fromkeys(("day", "d", "days"), "day"),
    **dict.fromkeys(("dayofweek", "dow"), "dayofweek"),
    **dict.fromkeys(("dayofweek_iso", "dow_iso"), "dayofweek_iso"),
    "doy": "dayofyear",
    "yearofweek": "yearofweek",
    **dict.fromkeys(("hour", "h", "hours", "hr", "hrs"), "hour"),
    **dict.fromkeys(("minute", "m", "min", "mins", "minutes"), "minute"),
}


def date(value: Value) -> Value:
    """An argument that is a date, or of which Spark makes one."""
    if not (is_time(value.kind) or value.kind in (TEXT, NULL)):
        raise outside("a date", value.kind)
    return cast(value, DATE)


def instant(value: Value) -> Value:
    """An argument that is an instant, or of which Spark makes one."""
    if value.kind == LOCAL_TIME:
        return value
    if not (is_time(value.kind) or value.kind in (TEXT, NULL)):
        raise outside("an instant", value.kind)
    return cast(value, INSTANT)


def _part(name: str, value: Value) -> Value:
    if name in _DATE_PARTS:
        return applied(lambda dates: array_of(_DATE_PARTS[name](_days(dates)), INT), [date(value)])
    whole_us, unit = _CLOCK_PARTS[name]
    return applied(lambda instants: array_of(numbers_of(instants) % whole_us // unit, INT), [instant(value)])


@calls("year", "quarter", "month", "day", "dayofmonth", "dayofweek", "weekday", "dayofyear", "weekofyear", "hour", "minute", "second")
def _named_part(call: Call) -> Value:
    return _part(call.name.replace("dayofmonth", "day"), *call.values(1, 1))


@calls("date_part", "datepart", "extract")
def _date_part(call: Call) -> Value:
    part, value = call.values(2, 2)
    name = _PART_NAMES.get(literal_of(part, call.name).lower())
    if name is None or not (is_time(value.kind) or value.kind == TEXT):
        raise outside(f"{call.name}() of {part.literal!r}", value.kind, instead="second(t)")
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
        return applied(lambda array: array_of(_truncated(_days(array), _TRUNCATED[name]) * DAY, INSTANT), [value])
    if name not in _TRUNCATED_CLOCK:
        return applied(lambda array: pa.nulls(len(array), INSTANT), [value])
    length = CLOCK[_TRUNCATED_CLOCK[name]]
    return applied(lambda array: array_of(np.floor_divide(numbers_of(array), length) * length, INSTANT), [value])


@calls("trunc")
def _trunc(call: Call) -> Value:
    value, unit = call.values(2, 2)
    name = _TRUNCATED.get(literal_of(unit, call.name).upper())
    if name is None:
        return applied(lambda array: pa.nulls(len(array), DATE), [date(value)])
    return applied(lambda array: array_of(_truncated(_days(array), name), DATE), [date(value)])


@function("last_day", takes=[date])
def _last_day(dates: pa.Array) -> Computed:
    return array_of(_first_days(_months(_days(dates)) + 1) - 1, DATE)


def _small(value: Value) -> Value:
    if value.kind == LONG and value.literal is None:
        raise outside("a number of days", LONG, instead="cast(… as int)")
    return whole()(value)


@calls("date_add", "dateadd", "date_sub")
def _date_add(call: Call) -> Value:
    if len(call.nodes) == 3:
        return _add_units(call)
    value, days = call.values(2, 2)
    sign = -1 if call.name == "date_sub" else 1
    return applied(lambda dates, each: _moved(_days(dates) + sign * numbers_of(each).astype(np.int64)), [date(value), _small(days)])


def _moved(days: Ints) -> Computed:
    return array_of(days.astype(np.int32), DATE)


@function("add_months", takes=[date, whole()])
def _add_months(dates: pa.Array, months: pa.Array) -> Computed:
    return array_of(_months_later(_days(dates), numbers_of(months).astype(np.int64)), DATE)


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
    return applied(lambda one, other: array_of(_days(one) - _days(other), INT), [date(end), date(start)])


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
    kind = value.kind
    if unit in _MONTHS:
        return applied(
            lambda each, times: array_of(_add_months_us(numbers_of(times), numbers_of(each) * _MONTHS[unit]), kind), [count, value]
        )
    return applied(lambda each, times: _later(times, numbers_of(each), CLOCK[unit]), [count, value])


def _later(times: pa.Array, counts: Ints, unit: int) -> Computed:
    """``times`` moved by ``counts`` of a unit in microseconds; beyond 64 bits it fails."""
    numbers, bound = numbers_of(times).astype(np.int64), (2**63 - 1) // unit
    beyond = (counts > bound) | (counts < -(2**63 // unit))
    shift = np.where(beyond, 0, counts) * unit
    with np.errstate(over="ignore"):
        found = numbers + shift
    return array_of(found, times.type), beyond | (((numbers ^ found) & (shift ^ found)) < 0)


def _add_months_us(micros: Ints, months: Ints | np.int64) -> Ints:
    days, of_day = np.divmod(micros, DAY)
    return _months_later(days, months) * DAY + of_day


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
    one, other = (_months(np.floor_divide(micros, DAY)) for micros in (start, end))
    rest_one, rest_other = start - _first_days(one) * DAY, end - _first_days(other) * DAY
    months = other - one
    return months - ((months > 0) & (rest_other < rest_one)) + ((months < 0) & (rest_other > rest_one))


@calls("unix_seconds", "unix_millis", "unix_micros")
def _unix(call: Call) -> Value:
    unit = {"unix_seconds": SECOND, "unix_millis": 1_000, "unix_micros": 1}[call.name]
    [value] = call.values(1, 1)
    if value.kind != INSTANT:
        raise call.refused(value)
    return applied(lambda array: array_of(np.floor_divide(numbers_of(array), unit), LONG), [value])


@calls("timestamp_seconds", "timestamp_millis", "timestamp_micros")
def _of_unix(call: Call) -> Value:
    unit = {"timestamp_seconds": SECOND, "timestamp_millis": 1_000, "timestamp_micros": 1}[call.name]
    zero = repeated(0, LONG, call.own.n).view(INSTANT)
    return applied(lambda array: _later(zero, numbers_of(array).astype(np.int64), unit), [whole(LONG)(*call.values(1, 1))])


@calls("unix_date")
def _unix_date(call: Call) -> Value:
    [value] = call.values(1, 1)
    if value.kind != DATE:
        raise call.refused(value)
    return applied(lambda dates: dates.view(pa.int32()), [value])


@function("date_from_unix_date", takes=[whole()])
def _date_from_unix(days: pa.Array) -> Computed:
    return days.view(DATE)


@function("make_date", takes=[whole(), whole(), whole()])
def _make_date(years: pa.Array, months: pa.Array, days: pa.Array) -> Computed:
    found, failed = np.zeros(len(years), np.int32), np.zeros(len(years), np.bool_)
    for number, parts in enumerate(zip(*map(numbers_of, (years, months, days)), strict=True)):
        try:
            found[number] = days_of(*map(int, parts))
        except (ValueError, OverflowError):
            failed[number] = True
    return array_of(found, DATE), failed


def shifted(sign: str, left: Value, right: Value) -> Value:
    """Sums and differences of dates, instants and intervals."""
    if sign == "+" and not is_time(left.kind) and is_time(right.kind):
        left, right = right, left
    if sign not in ("+", "-"):
        raise outside(f"arithmetic ({sign})", left.kind, right.kind)
    if left.kind == TEXT and right.kind == INTERVAL:
        return cast(shifted(sign, cast(left, INSTANT), right), TEXT)
    direction = 1 if sign == "+" else -1
    if is_time(left.kind) and right.kind == INTERVAL:
        return _by_interval(left, right, direction)
    if is_time(left.kind) and right.kind == MONTHS and right.literal is not None:
        months = direction * right.literal[0]
        if left.kind == DATE:
            return applied(lambda dates: array_of(_months_later(_days(dates), np.int64(months)), DATE), [left])
        return applied(lambda times: array_of(_add_months_us(numbers_of(times), np.int64(months)), left.kind), [left])
    if left.kind == DATE and is_whole(right.kind) and right.kind != LONG:
        return applied(lambda dates, each: _moved(_days(dates) + direction * numbers_of(each).astype(np.int64)), [left, right])
    if sign == "-" and is_time(left.kind) and is_time(right.kind):
        if left.kind == right.kind == DATE:
            return applied(lambda one, other: array_of((_days(one) - _days(other)) * DAY, INTERVAL), [left, right])
        kind = INSTANT if INSTANT in (left.kind, right.kind) else LOCAL_TIME
        return applied(_time_between, [cast(left, kind), cast(right, kind)])
    if left.kind == right.kind == INTERVAL:
        return applied(lambda one, other: _sum_of_intervals(one, other, direction), [left, right])
    raise outside(f"a sum or difference ({sign})", left.kind, right.kind)


def _by_interval(left: Value, right: Value, direction: int) -> Value:
    if left.kind == DATE:
        if right.unit == "DAY":
            return applied(lambda dates, each: _moved(_days(dates) + direction * numbers_of(each) // DAY), [left, right])
        left = cast(left, INSTANT)
    return applied(lambda times, each: _later(times, direction * numbers_of(each), 1), [left, right])


def _time_between(one: pa.Array, other: pa.Array) -> Computed:
    a, b = numbers_of(one).astype(np.int64), numbers_of(other).astype(np.int64)
    with np.errstate(over="ignore"):
        found = a - b
    return array_of(found, INTERVAL), ((a ^ b) & (a ^ found)) < 0


def _sum_of_intervals(one: pa.Array, other: pa.Array, direction: int) -> Computed:
    return array_of(numbers_of(one) + direction * numbers_of(other), INTERVAL)
