"""Reads the rows of the state table that a part wants, on Spark. The tasks that advance them verify their checksums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from windowmill.checkpoints.delta_tables import newest
from windowmill.checkpoints.quoting import backquoted
from windowmill.checkpoints.state.base import files_of, number_of_rows
from windowmill.checkpoints.state.log import entries_before
from windowmill.checkpoints.state.reading import read_file, require_columns
from windowmill.checkpoints.state.wanted import condition
from windowmill.checkpoints.stores import Options, is_local, is_table, options_of, table_at, use_options
from windowmill.jobs.layouts.base import EntriesWanted, PartialsWanted, PositionsWanted, StateWanted
from windowmill.jobs.schedulers.spark.position_rows import needed
from windowmill.windowing.columnar.added_columns import BATCH, DUE, KIND
from windowmill.windowing.columnar.state_log import KEY_ENTRY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

#: Greatest number of keys, by the rows that may name them, for which Spark sends the keys to the log's rows. By its own estimate, which
#: counts the log's bytes, it would shuffle a log of 10 MB for the join, and once more for the windows: a fifth of a run's time.
_MAX_SENT_KEYS = 1_000_000


def restored(spark: SparkSession, path: str, wanted: StateWanted, touched: DataFrame | None, n_touched: int) -> DataFrame | None:
    """The ``wanted`` rows of the table at ``path``; null if there is no table yet.

    Parameters
    ----------
    touched
        The usable new rows, with what the part reads; null for none.
    n_touched
        Upper bound on their number.
    """
    if not is_table(path):
        return None
    table = _table(spark, path)
    match wanted:
        case EntriesWanted():
            return _entries(table, path, wanted, touched, n_touched)
        case PartialsWanted():
            rows = table.where(condition(wanted.wanted, before_batch=wanted.before_batch).sql)
            return rows.select(*_columns(table, path, wanted.schema))
        case PositionsWanted():
            return needed(table.select(*_columns(table, path, wanted.schema)), wanted.stage, touched)


def _columns(table: DataFrame, path: str, schema: pa.Schema) -> list[Column]:
    require_columns(path, table.columns, schema.names)
    types = {field.name: field.dataType for field in from_arrow_schema(schema)}
    return [_column(table, name, kind) for name, kind in types.items()]


def _column(table: DataFrame, name: str, kind: DataType) -> Column:
    return F.col(backquoted(name)) if name in table.columns else F.lit(None).cast(kind).alias(name)


def _entries(table: DataFrame, path: str, wanted: EntriesWanted, touched: DataFrame | None, n_touched: int) -> DataFrame:
    """A run reads the whole log once."""
    keys = wanted.keys
    stored = table.where(entries_before(table.columns, wanted.before_batch).sql)
    require_columns(path, [*stored.columns, *wanted.may_lack], wanted.schema.names)
    types = {field.name: field.dataType for field in from_arrow_schema(wanted.schema)}
    log = stored.select(*(_column(stored, name, kind) for name, kind in types.items()))
    if not keys:
        return log
    columns = [F.col(backquoted(label)) for label in keys.values()]
    latest = log.where(F.col(KIND) == KEY_ENTRY).groupBy(*columns).agg(F.max_by(DUE, BATCH).alias(DUE))
    chosen = latest.where(F.col(DUE) <= wanted.watermark).select(*columns)
    if touched is not None:
        chosen = touched.select(*(F.col(backquoted(name)).alias(label) for name, label in keys.items())).unionByName(chosen).distinct()
    if n_touched + number_of_rows(table_at(path)) <= _MAX_SENT_KEYS:
        chosen = F.broadcast(chosen)
    same_key = [log[backquoted(label)].eqNullSafe(chosen[backquoted(label)]) for label in keys.values()]
    return log.join(chosen, reduce(and_, same_key), "left_semi")


def _table(spark: SparkSession, path: str) -> DataFrame:
    """The table as a DataFrame; its readers verify page checksums and report damaged pages."""
    if not is_local(path):
        return _by_tasks(spark, path)
    return spark.read.format("delta").option("parquet.page.verify-checksum.enabled", "true").load(path)


def _by_tasks(spark: SparkSession, path: str) -> DataFrame:
    """The table, read by tasks without Spark's readers, which may lack what they need to read object storage."""
    table = newest(path)
    files = [{name: file[name] for name in ("path", "size_bytes", "num_records")} for file in files_of(table)]
    schema = pa.schema([field.with_nullable(True) for field in pa.schema(table.schema().to_arrow())])
    read = partial(_read_files, table.table_uri, files, schema, {path: options_of(path) or {}})
    numbers = spark.range(0, len(files), 1, max(1, len(files)))
    types = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    rows = numbers.mapInArrow(read, types)
    # A type that is named in SQL is not, over Spark Connect, the type of a value in everything.
    return rows.select(*(F.col(backquoted(field.name)).cast(field.dataType.simpleString()).alias(field.name) for field in types))


def _read_files(
    uri: str,
    files: Sequence[Mapping[str, Any]],
    schema: pa.Schema,
    options: Mapping[str, Options],
    numbers: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    use_options(options)
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from read_file(uri, files[number], schema, schema.names).to_batches()
