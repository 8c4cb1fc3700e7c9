"""Asks Spark's catalog where the tables of a pipeline lie, once, and registers a new sink there."""

from __future__ import annotations

from collections.abc import Callable

from deltalake.exceptions import DeltaError

from windowmill.checkpoints import catalog_tables
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.stores import is_table, use_options_of
from windowmill.jobs.batch.engine import compute_of
from windowmill.jobs.spec_checks import not_run
from windowmill.windowing.errors import LocalComputeError, UnsupportedError
from windowmill.windowing.spec import Pipeline

Say = Callable[[str], None]
#: Prefix under which the record names a sink that has still to be registered.
_NEW = "new "


def ask_locations(pipeline: Pipeline, say: Say) -> None:
    """Record where the tables lie that the spec names, unless it is recorded; starts Spark only for that.

    A source that is gone from its recorded place is looked up again: it may have been renamed, or moved.

    Raises
    ------
    SourceMissingError
        If the catalog has no such source.
    LocalComputeError
        If Spark has to be asked, and must not be used.
    """
    tables = catalog_tables.named(pipeline)
    if not tables:
        return
    problem = next(not_run(pipeline), None)
    if problem:
        raise UnsupportedError(f"pipeline {pipeline.pipeline}: {problem[0]}: {problem[1]}")
    use_options_of(pipeline)
    known = catalog_tables.recorded(pipeline)
    unknown = {field: table for field, table in tables.items() if table not in known or (field == "source" and _is_gone(pipeline))}
    if not unknown:
        return
    _check_compute(pipeline)
    from windowmill.jobs.spark import spark_catalog

    spark = spark_catalog.session_for(pipeline, say)
    for field, table in unknown.items():
        location = spark_catalog.location_of(spark, table)
        if location is None and field == "source":
            raise spark_catalog.not_found(spark, "source.table", table)
        if location is None:
            location = spark_catalog.location_for(spark, table)
            known[f"{_NEW}{table}"] = location
        known[table] = location
        say(f"{pipeline.pipeline}: {field}.table: {table} lies at {location}; recorded in {Places.of(pipeline).root}")
    catalog_tables.record(pipeline, known)


def _is_gone(pipeline: Pipeline) -> bool:
    """Whether the source is certainly not at its recorded place any more."""
    source = catalog_tables.located(pipeline).source
    try:
        return source is not None and source.path is not None and not is_table(source.path)
    except (OSError, DeltaError):
        return False


def register_new(pipeline: Pipeline, say: Say) -> None:
    """Register the sink in the catalog if it has been made since its place was recorded."""
    table = catalog_tables.named(pipeline).get("sink")
    known = catalog_tables.recorded(pipeline) if table is not None else {}
    location = known.get(f"{_NEW}{table}")
    if table is None or location is None or not is_table(location):
        return
    _check_compute(pipeline)
    from windowmill.jobs.spark import spark_catalog

    spark_catalog.register(spark_catalog.session_for(pipeline, say), table, location)
    catalog_tables.record(pipeline, {name: place for name, place in known.items() if name != f"{_NEW}{table}"})
    say(f"{pipeline.pipeline}: sink.table: {table} is registered in the catalog")


def _check_compute(pipeline: Pipeline) -> None:
    if compute_of(pipeline) == "local":
        raise LocalComputeError(
            f"pipeline {pipeline.pipeline}: only Spark's catalog knows where its tables lie, and compute is local; run it once with "
            "WINDOWMILL_COMPUTE=spark, or give the path of each"
        )
