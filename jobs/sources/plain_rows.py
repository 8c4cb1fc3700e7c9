"""Reads few new rows in this process, from plain Parquet files, with the values that :mod:`.rows` gives in Spark.

Files are plain if they lie on this machine, hold exactly the rows of the source's version, and store each column that is read in a type
from which Arrow gives the values that Spark gives. Where one is not, or only Spark can evaluate the spec, Spark reads all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import reduce
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import IntegralType, TimestampType

from windowmill.jobs.conditions.duckdb import columns_of, evaluate
from windowmill.jobs.conditions.spark import every_condition
from windowmill.jobs.sources.base import AddedFile, PlainFile, Reading, SourceTable
from windowmill.jobs.sources.columns import FILE, REASON, ROW, VERSION, Columns
from windowmill.jobs.spark.parquet_parts import counts_days_as_arrow
from windowmill.windowing.axis import to_us
from windowmill.windowing.bounds import accepted_times
from windowmill.windowing.columnar.added_columns import TIME, UNTIL_OF
from windowmill.windowing.errors import SpecError, UnsupportedError
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.spec import Pipeline

#: Limit on the files, each of which is opened and examined before it is read.
_MOST_FILES = 256
#: Files from other engines than Spark may count the days of INT96 before this instant by the Julian calendar.
_INT96_AGREES_SINCE = to_us(datetime(1900, 1, 1, tzinfo=UTC))
#: Metadata of a column whose values Spark compares in another way, or fills in where a file lacks the column.
_CHANGED_BY_SPARK = ("__COLLATIONS", "EXISTS_DEFAULT")
_WHOLE, _DAY = re.compile(r"-?\d{1,18}"), re.compile(r"\d{4}-\d\d-\d\d")


class _NotPlainError(Exception):
    """A file or value that Spark must read."""


@dataclass(frozen=True)
class PlainRows:
    """The rows of a batch in plain files.

    Attributes
    ----------
    added
        For each of ``files``, what the source's log says of it.
    types
        Arrow types of the source's columns.
    fixed_lengths
        As :attr:`.Columns.fixed_lengths`.
    """

    pipeline: Pipeline
    files: Sequence[PlainFile]
    added: Sequence[AddedFile]
    types: Mapping[str, pa.DataType]
    fixed_lengths: Mapping[str, int]

    @classmethod
    def of(cls, pipeline: Pipeline, source: SourceTable, reading: Reading) -> PlainRows | None:
        """The rows of ``reading``, as far as can be told without opening the files; null if only Spark can read them."""
        columns, axis = Columns.of(source.schema_json), [pipeline.time.column, pipeline.time.end]
        # Texts and dates become instants by Spark's rules. A source that lacks the column is refused later.
        is_plain = all(
            name is None or (name in columns.struct.names and isinstance(columns.type_of(name), IntegralType | TimestampType))
            for name in axis
        )
        changed = any(key.startswith(_CHANGED_BY_SPARK) for field in columns.struct for key in field.metadata)
        # Spark compares texts of fixed length with each other and with constants as if both were padded.
        padded = {name.lower() for name in columns.fixed_lengths}
        compared = {name.lower() for condition in every_condition(pipeline) for name in columns_of(condition)} if padded else set()
        changed = changed or not padded.isdisjoint(compared)
        if not is_plain or changed or columns.taken is not None or len(reading.files) > _MOST_FILES:
            return None
        files = source.plain_files(reading)
        return None if files is None else cls(pipeline, files, reading.files, columns.arrow, columns.fixed_lengths)

    def read(self, columns: Sequence[str], conditions: Sequence[str], *, latest: int | None) -> pa.Table | None:
        """The rows in order of arrival; null if only Spark can read them.

        The table has ``columns``, for each of ``conditions`` its truth in a :func:`.condition_column`, and what :func:`.read_rows` adds.
        Event times after ``latest`` are not accepted; null for no bound.
        """
        every = every_condition(self.pipeline)
        try:
            needed = [*columns, *filter(None, (self.pipeline.time.column, self.pipeline.time.end)), *chain(*map(columns_of, every))]
            rows = self._stored(list(dict.fromkeys(needed)))
            truths = evaluate(every, rows)
        except (_NotPlainError, SpecError, UnsupportedError, OSError, pa.ArrowException):  # Spark reads them, or says what is wrong
            return None
        failed = reduce(pc.or_, (truth.failed for truth in truths.values()), pa.repeat(False, rows.num_rows))
        rows = self._timed(rows, failed, latest)
        for condition in conditions:
            rows = rows.append_column(condition_column(condition), pc.and_(truths[condition].holds, pc.is_null(rows.column(REASON))))
        wanted = self.pipeline.source.filter if self.pipeline.source is not None else None
        if wanted:
            # Rows on which the filter fails are kept for quarantine.
            rows = rows.filter(pc.or_(truths[wanted].holds, truths[wanted].failed))
        added = [FILE, ROW, VERSION, REASON, TIME, *([UNTIL_OF] if self.pipeline.time.end else []), *map(condition_column, conditions)]
        return rows.select([*added, *dict.fromkeys(columns)])

    def _stored(self, columns: Sequence[str]) -> pa.Table:
        if not self.types.keys() >= set(columns):  # Spark does not tell upper from lower case in a condition
            raise _NotPlainError(columns)
        return pa.concat_tables([self._own(index, columns) for index in range(len(self.files))])

    def _own(self, index: int, columns: Sequence[str]) -> pa.Table:
        """The ``columns`` of one file, with its index, the index of each row and the file's version."""
        file = self.files[index]
        with pq.ParquetFile(file.path, coerce_int96_timestamp_unit="us") as opened:
            if not counts_days_as_arrow(opened.metadata):
                raise _NotPlainError(file.path)
            n_rows, names = opened.metadata.num_rows, _names(opened, file, columns)
            stored = opened.read(columns=list(dict.fromkeys(names.values())), use_threads=False)
            kinds = map(opened.schema.column, range(len(opened.schema)))
            int96 = {column.name for column in kinds if column.physical_type == "INT96"}
        given: dict[str, pa.Array | pa.ChunkedArray] = {}
        for name in columns:
            kind = self.types[name]
            if name in names:
                given[name] = _as_spark_reads(stored.column(names[name]), kind, int96=names[name] in int96)
            else:
                given[name] = pa.repeat(_constant(file.constants.get(name), kind), n_rows)
            if name in self.fixed_lengths:
                given[name] = pc.utf8_rpad(given[name], self.fixed_lengths[name])
        own = {FILE: pa.repeat(pa.scalar(index, pa.int32()), n_rows), ROW: pa.array(np.arange(n_rows))}
        return pa.table(given | own | {VERSION: pa.repeat(pa.scalar(self.added[index].version, pa.int64()), n_rows)})

    def _timed(self, rows: pa.Table, failed: pa.Array, latest: int | None) -> pa.Table:
        """``rows`` with event time, end if events last, and the reason if a row is unusable, as :func:`.event_time` gives them.

        ``failed`` are the rows on which a condition cannot be evaluated.
        """
        end = self.pipeline.time.end
        time = _on_axis(rows.column(self.pipeline.time.column))
        until = time if end is None else _on_axis(rows.column(end))
        least, greatest = (pa.scalar(bound, pa.int64()) for bound in accepted_times(self.pipeline))
        within = [pc.and_(pc.greater_equal(at, least), pc.less_equal(at, greatest)) for at in (time, until)]
        reasons = {
            "bad_condition": failed,
            "null_time": pc.or_(pc.is_null(time), pc.is_null(until)),
            "time_out_of_range": pc.invert(pc.and_(*within)),
            "end_before_time": pc.less(until, time),
        }
        if latest is not None:
            reasons["future_time"] = pc.greater(time, pa.scalar(latest, pa.int64()))
        reason = pc.case_when(pc.make_struct(*map(_in_one_chunk, reasons.values()), field_names=list(reasons)), *map(pa.scalar, reasons))
        added = {TIME: time, REASON: reason} | ({} if end is None else {UNTIL_OF: until})
        for name, column in added.items():
            rows = rows.append_column(name, column)
        return rows


