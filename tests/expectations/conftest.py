"""A small pipeline and rows that satisfy it, for every test of the package."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from windowmill.expectations.suites import sink_columns
from windowmill.windowing.spec import Pipeline

HOURLY = {"name": "hourly", "type": "tumbling", "size": "1 hour"}
LAST_THREE = {"name": "last_three", "type": "sliding", "evict": {"count": 3}}


@pytest.fixture
def pipeline() -> Callable[..., Pipeline]:
    """Builds a pipeline from its expectations; further fields replace those of the spec."""

    def build(*expectations: dict[str, Any], **fields: Any) -> Pipeline:
        spec = {
            "pipeline": "delays",
            "keys": ["origin"],
            "time": {"column": "departed"},
            "windows": [HOURLY],
            "aggregates": {"flights": {"count": "*"}, "delay": {"mean": "delay"}},
            "expectations": expectations,
        }
        return Pipeline.model_validate(spec | fields)

    return build


@pytest.fixture
def batch() -> Callable[..., pa.Table]:
    """Builds the result rows of that pipeline: six hours of EWR and JFK in turn; a keyword replaces a whole column."""

    def build(rows: int = 6, *, pipeline: Pipeline | None = None, **replaced: Any) -> pa.Table:
        start = [datetime(2013, 2, 1, tzinfo=UTC) + timedelta(hours=hour) for hour in range(rows)]
        instant = pa.timestamp("us", "UTC")
        columns: dict[str, Any] = {
            "origin": [("EWR", "JFK")[row % 2] for row in range(rows)],
            "window": ["hourly"] * rows,
            "window_start": pa.array(start, instant),
            "window_end": pa.array([t + timedelta(hours=1) for t in start], instant),
            "trigger": pa.nulls(rows, pa.int64()),
            "revision": pa.array([0] * rows, pa.int64()),
            "flights": pa.array(range(1, rows + 1), pa.int64()),
            "delay": pa.array([float(row) for row in range(rows)], pa.float64()),
            "batch": pa.array([1] * rows, pa.int64()),
        }
        columns |= replaced
        names = sink_columns(pipeline) if pipeline else tuple(columns)
        return pa.table({name: columns[name] for name in names})

    return build
