"""What rows go through before they meet a window: the results are those of a source whose rows have gone through it beforehand."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from benchmarks.pipelines import quiet
from tests.readers import compute_by_many_tasks
from windowmill.jobs.batch import loop
from windowmill.jobs.commands.try_command import attempt
from windowmill.jobs.json_lines import result_lines
from windowmill.jobs.sources.row_steps import RowSteps
from windowmill.jobs.spec_checks import problems_of
from windowmill.jobs.verify.check import verify
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.errors import SourceSchemaError, SpecError
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

RAW = pa.schema(
    [
        ("at", pa.int64()),
        ("user", pa.struct([("id", pa.string()), ("name", pa.string())])),
        ("dep", pa.int64()),
        ("arr", pa.int64()),
        ("v", pa.string()),
        ("item", pa.struct([("price", pa.float64())])),
    ]
)
#: ``v`` replaces a column of another type, ``t`` is the event time, and ``ratio`` fails where ``dep`` is 0.
STEPS = [
    {"columns": {"t": "at * 2", "v": "dep + arr"}},
    {"filter": "dep is not null"},
    {"columns": {"ratio": "60 div dep", "double": "v * 2"}},
    {"filter": "ratio < 60"},
]
PLAIN = pa.schema(
    [
        ("user_id", pa.string()),
        ("t", pa.int64()),
        ("v", pa.int64()),
        ("ratio", pa.int64()),
        ("double", pa.int64()),
        ("item.price", pa.float64()),
    ]
)
WINDOWS = [
    {"name": "hour", "type": "hopping", "size": 60, "hop": 20},
    {"name": "last", "type": "sliding", "evict": {"count": 3}, "trigger": {"count": 2}},
    {"name": "moved", "type": "sliding", "evict": {"delta": {"column": "double", "by": 30}}, "trigger": {"count": 1}},
    {"name": "visit", "type": "session", "gap": 15},
    {"name": "three", "type": "count", "count": 3},
]
AGGREGATES = {
    "n": {"count": "*"},
    "sum": {"sum": "v"},
    "big": {"count": "*", "where": "double > 40"},
    "price": {"max": "item.price"},
    "worst": {"arg_max": ["ratio", "v"]},
}


def raw_rows(seed: int, count: int, begin: int = 0) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows = []
    for number in range(begin, begin + count):
        user = {"id": rng.choice("abc"), "name": "x"} if rng.random() < 0.97 else None
        dep = rng.choice([None, 0, 1, *range(2, 12)])
        at = None if rng.random() < 0.02 else number * 3 - rng.choice([0, 0, 0, 5, 60])
        rows.append({"at": at, "user": user, "dep": dep, "arr": rng.randrange(20), "v": "text", "item": {"price": number / 4}})
    return rows


def behind(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """``rows`` that have gone through :data:`STEPS`, without those on which one fails."""
    found = []
    for row in rows:
        if not row["dep"] or 60 // row["dep"] >= 60:
            continue
        own = {"t": None if row["at"] is None else row["at"] * 2, "v": row["dep"] + row["arr"], "ratio": 60 // row["dep"]}
        own |= {"user_id": row["user"] and row["user"]["id"], "double": 2 * own["v"], "item.price": row["item"]["price"]}
        found.append(own)
    return found


def spec_of(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "pipeline": "steps",
        "source": {"path": str(folder / "source"), "changes": "restate"},
        "sink": {"path": str(folder / "sink")},
        "keys": ["user.id"],
        "steps": STEPS,
        "time": {"column": "t", "unit": "none", "disorder": 10, "lateness": 40},
        "windows": WINDOWS,
        "aggregates": AGGREGATES,
        "quarantine": {"warn": "never", "hold": "never"},
    } | changes


def published(folder: Path) -> list[str]:
    """All rows of the sink but for their batch, in an order of their own."""
    rows = DeltaTable(folder / "sink").to_pyarrow_table().drop_columns(["batch"]).to_pylist()
    return sorted(map(repr, rows))


def quarantined(folder: Path) -> list[dict[str, Any]]:
    return DeltaTable(folder / "sink.windowmill" / "quarantine").to_pyarrow_table().to_pylist()


class Twins:
    """A pipeline with steps over raw rows, and one without over rows that have gone through them."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.raw, self.plain = folder / "raw", folder / "plain"
        self.changes = changes

    def pipelines(self) -> list[Any]:
        plain = spec_of(self.plain, keys=["user_id"], **self.changes)
        # A column that is named as a field of a struct is none of the source here.
        aggregates = {name: each if each != {"max": "item.price"} else {"max": "price"} for name, each in plain["aggregates"].items()}
        del plain["steps"]
        return [parse_pipeline(spec_of(self.raw, **self.changes)), parse_pipeline(plain | {"aggregates": aggregates})]

    def land(self, rows: list[dict[str, Any]]) -> None:
        write_deltalake(self.raw / "source", pa.Table.from_pylist(rows, RAW), mode="append")
        own = pa.Table.from_pylist(behind(rows), PLAIN)
        write_deltalake(self.plain / "source", own.rename_columns([name.replace("item.", "") for name in own.column_names]), mode="append")

    def each(self, act: Any) -> list[Any]:
        return [act(pipeline) for pipeline in self.pipelines()]

    def run(self) -> None:
        self.each(lambda pipeline: loop.run(pipeline, quiet()))
        assert published(self.raw) == published(self.plain)


