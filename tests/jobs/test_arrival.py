"""Which rows of a little batch came late, against a loop over them; what is compared and refused of rows set aside. No Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import example, given
from hypothesis import strategies as st

from windowmill.jobs.batch.adopting import same_quarantined
from windowmill.jobs.sources.columns import FILE, REASON, ROW
from windowmill.jobs.ways.lateness_in_process import judge, judge_by, seen_after
from windowmill.windowing.columnar.added_columns import CLOSED, LATE, TIME
from windowmill.windowing.grids import Grids
from windowmill.windowing.specfile import parse_pipeline

PIPELINE = parse_pipeline(
    {
        "pipeline": "p",
        "time": {"column": "t", "unit": "none"},
        "windows": [
            {"name": "slots", "type": "tumbling", "size": 10},
            {"name": "rolling", "type": "hopping", "size": 12, "hop": 5, "origin": 1},
        ],
        "aggregates": {"n": {"count": "*"}},
    }
)
GRIDS = Grids.of(PIPELINE).grids
Row = tuple[int, bool]
ROWS = st.lists(st.tuples(st.integers(-40, 60), st.integers(0, 9).map(bool)), min_size=1, max_size=25)


def arrived(rows: list[Row], files: list[int] | None = None) -> pa.Table:
    """Rows with their time, of which some have no usable one."""
    return pa.table(
        {
            TIME: pa.array([time if usable else None for time, usable in rows], pa.int64()),
            REASON: pa.array([None if usable else "null_time" for _, usable in rows], pa.string()),
            FILE: pa.array(files or [0] * len(rows), pa.int32()),
            ROW: pa.array(range(len(rows)), pa.int64()),
        }
    )


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


@given(rows=ROWS, seen=st.none() | st.integers(-40, 60), disorder=st.integers(0, 9), lateness=st.integers(0, 9))
# The watermark is at 20, and windows are closed through 18: at the edges, and one before them.
@example(rows=[(24, True), *((time, True) for time in range(25))], seen=None, disorder=4, lateness=2)
@example(rows=[(time, True) for time in range(30)], seen=30, disorder=0, lateness=0)
def test_each_row_is_judged_by_what_came_before_it(rows, seen, disorder, lateness):
    highest, found = float("-inf") if seen is None else seen, []
    for time, usable in rows:
        highest = max(highest, time) if usable else highest
        found.append((highest - disorder, highest - disorder - lateness))
    table = arrived(rows)
    check(judge(table, seen=seen, disorder=disorder, lateness=lateness, grids=GRIDS), rows, found)
    assert seen_after(table, seen) == (None if highest == float("-inf") else highest)


@given(rows=ROWS, seen=st.integers(-40, 60))
def test_rows_of_a_snapshot_are_never_late(rows, seen):
    split = len(rows) // 2
    files = [0] * split + [1] * (len(rows) - split)
    judged = judge(arrived(rows, files), seen=seen, disorder=0, lateness=0, grids=GRIDS, settled=1).slice(0, split)
    check(judged, rows[:split], [(float("-inf"), float("-inf"))] * split)


@given(rows=ROWS, closed=st.integers(-40, 60), lateness=st.integers(0, 9))
def test_where_the_orchestrator_vouches_rows_find_closed_what_was_emitted(rows, closed, lateness):

    judged = judge_by(arrived(rows), np.full(len(rows), closed, np.int64), lateness=lateness, grids=GRIDS)
    check(judged, rows, [(closed + lateness, closed)] * len(rows))


def set_aside(*rows: str, reason: str = "null_time") -> pa.Table:
    names = ("batch", "reason", "source_version", "row")
    return pa.table(
        [pa.array(part) for part in ([1] * len(rows), [reason] * len(rows), [0] * len(rows), [f'{{"k":"{row}"}}' for row in rows])],
        names=names,
    )


@pytest.mark.covers("P7")
def test_rows_set_aside_by_two_attempts_are_compared_each_as_often_as_it_came(tmp_path):
    path = str(tmp_path / "quarantine")
    write_deltalake(path, set_aside("a", "a", "b"))
    assert same_quarantined(set_aside("b", "a", "a"), path, 1)
    others = [set_aside("a", "b"), set_aside("a", "b", "b"), set_aside("a", "a", "c"), set_aside("a", "a", "b", reason="too_late")]
    assert not any(same_quarantined(other, path, 1) for other in others)
    assert not same_quarantined(set_aside("a", "a", "b"), path, 2)
