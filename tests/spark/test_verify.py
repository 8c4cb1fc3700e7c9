"""``windowmill verify``: what runs published is what Spark's plain operators make of the source, and what was changed since is found."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from rich.console import Console

from tests.jobs.test_verification import deliver, parts, write_spec
from tests.spark.harness import AGGREGATES, SCHEMA, Bench, Row, events, quiet, run_over
from tests.specs import a_spec
from windowmill.jobs.batch import loop
from windowmill.jobs.batch.progress import Progress
from windowmill.jobs.cli import main
from windowmill.jobs.commands.summaries import quality_of
from windowmill.jobs.commands.verify import _lines
from windowmill.jobs.verify.check import BY_SQL, Verification, verify
from windowmill.jobs.verify.source_rows import LocalReader
from windowmill.windowing.catalogue import DECLARED
from windowmill.windowing.specfile import parse_pipeline

EVERY = AGGREGATES | {
    "different": {"count_distinct": "label"},
    "about": {"approx_distinct": "id"},
    "geometric": {"geometric_mean": "w"},
    "times": {"product": "w"},
    "weighted": {"weighted_mean": ["v", "w"]},
    "least_times": {"min_count": "i"},
    "greatest_times": {"max_count": "v"},
    "width": {"range": "v"},
    "top": {"top_k": {"column": "v", "k": 3}},
    "bottom": {"bottom_k": {"column": "i", "k": 2}},
    "var": {"var_pop": "v"},
    "skew": {"skewness": "w"},
    "peak": {"kurtosis": "w"},
    "together": {"covar_samp": ["i", "w"]},
    "alike": {"corr": ["i", "w"]},
    "trend": {"linear_trend": ["i", "w"]},
    "every": {"collect": "label"},
    "each": {"collect_distinct": "i", "where": "v > 50"},
    "text": {"concat": "label"},
    "figures": {"concat": "w"},
    "middle": {"median": "w"},
    "p90": {"quantile": {"column": "w", "q": 0.9}},
    "bins": {"histogram": {"column": "w", "edges": [0, 20, 40.5, 80]}},
    "when": {"max": "t"},
}
FEW = {name: AGGREGATES[name] for name in ("n", "total", "worst", "closing")}
SLOTS = {"name": "slots", "type": "tumbling", "size": "10 minutes"}
HALVES = {"name": "halves", "type": "hopping", "size": "30 minutes", "hop": "15 minutes"}
VISITS = {"name": "visits", "type": "session", "gap": "9 minutes"}
FORMS: dict[str, dict[str, Any]] = {
    "grids": {},
    "empty": {"windows": [SLOTS | {"empty": "emit"}], "aggregates": FEW},
    "sessions": {"windows": [VISITS], "aggregates": FEW},
    "sessions_on_time": {"windows": [VISITS], "aggregates": FEW, "time": {"column": "t", "tie_break": ["id"], "disorder": "6 hours"}},
    "cut_sessions": {"windows": [VISITS | {"max_size": "20 minutes"}], "aggregates": FEW},
    "positions": {
        "windows": [
            {"name": "five", "type": "sliding", "evict": {"count": 5}, "trigger": {"count": 2}},
            {"name": "ticks", "type": "sliding", "evict": {"time": "20 minutes"}, "trigger": {"time": "7 minutes"}},
        ],
        "aggregates": FEW,
    },
    "emptied": {
        "windows": [
            SLOTS,
            {"name": "leaps", "type": "sliding", "evict": {"time": "10 seconds"}, "trigger": {"delta": {"column": "i", "by": 5}}},
        ],
        "aggregates": {name: FEW[name] for name in ("n", "total")},
    },
    "spans": {"windows": [{"name": "spans", "type": "snapshot"}, {"name": "three", "type": "count", "count": 3}], "aggregates": FEW},
    "revise": {"windows": [SLOTS, VISITS], "aggregates": FEW, "emit": "revise"},
}


#: Rows of these are compared by Spark's SQL, those of the others by the reference engine in this process.
BY_SPARK = ("grids", "empty", "sessions_on_time", "emptied", "revise")


def forms(*names: str) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.spark] if name in BY_SPARK else []) for name in names]


@pytest.fixture(autouse=True)
def _session(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("spark"):
        request.getfixturevalue("spark")


def weighed(rows: list[Row]) -> pa.Table:
    """``rows`` with a column of positive numbers, some of them null."""
    weights = [None if row["v"] is None else 1.0 + abs(row["v"] if row["v"] == row["v"] else 7.5) for row in rows]
    return pa.Table.from_pylist(rows, schema=SCHEMA).append_column("w", pa.array(weights, pa.float64()))


def check(bench: Bench, number: int = 150, seed: int = 3) -> Verification:
    return verify(bench.pipeline, quiet(), number=number, seed=seed)


def told(found: Verification) -> list[Any]:
    return [
        (row.row.window, row.row.key, row.row.start, [(d.column, d.published, d.recomputed) for d in row.differences])
        for row in found.comparison.differing
    ]


@pytest.mark.spark
@pytest.mark.parametrize("form", ["grids", "sessions_on_time", "positions"])
def test_rows_that_only_spark_reads_are_verified_by_it(spark, tmp_path, monkeypatch, form):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "auto")
    bench = Bench(tmp_path, FORMS[form])
    run_over(bench, 3, events(21, 400), 5)
    here = check(bench)
    monkeypatch.setattr(LocalReader, "read", lambda *_: None)
    there = check(bench)
    assert told(here) == told(there) == []
    assert here.comparison.methods == there.comparison.methods
    assert here.comparison.equal == there.comparison.equal


@pytest.mark.spark
def test_an_error_of_a_worker_is_told_in_a_line_that_names_the_file(spark, tmp_path, monkeypatch, capsys):
    spec = write_spec(tmp_path, "csv", compute="auto")
    deliver(tmp_path / "source", "csv", parts(3, 2, 60), spec)
    file = tmp_path / "source" / "part-0.csv"

    def gone(*_: Any) -> None:
        """This process can read none of the rows, and the file is gone before Spark's workers read it."""
        file.unlink(missing_ok=True)

    monkeypatch.setattr(LocalReader, "read", gone)
    capsys.readouterr()
    assert main(["verify", str(spec)]) == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said
    [line] = [line for line in said.splitlines() if line.startswith("windowmill: ")]
    assert str(file) in line


