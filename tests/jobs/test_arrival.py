"""Which rows of a little batch came late, against a loop over them; what is compared and refused of rows set aside. No Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from tests.jobs.batches import Files
from tests.specs import TICKS, a_spec
from tests.strategies import ARRIVALS, ROW_BY_ROW, Arrival
from windowmill.jobs.layouts.input import Input
from windowmill.jobs.layouts.lateness import judged, seen_after
from windowmill.windowing.columnar.added_columns import ARRIVAL, CLOSED, FILE, LATE, ORDER, REASON, ROW, TIME
from windowmill.windowing.grids import Grids
from windowmill.windowing.specfile import parse_pipeline

ROLLING = {"name": "rolling", "type": "hopping", "size": 12, "hop": 5, "origin": 1}
SPEC = a_spec(time=TICKS, windows=[{"name": "slots", "type": "tumbling", "size": 10}, ROLLING])
GRIDS = Grids.of(parse_pipeline(SPEC)).grids
Row = tuple[int, bool]
ROWS = st.lists(st.tuples(st.integers(-40, 60), st.integers(0, 9).map(bool)), min_size=1, max_size=25)


def arrived(rows: list[Row], files: Files) -> pa.Table:
    """Rows of these files with their time, of which some have no usable one."""
    times = pa.array([time if usable else None for time, usable in rows], pa.int64())
    reasons = pa.array([None if usable else "null_time" for _, usable in rows], pa.string())
    return pa.table({TIME: times, REASON: reasons, FILE: pa.array(files.file, pa.int32()), ROW: pa.array(files.row, pa.int64())})


def judge(rows: list[Row], arrival: Arrival, emit: str = "final", time: dict[str, Any] | None = None, **progress: Any) -> pa.Table:
    """The ``rows`` as a batch judges them, with fields of the spec's ``time``, and fields of the batch."""
    pipeline = parse_pipeline(SPEC | {"time": SPEC["time"] | (time or {}), "emit": emit})
    files = Files.of(arrival.commits(len(rows)))
    batch = Input(pipeline=pipeline, types={}, commits=files.commits, **progress)
    return judged(arrived(rows, files), batch, GRIDS)


def ends(time: int) -> list[int]:
    """Ends of all windows that hold ``time``."""
    held = [range(grid.first_end_after(time), grid.last_end_holding(time) + 1, grid.hop) for grid in GRIDS]
    return sorted(end for span in held for end in span)


def check(judged: pa.Table, rows: list[Row], found: list[tuple[float, float]]) -> None:
    """Each row against the (watermark, closed) that it found."""
    told = judged.to_pylist()
    for row, (time, usable), (watermark, closed) in zip(told, rows, found, strict=True):
        if not usable:
            assert (row[REASON], row.get(CLOSED)) == ("null_time", None)
            continue
        assert row.get(LATE, False) is (time < watermark)
        assert row[REASON] == ("too_late" if max(ends(time)) <= closed else None)
        if row[REASON] is None:
            since = row.get(CLOSED)
            assert [end for end in ends(time) if since is None or end > since] == [end for end in ends(time) if end > closed]


def met_by(rows: list[Row], arrival: Arrival, seen: int | None) -> list[tuple[float, int]]:
    """For each row, the greatest event time of the commits before its own, and the number of its commit."""
    greatest = before = float("-inf") if seen is None else seen
    met, last_commit = [], -1
    for (time, usable), commit in zip(rows, arrival.commits(len(rows)), strict=True):
        if commit != last_commit:
            last_commit, before = commit, greatest
        greatest = max(greatest, time) if usable else greatest
        met.append((before, commit))
    return met


@given(rows=ROWS, arrival=ARRIVALS, seen=st.none() | st.integers(-40, 60), disorder=st.integers(0, 9), lateness=st.integers(0, 9))
# The watermark is at 20, and windows are closed through 18: at the edges, and one before them.
@example(rows=[(24, True), *((time, True) for time in range(25))], arrival=ROW_BY_ROW, seen=None, disorder=4, lateness=2)
@example(rows=[(24, True), *((time, True) for time in range(25))], arrival=Arrival((1, 25)), seen=None, disorder=4, lateness=2)
@example(rows=[(time, True) for time in range(30)], arrival=Arrival((30,)), seen=30, disorder=0, lateness=0)
def test_each_row_is_judged_by_the_commits_before_its_own(rows, arrival, seen, disorder, lateness):
    found = [(before - disorder, before - disorder - lateness) for before, _ in met_by(rows, arrival, seen)]
    check(judge(rows, arrival, time={"disorder": disorder, "lateness": lateness}, seen=seen), rows, found)
    greatest = max((time for time in (seen, *(time for time, usable in rows if usable)) if time is not None), default=None)
    assert seen_after(arrived(rows, Files.of(arrival.commits(len(rows)))), seen) == greatest


@given(rows=ROWS, arrival=ARRIVALS, seen=st.none() | st.integers(-40, 60))
def test_late_rows_have_the_number_of_their_commit(rows, arrival, seen):
    table = judge(rows, arrival, emit="revise", time={"lateness": 1_000}, seen=seen)
    if ARRIVAL not in table.column_names:
        assert not any(usable and time < before for (time, usable), (before, _) in zip(rows, met_by(rows, arrival, seen), strict=True))
        return
    found = table.to_pylist()
    orders = sorted({row[ORDER] for row in found})
    for row, (time, usable), (before, commit) in zip(found, rows, met_by(rows, arrival, seen), strict=True):
        assert orders.index(row[ORDER]) == commit
        missed = usable and min(ends(time)) <= before
        assert (row[ARRIVAL], row[CLOSED]) == ((row[ORDER], before) if missed else (None, None))


@given(rows=ROWS, arrival=ARRIVALS, seen=st.integers(-40, 60))
def test_rows_of_a_snapshot_are_never_late(rows, arrival, seen):
    files = Files.of(arrival.commits(len(rows)))
    snapshot_files = len(files.commits) // 2
    n_rows = sum(file < snapshot_files for file in files.file)
    found = judge(rows, arrival, seen=seen, snapshot_files=snapshot_files).slice(0, n_rows)
    check(found, rows[:n_rows], [(float("-inf"), float("-inf"))] * n_rows)


@given(rows=ROWS, arrival=ARRIVALS, closed=st.lists(st.integers(-40, 60), min_size=25, max_size=25), lateness=st.integers(0, 9))
def test_where_the_orchestrator_vouches_rows_find_closed_what_was_emitted(rows, arrival, closed, lateness):
    """However rows are cut into commits."""
    files = Files.of(arrival.commits(len(rows)))
    by_file = tuple(closed[: len(files.commits)])
    time = {"watermark": "data_interval_end", "lateness": lateness}
    found = judge(rows, arrival, time=time, seen=1_000, closed_by_file=by_file)
    check(found, rows, [(by_file[file] + lateness, by_file[file]) for file in files.file])
