"""Runs and backfills on Spark against the reference engine, however the input is cut into versions and batches."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.spark.harness import SCHEMA, Bench, differences, events, missed_in, run_over
from windowmill.jobs.layouts import limits

#: Limits of what is worked on in this process: all by Spark; all here; by Spark the larger batches, or those over more state or windows.
BY_SPARK = {"MAX_ROWS": 0}
LIMITS = [BY_SPARK, {}, {"MAX_ROWS": 200}, {"MAX_STATE_ROWS": 100, "MAX_RESULTS": 150}]


def test_any_cut_gives_the_rows_of_the_reference(tmp_path):
    compare_with_reference(tmp_path, 12, 5)


@pytest.mark.spark
@pytest.mark.parametrize("lowered", LIMITS)
def test_any_cut_gives_them_by_spark(spark, tmp_path, monkeypatch, lowered):
    for name, limit in lowered.items():
        monkeypatch.setattr(limits, name, limit)
    compare_with_reference(tmp_path, 12, 3)


def compare_with_reference(folder, versions, batches):
    seed = 3
    rows = events(seed, 1_500)
    bench = Bench(folder)
    done = run_over(bench, seed, rows, versions, batches)
    want = bench.expected(rows)
    assert want.rows, "the reference emitted nothing, so nothing was compared"
    assert differences(bench.rows(), want.rows) == []
    assert sum(d.outcome.counts.rows_read for d in done) == len(rows)
    assert sorted(row["reason"] for row in bench.quarantine()) == sorted(reason for _, reason in want.quarantined)
    assert sum(d.outcome.counts.rows_quarantined for d in done) == len(want.quarantined) > 0
    assert sum(d.outcome.counts.rows_late for d in done) > 0
    assert missed_in(done) == want.missed


@pytest.mark.spark
def test_one_batch_makes_at_most_two_spark_commits(spark, tmp_path):
    bench = Bench(tmp_path)
    bench.land(events(9, 500))
    bench.run()
    tables = [bench.sink, str(tmp_path / "sink.windowmill" / "state")]
    before = [DeltaTable(path).version() for path in tables]
    bench.land(events(10, 500))
    bench.run()
    assert [DeltaTable(path).version() - v for path, v in zip(tables, before, strict=True)] == [1, 1]


@pytest.mark.usefixtures("each_scheduler")
def test_integer_axis_and_no_keys(tmp_path):
    rows = [dict(row, i=None if row["t"] is None else (row["t"] - 1_709_251_200_000_000) // 1_000_000) for row in events(11, 400)]
    bench = Bench(
        tmp_path,
        {
            "keys": [],
            "time": {"column": "i", "unit": "s", "disorder": 300, "lateness": 100, "tie_break": ["id"]},
            "windows": [{"name": "w", "type": "hopping", "size": 600, "hop": 120, "origin": -7}],
            "aggregates": {"n": {"count": "*"}, "m": {"mean": "v"}, "l": {"last": "label"}},
        },
    )
    bench.land(rows[:150])
    bench.run()
    bench.land(rows[150:])
    bench.run()
    want = bench.expected(rows).rows
    assert len(want) > 20
    assert differences(bench.rows(), want) == []


def test_maintenance_keeps_what_later_runs_need(tmp_path):
    from tests.spark.harness import quiet
    from windowmill.jobs.commands.maintenance_command import maintain
    from windowmill.jobs.commands.state import state_of

    rows = events(12, 1_600)
    bench = Bench(tmp_path)
    for begin in range(0, len(rows), 400):
        bench.land(rows[begin : begin + 400])
        bench.run()
        answer = maintain(bench.pipeline, quiet())
    assert any(kept["rows_expired"] for kept in answer.data)
    assert bench.run() == []
    told = state_of(bench.pipeline, [], 1_000).data
    slices = told["layouts"]["slices"]
    assert told["state"]["entries"] == slices["entries"] == slices["entries_needed"] > 0  # maintenance has just dropped the others
    assert differences(bench.rows(), bench.expected(rows).rows) == []


@pytest.mark.covers("X2")
@pytest.mark.spark
def test_columns_may_have_any_name(spark, tmp_path):
    time = {"column": "at.t", "disorder": "5 minutes"}
    bench = Bench(tmp_path, {"keys": ["site.no", "k`"], "time": time, "aggregates": {"n": {"count": "*"}, "total": {"sum": 'v"'}}})
    named = {"k": "k`", "site": "site.no", "t": "at.t", "v": 'v"'}
    rows = [row for row in events(15, 300) if row["t"] is not None]
    for begin in (0, 150):
        table = pa.Table.from_pylist(rows[begin : begin + 150], schema=SCHEMA).select(list(named)).rename_columns(list(named.values()))
        bench.append(table)
        bench.run()
    # Where no struct has the field, a path is a column's name; a key has an underscore for each dot of it.
    renamed = [{**row, **{name: row[old] for old, name in named.items()}, "site_no": row["site"]} for row in rows]
    assert differences(bench.rows(), bench.expected(renamed).rows) == []
