"""What a pipeline has published, for readers: the newest revision of each window, and the table at an earlier batch; in SQL or Spark.

Rows are versions of one window if they have the same key, name and trigger, and the same end where the window forgets idle keys; without
a trigger, the same bounds. The version with the greatest revision counts, unless it is retracted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from deltalake.exceptions import DeltaError

from windowmill.checkpoints.batches import Batch
from windowmill.checkpoints.delta_tables import files_of
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places, absolute
from windowmill.checkpoints.quoting import backquoted, spark_text
from windowmill.checkpoints.stores import is_table, table_at
from windowmill.jobs.instants import instant_us
from windowmill.jobs.runnables import runnable_of
from windowmill.jobs.sources.delta_log import read_source_table
from windowmill.jobs.spark.spark_settings import reader_options, spark_path
from windowmill.windowing.axis import from_us
from windowmill.windowing.columnar.added_columns import RETRACTED
from windowmill.windowing.errors import ArgumentError, SinkError, SourceRangeGoneError, SpecError
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import load_pipeline, parse_pipeline

if TYPE_CHECKING:
    from windowmill.jobs.spark.access import DataFrame, SparkSession

#: A pipeline's sink: the path of the table or of the spec's YAML file, the pipeline, or the spec's fields.
SinkLike = str | os.PathLike[str] | Pipeline | Mapping[str, object]
#: Name of a column that the SQL adds.
_PLACE = "_windowmill_place"
#: A table of the query, which Spark takes from a DataFrame.
_ROWS = "_windowmill_rows"


@dataclass(frozen=True, slots=True)
class AsOf:
    """Rows of the sink at ``version`` whose batch is at most ``batch``, null for all: the table as it stood after that batch."""

    version: int
    batch: int | None = None


@dataclass(frozen=True)
class PublishedTable:
    """A pipeline's sink as readers see it."""

    path: str  #: The Delta table.
    name: str  #: The pipeline's.
    keys: tuple[str, ...]  #: Its key columns.
    ledger: str  #: Path of its ledger.
    restarting: tuple[str, ...] = ()  #: Names of the windows that forget idle keys, and so number triggers from 0 again.
    named: str | None = None  #: The table's name in a catalog, as the spec has it; null for a table by path.

    @classmethod
    def of(cls, sink: SinkLike) -> PublishedTable:
        """The sink of a pipeline; raises ``SinkError`` if there is no table, or the path of a table does not say whose it is."""
        if isinstance(sink, str | os.PathLike):
            path = os.fspath(sink)
            if not path.endswith((".yaml", ".yml", ".json")):
                return cls._at(absolute(path))
            sink = load_pipeline(path)
        pipeline = parse_pipeline(sink)
        runnable = runnable_of(pipeline)
        named = pipeline.sink.table if pipeline.sink else None
        restarting = tuple(window.name for window in pipeline.windows if window.restarts_triggers)
        return cls(runnable.sink_path, runnable.name, pipeline.keys, runnable.places.ledger, restarting, named)

    @classmethod
    def _at(cls, path: str) -> PublishedTable:
        """The sink at ``path``, described by its ledger next to it."""
        ledger = Places.below(f"{path.rstrip('/')}.windowmill").ledger
        newest = Ledger(ledger).newest_kept if is_table(ledger) else None
        if newest is None:
            raise SinkError(f"sink {path}: there is no ledger at {ledger}, which would describe it; give the pipeline's spec instead")
        meaning: Mapping[str, Any] = newest.plan.definition
        restarting = tuple(window["name"] for window in meaning.get("windows", ()) if window.get("idle_after") is not None)
        return cls(path, newest.plan.pipeline, tuple(meaning.get("keys", ())), ledger, restarting)

    def __post_init__(self) -> None:
        if not is_table(self.path):
            raise SinkError(f"sink {self.path}: there is no table yet; run the pipeline first")

    def columns(self, version: int | None = None) -> list[str]:
        return [field["name"] for field in json.loads(table_at(self.path, version).schema().to_json())["fields"]]

    def has_revisions(self, version: int) -> bool:
        """Whether the table at ``version`` may hold several versions of a window; reads only its log."""
        return any(file.get("max.revision") != 0 for file in files_of(table_at(self.path, version)))

    def latest_sql(self, rows: str, columns: list[str]) -> str:
        """A query of Spark for the versions that count, without :data:`RETRACTED`, among ``rows``: a table, in its SQL."""
        counts = "" if RETRACTED not in columns else f" AND NOT coalesce({RETRACTED}, false)"
        shown = ", ".join(backquoted(name) for name in columns if name != RETRACTED)
        key = ", ".join(map(backquoted, [*self.keys, "window"]))
        numbered = "`trigger` IS NOT NULL"
        restarting = ", ".join(map(spark_text, self.restarting))
        no_end = f"{numbered} AND `window` NOT IN ({restarting})" if restarting else numbered
        known_by = f"`trigger`, IF({numbered}, NULL, window_start), IF({no_end}, NULL, window_end)"
        numbers = f"row_number() OVER (PARTITION BY {key}, {known_by} ORDER BY revision DESC) AS {_PLACE}"
        return f"SELECT {shown} FROM (SELECT *, {numbers} FROM {rows}) WHERE {_PLACE} = 1{counts}"

    @property
    def version(self) -> int:
        return table_at(self.path).version()

    def as_of(self, batch: int | None, time: datetime | str | None) -> AsOf:
        """Where to find the table as it was after ``batch``, or at ``time``; exactly one of them is given.

        Raises
        ------
        ArgumentError
            If ``batch`` does not exist, or both or none are given.
        SinkError
            If rows have been replaced since, and the table's version before that is no longer kept.
        """
        if (batch is None) == (time is None):
            raise ArgumentError("as_of: give either batch=, the number of a batch, or time=, an instant")
        batches = Ledger(self.ledger).batches()
        if batch is None:
            at = _instant(time)
            batch = max((each.number for each in batches if each.status == "committed" and each.ended_at <= at), default=-1)
        elif not 0 <= batch < len(batches):
            newest = f"the newest is {batches[-1].number}" if batches else "there are none"
            raise ArgumentError(f"as_of: got batch {batch}, but {newest}; `windowmill history` lists them")
        replacing = next((each for each in batches if each.number > batch and self._replaces(each, batch)), None)
        if replacing is None:
            return AsOf(self.version, batch)
        written = replacing.outcome.written.get("sink")
        if written is None:  # there was no table before
            return AsOf(self.version, -1)
        self._check_kept(written.version, replacing)
        return AsOf(written.version, batch)

    def _replaces(self, batch: Batch, wanted: int) -> bool:
        """Whether ``batch`` has removed rows from the sink that the table as of batch ``wanted`` has to show."""
        if batch.status != "committed" or batch.verdict == "discarded" or wanted >= batch.plan.shown_since:
            return False
        changes = Ledger(self.ledger).changes_of(batch).get("sink")
        return changes is not None and bool(changes.removes)

    def _check_kept(self, version: int, replacing: Batch) -> None:
        """Refuse a version of the table that can no longer be read, because its log or files have been cleaned up."""
        try:
            table = read_source_table(self.path)
            gone = table.missing(table.snapshot(version))
            what = None if gone is None else f"its file {gone.path} is gone (VACUUM)"
        except (SourceRangeGoneError, DeltaError) as err:
            what = f"its log is gone ({err})".splitlines()[0]
        if what is not None:
            raise SinkError(
                f"sink {self.path}: batch {replacing.number} ({replacing.action}) has replaced rows since, and version {version} of the "
                f"table, from before, is no longer kept: {what}; ask for batch {replacing.plan.shown_since} or later"
            )