#: The steps, one of which only Spark evaluates.
BY_SPARK = [{"columns": {"dep": "cast(aggregate(array(dep), 0L, (a, b) -> a + b) as bigint)"}}, *STEPS]


@pytest.fixture(params=["local", *(pytest.param(name, marks=pytest.mark.spark) for name in ("one task", "many tasks", "rows by Spark"))])
def computed_by(request, monkeypatch):
    """Who computes; and the steps."""
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local" if request.param == "local" else "spark")
    if request.param != "local":
        request.getfixturevalue("spark")
    if request.param == "many tasks":
        compute_by_many_tasks(monkeypatch)
    return request.param, BY_SPARK if request.param == "rows by Spark" else STEPS


@pytest.mark.parametrize("emit", ["final", "revise"])
def test_all_commands_compute_what_a_prepared_source_gives(tmp_path, computed_by, emit):
    by, steps = computed_by
    twins = Twins(tmp_path, emit=emit, steps=steps)
    for number in range(3):
        twins.land(raw_rows(number, 60, 60 * number))
        twins.run()
    of_steps = [row for row in quarantined(twins.raw) if row["reason"] == "bad_column"]
    assert len(of_steps) == sum(row["dep"] == 0 for number in range(3) for row in raw_rows(number, 60, 60 * number))
    assert {row["detail"] for row in of_steps} == {"ratio: 60 div dep fails on dep = 0"}
    twins.each(lambda pipeline: loop.backfill(pipeline, quiet(), begin=100, end=300))
    assert published(twins.raw) == published(twins.plain)
    twins.each(lambda pipeline: loop.restate(pipeline, quiet(), late=True))
    assert published(twins.raw) == published(twins.plain)
    DeltaTable(twins.raw / "source").update(predicate="at = 150", updates={"arr": "arr + 100"})
    DeltaTable(twins.plain / "source").update(predicate="t = 300", updates={"v": "v + 100", "double": "double + 200"})
    twins.run()
    DeltaTable(twins.raw / "source").delete("at > 60 and at < 90 and dep > 4")
    DeltaTable(twins.plain / "source").delete("t > 120 and t < 180 and ratio <= 12")
    twins.run()
    twins.changes |= {"windows": [*WINDOWS, {"name": "more", "type": "tumbling", "size": 50}]}
    twins.each(lambda pipeline: loop.apply(pipeline, quiet(), history=AXIS_BEGIN))
    assert published(twins.raw) == published(twins.plain)
    if by == "local":
        return
    for found in twins.each(lambda pipeline: verify(pipeline, quiet(), number=40, seed=3)):
        assert found.comparison.differing == []
        assert found.comparison.rows


