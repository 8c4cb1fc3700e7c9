"""Validates a batch's result rows over the files that hold them: few rows in this process, many on Spark.

A verdict becomes lines for people, rows of the quality table, and a page of the Data Docs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from windowmill.checkpoints.batches import Changes, Plan
from windowmill.checkpoints.data_files import DataFile, FileWriter
from windowmill.checkpoints.quoting import backquoted
from windowmill.checkpoints.runnable import Runnable
from windowmill.checkpoints.stores import Options, is_local, options_of, remote_store_of, use_options
from windowmill.expectations import docs, history
from windowmill.expectations.gate import Verdict, validate
from windowmill.expectations.pages import Folder
from windowmill.jobs.batch.kept_rules import kept_rules
from windowmill.jobs.batch.progress import Progress
from windowmill.jobs.spark.access import map_in_arrow
from windowmill.jobs.spark.object_storage import literal_path
from windowmill.jobs.ways.limits import MAX_VALIDATED_IN_PANDAS
from windowmill.jobs.ways.task_output import read_files
from windowmill.windowing.errors import HeldError, first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from windowmill.expectations.rule import Loss
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
    few = rows.n_rows <= MAX_VALIDATED_IN_PANDAS
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


def report(verdict: Verdict, progress: Progress) -> None:
    """Say the verdict, and examples of the rows that were quarantined, if these are too many."""
    progress.say(f"  {verdict.describe()}")
    for row in verdict.lost:
        progress.say(f"    quarantined, for example: {json.dumps(row, ensure_ascii=False)}")


def quality_changes(runnable: Runnable, plan: Plan, verdict: Verdict, attempt: str, at: datetime) -> Changes | None:
    """Write the results of the rules to a file of the quality table; null if there are no rules."""
    rows = history.rows_of(verdict, pipeline=runnable.name, generation=plan.generation, batch=plan.batch, attempt=attempt, at=at)
    if not rows.num_rows:
        return None
    with FileWriter(runnable.places.quality, history.SCHEMA, batch=plan.batch, attempt=plan.attempt, task=0) as writer:
        writer.write(rows)
    return Changes.of(history.SCHEMA, writer.close())


def write_docs(runnable: Runnable, plan: Plan, verdict: Verdict, at: datetime, progress: Progress) -> None:
    """Write the page of the batch, which only shows the contents of the quality table, so a batch must not fail because of it."""
    place = runnable.places.docs
    try:
        docs.write_docs(Folder(place, remote_store_of(place)), verdict, pipeline=runnable.name, batch=plan.batch, at=at)
    except (OSError, pa.ArrowException) as err:
        progress.say(f"  {place}: the page of this batch was not written ({first_line(err)})")


def held_error(runnable: Runnable, plan: Plan, verdict: Verdict) -> HeldError:
    """The error for a batch whose results must not be published."""
    return HeldError(
        f"pipeline {runnable.name}: batch {plan.batch} is held, nothing was published: {verdict.describe()}; see its rows in "
        f"{runnable.places.held}, then run again with other expectations or other limits of quarantine, or `windowmill release` or "
        "`windowmill discard` it"
    )


def _read(files: ResultFiles, options: Mapping[str, Options], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    use_options(options)
    for batch in batches:
        for rows in read_files(files.table, [files.files[number] for number in batch.column(0).to_pylist()], files.schema.names):
            yield rows.cast(files.schema)
