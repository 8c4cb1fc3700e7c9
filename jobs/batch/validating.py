"""Validates a batch's result rows over the files that hold them: few rows in this process, many on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from windowmill.checkpoints.data_files import DataFile
from windowmill.checkpoints.quoting import backquoted
from windowmill.checkpoints.stores import Options, is_local, options_of, use_options
from windowmill.expectations.gate import Verdict, validate
from windowmill.jobs.batch.kept_rules import kept_rules
from windowmill.jobs.spark.access import map_in_arrow
from windowmill.jobs.spark.object_storage import literal_path
from windowmill.jobs.ways.limits import MOST_VALIDATED_IN_PANDAS
from windowmill.jobs.ways.task_output import read_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from windowmill.expectations.rates import Loss
    from windowmill.windowing.spec import Pipeline


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """Result rows: the ``files`` in the folder of ``table``, with the columns of ``schema``."""

    table: str
    files: Sequence[DataFile]
    schema: pa.Schema

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return sum(file.rows for file in self.files)

    def here(self) -> pa.Table:
        """The rows in memory."""
        return pa.Table.from_batches(
            [rows.cast(self.schema) for rows in read_files(self.table, self.files, self.schema.names)], self.schema
        )

    def on_spark(self, spark: SparkSession) -> DataFrame:
        """The rows as a DataFrame."""
        if is_local(self.table):
            rows = spark.read.schema(from_arrow_schema(self.schema)).parquet(*(literal_path(self.table, file.path) for file in self.files))
            return rows.select(*map(backquoted, self.schema.names))
        # Spark itself may lack what it needs to read object storage.
        numbers = spark.range(0, len(self.files), 1, len(self.files))
        return map_in_arrow(numbers, partial(_read, self, {self.table: options_of(self.table) or {}}), self.schema)


def validate_files(
    rows: ResultFiles,
    pipeline: Pipeline,
    rows_read: int,
    rows_quarantined: int,
    loss: Callable[[], Loss],
    spark: Callable[[], SparkSession],
) -> Verdict:
    """The verdict on the result ``rows``.

    Parameters
    ----------
    rows_read, rows_quarantined
        Numbers of rows that the batch read from its source, and that were quarantined.
    loss
        Summarizes the quarantined rows; called if they are more than a rule allows.
    spark
        Gives the session, which may have to be started.
    """
    few = rows.n_rows <= MOST_VALIDATED_IN_PANDAS
    return validate(
        rows.here if few else lambda: rows.on_spark(spark()),
        pipeline,
        columns=rows.schema.names,
        count=rows.n_rows,
        rows_read=rows_read,
        rows_quarantined=rows_quarantined,
        loss=loss,
        spark=spark,
        kept=lambda suite: kept_rules(rows, suite, spark),
    )


def _read(files: ResultFiles, options: Mapping[str, Options], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    use_options(options)
    for batch in batches:
        for rows in read_files(files.table, [files.files[number] for number in batch.column(0).to_pylist()], files.schema.names):
            yield rows.cast(files.schema)
