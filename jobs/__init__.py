"""Spark and the command line: reading sources, running batches and backfills, writing the sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windowmill.jobs.dataframe import aggregate
    from windowmill.jobs.session import spark_session

__all__ = ["aggregate", "spark_session"]


def __getattr__(name: str) -> Any:
    # Loaded when asked for: a run that finds nothing new, and a DAG file, must not load pyspark.
    if name == "aggregate":
        from windowmill.jobs.dataframe import aggregate

        return aggregate
    if name == "spark_session":
        from windowmill.jobs.session import spark_session

        return spark_session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
