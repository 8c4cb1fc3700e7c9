"""The chunks of Arrow tables that go to Spark."""

from __future__ import annotations

import pyarrow as pa


def without_empty_chunks(table: pa.Table) -> pa.Table:
    """``table`` with the same rows, in chunks none of which is empty, or one empty chunk if it has no rows; copies no values.

    Every table for ``createDataFrame`` passes through here. Spark 4.2 reads the chunks of an Arrow table up to the first empty one that
    follows another chunk, and silently drops the rows after it. A Spark Connect session keeps them, but refuses a table without rows unless
    its schema is given. Either kind of session refuses slices with nulls of lists or maps that hold instants or nested values.
    """
    if not table.num_rows:
        return table.schema.empty_table()
    return pa.Table.from_batches((batch for batch in table.to_batches() if batch.num_rows), table.schema)
