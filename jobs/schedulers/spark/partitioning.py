"""Divides rows among Spark partitions by their keys: into how many, and by which columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from windowmill.jobs.spark.access import access_to
from windowmill.jobs.spark.spark_settings import is_short_run

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from windowmill.jobs.layouts.input import Input

#: Number of new rows per Spark partition; larger partitions would only take more memory.
ROWS_PER_PARTITION = 1_000_000


def partitions_for(n_rows: int, fewest: int) -> int:
    """Number of Spark partitions for ``n_rows`` new rows; at least ``fewest``."""
    return max(fewest, -(-n_rows // ROWS_PER_PARTITION))


def shuffle_partitions(batch: Input, spark: SparkSession) -> int:
    """Number of Spark partitions for windows: the session's shuffle partitions, capped at the core count for small inputs."""
    configured = int(spark.conf.get("spark.sql.shuffle.partitions") or 2)
    if batch.size_bytes is None or not is_short_run(batch.size_bytes):
        return configured
    return min(configured, max(2, access_to(spark).cores()))


def alike(key: Column, dtype: str) -> Column:
    """Normalize ``key`` so that equal keys reach one partition: −0.0 becomes 0.0."""
    return key + F.lit(0.0).cast(dtype) if dtype in ("float", "double") else key
