"""Starts Spark for a pipeline, and ships users' modules (aggregates, window functions) to workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windowmill.jobs.spark import session
from windowmill.jobs.spark.access import access_to
from windowmill.jobs.spark.shipment import Shipment
from windowmill.jobs.user_code import module_names, plugin_modules
from windowmill.windowing.imports import named_plugins
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windowmill.jobs.batch.progress import Progress


def shipment_of(pipeline: Pipeline) -> Shipment:
    """The modules that ``pipeline`` names; if it uses a plugin, all plugins."""
    used = plugin_modules(pipeline)
    plugins = used | {plugin.module for plugin in named_plugins()} if used else set()
    return Shipment(frozenset({*module_names(pipeline), *plugins}), tuple(sorted(plugins)))


def ship_modules(spark: SparkSession, pipeline: Pipeline) -> None:
    """Ship the modules that ``pipeline`` names to the workers of ``spark``, unless they import them as this process does."""
    access_to(spark).ship(shipment_of(pipeline))


def start_spark(pipeline: Pipeline, progress: Progress, *, brief: bool = False) -> SparkSession:
    """Start Spark, or connect to it, for tasks of ``pipeline``; ``brief`` is whether it has little to do."""
    with progress.step("start", "Spark"):
        shipment = shipment_of(pipeline)  # what it holds decides which session of a server is used
        name = f"windowmill {pipeline.pipeline}"
        spark = session.spark_session(name, brief=brief, shipment=shipment, say=lambda what: progress.say(f"  {what}"))
        access_to(spark).ship(shipment)
    return spark
