"""Lookups: steps that take columns of another table by equal values, of the row that is valid at the event's time where it has times.

A batch reads each table in the version that its plan has pinned. Where the table is small, whoever reads the rows holds an index of it in
memory: this process, or each task. A larger table, and one that Arrow would read otherwise than Spark, is joined by Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from windowmill.checkpoints.batches import Batch, digest_of
from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs import json_lines
from windowmill.jobs.conditions.evaluated import OutsideError, name_of
from windowmill.jobs.conditions.evaluator import spark_array, spark_kind, step_value
from windowmill.jobs.sources.base import AddedFile, Reading
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.delta_log import DeltaSource, read_version
from windowmill.jobs.sources.folder import FolderSource, open_folder
from windowmill.jobs.sources.plain_files import Form, NotPlainError, OpenFile
from windowmill.jobs.sources.row_steps import StepTypes, StepValues
from windowmill.jobs.sources.table_rows import TableRows, appended_rows, changed_rows, live_rows
from windowmill.jobs.sources.text_values import TextTimes
from windowmill.jobs.sources.unusable_rows import NO_MATCH, on_axis, unread_text
from windowmill.windowing.columnar.added_columns import UNREAD
from windowmill.windowing.columnar.rows import codes_of
from windowmill.windowing.errors import (
    SourceError,
    SourceRangeGoneError,
    SourceRefusedError,
    SourceSchemaError,
    SpecError,
    TableUnlocatedError,
    UnsupportedError,
    no_column,
)
from windowmill.windowing.fields import Lookup, LookupStep, Source, Time, quoted_path
from windowmill.windowing.layouts import live_columns
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import Column

    from windowmill.jobs.spark.access import DataFrame

#: Rows, bytes of files, and files of a table up to which an index of it is held in memory.
MAX_ROWS, MAX_BYTES, MAX_FILES = 2_000_000, 128 << 20, 200
#: Indexes that a process keeps.
_KEPT = 4
Ints = npt.NDArray[np.int64]
#: Columns of the table while Spark joins it: its values as a struct, how many rows match, and the times from and until which one is valid.
_VALUES, _MATCHES, _FROM, _UNTIL, _TIME = "_values", "_matches", "_from", "_until", "_time"


@dataclass(frozen=True, eq=False)
class LookupTable:
    """A looked-up table in one version; picklable."""

    source: DeltaSource | FolderSource
    files: tuple[AddedFile, ...]
    outside: str | None  #: Why only Spark reads it; null if an index of it is held in memory.
    rows: pa.Table | None = None  #: Its rows, where they are not those of the files.

    @classmethod
    def of(cls, source: DeltaSource | FolderSource, version: int, columns: Sequence[str]) -> LookupTable:
        """The table at ``version``, of which ``columns`` are read."""
        files = tuple(source.snapshot(version))
        rows, size = sum(file.rows or 0 for file in files), sum(file.size_bytes for file in files)
        outside = None
        if rows > MAX_ROWS or size > MAX_BYTES or len(files) > MAX_FILES:
            outside = f"a lookup in {rows:,} rows" if rows > MAX_ROWS else f"a lookup in {len(files):,} files of {size >> 20:,} MiB"
        elif not _is_plain(source, files, columns):
            outside = f"a lookup in {source.path}, of which Arrow would read values otherwise"
        return cls(source, files, outside)

    def __eq__(self, other: object) -> bool:
        """Equal with the same rows, wherever it has been opened."""
        return isinstance(other, LookupTable) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[Any, ...]:
        files = tuple((file.path, file.size_bytes) for file in self.files)
        return self.source.path, *self.pin.values(), files, None if self.rows is None else id(self.rows)

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        """Arrow type of each column."""
        return Columns.of(self.source.schema_json).arrow

    @property
    def pin(self) -> dict[str, Any]:
        """What a plan records of it."""
        if isinstance(self.source, DeltaSource):
            return {"id": self.source.table_id, "version": self.source.version}
        files = sorted((path, stat.size, stat.mtime_ns) for path, stat in self.source.listed.items())
        return {"id": self.source.table_id, "files": digest_of(map(str, files))}

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Its ``columns``, all rows; raises ``SourceError`` if it cannot be read."""
        if self.rows is not None:
            return self.rows.select(list(columns))
        rows = TableRows(self.source, tuple(columns), _only_here)
        live = live_rows(self.source, self.source.version) if isinstance(self.source, DeltaSource) and self.source.deletion_vectors else {}
        empty = pa.schema([(name, rows.types[name]) for name in columns]).empty_table()
        try:
            found = [empty]
            for file, part in rows.of_files(self.files, live, columns):
                unread = part.column(UNREAD) if UNREAD in part.column_names else pa.nulls(0)
                if len(unread) > unread.null_count:
                    raise SourceError(f"{self.source.path}: {file.path} has rows that cannot be read; correct the file, and run again")
                found.append(part.select(list(columns)))
        except (FileNotFoundError, NotPlainError, pa.ArrowException, OSError) as err:
            raise SourceError(f"{self.source.path}: cannot be read ({err}); bring the file back, or run again") from err
        return pa.concat_tables(found)

    def frame(self, like: DataFrame) -> DataFrame:
        """Its rows, read by the Spark session of ``like``."""
        as_of = self.source.version if self.source.deletion_vectors and self.files else None
        return self.source.rows(like.sparkSession, Reading(self.files, len(self.files), as_of))


