"""Batches of windows on grids over events that last, through a state in memory, against the oracle, with late rows. No Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from deltalake import Schema
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs import test_revised_batches as revised
from tests.jobs.test_calendar_batches import CUTS, SOURCE
from tests.jobs.test_calendar_batches import arrived as as_points
from tests.jobs.test_calendar_batches import streams as over_calendars
from tests.jobs.test_revised_batches import DISORDERS, GRIDS, LATENESSES, LONG, MINUTE, OBJECTS, Run, some
from tests.strategies import shared
from tests.windowing.calendar_cases import CALENDARS, DAY, HOUR, WINDOWS
from windowmill.jobs.sources.columns import Columns
from windowmill.windowing.columnar.log import UNTIL_OF
from windowmill.windowing.columnar.slices import REACHING, SLICE
from windowmill.windowing.spec import Pipeline

#: How long events last: points, events of no length, shorter and longer than a hop, and than a window.
LENGTHS = st.sampled_from([0, 0, 1, MINUTE, 3 * MINUTE, 11 * MINUTE, 55 * MINUTE, 300 * MINUTE])
AGGREGATES: dict[str, Any] = OBJECTS | {"level": {"time_weighted_mean": "f"}, "large_level": {"time_weighted_mean": "i", "where": "i > 3"}}
COUNTS = {"n": {"count": "*"}, "whole": {"sum": "i"}}


def lasting(rows: st.SearchStrategy[list[dict[str, Any]]], lengths: st.SearchStrategy[int]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """``rows`` that last."""
    return rows.flatmap(
        lambda points: st.lists(lengths, min_size=len(points), max_size=len(points)).map(
            lambda lasts: [row | {"e": row["t"] + last} for row, last in zip(points, lasts, strict=True)]
        )
    )


def pipeline_of(windows: dict[str, dict[str, Any]], aggregates: dict[str, Any], **time: Any) -> Pipeline:
    named = [{"name": name, **window} for name, window in windows.items()]
    spec = {"pipeline": "p", "keys": ["k"], "time": {"column": "t", "end": "e", **time}, "windows": named, "aggregates": aggregates}
    return Pipeline.model_validate(spec)


class LastingRun(Run):
    """Batches of a pipeline over events that last."""

    columns = Columns.of(Schema.from_arrow(pa.schema([*SOURCE, ("e", pa.timestamp("us", "UTC"))])).to_json())

    @staticmethod
    def arrived(rows: list[dict[str, Any]]) -> pa.Table:
        return as_points(rows).append_column(UNTIL_OF, pa.array([row["e"] for row in rows], pa.int64()))

    def stored(self) -> list[tuple[str, int, int]]:
        """Key, start of the slice in minutes and family of each row of the state."""
        assert self.state is not None
        return sorted((row["k"], row[SLICE] // MINUTE, row[REACHING]) for row in self.state.to_pylist())


def check(pipeline: Pipeline, rows: list[dict[str, Any]], cuts: list[int], *, final: bool, nodes: bool = False) -> Run:
    return revised.check(pipeline, rows, cuts, final=final, nodes=nodes, kind=LastingRun)


@pytest.mark.covers("I7")
@given(
    windows=some(list(GRIDS), 1, 3),
    aggregates=st.sampled_from([COUNTS, OBJECTS, AGGREGATES]),
    rows=lasting(revised.late_streams(), LENGTHS),
    cuts=st.lists(st.integers(1, 25), max_size=12),
    disorder=DISORDERS,
    lateness=LATENESSES,
    final=st.booleans(),
)
def test_windows_over_events_that_last_are_those_of_the_oracle(
    windows: list[str],
    aggregates: dict[str, Any],
    rows: list[dict[str, Any]],
    cuts: list[int],
    disorder: str,
    lateness: str,
    final: bool,
):
    pipeline = pipeline_of({name: GRIDS[name] for name in windows}, aggregates, tie_break=["x"], disorder=disorder, lateness=lateness)
    check(pipeline, rows, cuts, final=final)


@pytest.mark.covers("I7")
@pytest.mark.parametrize("window", [*CALENDARS, "growing_shifted"])
@shared(len(CALENDARS) + 1, 12)
@given(
    rows=lasting(over_calendars(), st.sampled_from([0, HOUR, 7 * HOUR, 26 * HOUR, 9 * DAY, 70 * DAY])),
    cuts=CUTS,
    disorder=st.sampled_from(["0 seconds", "3 hours"]),
    lateness=st.sampled_from(["0 seconds", "5 hours", "50 days"]),
    final=st.booleans(),
)
def test_windows_of_a_calendar_hold_events_that_reach_into_them(
    window: str, rows: list[dict[str, Any]], cuts: list[int], disorder: str, lateness: str, final: bool
):
    pipeline = pipeline_of({window: WINDOWS[window]}, AGGREGATES, tie_break=["x"], disorder=disorder, lateness=lateness)
    check(pipeline, rows, cuts, final=final)


@pytest.mark.covers("I7")
@given(
    windows=some(["slots", "rolling", "shifted", "long", "dense"], 1, 2),
    aggregates=st.sampled_from([OBJECTS, AGGREGATES]),
    rows=lasting(revised.late_streams(), LENGTHS),
    cuts=st.lists(st.integers(1, 25), max_size=24),
    disorder=DISORDERS,
    lateness=LATENESSES,
    final=st.booleans(),
)
def test_nodes_hold_the_events_that_begin_in_their_slices(
    windows: list[str],
    aggregates: dict[str, Any],
    rows: list[dict[str, Any]],
    cuts: list[int],
    disorder: str,
    lateness: str,
    final: bool,
):
    named = {name: (GRIDS | LONG)[name] for name in windows}
    pipeline = pipeline_of(named, aggregates, tie_break=["x"], disorder=disorder, lateness=lateness)
    run = check(pipeline, rows, cuts, final=final, nodes=True)
    assert run.nodes is not None or windows == ["slots"]
