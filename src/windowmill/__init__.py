"""Sliding-window aggregates in micro-batches: the one importable name.

What users import is listed in ``__all__``; :mod:`windowmill.testing` is for their tests. In a checkout the packages are the folders at its
top, which this one holds as links (docs/decisions/0007-one-name-to-import.md).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windowmill.dags.factory import build_dag
    from windowmill.jobs.dataframe import aggregate
    from windowmill.jobs.sink_views import as_of, create_views, latest
    from windowmill.jobs.spark.session import spark_session
    from windowmill.windowing.spec import Pipeline
    from windowmill.windowing.specfile import load_pipeline

__all__ = ["Pipeline", "aggregate", "as_of", "build_dag", "create_views", "latest", "load_pipeline", "spark_session"]

_HOMES = {
    "Pipeline": "windowmill.windowing.spec",
    "aggregate": "windowmill.jobs.dataframe",
    "as_of": "windowmill.jobs.sink_views",
    "build_dag": "windowmill.dags.factory",
    "create_views": "windowmill.jobs.sink_views",
    "latest": "windowmill.jobs.sink_views",
    "load_pipeline": "windowmill.windowing.specfile",
    "spark_session": "windowmill.jobs.spark.session",
}


def __getattr__(name: str) -> Any:
    # Loaded when asked for: a DAG file must not load pyspark, nor a Spark job Airflow.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
