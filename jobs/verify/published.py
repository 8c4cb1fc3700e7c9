"""A sample of the rows that a pipeline has published: the latest revisions, chosen by a hash, so that a seed gives the same rows again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.views import latest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windowmill.windowing.spec import Pipeline

#: Columns that tell windows of a key apart.
PLACE = ("window", "window_start", "window_end", "trigger")
_HASH = "_hash"


@dataclass(frozen=True)
class PublishedRow:
    """A row of the sink; instants are integers along the axis.

    Attributes
    ----------
    key
        Values of the key columns.
    values
        Values of the aggregates, by name.
    """

    key: tuple[Any, ...]
    window: str
    start: int | None
    end: int
    trigger: int | None
    revision: int
    batch: int
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Sample:
    """Rows of the sink; ``keys`` has their key columns with the types of the sink, in the same order."""

    rows: Sequence[PublishedRow]
    keys: pa.Table


def sample(spark: SparkSession, pipeline: Pipeline, *, number: int, seed: int, ends: tuple[int | None, int | None], through: int) -> Sample:
    """``number`` rows of the sink that end in ``ends`` (begin, end], of the batches ``through`` this one."""
    # What readers see first, and the range then: the newest revision of a window may end elsewhere than those before it.
    rows = latest(spark, pipeline, batch=through)
    if not pipeline.time.integer_axis:
        for name in ("window_start", "window_end"):
            rows = rows.withColumn(name, F.unix_micros(name))
    begin, end = ends
    rows = rows if begin is None else rows.where(F.col("window_end") > begin)
    rows = rows if end is None else rows.where(F.col("window_end") <= end)
    names = [*pipeline.keys, *PLACE, "revision", "batch", *pipeline.aggregates]
    identity = [F.col(backquoted(name)) for name in (*pipeline.keys, *PLACE)]
    chosen = rows.withColumn(_HASH, F.xxhash64(F.lit(seed), *identity)).orderBy(_HASH, *identity).limit(number)
    found = chosen.select(*map(backquoted, names)).toArrow()
    return Sample([_row(row, pipeline) for row in found.to_pylist()], found.select(list(pipeline.keys)))


def _row(row: Mapping[str, Any], pipeline: Pipeline) -> PublishedRow:
    return PublishedRow(
        key=tuple(row[name] for name in pipeline.keys),
        window=row["window"],
        start=row["window_start"],
        end=row["window_end"],
        trigger=row["trigger"],
        revision=row["revision"],
        batch=row["batch"],
        values={name: row[name] for name in pipeline.aggregates},
    )
