"""Batches of windows on calendars through a state in memory, against the oracle: late rows, however rows are cut. No Spark."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.batches import Run, check
from tests.jobs.drawn import NUMBERS, OBJECTS, at, cuts, inputs, pipeline_of, some, streams
from tests.strategies import shared
from tests.windowing.calendar_cases import CALENDARS, DAY, HOUR, MINUTE, ODD, WINDOWS
from windowmill.windowing.columnar.added_columns import SLICE

BEGINNINGS = st.tuples(st.sampled_from(ODD), st.integers(-2_000, 2_000).map(lambda minutes: minutes * MINUTE)).map(sum)
ADVANCES = st.sampled_from([0, 10 * MINUTE, 3 * HOUR, 11 * HOUR, DAY, 3 * DAY, 20 * DAY])
DELAYS = st.sampled_from([30 * HOUR, 5 * HOUR, 40 * DAY, HOUR])


def over_years(lasting: st.SearchStrategy[int] | None = None) -> st.SearchStrategy[list[dict[str, object]]]:
    """Rows around odd instants of the calendar, days and weeks apart."""
    return streams(ADVANCES, DELAYS, 14, BEGINNINGS, st.integers(-1, 1), lasting)


BOUNDS = {"disorder": ("0 seconds", "2 hours", "3 days"), "lateness": ("0 seconds", "5 hours", "2 days")}


@pytest.mark.thorough
@pytest.mark.covers("I7")
@pytest.mark.parametrize("window", [*CALENDARS, "growing", "growing_shifted", "here"])
@shared(len(CALENDARS) + 3, 12)
@given(given=inputs(over_years(), cuts(15, 5), aggregates=[NUMBERS], **BOUNDS))
def test_batches_are_those_of_the_oracle(window, given):
    check(pipeline_of([window], **given[0]), **given[1])


@given(windows=some(WINDOWS, 4, 2), given=inputs(over_years(), cuts(15, 5), **BOUNDS))
def test_windows_of_all_kinds_share_their_slices(windows, given):
    check(pipeline_of(windows, **given[0]), **given[1])


@pytest.mark.thorough
@pytest.mark.covers("I7")
@pytest.mark.parametrize("window", [*CALENDARS, "growing_shifted"])
@shared(len(CALENDARS) + 1, 12)
@given(
    given=inputs(
        over_years(), cuts(15, 5), ("0 seconds", "3 hours"), ("5 hours", "2 days", "50 days"), aggregates=[OBJECTS], emits=["revise"]
    )
)
def test_revisions_follow_the_calendar(window, given):
    check(pipeline_of([window], **given[0]), **given[1])


def test_a_month_is_stored_as_one_slice_and_read_when_it_ends():
    run = Run(pipeline_of(["month"]))
    january = ODD[7] - 30 * DAY
    for day in range(31):
        run.step([at(0, t=january + day * DAY)], day)
    assert (run.rows, set(run.state[SLICE].to_pylist())) == ([], {january})
    run.step([at(0, t=january + 31 * DAY)], 31)
    assert [(found["n"], found["window_end"] - found["window_start"]) for found in run.rows] == [(31, 31 * DAY)]
    assert run.state[SLICE].to_pylist() == [january + 31 * DAY]
