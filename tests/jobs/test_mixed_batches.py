"""Batches of pipelines whose windows go several ways, over one state table, against the oracle: late rows, cut anywhere. No Spark."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs import test_calendar_batches
from tests.jobs.collecting import Done, LimitedInput
from tests.jobs.test_calendar_batches import CUTS, NUMBERS, OBJECTS, SOURCE, Files, arrived
from tests.jobs.test_session_batches import ALLOWED, GAPS, GRIDS, MINUTE, some, streams
from tests.strategies import ARRIVALS, Arrival, arriving, between_commits, shared
from windowmill.checkpoints.state.base import order_of
from windowmill.checkpoints.state.compaction import compact_entries, joint_schema, own_rows
from windowmill.checkpoints.state.partials import NeededRows, compact_partials, slice_schema
from windowmill.checkpoints.state.readers import DeltaState
from windowmill.checkpoints.state.wanted import OpenSessions, WithSpans, may_hold
from windowmill.jobs.schedulers.local.memory import compute
from windowmill.jobs.schedulers.local.new_rows import NewRows
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.ways.base import Part
from windowmill.jobs.ways.choose import parts_of
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.input import Input
from windowmill.jobs.ways.lateness import seen_after
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.added_columns import TIME
from windowmill.windowing.columnar.checksums import RowCheck
from windowmill.windowing.columnar.known_spans import marks_of
from windowmill.windowing.columnar.log import StateLog
from windowmill.windowing.errors import SpecError, StateCorruptError
from windowmill.windowing.nodes import Span
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.ways import divide

POLICIES: dict[str, dict[str, Any]] = {
    "last_3": {"type": "sliding", "evict": {"count": 3}, "trigger": {"count": 2}},
    "recent": {"type": "sliding", "evict": {"time": "9 minutes"}, "trigger": {"time": "4 minutes"}},
    "flush": {"type": "tumbling", "evict": {"count": 2}},
    "jumps": {"type": "sliding", "evict": {"delta": {"column": "i", "by": 2}}, "trigger": {"count": 1}},
}
OTHERS: dict[str, dict[str, Any]] = {
    "spans": {"type": "snapshot"},
    "three": {"type": "count", "count": 3},
    "short_visit": {"type": "session", "gap": "5 minutes", "max_size": "12 minutes"},
    "triples": {"type": "custom", "function": "tests.jobs.test_mixed_batches:triples"},
}
FILLED: dict[str, dict[str, Any]] = {
    "known": {"type": "tumbling", "size": "10 minutes", "empty": "emit"},
    "known_gaps": {"type": "hopping", "size": "3 minutes", "hop": "20 minutes", "empty": "emit"},
}
VISITS = {name: {"type": "session", "gap": gap} for name, gap in GAPS.items()}
WINDOWS = GRIDS | FILLED | VISITS | POLICIES | OTHERS
COLUMNS = Columns.of(Schema.from_arrow(SOURCE).to_json())


def triples(count: int | None, columns: dict[str, Any]) -> tuple[int, int, list[int]]:
    """Each row begins a window that ends after the third."""
    count = count or 0
    return count + 1, 1, [count - 2] if count > 1 else []


def rows_of(path: str, query: str, schema: pa.Schema) -> pa.Table:
    from deltalake import QueryBuilder

    found = pa.table(QueryBuilder().register("state", DeltaTable(path)).execute(query).read_all())
    return found.select(schema.names).cast(schema)


class Run:
    """The batches of a pipeline, each computed as a small one is, over a state table at ``path``."""

    def __init__(self, pipeline: Pipeline, path: str) -> None:
        self.pipeline, self.path, self.batch = pipeline, path, 0
        self.divided = divide(pipeline, COLUMNS.arrow)
        self.seen: int | None = None
        self.emitted: int | None = None
        self.rows: list[dict[str, Any]] = []
        self.refused: list[tuple[int, str]] = []
        self.commits: list[int] = []
        self.late = 0

    @property
    def spans(self) -> tuple[str, ...]:
        return () if self.divided.slices is None else marks_of(self.divided.slices.grids.known)

    @property
    def table(self) -> DeltaState:
        return DeltaState(self.path, RowCheck(self.path))

    def parts(self, batch: Input) -> list[Part]:
        return parts_of(batch, self.table)

    def step(self, rows: list[dict[str, Any]], first: int = 0, commits: Sequence[int] | None = None) -> None:
        """One batch; ``first`` numbers its rows, each of which is a commit unless ``commits`` are given."""
        check, files = RowCheck(self.path), Files.of(arriving(self.commits, len(rows), commits))
        progress: dict[str, Any] = {"batch": self.batch, "seen": self.seen, "emitted": self.emitted, "commits": files.commits}
        batch = LimitedInput(pipeline=self.pipeline, types=COLUMNS.arrow, builds_state=True, check=check, **progress)
        table = arrived(rows, files)
        # A user's function is told all columns as they are in the source.
        told = table.set_column(table.schema.get_field_index("t"), "t", table.column(TIME).cast(SOURCE.field("t").type))
        new = NewRows(told)
        self.seen = seen_after(new.table, self.seen)
        assert self.seen is not None
        after = AXIS_BEGIN if self.emitted is None else self.emitted
        through = max(after, self.seen - batch.disorder - batch.lateness)
        emission = Emission(self.seen, through, after, through)
        done = Done.of(compute(batch, self.table, new, emission))
        refused = [] if done.judged is None else files.refused(done.judged, first)
        assert done.rows_applied + len(refused) == len(rows)
        self.refused, self.late = self.refused + refused, self.late + done.rows_late
        if done.rows is not None:
            bounds = [done.rows[name].cast(pa.int64()).to_pylist() for name in ("window_start", "window_end")]
            self.rows += [row | {"window_start": a, "window_end": b} for row, a, b in zip(done.rows.to_pylist(), *bounds, strict=True)]
        if done.state is not None:
            schema = joint_schema(self.pipeline, [part.schema for part in self.parts(batch)])
            state = pa.concat_tables([schema.empty_table(), done.state], promote_options="default")
            write_deltalake(self.path, state.sort_by([(name, "ascending") for name in order_of(schema.names)]), mode="append")
        self.batch, self.emitted = self.batch + 1, through


def pipeline_of(windows: list[str], aggregates: dict[str, Any], emit: str = "final", **time: Any) -> Pipeline:
    named = [{"name": name, **WINDOWS[name]} for name in windows]
    spec = {"pipeline": "p", "keys": ["k"], "time": {"column": "t", **time}, "windows": named, "aggregates": aggregates, "emit": emit}
    return Pipeline.model_validate(spec)


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    cells = (row[name] for name in ("k", "window", "window_end", "trigger", "revision", "window_start"))
    return tuple((cell is not None, cell) for cell in cells)


def compare(run: Run, rows: list[dict[str, Any]]) -> None:
    """The result rows and refusals of ``run`` are those of the oracle."""
    test_calendar_batches.compare(run, run.pipeline, rows, final=False, place=place)


def check(run: Run, rows: list[dict[str, Any]], cuts: list[int], arrival: Arrival, compacted: list[int]) -> None:
    commits = arrival.commits(len(rows))
    for first, last in pairwise(sorted({0, *between_commits([cut for cut in cuts if cut < len(rows)], commits), len(rows)})):
        run.step(rows[first:last], first, commits[first:last])
        if compacted[run.batch] >= 0 and set(run.divided.ways) & {"positions", "live rows"} and DeltaTable.is_deltatable(run.path):
            # Also as if the last batch were still open.
            compact_entries(run.path, run.batch - compacted[run.batch], run.divided.ways, spans=run.spans)
    compare(run, rows)


@st.composite
def inputs(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]], list[int], Arrival, list[int]]:
    """Aggregates and time of a pipeline, rows, where they are cut into batches, how they arrive, and when the state is compacted."""
    arrival = draw(ARRIVALS)
    time = {"tie_break": ["x"], "disorder": draw(ALLOWED), "lateness": draw(ALLOWED), "arrival": arrival.by}
    rows = draw(streams())
    rows.append(rows[-1] | {"t": max(row["t"] for row in rows) + draw(st.sampled_from([0, 30 * MINUTE, 90 * MINUTE]))})
    compacted = draw(st.lists(st.integers(-1, 1), min_size=20, max_size=20))
    return {"aggregates": draw(st.sampled_from([NUMBERS, OBJECTS])), **time}, rows, draw(CUTS), arrival, compacted


@pytest.mark.thorough
@pytest.mark.covers("I7")
@shared(1, 60)
@given(
    grids=some([*GRIDS, *FILLED], 2),
    visits=some(list(VISITS), 1),
    policies=some(list(POLICIES), 2),
    others=some(list(OTHERS), 2),
    given=inputs(),
)
def test_windows_of_all_ways_share_rows_and_state(tmp_path_factory, grids, visits, policies, others, given):
    spec, rows, *how = given
    run = Run(pipeline_of([*grids, *visits, *policies, *others], **spec), str(tmp_path_factory.mktemp("mixed") / "state"))
    check(run, rows, *how)


@pytest.mark.thorough
@pytest.mark.covers("I7")
@shared(1, 60)
@given(windows=some(list(WINDOWS), 3), given=inputs())
def test_any_windows_go_beside_one_another(tmp_path_factory, windows, given):
    spec, rows, *how = given
    check(Run(pipeline_of(windows, **spec), str(tmp_path_factory.mktemp("mixed") / "state")), rows, *how)


@pytest.mark.thorough
@pytest.mark.covers("I7")
@shared(1, 30)
@given(
    grids=some([*GRIDS, *FILLED], 2),
    visits=some(list(VISITS), 2),
    policies=some(list(POLICIES), 2),
    others=some(["short_visit", "spans"], 2),
    given=inputs(),
)
def test_revisions_by_slices_and_sessions_beside_positions_and_live_rows(tmp_path_factory, grids, visits, policies, others, given):
    spec, rows, *how = given
    windows = [*grids, *visits, *policies, *others]
    run = Run(pipeline_of(windows, emit="revise", **spec), str(tmp_path_factory.mktemp("mixed") / "state"))
    assert run.divided.ways == ("slices", "sessions", "positions", "live rows")
    check(run, rows, *how)


ROW_OF_A: dict[str, Any] = {"k": "a", "x": 0, "i": 1, "f": 0.5, "s": "x"}


def at(minute: int, **changes: Any) -> dict[str, Any]:
    return ROW_OF_A | {"t": minute * MINUTE} | changes


def test_a_row_is_too_late_only_if_every_part_refuses_it(tmp_path):
    run = Run(pipeline_of(["gappy", "visit", "last_3"], {"n": {"count": "*"}}), str(tmp_path / "state"))
    run.step([at(0)], 0)
    run.step([at(60)], 1)
    # The tuple at minute 1 still comes after the last applied one. That at −10 lies between two windows of the grid.
    late = [at(1), at(-1), at(-10)]
    run.step(late, 2)
    assert run.refused == [(3, "too_late"), (4, "too_late")]
    assert run.late == 1
    compare(run, [at(0), at(60), *late])


def test_a_row_that_a_grid_still_counts_is_not_too_late(tmp_path):
    run = Run(pipeline_of(["days", "visit", "last_3"], {"n": {"count": "*"}}), str(tmp_path / "state"))
    rows = [at(0), at(60), at(-1)]
    for number, row in enumerate(rows):
        run.step([row], number)
    assert (run.refused, run.late) == ([], 1)
    compare(run, rows)


def test_a_row_that_lies_between_windows_is_refused_by_none_of_them(tmp_path):
    run = Run(pipeline_of(["gappy", "known_gaps"], {"n": {"count": "*"}}), str(tmp_path / "state"))
    assert run.divided.ways == ("slices",)
    run.step([at(0), at(60)], 0)
    run.step([at(-10), at(1)], 2)
    assert run.refused == [(3, "too_late")]


ALL_WAYS = ["slots", "visit", "last_3", "three"]


def test_compaction_keeps_the_rows_of_other_parts(tmp_path):
    run, rows = Run(pipeline_of(ALL_WAYS, {"n": {"count": "*"}}), str(tmp_path / "state")), [at(minute) for minute in range(0, 60, 4)]
    for number, row in enumerate(rows[:-1]):
        run.step([row], number)
    before = kept_by_part(run)
    removed = compact_entries(run.path, run.batch, run.divided.ways)
    after = kept_by_part(run)
    for part in ("slices", "sessions"):
        assert after[part] == before[part] > 0
    for part in ("positions", "live rows"):
        assert 0 < after[part] < before[part]
    assert removed == sum(before.values()) - sum(after.values())
    run.step(rows[-1:], len(rows) - 1)
    compare(run, rows)


@pytest.mark.parametrize("others", [("visit",), ("last_3",), ("jumps",), ("visit", "last_3", "jumps")])
def test_spans_are_kept_and_found_beside_the_rows_of_other_parts(tmp_path, others):
    run = Run(pipeline_of(["known", *others], {"n": {"count": "*"}}), str(tmp_path / "state"))
    rows = [at(0), at(1, k="b"), at(12), at(24), at(200, k="b"), at(900), at(901, k="b"), at(999, k="c"), at(1000, k="b")]
    for number, row in enumerate(rows[:-2]):
        run.step([row], number)
    before = kept_by_part(run)
    if {"positions", "live rows"} & set(run.divided.ways):
        # Slices that no window needs go, spans stay. Those of the last batch, were it open, do not supersede others.
        needed = NeededRows.slices_from(900 * MINUTE) | NeededRows.spans(["k"], run.spans, run.batch)
        if run.divided.sessions is not None:
            needed |= NeededRows.sessions(OpenSessions(run.divided.sessions.gaps, 0))
        compact_entries(run.path, run.batch - 1, run.divided.ways, needed, spans=run.spans)
        assert spans_of(run) == [("a", 5), ("b", 4), ("b", 6)]
        compact_entries(run.path, run.batch, run.divided.ways, needed, spans=run.spans)
    else:
        removed = compact_partials(run.path, NeededRows.all_but_old_spans(["k"], run.spans, run.batch))
        assert removed == sum(before.values()) - sum(kept_by_part(run).values())
    assert spans_of(run) == [("a", 5), ("b", 6)]
    for number, row in enumerate(rows[-2:], len(rows) - 2):
        run.step([row], number)
    compare(run, rows)
    # Of a, and of b around 200 and 900.
    assert sum(row["n"] == 0 for row in run.rows) == 87 + (19 + 69 + 9)


def test_a_key_may_be_named_as_anything_that_compacting_live_rows_computes(tmp_path, monkeypatch):
    source = pa.schema([pa.field("age", pa.string()), *(field for field in SOURCE if field.name != "k")])
    for module in (test_calendar_batches, sys.modules[__name__]):
        monkeypatch.setattr(module, "SOURCE", source)
    monkeypatch.setattr(sys.modules[__name__], "COLUMNS", Columns.of(Schema.from_arrow(source).to_json()))
    spec = pipeline_of(["slots", "three"], {"n": {"count": "*"}}).model_copy(update={"keys": ("age",)})
    run, found = Run(spec, str(tmp_path / "state")), []
    for minute in (0, 1, 2, 3):
        run.step([at(minute, age="a")], minute)
        found.append(compact_entries(run.path, run.batch, run.divided.ways))
    assert sum(found) > 0
    assert [row["n"] for row in run.rows if row["window"] == "three"] == [3]


def spans_of(run: Run) -> list[tuple[str, int]]:
    """The key and batch of each row of spans."""
    query = "SELECT * FROM state WHERE _slice IS NULL AND _known__last IS NOT NULL"
    rows = rows_of(run.path, query, pa.schema([("k", pa.string()), ("_batch", pa.int64())])).to_pylist()
    return sorted((row["k"], row["_batch"]) for row in rows)


def kept_by_part(run: Run) -> dict[str, int]:
    ways = run.divided.ways
    schema = pa.schema([("n", pa.int64())])
    counts = {way: f"SELECT count(*) AS n FROM state WHERE {own_rows(way, ways, run.spans)}" for way in ways}
    return {way: rows_of(run.path, query, schema)["n"][0].as_py() for way, query in counts.items()}


def test_rows_are_found_by_the_statistics_of_the_first_columns(tmp_path):
    run = Run(pipeline_of([*ALL_WAYS, "known"], NUMBERS), str(tmp_path / "state"))
    run.step([at(0), at(1)], 0)
    names = DeltaTable(run.path).schema().to_arrow().names
    leading = ["k", "_kind", "_sequence", "_slice", "_level", "_closed", "_gap", "_first", "_last", "_batch"]
    assert names[:12] == [*leading, "_known__first", "_known__last"]


@pytest.mark.covers("D3")
@pytest.mark.parametrize("way", ["slices", "sessions", "positions", "live rows"])
def test_a_row_of_any_part_that_is_another_is_damage(tmp_path, way):
    run = Run(pipeline_of(ALL_WAYS, NUMBERS), str(tmp_path / "state"))
    run.step([at(0), at(1), at(3)], 0)
    column = {"slices": "_closed", "sessions": "_first", "positions": "_next", "live rows": "_number"}[way]
    own = own_rows(way, run.divided.ways) + (" AND _kind = 'key'" if way == "positions" else "")
    assert DeltaTable(run.path).update(predicate=own, updates={column: f"coalesce({column}, 0) + 1"})["num_updated_rows"] > 0
    with pytest.raises(StateCorruptError, match="differ from what was written"):
        run.step([at(30)], 3)


def test_a_column_of_the_source_may_be_named_like_a_partial():
    spec = pipeline_of(["slots", "three"], {"n": {"count": "*"}, "most": {"max": "rows"}})
    types = COLUMNS.arrow | {"rows": pa.string()}
    parts = divide(spec, types)
    assert parts.slices is not None
    assert parts.rows is not None
    log = StateLog(parts.rows.pipeline, types, (), beside=True).schema
    joint = joint_schema(spec, [slice_schema({"k": pa.string()}, parts.slices.layout), log])
    assert (joint.field("rows").type, joint.field("_row__rows").type) == (pa.int64(), pa.string())


@pytest.mark.parametrize("key", ["_kind", "_Sequence", "_gap"])
def test_a_key_that_is_named_like_a_column_of_any_part_is_refused(key):
    spec = pipeline_of(["slots"], {"n": {"count": "*"}}).model_copy(update={"keys": (key,)})
    schema = pa.schema([(key, pa.string()), ("_sum", pa.int64())])
    with pytest.raises(SpecError, match=f"keys: '{key}' is taken by a column of the state"):
        joint_schema(spec, [schema, schema])


def test_columns_that_would_stand_for_two_things_are_refused():
    spec, whole = pipeline_of(["slots"], {"n": {"count": "*"}}), pa.schema([("x", pa.int64())])
    for field in (pa.field("x", pa.string()), pa.field("X", pa.int64())):
        with pytest.raises(SpecError, match=f"two columns of the state would be named '{field.name}'"):
            joint_schema(spec, [whole, pa.schema([field])])


def test_a_column_of_live_rows_that_is_named_like_one_of_spans_is_refused():
    spec = pipeline_of(["known", "jumps"], {"n": {"count": "*"}})
    windows = [window.model_copy(update={"name": {"known": "row"}.get(window.name, window.name)}) for window in spec.windows]
    spans = pa.schema([("_row__last", pa.int64())])
    with pytest.raises(SpecError, match="two columns of the state would be named '_row__last'; rename a window"):
        joint_schema(spec.model_copy(update={"windows": tuple(windows)}), [spans, spans])


def test_files_of_other_parts_are_not_read():
    others: dict[str, Any] = {"num_records": 3, "null_count._slice": 3, "null_count._gap": 3}
    known = WithSpans(Span(0, 10), ("_known__last",))
    assert not may_hold(others | {"null_count._known__last": 3}, known)
    assert may_hold(others | {"null_count._known__last": 1}, known)
    assert may_hold(others | {"null_count._known__last": 3, "null_count._slice": 2}, known)
    assert may_hold(others, known)
    for wanted in (Span(0, 10), OpenSessions((5,), 0)):
        assert not may_hold(others, wanted)
        assert may_hold(others | {"null_count._slice": 2, "null_count._gap": 2}, wanted)
        assert may_hold({"num_records": 3}, wanted)
