"""Commits files to a table that delta-rs cannot write, by Spark: it reads them, and writes their rows anew in one commit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from windowmill.checkpoints.committer import Publication, names_need_mapping
from windowmill.checkpoints.own_tables import OwnTable, own_tables
from windowmill.checkpoints.runnable import Runnable
from windowmill.checkpoints.stores import filesystem_of, is_table
from windowmill.windowing.axis import from_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SparkCommitter:
    """As :class:`.Committer`. Delta skips a transaction that has landed already, and reports a lost race as success."""

    def __init__(self, runnable: Runnable) -> None:
        self._runnable = runnable

    def commit(self, place: str, publication: Publication) -> None:
        """As :meth:`.Committer.commit`."""
        changes = publication.changes
        once = {"txnAppId": publication.app_id, "txnVersion": publication.batch, "userMetadata": json.dumps(dict(publication.note))}
        writer = self._rows(place, publication).write.format("delta").options(**once)
        if changes.replaces is not None and is_table(place):
            begin, end = (_literal(bound, instants=self._runnable.pipeline.time.unit is None) for bound in changes.replaces)
            writer.mode("overwrite").option("replaceWhere", f"window_end > {begin} AND window_end <= {end}").save(place)
            return
        if changes.schema is not None and names_need_mapping(changes.schema) and not is_table(place):
            writer = writer.option("delta.columnMapping.mode", "name")
        writer.mode("append").option("mergeSchema", publication.role == "quarantine").save(place)

    def _rows(self, place: str, publication: Publication) -> DataFrame:
        from pyspark.sql.types import StructType

        from windowmill.jobs.spark.session import spark_session

        spark = spark_session(f"windowmill {self._runnable.name}")
        changes = publication.changes
        schema = StructType.fromJson(json.loads(changes.schema or "{}"))
        # The rows that a replaced range leaves in place need not be written again.
        files = [f"{filesystem_of(place)[1]}/{file.path}" for file in changes.adds]
        return spark.read.schema(schema).parquet(*files) if files else spark.createDataFrame([], schema)


def tables_of(runnable: Runnable) -> dict[str, OwnTable]:
    """The pipeline's tables by role; Spark commits to those that delta-rs cannot write."""
    return own_tables(runnable, SparkCommitter(runnable))


def _literal(bound: int, *, instants: bool) -> str:
    return f"TIMESTAMP '{from_us(bound):%Y-%m-%d %H:%M:%S.%f} UTC'" if instants else str(bound)
