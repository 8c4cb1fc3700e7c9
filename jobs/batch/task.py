"""Computes a small batch in one task of Spark. The driver loads none of what only the task uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import cast

import pyarrow as pa

from windowmill.checkpoints.delta_tables import tables_kept
from windowmill.checkpoints.stores import use_options
from windowmill.jobs.batch.job import ComputedBatch, Job, Step
from windowmill.jobs.layouts import limits
from windowmill.jobs.layouts.limits import OnlySparkError, TooLargeError
from windowmill.jobs.layouts.output import RETURNED, collect_results, encode_result
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.spark.access import DataFrame, SparkSession, map_in_arrow, mapped
from windowmill.windowing.errors import WindowmillError


def compute_in_a_task(job: Job, spark: SparkSession, step: Step) -> ComputedBatch:
    """As :func:`.compute_locally`, in one task of Spark, which is given the rows if only Spark can read them."""
    limits.check_files(job.reading.files, None)
    with step("apply", "new rows and restored state into windows, in one task"):
        reads = job.input.plain is not None or not job.reading.files
        found = _of_task(job, spark, given=not reads)
        if reads and isinstance(found, OnlySparkError):
            found = _of_task(job, spark, given=True)
    if isinstance(found, Exception):
        raise found
    return cast("ComputedBatch", found)


def _of_task(job: Job, spark: SparkSession, *, given: bool) -> object:
    """What :func:`.compute_locally` returns, or raises, in one task of Spark."""
    if not given:
        [found] = collect_results(map_in_arrow(spark.range(0, 1, 1, 1), partial(_in_task, job), RETURNED))
        return found
    from windowmill.jobs.schedulers.tasks import read_by_spark, stored_rows

    stages = [*(part.reading for part in job.parts()), *job.input.finds_duplicates_by]
    for stage in stages:
        limits.check_files(job.reading.files, stage.layout)
    rows = read_by_spark(job.input, stages, spark)
    [found] = collect_results(mapped(rows.coalesce(1), partial(_in_task_given, job, _empty(rows), stored_rows(job.input, spark)), RETURNED))
    return found


def _empty(rows: DataFrame) -> pa.Table:
    return pa.schema(list(Columns(rows.schema).arrow.items())).empty_table()


def _in_task(job: Job, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    for _ in batches:
        pass
    yield from _answered(job, None)


def _in_task_given(job: Job, empty: pa.Table, stored: int | None, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    tables = [pa.Table.from_batches([batch]).cast(empty.schema) for batch in batches]
    rows = pa.concat_tables([empty, *tables])
    yield from _answered(job, (rows, len(rows) if stored is None else stored))


def _answered(job: Job, given: tuple[pa.Table, int] | None) -> Iterator[pa.RecordBatch]:
    """The batch, or the error that has a meaning to the driver; Spark would repeat a task that raises it."""
    from windowmill.jobs.batch.compute import compute_locally

    use_options(job.options)
    with tables_kept():
        try:
            yield from encode_result(compute_locally(job, given))
        except (TooLargeError, WindowmillError) as err:
            yield from encode_result(err)
