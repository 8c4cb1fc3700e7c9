"""A sample of the rows that a pipeline has published: the latest revisions, chosen by a hash, so that a seed gives the same rows again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted
from windowmill.checkpoints.stores import table_at
from windowmill.jobs.spark.object_storage import reader_options, spark_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from windowmill.windowing.spec import Pipeline

#: Columns that tell windows of a key apart.
PLACE = ("window", "window_start", "window_end", "trigger")
_HASH, _RETRACTED = "_hash", "retracted"
#: Of rows by their hash so many times the sample are looked at, so that enough are left of those that are latest revisions.
_SPARE = 20


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
    """Rows of the sink at a ``version``; ``keys`` has their key columns with the types of the sink, in the same order."""

    version: int
    rows: Sequence[PublishedRow]
    keys: pa.Table


def sample(
    spark: SparkSession, pipeline: Pipeline, place: str, *, number: int, seed: int, ends: tuple[int | None, int | None], through: int
) -> Sample:
    """``number`` rows of the sink at ``place`` that end in ``ends`` (begin, end], of the batches ``through`` this one."""
    snapshot = table_at(place)
    version = snapshot.version()
    rows = spark.read.format("delta").options(**reader_options(place)).option("versionAsOf", str(version)).load(spark_path(place))
    if _RETRACTED not in rows.columns:
        rows = rows.withColumn(_RETRACTED, F.lit(False))
    instants = pipeline.time.unit is None
    for name in ("window_start", "window_end"):
        rows = rows.withColumn(name, F.unix_micros(name)) if instants else rows
    rows = rows.where(F.col("batch") <= through).withColumn(_HASH, F.xxhash64(F.lit(seed), *_identity(pipeline)))
    begin, end = ends
    rows = rows if begin is None else rows.where(F.col("window_end") > begin)
    rows = rows if end is None else rows.where(F.col("window_end") <= end)
    latest = _latest(_some(rows, number), pipeline)
    chosen = _standing(latest, rows, pipeline).orderBy(_HASH, *_identity(pipeline)).limit(number)
    names = [*pipeline.keys, *PLACE, "revision", "batch", *pipeline.aggregates]
    found = chosen.select(*map(backquoted, names)).toArrow()
    return Sample(version, [_row(row, pipeline) for row in found.to_pylist()], found.select(list(pipeline.keys)))


def _identity(pipeline: Pipeline) -> list[Column]:
    return [F.col(backquoted(name)) for name in (*pipeline.keys, *PLACE)]


def _some(rows: DataFrame, number: int) -> DataFrame:
    """Rows among which the sample is, all revisions of each."""
    share = max(1, rows.count() // (_SPARE * max(1, number)))
    return rows if share == 1 else rows.where(F.pmod(F.col(_HASH), F.lit(share)) == 0)


def _latest(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """The row of the greatest revision of each window, unless it is retracted."""
    every = F.struct("revision", "batch", *(F.col(backquoted(name)) for name in rows.columns if name not in ("revision", "batch")))
    newest = rows.groupBy(*_identity(pipeline)).agg(F.max_by(every, F.struct("revision", "batch")).alias("_row_of"))
    return newest.select("_row_of.*").where(~F.coalesce(F.col(_RETRACTED), F.lit(False)))


def _standing(latest: DataFrame, rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """``latest`` without versions of windows that events have moved since: one of greater revision overlaps them."""
    moving = [window.name for window in pipeline.windows if window.partials_problem("") is not None or window.joins_by_gap]
    moving = [name for name in moving if name not in {window.name for window in pipeline.windows if window.follows_policies}]
    if pipeline.emit != "revise" or not moving:
        return latest
    later = rows.where(F.col("window").isin(*moving) & (F.col("revision") > 0)).alias("later")
    same = [F.col(f"one.{backquoted(name)}").eqNullSafe(F.col(f"later.{backquoted(name)}")) for name in (*pipeline.keys, "window")]
    overlap = (F.col("later.window_start") < F.col("one.window_end")) & (F.col("one.window_start") < F.col("later.window_end"))
    newer = F.col("later.revision") > F.col("one.revision")
    condition = overlap & newer
    for each in same:
        condition &= each
    return latest.alias("one").join(later, condition, "left_anti")


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