def _names(opened: pq.ParquetFile, file: PlainFile, columns: Sequence[str]) -> dict[str, str]:
    """The name in the file of each of ``columns`` that it stores."""
    there = opened.schema_arrow.names
    folded = [name.lower() for name in there]
    names = {}
    for column in columns:
        own = file.names.get(column)
        if own is None:
            continue
        # Spark does not tell upper from lower case; Arrow takes a dot for a step into a struct.
        if folded.count(own.lower()) > 1 or (own not in there and own.lower() in folded) or "." in own:
            raise _NotPlainError(own)
        if own in there:
            names[column] = own
    return names


def _as_spark_reads(column: pa.ChunkedArray, kind: pa.DataType, *, int96: bool) -> pa.ChunkedArray:
    """``column`` in the type ``kind``, whose values Spark gives for it."""
    stored = column.type
    if pa.types.is_nested(kind):
        raise _NotPlainError(kind)
    if int96:
        if kind != pa.timestamp("us", "UTC") or stored != pa.timestamp("us"):
            raise _NotPlainError(kind)
        least = pc.min(column.cast(pa.int64())).as_py()
        if least is not None and least < _INT96_AGREES_SINCE:
            raise _NotPlainError(kind)
        return column.cast(kind)
    if stored == kind:
        return column
    if pa.types.is_dictionary(stored):
        stored = stored.value_type
    # Arrow's own schema in the footer may name other forms of a text, and another zone for the same instants.
    texts = (pa.types.is_string(stored) or pa.types.is_large_string(stored) or pa.types.is_string_view(stored)) and pa.types.is_string(kind)
    instants = pa.types.is_timestamp(stored) and pa.types.is_timestamp(kind) and (stored.tz is None) == (kind.tz is None)
    if stored == kind or texts or (instants and stored.unit in ("ms", "us")):
        return column.cast(kind)
    raise _NotPlainError(kind)


def _constant(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """A partition value of the log in the type ``kind``."""
    if text is None or pa.types.is_string(kind):
        return pa.scalar(text, kind)
    if pa.types.is_integer(kind) and _WHOLE.fullmatch(text):
        return pa.scalar(int(text), kind)  # beyond the type's range Arrow raises
    if pa.types.is_date32(kind) and _DAY.fullmatch(text):
        try:
            return pa.scalar(date.fromisoformat(text), kind)
        except ValueError:
            pass
    raise _NotPlainError(text)


def _on_axis(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.int64())


def _in_one_chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
