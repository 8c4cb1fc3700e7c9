"""``explain`` says what the code does: slices, engines, what is kept and read, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.jobs.batches import Run
from tests.jobs.drawn import at
from windowmill.checkpoints.state.tables import slice_schema
from windowmill.jobs.batch.job import state_schema
from windowmill.windowing.columnar.added_columns import ABOVE, KIND, NODE_LEVEL, STATE_COLUMNS, SUM, TAKEN
from windowmill.windowing.columnar.keyed import StateLog
from windowmill.windowing.columnar.positions import NODE
from windowmill.windowing.errors import SpecError, UnsupportedError
from windowmill.windowing.grids import Grids, count_slices
from windowmill.windowing.layouts import divide, windows_by_layout
from windowmill.windowing.planner import CELL_BYTES, PipelinePlan, WindowPlan, plan
from windowmill.windowing.specfile import parse_pipeline

ROOT = Path(__file__).parents[2]
RUNNABLE: dict[str, Any] = {"source": {"path": "events"}, "sink": {"path": "results"}}


class Newest:
    """The value of the newest row: it depends on the order of rows."""

    def lift(self, value: float) -> float:
        return value

    def combine(self, older: float, newer: float) -> float:
        return newer

    def lower(self, partial: float) -> float:
        return partial


def planned(*windows: dict[str, Any], aggregates: dict[str, Any] | None = None, **fields: Any) -> PipelinePlan:
    named = [{"name": f"w{number}", **window} for number, window in enumerate(windows)]
    time = fields.pop("time", {"column": "t"})
    spec = {"pipeline": "p", "keys": ["k"], "time": time, "windows": named, "aggregates": aggregates or {"n": {"count": "*"}}}
    return plan(parse_pipeline(spec | RUNNABLE | fields))


def engines_of(window: WindowPlan) -> dict[str, str]:
    return {choice.aggregate: choice.engine for choice in window.choices}


@pytest.mark.parametrize("window", [{"type": "hopping", "hop": "1 second"}, {"type": "cumulative", "step": "1 second"}], ids=str)
def test_slices_of_a_calendar_that_is_too_fine_to_list_are_bounded(window):
    window = {"name": "w", "size": "1 day", "timezone": "Europe/London"} | window
    spec = {"pipeline": "p", "time": {"column": "t"}, "windows": [window], "aggregates": {"n": {"count": "*"}}}
    grids = Grids.of(parse_pipeline(spec))
    most, new = count_slices(grids.edges, grids.grids[0])
    assert 86_400 <= most <= 86_400 * 20
    assert new >= 1


def test_slicing_is_named_for_what_the_edges_are():
    panes = planned({"type": "hopping", "size": "1 hour", "hop": "5 minutes"})
    pairs = planned({"type": "hopping", "size": "10 minutes", "hop": "7 minutes"})
    shared = planned({"type": "hopping", "size": "10 minutes", "hop": "7 minutes"}, {"type": "tumbling", "size": "5 minutes"})
    assert [found.windows[0].shape.slicing for found in (panes, pairs, shared)] == ["panes", "pairs", "shared edges"]
    assert panes.windows[0].shape.why == "all edges are 5 minutes apart; one a hop"
    assert "panes of 1 minute would be 10 a window" in pairs.windows[0].shape.why
    assert "panes of 1 minute would be 10 a window" in shared.windows[0].shape.why


def test_grids_run_by_two_stacks_over_slices():
    found = planned(
        {"type": "hopping", "size": "24 hours", "hop": "5 minutes"},
        aggregates={"n": {"count": "*"}, "worst": {"max": "x"}, "mean": {"mean": "x"}},
        time={"column": "t", "disorder": "1 hour", "lateness": "1 hour"},
    )
    assert (found.command, found.refused, found.layouts, found.why) == ("run", (), ("slices",), ())
    [window] = found.windows
    assert engines_of(window) == dict.fromkeys(("n", "worst", "mean"), "two_stacks")
    assert window.choices[0].combines.value == pytest.approx(3, abs=0.01)
    # 26 hours of 5 minutes, and the slice that is being filled, and as many nodes; key, 4 columns of the table's own, rows, an extreme, a
    # sum's three, count.
    assert window.shape.state_rows == 2 * (26 * 12 + 1)
    assert found.windows[0].leaf_bytes == 8 * (1 + 4 + 1 + 1 + 3 + 1)
    assert window.state_bytes == window.shape.state_rows * found.windows[0].leaf_bytes


def test_what_is_told_of_nodes_is_what_the_state_has():
    pipeline = parse_pipeline(SPEC | RUNNABLE | {"windows": [{"name": "w", "type": "hopping", "size": "7 days", "hop": "1 minute"}]})
    found, layout = plan(pipeline), divide(pipeline, TYPES).layout
    assert layout is not None
    assert found.windows[0].leaf_bytes == 8 * len(slice_schema({"k": pa.string()}, layout, nodes=True))
    assert "the nodes and slices" in found.reads
    assert "each node" in found.adds
    short = plan(parse_pipeline(SPEC | RUNNABLE))
    assert short.windows[0].leaf_bytes == found.windows[0].leaf_bytes - 8
    assert "node" not in short.reads + short.adds


def test_a_type_that_is_not_known_is_assumed():
    aggregates = {"s": {"sum": "x"}, "n": {"count": "x"}, "on": {"bool_or": "b"}, "top": {"max": "x"}}
    found = planned({"type": "tumbling", "size": "1 hour"}, aggregates=aggregates)
    assert [aggregate.assumed for aggregate in found.aggregates] == [("float64",), ("float64",), ("bool",), ("float64",)]
    assert found.aggregates[0].partial == ("count_x", "sum_float_x__carry", "sum_float_x__sum", "sum_float_x__error")
    [of_rows] = planned({"type": "snapshot"}, aggregates={"s": {"sum": "x"}}).aggregates
    assert of_rows.partial == ()


GRID = {"name": "g", "type": "tumbling", "size": "1 hour"}
SPEC: dict[str, Any] = {"pipeline": "p", "keys": ["k"], "time": {"column": "t"}, "windows": [GRID], "aggregates": {"n": {"count": "*"}}}
TYPES = {"k": pa.string(), "x": pa.float64()}


@pytest.mark.parametrize(
    ("changed", "why", "beside"),
    [
        (
            {
                "time": {"column": "t", "end": "until"},
                "emit": "revise",
                "windows": [GRID, {"name": "w", "type": "session", "gap": "1 hour"}],
            },
            ["time.end: "],
            ["slices"],
        ),
        (
            {
                "time": {"column": "t", "end": "until"},
                "windows": [GRID, GRID | {"name": "f", "empty": "emit"}, {"name": "w", "type": "session", "gap": "1 hour"}],
            },
            ["time.end: "],
            ["slices"],
        ),
        (
            {"windows": [GRID | {"empty": "emit"}, {"name": "w", "type": "snapshot"}]},
            ["windows.1: snapshot windows are no fixed grid"],
            ["slices"],
        ),
        (
            {"windows": [GRID, {"name": "p", "type": "tumbling", "evict": {"count": 3}}, {"name": "w", "type": "snapshot"}]},
            ["windows.2: snapshot windows are no fixed grid"],
            ["slices", "positions"],
        ),
        (
            {"windows": [{"name": "w", "type": "snapshot"}]},
            ["windows.0: snapshot windows are no fixed grid"],
            [],
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) and value else "",
)
def test_what_forbids_partials_goes_by_live_rows_and_all_of_it_is_told(changed, why, beside):
    pipeline = parse_pipeline(SPEC | RUNNABLE | changed)
    found = plan(pipeline)
    assert (found.command, found.refused) == ("run", ())
    assert [told.startswith(begins) for told, begins in zip(found.why, why, strict=True)] == [True] * len(why)
    assert found.layouts == divide(pipeline, TYPES).names == (*beside, "live rows")
    if why[0].startswith("windows") and "positions" not in beside:
        with pytest.raises(UnsupportedError, match="snapshot windows are no fixed grid"):
            Grids.of(pipeline)


def test_an_aggregate_that_depends_on_the_order_of_rows_has_partials():
    windows = [GRID, {"name": "s", "type": "session", "gap": "1 hour"}, {"name": "p", "type": "sliding", "evict": {"count": 3}}]
    aggregates = {"n": {"count": "*"}, "d": {"use": "tests.windowing.test_planner:Newest", "args": ["x"]}}
    found = plan(parse_pipeline(SPEC | RUNNABLE | {"windows": windows, "aggregates": aggregates, "strict": True}))
    assert (found.layouts, found.why) == (("slices", "sessions", "positions"), ())
    assert all("at most as large as their rows" in window.shape.state for window in found.windows)


def test_each_window_goes_its_own_way():
    windows: list[dict[str, Any]] = [
        {"name": "spans", "type": "snapshot"},
        {"name": "last", "type": "sliding", "evict": {"count": 3}},
        {"name": "visits", "type": "session", "gap": "1 hour"},
        GRID,
    ]
    pipeline = parse_pipeline(SPEC | RUNNABLE | {"windows": windows})
    found, parts = plan(pipeline), divide(pipeline, TYPES)
    assert [window.layout for window in found.windows] == ["live rows", "positions", "sessions", "slices"]
    assert found.layouts == parts.names == tuple(windows_by_layout(pipeline)) == ("slices", "sessions", "positions", "live rows")
    named = [part.pipeline.windows for part in (parts.slices, parts.sessions, parts.positions, parts.rows) if part is not None]
    assert [[window.name for window in each] for each in named] == [["g"], ["visits"], ["last"], ["spans"]]
    assert [found.reads.count(told) for told in ("the slices that", "the open sessions", "the policies' scalars", "all entries")] == [1] * 4
    assert len({window.leaf_bytes for window in found.windows}) == 4


def test_revisions_of_windows_on_grids_go_by_slices_or_nodes_and_what_they_read_is_told():
    long = {"name": "w", "type": "hopping", "size": "1 day", "hop": "5 minutes"}
    for window, kept in ((GRID, "slices"), (long, "nodes")):
        found = plan(parse_pipeline(SPEC | RUNNABLE | {"windows": [window], "emit": "revise"}))
        assert (found.layouts, found.why) == (("slices",), ())
        assert found.reads.startswith("the nodes and slices" if kept == "nodes" else "the slices")
        assert "where rows came late, also those of the windows that they revise" in found.reads
        assert "late rows of a slice have rows of their own" in found.adds
        assert "a window that late rows revise" in found.windows[0].choices[0].why


BY_LAYOUT = {
    "slices": GRID,
    "sessions": {"name": "w", "type": "session", "gap": "1 hour", "max_size": "1 day"},
    "positions": {"name": "w", "type": "sliding", "evict": {"delta": {"column": "x", "by": 3}}, "trigger": {"count": 2}},
    "live rows": {"name": "w", "type": "count", "count": 3},
}


@pytest.mark.parametrize("layout", BY_LAYOUT)
@pytest.mark.parametrize("key", [*sorted(STATE_COLUMNS), "_Closed", "_Sum"])
def test_a_key_that_is_named_like_a_column_of_the_state_is_refused(layout, key):
    pipeline = parse_pipeline(SPEC | RUNNABLE | {"keys": [key], "windows": [BY_LAYOUT[layout]], "aggregates": {"s": {"sum": "x"}}})
    with pytest.raises(SpecError, match=f"keys: '{key}' is taken by a column of the state"):
        divide(pipeline, TYPES | {key: pa.string()})


@pytest.mark.parametrize(
    ("layout", "emit"),
    [*((layout, "final") for layout in BY_LAYOUT), *((layout, "revise") for layout in BY_LAYOUT if layout != "positions")],
)
def test_no_key_may_have_the_name_of_any_column_of_the_state(layout, emit):
    window = BY_LAYOUT[layout] | ({"empty": "emit"} if layout == "slices" else {})
    if emit == "revise":
        window.pop("max_size", None)
    pipeline = parse_pipeline(SPEC | RUNNABLE | {"windows": [window], "emit": emit})
    # Other names hold that of a window, a column or an aggregate.
    names = {name for name in state_schema(pipeline, TYPES).names if name.startswith("_") and "__" not in name}
    assert len(names) > 2
    assert names <= STATE_COLUMNS | set(TAKEN), "no source may have the others"


def test_sessions_that_are_revised_have_a_number_more():
    window = {"name": "visits", "type": "session", "gap": "1 hour"}
    once, again = (plan(parse_pipeline(SPEC | RUNNABLE | {"windows": [window], "emit": emit})) for emit in ("final", "revise"))
    assert (again.layouts, again.why, again.reads, again.adds) == (("sessions",), (), once.reads, once.adds)
    assert again.windows[0].leaf_bytes == once.windows[0].leaf_bytes + CELL_BYTES
    assert "each version is the one before it" in again.windows[0].choices[0].why


def test_what_a_greatest_size_of_sessions_costs_is_told():
    window = {"name": "visits", "type": "session", "gap": "1 hour"}
    whole, cut = (plan(parse_pipeline(SPEC | RUNNABLE | {"windows": [window | size]})) for size in ({}, {"max_size": "1 day"}))
    assert (cut.layouts, cut.why, cut.reads) == (("sessions",), (), whole.reads)
    assert cut.adds.startswith(whole.adds)
    assert "one for each instant of new rows" in cut.adds
    assert "a partial for each instant" in cut.windows[0].shape.state
    assert cut.windows[0].leaf_bytes > whole.windows[0].leaf_bytes
    again = plan(parse_pipeline(SPEC | RUNNABLE | {"windows": [window | {"max_size": "1 day"}], "emit": "revise"}))
    assert again.layouts == ("live rows",)
    assert again.why[0].startswith("windows.0.max_size with emit: revise: ")


def test_a_live_rows_bytes_are_those_of_an_entry():
    aggregates = {"s": {"sum": "x"}, "big": {"count": "*", "where": "x > 5"}}
    windows = [{"name": "s", "type": "snapshot"}, {"name": "c", "type": "count", "count": 50}]
    pipeline = parse_pipeline(SPEC | RUNNABLE | {"aggregates": aggregates, "windows": windows})
    found, schema = plan(pipeline), StateLog(pipeline, TYPES, ("x > 5",)).schema
    assert [window.leaf_bytes for window in found.windows] == [sum(1 if pa.types.is_boolean(kind) else 8 for kind in schema.types)] * 2


LAST_50, HOURLY = {"type": "sliding", "evict": {"count": 50}, "trigger": {"count": 10}}, {"type": "tumbling", "evict": {"time": "1 hour"}}


def test_windows_that_evict_from_the_front_run_by_flatfat_over_positions():
    found = planned(LAST_50, aggregates={"n": {"count": "*"}, "mean": {"mean": "x"}, "p95": {"quantile": {"column": "x", "q": 0.95}}})
    assert (found.command, found.refused, found.layouts, found.why) == ("run", (), ("positions",), ())
    [window] = found.windows
    assert engines_of(window) == dict.fromkeys(("n", "mean", "p95"), "flatfat")
    shape = window.shape
    assert (shape.slicing, shape.leaves) == ("positions", "the last 50 tuples")
    assert (shape.n, shape.m, shape.nodes, shape.state_rows) == (50, 10, 12, 100)
    assert shape.state.startswith("partials of the last 50 tuples, and at most as many nodes over them; tuples that wait")
    assert shape.state.endswith("(not counted: partials as bytes, summary_x of bounded size)")
    assert window.state_bytes == 100 * found.windows[0].leaf_bytes
    assert "at most 2·log2 n nodes" in found.reads
    assert "about two rows a tuple" in found.adds
    assert "one Python call a combine" in window.choices[2].why


def test_windows_that_evict_by_a_delta_run_by_flatfat_over_positions():
    window = {"type": "sliding", "evict": {"delta": {"column": "x", "by": 5}}, "trigger": {"count": 10}}
    found = planned(window, LAST_50)
    assert (found.command, found.layouts, found.why) == ("run", ("positions",), ())
    assert engines_of(found.windows[0]) == dict.fromkeys(engines_of(found.windows[0]), "flatfat")
    shape = found.windows[0].shape
    assert (shape.slicing, shape.leaves, shape.n, shape.nodes) == ("positions", "the tuples not evicted", None, None)
    assert shape.state.startswith("partials of the tuples that w0 holds, and nodes over them")
    assert found.windows[0].choices[0].combines.formula.startswith("2t·log2 n for t tuples")
    assert "where a delta evicts" in found.reads


def test_windows_that_apply_the_same_tuples_share_their_positions():
    longer, ticking = LAST_50 | {"evict": {"count": 80}}, LAST_50 | {"trigger": {"time": "5 minutes"}}
    found = planned(LAST_50, longer, ticking, HOURLY)
    assert found.layouts == ("positions",)
    states = [(window.shape.state.partition(", and at most")[0], window.shape.state_rows) for window in found.windows]
    assert states == [
        ("partials of the tuples that w0, w1 hold", 160),
        ("partials of the tuples that w0, w1 hold", 160),
        ("partials of the tuples that w2 holds", 100),
        ("partials of the tuples that w3 holds", None),
    ]
    assert [window.choices[0].combines.value for window in found.windows] == [pytest.approx(31.29), pytest.approx(32.64), None, None]


def test_a_stored_nodes_bytes_are_those_of_the_columns_that_it_has():
    spec = SPEC | RUNNABLE | {"keys": ["k"], "aggregates": {"s": {"sum": "f"}, "top": {"max": "i"}}}
    window = {"name": "w", "type": "sliding", "evict": {"count": 50}}
    pipeline = parse_pipeline(spec | {"time": {"column": "t", "unit": "none"}, "windows": [window]})
    run = Run(pipeline)
    run.step([at(minute) for minute in range(20)])
    nodes = run.state.filter(pc.equal(run.state.column(KIND), NODE))
    filled = [name for name in nodes.column_names if nodes.column(name).null_count < len(nodes) and name != SUM]
    assert {ABOVE, NODE_LEVEL} < set(filled)
    assert plan(pipeline).windows[0].leaf_bytes == 8 * len(filled)


def test_without_source_and_sink_the_same_parts_keep_their_state_in_memory():
    found = plan(parse_pipeline(SPEC | {"aggregates": {"s": {"sum": "x"}}}), refusal="source: missing")
    assert (found.command, found.refused, found.layouts, found.reads) == ("kernel", (("run", "source: missing"),), ("slices",), "")
    assert found.windows[0].leaf_bytes == plan(parse_pipeline(SPEC | RUNNABLE | {"aggregates": {"s": {"sum": "x"}}})).windows[0].leaf_bytes


def test_windows_whose_rows_are_listed_are_combined_row_by_row():
    windows = ({"type": "session", "gap": "5 minutes"}, {"type": "snapshot"}, {"type": "count", "count": 3})
    for emit, of_count in (("final", "two_stacks"), ("revise", "recompute")):
        found = planned(*windows, emit=emit)
        assert [engines_of(window)["n"] for window in found.windows] == ["recompute", "recompute", of_count]
        assert {window.choices[0].combines.formula for window in found.windows[:2]} == {"n"}


def test_a_users_window_function_is_asked_for():
    window = {"type": "custom", "function": "tests.windowing.test_planner:pairs"}
    assert engines_of(planned(window).windows[0]) == {"n": "two_stacks"}
    with pytest.raises(SpecError, match="put its folder on PYTHONPATH"):
        planned(window | {"function": "nowhere:pairs"})


def pairs(count: int | None, _event: dict[str, Any]) -> tuple[int, int, list[int]]:
    """Windows of two neighbouring events."""
    count = count or 0
    return count + 1, 1, [count - 1] if count else []


def test_means_over_time_are_clipped_to_slices_or_weighed_anew_in_each_window():
    aggregates = {"level": {"time_weighted_mean": "x"}, "n": {"count": "*"}}
    hopping, time = {"type": "hopping", "size": "1 hour", "hop": "5 minutes"}, {"column": "t", "end": "until"}
    found = planned(hopping, aggregates=aggregates, time=time)
    assert engines_of(found.windows[0]) == {"level": "two_stacks", "n": "two_stacks"}
    assert ["clipped to slices" in choice.why for choice in found.windows[0].choices] == [True, False]
    by_rows = planned({"type": "count", "count": 3}, aggregates=aggregates, time=time)
    assert engines_of(by_rows.windows[0]) == {"level": "recompute", "n": "two_stacks"}


def test_events_that_last_go_by_slices_however_often_windows_are_shown():
    hopping, time = {"type": "hopping", "size": "1 hour", "hop": "5 minutes", "empty": "emit"}, {"column": "t", "end": "until"}
    found = planned(hopping, aggregates={"level": {"time_weighted_mean": "x"}}, time=time, emit="revise")
    assert (found.layouts, found.why) == (("slices",), ())
    for told in ("windows that they revise", "spans of all keys", "events that reach into them"):
        assert told in found.reads


def test_what_events_that_last_cost_is_told():
    grids = ({"type": "hopping", "size": "1 hour", "hop": "5 minutes"}, {"type": "tumbling", "size": "1 day", "timezone": "Europe/Berlin"})
    time = {"column": "t", "end": "until"}
    points, lasting = planned(*grids), planned(*grids, time=time)
    assert lasting.reads == f"{points.reads}; where these windows begin, the rows of events that reach into them from before"
    across = "; a row for each start of a window (every 5 minutes and every 1 day) that new events last across"
    assert lasting.adds == f"{points.adds}{across}"
    weighed = planned(*grids, time=time, aggregates={"level": {"time_weighted_mean": "x"}})
    assert weighed.adds == f"{lasting.adds}, and for each other slice that they overlap, as aggregates weigh them by time"
    for window, same in zip(lasting.windows, points.windows, strict=True):
        assert window.leaf_bytes == same.leaf_bytes + 8
        assert window.shape.state_rows is not None
        assert same.shape.state_rows is not None
        assert window.shape.state_rows > same.shape.state_rows + 288
    growing = planned({"type": "cumulative", "size": "1 day", "step": "1 hour"}, time=time)
    assert growing.adds.endswith("(every 24 hours) that new events last across")


WINDOWS = [
    ({"type": "tumbling", "size": "1 hour"}, "tumbling: 1 hour"),
    ({"type": "hopping", "size": "1 hour", "hop": "5 minutes"}, "hopping: 1 hour, every 5 minutes"),
    ({"type": "hopping", "size": "5 minutes", "hop": "1 hour"}, "hopping: 5 minutes, every 1 hour"),
    ({"type": "cumulative", "size": "1 day", "step": "1 hour"}, "cumulative: 1 day, in steps of 1 hour"),
    ({"type": "session", "gap": "1 minute", "max_size": "1 hour"}, "session: gap 1 minute, at most 1 hour"),
    ({"type": "snapshot"}, "snapshot"),
    ({"type": "count", "count": 3}, "count: 3 start times"),
    ({"type": "sliding", "evict": {"count": 3}, "trigger": {"count": 3}}, "sliding: evict count 3, trigger count 3"),
    ({"type": "sliding", "evict": {"time": "1 hour"}}, "sliding: evict time 1 hour, trigger count 1"),
    ({"type": "custom", "function": "tests.windowing.test_planner:pairs"}, "custom: tests.windowing.test_planner:pairs"),
    ({"type": "tumbling", "evict": {"punctuation": "last"}}, "tumbling: evict punctuation last"),
    ({"type": "tumbling", "evict": {"delta": {"column": "x", "by": 2.5}}}, "tumbling: evict delta of x by 2.5"),
]


@pytest.mark.parametrize("emit", ["final", "revise"])
@pytest.mark.parametrize(("window", "what"), WINDOWS, ids=[what for _, what in WINDOWS])
def test_every_window_is_described(window, what, emit):
    [found] = planned(window, emit=emit).windows
    assert found.what == what
    assert all((found.shape.slicing, found.shape.why, found.shape.leaves, found.shape.new_leaves, found.shape.state))
    assert found.leaf_bytes > 0
    assert all((choice.engine, choice.why, choice.combines.formula) for choice in found.choices)


@pytest.mark.parametrize(
    ("windows", "nodes"),
    [
        ([{"type": "hopping", "size": "7 days", "hop": "1 minute"}, {"type": "tumbling", "size": "1 hour"}], [27, None]),
        ([{"type": "cumulative", "size": "1 day", "step": "1 minute"}], [None]),
        ([{"type": "hopping", "size": "1 hour", "hop": "1 minute"}], [None]),
    ],
    ids=["long", "growing", "short"],
)
def test_nodes_are_named_where_they_are_stored(windows, nodes):
    assert [window.shape.nodes for window in planned(*windows).windows] == nodes


def test_partials_of_bytes_are_named_with_what_bounds_their_size():
    aggregates = {"n": {"count": "*"}, "p95": {"quantile": {"column": "x", "q": 0.95}}, "all": {"collect": "x"}}
    grids = ({"type": "tumbling", "size": "1 hour"}, {"type": "tumbling", "size": "1 month"})
    for window in grids:
        [found] = planned(window, aggregates=aggregates).windows
        assert "(not counted: partials as bytes, summary_x of bounded size; collect_x at most as large as their rows)" in found.shape.state
        assert "slices of late rows are combined one by one" in found.choices[0].why
    [numbers] = planned(grids[0], aggregates={"n": {"count": "*"}}).windows
    assert "bytes" not in numbers.shape.state


def test_what_revisions_read_is_told_of_the_slices_beside_other_ways():
    found = plan(parse_pipeline(SPEC | RUNNABLE | {"windows": [GRID, {"name": "spans", "type": "snapshot"}], "emit": "revise"}))
    for told, of_slices in ((found.reads, "those of the windows that they revise"), (found.adds, "late rows of a slice")):
        assert -1 < told.find(of_slices) < told.find("entr")
