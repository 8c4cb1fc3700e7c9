"""One shuffle that brings a key's new rows and its stored rows together, and what a worker receives of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.ways.file_passes import RowsByKey
from windowmill.jobs.ways.file_rows import FileRows
from windowmill.jobs.ways.partitioning import alike, partitions_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windowmill.jobs.ways.numbered_rows import NumberedRows
    from windowmill.jobs.ways.pass_output import GroupsOf
    from windowmill.windowing.columnar.slices import Reading

#: Columns of the shuffled rows: a new row, or a stored one.
_NEW, _STORED = "new", "stored"


def gathered(
    spark: SparkSession,
    new: FileRows | NumberedRows | None,
    stored: DataFrame | None,
    stage: Reading,
    rows: pa.Schema,
    entries: pa.Schema,
    fewest: int,
) -> tuple[DataFrame, GroupsOf]:
    """``new`` and ``stored`` rows, of which one may be null, so that a partition has all rows of its keys, and what makes groups of one.

    Parameters
    ----------
    rows, entries
        Columns of new rows, and of stored ones.
    fewest
        Least number of partitions.
    """
    if isinstance(new, FileRows):
        return RowsByKey(new, partial(new.marked, stage=stage, schema=rows), rows, entries, stage.keys).gathered(spark, stored, fewest)
    n_rows = 0 if new is None else new.survey.rows
    both = by_key(None if new is None else new.read_by(stage), stored, stage.keys, partitions_for(n_rows, fewest))
    return both, partial(groups, new=rows, stored=entries)


def by_key(new: DataFrame | None, stored: DataFrame | None, keys: Sequence[str], partitions: int) -> DataFrame:
    """``new`` and ``stored`` rows, of which one may be null, as structs; all rows of a key are in one partition."""
    parts = [rows.select(F.struct(*_columns(rows)).alias(name)) for rows, name in ((new, _NEW), (stored, _STORED)) if rows is not None]
    both = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), parts)
    if not keys:
        return both.coalesce(1)
    columns = [F.coalesce(*(F.col(f"{part}.{backquoted(key)}") for part in both.columns)) for key in keys]
    types = dict(both.select(*(key.alias(str(index)) for index, key in enumerate(columns))).dtypes)
    return both.repartition(partitions, *(alike(key, types[str(index)]) for index, key in enumerate(columns)))


def _columns(rows: DataFrame) -> list[Column]:
    return [F.col(backquoted(name)) for name in rows.columns]


def groups(batches: Iterator[pa.RecordBatch], new: pa.Schema, stored: pa.Schema) -> Iterator[tuple[pa.Table, pa.Table]]:
    """New and stored rows of one Spark partition, in any order, with these schemas, as one group; none if it has no rows.

    Runs in an executor.
    """
    arrived = [batch for batch in batches if batch.num_rows]
    if arrived:
        table = pa.Table.from_batches(arrived)
        yield _flat(table, _NEW, new), _flat(table, _STORED, stored)


def _flat(table: pa.Table, name: str, schema: pa.Schema) -> pa.Table:
    """The structs of the column ``name`` as rows of ``schema``; none if there is no such column."""
    if name not in table.column_names:
        return schema.empty_table()
    chunks = (chunk.filter(chunk.is_valid()) for chunk in table.column(name).chunks)
    flat = pa.concat_tables([pa.Table.from_struct_array(chunk) for chunk in chunks])
    # Spark sets nullability and the zone of instants.
    return flat.select(schema.names).cast(schema).combine_chunks()
