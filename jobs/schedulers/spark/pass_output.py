"""The output of a pass over a batch's keys on Spark. A run's tasks write it to files; otherwise it is one DataFrame.

Each row of the DataFrame is a result row, a state entry, the number of a refused row, or counts, and null in the columns of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from windowmill.jobs.schedulers.spark.task_output import OutputWriter, Targets, output_of
from windowmill.jobs.spark.access import mapped
from windowmill.jobs.ways.base import written
from windowmill.jobs.ways.output import Output
from windowmill.jobs.ways.restored import restored_kinds
from windowmill.jobs.ways.returning import RETURNED, returned
from windowmill.windowing.columnar.advanced import Advanced

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from windowmill.windowing.kernels.combine import Ints

#: Columns of the output: a result row, a state entry, the number of a refused row, counts.
RESULT, ENTRY, REFUSED, APPLIED, LATE = "result", "entry", "refused", "applied", "late"
#: Makes groups of what a worker receives: new and stored rows, each group with all rows of its keys.
GroupsOf = Callable[[Iterator[pa.RecordBatch]], Iterator[tuple[pa.Table, pa.Table]]]
#: Advances the keys of what a worker receives; gives what it makes of some keys, and the rows that it has restored for them.
AdvancedOf = Callable[[Iterator[pa.RecordBatch]], Iterator[tuple[pa.Table | None, Advanced]]]
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


def written_by_tasks(gathered: DataFrame, advanced_of: AdvancedOf, targets: Targets) -> Output:
    """Have the tasks of ``gathered``, whose partitions each have all rows of their keys, advance the keys and write the files."""
    return output_of(mapped(gathered, partial(_write, targets, advanced_of), RETURNED))


def _write(targets: Targets, advanced_of: AdvancedOf, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor: writes files, and returns one :class:`.Output`."""
    counts = Output()
    with OutputWriter(targets) as writer:
        for stored, done in advanced_of(batches):
            counts += written(writer, done) + Output(restored=restored_kinds(stored))
            writer.refused(done.refused)
        counts += writer.output()
    yield from returned(counts)