def test_try_agrees_with_itself_and_refuses_rows_on_which_a_step_fails(tmp_path):
    rows = raw_rows(7, 80)
    spec = spec_of(tmp_path) | {"aggregates": {name: each for name, each in AGGREGATES.items() if name != "price"}}
    pipeline = parse_pipeline(spec)
    lines = "\n".join(map(json.dumps, rows)).encode()
    kernel, reference = (attempt(pipeline, lines, batch_rows=17, engine=engine) for engine in ("kernel", "reference"))
    assert list(map(dict, kernel.rows)) == list(map(dict, reference.rows))
    assert kernel.rows
    failed = [row for row in kernel.refused if row.reason == "bad_column"]
    assert [row.line - 1 for row in failed] == [place for place, row in enumerate(rows) if row["dep"] == 0]


@pytest.mark.parametrize("engine", ["kernel", "reference"])
def test_try_takes_times_that_steps_make_and_prints_instants(tmp_path, engine):
    rows = [{"m": {"at": f"2024-01-01T00:0{number}:00Z" if number != 3 else "soon"}, "ms": number} for number in range(6)]
    fields = {"windows": [{"name": "w", "type": "tumbling", "size": "2 minutes"}], "keys": [], "source": {"path": str(tmp_path / "s")}}
    steps = [{"columns": {"seen": "timestamp_millis(ms)"}}]
    spec = spec_of(tmp_path, **fields, steps=steps, aggregates={"n": {"count": "*"}, "last": {"max": "seen"}}) | {
        "time": {"column": "m.at"}
    }
    found = attempt(parse_pipeline(spec), "\n".join(map(json.dumps, rows)).encode(), engine=engine)
    assert [row["n"] for row in found.rows] == [2, 1, 2]
    assert [(row.line, row.reason, row.detail) for row in found.refused] == [(4, "bad_time", 'm.at: got "soon"; expected an instant')]
    printed = b"".join(bytes(piece) for piece in result_lines(found.rows, parse_pipeline(spec), found.instants))
    assert json.loads(printed.splitlines()[0])["last"].startswith("1970-01-01T00:00:00.001")
    with pytest.raises(SourceSchemaError, match=r"time.unit: 'm.at' is string; not an integer; leave time.unit out"):
        attempt(
            parse_pipeline(
                spec_of(tmp_path, **fields | {"windows": [{"name": "w", "type": "tumbling", "size": 2}]})
                | {"time": {"column": "m.at", "unit": "none"}, "steps": steps, "aggregates": {"n": {"count": "*"}}}
            ),
            "\n".join(map(json.dumps, rows)).encode(),
            engine=engine,
        )


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([{"columns": {"x": "dep + nothing"}}], "'nothing'"),
        ([{"columns": {"x": "y + 1"}}, {"columns": {"y": "dep"}}], "'y'"),
        ([{"columns": {"x": "null"}}], "expected a value that a table can hold"),
        ([{"columns": {"x": "user.nothing"}}], "only Spark evaluates field 'nothing'"),
        ([{"columns": {"user_id": "user.id"}}, {"columns": {"t": "user"}}], "time.column"),
    ],
    ids=str,
)
def test_steps_that_do_not_fit_the_source_are_refused(tmp_path, steps, problem):
    write_deltalake(tmp_path / "source", pa.Table.from_pylist(raw_rows(1, 5), RAW))
    spec = spec_of(tmp_path, steps=[{"columns": {"t": "at"}}, *steps], windows=WINDOWS[:1], aggregates={"n": {"count": "*"}})
    with pytest.raises((SourceSchemaError, SpecError), match=problem):
        loop.run(parse_pipeline(spec), quiet())


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([{}], "got none; expected one of columns, lookup and filter"),
        ([{"filter": "a", "columns": {"x": "a"}}], "got columns and filter; expected one of"),
        ([{"columns": {"x": "a", "X": "b"}}], "'x' is given twice"),
        ([{"columns": {}}], "steps.0.columns"),
        ([{"lookup": {}}], "lookup"),
    ],
    ids=str,
)
def test_what_is_no_step_is_refused(tmp_path, steps, problem):
    with pytest.raises(SpecError, match=problem):
        parse_pipeline(spec_of(tmp_path, steps=steps))


