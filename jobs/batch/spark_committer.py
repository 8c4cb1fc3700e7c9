"""Commits by Spark to tables on this machine that delta-rs cannot write, from the same files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import Schema

from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.committer import Publication, beyond_delta_rs, names_need_mapping
from windowmill.checkpoints.data_files import DataFile
from windowmill.checkpoints.own_tables import OwnTable, own_tables
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.quoting import spark_text
from windowmill.checkpoints.stores import is_table, table_at
from windowmill.jobs.batch.engine import compute_of, never_spark
from windowmill.jobs.spark.spark_settings import literal_path
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END, from_us
from windowmill.windowing.columnar.rows import without_empty_chunks
from windowmill.windowing.errors import SinkRefusedError

#: Prefix of properties of a table that hold its constraints.
_CONSTRAINT = "delta.constraints."

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SparkCommitter:
    """Appends the rows of a publication's files, or replaces a range of window ends by them; ``spark`` gives the session.

    Delta skips a transaction that is committed already, and reports a lost race as success: the caller looks for the transaction.
    """

    def __init__(self, spark: Callable[[], SparkSession]) -> None:
        self._spark = spark

    def check(self, place: str, role: str, changes: Changes) -> None:
        """As :meth:`windowmill.checkpoints.committer.Committer.check`: evaluates the constraints of the table over the files."""
        if not changes.adds or not is_table(place):
            return
        configuration = table_at(place).metadata().configuration
        constraints = {name.removeprefix(_CONSTRAINT): text for name, text in configuration.items() if name.startswith(_CONSTRAINT)}
        if not constraints:
            return
        rows = self._rows(place, changes, changes.adds)
        for name, condition in constraints.items():
            if not rows.filter(f"NOT coalesce(({condition}), false)").isEmpty():
                raise SinkRefusedError(
                    f"{role} {place}: its constraint {name} ({condition}) does not hold for all results; correct or drop it (ALTER TABLE … "
                    "DROP CONSTRAINT), and run again"
                )

    def commit(self, place: str, publication: Publication) -> None:
        """As :meth:`windowmill.checkpoints.committer.Committer.commit`."""
        changes = publication.changes
        # If a range is replaced, Delta itself keeps the other rows.
        rows = self._rows(place, changes, changes.adds if changes.replaces is not None else changes.files)
        metadata = json.dumps(dict(publication.note))
        writer = rows.write.format("delta").options(txnAppId=publication.app_id, txnVersion=publication.batch, userMetadata=metadata)
        if publication.replaces_all:
            writer.mode("overwrite").option("overwriteSchema", True).save(place)
            return
        if changes.replaces is not None:
            writer = writer.mode("overwrite").option("replaceWhere", _condition(changes.replaces, changes.windows, rows))
            writer.option("mergeSchema", changes.widens).save(place)
            return
        if changes.schema is not None and names_need_mapping(publication.role, changes.schema) and not is_table(place):
            writer = writer.option("delta.columnMapping.mode", "name")
        writer.mode("append").option("mergeSchema", publication.role != "sink" or changes.widens).save(place)

    def _rows(self, place: str, changes: Changes, files: Sequence[DataFile]) -> DataFrame:
        schema = changes.schema
        session = self._spark()
        if files:
            return session.read.parquet(*(literal_path(place, file.path) for file in files))
        assert schema is not None  # without files a commit makes the table
        from pyspark.sql.types import StructType

        empty = pa.schema(Schema.from_json(schema).to_arrow()).empty_table()
        return session.createDataFrame(without_empty_chunks(empty), StructType.fromJson(json.loads(schema)))


class WithoutSpark:
    """Where ``compute`` is ``local``: refuses tables that only Spark could write."""

    def check(self, place: str, role: str, changes: Changes) -> None:
        """As :meth:`windowmill.checkpoints.committer.Committer.check`."""
        reason = beyond_delta_rs(role, table_at(place) if is_table(place) else None, changes)
        raise never_spark(f"{role} {place}: {reason}, so only Spark can write it")

    def commit(self, place: str, publication: Publication) -> None:
        self.check(place, publication.role, publication.changes)


def tables_of(runnable: Runnable, spark: Callable[[], SparkSession] | None = None) -> dict[str, OwnTable]:
    """The pipeline's tables by role; Spark commits to those that delta-rs cannot write. ``spark`` gives the session, or one starts."""

    def start() -> SparkSession:
        from windowmill.jobs.spark.session import spark_session

        return spark_session(f"windowmill {runnable.name}", brief=True)

    if compute_of(runnable.pipeline) == "local":
        return own_tables(runnable, WithoutSpark())
    return own_tables(runnable, SparkCommitter(start if spark is None else spark))


def _condition(replaces: tuple[int, int], windows: Sequence[str] | None, rows: DataFrame) -> str:
    """Holds for the rows to replace."""
    begin, end = replaces
    bounds = [] if begin == AXIS_BEGIN else [f"window_end > {_literal(begin, rows)}"]
    bounds += [] if end == AXIS_END else [f"window_end <= {_literal(end, rows)}"]
    bounds += [] if windows is None else [f"window IN ({', '.join(map(spark_text, windows))})"]
    return " AND ".join(bounds) or "true"


def _literal(bound: int, rows: DataFrame) -> str:
    instants = rows.schema["window_end"].dataType.typeName() == "timestamp"
    return f"TIMESTAMP '{from_us(bound):%Y-%m-%d %H:%M:%S.%f} UTC'" if instants else str(bound)
