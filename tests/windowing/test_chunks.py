"""The chunks of Arrow tables that go to Spark."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from windowmill.windowing.columnar.rows import without_empty_chunks

EMPTY, FULL = (pa.table({"n": pa.array(numbers, pa.int64())}) for numbers in ([], [1, 2, 3]))
MIXED = [pa.concat_tables(parts) for n in range(1, 5) for parts in itertools.product((EMPTY, FULL), repeat=n)]


def test_only_empty_chunks_are_left_out():
    for table in MIXED:
        dense = without_empty_chunks(table)
        assert dense.equals(table)
        assert all(len(chunk) for chunk in dense.column("n").chunks) or not table.num_rows
        assert dense.column("n").num_chunks


@pytest.mark.spark
def test_spark_keeps_all_rows(spark):
    for table in filter(len, MIXED):  # a client would need the schema of a table without rows
        assert spark.createDataFrame(without_empty_chunks(table)).count() == table.num_rows
