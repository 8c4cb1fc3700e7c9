"""Batches of windows on grids with ``empty: emit`` through a state in memory, against the oracle, with late rows. No Spark."""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs import test_revised_batches as revised
from tests.jobs.collecting import BackfillInput, LimitedInput, computed
from tests.jobs.test_calendar_batches import NUMBERS, VALUES
from tests.jobs.test_revised_batches import MINUTE, OBJECTS, Run, arrived, row, some
from tests.strategies import ARRIVALS, Arrival, delays, many
from tests.windowing.calendar_cases import WINDOWS
from windowmill.jobs.schedulers.local.memory import MemoryWriter
from windowmill.jobs.schedulers.local.new_rows import NewRows
from windowmill.jobs.ways.base import Loaded
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.limits import TooLargeError
from windowmill.jobs.ways.slices import Slicing, advance, load
from windowmill.windowing.columnar.added_columns import BATCH, SLICE
from windowmill.windowing.columnar.known_spans import columns_of, last_of
from windowmill.windowing.errors import LimitExceededError, StateCorruptError
from windowmill.windowing.grids import Grids
from windowmill.windowing.spec import Pipeline

GRIDS = revised.GRIDS | {name: WINDOWS[name] for name in ("day", "apia_days", "month_daily", "growing_shifted", "growing_apia", "gaps")}
LONG = revised.LONG
#: Some time, and a day before the one that Apia skips.
BEGINNINGS = st.sampled_from([1_000_000_000_000_000, 1_325_160_000_000_000])
ADVANCES = st.sampled_from([0, 1, MINUTE, 3 * MINUTE, 9 * MINUTE, 40 * MINUTE, 5_000 * MINUTE])
DELAYS = st.sampled_from([12 * MINUTE, 50 * MINUTE, 3_000 * MINUTE, 4 * MINUTE, 1])
LENGTHS = st.sampled_from(["0 seconds", "4 minutes", "30 minutes", "2 days"])


