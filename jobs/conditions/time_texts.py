"""Texts of dates and instants as Spark reads and writes them; every instant is in UTC unless its text has a zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

_DATE = re.compile(r"([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_CLOCK = r"([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9.].*)?)?)?"
_INSTANT = re.compile(rf"([+-]?)([0-9]{{4,6}})(?:-([0-9]{{1,2}})(?:-([0-9]{{1,2}})(?:[ T]{_CLOCK})?)?)?", re.DOTALL)
#: A zone by its distance from UTC, with one or two digits of an hour or minute; Java takes up to 18 hours.
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{2})(?::?([0-9]{2}))?|:([0-9]))?")
_MOST_OFFSET = 18 * 3_600
_DAYS_OF_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
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
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= month <= len(_DAYS_OF_MONTH) or not 1 <= day <= _DAYS_OF_MONTH[month - 1] or ((month, day) == (2, 29) and not leap):
        raise ValueError((year, month, day))
    march_year, march_month = (year, month - 3) if month > 2 else (year - 1, month + 9)
    cycle, of_cycle = divmod(march_year, _CYCLE_YEARS)
    of_year = (153 * march_month + 2) // 5 + day - 1
    return cycle * _CYCLE_DAYS + of_cycle * 365 + of_cycle // 4 - of_cycle // 100 + of_year - _MARCH_TO_EPOCH


def day_of_text(text: str) -> int:
    """Days since 1970 of a text without spaces around it; raises ``ValueError`` for one that is no date."""
    found = _DATE.fullmatch(text)
    if found is None:
        raise ValueError(text)
    sign, year, month, day = found.groups()
    days = days_of(int(sign + year), int(month or 1), int(day or 1))
    if not -(2**31) <= days < 2**31:
        raise ValueError(text)
    return days


def instant_of_text(text: str, *, zoned: bool) -> int:
    """Microseconds since 1970 of a text without spaces around it; raises ``ValueError`` for one that is no instant.

    A time of day alone is none: its date would be that of the clock. Without ``zoned`` a zone in the text does not count.
    """
    found = _INSTANT.fullmatch(text)
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
