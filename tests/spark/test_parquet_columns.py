"""Parquet files of a folder that differ in their columns, as this process, tasks and Spark's own reader give them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from tests.jobs.parquet_cases import UNREAD, Case, groups, write_cases
from tests.spark.both_readers import NOW, assert_same, by_spark, pipeline_over, whole
from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.sources.base import open_source
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.plain_rows import PlainRows

pytestmark = pytest.mark.spark
#: Types that Spark's own reader does not take.
_NOT_SPARKS = {"timestamp[ns]", "timestamp[ns, tz=Europe/Berlin]", "halffloat", "null"}


@pytest.mark.parametrize("int96", groups(), ids=str)
def test_spark_gives_what_this_process_gives(spark, tmp_path, int96):
    cases = groups()[int96]
    write_cases(tmp_path / "in", cases, **UNREAD)
    pipeline = pipeline_over(tmp_path / "in", source={"path": str(tmp_path / "in"), "format": "parquet"})
    source = open_source(pipeline)
    plain, kinds = PlainRows.of(pipeline, source, whole(source)), Columns.of(source.schema_json).arrow
    assert plain is not None
    here = plain.read(list(kinds), [], latest=pipeline.time.latest(NOW))
    assert_same(by_spark(spark, source, whole(source), pipeline), here)
    assert here is not None
    struct = Columns.of(source.schema_json).struct
    # Spark casts no struct to one with more fields.
    theirs = {name: case for name, case in cases.items() if name != "structs" and not _NOT_SPARKS & set(map(str, _stored(case)))}
    write_cases(tmp_path / "theirs", theirs)
    for number in range(2):
        own = {name: case.spelt[number] or name for name, case in theirs.items() if case.files[number] is not None}
        columns = [F.col(backquoted(stored)).cast(struct[name].dataType).alias(name) for name, stored in own.items()]
        if columns:
            file = spark.read.parquet(str(tmp_path / "theirs" / f"{number}.parquet")).select(*columns).toArrow()
            assert file.to_pydict() == here.slice(2 * number, 2).select(list(own)).to_pydict()


def _stored(case: Case) -> list[pa.DataType]:
    return [column.type for column in case.files if column is not None]