@pytest.mark.parametrize("form", forms(*FORMS))
def test_published_rows_are_what_plain_operators_make_of_the_source(tmp_path, monkeypatch, form):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "auto")
    bench = Bench(tmp_path, FORMS[form])
    run_over(bench, 5, events(21, 700), 5)
    found = check(bench, number=5_000 if form == "emptied" else 150)
    assert told(found) == []
    assert len(found.comparison.rows) > 40
    assert not found.comparison.left_out
    assert all(found.comparison.equal[name] == n for name, n in found.comparison.compared.items())
    assert set(found.comparison.compared) == set(bench.pipeline.aggregates)
    if form == "emptied":
        assert any(row.row.start is None for row in found.comparison.rows), "a window of a policy may be empty when it fires"
    if form == "grids":
        assert found.missed == bench.expected(events(21, 700)).missed
        assert any("late rows are left out of the windows" in line for line in _lines(found, bench.pipeline))
    bench.land(events(22, 30))
    assert bench.run(), "runs go on beside what verification has added to the quality table"


@pytest.mark.spark
def test_only_files_with_rows_of_the_sample_are_read_and_once(tmp_path, monkeypatch):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "auto")
    time = {"column": "t", "tie_break": ["id"], "disorder": "6 hours"}
    bench, calls, read = Bench(tmp_path, {"windows": [SLOTS, HALVES, VISITS], "aggregates": FEW, "time": time}), [], LocalReader.read
    rows = sorted((row for row in events(21, 1_600) if row["t"] is not None), key=lambda row: row["t"])
    run_over(bench, 5, rows, 6, 1)
    monkeypatch.setattr(LocalReader, "read", lambda *args: calls.append(list(args[1])) or read(*args))
    said = Progress(Console(file=(text := io.StringIO()), soft_wrap=True))
    found = verify(bench.pipeline, said, number=100, seed=3)
    assert told(found) == []
    assert {each.row.window for each in found.comparison.rows} == {"slots", "halves", "visits"}
    assert found.comparison.methods == {BY_SQL: 100}
    [only] = calls
    assert 0 < len(only) < 6, "the last rows are in windows that are not complete"
    assert f"read       {len(only)} of 6 files (" in text.getvalue(), "statistics tell that no row came too late"


@pytest.mark.spark
def test_a_source_that_has_lost_all_its_rows_has_no_such_windows(tmp_path, monkeypatch):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "auto")
    bench = Bench(tmp_path, {"windows": [SLOTS], "aggregates": {"n": {"count": "*"}}})
    run_over(bench, 5, events(21, 200), 2)
    DeltaTable(bench.source).delete()
    found = check(bench, number=5)
    assert {(each.column, each.recomputed) for row in found.comparison.rows for each in row.differences} == {("n", 0)}


