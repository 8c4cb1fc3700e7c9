"""Windows over positions, batch by batch through their state, against one run over everything. No Spark."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import ARRIVALS, Arrival, between_commits, shared
from tests.windowing.test_columnar import BOUNDS, CUTS, SCHEMA, STREAMS, WINDOWS, Row, assert_same, computed, pipeline
from tests.windowing.test_log import arrived, place, places
from windowmill.windowing.columnar.added_columns import CLOSED, DUE, KIND, LATE, NUMBER_OF, TIME
from windowmill.windowing.columnar.checksums import RowCheck
from windowmill.windowing.columnar.position_batch import advance
from windowmill.windowing.columnar.position_delta_nodes import arriving_values, split_nodes
from windowmill.windowing.columnar.position_reads import Demand, StoredSequence
from windowmill.windowing.columnar.positions import KEY_ROW, NODE, SEQUENCE, WAITING, PositionStage, PositionState
from windowmill.windowing.columnar.results import result_schema
from windowmill.windowing.columnar.rows import key_codes
from windowmill.windowing.errors import StateCorruptError
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline
from windowmill.windowing.watermark import Clock

TYPES = {field.name: field.type for field in SCHEMA}
POLICY_WINDOWS = {name: window for name, window in WINDOWS.items() if "evict" in window}
#: Numbers, picked values in order, and objects.
FEW = ("rows", "large", "total", "float_total", "greatest", "opening", "closing", "top", "everything")


def spec_of(*windows: str, **options: Any) -> Pipeline:
    made = [pipeline(POLICY_WINDOWS[name], **options) for name in windows]
    named = [spec.windows[0].model_copy(update={"name": f"w{number}"}) for number, spec in enumerate(made)]
    return made[0].model_copy(update={"aggregates": {name: made[0].aggregates[name] for name in FEW}, "windows": tuple(named)})


class Run:
    """A pipeline over positions; each batch reads of the state what it needs of the keys that it touches and of those that are due.

    With ``only_due``, it reads of a key that it does not touch only the sequences that are due, as Spark does.
    """

    def __init__(self, spec: Pipeline, *, only_due: bool = False) -> None:
        self.spec, self.clock, self.only_due = spec, Clock.of(spec), only_due
        self.layout = Layout.of(spec, TYPES)
        self.state = PositionState(spec, TYPES, self.layout)
        self.stored = self.state.stored_schema.empty_table()
        self.results: list[pa.Table] = []
        self.refused: list[int] = []
        self.commits: list[int] = []
        self.batches = self.read = 0

    def feed(self, rows: list[Row], commits: Sequence[int] | None = None, *, final: bool = False) -> None:
        """One batch; ``commits`` are the numbers of the rows' commits, each row is one unless given."""
        numbered = zip(arrived(self.commits, len(rows), commits), rows, strict=True)
        usable = [(number, row) for number, row in numbered if row.t is not None]
        times, numbers = (np.array(column, np.int64) for column in ([row.t for _, row in usable], [number for number, _ in usable]))
        self.clock, met = self.clock.arrive(times, np.ones(len(times), np.bool_), numbers)
        clock = self.clock.end() if final else self.clock
        stage = PositionStage(
            self.spec, self.layout, self.state, self.batches, clock, None, not final, result_schema(self.spec, TYPES), RowCheck("state")
        )
        lateness = self.spec.time.lateness.elapsed()
        own = [
            {
                **{name: getattr(row, name) for name in TYPES},
                condition_column("v > 2"): row.v is not None and row.v > 2,
                TIME: row.t,
                NUMBER_OF: number,
                CLOSED: int(watermark) - lateness if row.t < watermark else None,
                LATE: row.t < watermark,
            }
            for (number, row), watermark in zip(usable, met.tolist(), strict=True)
        ]
        new = pa.Table.from_pylist(own, schema=self.state.rows)
        done = advance(stage, new, self._needed(stage, new))
        self.results += done.results
        self.refused += places(done.refused)
        if done.state is not None:
            self.stored = pa.concat_tables([self.stored, done.state]).combine_chunks()
        self.clock = self.clock.passed()
        self.batches += 1

    def _needed(self, stage: PositionStage, new: pa.Table) -> pa.Table:
        stored = self.stored
        keys = pa.chunked_array([*stored.column("k").chunks, *new.column("k").chunks])
        codes, n_keys = key_codes([keys], len(keys))
        n_new = np.bincount(codes[len(stored) :], minlength=n_keys)
        demand = Demand.of(stage, stored, new, codes, n_keys)
        mask = demand.entries.copy()
        nodes = np.flatnonzero(pc.equal(stored.column(KIND), NODE).to_numpy())
        mask[nodes] = demand.holds(stored.take(nodes), codes[nodes])
        if self.state.deltas:
            greatest = arriving_values(stage, new, codes[len(stored) :], n_keys)
            found, found_keys = stored.take(nodes), codes[nodes]
            kept, leaves = split_nodes(stage, stored, codes[: len(stored)], found, found_keys, greatest, demand.active)
            mask[nodes] = (mask[nodes] & kept) | leaves.holds(found, found_keys)
        if self.only_due:
            for name in self.state.sequences:
                known = StoredSequence.of(name, stored, codes[: len(stored)], n_keys)
                works = (n_new > 0) | (known.scalar(DUE) <= stage.clock.watermark)
                mask &= pc.not_equal(stored.column(SEQUENCE), name).to_numpy() | works[codes[: len(stored)]]
        found = stored.filter(pa.array(mask))
        self.read = pc.sum(pc.equal(found.column(KIND), NODE)).as_py() or 0
        return found

    def rows(self) -> list[dict[str, Any]]:
        return pa.concat_tables(self.results).drop_columns(["batch"]).to_pylist() if self.results else []


