"""Divides work among the tasks of Spark: into how many, and which of it a task is given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from windowmill.jobs.spark.access import access_to
from windowmill.jobs.spark.spark_settings import is_short_run

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from windowmill.jobs.layouts.input import Input

#: Number of new rows per Spark partition; larger partitions would only take more memory.
ROWS_PER_PARTITION = 1_000_000


def partitions_for(n_rows: int, fewest: int) -> int:
    """Number of Spark partitions for ``n_rows`` new rows; at least ``fewest``."""
    return max(fewest, -(-n_rows // ROWS_PER_PARTITION))


def numbers_of_tasks(spark: SparkSession, n: int) -> DataFrame:
    """The numbers from 0 to ``n`` − 1, each in a Spark partition of its own."""
    return spark.range(0, n, 1, max(1, n))


def numbers_in(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    """The numbers of tasks that a worker receives."""
    for batch in batches:
        yield from batch.column(0).to_pylist()


def shuffle_partitions(batch: Input, spark: SparkSession) -> int:
    """Number of Spark partitions for windows: the session's shuffle partitions, capped at the core count for small inputs."""
    configured = int(spark.conf.get("spark.sql.shuffle.partitions") or 2)
    if batch.size_bytes is None or not is_short_run(batch.size_bytes):
        return configured
    return min(configured, max(2, access_to(spark).cores()))
