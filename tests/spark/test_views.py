"""The newest revisions and the table as it stood, by Spark: against DuckDB over the same rows, and against recomputation."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.spark.harness import BASE, MINUTE, Bench, events, quiet
from windowmill import as_of, create_views, latest
from windowmill.jobs.batch import loop

pytestmark = pytest.mark.spark

WINDOWS = [
    {"name": "slots", "type": "tumbling", "size": "10 minutes"},
    {"name": "visits", "type": "session", "gap": "3 minutes"},
    {"name": "spans", "type": "snapshot"},
    {"name": "pairs", "type": "count", "count": 2},
    {"name": "last", "type": "sliding", "evict": {"count": 5}, "trigger": {"count": 2}},
]
#: What the docs say, row by row: of each window the version of greatest revision, unless it is retracted.
PLAINLY = """
SELECT * EXCLUDE (retracted) FROM shown AS r WHERE NOT coalesce(retracted, false) AND NOT EXISTS (
    SELECT 1 FROM shown AS s WHERE s.revision > r.revision AND s."window" = r."window"
    AND s.k IS NOT DISTINCT FROM r.k AND s.site IS NOT DISTINCT FROM r.site
    AND CASE
        WHEN r."trigger" IS NOT NULL THEN s."trigger" = r."trigger"
        ELSE s.window_start = r.window_start AND s.window_end = r.window_end
    END
)
"""


def plainly(shown: pa.Table) -> list[dict[str, Any]]:
    """The versions that count among the rows ``shown`` of a sink."""
    if "retracted" not in shown.column_names:
        shown = shown.append_column("retracted", pa.nulls(len(shown), pa.bool_()))
    with duckdb.connect() as connection:
        connection.register("shown", shown)
        return connection.sql(PLAINLY).to_arrow_table().cast(shown.drop_columns(["retracted"]).schema).to_pylist()


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(str(sorted(row.items())) for row in rows)


def read(frame: Any) -> list[str]:
    return in_order(frame.toArrow().to_pylist())


@pytest.fixture
def bench(prepared, tmp_path, monkeypatch) -> Bench:
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    return prepared.copy(tmp_path / "lived", lived)


def lived(folder: Path) -> Bench:
    """Runs with revisions of windows of every kind."""
    each = Bench(folder, {"windows": WINDOWS, "emit": "revise", "aggregates": {"n": {"count": "*"}, "total": {"sum": "i"}}})
    each.changes["time"] = {"column": "t", "tie_break": ["id"], "lateness": "3 hours"}
    rows = events(71, 240)
    for begin in range(0, 240, 40):
        each.land(rows[begin : begin + 40])
        each.run()
    return each


def _retract(bench: Bench, share: float) -> None:
    """Append the next revision of a part of the rows that count, some of them retracted."""
    rng = random.Random(3)
    rows = plainly(DeltaTable(bench.sink).to_pyarrow_table())
    kept = [row | {"revision": row["revision"] + 1, "retracted": rng.random() < 0.5} for row in rows if rng.random() < share]
    schema = pa.schema(DeltaTable(bench.sink).schema().to_arrow())
    write_deltalake(bench.sink, pa.Table.from_pylist(kept, schema=schema), mode="append", schema_mode="merge")


def test_the_newest_revisions_are_those_of_a_plain_query(spark, bench):
    shown = DeltaTable(bench.sink).to_pyarrow_table()
    want = plainly(shown)
    assert len({row["window"] for row in want}) == len(WINDOWS)
    assert 0 < len(want) < len(shown)
    frame = latest(spark, bench.pipeline)
    assert read(frame) == in_order(want)
    assert frame.columns == [name for name in shown.column_names if name != "retracted"]
    _retract(bench, 0.3)
    want = plainly(DeltaTable(bench.sink).to_pyarrow_table())
    assert "retracted" in DeltaTable(bench.sink).to_pyarrow_table().column_names
    frame = latest(spark, bench.sink)
    assert read(frame) == in_order(want)
    assert "retracted" not in frame.columns
    own = create_views(spark, bench.spec)
    assert own == ["`bench`", "`bench_latest`"]
    assert read(spark.sql("SELECT * FROM bench_latest")) == in_order(want)
    assert spark.table("bench").count() == DeltaTable(bench.sink).to_pyarrow_table().num_rows


def test_the_newest_revisions_are_what_the_rows_give_at_once(spark, bench, tmp_path):
    """In one batch, in the order of event time, no row is late, and no window has revisions."""
    once = Bench(tmp_path, bench.changes | {"source": {"path": bench.source}, "sink": {"path": f"{bench.sink}-2"}})
    once.run(arrival="event_time")
    assert [each for each in bench.quarantine() if each["reason"] == "too_late"] == []
    now, at_once = (
        latest(spark, each.pipeline).where("`window` IN ('slots', 'visits')").drop("revision", "batch") for each in (bench, once)
    )
    assert read(now) == read(at_once)


def test_the_table_as_it_stood_is_read_after_a_backfill_too(spark, bench):
    before = DeltaTable(bench.sink).to_pyarrow_table()
    loop.backfill(bench.pipeline, quiet(), begin=BASE, end=BASE + 60 * MINUTE)
    assert read(as_of(spark, bench.pipeline, batch=5)) == in_order(before.to_pylist())
    third = [row for row in before.to_pylist() if row["batch"] <= 2]
    assert read(as_of(spark, bench.sink, batch=2)) == in_order(third)
    assert read(latest(spark, bench.sink, batch=2)) == in_order(plainly(pa.Table.from_pylist(third, schema=before.schema)))
    after = DeltaTable(bench.sink).to_pyarrow_table()
    assert read(as_of(spark, bench.sink, batch=6)) == in_order(after.to_pylist()) != in_order(before.to_pylist())
