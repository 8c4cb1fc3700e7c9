"""Reads a sample of a source for ``windowmill init`` and ``validate --source``: its format and columns, and how many rows runs can use."""

from __future__ import annotations

import csv
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from windowmill.checkpoints.stores import is_table, located
from windowmill.expectations.suites import type_problems
from windowmill.jobs.conditions.expressions import Expressions
from windowmill.jobs.conditions.truths import outside_by_field, refused_here
from windowmill.jobs.runnables import refuse_own_results, runnable_of
from windowmill.jobs.sources.base import (
    KINDS,
    AddedFile,
    LoggedVersion,
    Reading,
    SourceTable,
    formats,
    is_located,
    kind_problems,
    open_source,
)
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.folder import data_files
from windowmill.jobs.sources.plain_files import Form, NotPlainError
from windowmill.jobs.sources.plain_rows import PlainRows, batches_of
from windowmill.jobs.sources.text_files import first_lines, json_object
from windowmill.jobs.sources.text_values import TextTimes
from windowmill.jobs.sources.unusable_rows import OF_TIME, details_of, on_axis, remedies_of
from windowmill.jobs.spec_checks import Problem, shifted_dates
from windowmill.windowing.columnar.added_columns import REASON, UNREAD
from windowmill.windowing.columnar.hashes import row_checksums
from windowmill.windowing.columnar.keyed import StateLog
from windowmill.windowing.columnar.positions import PositionState
from windowmill.windowing.columnar.rows import distinct_values
from windowmill.windowing.errors import SourceError, SourceMissingError, SourceRangeGoneError, SourceSchemaError, SpecError, no_column
from windowmill.windowing.fields import Source, percentage
from windowmill.windowing.layouts import check_strict, divide
from windowmill.windowing.registry import resolve

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline


