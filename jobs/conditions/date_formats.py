"""Functions that read and write dates and instants by a format."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pyarrow as pa

from windowmill.jobs.conditions.casts import cast
from windowmill.jobs.conditions.functions import Call, calls, literal_of, whole
from windowmill.jobs.conditions.kinds import DATE, INSTANT, LONG, TEXT, is_whole
from windowmill.jobs.conditions.time_texts import date_of, days_of
from windowmill.jobs.conditions.times import DAY, HOUR, MINUTE, SECOND, date, instant, toward_zero
from windowmill.jobs.conditions.values import Computed, Mask, Value, applied, array_of, by_value, numbers_of, outside

_PATTERN = re.compile(r"yyyy|MM|dd|HH|mm|ss|SSS(?:SSS)?|'(?:[^']|'')*'|[^A-Za-z'#{}\[\]]")
_FIELDS = {"yyyy": r"(?P<yyyy>[0-9]{4}|\+[0-9]{5,9}|-[0-9]{4,9})", "SSS": "(?P<SSS>[0-9]{3})", "SSSSSS": "(?P<SSSSSS>[0-9]{6})"}


@lru_cache(100)
def _format(written: str) -> tuple[str, ...]:
    """The parts of a format of dates; raises ``OutsideError`` for one that has others than digits of fixed number."""
    parts = tuple(_PATTERN.findall(written))
    letters = [part for part in parts if part.isalpha()]
    if "".join(parts) != written or len(set(letters)) != len(letters) or not written:
        raise outside(f"the format {written!r}", instead="one of yyyy, MM, dd, HH, mm, ss, SSS")
    return parts


@calls("date_format")
def _date_format(call: Call) -> Value:
    value, written = call.values(2, 2)
    parts = _format(literal_of(written, call.name))

    def shown(micros: int) -> str:
        days, of_day = divmod(micros, DAY)
        year, month, day = date_of(days)
        sign = "-" if year < 0 else "+" if year > 9_999 else ""
        fields = {"yyyy": f"{sign}{abs(year):04}", "MM": f"{month:02}", "dd": f"{day:02}", "HH": f"{of_day // HOUR:02}"}
        fields |= {"mm": f"{of_day // MINUTE % 60:02}", "ss": f"{of_day // SECOND % 60:02}", "SSSSSS": f"{of_day % SECOND:06}"}
        fields["SSS"] = fields["SSSSSS"][:3]
        return "".join(fields.get(part, _unquoted(part)) for part in parts)

    return applied(lambda array: by_value(array.view(pa.int64()), shown, TEXT), [cast(instant(value), INSTANT)])


def _unquoted(part: str) -> str:
    if part == "''":
        return "'"
    return part[1:-1].replace("''", "'") if part.startswith("'") else part


@lru_cache(100)
def _reader(written: str) -> Callable[[str], int]:
    """Reads texts of a format: microseconds since 1970; the reader raises ``ValueError`` for any other text."""
    fields = [_FIELDS.get(part, f"(?P<{part}>[0-9]{{2}})") if part.isalpha() else re.escape(_unquoted(part)) for part in _format(written)]
    pattern = re.compile("".join(fields))

    def read(each: str) -> int:
        found = pattern.fullmatch(each)
        if found is None:
            raise ValueError(each)
        given: dict[str, int] = {name: int(digits) for name, digits in found.groupdict().items()}
        hour, minute, second = (given.get(name, 0) for name in ("HH", "mm", "ss"))
        if hour > 23 or minute > 59 or second > 59:
            raise ValueError(each)
        days = days_of(given.get("yyyy", 1970), given.get("MM", 1), given.get("dd", 1))
        micros = given["SSS"] * 1_000 if "SSS" in given else given.get("SSSSSS", 0)
        return days * DAY + hour * HOUR + minute * MINUTE + second * SECOND + micros

    return read


@calls("to_timestamp", "try_to_timestamp", "to_date", "try_to_date")
def _to_time(call: Call) -> Value:
    value, *written = call.values(1, 2)
    kind = INSTANT if call.name.endswith("timestamp") else DATE
    if kind == INSTANT and is_whole(value.kind):
        raise call.refused(value)
    found = date(value) if kind == DATE and not written else cast(value, kind) if not written else None
    if found is None:
        read = _reader(literal_of(written[0], call.name))
        if value.kind != TEXT:
            raise call.refused(value)
        found = applied(lambda texts: _read_instants(texts, read), [value])
        found = cast(found, kind)
    return Value(found.array, value.failed) if call.name.startswith("try_") else found


def _read_instants(texts: pa.Array, read: Callable[[str], int]) -> tuple[pa.Array, Mask | None]:
    numbers, failed = by_value(texts, read, pa.int64())
    return numbers.view(INSTANT), failed


@calls("unix_timestamp", "to_unix_timestamp")
def _unix_timestamp(call: Call) -> Value:
    value, *written = call.values(1, 2)
    if value.kind == TEXT:
        read = _reader(literal_of(written[0], call.name) if written else "yyyy-MM-dd HH:mm:ss")
        value = applied(lambda texts: _read_instants(texts, read), [value])
    return applied(lambda array: array_of(toward_zero(numbers_of(array), SECOND), LONG), [cast(instant(value), INSTANT)])


@calls("from_unixtime")
def _from_unixtime(call: Call) -> Value:
    value, *written = call.values(1, 2)
    if written and literal_of(written[0], call.name) != "yyyy-MM-dd HH:mm:ss":
        raise outside("from_unixtime() with a format", instead="date_format(timestamp_seconds(…), …)")

    def instants(seconds: pa.Array) -> Computed:
        with np.errstate(over="ignore"):  # as Spark's own
            micros = numbers_of(seconds).astype(np.int64) * SECOND
        return array_of(micros - micros % SECOND, INSTANT)

    return cast(applied(instants, [whole(LONG)(value)]), TEXT)