def _instant(time: datetime | str | None) -> datetime:
    try:
        at = from_us(instant_us(time)) if isinstance(time, str) else time
    except ValueError:
        at = None
    if not isinstance(at, datetime):
        raise ArgumentError(f"as_of: got {time!r} as time; expected a datetime, or a text such as 2026-01-31T06:00:00Z")
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def view_statements(sink: SinkLike, schema: str | None = None) -> dict[str, str]:
    """By name, the statements of Spark's SQL that make views of a pipeline's sink: all rows, and the versions that count.

    A sink that has the name of the view of all rows in the catalog needs no such view.

    ``schema``: schema of the views, as SQL names it (``analytics``, ``main.analytics``); null for the current one.
    """
    table = PublishedTable.of(sink)
    if schema is not None and not all(part.strip() for part in schema.split(".")):
        raise SpecError(f"schema: got {schema!r}; expected the name of a schema, such as analytics or main.analytics")
    prefix = "" if schema is None else ".".join(backquoted(part) for part in schema.split(".")) + "."
    rows = f"delta.{backquoted(spark_path(table.path))}"
    bodies = {table.name: f"SELECT * FROM {rows}", f"{table.name}_latest": table.latest_sql(rows, table.columns())}
    if table.named is not None and _plain(table.named) == _plain(table.name if schema is None else f"{schema}.{table.name}"):
        del bodies[table.name]
    names = {name: f"{prefix}{backquoted(name)}" for name in bodies}
    return {names[name]: f"CREATE OR REPLACE VIEW {names[name]} AS {body}" for name, body in bodies.items()}