def missing_forms() -> set[str]:
    """Aggregates of the catalogue that ``EVERY`` lacks."""
    return set(DECLARED.built_in) - {name for spec in EVERY.values() for name in spec} - {"var_samp", "stddev_pop", "bool_and", "bool_or"}


def every_aggregate(folder: Any) -> Bench:
    bench = Bench(folder, {"aggregates": EVERY, "windows": [SLOTS]})
    for seed in (21, 22):
        bench.append(weighed([row for row in events(seed, 250) if row["t"] is not None]))
        bench.run()
    return bench


@pytest.mark.spark
def test_every_aggregate_of_the_catalogue_has_a_form_and_changed_rows_are_found(spark, tmp_path, monkeypatch):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "auto")
    bench = every_aggregate(tmp_path)
    found = check(bench)
    assert told(found) == []
    assert not found.comparison.left_out
    assert set(found.comparison.compared) == set(EVERY)
    assert missing_forms() == {"time_weighted_mean"}, "the catalogue has aggregates that this test does not verify"

    spoilt = next(each.row for each in found.comparison.rows if each.row.key[0] is not None)
    where = f"k = '{spoilt.key[0]}' AND site = {spoilt.key[1]} AND window_end = timestamp_micros({spoilt.end})"
    spark.sql(f"UPDATE delta.`{bench.sink}` SET whole = whole + 1, n = n + 1 WHERE {where}")
    again = check(bench)
    assert [start for _, _, start, _ in told(again)] == [spoilt.start]
    assert again.comparison.equal["n"] == again.comparison.compared["n"] - 1
    [row] = again.comparison.differing
    assert row.sql is not None
    [plain] = spark.sql(row.sql).collect()
    assert (plain["n"], plain["whole"]) == (spoilt.values["n"], spoilt.values["whole"])
    [kept] = [row for row in quality_of(bench.pipeline, 9).data if row["origin"] == "verify" and row["unexpected"]]
    assert (kept["outcome"], kept["elements"]) == ("failed", len(again.comparison.rows))


@pytest.mark.spark
def test_columns_may_have_the_names_of_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "auto")
    names = ("x", "a", "_element", "value", "by")
    rows = [{"k": "a", "t": t, **dict.fromkeys(names, t % 7)} for t in range(20)]
    write_deltalake(str(tmp_path / "source"), pa.Table.from_pylist(rows))
    aggregates = {f"least_{name}": {"arg_min": [name, name]} for name in names} | {f"all_{name}": {"collect": name} for name in names}
    aggregates |= {f"greatest_{name}": {"max_count": name} for name in names}
    time = {"column": "t", "unit": "none", "tie_break": list(names)}
    spec = a_spec(tmp_path, keys=["k"], time=time, windows=[{"name": "w", "type": "tumbling", "size": 6}], aggregates=aggregates)
    pipeline = parse_pipeline(spec)
    loop.run(pipeline, quiet())
    found = verify(pipeline, quiet(), number=9, seed=3)
    assert told(found) == []
    assert found.comparison.methods == {BY_SQL: 3}


@pytest.mark.spark
def test_a_row_that_was_changed_in_the_source_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "auto")
    time = {"column": "t", "tie_break": ["id"], "disorder": "12 hours"}
    bench = Bench(tmp_path, {"aggregates": FEW, "windows": [SLOTS], "time": time})
    rows = [row for row in events(23, 1_200) if row["t"] is not None]
    run_over(bench, 5, rows, 3)
    assert check(bench).comparison.differing == []
    changed = min(rows, key=lambda row: row["t"])
    DeltaTable(bench.source).update(predicate=f"id = '{changed['id']}'", updates={"v": "1234.5"})
    found = check(bench, number=5_000)
    assert {each.column for row in found.comparison.differing for each in row.differences} >= {"total"}
    [row] = found.comparison.differing
    assert row.row.start is not None
    assert row.row.start <= changed["t"] < row.row.end
    assert found.changed
    assert found.changed[-1][1] == "UPDATE"


@pytest.mark.parametrize("form", forms("positions", "sessions_on_time"))
def test_the_newest_revisions_are_those_that_readers_see(tmp_path, monkeypatch, form):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "auto")
    bench = Bench(tmp_path, FORMS[form])
    rows = [row for row in events(29, 900) if row["t"] is not None]
    run_over(bench, 7, rows, 3)
    gone = sorted(rows, key=lambda row: row["t"])[100:103]
    DeltaTable(bench.source).delete(f"id in ({', '.join(repr(row['id']) for row in gone)})")
    assert loop.restate(bench.pipeline, quiet())
    assert any(row["revision"] for row in bench.rows()), "windows have moved"
    assert check(bench, number=5_000).comparison.differing == []