def compare(run: Run, rows: list[Row], *, final: bool) -> None:
    wanted, quarantined = computed(run.spec, rows, [], commits=run.commits, final=final)
    found = run.rows()
    assert_same(sorted(found, key=in_order), sorted(wanted, key=in_order))
    assert sorted(run.refused) == [number for number, reason in quarantined if reason == "too_late"]


def feed_in_batches(run: Run, rows: list[Row], cuts: list[int], arrival: Arrival) -> None:
    commits = arrival.commits(len(rows))
    cuts = between_commits([cut for cut in cuts if cut <= len(rows)], commits)
    for begin, stop in pairwise([0, *cuts, len(rows)]):
        run.feed(rows[begin:stop], commits[begin:stop])


def in_order(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["window"], *place(row)


@pytest.mark.thorough
@pytest.mark.parametrize("window", POLICY_WINDOWS)
@shared(len(POLICY_WINDOWS), 6)
@given(rows=STREAMS, cuts=CUTS, arrival=ARRIVALS, bounds=BOUNDS, later=st.integers(1, 60))
def test_batches_over_positions_equal_one_run(
    window: str, rows: list[Row], cuts: list[int], arrival: Arrival, bounds: dict[str, int], later: int
):
    run = Run(spec_of(window, arrival=arrival.by, **bounds))
    feed_in_batches(run, rows, cuts, arrival)
    end = max([row.t for row in rows if row.t is not None], default=0) + later
    rows = [*rows, Row("z", end, end, None, None, None, None)]
    run.feed(rows[-1:])
    compare(run, rows, final=False)


@pytest.mark.thorough
@shared(1, 10)
@given(
    windows=st.lists(st.sampled_from(sorted(POLICY_WINDOWS)), min_size=2, max_size=4),
    rows=STREAMS,
    cuts=CUTS,
    arrival=ARRIVALS,
    bounds=BOUNDS,
    only_due=st.booleans(),
)
def test_windows_share_sequences(
    windows: list[str], rows: list[Row], cuts: list[int], arrival: Arrival, bounds: dict[str, int], only_due: bool
):
    run = Run(spec_of(*windows, arrival=arrival.by, **bounds), only_due=only_due)
    feed_in_batches(run, rows, cuts, arrival)
    compare(run, rows, final=False)
    run.feed([], final=True)
    compare(run, rows, final=True)


def test_a_batch_reads_the_leaves_that_it_may_evict_and_few_nodes():
    spec = spec_of("count_count")
    window = spec.windows[0].model_copy(update={"evict": spec.windows[0].evict.model_copy(update={"count": 300})})
    run = Run(spec.model_copy(update={"windows": (window,)}))
    rows = [Row("a", time, time, time % 7, time / 3, "x", True) for time in range(1_000)]
    for first in range(0, 1_000, 10):
        run.feed(rows[first : first + 10])
    # A tuple more than the batch's ten, because one has waited.
    assert 10 < run.read <= 11 + 2 * np.log2(300)
    compare(run, rows, final=False)


@pytest.mark.thorough
@pytest.mark.parametrize("cut", [1, 7, 40])
def test_results_are_the_same_to_the_bit_however_rows_are_cut(cut: int):
    spec = spec_of("count_count")
    window = spec.windows[0].model_copy(update={"evict": spec.windows[0].evict.model_copy(update={"count": 37})})
    spec = spec.model_copy(update={"windows": (window,)})
    rows = [Row("a", time, time, time % 7, 1 / (time + 1), "x", True) for time in range(200)]
    whole, parts = Run(spec), Run(spec)
    whole.feed(rows)
    for first in range(0, len(rows), cut):
        parts.feed(rows[first : first + cut])
    assert whole.rows() == parts.rows()
    assert whole.rows()


@pytest.mark.thorough
@pytest.mark.parametrize("cut", [7, 150])
def test_quantiles_and_moments_are_the_same_to_the_bit_however_rows_are_cut(cut: int):
    """Windows of more values than a quantile keeps, by count, time and punctuation, with late rows."""
    windows = [
        {"type": "sliding", "evict": {"count": 700}, "trigger": {"count": 30}},
        {"type": "sliding", "evict": {"time": 600}, "trigger": {"time": 50}},
        {"type": "tumbling", "evict": {"punctuation": "v > 2"}},
    ]
    aggregates = {
        "p90": {"quantile": {"column": "f", "q": 0.9}},
        "total": {"sum": "f"},
        "spread": {"stddev_samp": "f"},
        "skew": {"skewness": "f"},
    }
    spec = parse_pipeline(
        {
            "pipeline": "p",
            "keys": ["k"],
            "time": {"column": "t", "unit": "none", "disorder": 5},
            "windows": [{"name": f"w{number}"} | window for number, window in enumerate(windows)],
            "aggregates": aggregates,
        }
    )
    times = [time - time * 7 % 11 for time in range(1_500)]
    rows = [Row("ab"[n % 5 == 0], time, time, 5 if n % 400 == 0 else 1, 1 / (n * 7 % 1_499 + 1), "x", True) for n, time in enumerate(times)]
    whole, parts = Run(spec), Run(spec)
    whole.feed(rows)
    for first in range(0, len(rows), cut):
        parts.feed(rows[first : first + cut])
    found, wanted = (sorted(run.rows(), key=in_order) for run in (parts, whole))
    assert found == wanted
    assert {row["window"] for row in found} == {"w0", "w1", "w2"}
    assert sorted(parts.refused) == sorted(whole.refused)
    assert whole.refused


def held_by_a_window() -> Run:
    """A pipeline whose next batch needs a node over the first tuples."""
    run = Run(spec_of("flush_time"))
    run.feed([Row("a", time, time, 1, 1.0, "x", True) for time in (11, 11, 12, 12, 13)])
    return run


def test_a_node_that_is_gone_is_told():
    run = held_by_a_window()
    top = pc.and_(pc.equal(run.stored.column("_level"), 2), pc.equal(run.stored.column("_position"), 0))
    run.stored = run.stored.filter(pc.invert(pc.fill_null(top, False)))
    with pytest.raises(StateCorruptError, match="nodes of windows that are still open are missing"):
        run.feed([Row("a", 30, 30, 1, 1.0, "x", True)])


def test_a_row_that_is_another_is_told():
    run = held_by_a_window()
    place = run.stored.schema.get_field_index("_time")
    later = pc.add(run.stored.column("_time"), 1)
    run.stored = run.stored.set_column(place, run.stored.schema.field(place), later)
    with pytest.raises(StateCorruptError, match="differ from what was written"):
        run.feed([Row("a", 30, 30, 1, 1.0, "x", True)])


def test_a_key_that_is_due_in_one_sequence_keeps_its_state_in_the_others():
    run = Run(spec_of("count_count", "time_time"), only_due=True)
    arrived = [("a", 0), ("a", 1), ("b", 3), ("b", 9), ("b", 20), ("a", 21), ("a", 22), ("b", 30)]
    rows = [Row(key, time, time, time, 0.5, "x", True) for key, time in arrived]
    for row in rows:
        run.feed([row])
    compare(run, rows, final=False)


@pytest.mark.parametrize("kind", [KEY_ROW, WAITING, NODE])
@pytest.mark.parametrize("lost", [slice(None), slice(0, 1)], ids=["all", "first"])
def test_state_whose_rows_are_missing_is_refused(kind: str, lost: slice):
    run = Run(spec_of("count_count", "time_time"))
    run.feed([Row("a", time, time, time, 0.5, "x", True) for time in range(20)])
    places = np.flatnonzero(pc.equal(run.stored.column(KIND), kind).to_numpy())
    run.stored = run.stored.take(np.setdiff1d(np.arange(len(run.stored)), places[lost]))
    with pytest.raises(StateCorruptError, match="missing"):
        run.feed([Row("a", time, time, time, 0.5, "x", True) for time in range(20, 24)])


def test_a_waiting_tuple_that_stands_twice_is_refused():
    run = Run(spec_of("count_count"))
    run.feed([Row("a", time, time, time, 0.5, "x", True) for time in range(20)])
    run.stored = pa.concat_tables([run.stored, run.stored.filter(pc.equal(run.stored.column(KIND), WAITING))])
    with pytest.raises(StateCorruptError, match="or duplicated"):
        run.feed([Row("a", 20, 20, 20, 0.5, "x", True)])
