"""Says that a DATE, which counts at midnight UTC, is the day before on the clocks of a window's zone west of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from windowmill.windowing.spec import Pipeline

#: Midnights of a winter and of a summer day.
_MIDNIGHTS = (datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 7, 1, tzinfo=UTC))


def west_of_utc(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """The fields of time zones whose clocks are behind UTC at least a part of the year, and the zones."""
    for index, window in enumerate(pipeline.windows):
        zone = window.zone
        if zone is not None and any(at.astimezone(ZoneInfo(zone)).utcoffset() < timedelta(0) for at in _MIDNIGHTS):  # type: ignore[operator]
            yield f"windows.{index}.timezone", zone


def shifted_dates(pipeline: Pipeline, *, is_date: bool) -> str | None:
    """What happens to dates in windows of such zones; null for nothing. Without ``is_date`` the type of the time column is not known."""
    found = next(west_of_utc(pipeline), None)
    if found is None or (not is_date and pipeline.time.unit is not None):
        return None
    column, (where, zone) = pipeline.time.column, found
    dates = f"{column} is a DATE, which counts" if is_date else f"if {column} is a DATE, it counts"
    return f"{dates} at 00:00 UTC: in {zone} ({where}) that is the day before; leave timezone out, or give the source timestamps"
