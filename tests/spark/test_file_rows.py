"""Plain files that tasks of runs and backfills read by Arrow: the rows, numbers, watermarks and reasons of Spark's own reader."""

from __future__ import annotations

from typing import Any

import pytest

from tests.readers import EVERY_CASE
from tests.spark.harness import Bench, differences, events, expected, lasting, run_over
from windowmill.jobs.layouts import limits
from windowmill.jobs.schedulers import exchange, file_rows
from windowmill.jobs.schedulers.file_rows import FileRows
from windowmill.jobs.sources import delta_log

pytestmark = pytest.mark.spark

_POLICIES = [
    {"name": "last", "type": "sliding", "evict": {"count": 5}, "trigger": {"count": 2}},
    {"name": "recent", "type": "sliding", "evict": {"time": "9 minutes"}, "trigger": {"count": 3}},
]
_LASTING = {"time": {"column": "t", "end": "e", "tie_break": ["id"], "disorder": "5 minutes", "lateness": "8 minutes"}}
_SPECS: dict[str, dict[str, Any]] = {
    "slices": {},
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
    monkeypatch.setattr(limits, "MAX_BYTES", -1)
    monkeypatch.setattr(file_rows, "ROWS_PER_PARTITION", 40)
    read: list[bool] = []
    survey = FileRows.surveyed

    def told(*args: Any, **options: Any) -> FileRows | None:
        found = survey(*args, **options)
        read.append(found is not None)
        return found

    monkeypatch.setattr(FileRows, "surveyed", told)
    return read


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        (name, shared)
        for number, name in enumerate(_SPECS)
        for shared in (False, True)
        if EVERY_CASE or name in ("slices", "several ways") or shared == bool(number % 2)
    ],
)
def test_runs_over_files_give_the_rows_of_the_reference(spark, tmp_path, monkeypatch, files_on_spark, name, shared):
    changes = _SPECS[name]
    monkeypatch.setattr(limits, "MAX_READERS", 64 if shared else 0)
    monkeypatch.setattr(limits, "MAX_ROWS_OF_A_TASK", 0)
    monkeypatch.setattr(exchange, "ROWS_PER_PARTITION", 150)
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


def test_many_files_are_examined_by_tasks(spark, tmp_path, monkeypatch, files_on_spark):
    monkeypatch.setattr(limits, "MAX_FILES", 3)
    monkeypatch.setattr(limits, "MAX_ROWS_SURVEYED_HERE", 0)
    monkeypatch.setattr(delta_log, "CUT_OFF_US", 1 << 50)  # statistics decide nothing, so event times are read
    bench, rows = Bench(tmp_path), events(92, 300)
    run_over(bench, 5, rows, 12, batches=1)
    assert files_on_spark
    assert all(files_on_spark)
    assert differences(bench.rows(), bench.expected(rows).rows) == []
