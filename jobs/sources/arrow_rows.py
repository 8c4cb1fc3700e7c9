"""Reads rows by Arrow in tasks of Spark, a task for some of the files: text, messages, and Parquet that Spark does not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windowmill.checkpoints.stores import Options, options_of, use_options
from windowmill.jobs.sources.base import PlainFile, Reading, SourceTable
from windowmill.jobs.sources.columns import FILE, ROW, UNREAD, VERSION, Columns
from windowmill.jobs.sources.plain_files import Form
from windowmill.jobs.sources.plain_rows import batches_of
from windowmill.jobs.spark.access import access_to, map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: A file, its index among those that are read, and its version.
_Numbered = tuple[PlainFile, int, int]


def rows_by_arrow(spark: SparkSession, table: SourceTable, plain: Sequence[PlainFile], reading: Reading) -> DataFrame:
    """Implements :meth:`.SourceTable.rows`; ``plain`` are the files of ``reading``."""
    form = Form(Columns.of(table.schema_json).arrow)
    unread = {UNREAD: pa.string()} if table.has_unread else {}
    own = [(FILE, pa.int32()), (ROW, pa.int64()), (VERSION, pa.int64())]
    files = [(file, index, reading.files[index].version) for index, file in enumerate(plain)]
    n_tasks = max(1, min(len(files), 4 * access_to(spark).cores()))
    parts = [files[len(files) * at // n_tasks : len(files) * (at + 1) // n_tasks] for at in range(n_tasks)]
    options = {} if (found := options_of(table.path)) is None else {table.path: found}
    schema = pa.schema([*form.types.items(), *unread.items(), *own])
    return map_in_arrow(spark.range(0, n_tasks, 1, n_tasks), partial(_read, parts, form, [*form.types, *unread], options), schema)


def _read(
    parts: Sequence[Sequence[_Numbered]],
    form: Form,
    columns: Sequence[str],
    options: Mapping[str, Options],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    use_options(options)
    for number in (number for batch in batches for number in batch.column(0).to_pylist()):
        for file, index, version in parts[number]:
            first = 0
            for batch in batches_of(file, form, columns):
                own = {
                    FILE: pa.repeat(pa.scalar(index, pa.int32()), batch.num_rows),
                    ROW: pa.array(np.arange(first, first + batch.num_rows)),
                    VERSION: pa.repeat(pa.scalar(version, pa.int64()), batch.num_rows),
                }
                yield pa.record_batch([*batch.columns, *own.values()], names=[*columns, *own])
                first += batch.num_rows
