"""Sources, sinks and rows that are not as they should be: one clear error each, nothing lost, and on it goes after the repair."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.spark.harness import BASE, MINUTE, Bench, differences, events, quiet
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import loop, steps
from windowmill.windowing import errors


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    """Folder of a pipeline that has committed its first batch."""
    bench = Bench(tmp_path_factory.mktemp("begun"))
    bench.land(events(31, 300))
    bench.run()
    return bench.folder


@pytest.fixture
def bench(begun, tmp_path) -> Bench:
    return Bench(Path(shutil.copytree(begun, tmp_path / "bench")), commits=[0] * 300)


def _unharmed(bench: Bench, batches: int = 1) -> None:
    assert [b.status for b in Ledger.open(bench.pipeline).batches()] == ["committed"] * batches


@pytest.mark.covers("V1")
def test_a_changed_spec_is_refused_and_the_old_one_goes_on(bench):
    bench.changes["keys"] = ["k"]
    with pytest.raises(errors.SpecChangedError, match="differ from those that built"):
        bench.run()
    bench.changes.clear()
    bench.land(events(39, 50))
    assert len(bench.run()) == 1


def test_a_sink_that_is_not_ours(tmp_path):
    bench = Bench(tmp_path)
    bench.land(events(40, 50))
    write_deltalake(bench.sink, pa.table({"x": [1]}))
    with pytest.raises(errors.SinkError, match="a table is there already"):
        bench.run()


@pytest.mark.spark
def test_a_constraint_of_the_sinks_owner_is_checked_before_the_record(spark, bench):
    sink = f"delta.`{bench.sink}`"
    spark.sql(f"ALTER TABLE {sink} ADD CONSTRAINT named CHECK (n >= 0)")
    rows = events(38, 100)
    bench.land(rows)
    bench.run()
    assert differences(bench.rows(), bench.expected(events(31, 300) + rows).rows) == []
    spark.sql(f"ALTER TABLE {sink} ADD CONSTRAINT early CHECK (window_end < '{datetime.fromtimestamp(_latest(bench) / 1e6, UTC)}')")
    rows += [row | {"t": row["t"] and row["t"] + 600 * MINUTE} for row in events(39, 100)]
    bench.land(rows[100:])
    with pytest.raises(errors.SinkRefusedError, match=r"sink \S+: its constraint early \(.*\) does not hold for all results; .* drop it"):
        bench.run()
    _unharmed(bench, 2)
    spark.sql(f"ALTER TABLE {sink} DROP CONSTRAINT early")
    bench.run()
    assert differences(bench.rows(), bench.expected(events(31, 300) + rows).rows) == []


def _latest(bench: Bench) -> int:
    return 1 + max(row["window_end"] for row in bench.rows())


def test_unusable_rows_are_quarantined_with_their_reason(tmp_path):
    bench = Bench(
        tmp_path, {"time": {"column": "label", "disorder": "5 minutes", "max_future_skew": "1 day"}, "aggregates": {"n": {"count": "*"}}}
    )
    bench.changes["windows"] = [{"name": "w", "type": "tumbling", "size": "10 minutes"}]
    stamps = [
        *("2024-03-01 00:01:00", None, "not a time", "2999-01-01 00:00:00", "2024-03-01 00:02:00", "2024-03-01 01:00:00"),
        *("2024-03-01 00:03:00",),
    ]
    rows = [dict(row, label=stamp) for row, stamp in zip(events(41, len(stamps)), stamps, strict=True)]
    bench.land(rows[:-1])
    bench.land(rows[-1:])
    [done] = bench.run()
    reasons = sorted(row["reason"] for row in bench.quarantine())
    assert reasons == ["bad_time", "future_time", "null_time", "too_late"]
    assert done.outcome.counts.rows_read == 7 == done.outcome.counts.rows_applied + done.outcome.counts.rows_quarantined
    loop.backfill(bench.pipeline, quiet(), begin=BASE, end=BASE + 30 * MINUTE)
    assert len(bench.quarantine()) == 4, "a backfill reads these rows again, and quarantines none twice"
    assert done.outcome.seen == BASE + 60 * MINUTE


@pytest.mark.spark
def test_overflow_of_an_integer_sum_is_an_error(spark, tmp_path):
    bench = Bench(tmp_path, {"aggregates": {"whole": {"sum": "i"}}})
    rows = [dict(row, i=2**62, k="a", site=1, t=BASE + n * MINUTE) for n, row in enumerate(events(42, 60))]
    bench.land(rows)
    with pytest.raises(Exception, match=r"beyond its type|ARITHMETIC_OVERFLOW"):
        bench.run()


def test_held_then_released_or_discarded(tmp_path):
    rule = {"type": "expect_column_values_to_be_between", "column": "n", "max_value": 0, "severity": "critical"}
    for ruling in ("release", "discard"):
        bench = Bench(tmp_path / ruling, {"expectations": [rule]})
        rows = events(43, 300)
        bench.land(rows)
        with pytest.raises(errors.HeldError, match="is held, nothing was published") as held:
            bench.run()
        assert held.value.exit_code == 3
        assert not DeltaTable.is_deltatable(bench.sink)
        assert DeltaTable(f"{bench.sink}.windowmill/held").to_pyarrow_table().num_rows > 0
        if ruling == "discard":
            bench.changes["expectations"] = []  # the batch stays out though its rules would pass by now
        [done] = bench.run(ruling=ruling)
        bench.changes["expectations"] = []
        bench.land(events(44, 300))
        bench.run()
        want = bench.expected(rows + events(44, 300)).rows
        if ruling == "discard":
            through = done.outcome.emitted
            want = [row for row in want if row["window_end"] > through]
        assert done.outcome.verdict == {"release": "released", "discard": "discarded"}[ruling]
        assert differences(bench.rows(), want) == []


@pytest.mark.covers("S2", "V4")
def test_a_run_after_one_that_died_checks_its_source(bench, monkeypatch):
    bench.land(events(45, 100))
    with monkeypatch.context() as patched:
        patched.setattr(steps._Steps, "record", lambda *_: (_ for _ in ()).throw(RuntimeError("the process is gone")))
        with pytest.raises(RuntimeError):
            bench.run()
    versions = DeltaTable(bench.source).version()
    shutil.rmtree(bench.source)
    for _ in range(versions + 1):
        bench.land(events(45, 100))
    with pytest.raises(errors.SourceReplacedError, match="this is another table"):
        bench.run()
    assert [b.status for b in Ledger.open(bench.pipeline).batches()] == ["committed"]


@pytest.mark.covers("S7")
def test_a_second_pipeline_over_the_same_sink_is_refused(bench):
    other = bench.pipeline.model_copy(update={"pipeline": "other", "keys": ("k",)})
    with pytest.raises(errors.SpecChangedError, match="is that of the pipeline 'bench'"):
        loop.run(other, quiet())
    _unharmed(bench)


@pytest.mark.covers("I10", "I12")
def test_rows_that_come_twice_and_a_key_that_has_most_of_them(tmp_path):
    bench = Bench(tmp_path)
    rows = [row if n % 10 == 0 else row | {"k": "a", "site": 1} for n, row in enumerate(events(46, 400))]
    for _ in range(2):
        bench.land(rows)
    [done] = bench.run()
    assert done.outcome.counts.rows_read == 800
    assert differences(bench.rows(), bench.expected(rows + rows).rows) == []


def test_a_rule_that_is_changed_after_the_record_holds_nothing(tmp_path, monkeypatch):
    """The batch is recorded with the verdict that lets its rows out; the next run only makes the commits."""
    bench = Bench(tmp_path)
    bench.land(events(47, 200))
    with monkeypatch.context() as patched:
        patched.setattr(steps._Steps, "publish", lambda *_: (_ for _ in ()).throw(RuntimeError("the process is gone")))
        with pytest.raises(RuntimeError):
            bench.run()
    assert not DeltaTable.is_deltatable(bench.sink)
    bench.changes["expectations"] = [{"type": "expect_column_values_to_be_between", "column": "n", "max_value": 0, "severity": "critical"}]
    monkeypatch.setattr(steps._Steps, "compute", lambda *_: pytest.fail("nothing is computed again"))
    [done] = bench.run()
    assert done.outcome.verdict == "passed"
    assert differences(bench.rows(), bench.expected(events(47, 200)).rows) == []