def _only_here(why: str) -> Never:
    raise NotPlainError(why)


def _is_plain(source: DeltaSource | FolderSource, files: Sequence[AddedFile], columns: Sequence[str]) -> bool:
    """Whether Arrow gives of the ``columns`` of these files what Spark gives."""
    own = Columns.of(source.schema_json)
    if any(name not in own.in_conditions for name in columns if name in own.arrow):
        return False
    plain = source.plain_files(Reading(tuple(files)))
    if plain is None:
        return not files
    form = Form(own.arrow, own.fixed_lengths)
    try:
        for file in plain:
            with OpenFile(file, form) as opened:
                opened.check([name for name in columns if name in own.arrow])
    except (NotPlainError, OSError, pa.ArrowException):
        return False
    return True


def opened(lookup: Lookup, pin: Mapping[str, Any] | None = None) -> LookupTable:
    """The table of ``lookup`` in the version of ``pin``, else in its newest one; raises ``SourceError`` if it cannot be opened."""
    location = lookup.location
    if location is None:
        raise TableUnlocatedError(
            f"lookup {lookup.name}: where the table {lookup.table} of a catalog lies is not known yet; `windowmill run` looks it up"
        )
    columns = tuple(dict.fromkeys([*lookup.on.values(), *lookup.columns.values(), *([lookup.valid_from] if lookup.valid_from else [])]))
    if lookup.format != "delta":
        folder = open_folder(Source(format=lookup.format, path=location), None)
        return LookupTable.of(folder, folder.version, columns)
    version = None if pin is None else int(pin["version"])
    source = read_version(location, version, f"lookup {lookup.name}: table", "its path")
    if pin is not None and source.table_id != pin["id"]:
        raise SourceRangeGoneError(
            f"lookup {lookup.name}: the table at {location} (Delta id {source.table_id}) is not the one that the plan has pinned; run again"
        )
    return _examined(source, columns)


@lru_cache(_KEPT)
def _examined(source: DeltaSource, columns: tuple[str, ...]) -> LookupTable:
    return LookupTable.of(source, source.version, columns)


