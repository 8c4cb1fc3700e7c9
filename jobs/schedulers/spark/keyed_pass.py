"""One shuffle on Spark that brings a key's new rows and its stored rows together; its tasks advance them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.layouts.output import Output
from windowmill.jobs.schedulers.files.passes import RowsByKey
from windowmill.jobs.schedulers.files.rows import FileRows
from windowmill.jobs.schedulers.spark.numbered_rows import Sent
from windowmill.jobs.schedulers.spark.partitioning import alike, partitions_for
from windowmill.jobs.schedulers.spark.pass_output import GroupsOf, written_by_tasks
from windowmill.jobs.schedulers.spark.task_output import Targets
from windowmill.windowing.columnar.advanced import Advanced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windowmill.jobs.layouts.keyed_parts import AdvanceKeys, Keyed
    from windowmill.jobs.schedulers.spark.numbered_rows import NumberedRows

#: Columns of the shuffled rows: a new row, or a stored one.
_NEW, _STORED = "new", "stored"


@dataclass(frozen=True)
class KeyedFrames:
    """New rows, and restored state in Spark; either may be null. ``partitions`` is the least number of partitions of a shuffle."""

    spark: SparkSession
    new: FileRows | NumberedRows | None
    stored: DataFrame | None
    keyed: Keyed
    partitions: int

    def compute(self, targets: Targets) -> Output:
        if self.new is None and self.stored is None:
            return Output()
        rows, groups_of = self._gathered()
        return written_by_tasks(rows, partial(_advanced, groups_of, self.keyed.advance), targets)

    def _gathered(self) -> tuple[DataFrame, GroupsOf]:
        """New and stored rows, such that a partition has all rows of its keys; and a function that groups the rows of a partition."""
        keyed, new = self.keyed, self.new
        if isinstance(new, FileRows):
            read = partial(new.marked, stage=keyed.reading, schema=keyed.rows)
            return RowsByKey(new, read, keyed.rows, keyed.stored, keyed.keys).gathered(self.spark, self.stored, self.partitions)
        n = partitions_for(0 if new is None else new.survey.rows, self.partitions)
        sent = None if new is None else Sent.of(new.batch, keyed.rows)
        both = by_key(None if new is None or sent is None else new.read_by(keyed.reading, sent), self.stored, keyed.keys, n)
        return both, partial(groups, new=keyed.rows, sent=sent, stored=keyed.stored)


def _advanced(groups_of: GroupsOf, advance: AdvanceKeys, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.Table, Advanced]]:
    """Runs in an executor: advances each group of keys."""
    return ((stored, advance(new, stored)) for new, stored in groups_of(batches))


def by_key(new: DataFrame | None, stored: DataFrame | None, keys: Mapping[str, str], partitions: int) -> DataFrame:
    """``new`` and ``stored`` rows, of which one may be null, as structs; all rows of a key are in one partition.

    ``keys`` maps the name of each key column in new rows to its name in stored rows.
    """
    sides = [(_NEW, new, list(keys)), (_STORED, stored, list(keys.values()))]
    given = [(name, rows, columns) for name, rows, columns in sides if rows is not None]
    parts = [rows.select(F.struct(*_columns(rows)).alias(name)) for name, rows, _ in given]
    both = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), parts)
    if not keys:
        return both.coalesce(1)
    columns = [
        F.coalesce(*same) for same in zip(*([F.col(f"{name}.{backquoted(key)}") for key in own] for name, _, own in given), strict=True)
    ]
    types = dict(both.select(*(key.alias(str(index)) for index, key in enumerate(columns))).dtypes)
    return both.repartition(partitions, *(alike(key, types[str(index)]) for index, key in enumerate(columns)))


def _columns(rows: DataFrame) -> list[Column]:
    return [F.col(backquoted(name)) for name in rows.columns]


def groups(batches: Iterator[pa.RecordBatch], new: pa.Schema, sent: Sent | None, stored: pa.Schema) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Usable new rows and stored rows of one Spark partition, in any order, with these schemas, as one group; none if it has no rows.

    Runs in an executor. ``sent`` is null if there are no new rows.
    """
    arrived = [batch for batch in batches if batch.num_rows]
    if arrived:
        table = pa.Table.from_batches(arrived)
        rows = new.empty_table() if sent is None else sent.usable(_flat(table, _NEW, sent.schema))
        yield rows, _flat(table, _STORED, stored)


def _flat(table: pa.Table, name: str, schema: pa.Schema) -> pa.Table:
    """The structs of the column ``name`` as rows of ``schema``; none if there is no such column."""
    if name not in table.column_names:
        return schema.empty_table()
    chunks = (chunk.filter(chunk.is_valid()) for chunk in table.column(name).chunks)
    flat = pa.concat_tables([pa.Table.from_struct_array(chunk) for chunk in chunks])
    # Spark sets nullability and the zone of instants.
    return flat.select(schema.names).cast(schema).combine_chunks()
