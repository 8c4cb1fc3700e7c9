"""Rows of plain files as Spark's scan gives them, for tests that compare another reader with it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tests.specs import a_spec
from windowmill.jobs.runnables import runnable_of
from windowmill.jobs.sources.base import Reading, SourceTable
from windowmill.jobs.sources.spark_files import read_rows
from windowmill.windowing.columnar.added_columns import FAILED, FILE, ROW
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

#: The run's own time, in microseconds.
NOW = 1_700_000_000_000_000


def pipeline_over(path: Any, **fields: Any) -> Pipeline:
    spec = a_spec(
        source={"path": str(path)}, windows=[{"name": "w", "type": "tumbling", "size": "1 minute"}], sink={"path": f"{path}-sink"}
    )
    return parse_pipeline(spec | fields)


def whole(source: SourceTable) -> Reading:
    """All files of all versions."""
    return Reading(tuple(file for version in source.versions(-1, source.version) for file in version.added))


def by_spark(spark: Any, source: SourceTable, reading: Reading, pipeline: Pipeline) -> pa.Table:
    """All rows with all columns, in order of file and row."""
    rows = read_rows(spark, source, reading, runnable_of(pipeline), now_us=NOW).drop(FAILED).toArrow()
    return rows.sort_by([(FILE, "ascending"), (ROW, "ascending")])


def assert_same(theirs: pa.Table, ours: pa.Table | None) -> None:
    assert ours is not None
    assert set(ours.column_names) == set(theirs.column_names)
    for name in theirs.column_names:
        one, other = theirs.column(name).combine_chunks(), ours.column(name).combine_chunks()
        assert one.type == other.type, name
        if pa.types.is_floating(one.type):  # NaN equals NaN, and 0.0 is not −0.0
            one, other = (column.view(pa.int64() if one.type == pa.float64() else pa.int32()) for column in (one, other))
        assert one.equals(other), name
