"""Aggregates that are computed of a result row's keys and other aggregates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from benchmarks.pipelines import quiet
from windowmill.jobs.batch import loop
from windowmill.jobs.commands.try_command import attempt
from windowmill.jobs.spec_checks import problems_of
from windowmill.jobs.verify.check import verify
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.errors import SpecError
from windowmill.windowing.specfile import parse_pipeline

WINDOWS = [
    {"name": "hour", "type": "hopping", "size": 60, "hop": 10, "empty": "emit"},
    {"name": "last", "type": "sliding", "evict": {"count": 3}, "trigger": {"count": 2}},
    {"name": "visit", "type": "session", "gap": 15},
    {"name": "three", "type": "count", "count": 3},
]
#: ``share`` fails where ``most`` is 0, and is null where it is null. ``name`` comes before what it reads.
AGGREGATES = {
    "name": {"expr": "concat(k, ':', N)"},
    "n": {"count": "*"},
    "most": {"max": "v"},
    "share": {"expr": "n / most"},
    "twice": {"expr": "coalesce(share, 0) * 2"},
}
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])
ROWS = [{"k": "ab"[number % 2], "t": number * 7, "v": number % 5} for number in range(60)]


def pipeline_of(folder: Path, **changes: Any) -> Any:
    return parse_pipeline(
        {
            "pipeline": "rates",
            "source": {"path": str(folder / "source"), "changes": "restate"},
            "sink": {"path": str(folder / "sink")},
            "keys": ["k"],
            "time": {"column": "t", "unit": "none", "disorder": 5, "lateness": 30},
            "windows": WINDOWS,
            "aggregates": AGGREGATES,
        }
        | changes
    )


def land(folder: Path, rows: list[dict[str, Any]]) -> None:
    write_deltalake(folder / "source", pa.Table.from_pylist(rows, SCHEMA), mode="append")


def published(folder: Path) -> list[dict[str, Any]]:
    """The newest rows of the sink."""
    rows = DeltaTable(folder / "sink").to_pyarrow_table().to_pylist()
    newest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["revision"]):
        place = row["k"], row["window"], row["trigger"], *(() if row["trigger"] is not None else (row["window_start"], row["window_end"]))
        newest[place] = row
    return [row for row in newest.values() if not row["retracted"]]


def assert_computed(rows: list[dict[str, Any]]) -> None:
    assert rows
    for row in rows:
        share = None if not row["most"] else row["n"] / row["most"]
        assert (row["name"], row["share"], row["twice"]) == (f"{row['k']}:{row['n']}", share, (share or 0) * 2)


def test_they_are_columns_in_the_specs_order_and_null_where_they_fail(tmp_path):
    lines = "\n".join(map(json.dumps, ROWS)).encode()
    kernel, reference = (attempt(pipeline_of(tmp_path), lines, batch_rows=17, engine=engine).rows for engine in ("kernel", "reference"))
    assert list(map(dict, kernel)) == list(map(dict, reference))
    assert_computed(list(map(dict, kernel)))
    assert [name for name in kernel[0] if name in AGGREGATES] == list(AGGREGATES)
    assert {row["window"] for row in kernel} == {window["name"] for window in WINDOWS}
    assert {row["share"] for row in kernel if row["most"] == 0} == {None}


@pytest.mark.local
@pytest.mark.parametrize("emit", ["final", "revise"])
def test_runs_backfills_corrections_and_changed_specs_compute_them(tmp_path, emit):
    pipeline = pipeline_of(tmp_path, emit=emit)
    for first in range(0, 60, 20):
        late = [row for row in ROWS if emit == "revise" and row["t"] == first * 7 - 14]
        land(tmp_path, [*ROWS[first : first + 20], *late])
        loop.run(pipeline, quiet())
    sink = DeltaTable(tmp_path / "sink").schema().to_arrow()
    assert [name for name in pa.schema(sink).names if name in AGGREGATES] == list(AGGREGATES)
    assert_computed(published(tmp_path))
    before = published(tmp_path)
    loop.backfill(pipeline, quiet(), begin=100, end=300)
    assert sorted(map(repr, ({**row, "batch": 0, "revision": 0} for row in published(tmp_path)))) == sorted(
        map(repr, ({**row, "batch": 0, "revision": 0} for row in before))
    )
    DeltaTable(tmp_path / "source").update(predicate="t = 105", updates={"v": "100"})
    loop.run(pipeline, quiet())
    assert_computed(published(tmp_path))
    assert 100 in {row["most"] for row in published(tmp_path)}
    DeltaTable(tmp_path / "source").delete("t = 210")  # which divides a session
    loop.run(pipeline, quiet())
    assert_computed(published(tmp_path))
    retracted = DeltaTable(tmp_path / "sink").to_pyarrow_table(filters=pc.field("retracted"))
    assert set(retracted.column("name").to_pylist()) == set(retracted.column("twice").to_pylist()) == {None}
    changed = pipeline_of(tmp_path, emit=emit, aggregates=AGGREGATES | {"name": {"expr": "upper(k)"}, "least": {"expr": "n - 1"}})
    loop.apply(changed, quiet(), history=AXIS_BEGIN)
    rows = published(tmp_path)
    assert {(row["name"], row["least"] - row["n"]) for row in rows} == {("A", -1), ("B", -1)}


@pytest.mark.local
@pytest.mark.parametrize("emit", ["final", "revise"])
@pytest.mark.parametrize("history", [AXIS_BEGIN, 200, None])
def test_changed_expressions_are_computed_of_published_rows(tmp_path, emit, history):
    """The batch reads nothing of the source, and leaves all else of the rows as it is, retracted ones and earlier revisions included."""
    pipeline = pipeline_of(tmp_path, emit=emit)
    for first in range(0, 60, 20):
        late = [row for row in ROWS if emit == "revise" and row["t"] == first * 7 - 14]
        land(tmp_path, [*ROWS[first : first + 20], *late])
        loop.run(pipeline, quiet())
    DeltaTable(tmp_path / "source").delete("t = 210")
    loop.run(pipeline, quiet())
    before = DeltaTable(tmp_path / "sink").to_pyarrow_table().to_pylist()
    assert any(row["retracted"] for row in before)
    aggregates = {name: each for name, each in AGGREGATES.items() if name != "twice"} | {
        "name": {"expr": "upper(k)"},
        "least": {"expr": "n - 1"},
    }
    done = loop.apply(pipeline_of(tmp_path, emit=emit, aggregates=aggregates), quiet(), history=history)
    assert done.outcome.counts.rows_read == 0
    assert done.plan.of_published == (history is not None)
    rows = DeltaTable(tmp_path / "sink").to_pyarrow_table().to_pylist()
    changed = {"name", "least", "batch", "twice"}
    assert sorted(repr({name: row[name] for name in row if name not in changed}) for row in rows) == sorted(
        repr({name: row[name] for name in row if name not in changed}) for row in before
    )
    for row in rows:
        fills = history is not None and row["window_end"] > history
        assert (row["batch"] == done.plan.batch) == fills
        assert row["least"] == (row["n"] - 1 if fills and not row["retracted"] else None)
        assert row["name"] == (None if row["retracted"] else row["k"].upper() if fills else f"{row['k']}:{row['n']}")
    land(tmp_path, [{**ROWS[-1], "t": ROWS[-1]["t"] + 900}])
    loop.run(pipeline_of(tmp_path, emit=emit, aggregates=aggregates), quiet())
    newest = DeltaTable(tmp_path / "sink").to_pyarrow_table(filters=pc.field("batch") > done.plan.batch).to_pylist()
    assert {row["least"] - row["n"] for row in newest if not row["retracted"]} == {-1}


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ({"expr": "n / nothing"}, "'nothing' is no key and no aggregate before it; known are k, n, most"),
        ({"expr": "later + 1"}, "'later' is no key"),
        ({"expr": "sum(n)"}, "needs many rows"),
        ({"expr": "rand()"}, "another answer at each run"),
        ({"expr": "n +"}, "something is missing"),
    ],
    ids=lambda each: each["expr"] if isinstance(each, dict) else "",
)
def test_what_is_no_expression_over_a_result_row_is_refused(tmp_path, written, problem):
    pipeline = pipeline_of(tmp_path, aggregates={"wrong": written, "n": {"count": "*"}, "most": {"max": "v"}, "later": {"expr": "n"}})
    [(field, found)] = problems_of(pipeline)
    assert field == "aggregates.wrong.expr"
    assert problem in found


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ({"expr": "n", "where": "v > 1"}, "unknown field 'where' in addition to expr"),
        ({"expr": " "}, "expected Spark SQL over the keys"),
        ({"expr": 3}, "expected Spark SQL over the keys"),
    ],
    ids=str,
)
def test_what_is_written_otherwise_is_refused(tmp_path, written, problem):
    with pytest.raises(SpecError, match=problem):
        pipeline_of(tmp_path, aggregates={"n": {"count": "*"}, "wrong": written})


def test_a_spec_needs_an_aggregate_of_rows(tmp_path):
    with pytest.raises(SpecError, match="got only expressions"):
        pipeline_of(tmp_path, aggregates={"one": {"expr": "1"}})


@pytest.mark.parametrize(
    ("text", "problem"), [("hash(k)", "does not evaluate"), ("null", "which is void"), ("interval 1 day", "which is interval")]
)
def test_what_only_spark_evaluates_and_what_has_no_type_is_refused_before_anything_is_written(tmp_path, text, problem):
    land(tmp_path, ROWS[:3])
    with pytest.raises(SpecError, match=problem):
        loop.run(pipeline_of(tmp_path, aggregates={"n": {"count": "*"}, "wrong": {"expr": text}}), quiet())
    assert not (tmp_path / "sink").exists()


@pytest.mark.spark
@pytest.mark.parametrize("emit", ["final", "revise"])
def test_data_frames_give_the_rows_of_the_reference(spark, tmp_path, emit):
    from windowmill import aggregate

    pipeline = pipeline_of(tmp_path, emit=emit)
    frame = aggregate(spark.createDataFrame(pa.Table.from_pylist(ROWS, SCHEMA)), pipeline)
    found = frame.toArrow()
    assert [name for name in frame.columns if name in AGGREGATES] == list(AGGREGATES)
    assert_computed(found.to_pylist())
    few = pipeline_of(tmp_path, windows=[{"name": "hour", "type": "tumbling", "size": 60}])
    assert_computed(aggregate(spark.createDataFrame(pa.Table.from_pylist(ROWS, SCHEMA)), few).toArrow().to_pylist())


@pytest.mark.spark
def test_verify_compares_them(spark, tmp_path):
    pipeline = pipeline_of(tmp_path)
    land(tmp_path, ROWS)
    loop.run(pipeline, quiet())
    assert_computed(published(tmp_path))
    found = verify(pipeline, quiet(), number=200, seed=1)
    assert not found.comparison.differing
    assert found.comparison.compared["share"] == found.comparison.compared["n"] > 10
    DeltaTable(tmp_path / "sink").update(predicate="n = 3", updates={"twice": "twice + 1"})
    wrong = verify(pipeline, quiet(), number=200, seed=1)
    assert {each.column for row in wrong.comparison.differing for each in row.differences} == {"twice"}
