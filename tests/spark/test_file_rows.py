"""Plain files that tasks of runs and backfills read by Arrow: the rows, numbers, watermarks and reasons of Spark's own reader."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as F

from tests.spark.harness import BASE, LASTING, MINUTE, SCHEMA, Bench, differences, events, expected, lasting, run_over
from windowmill.jobs.batch import compute
from windowmill.jobs.sources import plain_files
from windowmill.jobs.sources.base import Reading
from windowmill.jobs.sources.columns import FILE, REASON, ROW, Columns
from windowmill.jobs.sources.kinds import open_source
from windowmill.jobs.sources.plain_rows import PlainRows
from windowmill.jobs.sources.rows import read_rows
from windowmill.jobs.spec_checks import runnable_of
from windowmill.jobs.ways import file_rows, file_survey, limits, partitioning
from windowmill.jobs.ways.file_rows import FileRows
from windowmill.jobs.ways.input import Input
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.windowing.columnar.added_columns import CLOSED, LATE, NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

pytestmark = pytest.mark.spark

_POLICIES = [
    {"name": "last", "type": "sliding", "evict": {"count": 5}, "trigger": {"count": 2}},
    {"name": "recent", "type": "sliding", "evict": {"time": "9 minutes"}, "trigger": {"count": 3}},
]
_LASTING = {"time": {"column": "t", "end": "e", "tie_break": ["id"], "disorder": "5 minutes", "lateness": "8 minutes"}}
_BY_ROW = {"time": {"column": "t", "tie_break": ["id"], "disorder": "5 minutes", "lateness": "8 minutes", "arrival": "row"}}
_SPECS: dict[str, dict[str, Any]] = {
    "slices": {},
    "each row by itself": _BY_ROW,
    "revisions": {"emit": "revise"},
    "sessions": {"windows": [{"name": "s", "type": "session", "gap": "3 minutes"}]},
    "policies": {"windows": _POLICIES},
    "live rows": {"windows": [{"name": "c", "type": "count", "count": 4}]},
    "live rows, revised": {"windows": [{"name": "m", "type": "session", "gap": "3 minutes", "max_size": "9 minutes"}], "emit": "revise"},
    "events that last": _LASTING,
    "several ways": {
        "windows": [
            {"name": "s", "type": "session", "gap": "3 minutes"},
            *_POLICIES,
            {"name": "t", "type": "tumbling", "size": "7 minutes"},
        ]
    },
}


@pytest.fixture
def files_on_spark(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """No batch is small, files are divided into many parts, and each survey tells whether tasks read the files."""
    monkeypatch.setattr(limits, "MOST_BYTES", -1)
    monkeypatch.setattr(file_rows, "ROWS_PER_PARTITION", 40)
    read: list[bool] = []
    survey = FileRows.surveyed

    def told(*args: Any, **options: Any) -> FileRows | None:
        found = survey(*args, **options)
        read.append(found is not None)
        return found

    monkeypatch.setattr(FileRows, "surveyed", told)
    return read


@pytest.mark.parametrize("readers", [0, 64], ids=["shuffled", "shared"])
@pytest.mark.parametrize("changes", _SPECS.values(), ids=_SPECS.keys())
def test_runs_over_files_give_the_rows_of_the_reference(spark, tmp_path, monkeypatch, files_on_spark, changes, readers):
    monkeypatch.setattr(limits, "MOST_READERS", readers)
    monkeypatch.setattr(limits, "MOST_ROWS_OF_A_TASK", 0)
    monkeypatch.setattr(partitioning, "ROWS_PER_PARTITION", 150)
    bench, rows = Bench(tmp_path, changes), events(91, 400)
    rows = lasting(rows, 3) if changes == _LASTING else rows
    run_over(bench, 4, rows, 16, batches=2)
    assert files_on_spark
    assert all(files_on_spark)
    want = expected(bench.pipeline, rows, commits=bench.commits)
    assert want.rows
    assert differences(bench.rows(), want.rows) == []
    assert sorted(row["reason"] for row in bench.quarantine()) == sorted(reason for _, reason in want.quarantined)
    assert {"null_time", "too_late"} <= {reason for _, reason in want.quarantined}
