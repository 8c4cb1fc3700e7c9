"""Batches of windows on grids under ``emit: revise`` through a state in memory, against the oracle, with many late rows. No Spark."""

from __future__ import annotations

from itertools import accumulate, groupby
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.batches import Run, check, run_vouched, shown
from tests.jobs.drawn import GRIDS, MINUTE, NUMBERS, OBJECTS, Row, at, cuts, inputs, pipeline_of, some, streams
from tests.strategies import ARRIVALS, Arrival
from windowmill.windowing.columnar.added_columns import ARRIVAL, CLOSED, LEVEL
from windowmill.windowing.grids import grid_of

REVISED = {"emit": "revise", "lateness": "1 hour"}


def versions(run: Run, end: int | None = None) -> list[tuple[int, int]]:
    """Revision and count of the result rows in order, or of those of the window that ends at this minute."""
    return [(row["revision"], row["n"]) for row in run.rows if end is None or row["window_end"] == end * MINUTE]


@pytest.mark.covers("I7")
@given(windows=some(GRIDS, 3), given=inputs(streams(), cuts(25, 12), emits=["revise"]))
def test_revisions_are_those_of_the_oracle(windows, given):
    check(pipeline_of(windows, **given[0]), **given[1])


@pytest.mark.covers("I7")
@given(windows=some(["slots", "rolling", "shifted", "long", "dense"], 2), given=inputs(streams(), cuts(25, 24), emits=["revise"]))
def test_revisions_of_long_windows_are_made_of_nodes(windows, given):
    run = check(pipeline_of(windows, **given[0]), **given[1], nodes=True)
    assert LEVEL in run.state.column_names or windows == ["slots"]


