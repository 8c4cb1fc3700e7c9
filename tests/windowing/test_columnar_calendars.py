"""Windows on the wall clock: the columnar engine against the oracle, through changes of clocks and lengths of months."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel_runs import KernelRun
from tests.specs import a_spec
from tests.strategies import shared
from tests.windowing.test_columnar import assert_same
from windowmill.expectations.suites import identity_columns
from windowmill.windowing.axis import Duration, from_us, to_us
from windowmill.windowing.errors import SpecError
from windowmill.windowing.reference import Record, evaluate
from windowmill.windowing.slicing.edges import Steps, zone_named
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

MINUTE = 60_000_000
WINDOWS: dict[str, dict[str, Any]] = {
    "day": {"type": "tumbling", "size": "1 day", "timezone": "Europe/Berlin"},
    "half_days": {"type": "hopping", "size": "1 day", "hop": "12 hours", "timezone": "Europe/Berlin"},
    "quarters": {"type": "hopping", "size": "1 day", "hop": "45 minutes", "timezone": "Australia/Lord_Howe"},
    "week": {"type": "hopping", "size": "7 days", "hop": "1 day", "timezone": "America/New_York", "origin": "2024-01-01"},
    "month": {"type": "hopping", "size": "1 month", "hop": "1 day", "timezone": "America/New_York"},
    "month_ends": {"type": "tumbling", "size": "1 month", "origin": "2024-01-31"},
    "hours": {"type": "cumulative", "size": "1 day", "step": "6 hours", "timezone": "Europe/Berlin"},
    "days": {"type": "cumulative", "size": "3 months", "step": "1 month", "timezone": "Europe/Berlin"},
    "empty": {"type": "tumbling", "size": "1 day", "timezone": "Europe/Berlin", "empty": "emit"},
    "daily_ticks": {"type": "sliding", "evict": {"count": 3}, "trigger": {"time": "1 day"}, "origin": "2024-03-01T06:00:00Z"},
    "monthly_ticks": {"type": "sliding", "evict": {"time": "7 days"}, "trigger": {"time": "1 month"}, "origin": "2024-01-31"},
    "flushed_months": {"type": "tumbling", "evict": {"time": "1 month"}, "timezone": "America/New_York", "empty": "emit"},
    "flushed_days": {"type": "tumbling", "evict": {"time": "1 day"}, "timezone": "Europe/Berlin"},
}
#: Minutes around the clock changes of Berlin, New York and Lord Howe in 2024, and around the ends of months.
CHANGES = [
    to_us(datetime(2024, month, day, tzinfo=UTC)) // MINUTE
    for month, day in ((3, 31), (10, 27), (3, 10), (11, 3), (4, 6), (1, 31), (2, 29))
]
MINUTES = st.one_of(*(st.integers(change - 2_000, change + 2_000) for change in CHANGES))


#: Zones whose clocks change at night, at midnight, by half an hour, or once by a whole day.
ZONES = ("Europe/Berlin", "America/Sao_Paulo", "America/Havana", "Africa/Cairo", "Australia/Lord_Howe", "Asia/Kolkata", "Pacific/Apia")


def pipeline(window: dict[str, Any], **time: Any) -> Pipeline:
    axis, aggregates = {"column": "t", "disorder": "2 hours"} | time, {"n": {"count": "*"}, "all": {"collect": "t"}}
    return parse_pipeline(a_spec(time=axis, windows=[{"name": "w"} | window], aggregates=aggregates))


def computed(spec: Pipeline, batches: Sequence[Sequence[int | dict[str, int]]]) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    engine = KernelRun(spec)
    for batch in batches:
        rows = [cells if isinstance(cells, dict) else {"t": cells} for cells in batch]
        names = dict.fromkeys(["t", *(name for cells in rows for name in cells)])
        engine.feed(pa.table({name: pa.array([cells[name] for cells in rows], pa.timestamp("us")) for name in names}))
    return engine.finish(final=True)


@pytest.mark.covers("I7")
@pytest.mark.parametrize("window", WINDOWS)
@shared(len(WINDOWS), 12)
@given(minutes=st.lists(MINUTES, min_size=1, max_size=12), cut=st.integers(0, 12), ordered=st.booleans())
def test_calendars_agree_with_the_oracle(window: str, minutes: list[int], cut: int, ordered: bool):
    spec = pipeline(WINDOWS[window])
    times = [minute * MINUTE for minute in (sorted(minutes) if ordered else minutes)]
    wanted = evaluate(spec, [Record({"t": time}) for time in times])
    found, quarantined = computed(spec, [times[:cut], times[cut:]])
    assert quarantined == wanted.quarantined
    assert_same(found, wanted.rows, keys=())


@pytest.mark.parametrize("batches", [[], [[]]], ids=["at_once", "after_nothing"])
def test_an_empty_day_that_was_open_when_the_input_ended_is_told(batches: list[list[int]]):
    """The last row comes half an hour into April, too little past March 31st, which has 23 hours in Berlin, to complete it."""
    times = [to_us(datetime(2024, 3, 30, 12, tzinfo=UTC)), to_us(datetime(2024, 3, 31, 22, 30, tzinfo=UTC))]
    rows, _ = computed(pipeline(WINDOWS["empty"]), [*batches, times])
    assert [(from_us(row["window_start"]).isoformat(), from_us(row["window_end"]).isoformat(), row["n"]) for row in rows] == [
        ("2024-03-29T23:00:00+00:00", "2024-03-30T23:00:00+00:00", 1),
        ("2024-03-30T23:00:00+00:00", "2024-03-31T22:00:00+00:00", 0),
        ("2024-03-31T22:00:00+00:00", "2024-04-01T22:00:00+00:00", 1),
    ]


def test_a_skipped_day_counts_no_event_twice():
    """December 30th 2011 is missing in Apia, so two windows of the same start end at once."""
    spec = pipeline({"type": "cumulative", "size": "4 days", "step": "1 day", "timezone": "Pacific/Apia"})
    times = [to_us(datetime(2011, 12, 29, 12, tzinfo=UTC))]
    rows, _ = computed(spec, [times])
    assert rows == [dict(row) for row in evaluate(spec, [Record({"t": time}) for time in times]).rows]
    assert {row["n"] for row in rows} == {1}
    assert len({row["window_end"] for row in rows}) == len(rows)


#: Days that zones skip, as instants at which their two midnights fall together.
SKIPPED = {
    "Pacific/Apia": datetime(2011, 12, 30, 10, tzinfo=UTC),
    "Pacific/Kwajalein": datetime(1993, 8, 21, 12, tzinfo=UTC),
    "Asia/Manila": datetime(1844, 12, 30, 15, 56, 8, tzinfo=UTC),
}
AROUND: dict[str, dict[str, Any]] = {
    "day": {"type": "tumbling", "size": "1 day"},
    "shifted": {"type": "tumbling", "size": "1 day", "origin": "1840-01-01T15:00"},
    "pairs": {"type": "hopping", "size": "2 days", "hop": "1 day"},
    "gaps": {"type": "hopping", "size": "1 day", "hop": "2 days"},
    "hourly": {"type": "hopping", "size": "1 day", "hop": "6 hours"},
    "week": {"type": "hopping", "size": "7 days", "hop": "1 day"},
    "month": {"type": "tumbling", "size": "1 month"},
    "daily_month": {"type": "hopping", "size": "1 month", "hop": "1 day"},
    "growing": {"type": "cumulative", "size": "1 day", "step": "6 hours"},
    "growing_days": {"type": "cumulative", "size": "4 days", "step": "1 day"},
    "ticks": {"type": "tumbling", "evict": {"time": "1 day"}},
}


@pytest.mark.covers("I7")
@pytest.mark.parametrize("zone", SKIPPED)
@pytest.mark.parametrize("more", [{}, {"empty": "emit"}], ids=["skip", "emit"])
@pytest.mark.parametrize(
    ("window", "lasting"),
    # Policies take points.
    [
        pytest.param(window, lasting, id=f"{window}-{'lasting' if lasting else 'points'}")
        for window in AROUND
        for lasting in (False, True)
        if not (lasting and window == "ticks")
    ],
)
def test_no_window_has_no_length(window: str, zone: str, more: dict[str, Any], lasting: bool):
    rules = AROUND[window] | {"timezone": zone} | more
    spec = pipeline(rules, **({"end": "e"} if lasting else {}))
    hours = (-60, -30, -1, 0, 1, 23, 60, 24 * 40)
    times = [to_us(SKIPPED[zone]) + hour * 60 * MINUTE for hour in hours]
    records = [{"t": time} | ({"e": time + 20 * 60 * MINUTE} if lasting else {}) for time in times]
    wanted = evaluate(spec, [Record(record) for record in records]).rows
    if window != "ticks":
        assert all(row["window_start"] < row["window_end"] for row in wanted)
    same = [tuple(row[name] for name in ("trigger", *identity_columns(spec))) for row in wanted]
    assert len(set(same)) == len(same)
    for cut in (1, 3, 5):
        found, _ = computed(spec, [records[:cut], records[cut:]])
        assert_same(found, wanted, keys=())


def wall_date(instant: int, zone: str) -> date:
    return from_us(instant).astimezone(ZoneInfo(zone)).date()


def first_quarter_hour(after: int, through: int, holds: Callable[[int], bool]) -> int:
    """The first instant on a quarter of an hour in (``after``, ``through``] for which ``holds``; clocks change at no other."""
    quarter = 15 * MINUTE
    return next(instant for instant in range(after // quarter * quarter + quarter, through + 1, quarter) if holds(instant))


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("size", ["1 day", "1 month"])
@shared(2 * len(ZONES), 12)
@given(minute=st.integers(to_us(datetime(2005, 1, 1, tzinfo=UTC)) // MINUTE, to_us(datetime(2030, 1, 1, tzinfo=UTC)) // MINUTE))
def test_a_day_lasts_while_the_wall_shows_its_date(zone: str, size: str, minute: int):
    """By neither engine's calendar: the wall clock is read every quarter of an hour."""
    instant, reach = minute * MINUTE, 60_000 * MINUTE
    part = slice(0, 3 if size == "1 day" else 2)

    def same(other: int) -> bool:
        return wall_date(other, zone).timetuple()[part] == wall_date(instant, zone).timetuple()[part]

    start, end = first_quarter_hour(instant - reach, instant, same), first_quarter_hour(instant, instant + reach, lambda t: not same(t))
    spec = pipeline({"type": "tumbling", "size": size, "timezone": zone})
    [row], _ = computed(spec, [[instant]])
    [oracle] = evaluate(spec, [Record({"t": instant})]).rows
    assert (row["window_start"], row["window_end"]) == (oracle["window_start"], oracle["window_end"]) == (start, end)


@given(step=st.sampled_from(["1 month", "1 day", "12 hours", "3 months"]), minutes=st.integers(-40_000_000, 40_000_000))
def test_an_index_before_an_instant_is_near_it(step: str, minutes: int):
    steps, instant = Steps(0, Duration.parse(step), zone_named("Europe/Berlin")), minutes * MINUTE
    k = steps.before(instant)
    assert steps.at(k) <= instant
    assert steps.at(k + 2) > instant


def test_an_unknown_zone_is_refused():
    with pytest.raises(SpecError, match="IANA"):
        zone_named("Mars/Base")


def test_a_window_without_a_zone_needs_no_list():
    spec = parse_pipeline(a_spec())
    # A century between two rows: windows are numbered, so none of those between costs anything.
    assert len(computed(spec, [[0, 36_525 * 24 * 60 * MINUTE]])[0]) == 2