def pins_of(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    """What a plan records of the tables that ``pipeline`` looks up, in their newest versions, by name of the lookup."""
    return {str(lookup.name): opened(lookup).pin for lookup in pipeline.lookups}


def pins_with_types(pipeline: Pipeline, schema: str) -> dict[str, dict[str, Any]]:
    """:func:`pins_of`, each with the types of those looked-up columns that state and sink store, or that make ids of ``dedup``.

    ``schema`` is the source's, as JSON.
    """
    tables = {str(lookup.name): opened(lookup) for lookup in pipeline.lookups}
    pins, seen = {name: table.pin for name, table in tables.items()}, Columns.of(schema).seen_by(pipeline.with_tables(tables)).struct
    stored = {*pipeline.keys, pipeline.time.column, pipeline.time.end, *live_columns(pipeline, seen.names)}
    stored |= set() if pipeline.dedup is None else set(pipeline.dedup.by)
    for lookup in pipeline.lookups:
        types = {name: seen[name].dataType.simpleString() for name in lookup.columns if name in stored and name in seen.names}
        pins[str(lookup.name)] |= {"types": types} if types else {}
    return pins


def check_types(pipeline: Pipeline, before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ``SourceSchemaError`` if a looked-up column has another type by the pins ``now`` than by those of the batch ``before``."""
    for lookup in pipeline.lookups:
        old, new = (pins.get(str(lookup.name), {}).get("types", {}) for pins in (before, now))
        name = next((name for name in old if new.get(name, old[name]) != old[name]), None)
        if name is not None:
            raise SourceSchemaError(
                f"lookup {lookup.name}: column {name!r} of {lookup.place} was {old[name].upper()} and is now {new[name].upper()}; bring "
                f"the type back, cast it to {old[name].upper()} by a step and `windowmill apply` that, or rebuild in a new sink"
            )


def pinned(pipeline: Pipeline, pins: Mapping[str, Mapping[str, Any]]) -> Pipeline:
    """``pipeline`` over the versions of looked-up tables that a plan has recorded as ``pins``."""
    return pipeline.with_tables({str(lookup.name): opened(lookup, pins.get(str(lookup.name))) for lookup in pipeline.lookups})


def versions_since(
    pipeline: Pipeline, name: str | None, batches: Sequence[Batch], pins: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[int]]:
    """The first and last version of looked-up tables that published windows may not reflect, by name of the lookup, where there are some.

    ``name``: the lookup that is asked for; null for all. ``batches``: those that count; windows reflect at least the first version that one
    has looked up, or that of the last restatement of all that had changed. ``pins``: the versions that are read now.

    Raises ``SpecError`` for a lookup that the spec does not have, ``UnsupportedError`` if one is asked for whose table has no versions, or
    is another one now.
    """
    found = dict[str, list[int]]()
    if name is not None and name not in pins:
        known = ", ".join(pins) or "none"
        raise SpecError(f"--lookup: pipeline {pipeline.pipeline} has no lookup {name!r}; its lookups: {known}")
    for each, pin in pins.items() if name is None else ((name, pins[name]),):
        read = [batch.plan for batch in batches if each in batch.plan.lookups]
        whole = [place for place, plan in enumerate(read) if plan.brings_up_to_date(each)]
        before = [plan.lookups[each] for plan in read[max(whole, default=0) :]]
        if "version" not in pin or any(other.get("id") != pin["id"] for other in before):
            why = "is a folder of files" if "version" not in pin else "is in another table now than when batches looked it up"
            if name is not None:
                raise UnsupportedError(
                    f"--lookup: {name} {why}, so what has changed is not known; name the windows to compute again by --from and --to"
                )
            continue
        first = min((int(other["version"]) for other in before), default=int(pin["version"])) + 1
        if first <= pin["version"]:
            found[each] = [first, int(pin["version"])]
    return found


def with_each_value(pipeline: Pipeline, name: str, changed: Sequence[int]) -> tuple[list[Pipeline], int | None]:
    """The pipeline once for each of the values that changed rows of a looked-up table have had, and for none.

    Their lookup ``name`` refuses rows that look up no changed row. By these pipelines a row has the values which it had before versions
    ``changed``, the first and the last, has between them, and has now, whichever of the table's rows is valid at its time. The time is that
    from which on rows may have other values now; null for no bound. Raises ``SourceRangeGoneError`` if it is no longer known what changed.
    """
    place, step = next((n, step) for n, step in enumerate(pipeline.steps) if step.lookup is not None and step.lookup.name == name)
    lookup = step.lookup
    assert lookup is not None
    table: LookupTable = pipeline.table_of(name) or opened(lookup)
    wanted = list(dict.fromkeys([*lookup.on.values(), *lookup.columns.values(), *([lookup.valid_from] if lookup.valid_from else [])]))
    rows = TableRows(table.source, tuple(wanted), _only_here)
    nested = next((each for each in wanted if pa.types.is_nested(rows.types[each])), None)
    if nested is not None:
        raise SourceRangeGoneError(f"lookup {name}: column {nested!r} holds nested values, of which it is not known what has changed")
    first, last = changed
    try:
        appended = [each for each in table.source.versions(first - 1, last) if each.added and not each.changes]
        parts = [changed_rows(rows, first, last, wanted), *(appended_rows(rows, each, wanted) for each in appended)]
    except NotPlainError as err:  # as of a column whose type has changed
        raise SourceRangeGoneError(f"lookup {name}: rows of versions {first} to {last} cannot be compared ({err})") from err
    found, keys = pa.concat_tables(parts), list(lookup.on.values())
    since = None
    if lookup.valid_from is not None and found.num_rows:
        since = pc.min(_on_axis(found.column(lookup.valid_from), TextTimes(), pipeline.time)).as_py()
    values = [name for name in dict.fromkeys(lookup.columns.values()) if name not in keys]
    distinct = found.select([*keys, *values]).group_by([*keys, *values], use_threads=False).aggregate([])
    every = distinct.select(keys).group_by(keys, use_threads=False).aggregate([])
    none = pa.table({**{key: every.column(key) for key in keys}, **{each: pa.nulls(len(every), rows.types[each]) for each in values}})
    codes = codes_of([distinct], keys)[0]
    order = np.argsort(codes, kind="stable")
    rank = np.empty(len(codes), np.int64)
    rank[order] = np.arange(len(codes)) - np.searchsorted(codes[order], codes[order])
    tables = [none, *(distinct.filter(pa.array(rank == n)) for n in range(int(rank.max(initial=-1)) + 1))]
    plain = lookup.model_copy(update={"valid_from": None, "missing": "quarantine"})
    steps = (*pipeline.steps[:place], step.model_copy(update={"lookup": plain}), *pipeline.steps[place + 1 :])
    others = {str(each.name): pipeline.table_of(str(each.name)) for each in pipeline.lookups}
    own = pipeline.model_copy(update={"steps": steps})
    return [own.with_tables(others | {name: replace(table, outside=None, rows=each)}) for each in tables], since


def _table(step: LookupStep) -> LookupTable:
    found: LookupTable = opened(step.lookup) if step.table is None else step.table
    return found


class _Lookups:
    """Implements :class:`.StepKind`."""

    def types(self, step: LookupStep, known: Mapping[str, pa.DataType], spark_only: Collection[str], where: str) -> StepTypes:
        own, table = step.lookup, _table(step)
        theirs = table.types
        for name in (*own.on.values(), *own.columns.values(), *([own.valid_from] if own.valid_from else [])):
            if name not in theirs:
                raise SourceSchemaError(f"{where}: {no_column(f'the table {own.place}', name, list(theirs))}")
        none = {name: pa.nulls(0, spark_kind(kind)) for name, kind in known.items()}
        for name, other in own.on.items():
            try:
                kind = step_value(quoted_path(name), none, 0, is_filter=False).kind
            except OutsideError as err:
                raise SpecError(f"{where}.on: {name!r} cannot be looked up ({err}); make a column of it by a step") from err
            if _comparable(kind) is None or _comparable(kind) != _comparable(theirs[other]):
                raise SpecError(
                    f"{where}.on: {name!r} is {name_of(kind)}, and {other!r} of {own.place} is {name_of(theirs[other])}; make both of one "
                    "type, by a step: whole numbers, texts, dates, instants, booleans or decimals"
                )
        if own.valid_from is not None:
            _check_times(step, none, theirs[own.valid_from], where)
        unlike = next((name for name in known if name.lower() in spark_only), None)
        outside = table.outside if unlike is None else f"column {unlike!r}"
        return StepTypes({name: theirs[other] for name, other in own.columns.items()}, outside, own.missing == "quarantine")

    def values(self, step: LookupStep, columns: Mapping[str, pa.Array], n: int) -> StepValues:
        own = step.lookup
        index = _Index.of(_table(step), own, step.time)
        keys = {name: step_value(quoted_path(name), columns, n, is_filter=False).array for name in own.on}
        times = None
        if own.valid_from is not None:
            times = _on_axis(step_value(step.texts[-1], columns, n, is_filter=False).array, TextTimes.of(step.source), step.time)
        places = index.places(list(keys.values()), times)
        none = places < 0
        chosen = pa.array(places, mask=none)
        made = {name: index.columns[other].take(chosen) for name, other in own.columns.items()}
        if own.missing == "keep":
            return StepValues(made)
        # Rows without a usable time are quarantined for that.
        failed = none if times is None else none & ~np.asarray(pc.is_null(times))
        return StepValues(made, failed, None, _Refusals(step, keys, failed))

    def sql(self, step: LookupStep, table: str, known: Collection[str]) -> str:
        """A query of the rows of ``table``, with ``known`` columns in lower case, behind ``step``."""
        own, opened_at = step.lookup, _table(step)
        place = (
            f"delta.{backquoted(str(own.location))}@v{opened_at.source.version}"
            if own.format == "delta"
            else f"parquet.{backquoted(str(own.location))}"
        )
        replaced = [backquoted(name) for name in own.columns if name.lower() in known]
        kept = f"l.* EXCEPT ({', '.join(replaced)})" if replaced else "l.*"
        columns = ", ".join(f"r.{backquoted(other)} AS {backquoted(name)}" for name, other in own.columns.items())
        on = " AND ".join(f"l.{quoted_path(ours)} = r.{backquoted(other)}" for ours, other in own.on.items())
        if own.valid_from is not None:
            since, keys = backquoted(own.valid_from), ", ".join(map(backquoted, own.on.values()))
            place = f"(SELECT *, lead({since}) OVER (PARTITION BY {keys} ORDER BY {since}) AS _until FROM {place})"
            time = f"l.{quoted_path(step.time.column)}"
            on += f" AND {time} >= r.{since} AND (r._until IS NULL OR {time} < r._until)"
        join = "LEFT JOIN" if own.missing == "keep" else "JOIN"
        return f"(SELECT {kept}, {columns} FROM {table} l {join} {place} r ON {on})"


LOOKUPS = _Lookups()


@dataclass(frozen=True)
class _Index:
    """Finds the row of a table that matches a row."""

    #: The columns of the table.
    columns: Mapping[str, pa.ChunkedArray]
    #: Distinct values of each key column, which are numbered by their places.
    values: Sequence[pa.Array]
    #: From the second key column on: sorted numbers of the pairs of a number of all columns before it and one of its own.
    pairs: Sequence[Ints]
    #: The table's rows, of shape (k,): by the number of their key, or sorted by this number and the time from which they are valid.
    rows: Ints
    #: Sorted distinct times from which rows are valid, and for each of ``rows`` the number of its key and that of its time in one; null
    #: where rows have none.
    since: Ints | None = None
    sorted: Ints | None = None

    @classmethod
    def of(cls, table: LookupTable, lookup: Lookup, time: Time) -> _Index:
        """That of the rows of ``table``, kept by this process; raises ``SourceError`` if it cannot be read, or two of its rows match."""
        return _indexed(table, lookup.model_dump_json(), time)

    @classmethod
    def over(cls, rows: pa.Table, lookup: Lookup, time: Time) -> _Index:
        keys = [_as_key(rows.column(name)) for name in lookup.on.values()]
        since = None if lookup.valid_from is None else _on_axis(rows.column(lookup.valid_from), TextTimes(), time)
        usable = reduce(np.logical_and, (np.asarray(pc.is_valid(each)) for each in (*keys, *([] if since is None else [since]))))
        places = np.flatnonzero(usable)
        keys = [key.take(pa.array(places)) for key in keys]
        values, pairs = [keys[0].unique()], list[Ints]()
        codes = _codes(keys[0], values[0])
        for key in keys[1:]:
            values.append(key.unique())
            both = codes * len(values[-1]) + _codes(key, values[-1])
            pairs.append(np.unique(both))
            codes = np.searchsorted(pairs[-1], both)
        columns = {name: rows.column(name) for name in rows.column_names}
        if since is None:
            order = np.argsort(codes, kind="stable")
            index, times = cls(columns, values, pairs, places[order]), None
        else:
            begins = since.take(pa.array(places)).to_numpy()
            times = np.unique(begins)
            codes = codes * (len(times) + 1) + np.searchsorted(times, begins) + 1
            order = np.argsort(codes, kind="stable")
            index = cls(columns, values, pairs, places[order], times, codes[order])
        again = np.flatnonzero(np.diff(codes[order]) == 0)
        if len(again):
            first = pa.table({name: rows.column(name) for name in lookup.on.values()}).slice(places[order[again[0]]], 1)
            raise SourceRefusedError(_twice(lookup, f" {json_lines.to_json(first)[0]}"))
        return index

    def places(self, keys: Sequence[pa.Array], times: pa.Array | None) -> Ints:
        """For each row with these ``keys``, and ``times`` along the axis, the number of the table's row that matches; −1 for none."""
        n = len(keys[0])
        if not len(self.rows):
            return np.full(n, -1)
        codes = _codes(_as_key(keys[0]), self.values[0])
        for key, values, pairs in zip(keys[1:], self.values[1:], self.pairs, strict=True):
            own = _codes(_as_key(key), values)
            both = codes * len(values) + own
            found = np.minimum(np.searchsorted(pairs, both), len(pairs) - 1)
            codes = np.where((codes >= 0) & (own >= 0) & (pairs[found] == both), found, -1)
        if self.since is None or self.sorted is None or times is None:
            return np.where(codes >= 0, self.rows[codes], -1)
        rank = np.searchsorted(self.since, times.fill_null(0).to_numpy(), side="right")
        last = np.searchsorted(self.sorted, codes * (len(self.since) + 1) + rank, side="right") - 1
        same = (codes >= 0) & np.asarray(pc.is_valid(times)) & (last >= 0) & (self.sorted[last] // (len(self.since) + 1) == codes)
        return np.where(same, self.rows[last], -1)


@lru_cache(_KEPT)
def _indexed(table: LookupTable, lookup_json: str, time: Time) -> _Index:
    lookup = Lookup.model_validate_json(lookup_json)
    own = [*lookup.on.values(), *lookup.columns.values(), *([lookup.valid_from] if lookup.valid_from else [])]
    return _Index.over(table.read(list(dict.fromkeys(own))), lookup, time)


def _codes(values: pa.Array, distinct: pa.Array) -> Ints:
    """The place of each of ``values`` among ``distinct``; −1 for none, and for null."""
    found = pc.index_in(values, distinct, skip_nulls=True)
    places: Ints = found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return places


def _as_key(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """``column`` as one array, in one type for all whole numbers."""
    array = spark_array(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
    return array.cast(pa.int64()) if pa.types.is_integer(array.type) else array


def joined(rows: DataFrame, step: LookupStep) -> DataFrame:
    """``rows`` with the columns that ``step`` makes, joined by Spark; those that it refuses get a reason in ``UNREAD``."""
    own, before = step.lookup, rows.columns
    keys = [f"_on{n}" for n in range(len(own.on))]
    table = _table(step).frame(rows)
    values = F.struct(*(F.col(backquoted(other)).alias(f"_{n}") for n, other in enumerate(own.columns.values())))
    table = table.select(
        *(F.col(backquoted(other)).alias(key) for key, other in zip(keys, own.on.values(), strict=True)),
        values.alias(_VALUES),
        *([F.col(backquoted(own.valid_from)).alias(_FROM)] if own.valid_from else []),
    )
    given = [f"_given{n}" for n in range(len(keys))]
    rows = rows.withColumns({name: F.expr(quoted_path(ours)) for name, ours in zip(given, own.on, strict=True)})
    matches = [F.col(one) == F.col(other) for one, other in zip(given, keys, strict=True)]
    if own.valid_from is None:
        table = table.groupBy(*keys).agg(F.count("*").alias(_MATCHES), F.first(_VALUES).alias(_VALUES))
    else:
        rows = rows.withColumn(_TIME, _axis_by_spark(F.expr(step.texts[-1]), TextTimes.of(step.source), step.time))
        table = table.withColumn(_FROM, _axis_by_spark(F.col(_FROM), TextTimes(), step.time)).where(F.col(_FROM).isNotNull())
        table = table.groupBy(*keys, _FROM).agg(F.count("*").alias(_MATCHES), F.first(_VALUES).alias(_VALUES))
        table = table.withColumn(_UNTIL, F.lead(_FROM).over(Window.partitionBy(*keys).orderBy(_FROM)))
        matches += [F.col(_TIME) >= F.col(_FROM), F.col(_UNTIL).isNull() | (F.col(_TIME) < F.col(_UNTIL))]
    found = rows.join(table, reduce(and_, matches), "left")
    twice = F.raise_error(F.lit(f"windowmill: {_twice(own)}"))
    found = found.withColumn(_VALUES, F.when(F.col(_MATCHES) > 1, twice.cast(found.schema[_VALUES].dataType)).otherwise(F.col(_VALUES)))
    made = {name.lower() for name in own.columns}
    kept = [F.col(backquoted(name)) for name in before if name.lower() not in made and name != UNREAD]
    columns = [F.col(f"{_VALUES}._{n}").alias(name) for n, name in enumerate(own.columns)]
    unread = F.col(backquoted(UNREAD))
    if own.missing == "quarantine":
        lacks = F.col(_VALUES).isNull() & unread.isNull()
        lacks = lacks if own.valid_from is None else lacks & F.col(_TIME).isNotNull()
        unread = F.when(lacks, _refusal_by_spark(step, given)).otherwise(unread)
    return found.select(*kept, *columns, unread.alias(UNREAD))


@dataclass
class _Refusals:
    """``UNREAD`` of rows without a match, made for all of them once one is asked for."""

    step: LookupStep
    keys: Mapping[str, pa.Array]
    failed: npt.NDArray[np.bool_]
    _texts: dict[int, str] | None = None

    def __call__(self, index: int) -> str:
        if self._texts is None:
            places = np.flatnonzero(self.failed)
            own = pa.table({other: self.keys[ours].take(pa.array(places)) for ours, other in self.step.lookup.on.items()})
            shown = json_lines.to_json(own)
            self._texts = {
                place: unread_text(NO_MATCH, _lacks(self.step.lookup, text), {}) for place, text in zip(places.tolist(), shown, strict=True)
            }
        return self._texts[index]


def _lacks(lookup: Lookup, values: str) -> str:
    return f"{lookup.name}: no row with {values}{_VALID if lookup.valid_from else ''}"


#: End of the sentence about a row without a match.
_VALID = " is valid at its time"


def _refusal_by_spark(step: LookupStep, given: Sequence[str]) -> Column:
    """:class:`_Refusals` in Spark."""
    own = step.lookup
    values = F.to_json(
        F.struct(*(F.col(name).alias(other) for name, other in zip(given, own.on.values(), strict=True))), {"ignoreNullFields": "false"}
    )
    detail = F.concat(F.lit(f"{own.name}: no row with "), values, F.lit(_VALID if own.valid_from else ""))
    texts = F.from_json(F.lit("{}"), "map<string,string>")
    return F.concat(F.lit(f"{NO_MATCH} "), F.to_json(F.struct(detail.alias("detail"), texts.alias("texts"))))


def _twice(lookup: Lookup, values: str = "") -> str:
    names = " and ".join(map(repr, lookup.on.values()))
    if lookup.valid_from is None:
        return (
            f"lookup {lookup.name}: two rows of {lookup.place} have the same {names}{values}, so which of them counts is not known; remove "
            "one, or give valid_from: the column with the time from which a row is valid"
        )
    return f"lookup {lookup.name}: two rows of {lookup.place} have the same {names} and {lookup.valid_from!r}{values}; remove one"


def _comparable(kind: pa.DataType) -> str | None:
    """What values of a type may be compared with; null for a type whose equality is not that of its values here."""
    kind = spark_kind(kind)
    if pa.types.is_integer(kind):
        return "integer"
    plain = (
        pa.types.is_string(kind)
        or pa.types.is_date(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_decimal(kind)
    )
    return str(kind) if plain or pa.types.is_binary(kind) else None


def _check_times(step: LookupStep, none: Mapping[str, pa.Array], theirs: pa.DataType, where: str) -> None:
    """Refuse times that cannot be compared with those from which rows are valid."""
    ours, numbers = step_value(step.texts[-1], none, 0, is_filter=False).kind, pa.types.is_integer(spark_kind(theirs))
    known = numbers or pa.types.is_timestamp(theirs) or pa.types.is_date(theirs) or pa.types.is_string(spark_kind(theirs))
    if not known or (numbers and step.time.unit is None) or (not numbers and step.time.integer_axis):
        raise SpecError(
            f"{where}.valid_from: {step.lookup.valid_from!r} of {step.lookup.place} is {name_of(theirs)}, and {step.time.column!r}, the "
            f"event's time, is {name_of(ours)}; give a column of such times"
        )


def _on_axis(times: pa.Array | pa.ChunkedArray, texts: TextTimes, time: Time) -> pa.Array:
    """Times along the axis of event times; null for none."""
    column = times if isinstance(times, pa.ChunkedArray) else pa.chunked_array([times])
    return on_axis(column, texts, time.tick_us).combine_chunks()


def _axis_by_spark(times: Column, texts: TextTimes, time: Time) -> Column:
    def found(given: pa.Array) -> pa.Array:
        return _on_axis(given, texts, time)

    # PySpark advises against the function type, which its stubs want.
    function = arrow_udf(found, "bigint")  # type: ignore[call-overload]
    column: Column = function(times)
    return column
