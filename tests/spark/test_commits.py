"""Tables as Spark and windowmill write them, whose rows are in no order of time inside a commit: all their rows count by default."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.spark.harness import MINUTE, quiet
from windowmill.jobs.batch import loop
from windowmill.windowing.axis import to_us
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

BASE = to_us(datetime(2024, 3, 1, tzinfo=UTC))
HOUR = 60 * MINUTE


def flights(day: int, count: int = 400) -> pa.Table:
    """Rows of one day in no order, without late ones."""
    rng = random.Random(day)
    times = [BASE + day * 24 * HOUR + rng.randrange(24 * HOUR) for _ in range(count)]
    columns = {"k": [rng.choice("abcdef") for _ in times], "t": pa.array(times, pa.timestamp("us", "UTC")), "v": list(range(count))}
    return pa.table(columns)


def hourly(source: str, sink: str, **changes: Any) -> Pipeline:
    spec = {
        "pipeline": "hourly",
        "source": {"path": source},
        "keys": ["k"],
        "time": {"column": "t"},
        "windows": [{"name": "hour", "type": "tumbling", "size": "1 hour"}],
        "aggregates": {"n": {"count": "*"}, "total": {"sum": "v"}},
        "sink": {"path": sink},
    }
    return parse_pipeline(spec | changes)


def asked(query: str, **tables: pa.Table) -> list[tuple[Any, ...]]:
    """The answer of DuckDB to a query over ``tables``."""
    with duckdb.connect() as database:
        for name, table in tables.items():
            database.register(name, table)
        return database.sql(query).fetchall()


def recomputed(rows: pa.Table) -> list[tuple[Any, ...]]:
    """The hours of ``rows`` that end at or before the greatest time."""
    return asked(
        "from (select k, time_bucket(interval 1 hour, t) + interval 1 hour as window_end, count(*) as n, sum(v)::bigint as total "
        "from rows group by 1, 2) where window_end <= (select max(t) from rows) order by all",
        rows=rows,
    )


def published(sink: str) -> list[tuple[Any, ...]]:
    rows = DeltaTable(sink).to_pyarrow_table()
    assert set(rows["revision"].to_pylist()) <= {0}
    return asked("select k, window_end, n, total from rows order by all", rows=rows)


pytestmark = pytest.mark.local


def test_no_row_of_an_append_is_late_to_another(tmp_path):
    source, sink = str(tmp_path / "source"), str(tmp_path / "sink")
    days = pa.concat_tables([flights(day) for day in range(3)])
    write_deltalake(source, days, partition_by=["k"])
    [done] = loop.run(hourly(source, sink), quiet())
    assert (done.outcome.counts.rows_quarantined, done.outcome.counts.rows_late) == (0, 0)
    assert published(sink) == recomputed(days)


@pytest.mark.spark
def test_a_day_after_a_day_in_the_order_of_a_hash(spark, tmp_path):
    source, sink = str(tmp_path / "source"), str(tmp_path / "sink")
    for day in range(3):
        rows = spark.createDataFrame(flights(day)).dropDuplicates().repartition(7, "v")
        rows.write.format("delta").mode("append").save(source)
        [done] = loop.run(hourly(source, sink), quiet())
        assert (done.outcome.counts.rows_quarantined, done.outcome.counts.rows_late) == (0, 0)
    days = pa.concat_tables([flights(day) for day in range(3)])
    assert published(sink) == recomputed(days)


def test_a_pipeline_over_the_sink_of_another_one_loses_no_rows(tmp_path):
    source, middle, sink = (str(tmp_path / name) for name in ("source", "middle", "sink"))
    time = {"column": "window_end"}
    windows = [{"name": "day", "type": "tumbling", "size": "1 day"}]
    aggregates = {"hours": {"count": "*"}, "n": {"sum": "n"}}
    daily = hourly(middle, sink, pipeline="daily", time=time, windows=windows, aggregates=aggregates)
    quarantined = 0
    for day in range(4):
        write_deltalake(source, flights(day), mode="append")
        loop.run(hourly(source, middle), quiet())
        quarantined += sum(done.outcome.counts.rows_quarantined for done in loop.run(daily, quiet()))
    hours = DeltaTable(middle).to_pyarrow_table()
    want = asked(
        "from (select k, time_bucket(interval 1 day, window_end) + interval 1 day as end_of_day, count(*) as hours, sum(n)::bigint as n "
        "from hours group by 1, 2) where end_of_day <= (select max(window_end) from hours) order by all",
        hours=hours,
    )
    assert asked("select k, window_end, hours, n from rows order by all", rows=DeltaTable(sink).to_pyarrow_table()) == want
    assert len(want) > 10
    assert quarantined == 0
