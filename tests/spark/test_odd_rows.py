"""Odd rows in runs: set aside with their reason, here as in executors, by slices as by live rows; nothing lost, and on it goes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.readers import by_each_scheduler
from tests.spark.harness import BASE, MINUTE, Bench
from windowmill.jobs.dataframe import aggregate
from windowmill.windowing.errors import HeldError, LimitExceededError

YEAR_2060, YEAR_9999 = 2_840_140_800_000_000, 253_402_300_799_000_000
ROW = {"k": "a", "site": 1, "t": BASE, "v": 1.0, "i": 1, "label": "5", "id": "e"}
HOURLY = [{"name": "w", "type": "tumbling", "size": "1 hour"}]
SESSIONS = [{"name": "w", "type": "session", "gap": "1 hour"}]
LIVE = [{"name": "w", "type": "snapshot"}]
WINDOWS = {"slices": HOURLY, "sessions": SESSIONS, "live rows": LIVE}
AT_THE_ENDS = {"hopping": {"name": "w", "type": "hopping", "size": 10, "hop": 5}, "tumbling": {"name": "w", "type": "tumbling", "size": 10}}
AGGREGATES = {"n": {"count": "*"}, "large": {"count": "*", "where": "cast(label as int) > 4"}}


def bench_of(folder: Path, windows: list, **changes) -> Bench:
    time = {"column": "t", "disorder": "1 hour"}
    return Bench(folder, {"keys": ["k"], "time": time, "windows": windows, "aggregates": AGGREGATES} | changes)


@pytest.mark.covers("I1", "I5", "I6")
@by_each_scheduler("way", WINDOWS, by_tasks=["slices", "live rows"])
def test_odd_rows_are_set_aside_and_the_batch_goes_on(tmp_path, way):
    bench = bench_of(tmp_path, WINDOWS[way], source={"path": str(tmp_path / "source"), "filter": "i / i = 1"})
    odd = [{"label": "x"}, {"i": 0}, {"t": None}, {"t": YEAR_2060}, {"t": YEAR_9999}, {"t": -62_135_596_800_000_000}]
    bench.land([ROW, *(ROW | change for change in odd), ROW | {"i": None}, ROW | {"t": BASE + 600 * MINUTE, "label": "3"}])
    [done] = bench.run()
    reasons = {"bad_condition": 2, "future_time": 1, "null_time": 1, "time_out_of_range": 2}
    found = [row["reason"] for row in bench.quarantine()]
    assert {reason: found.count(reason) for reason in sorted(set(found))} == reasons
    details = sorted(row["detail"] for row in bench.quarantine() if row["reason"] == "bad_condition")
    assert details == ["condition 'cast(label as int) > 4' fails on the row", "condition 'i / i = 1' fails on the row"]
    # A row for which the filter is null is left out.
    counts = done.outcome.counts
    assert (counts.rows_read, counts.rows_applied, counts.rows_quarantined, counts.filtered) == (9, 2, 6, 1)
    assert [(row["n"], row["large"]) for row in bench.rows()] == [(1, 1)]
    bench.land([ROW | {"t": BASE + 1200 * MINUTE}])
    bench.run()
    assert [(row["n"], row["large"]) for row in bench.rows()] == [(1, 1), (1, 0)]


@pytest.mark.covers("I6")
@by_each_scheduler("kind", AT_THE_ENDS, by_tasks=["hopping"])
def test_times_at_the_ends_of_64_bits_are_set_aside(tmp_path, kind):
    bench = bench_of(tmp_path, [AT_THE_ENDS[kind]], time={"column": "i", "unit": "none"}, aggregates={"n": {"count": "*"}})
    odd = [-(2**63), -(2**63) + 7, 2**63 - 1, 2**63 - 7]
    bench.land([ROW | {"i": time} for time in (1, *odd, 2, 40)])
    [done] = bench.run()
    assert [row["reason"] for row in bench.quarantine()] == ["time_out_of_range"] * 4
    assert done.outcome.counts.rows_applied == 3
    assert [row["n"] for row in bench.rows() if row["window_end"] == 10] == [2]


def test_many_rows_on_which_a_condition_fails_hold_the_batch(tmp_path):
    bench = bench_of(tmp_path, HOURLY, quarantine={})
    bench.land([ROW | {"label": "x"}] * 4 + [ROW] * 30)
    says = r"4 of 34 rows .* 4 bad_condition; .*condition 'cast\(label as int\) > 4' fails on the row; use try_cast"
    with pytest.raises(HeldError, match=says):
        bench.run()
    assert not DeltaTable.is_deltatable(bench.sink)
    [done] = bench.run(ruling="release")
    assert (done.outcome.counts.rows_quarantined, done.outcome.verdict) == (4, "released")


@pytest.mark.spark
def test_windows_without_end_are_refused_before_the_work(spark, tmp_path):
    bench = bench_of(tmp_path, [{"name": "w", "type": "hopping", "size": "10000 days", "hop": "1 us"}])
    bench.land([ROW])
    with pytest.raises(LimitExceededError, match=r"give window w a longer hop"):
        bench.run()
    spec = bench.spec | {"windows": [{"name": "w", "type": "cumulative", "size": "1000 days", "step": "1 us"}]}
    with pytest.raises(LimitExceededError, match=r"give window w a longer step"):
        aggregate(spark.read.format("delta").load(bench.source), spec)


@pytest.mark.parametrize("windows", [HOURLY, SESSIONS], ids=["slices", "sessions"])
def test_a_sink_that_a_little_batch_makes_keeps_instants_without_a_zone(tmp_path, windows):
    bench = bench_of(tmp_path, windows, keys=["day"], aggregates={"first": {"first": "day"}})
    schema = pa.schema([("day", pa.timestamp("us")), ("t", pa.timestamp("us", "UTC"))])
    for hour in (0, 5, 10):
        bench.append(pa.table([[BASE], [BASE + 60 * hour * MINUTE]], schema=schema))
        bench.run()
    types = {field.name: str(field.type) for field in DeltaTable(bench.sink).schema().fields}
    assert (types["day"], types["first"]) == ('PrimitiveType("timestamp_ntz")',) * 2
    assert len(bench.rows()) == 2
