"""Where the table as it stood is found, after backfills that replaced rows too; and the statements of views. No Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from deltalake import DeltaTable

from tests.jobs.test_steps import SPEC, row
from tests.spark.harness import BASE, MINUTE, Bench, Row, quiet
from windowmill.checkpoints import stores
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import loop
from windowmill.jobs.cli import main
from windowmill.jobs.sink_views import AsOf, PublishedTable, view_statements
from windowmill.windowing.errors import ArgumentError, SinkError, SpecError
from windowmill.windowing.settings import COMPUTE
from windowmill.windowing.specfile import parse_pipeline


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv(COMPUTE.name, "local")
    return Bench(tmp_path, dict(SPEC))


@pytest.fixture
def ran(bench: Bench) -> Bench:
    """The pipeline after a batch with a result."""
    bench.land([row(1), row(12)])
    bench.run()
    return bench


def spec_file(bench: Bench) -> Path:
    path = bench.folder / "spec.yaml"
    path.write_text(yaml.safe_dump(bench.spec))
    return path


def stood(bench: Bench, at: AsOf | None = None) -> list[Row]:
    """The rows of the sink now, or as of ``at``."""
    rows = DeltaTable(bench.sink, version=None if at is None else at.version).to_pyarrow_table().to_pylist()
    return sorted((each for each in rows if at is None or each["batch"] <= (at.batch or 0)), key=lambda each: each["window_end"])


@pytest.mark.parametrize("compacted", [False, True])
def test_the_table_as_it_stood_after_each_batch_is_found_whatever_came_later(bench, compacted):
    was, times = [], []
    for minutes in ([1, 12], [25], None, [47], None, [58]):
        if minutes is None:
            loop.backfill(bench.pipeline, quiet(), begin=BASE - 1, end=BASE + 20 * MINUTE)
        else:
            bench.land([row(minute) for minute in minutes])
            bench.run()
        was.append(stood(bench))
        times.append(Ledger.open(bench.pipeline).batches()[-1].ended_at)
        if compacted:
            DeltaTable(bench.sink).optimize.compact()
    table = PublishedTable.of(bench.pipeline)
    for batch, rows in enumerate(was):
        assert stood(bench, table.as_of(batch, None)) == rows
        assert stood(bench, table.as_of(None, times[batch])) == rows
    assert stood(bench, table.as_of(None, times[0] - timedelta(microseconds=1))) == []
    assert table.as_of(5, None) == AsOf(DeltaTable(bench.sink).version(), 5)


def test_a_table_before_replaced_rows_that_is_gone_is_refused(bench):
    bench.land([row(1), row(12), row(25)])
    bench.run()
    loop.backfill(bench.pipeline, quiet(), begin=BASE - 1, end=BASE + 20 * MINUTE)
    table = PublishedTable.of(bench.pipeline)
    assert len(stood(bench, table.as_of(0, None))) == 2
    DeltaTable(bench.sink).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(SinkError, match=r"batch 1 \(backfill\) has replaced rows since, and version 1 .* is gone \(VACUUM\); ask"):
        table.as_of(0, None)
    assert len(stood(bench, table.as_of(1, None))) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": None, "time": None}, "give either"),
        ({"batch": 0, "time": "2026-01-01"}, "give either"),
        ({"batch": 1, "time": None}, "got batch 1, but the newest is 0"),
        ({"batch": -1, "time": None}, "got batch -1"),
        ({"batch": None, "time": "yesterday"}, "got 'yesterday' as time"),
        ({"batch": None, "time": 5}, "got 5 as time"),
    ],
)
def test_what_names_no_batch_is_refused(ran, options, message):
    with pytest.raises(ArgumentError, match=message):
        PublishedTable.of(ran.pipeline).as_of(**options)


def test_instants_without_a_zone_are_utc(ran):
    table, later = PublishedTable.of(ran.pipeline), datetime.now(UTC) + timedelta(days=1)
    for time in (later, later.replace(tzinfo=None), later.isoformat(timespec="seconds"), later.isoformat(timespec="seconds")[:19]):
        assert table.as_of(None, time) == AsOf(1, 0)


def test_a_sink_is_named_in_each_way(bench):
    with pytest.raises(SinkError, match="there is no table yet"):
        PublishedTable.of(bench.pipeline)
    bench.land([row(1), row(12)])
    bench.run()
    spec = spec_file(bench)
    found = [PublishedTable.of(sink) for sink in (bench.pipeline, bench.spec, spec, str(spec), bench.sink, Path(bench.sink))]
    assert all(each == found[0] for each in found)
    assert (found[0].name, found[0].keys) == ("bench", ("k", "site"))
    with pytest.raises(SinkError, match=r"there is no ledger at .*; give the pipeline's spec"):
        PublishedTable.of(bench.source)


def test_a_sink_without_revisions_is_known_by_its_log(ran):
    assert not PublishedTable.of(ran.pipeline).has_revisions(0)
    ran.changes |= {"emit": "revise", "time": {"column": "t", "lateness": "1 hour"}, "sink": {"path": f"{ran.sink}-2"}}
    ran.land([row(2), row(25)])
    ran.land([row(3)])
    ran.run()
    table = PublishedTable.of(ran.pipeline)
    assert table.has_revisions(table.version)


def test_the_statements_of_views_are_printed(ran, capsys):
    spec = spec_file(ran)
    assert main(["views", str(spec), "--schema", "main.an`alytics"]) == 0
    every, latest = capsys.readouterr().out.splitlines()
    assert every == f"CREATE OR REPLACE VIEW `main`.`an``alytics`.`bench` AS SELECT * FROM delta.`{ran.sink}`;"
    assert latest.startswith("CREATE OR REPLACE VIEW `main`.`an``alytics`.`bench_latest` AS SELECT `k`, `site`, `window`, ")
    assert list(view_statements(spec)) == ["`bench`", "`bench_latest`"]
    named = {"checkpoints": {"path": f"{ran.sink}.windowmill"}}
    for table, schema, views in (
        ("lake.bench", "lake", 1), ("spark_catalog.lake.Bench", "lake", 1), ("lake.bench", "other", 2), ("lake.bench", None, 2),
    ):  # fmt: skip
        of = parse_pipeline(ran.spec | named | {"sink": {"table": table}})
        stores.record(of, {table: ran.sink})
        assert len(view_statements(of, schema)) == views, "a sink that is named like the view of all rows needs none"
    with pytest.raises(SpecError, match=r"schema: got 'a\.\.b'"):
        view_statements(spec, "a..b")


def test_triggers_that_are_numbered_from_0_again_are_other_windows(bench):
    last = {"name": "last", "type": "sliding", "evict": {"count": 3}, "trigger": {"count": 2}}
    bench.changes["windows"] = [last | {"idle_after": "30 minutes"}, {"name": "slots", "type": "tumbling", "size": "10 minutes"}]
    bench.land([row(1), row(12)])
    bench.run()
    for sink in (bench.pipeline, bench.sink):
        table = PublishedTable.of(sink)
        assert table.restarting == ("last",)
        assert "IF(`trigger` IS NOT NULL AND `window` NOT IN ('last'), NULL, window_end)" in table.latest_sql("t", table.columns())
