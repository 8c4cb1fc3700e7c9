"""Instants at regular distances, in elapsed time or on the wall clock of a time zone.

Days and months follow the zone's wall clock; hours and shorter units are elapsed time. A wall time that a clock change skips means the
instant by the old offset; a repeated one means the first of the two. Steps are multiplied before they are added to the origin. So a day
that a month lacks becomes the last day of that month, and later months are not shortened.
"""

from __future__ import annotations

import calendar
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from windowmill.windowing.axis import T, from_us, to_us
from windowmill.windowing.durations import DAY_US, Duration
from windowmill.windowing.errors import SpecError

#: Mean month in microseconds, over the 400 years after which the calendar repeats.
_MONTH_US = 146_097 * DAY_US // 4_800
#: Bound on how far a calendar step is from the mean of its length times its number: months are up to 4 days ahead or behind, and a zone's
#: offset from UTC changes by up to 2 days.
_SLACK_US = 6 * DAY_US


def zone_named(name: str | None) -> ZoneInfo:
    """The zone, UTC by default; raises ``SpecError`` for a name that the IANA database lacks."""
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError) as err:
        raise SpecError(f"timezone: got {name!r}; expected a zone of the IANA database, such as Europe/Berlin") from err


def shifted(instant: int, months: int, days: int, zone: ZoneInfo) -> int:
    """The instant ``months`` and then ``days`` after ``instant`` on the zone's wall clock; microseconds, UTC."""
    wall = from_us(instant).astimezone(zone).replace(tzinfo=None)
    year, month = divmod(wall.year * 12 + wall.month - 1 + months, 12)
    wall = wall.replace(year=year, month=month + 1, day=min(wall.day, calendar.monthrange(year, month + 1)[1]))
    return to_us((wall + timedelta(days=days)).replace(tzinfo=zone))


def origin_of(origin: datetime | int | None, step: Duration, zone: ZoneInfo, integer_axis: bool) -> int:
    """The instant from which steps are counted; by default 1970 on the zone's wall clock for calendar steps, else 1970 in UTC.

    Raises
    ------
    SpecError
        For an instant on an integer axis, or the other way round.
    """
    if origin is None:
        return to_us(datetime(1970, 1, 1, tzinfo=zone)) if step.is_calendar else 0
    if isinstance(origin, int) != integer_axis:
        wanted = "an integer, as the axis is one (time.unit)" if integer_axis else "an instant such as 2013-01-01T00:00:00Z"
        raise SpecError(f"origin: got {origin!r}; expected {wanted}")
    if isinstance(origin, datetime):
        return to_us(origin if origin.tzinfo else origin.replace(tzinfo=zone))
    return origin


@dataclass(frozen=True)
class Steps:
    """The instants origin + k·step for every whole k.

    Examples
    --------
    >>> monthly = Steps(to_us(datetime(2024, 1, 31)), Duration(months=1), zone_named(None))
    >>> [from_us(monthly.at(k)).strftime("%m-%d") for k in range(4)]
    ['01-31', '02-29', '03-31', '04-30']
    """

    origin: int
    step: Duration
    zone: ZoneInfo

    @property
    def period(self) -> int | None:
        """The distance between neighbours if it is constant, else ``None``."""
        fixed = not self.step.months and (not self.step.days or self.zone.key == "UTC")
        return self.step.elapsed() if fixed else None

    def at(self, k: int, plus: Duration | None = None) -> int:
        """Instant ``k``; with ``plus``, the instant that calendar length later, in one step from the origin."""
        months, days, ticks = k * self.step.months, k * self.step.days, k * self.step.ticks
        if plus is not None:
            months, days, ticks = months + plus.months, days + plus.days, ticks + plus.ticks
        return (shifted(self.origin, months, days, self.zone) if months or days or self.step.is_calendar else self.origin) + ticks

    def after(self, k: int, length: Duration) -> int:
        """The instant ``length`` after instant ``k``."""
        if not length.is_calendar:
            return self.at(k) + length.ticks
        if self.step.ticks or (length.months and not self.step.months):
            return shifted(self.at(k), length.months, length.days, self.zone) + length.ticks
        return self.at(k, length)

    def indexes_around(self, instant: T) -> tuple[T, T]:
        """An index whose instant is at or before ``instant``, and one whose instant is after it; both near it, by arithmetic alone."""
        mean = self.step.ticks + self.step.days * DAY_US + self.step.months * _MONTH_US
        slack = _SLACK_US if self.step.is_calendar else 0
        return (instant - self.origin - slack) // mean, (instant - self.origin + slack) // mean + 1

    def before(self, instant: int) -> int:
        """The last index whose instant is at or before ``instant``."""
        low, high = self.indexes_around(instant)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._is_at_most(middle, instant) else (low, middle)
        return low

    def _is_at_most(self, k: int, instant: int) -> bool:
        try:
            return self.at(k) <= instant
        except (OverflowError, ValueError):  # outside the years 1 to 9999
            return k < 0

    def between(self, after: int, through: int) -> list[int]:
        """The instants in (``after``, ``through``], ascending, each once: where a zone skips a day, two steps are one instant."""
        k, instants = self.before(after) - 1, set[int]()
        while (instant := self.at(k)) <= through:
            if instant > after:
                instants.add(instant)
            k += 1
        return sorted(instants)
