"""Validates a batch's result rows over the files that hold them: few rows in this process, many on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from windowmill.checkpoints.data_files import DataFile
from windowmill.checkpoints.quoting import backquoted
from windowmill.checkpoints.stores import Options, is_local, options_of, use_options
from windowmill.expectations.gate import Verdict, validate
from windowmill.jobs.sources.delta_rows import literal_path
from windowmill.jobs.spark.access import map_in_arrow
from windowmill.jobs.ways.limits import MOST_VALIDATED_IN_PANDAS
from windowmill.jobs.ways.task_output import read_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from windowmill.expectations.rates import Loss
    from windowmill.windowing.spec import Pipeline


def validate_files(
    table: str,
    files: Sequence[DataFile],
    schema: pa.Schema,
    pipeline: Pipeline,
    *,
    rows_read: int,
    rows_quarantined: int,
    loss: Callable[[], Loss],
    spark: Callable[[], SparkSession],
) -> Verdict:
    """The verdict on the result rows in ``files`` of the table at ``table``, with the columns of ``schema``.

    Parameters
    ----------
    rows_read, rows_quarantined
        Numbers of rows that the batch read from its source, and that were quarantined.
    loss
        Summarizes the quarantined rows; called if they are more than a rule allows.
    spark
        Gives the session, which may have to be started.
    """
    count = sum(file.rows for file in files)
    few = count <= MOST_VALIDATED_IN_PANDAS
    return validate(
        table_of(table, files, schema) if few else frame_of(spark(), table, files, schema),
        pipeline,
        columns=schema.names,
        count=count,
        rows_read=rows_read,
        rows_quarantined=rows_quarantined,
        loss=loss,
        spark=spark,
    )


def table_of(table: str, files: Sequence[DataFile], schema: pa.Schema) -> pa.Table:
    """The rows in ``files`` of the table at ``table``, in memory."""
    return pa.Table.from_batches([batch.select(schema.names).cast(schema) for batch in read_files(table, files)], schema)


def frame_of(spark: SparkSession, table: str, files: Sequence[DataFile], schema: pa.Schema) -> DataFrame:
    """The rows in ``files`` of the table at ``table``, as a DataFrame."""
    if is_local(table):
        return spark.read.parquet(*(literal_path(table, file.path) for file in files)).select(*map(backquoted, schema.names))
    # Spark itself may lack what it needs to read object storage.
    numbers = spark.range(0, len(files), 1, len(files))
    return map_in_arrow(numbers, partial(_read, table, files, schema, {table: options_of(table) or {}}), schema)


def _read(
    table: str, files: Sequence[DataFile], schema: pa.Schema, options: dict[str, Options], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    use_options(options)
    for batch in batches:
        for rows in read_files(table, [files[number] for number in batch.column(0).to_pylist()], schema.names):
            yield rows.cast(schema)
