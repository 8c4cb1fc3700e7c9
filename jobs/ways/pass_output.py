"""The output of a pass over a batch's keys on Spark: one DataFrame of result rows, state entries, numbers of refused rows, and counts.

Each row is of one of these kinds, and null in the columns of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from windowmill.jobs.ways import counting
from windowmill.jobs.ways.base import Computed
from windowmill.windowing.columnar.added_columns import NUMBER_OF

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from windowmill.jobs.ways.counting import Windows
    from windowmill.windowing.kernels.combine import Ints

#: Columns of the output: a result row, a state entry, the number of a refused row, counts.
RESULT, ENTRY, REFUSED, APPLIED, LATE = "result", "entry", "refused", "applied", "late"
#: Greatest number of rows in an Arrow batch that a worker returns.
CHUNK_ROWS = 100_000


def output_schema(results: pa.Schema, entries: pa.Schema) -> pa.Schema:
    """Schema of the output, given those of result rows and of state entries."""
    counts = [(name, pa.int64()) for name in (REFUSED, APPLIED, LATE)]
    return pa.schema([(RESULT, pa.struct(list(results))), (ENTRY, pa.struct(list(entries))), *counts])


def output(
    schema: pa.Schema, found: Iterable[pa.Table], stored: pa.Table | None, refused: Ints, *, applied: int, late: int
) -> Iterator[pa.RecordBatch]:
    """What a worker returns for its keys: result rows, state entries, numbers of refused rows, and how many were applied and late."""
    for rows in found:
        yield from _structs(rows, RESULT, schema)
    if stored is not None:
        yield from _structs(stored, ENTRY, schema)
    if len(refused):
        yield _columns({REFUSED: pa.array(refused)}, schema)
    yield _columns({APPLIED: pa.array([applied]), LATE: pa.array([late])}, schema)


def _structs(table: pa.Table, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of ``table`` as structs in the column ``name`` of the output."""
    for batch in table.to_batches(CHUNK_ROWS):
        if batch.num_rows:
            yield _columns({name: pa.StructArray.from_arrays(batch.columns, fields=list(schema.field(name).type))}, schema)


def _columns(given: Mapping[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of the output with the ``given`` columns; the others are null."""
    n = len(next(iter(given.values())))
    return pa.record_batch([given[field.name] if field.name in given else pa.nulls(n, field.type) for field in schema], schema=schema)


def results(worked: DataFrame) -> DataFrame:
    """Select the result rows from the output."""
    return worked.where(F.col(RESULT).isNotNull()).select(f"{RESULT}.*")


def entries(worked: DataFrame) -> DataFrame:
    """Select the new state entries from the output."""
    return worked.where(F.col(ENTRY).isNotNull()).select(f"{ENTRY}.*")


def count(worked: DataFrame) -> tuple[Windows, dict[str, int]]:
    """Compute the cached output; returns its windows, and totals of ``APPLIED``, ``LATE``, ``REFUSED`` and ``ENTRY``."""
    totals = {APPLIED: F.sum(APPLIED), LATE: F.sum(LATE), REFUSED: F.count(REFUSED), ENTRY: F.count(ENTRY)}
    return counting.count(worked, totals, rows_in=f"{RESULT}.")


def computed(worked: DataFrame, *, keeps: bool) -> Computed:
    """Compute the output ``worked`` and cache it; ``keeps`` is whether to store the batch's state."""
    cached = worked.persist()
    try:
        windows, totals = count(cached)
    except BaseException:
        cached.unpersist()
        raise
    return Computed(
        rows=results(cached) if windows else None,
        state=entries(cached) if keeps and totals[ENTRY] else None,
        windows=windows,
        rows_applied=totals[APPLIED],
        rows_late=totals[LATE],
        new_state=totals[ENTRY],
        refused=cached.where(F.col(REFUSED).isNotNull()).select(F.col(REFUSED).alias(NUMBER_OF)) if totals[REFUSED] else None,
        rows_refused=totals[REFUSED],
        cached=(cached,),
    )