@st.composite
def sparse_streams(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows of keys that are idle for a long time, some of them late."""
    ahead = list(accumulate(draw(many(ADVANCES, 20)), initial=draw(BEGINNINGS)))
    behind = draw(delays(DELAYS))
    return [{"t": at - next(behind), **{name: draw(values) for name, values in VALUES.items()}} for at in ahead]


def pipeline_of(
    windows: dict[str, dict[str, Any]], aggregates: dict[str, Any], skipping: tuple[str, ...] = (), emit: str = "final", **time: Any
) -> Pipeline:
    named = [{"name": name, **window, "empty": "skip" if name in skipping else "emit"} for name, window in windows.items()]
    spec = {"pipeline": "p", "keys": ["k"], "time": {"column": "t", **time}, "windows": named, "aggregates": aggregates, "emit": emit}
    return Pipeline.model_validate(spec)


class FilledRun(Run):
    """Batches of a pipeline whose state keeps spans of keys."""

    def maintain(self, through: int) -> None:
        """Drop slices that no window needs, and spans that later batches have superseded, of some batches only."""
        assert self.state is not None
        spans = pc.is_null(self.state[SLICE])
        kept = pc.or_kleene(spans, pc.greater_equal(self.state[SLICE], self.slices.grids.first_slice_after(through)))
        self.state = self.state.filter(kept)
        if self.batch % 2:
            newest = self.state.filter(pc.is_null(self.state[SLICE])).group_by("k").aggregate([(BATCH, "max")]).to_pylist()
            latest = {found["k"]: found[f"{BATCH}_max"] for found in newest}
            keys, batches = self.state["k"].to_pylist(), self.state[BATCH].to_pylist()
            of_span = pc.is_null(self.state[SLICE]).to_pylist()
            needed = [not span or latest[key] == batch for span, key, batch in zip(of_span, keys, batches, strict=True)]
            self.state = self.state.filter(pa.array(needed, pa.bool_()))

    def spans(self) -> list[dict[str, Any]]:
        assert self.state is not None
        return self.state.filter(pc.is_null(self.state[SLICE])).to_pylist()


def check(pipeline: Pipeline, rows: list[dict[str, Any]], cuts: list[int], **how: Any) -> Run:
    return revised.check(pipeline, rows, cuts, **how, kind=FilledRun)


@pytest.mark.covers("I7")
@given(
    windows=some(list(GRIDS), 1, 3),
    skipping=st.sets(st.integers(1, 2)),
    aggregates=st.sampled_from([NUMBERS, OBJECTS]),
    rows=sparse_streams(),
    cuts=st.lists(st.integers(1, 20), max_size=10),
    arrival=ARRIVALS,
    bounds=st.fixed_dictionaries({"disorder": st.sampled_from(["0 seconds", "2 minutes", "1 day"]), "lateness": LENGTHS}),
    emit=st.sampled_from(["final", "revise"]),
    final=st.booleans(),
)
def test_empty_windows_are_those_of_the_oracle(
    windows: list[str],
    skipping: set[int],
    aggregates: dict[str, Any],
    rows: list[dict[str, Any]],
    cuts: list[int],
    arrival: Arrival,
    bounds: dict[str, str],
    emit: str,
    final: bool,
):
    without = tuple(name for index, name in enumerate(windows) if index in skipping)
    time = {"tie_break": ["x"], "arrival": arrival.by, **bounds}
    pipeline = pipeline_of({name: GRIDS[name] for name in windows}, aggregates, without, emit, **time)
    check(pipeline, rows, cuts, final=final, arrival=arrival)


@pytest.mark.covers("I7")
@given(
    windows=some(["slots", "rolling", "long", "dense"], 1, 2),
    rows=revised.late_streams(),
    cuts=st.lists(st.integers(1, 25), max_size=24),
    arrival=ARRIVALS,
    lateness=LENGTHS,
    final=st.booleans(),
)
def test_empty_windows_lie_among_long_ones_made_of_nodes(
    windows: list[str], rows: list[dict[str, Any]], cuts: list[int], arrival: Arrival, lateness: str, final: bool
):
    time = {"tie_break": ["x"], "lateness": lateness, "arrival": arrival.by}
    pipeline = pipeline_of({name: (GRIDS | LONG)[name] for name in windows}, OBJECTS, **time)
    run = check(pipeline, rows, cuts, final=final, arrival=arrival, nodes=True)
    assert run.nodes is not None or windows == ["slots"]


SLOTS = {"slots": GRIDS["slots"]}
COUNTS = {"n": {"count": "*"}, "whole": {"sum": "i"}}


def shown(run: Run, key: str = "a") -> list[tuple[int, int]]:
    """Start in minutes and count of the windows of ``key``."""
    return sorted((found["window_start"] // MINUTE, found["n"]) for found in run.rows if found["k"] == key)


def test_an_idle_key_gets_its_empty_windows_with_its_next_event():
    rows = [row(1), *(row(minute, k="b") for minute in (11, 25, 300)), row(31), row(302, k="b"), row(325, k="b"), row(401, k="b")]
    run = check(pipeline_of(SLOTS, COUNTS, lateness="5 hours"), rows, list(range(1, 9)), final=False)
    assert shown(run) == [(0, 1), (10, 0), (20, 0), (30, 1)]
    run = check(pipeline_of(SLOTS, COUNTS), [row(1), row(5_000, k="b"), row(5_001), row(5_050, k="b")], [1, 2, 3], final=False)
    assert shown(run) == [(0, 1), *((10 * n, 0) for n in range(1, 500)), (5_000, 1)]
    assert sum(found["whole"] or 0 for found in run.rows) == 3
    assert {found["whole"] for found in run.rows if found["n"] == 0} == {None}


def test_a_late_row_makes_a_key_known_earlier():
    window = {"rolling": {"type": "hopping", "size": "30 minutes", "hop": "10 minutes"}}
    rows = [row(95, k="b"), row(75), row(62), row(130, k="b")]
    run = check(pipeline_of(window, COUNTS, lateness="10 minutes"), rows, [1, 2, 3], final=False)
    assert shown(run) == [(40, 0), (50, 0), (60, 2), (70, 1)]


@pytest.mark.parametrize("cuts", [[], [1], [2], [3], [1, 2, 3]], ids=str)
def test_a_window_that_was_shown_empty_is_revised(cuts: list[int]):
    pipeline = pipeline_of(SLOTS, COUNTS, emit="revise", lateness="1 hour")
    known = [row(1), row(31), row(12), row(13)]
    run = check(pipeline, known, cuts, final=False)
    assert [(found["revision"], found["n"]) for found in sorted(run.rows, key=revised.place) if found["window_start"] == 10 * MINUTE] == [
        (0, 0),
        (1, 1),
        (2, 2),
    ]
    unknown = [row(1), row(31, k="b"), row(12), row(33)]
    run = check(pipeline, unknown, cuts, final=False)
    assert [(found["revision"], found["n"]) for found in run.rows if found["window_start"] == 10 * MINUTE] == [(0, 1)]


def test_late_rows_of_one_batch_are_stored_with_the_span_before_the_first_of_them():
    pipeline = pipeline_of(SLOTS, COUNTS, emit="revise", lateness="2 hours")
    rows = [row(61, k="b"), row(31), row(12), row(5), row(13), row(14)]
    run = check(pipeline, rows, [5], final=False)
    versions = [(found["revision"], found["n"]) for found in run.rows if found["window_start"] == 10 * MINUTE]
    assert versions == [(0, 1), (1, 2), (2, 3)], "when the first came nothing lay before the window"


def test_a_batch_stores_a_span_for_each_key_that_grew_and_reads_those_that_it_needs():
    run = FilledRun(pipeline_of(SLOTS, COUNTS))
    run.step([row(1), row(2, k="b"), row(3, k="c")])
    assert [(found["k"], found["_slots__first"], found["_slots__last"]) for found in run.spans()] == [(key, 0, 0) for key in "abc"]
    run.step([row(4)], 3)
    assert len(run.spans()) == 3
    run.step([row(25)], 4)
    assert run.read == 3 + 4  # spans, and what four batches added to the windows that are complete
    run.step([row(26)], 5)
    assert run.read == 2  # the two rows of a's span
    run.step([row(15, k="d"), row(36)], 6)
    assert {found["k"] for found in run.spans()} == {"a", "b", "c"}, "a row that came too late makes no key known"


def test_spans_that_are_gone_are_damage():
    run = FilledRun(pipeline_of(SLOTS, COUNTS))
    run.step([row(1), row(2, k="b")])
    assert run.state is not None
    run.state = run.state.filter(pc.is_valid(run.state[SLICE]))
    with pytest.raises(StateCorruptError, match="span rows are missing for some keys"):
        run.step([row(25)], 2)


def test_a_window_far_from_the_others_is_refused_before_the_work():
    pipeline = pipeline_of({"seconds": {"type": "tumbling", "size": "1 second"}}, COUNTS)
    run = FilledRun(pipeline)
    run.step([row(1)])
    batch = LimitedInput(**run.base, batch=1, seen=run.seen, emitted=run.emitted)
    rows = [row(1_000_000, k="b"), row(1_000_001)]
    slicing = Slicing(batch, run.slices)
    emission = Emission(rows[-1]["t"], rows[-1]["t"], run.emitted or 0, rows[-1]["t"])
    new, stored = slicing.judged(arrived(rows)), run.restored(run.state, slicing)
    with pytest.raises(TooLargeError, match="result rows at most"):
        load(new, stored, slicing, emission)
    with pytest.raises(LimitExceededError, match="window seconds: one key would have 60,0"):
        Loaded(new, stored, partial(advance, slicing.window_stage(emission))).compute(MemoryWriter())


def test_a_backfill_shows_the_empty_windows_of_its_range_alone():
    pipeline = pipeline_of(SLOTS, COUNTS)
    run = FilledRun(pipeline)
    run.base["builds_state"] = False
    slicing = Slicing(BackfillInput(**run.base), run.slices)
    stage = slicing.window_stage(Emission(None, None, 20 * MINUTE, 50 * MINUTE))
    rows = [row(1), row(22, k="b"), row(35), row(95)]
    judged = slicing.judged(arrived(rows))
    done = computed(NewRows(judged), [revised.sliced(run.slices)], [Loaded(judged, None, partial(advance, stage))], slicing.batch)
    assert done.rows is not None
    assert done.state is None
    found = [(got["k"], got["window_start"].minute, got["n"]) for got in done.rows.to_pylist()]
    assert sorted(found) == [("a", 20, 0), ("a", 30, 1), ("a", 40, 0), ("b", 20, 1)]


def test_the_columns_of_spans_are_named_by_their_windows():
    grids = Grids.of(pipeline_of({name: GRIDS[name] for name in ("slots", "day")}, COUNTS, ("slots",)))
    assert columns_of(grids.known) == ["_day__first", "_day__last"]
    assert last_of("day") == "_day__last"
