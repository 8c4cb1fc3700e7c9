"""Names of columns that Delta takes only under column mapping: spaces, commas, brackets and the like."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.spark.harness import MINUTE, SCHEMA, Bench, Row, differences, events, expected, in_order, quiet
from windowmill.jobs.batch import loop
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.jobs.layouts import limits

pytestmark = pytest.mark.spark

KEY, VALUE = "the key,;{}()\n\t=`x", "a value"
WINDOWS: dict[str, dict[str, Any]] = {
    "slices": {"name": "slots", "type": "tumbling", "size": "10 minutes"},
    "sessions": {"name": "gaps", "type": "session", "gap": "3 minutes"},
    "live rows": {"name": "five", "type": "count", "count": 5},
    "positions": {"name": "recent", "type": "sliding", "evict": {"count": 7}, "trigger": {"count": 3}},
}


def _rows(spark: Any, bench: Bench) -> list[Row]:
    """The sink as Spark reads it, in the reference's order; instants as microseconds."""
    table = spark.read.format("delta").load(bench.sink).drop("batch").toArrow()
    cells = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in table.columns]
    return in_order(bench.pipeline, pa.table(cells, table.column_names).to_pylist())


@pytest.mark.parametrize(
    ("way", "large"),
    [("slices", False), ("slices", True), ("sessions", False), ("live rows", True), ("positions", True)],
    ids=lambda value: value if isinstance(value, str) else "on Spark" if value else "in this process",
)
def test_a_key_named_with_a_space(spark, tmp_path, monkeypatch, way, large):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "auto")
    if large:
        monkeypatch.setattr(limits, "MAX_ROWS", 0)
    rows = [{KEY: row["k"], VALUE: row["v"], **row} for row in events(75, 300)]
    aggregates = {"n": {"count": "*"}, "total": {"sum": VALUE}}
    bench = Bench(tmp_path, {"keys": [KEY, "site"], "windows": [WINDOWS[way]], "aggregates": aggregates})
    schema = SCHEMA.set(0, pa.field(KEY, pa.string())).set(3, pa.field(VALUE, pa.float64()))
    for begin in range(0, 300, 100):
        frame = spark.createDataFrame(pa.Table.from_pylist(rows[begin : begin + 100], schema=schema)).coalesce(1)
        frame.write.format("delta").option("delta.columnMapping.mode", "name").mode("append").save(bench.source)
        bench.run()
    want = expected(bench.pipeline, rows, commits=[n // 100 for n in range(300)]).rows
    assert want
    assert differences(_rows(spark, bench), want) == []
    ends = sorted(row["window_end"] for row in want)
    loop.backfill(bench.pipeline, quiet(), begin=ends[0] - MINUTE, end=ends[len(ends) // 2])
    maintain(bench.pipeline, quiet())
    assert differences(_rows(spark, bench), want, tolerance=1e-13) == []
