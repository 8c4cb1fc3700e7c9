"""Windows on grids of all kinds, and the instants at which calendars do something odd."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from tests.specs import a_spec
from windowmill.windowing.axis import to_us
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

MINUTE = 60_000_000
HOUR, DAY = 60 * MINUTE, 1_440 * MINUTE
NEW_YORK, LONDON, LORD_HOWE, APIA = "America/New_York", "Europe/London", "Australia/Lord_Howe", "Pacific/Apia"

FIXED: dict[str, dict[str, Any]] = {
    "hours": {"type": "tumbling", "size": "1 hour"},
    "odd": {"type": "hopping", "size": "7 hours", "hop": "3 hours"},
    "here": {"type": "tumbling", "size": "24 hours", "timezone": NEW_YORK, "origin": "2024-01-01T09:30"},
    "growing": {"type": "cumulative", "size": "1 day", "step": "4 hours"},
    "growing_shifted": {"type": "cumulative", "size": "5 hours", "step": "50 minutes", "origin": "2024-01-01T00:07:00Z"},
}
CALENDARS: dict[str, dict[str, Any]] = {
    "day": {"type": "tumbling", "size": "1 day", "timezone": NEW_YORK},
    "london_weeks": {"type": "tumbling", "size": "7 days", "timezone": LONDON, "origin": "2024-01-01"},
    "half_days": {"type": "hopping", "size": "1 day", "hop": "12 hours", "timezone": LORD_HOWE},
    "quarters": {"type": "hopping", "size": "1 day", "hop": "45 minutes", "timezone": LORD_HOWE},
    "apia_days": {"type": "tumbling", "size": "1 day", "timezone": APIA},
    "apia_pairs": {"type": "hopping", "size": "2 days", "hop": "1 day", "timezone": APIA},
    "month_ends": {"type": "tumbling", "size": "1 month", "origin": "2024-01-31"},
    "month": {"type": "tumbling", "size": "1 month"},
    "three_months": {"type": "hopping", "size": "3 months", "hop": "1 month", "timezone": NEW_YORK},
    "month_daily": {"type": "hopping", "size": "1 month", "hop": "1 day", "timezone": NEW_YORK},
    "gaps": {"type": "hopping", "size": "1 day", "hop": "3 days", "timezone": LONDON},
    "month_gaps": {"type": "hopping", "size": "10 days", "hop": "1 month", "timezone": LONDON, "origin": "2024-01-31T06:30"},
    "growing_days": {"type": "cumulative", "size": "1 day", "step": "6 hours", "timezone": LONDON},
    "growing_apia": {"type": "cumulative", "size": "4 days", "step": "1 day", "timezone": APIA},
    "growing_quarter": {"type": "cumulative", "size": "3 months", "step": "1 month", "timezone": NEW_YORK},
}
WINDOWS = FIXED | CALENDARS

#: Changes of clocks, a day that is skipped, ends of months, the reform of the calendar, which has no effect, and early and late years.
ODD = [
    to_us(datetime(*date, tzinfo=UTC))
    for date in (
        *((2024, 3, 10), (2024, 11, 3), (2024, 3, 31), (2024, 10, 27), (2024, 4, 6), (2024, 10, 5)),
        *((2011, 12, 30), (2024, 1, 31), (2024, 2, 29), (1970, 1, 1), (1582, 10, 10), (2, 6, 1), (9998, 6, 1)),
    )
]


def instants(reach: int = 3 * DAY) -> st.SearchStrategy[int]:
    """Microseconds around odd instants, mostly whole minutes."""
    shifts = st.one_of(st.integers(-reach // MINUTE, reach // MINUTE).map(lambda minutes: minutes * MINUTE), st.integers(-reach, reach))
    return st.tuples(st.sampled_from(ODD), shifts).map(sum)


def pipeline_of(names: list[str], aggregates: dict[str, Any] | None = None, **time: Any) -> Pipeline:
    """A pipeline of the windows of these names."""
    windows = [{"name": name, **WINDOWS[name]} for name in names]
    return parse_pipeline(a_spec(keys=["k"], time={"column": "t"} | time, windows=windows, aggregates=aggregates or {"n": {"count": "*"}}))
