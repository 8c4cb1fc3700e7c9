"""The rows of a source for corrections and purges, with Spark started where only it reads them as runs do."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from windowmill.jobs.batch import engine
from windowmill.jobs.sources.table_rows import TableRows
from windowmill.windowing.errors import LocalComputeError
from windowmill.windowing.settings import COMPUTE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windowmill.jobs.batch.progress import Progress
    from windowmill.jobs.sources.delta_log import DeltaSource
    from windowmill.jobs.sources.folder import FolderSource
    from windowmill.windowing.spec import Pipeline


def table_rows(pipeline: Pipeline, source: DeltaSource | FolderSource, progress: Progress) -> TableRows:
    """The rows of ``source``.

    Reading them raises ``LocalComputeError`` where only Spark reads them, and ``compute`` is ``local``.
    """

    @cache
    def start() -> SparkSession:
        from windowmill.jobs.spark.access import access_to
        from windowmill.jobs.spark.session import spark_session
        from windowmill.jobs.spark.shipping import shipment_of

        with progress.step("start", "Spark"):
            shipment = shipment_of(pipeline)
            spark = spark_session(f"windowmill {pipeline.pipeline}", shipment=shipment, say=lambda what: progress.say(f"  {what}"))
            access_to(spark).ship(shipment)
        return spark

    def needed(why: str) -> SparkSession:
        if engine.compute_of(pipeline) == "local":
            raise LocalComputeError(
                f"pipeline {pipeline.pipeline}: source {source.path}: {why}; compute is local, which never uses Spark: set it to auto or "
                f"spark ({COMPUTE.name} too)"
            )
        return start()

    return TableRows.of(pipeline, source, needed)
