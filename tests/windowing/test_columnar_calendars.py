"""Windows on the wall clock: the columnar engine against the oracle, through changes of clocks and lengths of months."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.windowing.test_columnar import EXAMPLES, assert_same
from windowing.axis import to_us
from windowing.columnar import ColumnarEngine
from windowing.errors import SpecError
from windowing.reference import Record, evaluate
from windowing.slicing.calendars import Steps, zone_named
from windowing.specfile import parse_pipeline

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
    "flushed_days": {"type": "tumbling", "evict": {"time": "1 day"}, "timezone": "Europe/Berlin"},
}
#: Minutes around the clock changes of Berlin, New York and Lord Howe in 2024, and around the ends of months.
CHANGES = [
    to_us(datetime(2024, month, day, tzinfo=UTC)) // MINUTE
    for month, day in ((3, 31), (10, 27), (3, 10), (11, 3), (4, 6), (1, 31), (2, 29))
]
MINUTES = st.one_of(*(st.integers(change - 2_000, change + 2_000) for change in CHANGES))


@pytest.mark.parametrize("window", WINDOWS)
@EXAMPLES
@given(minutes=st.lists(MINUTES, min_size=1, max_size=12), cut=st.integers(0, 12), ordered=st.booleans())
def test_calendars_agree_with_the_oracle(window: str, minutes: list[int], cut: int, ordered: bool):
    spec = parse_pipeline(
        {
            "pipeline": "p",
            "time": {"column": "t", "disorder": "2 hours"},
            "windows": [{"name": "w", **WINDOWS[window]}],
            "aggregates": {"n": {"count": "*"}, "all": {"collect": "t"}},
        }
    )
    times = [minute * MINUTE for minute in (sorted(minutes) if ordered else minutes)]
    wanted = evaluate(spec, [Record({"t": time}) for time in times])
    engine = ColumnarEngine(spec)
    for piece in (times[:cut], times[cut:]):
        engine.feed(pa.table({"t": pa.array(piece, pa.timestamp("us"))}), {})
    found, quarantined = engine.finish(final=True)
    assert quarantined == wanted.quarantined
    assert_same([{"k": None, **row} for row in found], [{"k": None, **row} for row in wanted.rows])


@given(step=st.sampled_from(["1 month", "1 day", "12 hours", "3 months"]), minutes=st.integers(-40_000_000, 40_000_000))
def test_an_index_before_an_instant_is_near_it(step: str, minutes: int):
    from windowing.durations import Duration

    steps, instant = Steps(0, Duration.parse(step), zone_named("Europe/Berlin")), minutes * MINUTE
    k = steps.before(instant)
    assert steps.at(k) <= instant
    assert steps.at(k + 2) > instant


def test_an_unknown_zone_is_refused():
    with pytest.raises(SpecError, match="IANA"):
        zone_named("Mars/Base")


def test_a_window_without_a_zone_needs_no_list():
    spec = parse_pipeline(
        {
            "pipeline": "p",
            "time": {"column": "t"},
            "windows": [{"name": "w", "type": "tumbling", "size": "1 hour"}],
            "aggregates": {"n": {"count": "*"}},
        }
    )
    engine = ColumnarEngine(spec)
    # A century between two rows: windows are numbered, so none of those between costs anything.
    engine.feed(pa.table({"t": pa.array(np.array([0, 36_525 * 24 * 60 * MINUTE]), pa.timestamp("us"))}), {})
    assert len(engine.finish(final=True)[0]) == 2
