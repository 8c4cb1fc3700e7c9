"""A changed spec is applied: the tables are those of a rebuild, now and after later runs. No Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.harness import AGGREGATES, Bench, Row, differences, events, quiet
from windowmill.jobs.batch import loop
from windowmill.jobs.batch.engine import VARIABLE
from windowmill.windowing.axis import AXIS_BEGIN

SLOTS = {"name": "slots", "type": "tumbling", "size": "10 minutes"}
ROLLING = {"name": "rolling", "type": "hopping", "size": "47 minutes", "hop": "7 minutes"}
VISITS = {"name": "visits", "type": "session", "gap": "9 minutes"}
LAST_FIVE = {"name": "last_five", "type": "sliding", "evict": {"count": 5}, "trigger": {"count": 2}}
BAND = {"name": "band", "type": "sliding", "evict": {"delta": {"column": "v", "by": 30}}, "trigger": {"count": 3}}
SPANS = {"name": "spans", "type": "snapshot"}
FEW = {name: AGGREGATES[name] for name in ("n", "total", "low")}
ROWS = events(93, 400)

#: Kinds of changes: the spec before and after.
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a grid added": ({"windows": [SLOTS]}, {"windows": [SLOTS, ROLLING]}),
    "a grid dropped": ({"windows": [SLOTS, ROLLING]}, {"windows": [ROLLING]}),
    "a size changed": ({"windows": [SLOTS, ROLLING]}, {"windows": [SLOTS | {"size": "15 minutes"}, ROLLING]}),
    "sessions added": ({"windows": [SLOTS]}, {"windows": [SLOTS, VISITS]}),
    "a gap changed": ({"windows": [VISITS]}, {"windows": [VISITS | {"gap": "4 minutes"}]}),
    "policies added": ({"windows": [SLOTS]}, {"windows": [LAST_FIVE, BAND, SLOTS]}),
    "an eviction changed": ({"windows": [LAST_FIVE]}, {"windows": [LAST_FIVE | {"evict": {"count": 3}}]}),
    "live rows added": ({"windows": [SLOTS]}, {"windows": [SLOTS, SPANS]}),
    "live rows in place of sessions": ({"windows": [VISITS]}, {"windows": [SPANS]}),
    "an aggregate added": ({"windows": [SLOTS, VISITS, LAST_FIVE]}, {"aggregates": FEW | {"spread": AGGREGATES["spread"]}}),
    "an aggregate that keeps live rows": ({"windows": [SLOTS]}, {"aggregates": FEW | {"closing": AGGREGATES["closing"]}}),
    "an aggregate dropped": ({"windows": [SLOTS, VISITS]}, {"aggregates": {"n": FEW["n"], "low": FEW["low"]}}),
    "arguments changed": ({"windows": [SLOTS, BAND]}, {"aggregates": FEW | {"total": {"sum": "v", "where": "v > 50"}}}),
    "all at once": (
        {"windows": [SLOTS, VISITS]},
        {"windows": [ROLLING, SLOTS | {"size": "5 minutes"}], "aggregates": {"n": FEW["n"], "big": AGGREGATES["big"]}},
    ),
}


def bench_of(folder: Path, changes: dict[str, Any]) -> Bench:
    folder.mkdir(exist_ok=True)
    return Bench(folder, {"aggregates": FEW} | changes)


@pytest.fixture(autouse=True)
def _local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "local")


def apply(bench: Bench, changes: dict[str, Any], *, history: int | None = AXIS_BEGIN) -> Any:
    bench.changes = bench.changes | changes
    return loop.apply(bench.pipeline, quiet(), history=history)


def run_and_apply(bench: Bench, after: dict[str, Any], rows: list[Row]) -> tuple[list[Row], Any]:
    """Two runs, the change, and two more runs; returns the rows before the change, and the batch that made it."""
    quarter = len(rows) // 4
    for n in range(2):
        bench.land(rows[n * quarter : (n + 1) * quarter])
        bench.run()
    before = bench.rows()
    done = apply(bench, after)
    assert differences(of(bench, bench.rows()), bench.expected(rows[: 2 * quarter]).rows) == []
    for n in range(2, 4):
        bench.land(rows[n * quarter : (n + 1) * quarter])
        bench.run()
    return before, done


def of(bench: Bench, rows: list[Row]) -> list[Row]:
    """The rows of windows that the spec has."""
    names = {window["name"] for window in bench.spec["windows"]}
    return [row for row in rows if row["window"] in names]


#: Changes of pipelines that revise.
REVISED = ("a grid added", "a gap changed", "an aggregate added", "all at once")


@pytest.mark.parametrize(("kind", "emit"), [*((kind, "final") for kind in CHANGES), *((kind, "revise") for kind in REVISED)])
def test_a_changed_spec_gives_the_tables_of_a_rebuild(tmp_path, kind, emit):
    before, after = CHANGES[kind]
    bench = bench_of(tmp_path / "b", before | {"emit": emit})
    dropped, done = run_and_apply(bench, after, ROWS)
    assert (done.plan.action, done.plan.batch) == ("apply", 2)
    assert differences(of(bench, bench.rows()), bench.expected(ROWS).rows) == []
    # What is no longer in the spec stays as it was published.
    names = {window["name"] for window in bench.spec["windows"]}
    left = [row for row in bench.rows() if row["window"] not in names]
    assert differences(left, [row for row in dropped if row["window"] not in names]) == []
