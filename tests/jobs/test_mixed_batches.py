"""Batches of pipelines whose windows go several ways, over one state table, against the oracle: late rows, cut anywhere. No Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.batches import Run, compare
from tests.jobs.batches import check as check_batches
from tests.jobs.drawn import FILLED, MINUTE, NUMBERS, OTHERS, POLICIES, SESSIONS, SOURCE, Row, at, cuts, ended, inputs, pipeline_of, some
from tests.jobs.test_session_batches import ALLOWED, visits
from tests.strategies import shared
from windowmill.checkpoints.state import compaction
from windowmill.checkpoints.state.compaction import NeededPartials, compact
from windowmill.checkpoints.state.reading import OpenSessions, WithSpans, rows_of
from windowmill.checkpoints.state.tables import joint_schema, own_rows, slice_schema
from windowmill.windowing.columnar.keyed import StateLog
from windowmill.windowing.errors import SpecError, StateCorruptError
from windowmill.windowing.grids import Span
from windowmill.windowing.layouts import divide

ON_GRIDS = ("slots", "rolling", "gappy", "days")
TYPES = Run(pipeline_of(["slots"])).base["types"]


def queried(path: str, query: str, schema: pa.Schema) -> pa.Table:
    found = pa.table(QueryBuilder().register("state", DeltaTable(path)).execute(query).read_all())
    return found.select(schema.names).cast(schema)


GIVEN = inputs(ended(visits()), cuts(15, 5), ALLOWED, ALLOWED)


def check(tmp_path_factory: pytest.TempPathFactory, windows: list[str], given: Any, compacted: list[int], emit: str = "final") -> Run:
    """A run over a state table, which is compacted between batches, or not."""

    def compacted_between(run: Run) -> None:
        if compacted[run.batch] >= 0 and set(run.divided.names) & {"positions", "live rows"} and DeltaTable.is_deltatable(run.path):
            # Also as if the last batch were still open.
            compact(run.path, run.batch - compacted[run.batch], run.divided.names, spans=run.spans)

    spec, fed = given
    path = str(tmp_path_factory.mktemp("mixed") / "state")
    return check_batches(pipeline_of(windows, **spec | {"emit": emit}), **fed | {"final": False}, path=path, between=compacted_between)


COMPACTED = st.lists(st.integers(-1, 1), min_size=20, max_size=20)


@pytest.mark.thorough
@pytest.mark.covers("I7")
@shared(1, 60)
@given(windows=some([*ON_GRIDS, *FILLED, *SESSIONS, *POLICIES, *OTHERS, "short_visit"], 3), given=GIVEN, compacted=COMPACTED)
def test_any_windows_share_rows_and_state(tmp_path_factory, windows, given, compacted):
    check(tmp_path_factory, windows, given, compacted)


@pytest.mark.thorough
@pytest.mark.covers("I7")
@shared(1, 60)
@given(
    grids=some([*ON_GRIDS, *FILLED], 2),
    visits=some(SESSIONS, 1),
    policies=some(POLICIES, 2),
    others=some([*OTHERS, "short_visit"], 2),
    given=GIVEN,
    compacted=COMPACTED,
)
def test_windows_of_all_ways_share_rows_and_state(tmp_path_factory, grids, visits, policies, others, given, compacted):
    check(tmp_path_factory, [*grids, *visits, *policies, *others], given, compacted)


@pytest.mark.thorough
@pytest.mark.covers("I7")
@shared(1, 30)
@given(
    grids=some([*ON_GRIDS, *FILLED], 2),
    visits=some(SESSIONS, 2),
    policies=some(POLICIES, 2),
    others=some(["short_visit", "spans"], 2),
    given=GIVEN,
    compacted=COMPACTED,
)
def test_revisions_by_slices_and_sessions_beside_positions_and_live_rows(
    tmp_path_factory, grids, visits, policies, others, given, compacted
):
    run = check(tmp_path_factory, [*grids, *visits, *policies, *others], given, compacted, "revise")
    assert run.divided.names == ("slices", "sessions", "positions", "live rows")


@pytest.mark.parametrize(
    ("windows", "batches", "refused", "late"),
    [
        # The tuple at minute 1 still comes after the last applied one. That at −10 lies between two windows of the grid.
        (["gappy", "visit", "last_3"], [[at(0)], [at(60)], [at(1), at(-1), at(-10)]], [3, 4], 1),
        (["days", "visit", "last_3"], [[at(0)], [at(60)], [at(-1)]], [], 1),
        (["gappy", "known_gaps"], [[at(0), at(60)], [at(-10), at(1)]], [3], 1),
    ],
    ids=["by_every_part", "counted_by_a_grid", "between_windows"],
)
def test_a_row_is_too_late_only_if_every_part_refuses_it(tmp_path, windows, batches, refused, late):
    run, rows = Run(pipeline_of(windows), str(tmp_path / "state")), list[Row]()
    for batch in batches:
        run.step(batch, len(rows))
        rows += batch
    assert (run.refused, run.late) == ([(number, "too_late") for number in refused], late)
    compare(run, rows)


ALL_WAYS = ["slots", "visit", "last_3", "three"]


@pytest.mark.parametrize("n_shares", [1, 8])
def test_compaction_keeps_the_rows_of_other_parts(tmp_path, monkeypatch, n_shares):
    monkeypatch.setattr(compaction, "MOST_SHARES", n_shares)
    monkeypatch.setattr(compaction, "SHARE_BYTES", 1 if n_shares > 1 else 1 << 30)
    run, rows = Run(pipeline_of(ALL_WAYS), str(tmp_path / "state")), [at(minute, k="abcd"[minute % 3]) for minute in range(0, 60, 4)]
    for number, row in enumerate(rows[:-1]):
        run.step([row], number)
    before = kept_by_part(run)
    removed = compact(run.path, run.batch, run.divided.names)
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
    run = Run(pipeline_of(["known", *others]), str(tmp_path / "state"))
    rows = [at(0), at(1, k="b"), at(12), at(24), at(200, k="b"), at(900), at(901, k="b"), at(999, k="c"), at(1000, k="b")]
    for number, row in enumerate(rows[:-2]):
        run.step([row], number)
    before = kept_by_part(run)
    if {"positions", "live rows"} & set(run.divided.names):
        # Slices that no window needs go, spans stay. Those of the last batch, were it open, do not supersede others.
        needed = NeededPartials.slices_from(900 * MINUTE)
        if run.divided.sessions is not None:
            needed |= NeededPartials.sessions(OpenSessions(run.divided.sessions.gaps, 0))
        compact(run.path, run.batch - 1, run.divided.names, needed, spans=run.spans)
        assert spans_of(run) == [("a", 5), ("b", 4), ("b", 6)]
        compact(run.path, run.batch, run.divided.names, needed, spans=run.spans)
    else:
        removed = compact(run.path, run.batch, run.divided.names, spans=run.spans)
        assert removed == sum(before.values()) - sum(kept_by_part(run).values())
    assert spans_of(run) == [("a", 5), ("b", 6)]
    for number, row in enumerate(rows[-2:], len(rows) - 2):
        run.step([row], number)
    compare(run, rows)
    # Of a, and of b around 200 and 900.
    assert sum(row["n"] == 0 for row in run.rows) == 87 + (19 + 69 + 9)


def test_a_key_may_be_named_as_anything_that_compacting_live_rows_computes(tmp_path):
    source = pa.schema([pa.field("age", pa.string()), *(field for field in SOURCE if field.name != "k")])
    spec = pipeline_of(["slots", "three"]).model_copy(update={"keys": ("age",)})
    run, found = Run(spec, str(tmp_path / "state"), source=source), []
    for minute in (0, 1, 2, 3):
        run.step([at(minute, age="a")], minute)
        found.append(compact(run.path, run.batch, run.divided.names))
    assert sum(found) > 0
    assert [row["n"] for row in run.rows if row["window"] == "three"] == [3]


def spans_of(run: Run) -> list[tuple[str, int]]:
    """The key and batch of each row of spans."""
    query = "SELECT * FROM state WHERE _slice IS NULL AND _known__last IS NOT NULL"
    rows = queried(run.path, query, pa.schema([("k", pa.string()), ("_batch", pa.int64())])).to_pylist()
    return sorted((row["k"], row["_batch"]) for row in rows)


def kept_by_part(run: Run) -> dict[str, int]:
    ways = run.divided.names
    schema = pa.schema([("n", pa.int64())])
    counts = {way: f"SELECT count(*) AS n FROM state WHERE {own_rows(way, ways, run.spans).sql}" for way in ways}
    return {way: queried(run.path, query, schema)["n"][0].as_py() for way, query in counts.items()}


def test_rows_are_found_by_the_statistics_of_the_first_columns(tmp_path):
    run = Run(pipeline_of([*ALL_WAYS, "known"], NUMBERS), str(tmp_path / "state"))
    run.step([at(0), at(1)], 0)
    names = DeltaTable(run.path).schema().to_arrow().names
    leading = ["k", "_bucket", "_kind", "_sequence", "_slice", "_closed", "_gap", "_node_level", "_first", "_last", "_batch"]
    assert names[:13] == [*leading, "_known__first", "_known__last"]


@pytest.mark.covers("D3")
@pytest.mark.parametrize("way", ["slices", "sessions", "positions", "live rows"])
def test_a_row_of_any_part_that_is_another_is_damage(tmp_path, way):
    run = Run(pipeline_of(ALL_WAYS, NUMBERS), str(tmp_path / "state"))
    run.step([at(0), at(1), at(3)], 0)
    column = {"slices": "_closed", "sessions": "_first", "positions": "_next", "live rows": "_number"}[way]
    own = own_rows(way, run.divided.names).sql + (" AND _kind = 'key'" if way == "positions" else "")
    assert DeltaTable(run.path).update(predicate=own, updates={column: f"coalesce({column}, 0) + 1"})["num_updated_rows"] > 0
    with pytest.raises(StateCorruptError, match="differ from what was written"):
        run.step([at(30)], 3)


def test_a_column_of_the_source_may_be_named_like_a_partial():
    spec = pipeline_of(["slots", "three"], {"n": {"count": "*"}, "most": {"max": "rows"}})
    types = TYPES | {"rows": pa.string()}
    parts = divide(spec, types)
    assert parts.slices is not None
    assert parts.rows is not None
    log = StateLog(parts.rows.pipeline, types, (), shared=True).schema
    joint = joint_schema(spec, [slice_schema({"k": pa.string()}, parts.slices.layout), log])
    assert (joint.field("rows").type, joint.field("_row__rows").type) == (pa.int64(), pa.string())


def test_columns_that_would_stand_for_two_things_are_refused():
    spec, whole = pipeline_of(["slots"]), pa.schema([("x", pa.int64())])
    for field in (pa.field("x", pa.string()), pa.field("X", pa.int64())):
        with pytest.raises(SpecError, match=f"two columns of the state would be named '{field.name}'"):
            joint_schema(spec, [whole, pa.schema([field])])


def test_a_column_of_live_rows_that_is_named_like_one_of_spans_is_refused():
    spec = pipeline_of(["known", "jumps"])
    windows = [window.model_copy(update={"name": {"known": "row"}.get(window.name, window.name)}) for window in spec.windows]
    spans = pa.schema([("_row__last", pa.int64())])
    with pytest.raises(SpecError, match="two columns of the state would be named '_row__last'; rename a window"):
        joint_schema(spec.model_copy(update={"windows": tuple(windows)}), [spans, spans])


def test_files_of_other_parts_are_not_read():
    others: dict[str, Any] = {"num_records": 3, "null_count._slice": 3, "null_count._gap": 3}
    known = WithSpans(Span(0, 10), ("_known__last",))
    assert not rows_of(known).may_hold(others | {"null_count._known__last": 3})
    assert rows_of(known).may_hold(others | {"null_count._known__last": 1})
    assert rows_of(known).may_hold(others | {"null_count._known__last": 3, "null_count._slice": 2})
    assert rows_of(known).may_hold(others)
    for wanted in (Span(0, 10), OpenSessions((5,), 0)):
        assert not rows_of(wanted).may_hold(others)
        assert rows_of(wanted).may_hold(others | {"null_count._slice": 2, "null_count._gap": 2})
        assert rows_of(wanted).may_hold({"num_records": 3})