@pytest.mark.parametrize("text", ["rand()", "sum(dep)", "dep +", "current_date()"])
def test_expressions_that_are_none_over_one_row_are_problems_of_the_spec(tmp_path, text):
    [(where, _)] = problems_of(
        parse_pipeline(spec_of(tmp_path, steps=[{"columns": {"t": "at", "double": text, "v": "dep", "ratio": "dep"}}]))
    )
    assert where == "steps.0.columns.double"


@pytest.mark.local
@pytest.mark.parametrize("emit", ["final", "revise"])
@pytest.mark.parametrize("change", ["filter", "steps", "no steps"])
def test_other_steps_and_filters_are_applied_to_all_of_history(tmp_path, emit, change):
    """The latest view, and that of later runs, is of a pipeline which had them from the beginning."""
    fields = {"aggregates": {"n": {"count": "*"}, "sum": {"sum": "arr"}, "late": {"count": "*", "where": "dep > 5"}}, "emit": emit}
    fields["windows"] = json.loads(json.dumps(WINDOWS).replace("double", "arr"))
    plain = fields | {"keys": ["user.id"], "steps": [{"columns": {"t": "at * 2"}}]}
    other = {
        "filter": {"source": {"filter": "arr > 4", "changes": "restate"}},
        "steps": {"steps": [{"columns": {"t": "at * 2", "arr": "arr * 10"}}, {"filter": "dep is not null"}]},
        "no steps": {"steps": [{"columns": {"t": "at * 2"}}]},
    }[change]
    first = plain | (other if change != "no steps" else {"steps": [*plain["steps"], {"filter": "arr < 9"}]})
    before, now = (plain, first) if change != "no steps" else (first, plain)
    both = {}
    for name in ("changed", "fresh"):
        folder = tmp_path / name
        pipelines = []
        for changes in (before, now):
            spec = spec_of(folder, **changes)
            spec["source"] = {"path": str(folder / "source"), "changes": "restate"} | changes.get("source", {})
            pipelines.append(parse_pipeline(spec))
        for number in range(4):
            write_deltalake(folder / "source", pa.Table.from_pylist(raw_rows(number, 40, 40 * number), RAW), mode="append")
            if name == "changed" and number == 2:
                loop.apply(pipelines[1], quiet(), history=AXIS_BEGIN)
            loop.run(pipelines[name == "fresh" or number >= 2], quiet())
        rows = DeltaTable(folder / "sink").to_pyarrow_table().to_pylist()
        newest: dict[Any, dict[str, Any]] = {}
        for row in sorted(rows, key=lambda row: row["revision"]):
            bounds = (row["window_start"], row["window_end"]) if row["trigger"] is None else ()
            newest[row["user_id"], row["window"], row["trigger"], bounds] = row
        both[name] = sorted(repr(row | {"batch": 0, "revision": 0}) for row in newest.values() if not row["retracted"])
    assert both["changed"] == both["fresh"]
    assert both["fresh"]


def run_once(folder: Path, rows: list[dict[str, Any]], **changes: Any) -> list[dict[str, Any]]:
    """The rows that one run publishes of ``rows``, of which the last one closes the windows of the others."""
    write_deltalake(folder / "source", pa.Table.from_pylist(rows))
    windows = [{"name": "w", "type": "tumbling", "size": 10}]
    spec = spec_of(folder, steps=[], keys=[], time={"column": "at", "unit": "none"}, windows=windows)
    loop.run(parse_pipeline(spec | changes), quiet())
    return DeltaTable(folder / "sink").to_pyarrow_table().to_pylist()


JSON = [
    {"at": 1, "item": '{"price": 9}', "box": {"item": '{"price": 9}'}},
    {"at": 2, "item": '{"price": 10}', "box": {"item": '{"price": 10}'}},
    {"at": 99, "item": None, "box": None},
]


@pytest.mark.parametrize(("text", "greatest"), [("cast(item.price as int)", 10), ("7", 7)])
def test_a_column_that_a_step_makes_may_have_the_name_of_a_field(tmp_path, text, greatest):
    steps = [{"columns": {"item.price": text}}]
    [row] = run_once(tmp_path, JSON, steps=steps, aggregates={"greatest": {"max": "item.price"}})
    assert row["greatest"] == greatest