def test_a_window_that_held_nothing_in_time_begins_with_its_first_late_row():
    run = check(pipeline_of(["slots"], **REVISED), [at(1), at(25), at(12), at(13), at(2)], [1, 2, 3, 4])
    found = [(row["window_start"] // MINUTE, row["revision"], row["n"]) for row in run.rows]
    assert found == [(0, 0, 1), (10, 0, 1), (10, 1, 2), (0, 1, 2)]


@pytest.mark.parametrize("cut", [[], [1], [1, 2]], ids=str)
def test_a_window_that_ends_at_the_watermark_is_revised(cut):
    assert versions(check(pipeline_of(["slots"], **REVISED), [at(1), at(10), at(2)], cut)) == [(0, 1), (1, 2)]


def test_late_rows_of_a_commit_share_a_row_of_the_state_and_a_revision():
    rows = [at(1), at(25), at(2), at(3), at(29), at(4), at(31), at(5)]
    #       commit 0       1             2               3
    time = {"tie_break": ["x"], **REVISED}
    run = check(pipeline_of(["slots"], NUMBERS, **time), rows, arrival=Arrival((1, 1, 2, 4)))
    late = run.state.filter(pc.is_valid(run.state[CLOSED]))
    found = zip(late[ARRIVAL].to_pylist(), late[CLOSED].to_pylist(), late["rows"].to_pylist(), strict=True)
    assert sorted(found) == [(2, 20 * MINUTE, 2), (3, 20 * MINUTE, 2)]
    assert [n for _, n in versions(run, 10)] == [1, 3, 5]
    row_by_row = check(pipeline_of(["slots"], NUMBERS, **time), rows)
    assert [n for _, n in versions(row_by_row, 10)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("cut", [[], [1], [2], [1, 2]], ids=str)
def test_late_rows_of_a_commit_revise_a_window_once_though_they_are_in_several_slices(cut):
    pipeline = pipeline_of(["rolling"], NUMBERS, tie_break=["x"], **REVISED)
    assert versions(check(pipeline, [at(1), at(25), at(6), at(2)], cut, arrival=Arrival((1, 1, 2))), 7) == [(0, 1), (1, 3)]


def test_a_batch_reads_the_slices_of_the_windows_that_its_late_rows_revise():
    window = {"rolling": {"type": "hopping", "size": "10 minutes", "hop": "1 minute"}}
    run = Run(pipeline_of(window, NUMBERS, "revise", lateness="10 hours"))
    run.step([at(minute) for minute in range(500)])
    # A window is complete. Five are revised, of which the first begins at 486.
    for number, (minute, read) in enumerate([(500.5, 10), (495.5, 15), (500.7, 0)], 500):
        run.step([at(minute)], number)
        assert run.read == read


@given(
    rows=streams(),
    ends=st.lists(st.sampled_from([-30, -5, 0, 3, 7, 20]), min_size=3, max_size=3),
    lateness=st.sampled_from([0, 4, 30]),
    arrival=ARRIVALS,
)
def test_an_interval_that_is_vouched_for_makes_its_rows_late(rows, ends, lateness, arrival):
    """All rows of a batch find the watermark of the batch before, so every commit with late rows revises the same windows."""
    compare_vouched(OBJECTS, rows, ends, lateness, arrival)


def compare_vouched(aggregates: dict[str, Any], rows: list[Row], ends: list[int], lateness: int, arrival: Arrival, **time: str) -> None:
    """The counts and revisions of a run, told plainly for windows of one key after another; ``lateness`` in minutes."""
    time |= {"watermark": "data_interval_end", "lateness": f"{lateness} minutes"}
    pipeline = pipeline_of(["slots", "rolling"], aggregates, "revise", tie_break=["x"], **time)
    run, met = run_vouched(pipeline, rows, ends, arrival)
    assert run.emitted is not None
    allowed, wanted = lateness * MINUTE, []
    for window in pipeline.windows:
        grid = grid_of(window)
        for key in sorted({found["k"] for found in rows}):
            held: dict[tuple[int, int], list[tuple[float, int]]] = {}
            for found, (watermark, moment) in zip(rows, met, strict=True):
                if found["k"] == key:
                    stop = max(found.get("e", 0), found["t"] + 1)
                    bounds = grid.ending_in(found["t"], stop + grid.longest)
                    for start, end in zip(*(bound.tolist() for bound in bounds), strict=True):
                        if start < stop and found["t"] < end and watermark - allowed < end <= run.emitted + allowed:
                            held.setdefault((end, start), []).append((watermark, moment))
            for (end, start), arrivals in held.items():
                in_time = sum(watermark < end for watermark, _ in arrivals)
                late = [len(list(together)) for _, together in groupby(moment for watermark, moment in arrivals if watermark >= end)]
                counts = list(accumulate([in_time, *late]))[0 if in_time else 1 :]
                wanted += [(key, window.name, end, start, revision, n) for revision, n in enumerate(counts)]
    names = ("k", "window", "window_end", "window_start", "revision", "n")
    assert sorted(tuple(found[name] for name in names) for found in run.rows) == sorted(wanted)


def test_a_backfill_shows_the_revisions_of_its_range_alone():
    run = Run(pipeline_of(["slots"], NUMBERS, tie_break=["x"], **REVISED))
    done = run.backfill([at(1), at(25), at(2), at(12), at(23), at(41), at(24), at(3)], 10 * MINUTE, 30 * MINUTE)
    assert done.state == []
    found = [(row["window_end"] // MINUTE, row["revision"], row["n"]) for row in shown(done)]
    assert sorted(found) == [(20, 0, 1), (30, 0, 2), (30, 1, 3)]


def test_rows_of_settled_files_bring_no_revisions():
    run = Run(pipeline_of(["slots"], **REVISED))
    run.base["snapshot_files"] = 3
    run.step([at(1), at(25), at(2)])
    assert versions(run) == [(0, 2)]


def test_a_batch_reads_the_nodes_of_the_long_windows_that_its_late_rows_revise():
    window = {"long": {"type": "hopping", "size": "400 minutes", "hop": "1 minute"}}
    run = Run(pipeline_of(window, NUMBERS, "revise", lateness="10 hours"), nodes=True)
    run.step([at(minute) for minute in range(980)])
    for minute in range(980, 1_000):
        run.step([at(minute)], minute)
    run.step([at(997.5)], 1_000)
    assert 0 < run.read <= 4 * 9  # of the windows that end at 998 and 999, between their two starts and ends
    last = [(row["window_end"] // MINUTE, row["revision"], row["n"]) for row in run.rows[-2:]]
    assert last == [(998, 1, 401), (999, 1, 401)]
    run.step([at(997.7)], 1_001)
    last = [(row["window_end"] // MINUTE, row["revision"], row["n"]) for row in run.rows[-2:]]
    assert last == [(998, 2, 402), (999, 2, 402)]