Unit = Literal["us", "ms", "s", "none"]
#: Rows and files of the sample: the first commits, in which lateness is measured, and enough rows to distinguish keys from ids.
_ROWS, _FILES = 500_000, 200
_SUFFIXES = {".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
_TIME_NAME = re.compile(r"(?:^|_)(?:time|timestamp|ts|at|date|datetime|day|when|occurred|event)(?:$|_)|time$|_at$|date$", re.IGNORECASE)
_ID_NAME = re.compile(r"(?:^|_)(?:id|uuid|guid|number|no|seq|offset)$|Id$", re.IGNORECASE)
#: Whole numbers that count from 1970 lie between the years 2000 and 2100, by their unit.
_EPOCHS: Mapping[Unit, tuple[int, int]] = {
    "s": (946_684_800, 4_102_444_800),
    "ms": (946_684_800_000, 4_102_444_800_000),
    "us": (946_684_800_000_000, 4_102_444_800_000_000),
}
#: The least share of a column's values that do, for it to be taken for a time: some rows have 0 where none is known.
_MOSTLY_TIMES = 0.99
_MICROSECONDS: Mapping[Unit, int] = {"s": 1_000_000, "ms": 1_000, "us": 1, "none": 1}
#: From this share of values that differ on, a column is taken for an event's own number, and the others for duplicates.
_MOSTLY = 0.9
#: The greatest share of the sample's rows that are not late by the disorder that is proposed.
_IN_TIME = 0.999
#: The path of a field, with which messages about a spec begin.
_FIELD = re.compile(r"(?:source|keys|time|windows|aggregates|sink|checkpoints)(?:\..+)?")


@dataclass(frozen=True)
class Fields:
    """The members of JSON objects in texts."""

    texts: frozenset[str] = frozenset()  #: Their names, ``a.b``; they are texts whatever they mean.
    numbers: Mapping[str, str] = field(default_factory=dict)  #: Columns -> Spark SQL, by which steps make numbers of them.


@dataclass(frozen=True)
class Look:
    """What was found in a source, ``settings`` as a spec has it."""

    settings: Source
    columns: Columns
    #: Rows in order of arrival, of simple columns; null if only Spark can read them.
    sample: pa.Table | None
    #: Number of rows of each commit of the sample.
    commits: tuple[int, ...]
    size_bytes: int
    #: What a commit of the sample is called.
    commit: str = "commits"
    #: Columns that reading adds to the rows; and those among them, with distinct values, that order rows of equal time.
    added: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    fields: Fields = field(default_factory=Fields)

    @property
    def name(self) -> str:
        return (self.settings.path or self.settings.options["subscribe"].split(",")[0]).rstrip("/").rpartition("/")[2].strip()

    def times(self) -> list[str]:
        """Columns that may be the time of events, the likeliest first."""
        ranks = {name: rank for name in self.columns.struct.names if (rank := self._rank_of_time(name)) is not None}
        return sorted(ranks, key=lambda name: ranks[name])

    def unit_of(self, name: str) -> Unit | None:
        """What the whole numbers of a time column count; null for a column of another type."""
        if not pa.types.is_integer(self.columns.arrow[name]):
            return None
        values = pa.chunked_array([], pa.int64()) if self.sample is None else self.sample.column(name).drop_null()
        counted = {unit: pc.sum(_within(values, unit)).as_py() or 0 for unit in _EPOCHS}
        return next((unit for unit, n in counted.items() if n and n >= _MOSTLY_TIMES * len(values)), "none")

    def _rank_of_time(self, name: str) -> tuple[int, int] | None:
        kind, named = self.columns.arrow[name], 0 if _TIME_NAME.search(name) else 1
        if name in self.added:
            return (5, 0) if pa.types.is_timestamp(kind) else None
        if pa.types.is_timestamp(kind):
            return (0, named)
        if pa.types.is_date(kind):
            return (1, named)
        if pa.types.is_integer(kind):
            return (2, named) if self.unit_of(name) != "none" else (4, named) if not named else None
        if pa.types.is_string(kind) and self.sample is not None:
            texts = self.sample.column(name).slice(0, 1_000)
            found = on_axis(texts, TextTimes.of(self.settings))
            return (3, named) if len(texts) > texts.null_count and found.null_count == texts.null_count else None
        return None

    def distinct(self, name: str) -> int | None:
        """Number of values of a column in the sample; null if it is not known."""
        return None if self.sample is None or name not in self.sample.column_names else pc.count_distinct(self.sample.column(name)).as_py()

    def keys(self, time: str) -> list[str]:
        """Columns that may be keys, the likeliest first: few values, each in many rows."""
        found = {}
        for name, kind in self.columns.arrow.items():
            n = self.distinct(name)
            simple = pa.types.is_string(kind) or pa.types.is_integer(kind)
            if name == time or not simple or n is None or self.sample is None or not 2 <= n <= max(2, self.sample.num_rows // 4):
                continue
            if (
                name in self.added
                or any(text.startswith(f"{name}.") for text in self.fields.texts)
                or (pa.types.is_integer(kind) and not _ID_NAME.search(name))
            ):
                continue
            found[name] = (0 if pa.types.is_string(kind) else 1, 0 if n <= 10_000 else 1)
        return sorted(found, key=lambda name: found[name])

    def measures(self, others: Sequence[str]) -> list[str]:
        """Columns of numbers that are worth an aggregate, without ``others``."""
        numbers = [name for name, kind in self.columns.arrow.items() if pa.types.is_integer(kind) or pa.types.is_floating(kind)]
        left_out = {*others, *self.added}
        return [name for name in numbers if name not in left_out and not _ID_NAME.search(name) and self.unit_of(name) in (None, "none")]

    def tie_break(self, others: Sequence[str]) -> list[str]:
        """Columns that order equal times: one with a value of its own in each row, or those of :attr:`order`; may be none."""
        if self.sample is None or self.sample.num_rows < 2:
            return list(self.order)
        left_out = {*others, *self.added, *self.fields.texts}
        names = [name for name in self.sample.column_names if name not in left_out and _ID_NAME.search(name)]
        return next(([name] for name in names if self.distinct(name) == self.sample.num_rows), list(self.order))

    def copied(self) -> str | None:
        """A column that identifies events, of which the sample holds exact copies, for at most half of its rows; null if there is none."""
        if self.sample is None:
            return None
        for name in map(str, self.sample.column_names):
            distinct = self.distinct(name) if _ID_NAME.search(name) and name not in self.added else None
            n = self.sample.num_rows - self.sample.column(name).null_count
            if distinct is None or not n <= 2 * distinct < 2 * n:
                continue
            known = self.sample.filter(pc.is_valid(self.sample.column(name)))
            if len(distinct_values(row_checksums(known, but=self.added).to_numpy())) == distinct:
                return name
        return None

    def repeated(self) -> tuple[str, float] | None:
        """A column whose values nearly all differ, as an event's own do, and the share of rows that repeat one; null if there is none."""
        if self.sample is None or not self.sample.num_rows:
            return None
        for name in self.sample.column_names:
            distinct = self.distinct(name) if _ID_NAME.search(name) and name not in self.added else None
            values = self.sample.num_rows - self.sample.column(name).null_count
            if distinct is not None and _MOSTLY * values <= distinct < values:
                return name, 1 - distinct / values
        return None

    def arrivals(self, time: str) -> MeasuredArrivals | None:
        if self.sample is None:
            return None
        unit = self.unit_of(time)
        values = self.sample.column(time)
        if unit is not None and unit in _EPOCHS:
            values = pc.if_else(_within(values, unit), values, None)
        at = on_axis(values, TextTimes.of(self.settings)).combine_chunks().to_numpy(zero_copy_only=False)
        return MeasuredArrivals.of(at, self.commits, _MICROSECONDS[unit or "us"], self.commit)


def _within(values: pa.ChunkedArray, unit: Unit) -> pa.ChunkedArray:
    """Whether whole numbers are instants of the years in question, in this ``unit`` since 1970."""
    low, high = _EPOCHS[unit]
    return pc.and_(pc.greater_equal(values, low), pc.less(values, high))


@dataclass(frozen=True, slots=True)
class MeasuredArrivals:
    """How the event times of a sample of so many ``commits`` arrive, in microseconds, or in ticks of an axis without a clock."""

    first: int
    last: int
    #: Greatest distance of a row behind the greatest event time of earlier commits; 0 if no row was behind.
    late: int
    #: That of all but one row in a thousand.
    disorder: int
    commits: int
    tick_us: int = 1
    commit: str = "commits"

    @classmethod
    def of(cls, at: np.ndarray, commits: Sequence[int], tick_us: int, commit: str) -> MeasuredArrivals | None:
        known = ~np.isnan(at) if at.dtype.kind == "f" else np.ones(len(at), bool)
        if not known.any():
            return None
        values = np.where(known, at, 0).astype(np.int64)
        seen, behind, place = None, [np.zeros(0, np.int64)], 0
        for rows in commits:
            own = values[place : place + rows][known[place : place + rows]]
            place += rows
            if seen is not None:
                behind.append(np.maximum(0, seen - own))
            if len(own):
                seen = int(own.max()) if seen is None else max(seen, int(own.max()))
        every = np.concatenate(behind)
        late, most = (int(every.max()), int(np.quantile(every, _IN_TIME, method="higher"))) if len(every) else (0, 0)
        return cls(int(values[known].min()), int(values[known].max()), late, most, len(commits), tick_us, commit)


def format_of(path: str) -> str:
    if is_table(path):
        return "delta"
    names = data_files(path)
    if not names:
        raise SourceMissingError(f"source {path}: is empty; write the first rows, or correct the path")
    kinds = {kind for name in names if (kind := _kind_of(name)) is not None}
    if len(kinds) == 1:
        return kinds.pop()
    what = f"files of several formats ({', '.join(sorted(kinds))})" if kinds else f"files such as {names[0]!r}"
    raise SourceError(f"source {path}: holds {what}; say which with --format, one of {', '.join(formats())}")


def _kind_of(name: str) -> str | None:
    return next((_SUFFIXES[suffix.lower()] for suffix in reversed(PurePosixPath(name).suffixes) if suffix.lower() in _SUFFIXES), None)


def csv_options(path: str) -> dict[str, str]:
    """The options of CSV files that the first one shows: what separates fields, and whether its first line names them."""
    lines = first_lines(f"{path.rstrip('/')}/{data_files(path)[0]}", 2)
    separator = max(",;\t|", key=lines[0].count)
    names, cells = (next(csv.reader([line], delimiter=separator), []) for line in (lines * 2)[:2])
    texts = all(name and not re.fullmatch(r"[-+.\d:TZ /]*", name) for name in names)
    header = texts and len(set(names)) == len(names) and (len(lines) == 1 or names != cells)
    return ({"header": "true"} if header else {}) | ({} if separator == "," else {"sep": separator})


def look_at(path: str, format_: str | None, given: Mapping[str, str]) -> Look:
    """What is found in the source at ``path``; null for a ``format_`` that is to be found. ``given`` are options of the source."""
    format_ = format_ or format_of(path)
    if format_ not in formats():
        raise SpecError(f"--format: got {format_!r}; expected one of {', '.join(formats())}")
    options = (csv_options(path) if format_ == "csv" else {}) | dict(given)
    settings = source_of(path=path, format=format_, options=options)
    check_options(settings)
    kind = KINDS[format_]
    table = resolve(kind.open)(settings, *([None] if kind.records else []))
    taken = arrived(table)[:_FILES]
    columns = Columns.of(table.schema_json)
    rows = _sample(table, taken, columns)
    sample, counts = (None, ()) if rows is None else rows
    columns, sample, fields = with_fields(columns, sample)
    commits = tuple(sum(n for _, n in each) for _, each in groupby(zip(taken, counts, strict=False), key=lambda pair: pair[0].version))
    return Look(settings, columns, sample, commits, sum(file.size_bytes for file in table.snapshot(table.version)), fields=fields)


def source_of(**fields: Any) -> Source:
    """The source of a spec with these fields; raises ``SpecError`` for a wrong path or option."""
    try:
        return Source(**fields)
    except ValidationError as err:
        first = err.errors()[0]
        flag = "--source" if first["loc"][:1] == ("path",) else "--option"
        raise SpecError(f"{flag}: {first['msg'].removeprefix('Value error, ')}") from err


def check_options(settings: Source, *, wanting: str | None = None) -> None:
    """Raise ``SpecError`` for a wrong option, but for the one that is ``wanting`` and will be found."""
    for path, problem in kind_problems(settings):
        if path != f"source.options.{wanting}":
            raise SpecError(f"--option: {path}: {problem}")


def arrived(table: SourceTable, *, held: bool = False) -> list[AddedFile]:
    """Files in order of arrival, as far as it is known; with ``held``, if rows changed, the files of rows that the table still holds.

    Commits that changed rows are left out: the rows of their files arrived earlier.
    """
    try:
        versions = list(table.versions(-1, table.version))
    except SourceRangeGoneError:
        versions = _last_versions(table)
    files = [file for version in versions if not version.changes for file in version.added]
    if held and any(version.changes for version in versions):
        with suppress(SourceRangeGoneError):  # of messages that a topic no longer has
            return table.snapshot(table.version)
    return files if files and table.missing(files[:_FILES]) is None else table.snapshot(table.version)


def _last_versions(table: SourceTable) -> list[LoggedVersion]:
    """The versions that the log still has of a table whose first ones are gone, until they have added enough files."""
    versions: list[LoggedVersion] = []
    try:
        while sum(len(version.added) for version in versions) < _FILES:
            number = table.version - len(versions)
            versions += table.versions(number - 1, number)
    except SourceRangeGoneError:
        pass
    return versions[::-1]


def _sample(table: SourceTable, files: Sequence[AddedFile], columns: Columns) -> tuple[pa.Table, list[int]] | None:
    """Rows of the first of ``files``, and how many are of each; null if only Spark can read them."""
    plain = table.plain_files(Reading(tuple(files)))
    if plain is None:
        return None
    form = Form(columns.arrow, columns.fixed_lengths)
    names = [name for name, kind in form.types.items() if _is_simple(kind)]
    parts: list[pa.RecordBatch] = []
    counts: list[int] = []
    try:
        for file in plain:
            own = list(batches_of(file, form, names))
            parts += own
            counts.append(sum(batch.num_rows for batch in own))
            if sum(counts) >= _ROWS:
                break
    except NotPlainError:
        return None
    schema = pa.schema([(name, form.types[name]) for name in names])
    return pa.Table.from_batches(parts, schema) if parts else schema.empty_table(), counts


def _is_simple(kind: pa.DataType) -> bool:
    """Whether values of ``kind`` are no lists and maps, and hold none."""
    return all(_is_simple(field.type) for field in kind) if pa.types.is_struct(kind) else not pa.types.is_nested(kind)


def with_fields(columns: Columns, sample: pa.Table | None) -> tuple[Columns, pa.Table | None, Fields]:
    """``columns`` and ``sample`` with the fields of structs, and of JSON objects in texts, as ``a.b``; and what the latter are."""
    types, found = dict(columns.arrow), {} if sample is None else {name: sample.column(name) for name in sample.column_names}
    waiting = [name for name, kind in types.items() if pa.types.is_struct(kind)]
    while waiting:
        name = waiting.pop()
        for index, each in enumerate(types[name]):
            inner = f"{name}.{each.name}"
            if inner not in types and "." not in each.name and (sample is None or name in found):
                types[inner] = each.type
                found |= {inner: pc.struct_field(found[name], index)} if name in found else {}
                waiting += [inner] if pa.types.is_struct(each.type) else []
    of_json, made = dict[str, pa.Array](), dict[str, str]()
    for name, column in found.items():
        objects = [] if not pa.types.is_string(column.type) else _objects_in(column)
        for member in dict.fromkeys(member for row in objects if row is not None for member in row):
            inner, values = f"{name}.{member}", [None if row is None else row.get(member) for row in objects]
            if inner in types or "." in member or any(isinstance(value, dict | list) for value in values):
                continue
            of_json[inner] = pa.array([None if value is None else str(value) for value in values], pa.string())
            number = re.sub(r"\W+", "_", inner)
            kinds = {type(value) for value in values if value is not None}
            if kinds and kinds <= {int, float} and number not in types:
                made[number] = f"cast({inner} as double)"
                of_json[number] = pa.array([None if value is None else float(value) for value in values], pa.float64())
    types |= {name: column.type for name, column in of_json.items()}
    own = {name: column for name, column in found.items() if not pa.types.is_struct(column.type)} | of_json
    seen = columns if types.keys() == columns.arrow.keys() else Columns.of_arrow(pa.schema(list(types.items())))
    return seen, None if sample is None else pa.table(own), Fields(frozenset(of_json) - made.keys(), made)


def _objects_in(column: pa.ChunkedArray) -> list[dict[str, Any] | None]:
    """The JSON objects that the texts of ``column`` hold; none if one of them holds something else, or all are null."""
    if column.null_count == len(column) or not pc.all(pc.starts_with(column.drop_null(), "{")).as_py():
        return []
    found = [None if text is None else json_object(text.encode()) for text in column.to_pylist()]
    is_other = any(row is None and text for row, text in zip(found, column.is_valid().to_pylist(), strict=True))
    return [] if is_other else found


def check_column(look: Look, flag: str, name: str) -> None:
    if name not in look.columns.struct.names:
        raise SpecError(f"{flag}: {no_column(f'the source {look.settings.place}', name, look.columns.struct.names)}")


#: Rows that are read, of the first and the last files to arrive.
_MEASURED_ROWS, _MEASURED_FILES = 100_000, 16
#: Values of the time column that are shown, and characters of one.
_EXAMPLES, _SHOWN = 3, 60


@dataclass(frozen=True)
class Measured:
    """What a sample of so many ``rows`` of a source, of so many ``files``, is to a pipeline."""

    rows: int
    files: int
    #: Reasons for which a run would quarantine rows -> how many.
    reasons: Mapping[str, int] = field(default_factory=dict)
    #: Times, keys, columns of ``dedup`` and arguments of aggregates -> rows that have a value of the column, which can be read.
    readable: Mapping[str, int] = field(default_factory=dict)
    #: Some of the lines, or of the times, that cannot be read.
    examples: Sequence[str] = ()

    @property
    def unusable(self) -> int:
        """Rows that a run would quarantine, whatever its watermark."""
        return sum(self.reasons.values())

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"usable": self.rows - self.unusable}

    def describe(self) -> str:
        if not self.rows:
            return "the source has no rows yet"
        readable = ", ".join(f"{name} in {count:,}" for name, count in self.readable.items())
        lost = f"; not usable: {self._reasons()}" if self.reasons else ""
        return f"{self.rows:,} rows of the source read; readable: {readable}{lost}"

    def problem(self, pipeline: Pipeline) -> tuple[str, str] | None:
        """The field that is wrong, and what to do, where every batch of such rows would be held; null for none."""
        most = pipeline.quarantine.hold
        if most is None or self.unusable <= most * self.rows:
            return None
        share = percentage(round(self.unusable / self.rows, 3))
        worst = max(self.reasons, key=lambda reason: self.reasons[reason])
        what = f"{share} of {self.rows:,} rows that were read cannot be used, more than {percentage(most)} (quarantine.hold)"
        remedies = "".join(f"; {remedy}" for remedy in remedies_of(self.reasons, pipeline))
        return "time.column" if worst in OF_TIME else "source", f"{what}: {self._reasons()}{remedies}"

    def _reasons(self) -> str:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.reasons.items())
        return reasons + (f" (such as {', '.join(self.examples)})" if self.examples else "")