@pytest.mark.parametrize("name", ["item.price", "box.item.price"])
def test_a_field_of_json_is_refused_where_its_order_matters(tmp_path, name):
    with pytest.raises(SpecError, match="a field of JSON, a text; give it a type by a step"):
        run_once(tmp_path, JSON, aggregates={"greatest": {"max": name}})


def test_half_a_surrogate_pair_in_a_field_of_json_is_no_text(tmp_path):
    rows = [{"at": 1, "item": r'{"a": "\ud800", "b": ["\udfff"], "c": "\ud83d\ude00"}'}, {"at": 99, "item": None}]
    [row] = run_once(tmp_path, rows, steps=[{"columns": {"ab": "coalesce(item.a, item.b, item.c)"}}], aggregates={"text": {"first": "ab"}})
    assert row["text"] == "😀"


@pytest.mark.spark
def test_spark_evaluates_no_step_on_rows_that_have_been_taken_out(tmp_path, monkeypatch, spark):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "spark")
    rows = [{"at": at, "dep": dep} for at, dep in [(1, 2), (2, 0), (99, 1)]]
    divided = "12 div aggregate(array(dep), 0L, (a, b) -> a + b)"
    steps = [{"columns": {"ratio": "6 div dep"}}, {"columns": {"x": f"cast({divided} as bigint)"}}, {"filter": f"{divided} > 1"}]
    [row] = run_once(tmp_path, rows, steps=steps, aggregates={"sum": {"sum": "x"}})
    assert row["sum"] == 6
    assert [row["reason"] for row in quarantined(tmp_path)] == ["bad_column"]


def test_an_aggregate_over_another_field_of_a_struct_is_applied_and_dropped(tmp_path):
    twins = Twins(tmp_path, emit="revise")
    twins.land(raw_rows(1, 60))
    twins.run()
    for more in ({"dearest": {"max": "item.price"}, "names": {"count": "user.name"}}, {"names": {"count": "user.name"}}, {}):
        aggregates = {name: each for name, each in AGGREGATES.items() if name != "price"} | more
        loop.apply(parse_pipeline(spec_of(twins.raw, emit="revise", aggregates=aggregates)), quiet(), history=AXIS_BEGIN)
    rows = DeltaTable(twins.raw / "sink").to_pyarrow_table()
    assert {"dearest", "names"} <= set(rows.column_names)


def test_a_struct_of_which_steps_read_fields_may_get_more_of_them(tmp_path):
    changes = {"steps": [{"columns": {"price": "box.price + 1"}}], "aggregates": {"price": {"max": "price"}, "box": {"max": "box.size"}}}
    run_once(tmp_path, [{"at": 1, "box": {"price": 1, "size": 2}}, {"at": 11, "box": {"price": 3, "size": 4}}], **changes)
    rows = [{"at": 21, "box": {"price": 5, "colour": "red", "size": 6}}, {"at": 31, "box": None}]
    write_deltalake(tmp_path / "source", pa.Table.from_pylist(rows), mode="append", schema_mode="merge")
    windows = [{"name": "w", "type": "tumbling", "size": 10}]
    loop.run(parse_pipeline(spec_of(tmp_path, keys=[], time={"column": "at", "unit": "none"}, windows=windows, **changes)), quiet())
    found = DeltaTable(tmp_path / "sink").to_pyarrow_table().sort_by("window_end").to_pylist()
    assert [(row["price"], row["box"]) for row in found] == [(2, 2), (4, 4), (6, 6)]


def test_a_column_with_a_dot_in_its_name_is_read_where_no_struct_has_the_field():
    pipeline = parse_pipeline(spec_of(Path("/nowhere"), steps=[], keys=["a.b"], aggregates={"sum": {"sum": "c.d"}}, windows=WINDOWS[:1]))
    steps = RowSteps.of(pipeline, {"t": pa.int64(), "a.b": pa.string(), "c.d": pa.int32()})
    assert steps.made == {"a_b": pa.string(), "c.d": pa.int32()}
    assert steps.columns_read((), ["t", "a.b", "c.d"]) == ["a.b", "c.d"]
    assert steps.over(pa.table({"a.b": ["x"], "c.d": pa.array([3], pa.int32())})).select(["a_b", "c.d"]).to_pylist() == [
        {"a_b": "x", "c.d": 3}
    ]


