"""Columns of type CHAR(n) and VARCHAR(n): runs, backfills and ``aggregate`` have the values that Spark SQL reads of the table."""

from __future__ import annotations

from typing import Any

import pytest
from deltalake import DeltaTable

from tests.spark.harness import BASE, MINUTE, Bench, quiet
from windowmill import aggregate
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import loop
from windowmill.jobs.spark import session
from windowmill.windowing.axis import from_us
from windowmill.windowing.errors import SourceSchemaError

pytestmark = pytest.mark.spark

COLUMNS = "k CHAR(5), w VARCHAR(6), t TIMESTAMP, v DOUBLE, p CHAR(3)"


_SPEC: dict[str, Any] = {
    "keys": ["k", "w", "p"],
    "time": {"column": "t", "disorder": "30 minutes"},
    "windows": [{"name": "slots", "type": "tumbling", "size": "10 minutes"}],
    "aggregates": {"n": {"count": "*"}, "last": {"max": "k"}},
}


def _bench(tmp_path: Any, spark: Any, *, mapped: bool = False) -> Bench:
    bench = Bench(tmp_path, dict(_SPEC))
    mapping = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')" if mapped else ""
    spark.sql(f"CREATE TABLE delta.`{bench.source}` ({COLUMNS}) USING delta PARTITIONED BY (p) {mapping}")
    return bench


def _land(bench: Bench, spark: Any, first: int, count: int) -> None:
    rows = ", ".join(
        f"('{key}', '{key}', TIMESTAMP '{from_us(BASE + (first + n) * MINUTE):%Y-%m-%d %H:%M:%S}Z', {n}, '{part}')"
        for n in range(count)
        for key, part in (("k0", "a"), ("é", "b"), ("k0  ", "abc"), ("12345", "c d"))
    )
    spark.sql(f"INSERT INTO delta.`{bench.source}` VALUES {rows}")


def _published(bench: Bench) -> list[Any]:
    rows = DeltaTable(bench.sink).to_pyarrow_table().select(["k", "w", "p", "window_end", "n", "last"]).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def _told(spark: Any, bench: Bench) -> list[Any]:
    """The same as Spark SQL groups them."""
    groups = spark.sql(
        f"SELECT k, w, p, date_trunc('HOUR', t) + make_interval(0, 0, 0, 0, 0, 10 * (1 + floor(minute(t) / 10))) AS window_end, "
        f"count(*) AS n, max(k) AS last FROM delta.`{bench.source}` GROUP BY ALL"
    )
    return sorted(tuple(row) for row in groups.toArrow().to_pandas().itertuples(index=False))


@pytest.mark.usefixtures("either_reader")
@pytest.mark.parametrize("mapped", [False, True], ids=["plain", "column mapping"])
def test_texts_of_fixed_length_are_padded_as_spark_reads_them(spark, tmp_path, mapped):
    bench = _bench(tmp_path, spark, mapped=mapped)
    if mapped:
        spark.sql(f"ALTER TABLE delta.`{bench.source}` RENAME COLUMN k TO old")
        spark.sql(f"ALTER TABLE delta.`{bench.source}` RENAME COLUMN old TO k")
    frame = spark.read.format("delta").load(bench.source)
    for first in (0, 30):
        _land(bench, spark, first, 30)
        bench.run()
    complete = [row for row in _told(spark, bench) if row[3] <= max(end for _, _, _, end, *_ in _published(bench))]
    assert {row[0] for row in complete} == {"k0   ", "é    ", "12345"}
    assert {row[2] for row in complete} == {"a  ", "b  ", "abc", "c d"}
    assert _published(bench) == complete
    loop.backfill(bench.pipeline, quiet(), begin=BASE, end=BASE + 20 * MINUTE)
    assert _published(bench) == complete
    found = aggregate(frame, bench.pipeline).toArrow().select(["k", "w", "p", "window_end", "n", "last"]).to_pylist()
    assert sorted(tuple(row.values()) for row in found) == _told(spark, bench)


@pytest.mark.classic
def test_a_small_batch_of_padded_texts_needs_no_spark(spark, tmp_path, monkeypatch):
    bench = _bench(tmp_path, spark)
    _land(bench, spark, 0, 30)
    bench.run()
    _land(bench, spark, 30, 30)
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "auto")
    monkeypatch.setattr(session, "spark_session", lambda *_, **__: pytest.fail("Spark was started"))
    [done] = bench.run()
    assert done.outcome.counts.rows_published


@pytest.mark.usefixtures("either_reader")
@pytest.mark.parametrize("mapped", [False, True], ids=["plain", "column mapping"])
def test_conditions_compare_them_as_spark_sql_does(spark, tmp_path, mapped):
    source = _bench(tmp_path, spark, mapped=mapped).source
    _land(Bench(tmp_path), spark, 0, 30)
    for number, condition in enumerate(("k = 'k0'", "p in ('a', 'zz')", "w = 'k0'")):
        bench = Bench(tmp_path / str(number), _SPEC | {"source": {"path": source, "filter": condition}})
        bench.run()
        wanted = spark.sql(f"SELECT count(*) FROM delta.`{source}` WHERE {condition}").head()[0]
        assert sum(batch.counts.rows_kept for batch in Ledger.open(bench.pipeline).batches()) == wanted > 0


def test_another_length_is_another_type(spark, tmp_path, monkeypatch):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    bench = _bench(tmp_path, spark)
    _land(bench, spark, 0, 30)
    bench.run()
    spark.sql(f"ALTER TABLE delta.`{bench.source}` ALTER COLUMN k TYPE VARCHAR(9)")
    _land(bench, spark, 30, 30)
    with pytest.raises(SourceSchemaError, match=r"column 'k' was char\(5\) and is now varchar\(9\); bring the type back"):
        bench.run()