def measured(pipeline: Pipeline, source: SourceTable) -> Measured | None:
    files = arrived(source, held=True)
    chosen = files if len(files) <= _MEASURED_FILES else [*files[: _MEASURED_FILES // 2], *files[-_MEASURED_FILES // 2 :]]
    if not chosen:
        return Measured(0, 0)
    plain = PlainRows.of(pipeline, source, Reading(tuple(chosen)))
    if plain is None:
        return None
    try:
        return _of_rows(pipeline, _measured_sample(plain, pipeline), len(chosen))
    except NotPlainError:
        return None


def _columns(pipeline: Pipeline, known: Mapping[str, pa.DataType]) -> list[str]:
    """The columns from which results are computed: times, keys, those of ``dedup``, and arguments of aggregates."""
    named = [pipeline.time.column, pipeline.time.end or pipeline.time.column, *pipeline.keys]
    named += () if pipeline.dedup is None else pipeline.dedup.by
    named += [name for aggregate in pipeline.aggregates.values() for name in aggregate.columns]
    return [name for name in dict.fromkeys(named) if name in known]


def _measured_sample(plain: PlainRows, pipeline: Pipeline) -> pa.Table:
    types = plain.types
    columns, most = _columns(pipeline, types), -(-_MEASURED_ROWS // len(plain.files))
    latest = pipeline.time.latest(time.time_ns() // 1_000)
    parts: list[pa.Table] = []
    for file in plain.files:
        left = most
        for batch in batches_of(file, plain.form, plain.needed(columns)):
            rows = pa.Table.from_batches([batch.slice(0, left)])
            parts.append(plain.evaluated(rows, columns, [], latest))
            left -= rows.num_rows
            if left <= 0:
                break
    return pa.concat_tables(parts) if parts else pa.table({name: pa.nulls(0, types[name]) for name in columns} | {REASON: pa.nulls(0)})


def _of_rows(pipeline: Pipeline, rows: pa.Table, files: int) -> Measured:
    reason = rows.column(REASON)
    reasons = Counter({each["values"]: each["counts"] for each in reason.drop_null().value_counts().to_pylist()})
    axis, timed = (pipeline.time.column, pipeline.time.end), pc.invert(pc.is_in(reason, pa.array(OF_TIME)))
    readable = {}
    for name in _columns(pipeline, dict.fromkeys(rows.column_names)):
        known = pc.is_valid(rows.column(name))
        readable[name] = pc.sum(pc.and_(known, timed) if name in axis else known, min_count=0).as_py()
    return Measured(rows.num_rows, files, dict(reasons.most_common()), readable, _examples(pipeline, rows))


def _examples(pipeline: Pipeline, rows: pa.Table) -> list[str]:
    """Lines that could not be read, with their places; else times that could not."""
    if UNREAD in rows.column_names and rows.column(UNREAD).null_count < rows.num_rows:
        return [text for text in details_of(rows.column(UNREAD).unique().drop_null().slice(0, _EXAMPLES)) if text is not None]
    odd = rows.filter(pc.is_in(rows.column(REASON), pa.array(["bad_time", "time_out_of_range", "future_time"])))
    return [repr(str(value)[:_SHOWN]) for value in odd.column(pipeline.time.column).unique().slice(0, _EXAMPLES).to_pylist()]


def source_problems(pipeline: Pipeline) -> Iterator[Problem]:
    """Mismatches between the spec and the current columns of its source, read without a JVM."""
    try:
        yield from _misfits(pipeline)
    except (SourceSchemaError, SpecError) as err:
        field, colon, text = str(err).removeprefix(f"pipeline {pipeline.pipeline}: ").partition(": ")
        if not colon or not _FIELD.fullmatch(field):
            raise
        yield field, text


def _misfits(pipeline: Pipeline) -> Iterator[Problem]:
    pipeline = located(pipeline)
    if not is_located(pipeline.source):
        if pipeline.source is None:
            yield "source", "missing; --source compares the spec with it"
        else:
            yield "source.table", f"where {pipeline.source.place} lies is not recorded yet; `windowmill run` asks Spark's catalog"
        return
    if pipeline.sink is not None:
        runnable_of(pipeline)
    source = open_source(pipeline)
    refuse_own_results(pipeline, source)
    columns = Columns.of(source.schema_json)
    columns.check(pipeline, "the source", source.unread, source.untyped)
    types = Columns.of_source(source).arrow
    schema = Expressions.of(pipeline, types).schema
    yield from type_problems(pipeline, schema)
    check_strict(pipeline)
    parts = divide(pipeline, types)
    if parts.positions is not None:
        PositionState(parts.positions.pipeline, types, parts.positions.layout)
    if parts.rows is not None:
        StateLog(parts.rows.pipeline, types, parts.rows.pipeline.conditions(), shared=parts.rows.shared)


def looked_at(pipeline: Pipeline) -> tuple[dict[str, Any], list[str], list[Problem]]:
    pipeline = located(pipeline)
    opened = open_source(pipeline)
    seen = measured(pipeline, opened)
    wrong = None if seen is None else seen.problem(pipeline)
    columns = Columns.of_source(opened)
    is_date = columns.type_of(pipeline.time.column).typeName() == "date" or pipeline.time.column in opened.days
    note = shifted_dates(pipeline, is_date=True) if is_date else None
    lines = ["its rows can be read by Spark only; none was read" if seen is None else seen.describe(), *([] if note is None else [note])]
    steps = Columns.of(opened.schema_json).steps(pipeline)
    outside = {} if steps is None else refused_here(steps.outside)
    outside |= outside_by_field(pipeline, columns.in_conditions)
    found = {"rows": None if seen is None else seen.as_json(), "dates": note, "outside": outside}
    return found, lines, [] if wrong is None else [wrong]
