"""Windows over positions: on Spark and in this process, through the state."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.readers import by_each_scheduler, compute_by_many_tasks
from tests.spark.harness import BASE, MINUTE, SCHEMA, Bench, check_runs_backfill_and_upkeep, differences, events, quiet, run_over
from tests.spark.test_live import AGGREGATES
from windowmill.jobs.cli import main
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.jobs.commands.state import state_of
from windowmill.windowing.columnar.added_columns import SEQUENCE

COUNTS = [
    {"name": "last_5", "type": "sliding", "evict": {"count": 5}, "trigger": {"count": 2}},
    {"name": "last_40", "type": "sliding", "evict": {"count": 40}, "trigger": {"delta": {"column": "v", "by": 10}}},
    {"name": "flush", "type": "tumbling", "evict": {"punctuation": "v > 50"}},
    {"name": "steps", "type": "tumbling", "evict": {"delta": {"column": "i", "by": 2}}},
]
TICKS = [
    {"name": "ticks", "type": "sliding", "evict": {"time": "31 minutes"}, "trigger": {"time": "10 minutes"}},
    {"name": "hours", "type": "tumbling", "evict": {"time": "1 hour"}, "timezone": "Europe/Vienna"},
]
DELTAS = [
    {"name": "band", "type": "sliding", "evict": {"delta": {"column": "v", "by": 30}}, "trigger": {"count": 3}},
    {"name": "recent", "type": "sliding", "evict": {"delta": {"column": "t", "by": "40 minutes"}}, "trigger": {"time": "10 minutes"}},
    {"name": "near", "type": "sliding", "evict": {"delta": {"column": "i", "by": 2}}, "trigger": {"delta": {"column": "v", "by": 20}}},
]
CASES: dict[str, dict[str, Any]] = {
    "keys": {"windows": [*COUNTS, *TICKS, *DELTAS], "aggregates": AGGREGATES},
    "no keys": {"windows": [COUNTS[1], TICKS[1], DELTAS[0]], "keys": []},
}


@by_each_scheduler("case", CASES, by_tasks=["keys"])
def test_any_cut_gives_the_rows_of_the_reference(tmp_path, case):
    bench = Bench(tmp_path, CASES[case])
    done = check_runs_backfill_and_upkeep(bench, events(31, 400))
    assert sum(d.outcome.counts.rows_late for d in done) > 0, "no row was late, so lateness was not tried"
    assert SEQUENCE in DeltaTable(tmp_path / "sink.windowmill" / "state").schema().to_arrow().names


@pytest.mark.usefixtures("each_scheduler")
def test_deltas_may_be_of_decimals(tmp_path):
    window = {"name": "near", "type": "sliding", "evict": {"delta": {"column": "price", "by": 5.5}}, "trigger": {"count": 1}}
    bench = Bench(tmp_path, {"windows": [window], "aggregates": {"n": {"count": "*"}}, "keys": ["k"]})
    prices = [Decimal(text) if text else None for text in ("1.50", "9.99", "3.10", "12.00", "8.61", "", "6.50", "20.00")]
    rows = [{"k": "a", "t": BASE + number * 30 * MINUTE, "id": str(number), "price": price} for number, price in enumerate(prices)]
    for part in (rows[:4], rows[4:]):
        bench.append(pa.Table.from_pylist(part, SCHEMA.append(pa.field("price", pa.decimal128(10, 2)))))
        bench.run()
    held = [row["n"] for row in sorted(bench.rows(), key=lambda row: row["window_end"])]
    assert held == [1, 1, 2, 2, 3, 4, 5, 2][: len(held)]
    assert len(held) >= 7


def sparse(key: str, minute: int) -> dict[str, Any]:
    return {"k": key, "site": 1, "t": BASE + minute * MINUTE, "v": float(minute), "i": minute, "label": "x", "id": f"{minute}"}


@pytest.mark.spark
def test_a_key_that_is_due_in_one_window_keeps_its_state_in_the_others(spark, tmp_path, monkeypatch):
    compute_by_many_tasks(monkeypatch)
    bench = Bench(tmp_path, {"windows": [COUNTS[0], TICKS[0]], "keys": ["k"]})
    batches = [
        [sparse("a", n) for n in range(6)] + [sparse("b", 12)],
        [sparse("b", 30)],
        [sparse("a", 32), sparse("a", 33), sparse("b", 60)],
    ]
    for rows in batches:
        bench.land(rows)
        bench.run()
    wanted = bench.expected([row for rows in batches for row in rows]).rows
    assert differences(bench.rows(), wanted) == []
    assert {row["trigger"] for row in wanted if (row["k"], row["window"]) == ("a", "last_5")} == {0, 1, 2, 3}


@pytest.mark.spark
def test_keys_may_be_named_like_columns_that_reading_and_compacting_the_state_use(spark, tmp_path, monkeypatch):
    compute_by_many_tasks(monkeypatch)
    names = ["age", "Head", "through", "_applied", "_New", "_latest", "_bounds", "_key_0"]
    bench = Bench(tmp_path, {"windows": [COUNTS[0]], "keys": ["k", *names]})
    rows = [sparse("ab"[n % 2], n) for n in range(40)]
    for first in range(0, 40, 10):
        table = pa.Table.from_pylist(rows[first : first + 10], schema=SCHEMA)
        for name in names:
            table = table.append_column(name, table.column("label"))
        bench.append(table)
        bench.run()
        maintain(bench.pipeline, quiet())
    wanted = bench.expected([row | dict.fromkeys(names, row["label"]) for row in rows]).rows
    assert differences(bench.rows(), wanted) == []
    assert wanted


def test_state_shows_what_windows_hold(tmp_path, capsys):
    windows = [*COUNTS, *TICKS, *DELTAS]
    bench = Bench(tmp_path, {"windows": windows, "aggregates": AGGREGATES, "keys": ["k"]})
    run_over(bench, 9, events(35, 300), 3)
    told = state_of(bench.pipeline, ["k=a"], 1_000).data
    assert 0 < told["layouts"]["positions"]["entries_needed"] < told["layouts"]["positions"]["entries"]
    needed = [entry["row"] for entry in told["entries"]["positions"] if entry["needed"]]
    [last_5] = [row for row in needed if row["_kind"] == "key" and "_last_5__front" in row]
    leaves = [row for row in needed if row.get("_node_level") == 0 and row["_sequence"] == last_5["_sequence"]]
    assert sum(row["_position"] >= last_5["_last_5__front"] for row in leaves) == last_5["_next"] - last_5["_last_5__front"] == 5
    assert {(row["rows"], type(row["distinct_label"])) for row in leaves} == {(1, list)}
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(bench.spec))
    assert main(["state", str(spec), "--key", "k=a"]) == 0
    assert "positions: 20 of " in capsys.readouterr().out
