"""The quality table keeps every result."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from windowmill.expectations import gate
from windowmill.expectations.gate import validate

NOON = datetime(2013, 2, 1, 12, tzinfo=UTC)


@pytest.fixture
def verdict(pipeline, batch):
    rule = {"type": "expect_column_values_to_be_between", "column": "delay", "max_value": 3, "severity": "warning"}
    mean = {"type": "expect_column_mean_to_be_between", "column": "delay", "max_value": 100}
    return validate(batch(), pipeline(rule, mean))


def write(place, verdict, batch=1, attempt="1", at=NOON, generation="0"):
    rows = gate.rows_of(verdict, pipeline="delays", generation=generation, batch=batch, attempt=attempt, at=at)
    write_deltalake(str(place), rows, mode="append")


def test_what_is_recorded_is_read_again(tmp_path, verdict):
    write(tmp_path / "quality", verdict)
    rows = gate.read(tmp_path / "quality")
    assert len(rows) == len(verdict.results)
    assert rows[0] == {
        "pipeline": "delays", "generation": "0", "batch": 1, "attempt": "1", "at": NOON, "status": "warned", "rule": 0, "origin": "spec",
        "type": "expect_column_values_to_be_between", "column": "delay", "arguments": {"column": "delay", "max_value": 3},
        "severity": "warning", "outcome": "failed", "observed": None, "elements": 6, "unexpected": 2,
        "message": "2 of 6 rows break the rule", "examples": list(verdict.results[0].examples),
        "values": [{"delay": 4.0}, {"delay": 5.0}],
    }  # fmt: skip
    assert rows[1]["observed"] == 2.5


def test_the_last_validations_are_the_latest_in_time(tmp_path, verdict):
    for batch in (3, 1, 2):
        write(tmp_path, verdict, batch=batch, generation=str(batch), at=NOON + timedelta(hours=batch))
    assert [row["batch"] for row in gate.read(tmp_path, last=2)] == [2] * len(verdict.results) + [3] * len(verdict.results)
    assert gate.read(tmp_path, last=0) == []


def test_where_no_table_is_nothing_has_been_recorded(tmp_path):
    assert gate.read(tmp_path / "absent") == []


def test_a_long_observation_is_cut(tmp_path, pipeline, batch):
    rule = {"type": "expect_column_most_common_value_to_be_in_set", "column": "origin", "value_set": ["EWR"]}
    names = pa.array([f"airport {number:020}" for number in range(2_000)])
    write(tmp_path, validate(batch(2_000, origin=names), pipeline(rule)))
    written = DeltaTable(str(tmp_path)).to_pyarrow_table()["observed"].to_pylist()
    assert max(len(text) for text in written if text) < 11_000
    assert any(str(row["observed"]).endswith("…") for row in gate.read(tmp_path))


def test_a_table_from_before_values_were_kept_is_read(tmp_path, verdict):
    table = gate.rows_of(verdict, pipeline="delays", generation="0", batch=1, attempt="1", at=NOON)
    write_deltalake(tmp_path / "quality", table.drop_columns(["values"]))
    assert [row["values"] for row in gate.read(tmp_path / "quality")] == [None] * table.num_rows
