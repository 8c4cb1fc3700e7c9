"""The lines of a spec's mappings may change places between runs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.spark.harness import Bench, Row, differences, events, in_order, run_over
from windowmill.windowing import reference

AGGREGATES: dict[str, Any] = {
    "big": {"count": "*", "where": "v > 50"},
    "small": {"count": "*", "where": "v < 20"},
    "n": {"count": "*"},
    "low": {"min": "v"},
    "opening": {"first": "v"},
    "narrow": {"histogram": {"column": "i", "edges": [-1, 0, 1]}},
    "wide": {"histogram": {"column": "i", "edges": [-3, 0, 3]}},
}
WINDOWS = [{"name": "rolling", "type": "hopping", "size": "47 minutes", "hop": "7 minutes"}]
SESSIONS: list[dict[str, Any]] = [{"name": "visits", "type": "session", "gap": "4 minutes"}]
LIVE: list[dict[str, Any]] = [{"name": "spans", "type": "snapshot"}]


def wanted(bench: Bench, rows: list[Row]) -> list[Row]:
    def conditions(v: float | None) -> frozenset[str]:
        if v is None:
            return frozenset()
        # NaN is the greatest number.
        return frozenset({"v > 50"} if v != v or v > 50 else {"v < 20"} if v < 20 else ())

    records = [reference.Record(row, conditions(row["v"])) for row in rows]
    outcome = reference.evaluate(bench.pipeline, records, commits=bench.commits, final=False)
    return in_order(bench.pipeline, outcome.rows)


def columns_of(bench: Bench) -> list[str]:
    return pa.schema(DeltaTable(bench.sink).schema().to_arrow()).names


@pytest.mark.parametrize("windows", [WINDOWS, SESSIONS, LIVE], ids=["slices", "sessions", "live rows"])
def test_aggregates_swapped_between_runs_keep_their_values(tmp_path, windows):
    rows = events(41, 420)
    bench = Bench(tmp_path, {"aggregates": AGGREGATES, "windows": windows})
    run_over(bench, 3, rows[:140], 2)
    made = columns_of(bench)
    bench.changes["aggregates"] = dict(reversed(AGGREGATES.items()))
    run_over(bench, 4, rows[140:280], 2)
    bench.changes["aggregates"] = {name: AGGREGATES[name] for name in sorted(AGGREGATES)}
    run_over(bench, 5, rows[280:], 2)
    assert differences(bench.rows(), wanted(bench, rows)) == []
    assert columns_of(bench) == made, "the sink keeps the order it was made with"
