"""The state table: slices of partials per key, appended by every batch, read back for the windows that are still to come.

One row per key, slice and batch that touched it; readers combine. This is the only module that touches state tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable

from windowing.columnar.slices import BATCH, CLOSED, SLICE
from windowing.errors import StateError
from windowing.kernels.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: A batch's few slices should not leave as many files as Spark has partitions.
ROWS_PER_FILE = 1_000_000


def state_schema(keys: dict[str, pa.DataType], layout: Layout) -> pa.Schema:
    """Columns of the state table: keys, start of the slice, ``_closed`` (windows that end later count it; null: all), batch, partials."""
    own = [(SLICE, pa.int64()), (CLOSED, pa.int64()), (BATCH, pa.int64())]
    return pa.schema([*keys.items(), *own, *((stored.name, stored.type) for stored in layout.fields)])


class SliceTable:
    """The slices of one pipeline at ``path``."""

    def __init__(self, spark: SparkSession, path: str, schema: pa.Schema) -> None:
        self._spark, self._path, self._schema = spark, path, schema
        self._exists = DeltaTable.is_deltatable(path)

    def restore(self, *, before_batch: int, first_slice: int, last_slice: int) -> DataFrame | None:
        """Slices that start in [``first_slice``, ``last_slice``) as the batches before ``before_batch`` left them; none at first.

        An attempt that died after remembering left rows of ``before_batch`` itself: they are not read, and the retry's are the same.
        """
        if not self._exists:
            return None
        from pyspark.sql import functions as F

        rows = self._spark.read.format("delta").load(self._path)
        return (
            rows.where(F.col(BATCH) < before_batch)
            .where((F.col(SLICE) >= first_slice) & (F.col(SLICE) < last_slice))
            .select(*self._schema.names)
        )

    def remember(self, slices: DataFrame, count: int, *, app_id: str, batch: int, metadata: str) -> int:
        """Append a batch's slices in one commit and give the table's version; a repeated batch changes nothing."""
        (
            slices.select(*self._schema.names)
            .coalesce(max(1, count // ROWS_PER_FILE))
            .write.format("delta")
            .mode("append")
            .option("txnAppId", app_id)
            .option("txnVersion", batch)
            .option("userMetadata", metadata)
            .save(self._path)
        )
        # Delta skips a version it has seen without a word, and reports a lost race as success: ask what the table holds now.
        table = DeltaTable(self._path)
        if (table.transaction_version(app_id) or 0) < batch:
            raise StateError(f"state {self._path}: the commit of batch {batch} did not land; run again")
        self._exists = True
        return table.version()
