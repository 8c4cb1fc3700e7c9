"""A user's ``deduct`` is called by runs, in this process and by Spark, by ``try`` and by ``aggregate``: two operations a window."""

from __future__ import annotations

import json
import os
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.spark.harness import quiet
from windowmill import aggregate
from windowmill.jobs.batch import loop
from windowmill.jobs.commands.try_command import attempt
from windowmill.windowing.specfile import parse_pipeline

HERE = __name__
MINUTES, WIDTH = 600, 12
Row = dict[str, Any]


def _counted(call: bytes, log: str) -> None:
    """Append a call to ``log``, from whatever process."""
    file = os.open(log, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    os.write(file, call)
    os.close(file)


class Total:
    """A sum whose partials say where calls are counted."""

    commutative = True

    def lift(self, value: int, log: str) -> list[Any]:
        return [log, value]

    def combine(self, older: list[Any], newer: list[Any]) -> list[Any]:
        _counted(b"c", older[0])
        return [older[0], older[1] + newer[1]]

    def deduct(self, total: list[Any], oldest: list[Any]) -> list[Any]:
        _counted(b"d", total[0])
        return [total[0], total[1] - oldest[1]]

    def lower(self, partial: list[Any]) -> Any:
        return partial[1]


class Listed(Total):
    """Depends on the order of its rows."""

    commutative = False

    def lift(self, value: int, log: str) -> list[Any]:
        return [log, [value]]

    def deduct(self, total: list[Any], oldest: list[Any]) -> list[Any]:
        _counted(b"d", total[0])
        assert total[1][: len(oldest[1])] == oldest[1]
        return [total[0], total[1][len(oldest[1]) :]]


GRID: Row = {"type": "hopping", "size": f"{WIDTH} minutes", "hop": "1 minute"}
#: Windows of tuples by position: by count, and by time with ticks.
POLICIES: dict[str, Row] = {
    "count": {"type": "sliding", "evict": {"count": WIDTH}, "trigger": {"count": 1}},
    "time": {"type": "sliding", "evict": {"time": f"{WIDTH} minutes"}, "trigger": {"time": "1 minute"}},
}


def spec_of(own: str, folder: Path, window: Row = GRID) -> Row:
    return {
        "pipeline": "deducted",
        "source": {"path": str(folder / "source")},
        "sink": {"path": str(folder / "sink")},
        "keys": ["k"],
        "time": {"column": "t"},
        "windows": [{"name": "w", **window}],
        "aggregates": {"own": {"use": f"{HERE}:{own}", "args": ["v", "log"]}, "all": {"collect": "v"}},
    }


def rows_of(folder: Path) -> list[Row]:
    begin, log = datetime(2024, 3, 1, tzinfo=UTC), str(folder / "calls")
    return [{"k": key, "t": begin + timedelta(minutes=at), "v": at * at % 97, "log": log} for at in range(MINUTES) for key in "ab"]


def table_of(rows: list[Row]) -> pa.Table:
    types = {"k": pa.string(), "t": pa.timestamp("us", "UTC"), "v": pa.int64(), "log": pa.string()}
    return pa.Table.from_pylist(rows, pa.schema(types))


def by_run(spec: Row, rows: list[Row]) -> list[Row]:
    write_deltalake(spec["source"]["path"], table_of(rows))
    loop.run(parse_pipeline(spec), quiet())
    found: list[Row] = DeltaTable(spec["sink"]["path"]).to_pyarrow_table().to_pylist()
    return found


def by_try(spec: Row, rows: list[Row]) -> list[Row]:
    lines = [json.dumps(row | {"t": row["t"].isoformat()}) for row in rows]
    return attempt(parse_pipeline(spec), "\n".join(lines).encode(), commit_rows=len(rows)).rows


def check(own: str, folder: Path, found: list[Row], most: float = 2.1) -> None:
    """The results ``found``, and at ``most`` so many calls a window in ``folder``."""
    assert len(found) >= 2 * (MINUTES - WIDTH)
    for row in found:
        result = json.loads(row["own"]) if isinstance(row["own"], str) else row["own"]
        listed = json.loads(row["all"]) if isinstance(row["all"], str) else row["all"]
        assert result == (listed and sum(listed) if own == "Total" else listed)
    calls = Counter((folder / "calls").read_text())
    assert calls["d"] > MINUTES, "what leaves is deducted"
    assert calls["c"] + calls["d"] <= most * len(found)


OWN = pytest.mark.parametrize("own", ["Total", "Listed"])


@OWN
@pytest.mark.usefixtures("each_scheduler")
def test_a_run_takes_two_operations_a_window(own, tmp_path):
    check(own, tmp_path, by_run(spec_of(own, tmp_path), rows_of(tmp_path)))


@OWN
def test_try_takes_two_operations_a_window(own, tmp_path):
    check(own, tmp_path, by_try(spec_of(own, tmp_path), rows_of(tmp_path)))


@OWN
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("road", [by_run, by_try])
def test_windows_over_positions_take_them_besides_the_nodes_of_the_state(own, policy, road, tmp_path):
    """A tuple completes one node of a FlatFAT, on an average."""
    check(own, tmp_path, road(spec_of(own, tmp_path, POLICIES[policy]), rows_of(tmp_path)), 3.1)


@OWN
@pytest.mark.spark
def test_aggregate_takes_two_operations_a_window(spark, own, tmp_path):
    frame = spark.createDataFrame(table_of(rows_of(tmp_path)))
    check(own, tmp_path, aggregate(frame, spec_of(own, tmp_path)).toArrow().to_pylist())
