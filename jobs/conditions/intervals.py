"""Literal intervals, and sums and differences of times and intervals."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from sqlglot import exp

from windowmill.jobs.conditions.casts import cast
from windowmill.jobs.conditions.evaluated import Computed, Value, applied, array_of, numbers_of, outside, repeated
from windowmill.jobs.conditions.times import CLOCK, DAY, dates_later, days_in, later, moved, times_later
from windowmill.jobs.conditions.value_types import DATE, INSTANT, INTERVAL, LOCAL_TIME, LONG, MONTHS, TEXT, is_time, is_whole

if TYPE_CHECKING:
    from windowmill.jobs.conditions.evaluator import Evaluator

#: Months of an interval's unit; other units are of :data:`.CLOCK`.
_UNITS_MONTHS = {"MONTH": 1, "YEAR": 12}
_PART = re.compile(r"\s*([+-]?)\s*([0-9]{1,9})(?:\.([0-9]{1,6}))?\s+([A-Za-z]+?)[sS]?(?=\s|$)")
_INSTEAD = "whole numbers of years and months, or of weeks, days, hours and less"
_CLOCK_TEXT = re.compile(r"\s*([+-]?)([0-9]{1,9}) ([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?:\.([0-9]{1,6}))?\s*")


def written(own: Evaluator, node: exp.Interval) -> Value:
    """A literal interval: ``interval 1 day``, ``interval '1 day 2 hours'`` or ``interval '1 02:03:04' day to second``."""
    unit, text = node.args.get("unit"), node.this.name if isinstance(node.this, exp.Literal) else ""
    if isinstance(unit, exp.IntervalSpan):
        clock = _CLOCK_TEXT.fullmatch(text) if unit.sql("spark").upper() == "DAY TO SECOND" else None
        text = "{0}{1} DAY {0}{2} HOUR {0}{3} MINUTE {0}{4}.{5} SECOND".format(clock[1], *clock.groups("0")[1:]) if clock else ""
    elif isinstance(unit, exp.Var):
        text = f"{text} {unit.name}"
    parts, place = list[re.Match[str]](), 0
    while found := _PART.match(text, place):
        parts, place = [*parts, found], found.end()
    if not parts or text[place:].strip() or any(part[3] and part[4].upper() != "SECOND" for part in parts):
        raise outside(node.sql("spark"), instead=_INSTEAD)
    units = [part[4].upper() for part in parts]
    amounts = [Decimal(f"{part[1]}{part[2]}.{part[3] or 0}") for part in parts]
    table = _UNITS_MONTHS if units[0] in _UNITS_MONTHS else CLOCK
    total = sum(int(amount * table[name]) for amount, name in zip(amounts, units, strict=True)) if set(units) <= table.keys() else None
    if total is None or abs(total) >= 1 << (31 if table is _UNITS_MONTHS else 63):
        raise outside(node.sql("spark"), instead=_INSTEAD)
    if table is _UNITS_MONTHS:
        return own.constant((total, 0, 0), MONTHS, units[-1])
    return own.constant(total, INTERVAL, "DAY" if set(units) <= {"DAY", "WEEK"} else units[-1])


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
            return applied(lambda dates: dates_later(dates, np.int64(months)), [left])
        return applied(lambda times: times_later(times, np.int64(months)), [left])
    if left.kind == DATE and is_whole(right.kind) and right.kind != LONG:
        return applied(lambda dates, each: moved(days_in(dates) + direction * numbers_of(each).astype(np.int64)), [left, right])
    if sign == "-" and is_time(left.kind) and is_time(right.kind):
        if left.kind == right.kind == DATE:
            return applied(lambda one, other: array_of((days_in(one) - days_in(other)) * DAY, INTERVAL), [left, right])
        kind = INSTANT if INSTANT in (left.kind, right.kind) else LOCAL_TIME
        return applied(_time_between, [cast(left, kind), cast(right, kind)])
    if left.kind == right.kind == MONTHS and left.literal and right.literal:
        total = left.literal[0] + direction * right.literal[0]
        return Value(repeated((total, 0, 0), MONTHS, len(left.array)), None, (total, 0, 0), "MONTH")
    if left.kind == right.kind == INTERVAL:
        return applied(lambda one, other: _sum_of_intervals(one, other, direction), [left, right])
    raise outside(f"a sum or difference ({sign})", left.kind, right.kind)


def _by_interval(left: Value, right: Value, direction: int) -> Value:
    if left.kind == DATE:
        if right.unit == "DAY":
            return applied(lambda dates, each: moved(days_in(dates) + direction * numbers_of(each) // DAY), [left, right])
        left = cast(left, INSTANT)
    return applied(lambda times, each: later(times, direction * numbers_of(each), 1), [left, right])


def _time_between(one: pa.Array, other: pa.Array) -> Computed:
    a, b = numbers_of(one).astype(np.int64), numbers_of(other).astype(np.int64)
    with np.errstate(over="ignore"):
        found = a - b
    return array_of(found, INTERVAL), ((a ^ b) & (a ^ found)) < 0


def _sum_of_intervals(one: pa.Array, other: pa.Array, direction: int) -> Computed:
    return array_of(numbers_of(one) + direction * numbers_of(other), INTERVAL)
