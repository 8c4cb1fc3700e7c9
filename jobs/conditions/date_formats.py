"""Functions that read and write dates and instants by a format."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pyarrow as pa

from windowmill.jobs.conditions.casts import cast
from windowmill.jobs.conditions.evaluated import Computed, Mask, Value, applied, array_of, by_value, mask_of, numbers_of, outside
from windowmill.jobs.conditions.functions import Call, calls, literal_of, whole
from windowmill.jobs.conditions.time_texts import date_of, days_of
from windowmill.jobs.conditions.times import DAY, HOUR, MINUTE, SECOND, WEEKDAYS, date, instant, toward_zero
from windowmill.jobs.conditions.value_types import DATE, INSTANT, LONG, TEXT
from windowmill.jobs.datetime_patterns import MONTHS, PatternError, pattern_of

_PATTERN = re.compile(r"([A-Za-z])\1*|'(?:[^']|'')*'|[^A-Za-z'#{}\[\]]")
_INSTEAD = "parts such as yyyy, MMM, dd, HH, mm, ss, SSS or a"
#: Parts of formats of which texts are read here; other formats are read as :mod:`.datetime_patterns` does, in the years 1 to 9999.
_FIELDS = {
    "yyyy": r"(?P<yyyy>[0-9]{4}|\+[0-9]{5,9}|-[0-9]{4,9})",
    "SSS": "(?P<SSS>[0-9]{1,3})",
    "SSSSSS": "(?P<SSSSSS>[0-9]{1,6})",
    **{part: f"(?P<{part}>[0-9]{{2}})" for part in ("MM", "dd", "HH", "mm", "ss")},
}


def _digits(width: int, number: Callable[[int, int], int]) -> Callable[[int, int], str]:
    return lambda days, of_day: f"{number(days, of_day):0{width}}"


def _year(days: int, _of_day: int) -> str:
    year = date_of(days)[0]
    return f"{'-' if year < 0 else '+' if year > 9_999 else ''}{abs(year):04}"


#: What each part of a format writes for days since 1970 and microseconds since midnight.
_WRITTEN: dict[str, Callable[[int, int], str]] = {
    "yyyy": _year,
    "y": lambda days, _: str(date_of(days)[0]),
    "yy": lambda days, _: f"{abs(date_of(days)[0]) % 100:02}",
    "a": lambda _, of_day: "AM" if of_day < DAY // 2 else "PM",
    **{"S" * n: lambda _, of_day, n=n: f"{of_day % SECOND:06}000"[:n] for n in range(1, 10)},  # type: ignore[misc]
    **dict.fromkeys(("E", "EE", "EEE"), lambda days, _: WEEKDAYS[(days + 3) % 7][:3]),
    "EEEE": lambda days, _: WEEKDAYS[(days + 3) % 7],
    "MMM": lambda days, _: MONTHS[date_of(days)[1] - 1][:3],
    "MMMM": lambda days, _: MONTHS[date_of(days)[1] - 1],
    "D": lambda days, _: str(days - days_of(date_of(days)[0], 1, 1) + 1),
    "DDD": lambda days, _: f"{days - days_of(date_of(days)[0], 1, 1) + 1:03}",
}
_NUMBERS: dict[str, Callable[[int, int], int]] = {
    "M": lambda days, _: date_of(days)[1],
    "d": lambda days, _: date_of(days)[2],
    "H": lambda _, of_day: of_day // HOUR,
    "k": lambda _, of_day: (of_day // HOUR - 1) % 24 + 1,
    "h": lambda _, of_day: (of_day // HOUR - 1) % 12 + 1,
    "K": lambda _, of_day: of_day // HOUR % 12,
    "m": lambda _, of_day: of_day // MINUTE % 60,
    "s": lambda _, of_day: of_day // SECOND % 60,
}
_WRITTEN |= {letter * width: _digits(width, number) for letter, number in _NUMBERS.items() for width in (1, 2)}


@lru_cache(100)
def _parts(written: str) -> tuple[str, ...]:
    """The parts of a format of dates; raises ``OutsideError`` if one of them is not written here."""
    parts = tuple(found[0] for found in _PATTERN.finditer(written))
    if "".join(parts) != written or not written or any(part.isalpha() and part.isascii() and part not in _WRITTEN for part in parts):
        raise outside(f"the format {written!r}", instead=_INSTEAD)
    return parts


@calls("date_format")
def _date_format(call: Call) -> Value:
    value, written = call.values(2, 2)
    return formatted(value, literal_of(written, call.name))


def formatted(value: Value, written: str) -> Value:
    """Dates or instants as texts of a format."""
    parts = _parts(written)

    def shown(micros: int) -> str:
        days, of_day = divmod(micros, DAY)
        return "".join(_WRITTEN[part](days, of_day) if part in _WRITTEN else _unquoted(part) for part in parts)

    return applied(lambda array: by_value(array.view(pa.int64()), shown, TEXT), [cast(instant(value), INSTANT)])


@calls("dayname", "monthname")
def _name(call: Call) -> Value:
    [value] = call.values(1, 1)
    return formatted(date(value), "E" if call.name == "dayname" else "MMM")


def _unquoted(part: str) -> str:
    if part == "''":
        return "'"
    return part[1:-1].replace("''", "'") if part.startswith("'") else part


@lru_cache(100)
def _reader(written: str) -> Callable[[str], int] | None:
    """Reads texts of a format: microseconds since 1970; ``ValueError`` for any other text.

    Null if the format has a part that is not in ``_FIELDS``, or one part twice.
    """
    parts = tuple(found[0] for found in _PATTERN.finditer(written))
    letters = [part for part in parts if part.isalpha()]
    if "".join(parts) != written or len(set(letters)) != len(letters) or not letters or set(letters) - _FIELDS.keys():
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
    if own is None:
        try:
            pattern = pattern_of(written)
        except PatternError as err:
            raise outside(f"the format {written!r}", instead=_INSTEAD) from err

    def read(texts: pa.Array) -> Computed:
        numbers, failed = by_value(texts, own, pa.int64()) if own is not None else _found(pattern.instants(texts))
        return numbers.view(INSTANT), failed

    return read


def _found(instants: pa.Array) -> tuple[pa.Array, Mask | None]:
    return instants, mask_of(instants.is_null())


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
    return formatted(found, literal_of(written[0], call.name)) if written else cast(found, TEXT)