def _plain(name: str) -> str:
    """The name of a table as Spark compares it: in lower case, and without the session catalog's name."""
    return name.lower().removeprefix("spark_catalog.")


def latest(spark: SparkSession, sink: SinkLike, *, batch: int | None = None, time: datetime | str | None = None) -> DataFrame:
    """The windows that a pipeline's sink shows: of each its newest revision, without those that have been retracted.

    Parameters
    ----------
    spark
        A session with Delta's jars and settings, classic or Spark Connect.
    sink
        The path of the table, or of the spec's YAML file; the pipeline, or the same as nested mappings.
    batch, time
        As of that batch, or instant, as in :func:`as_of`; by default as of now.

    Returns
    -------
    DataFrame
        The sink's columns, without ``retracted``. It shows the table as it was at the call: later batches do not change it.

    Raises
    ------
    SinkError, ArgumentError
        As :func:`as_of`.
    """
    table = PublishedTable.of(sink)
    at = AsOf(table.version) if batch is None and time is None else table.as_of(batch, time)
    rows = _rows(spark, table, at)
    if not table.has_revisions(at.version):
        return rows.drop(RETRACTED)
    query = table.latest_sql(_ROWS, rows.columns).replace("{", "{{").replace("}", "}}").replace(_ROWS, "{rows}")
    return spark.sql(query, rows=rows)


def as_of(spark: SparkSession, sink: SinkLike, *, batch: int | None = None, time: datetime | str | None = None) -> DataFrame:
    """All rows of a pipeline's sink as they stood after a batch, or at an instant, revisions and retractions included.

    Batches append, so these are the rows of the batches through that one. Where a later batch has replaced rows (a backfill), Delta's time
    travel gives the table from before; how far back that reaches follows from the table's retention.

    Parameters
    ----------
    spark, sink
        As in :func:`latest`.
    batch
        Number of a batch, as ``windowmill history`` and the column ``batch`` have it.
    time
        An instant, UTC unless it says otherwise; what had been recorded by then counts.

    Raises
    ------
    ArgumentError
        If ``batch`` does not exist, or not exactly one of ``batch`` and ``time`` is given.
    SinkError
        If there is no table, or rows have been replaced since and the table from before is no longer kept.
    """
    table = PublishedTable.of(sink)
    return _rows(spark, table, table.as_of(batch, time))


def create_views(spark: SparkSession, sink: SinkLike, *, schema: str | None = None) -> list[str]:
    """Create or replace two views in the session's catalog: ``<pipeline>`` has all rows, ``<pipeline>_latest`` those of :func:`latest`.

    The views read the table as it is at each query. Create them again when the sink has got columns since.

    Parameters
    ----------
    schema
        Schema of the views; null for the session's current one.

    Returns
    -------
    list of str
        Names of the views, as SQL writes them.
    """
    statements = view_statements(sink, schema)
    for statement in statements.values():
        spark.sql(statement)
    return list(statements)


def _rows(spark: SparkSession, table: PublishedTable, at: AsOf) -> DataFrame:
    reader = spark.read.format("delta").options(**reader_options(table.path)).option("versionAsOf", at.version)
    rows = reader.load(spark_path(table.path))
    return rows if at.batch is None else rows.where(f"`batch` <= {at.batch}")
