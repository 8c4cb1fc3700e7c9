"""Asks Spark about conditions that only it evaluates, in one job over the columns that they read, before tasks read rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import functions as F

from windowmill.checkpoints.stores import Options, use_options
from windowmill.jobs.sources.columns import FILE, ROW
from windowmill.jobs.sources.plain_files import NotPlainError
from windowmill.jobs.sources.plain_rows import NO_ANSWERS, Answers, PlainRows, batches_of
from windowmill.jobs.spark.access import access_to, map_in_arrow
from windowmill.windowing.columnar.rows import without_empty_chunks

if TYPE_CHECKING:
    from windowmill.jobs.layouts.input import TableInput
    from windowmill.jobs.spark.access import SparkSession
    from windowmill.windowing.kernels.combine import Ints

#: Most rows whose answers the driver collects: five bytes for each row and condition in transit, an eighth of a byte once packed.
_MAX_ROWS = 50_000_000
#: The file of a row that says that a file cannot be read by Arrow as Spark reads it.
_NOT_PLAIN = -1


def answers_of(batch: TableInput, spark: SparkSession, options: Mapping[str, Options]) -> Answers:
    """Where the conditions hold of the rows of ``batch`` that only Spark evaluates; none if Spark must read the rows itself."""
    plain = PlainRows.of(batch.pipeline, batch.source, batch.reading, None)
    if plain is None or batch.expected_rows > _MAX_ROWS:
        return NO_ANSWERS
    conditions = list(plain.conditions.outside)
    names = plain.read_by(conditions)
    if not batch.columns.in_conditions.keys() >= set(names):  # the rows that tasks give have no declared lengths and collations
        return NO_ANSWERS
    schema = pa.schema([(FILE, pa.int32()), (ROW, pa.int64()), *((name, plain.types[name]) for name in names)])
    files = spark.range(0, len(plain.files), 1, max(1, min(len(plain.files), access_to(spark).cores())))
    rows = map_in_arrow(files, partial(_read, plain, names, schema, options), schema)
    truths = [F.coalesce(F.expr(text), F.lit(False)).alias(f"_holds{number}") for number, text in enumerate(conditions)]
    found = without_empty_chunks(rows.select(FILE, ROW, *truths).toArrow())
    file = found.column(FILE).to_numpy()
    if (file == _NOT_PLAIN).any():
        return NO_ANSWERS
    place = found.column(ROW).to_numpy()
    counts = np.zeros(len(plain.files), np.int64)
    np.maximum.at(counts, file, place + 1)
    return Answers({text: _packed(found.column(f"_holds{number}"), file, place, counts.tolist()) for number, text in enumerate(conditions)})


def _packed(holds: pa.ChunkedArray, file: Ints, place: Ints, counts: Sequence[int]) -> list[npt.NDArray[np.uint8]]:
    """For each file one bit a row, where ``holds`` is true of the row at this ``place`` in this ``file``."""
    true = holds.to_numpy(zero_copy_only=False)
    packed = []
    for index, count in enumerate(counts):
        own, bits = file == index, np.zeros(count, np.bool_)
        bits[place[own]] = true[own]
        packed.append(np.packbits(bits))
    return packed


def _read(
    plain: PlainRows, names: Sequence[str], schema: pa.Schema, options: Mapping[str, Options], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    use_options(options)
    for number in (number for batch in batches for number in batch.column(0).to_pylist()):
        first = 0
        try:
            for batch in batches_of(plain.files[number], plain.form, names):
                n = batch.num_rows
                own = [pa.repeat(pa.scalar(number, pa.int32()), n), pa.array(np.arange(first, first + n))]
                yield pa.record_batch([*own, *(batch.column(name) for name in names)], schema=schema)
                first += n
        except (NotPlainError, OSError, pa.ArrowException):  # Spark reads the rows, or says what is wrong
            columns = [pa.array([_NOT_PLAIN], pa.int32()), *(pa.nulls(1, field.type) for field in list(schema)[1:])]
            yield pa.record_batch(columns, schema=schema)