@pytest.mark.local
def test_without_history_windows_that_are_open_get_the_rows_of_another_filter(tmp_path):
    """Also those that came before the change, of which the state holds partials of other rows."""
    fields = {"windows": [{"name": "long", "type": "hopping", "size": 200, "hop": 20}], "aggregates": {"n": {"count": "*"}}, "keys": []}
    fields |= {"time": {"column": "at", "unit": "none"}, "steps": [], "sink": {"path": str(tmp_path / "sink")}}
    rows = [{"at": number, "dep": number % 5} for number in range(400)]
    source = {"path": str(tmp_path / "source")}
    for begin in (0, 200):
        write_deltalake(tmp_path / "source", pa.Table.from_pylist(rows[begin : begin + 200]), mode="append")
        pipeline = parse_pipeline(spec_of(tmp_path, **fields, source=source | ({"filter": "dep > 1"} if begin else {})))
        if begin:
            loop.apply(pipeline, quiet(), history=None)
        loop.run(pipeline, quiet())
    counts = {row["window_end"]: row["n"] for row in DeltaTable(tmp_path / "sink").to_pyarrow_table().to_pylist()}
    assert counts[180] == 180
    assert (counts[200], counts[300], counts[380]) == (120, 120, 120)


@pytest.mark.parametrize("steps", [[], STEPS], ids=["no steps", "steps"])
def test_a_pipeline_is_made_again_of_the_fields_that_it_was_given(steps):
    """As DAG files do with a pipeline that is written in Python."""
    written = {
        **spec_of(Path("/nowhere")),
        "steps": steps,
        "windows": WINDOWS[:1],
        "aggregates": {"n": {"count": "*"}, "most": {"max": "item.price"}},
    }
    if not steps:
        del written["steps"]
    pipeline = Pipeline(**written)
    given = pipeline.given_fields()
    assert given["keys"] == ["user.id"]
    assert given.get("steps", []) == steps
    again = Pipeline(**given)
    assert again == pipeline
    assert again.meaning_hash() == pipeline.meaning_hash()


@pytest.mark.parametrize("kind", ["table", "json", "table with deletion vectors"])
@pytest.mark.parametrize("place", ["source", "steps"])
def test_rows_that_filters_leave_out_are_counted(request, tmp_path, computed_by, kind, place):
    """Of 100 rows a filter keeps 40, one of which has no time."""
    rows, path = [{"at": None if v == 99 else v, "v": v} for v in range(100)], tmp_path / "source"
    schema = pa.schema([("at", pa.int64()), ("v", pa.int64())])
    source = {"path": str(path), "format": "json" if kind == "json" else "delta"}
    if kind == "json":
        path.mkdir()
        (path / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        write_deltalake(path, pa.Table.from_pylist([*rows, {"at": 7, "v": -1}] if "vectors" in kind else rows, schema))
    if "vectors" in kind:
        if computed_by[0] == "local":
            pytest.skip("only Spark reads deletion vectors")
        spark = request.getfixturevalue("spark")
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
        spark.sql(f"DELETE FROM delta.`{path}` WHERE v = -1")
    condition = "v >= 60 AND hash(v) IS NOT NULL" if computed_by[0] == "rows by Spark" else "v >= 60"
    filtered = (
        {"source": source | {"filter": condition}, "steps": []}
        if place == "source"
        else {"source": source, "steps": [{"filter": condition}]}
    )
    windows = [{"name": "tens", "type": "tumbling", "size": 10}]
    spec = spec_of(tmp_path, keys=[], aggregates={"n": {"count": "*"}}, windows=windows, time={"column": "at", "unit": "none"}, **filtered)
    [done] = loop.run(parse_pipeline(spec), quiet())
    counts = done.outcome.counts
    assert (counts.rows_read, counts.rows_applied, counts.quarantined, counts.filtered) == (100, 39, {"null_time": 1}, 60)
