"""State tables of partials and of live rows: each batch appends rows, once, and later batches read what they need.

*Partials.* A batch adds one row for each slice of a key that it touches; readers combine the rows of a slice. Nodes over slices are rows of
the same table. Of each open session of a key that it touches, a batch adds one row, which holds the whole session and supersedes earlier
ones.

*Live rows.* They are a log, in which the latest entry of a key or row counts (:mod:`windowmill.windowing.columnar.keyed`).

All parts of a pipeline share one table, with the columns of :func:`joint_schema`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from windowmill.checkpoints.delta_tables import newest
from windowmill.checkpoints.features import delta_rs_can_write, own_commit
from windowmill.checkpoints.quoting import quoted
from windowmill.checkpoints.state.reading import (
    EVERYTHING,
    NOTHING,
    WHOLE_BYTES,
    ColumnComparison,
    Either,
    OpenSessions,
    Present,
    ReadLimit,
    Wanted,
    Where,
    read_whole,
    reporting_damage,
    require_columns,
    rows_before,
    rows_of,
    rows_of_part,
    rows_of_spans,
)
from windowmill.checkpoints.stores import is_table, table_at
from windowmill.windowing.columnar.added_columns import (
    ARRIVAL,
    BATCH,
    BUCKET,
    CLOSED,
    DUE,
    FIRST,
    GAP,
    KIND,
    LAST,
    LEVEL,
    NUMBER_OF,
    REACHING,
    SLICE,
    SUM,
)
from windowmill.windowing.columnar.hashes import KeysOfShare, RowCheck
from windowmill.windowing.columnar.keyed import GONE, KEY_ENTRY
from windowmill.windowing.columnar.known_spans import span_columns
from windowmill.windowing.columnar.positions import NODE_LEVEL, SEQUENCE
from windowmill.windowing.columnar.rows import ROW_KEY, codes_of
from windowmill.windowing.errors import SpecError
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import AFTER

if TYPE_CHECKING:
    from windowmill.windowing.kernels.combine import Bools

#: Commit properties of a rewrite of existing rows.
REWRITE = own_commit("maintenance")
#: A batch may read a table whole; up to this many superseded rows, or this many files, that is cheap.
FEW_ENTRIES, FEW_FILES = 100_000, 64
#: Size of the files in bytes up to which a table is compacted in memory without a request.
COMPACTED_BYTES = 1 << 30
#: Limits on rows and bytes of a file into which successive batches' slices are merged: the merge sorts them in memory.
SORTED_ROWS, SORTED_BYTES = 2_000_000, 64 << 20
#: Column of a merge in addition to those of the state, quoted: whether a later batch has superseded the row.
_SUPERSEDED = '"_ superseded"'
#: Column of :func:`latest_entries` in addition to those of the state, quoted; no key column has such a name.
_AGE = '"_ age"'
_BUCKET = pa.field(BUCKET, pa.int32())
#: Columns that separate the parts' rows, or by which rows are read: first, because Delta keeps statistics of the first columns only.
_LEADING = (BUCKET, KIND, SEQUENCE, SLICE, LEVEL, REACHING, CLOSED, GAP, NODE_LEVEL, FIRST, LAST, BATCH)


class StateTable:
    """A table to which batches append rows that never change; readers take ``only`` the rows of these keys, if given."""

    def __init__(self, path: str, schema: pa.Schema, check: RowCheck | None = None, only: KeysOfShare | None = None) -> None:
        self._path, self._schema, self._only = path, schema, only
        self._check = RowCheck(path) if check is None else check
        self._exists = is_table(path)

    def _rows(
        self,
        table: DeltaTable,
        files: Sequence[Mapping[str, Any]],
        schema: pa.Schema,
        wanted: Where,
        most_rows: int,
        may_lack: Collection[str] = (),
        *,
        checked: Where | None = None,
    ) -> pa.Table | None:
        """The ``wanted`` rows of a table of these ``files``, read by this process; none if there are more than ``most_rows``.

        Columns that it ``may_lack`` are null there. ``checked`` has the rows read verified: of a table read whole these are verified before
        the ``wanted`` ones are chosen, which damage could hide. Null leaves verifying to the caller.
        """
        if self._only is not None:
            files = [file for file in files if self._only.may_be_in(file)]
        whole = sum(file["size_bytes"] for file in files) <= WHOLE_BYTES
        if whole:
            rows = self._own(read_whole(table, files, schema, (wanted if checked is None else checked).expression, may_lack=may_lack))
        else:
            rows = self._queried(table, schema, wanted.sql, most_rows, may_lack)
        if checked is not None:
            self._check.verify(rows)
            rows = rows.filter(wanted.expression) if whole else rows
        return None if rows.num_rows > most_rows else rows

    def _queried(self, table: DeltaTable, schema: pa.Schema, where: str, most_rows: int, may_lack: Collection[str]) -> pa.Table:
        """The rows for which the SQL condition ``where`` holds; stops soon after ``most_rows`` rows."""
        there = pa.schema(table.schema().to_arrow()).names
        require_columns(self._path, [*there, *may_lack], schema.names)
        if self._only is not None and BUCKET in there:
            low, high = self._only.share.stored
            where = f"({where}) AND {BUCKET} BETWEEN {low} AND {high}"
        names = ", ".join(quoted(name) if name in there else f"NULL AS {quoted(name)}" for name in schema.names)
        reader = pa.RecordBatchReader.from_stream(
            QueryBuilder().register("state", table).execute(f"SELECT {names} FROM state WHERE {where}")
        )
        found, n_rows = [schema.empty_table()], 0
        for batch in reader:
            found.append(self._own(pa.Table.from_batches([batch]).cast(schema)))
            n_rows += len(found[-1])
            if n_rows > most_rows:
                break
        return pa.concat_tables(found)

    def _own(self, rows: pa.Table) -> pa.Table:
        return rows if self._only is None else self._only.rows(rows)


def order_of(columns: Sequence[str]) -> list[str]:
    """The columns by which rows of a table with these ``columns`` are sorted.

    Rows that are read together are then stored together, so statistics exclude most files and pages from a read of few rows.
    """
    return [name for name in (KIND, LEVEL, NODE_LEVEL, REACHING, SLICE, LAST, BUCKET) if name in columns]


def order_in_batches(columns: Sequence[str]) -> list[str]:
    """As :func:`order_of`, for the files of a batch: none where no rows are read by kind, level or family of slices."""
    return order_of(columns) if {KIND, LEVEL, NODE_LEVEL, REACHING} & set(columns) else []


def files_of(table: DeltaTable) -> list[dict[str, Any]]:
    """The Delta log's entry of each file of ``table``: size, number of rows and statistics. Reads no data file."""
    return list(pa.table(table.get_add_actions(flatten=True)).to_pylist())


def batches_of(file: Mapping[str, Any]) -> tuple[int, int]:
    """First and last batch with rows in ``file``; the whole range if there are no statistics."""
    low, high = file.get(f"min.{BATCH}"), file.get(f"max.{BATCH}")
    return (0, (1 << 63) - 1) if low is None or high is None else (low, high)


@dataclass(frozen=True)
class BatchFiles:
    """Successive batches, from ``first`` through ``last``, and the files that hold their rows."""

    first: int
    last: int
    files: Sequence[Mapping[str, Any]]

    def __add__(self, other: BatchFiles) -> BatchFiles:
        return BatchFiles(min(self.first, other.first), max(self.last, other.last), [*self.files, *other.files])

    @property
    def rows(self) -> int:
        return sum(int(file["num_records"]) for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(int(file["size_bytes"]) for file in self.files)


def by_batches(files: Sequence[Mapping[str, Any]]) -> list[BatchFiles]:
    """``files`` in groups of successive batches, oldest first; no batch has files in two groups."""
    groups: list[BatchFiles] = []
    for each in sorted((BatchFiles(*batches_of(file), [file]) for file in files), key=lambda group: (group.first, group.last)):
        if groups and each.first <= groups[-1].last:
            groups[-1] += each
        else:
            groups.append(each)
    return groups


def number_of_rows(table: DeltaTable) -> int:
    return sum(file["num_records"] for file in files_of(table))


def is_overgrown(path: str) -> bool:
    """Whether the table at ``path`` has grown enough since its last compaction to be compacted again. Reads only the Delta log.

    It has if the rows appended since outnumber those that the compaction left by more than ``FEW_ENTRIES``. So compaction costs
    amortised constant time per row. A row supersedes at most one older row, so at least half of the rows read are live, apart from
    ``FEW_ENTRIES``.
    """
    files = files_of(table_at(path))
    spans = [(file.get(f"min.{BATCH}"), file.get(f"max.{BATCH}")) for file in files]
    first = min((low for low, _ in spans if low is not None), default=None)
    # A compacted file spans several batches. The first batch supersedes nothing.
    left = sum(file["num_records"] for file, (low, high) in zip(files, spans, strict=True) if low == first or low != high)
    total = sum(file["num_records"] for file in files)
    return (total - left > left + FEW_ENTRIES or len(files) > FEW_FILES) and sum(file["size_bytes"] for file in files) <= COMPACTED_BYTES


def is_scattered(path: str) -> bool:
    """Whether a batch that looks for rows in all files of the table at ``path`` should merge them. Reads only the Delta log."""
    files = files_of(table_at(path))
    return len(files) > FEW_FILES and sum(file["size_bytes"] for file in files) <= COMPACTED_BYTES


def slice_schema(
    keys: dict[str, pa.DataType],
    layout: Layout,
    *,
    nodes: bool = False,
    known: Sequence[str] = (),
    intervals: bool = False,
    revises: bool = False,
) -> pa.Schema:
    """Schema of slices: keys, start of the slice, ``_closed``, batch, partials.

    Only windows that end after ``_closed`` count the slice; null means all. ``nodes`` adds ``_level``, which is 0 for slices; other rows
    are nodes, see :mod:`windowmill.windowing.grids`. ``known`` adds the spans of the windows of these names, in rows of their own.
    ``intervals`` adds ``_reaching``, which is 1 for events that began before the slice and last into it, and 0 for others. ``revises`` adds
    ``_arrival``, the moment at which the late rows of the slice arrived; null for rows in time.
    """
    own = [SLICE, *([LEVEL] if nodes else []), *([REACHING] if intervals else []), CLOSED, *([ARRIVAL] if revises else [])]
    own += [*span_columns(known), BATCH]
    return pa.schema([*keys.items(), *((name, pa.int64()) for name in own), *layout.stored_columns])


class PartialTable(StateTable):
    """The table at ``path`` of one pipeline's slices and sessions; it reads and appends the columns of ``schema``."""

    def read(self, wanted: Wanted, *, before_batch: int, limit: ReadLimit) -> pa.Table | None:
        """The ``wanted`` rows of the batches before ``before_batch``, verified; none if they exceed ``limit``.

        A failed attempt may have left rows of ``before_batch`` itself. They are not read; the retry computes the same rows.
        """
        if not self._exists:
            return self._schema.empty_table()
        with reporting_damage(self._path):
            table = newest(self._path)
            files = files_of(table)
            where = rows_of(wanted)
            if limit.is_exceeded(wanted, [file for file in files if where.may_hold(file)]):
                return None
            checked = rows_of_part(wanted) if SUM in self._schema.names else None
            rows = self._rows(table, files, self._schema, rows_before(before_batch) & where, limit.rows, checked=checked)
            return rows if rows is None or checked is None else rows.drop_columns([SUM])


def has_nodes(path: str) -> bool:
    """Whether the state table at ``path`` has the column of nodes; batches that do not replace the whole state do not add it."""
    return LEVEL in table_at(path).schema().to_arrow().names


@dataclass(frozen=True)
class NeededRows:
    """The rows that a later batch may read."""

    #: Which they are.
    where: Where
    #: Rows of the same parts that no batch reads any more.
    expired: Where = NOTHING
    #: The SQL expression that finds, of the needed rows, those that later batches have superseded.
    superseded: str = "false"

    @classmethod
    def slices_from(cls, start: int) -> NeededRows:
        """Slices and nodes that start at or after ``start``."""
        return cls(ColumnComparison(SLICE, ">=", start), ColumnComparison(SLICE, "<", start))

    @classmethod
    def sessions(cls, wanted: OpenSessions) -> NeededRows:
        closed = (ColumnComparison(GAP, "=", gap) & ColumnComparison(LAST, "<=", wanted.last_after(gap)) for gap in wanted.gaps)
        return cls(rows_of(wanted), Either(tuple(closed)))

    @classmethod
    def spans(cls, keys: Sequence[str], columns: Sequence[str], before_batch: int) -> NeededRows:
        """For each key the latest spans of the batches before ``before_batch``; those of that batch, which may have failed, stay too."""
        span = rows_of_spans(columns)
        earlier = span & rows_before(before_batch)
        by = ", ".join([*map(quoted, keys), f"({earlier.sql} IS TRUE)"])
        return cls(span, superseded=f"({earlier.sql} IS TRUE AND row_number() OVER (PARTITION BY {by} ORDER BY {BATCH} DESC) > 1)")

    @classmethod
    def all_but_old_spans(cls, keys: Sequence[str], columns: Sequence[str], before_batch: int) -> NeededRows:
        """Everything except the spans that are superseded, by :meth:`spans`."""
        return replace(cls.spans(keys, columns, before_batch), where=EVERYTHING)

    def __or__(self, other: NeededRows) -> NeededRows:
        superseded = f"{self.superseded} OR {other.superseded}"
        return NeededRows(self.where | other.where, self.expired | other.expired, superseded)

    def latest_of(self, rows: str) -> str:
        """What follows FROM in a query, up to a condition, for the ``rows`` (a table and a condition) that are not superseded."""
        return f"(SELECT *, {self.superseded} AS {_SUPERSEDED} FROM {rows}) WHERE NOT {_SUPERSEDED}"


def compact_partials(path: str, needed: NeededRows | None) -> int:
    """Merge the files of successive batches at ``path`` and drop all but ``needed`` rows, if given; returns their number. No JVM.

    A merged file holds at most ``SORTED_ROWS`` rows and ``SORTED_BYTES`` bytes, sorted as they are read. Only successive batches share
    a file, so its statistics span a short stretch of the axis. The files of a larger batch are not merged, only stripped of dropped rows.
    A table with features that delta-rs cannot write is left as it is.
    """
    if not delta_rs_can_write(path):
        return 0
    before = number_of_rows(table_at(path))
    for group in _merged(files_of(table_at(path))):
        table = table_at(path)
        within = f"{BATCH} >= {group.first} AND {BATCH} <= {group.last}"
        expired = needed is not None and any(map(needed.expired.may_hold, group.files))
        if not _fit(group):
            if needed is not None and expired:
                table.delete(f"{within} AND ({needed.where.sql}) IS NOT TRUE", commit_properties=REWRITE)
        elif expired or len(group.files) > 1:
            columns = pa.schema(table.schema().to_arrow()).names
            rows = f"state WHERE {within}"
            if needed is not None:
                rows = f"{needed.latest_of(rows)} AND {needed.where.sql}"
            query = f"SELECT {', '.join(map(quoted, columns))} FROM {rows} ORDER BY {', '.join(order_of(columns))}"
            merged = QueryBuilder().register("state", table).execute(query)
            # Write to the version that was read: otherwise rows that another writer has appended since would be lost.
            write_deltalake(table, merged, mode="overwrite", predicate=within, commit_properties=REWRITE)
    return before - number_of_rows(table_at(path))


def _merged(files: Sequence[Mapping[str, Any]]) -> list[BatchFiles]:
    """``files`` in groups of successive batches, as many of them in a group as fit into one file."""
    merged: list[BatchFiles] = []
    for each in by_batches(files):
        if merged and _fit(merged[-1] + each):
            merged[-1] += each
        else:
            merged.append(each)
    return merged


def _fit(group: BatchFiles) -> bool:
    return group.rows <= SORTED_ROWS and group.bytes <= SORTED_BYTES


class LogTable(StateTable):
    """The log of one pipeline's live rows at ``path``, which may lack columns until a batch adds them.

    See :mod:`windowmill.windowing.columnar.keyed`.
    """

    def __init__(
        self,
        path: str,
        schema: pa.Schema,
        check: RowCheck | None = None,
        only: KeysOfShare | None = None,
        *,
        may_lack: Collection[str] = (),
    ) -> None:
        super().__init__(path, schema, check, only)
        self._may_lack = may_lack

    def read(self, touched: pa.Table, keys: Mapping[str, str], *, before_batch: int, watermark: int, limit: ReadLimit) -> pa.Table | None:
        """All entries of the keys that are in ``touched`` or due by ``watermark``, as of the batches before ``before_batch``.

        They are verified, and without their checksums; none if the log exceeds ``limit``. A run reads the whole log once. ``touched`` are
        new rows with the log's columns.
        """
        if not self._exists:
            return self._schema.empty_table()
        with reporting_damage(self._path):
            table = newest(self._path)
            files, names = files_of(table), pa.schema(table.schema().to_arrow()).names
            # Files of other parts have only nulls in the log's columns.
            if limit.is_exceeded_by([file for file in files if file.get(f"null_count.{KIND}") != file["num_records"]]):
                return None
            # A column that entries do not have separates them from rows of positions; files of a spec without positions lack it.
            schema = self._schema.append(pa.field(SEQUENCE, pa.string())) if SEQUENCE in names else self._schema
            log = self._rows(table, files, schema, entries_before(names, before_batch), limit.rows, (*self._may_lack, SEQUENCE))
            if log is None:
                return None
            entries = log.select(self._schema.names)
            # Before any is left out: a damaged key or instant would hide a key that is due.
            self._check.verify(entries)
            return of_keys(entries.drop_columns([SUM]), touched, list(keys.values()), watermark)


def own_entries(*, beside_positions: bool) -> Where:
    """The entries of the log; in a table that also has positions, whose rows have a kind, too, those without a sequence."""
    return Present(KIND) & Present(SEQUENCE, present=False) if beside_positions else Present(KIND)


def entries_before(columns: Collection[str], batch: int) -> Where:
    """The entries of the log of the batches before ``batch``, in a table with these ``columns``."""
    return rows_before(batch) & own_entries(beside_positions=SEQUENCE in columns)


def of_keys(log: pa.Table, touched: pa.Table, keys: Sequence[str], watermark: int) -> pa.Table:
    """The entries of the keys that are in ``touched`` or due by ``watermark``; O(n) in entries and rows."""
    if not keys:
        return log
    codes, n_keys = codes_of([log, touched], keys)
    marks = log.append_column(ROW_KEY, pa.array(codes[: log.num_rows])).filter(pc.equal(log.column(KIND), KEY_ENTRY)).sort_by(BATCH)
    due = np.full(n_keys, AFTER, np.int64)
    # The last value assigned counts: that of a key's latest entry.
    due[marks.column(ROW_KEY).to_numpy()] = marks.column(DUE).to_numpy()
    wanted = due <= watermark
    wanted[codes[log.num_rows :]] = True
    return log.filter(pa.array(wanted[codes[: log.num_rows]]))


def is_log(path: str) -> bool:
    """Whether the state table at ``path`` is a log of live rows and nothing else."""
    names = table_at(path).schema().to_arrow().names
    return KIND in names and not {SEQUENCE, SLICE, GAP} & set(names)


def are_latest(log: pa.Table, keys: Sequence[str]) -> Bools:
    """Mask of the entries of ``log``, in order of batches, that :func:`latest_entries` chooses; O(n log n)."""
    kind = log.column(KIND)
    codes = codes_of([log], keys)[0]
    number = pc.if_else(pc.equal(kind, KEY_ENTRY), -1, log.column(NUMBER_OF)).to_numpy()
    order = np.lexsort((number, codes))  # stable, so the last of equals is the latest
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = (codes[order][1:] != codes[order][:-1]) | (number[order][1:] != number[order][:-1])
    found = np.zeros(len(order), np.bool_)
    found[order[is_last]] = True
    return np.asarray(found & pc.not_equal(kind, GONE).to_numpy(), np.bool_)


def latest_entries(log: str, keys: Sequence[str], where: str) -> str:
    """The SQL query for the latest entry of each key and live row, among the entries of ``log`` that satisfy ``where``."""
    # Row numbers identify rows, and key columns identify keys: each partition of the window holds the entries of one row or key.
    by = ", ".join([f"CASE WHEN {KIND} = '{KEY_ENTRY}' THEN -1 ELSE {NUMBER_OF} END", *map(quoted, keys)])
    ages = f"SELECT *, row_number() OVER (PARTITION BY {by} ORDER BY {BATCH} DESC) AS {_AGE} FROM {log} WHERE {where}"
    return f"SELECT * FROM ({ages}) WHERE {_AGE} = 1 AND {KIND} <> '{GONE}'"


def joint_schema(pipeline: Pipeline, parts: Sequence[pa.Schema]) -> pa.Schema:
    """Schema of the state table of a pipeline's ``parts``: keys and their bucket, leading columns, spans, others, checksum.

    Raises ``SpecError`` if a column would mean different things, or differ from another in case alone.
    """
    n_keys = len(pipeline.keys)
    # Keys are the columns before the first of these; those of live rows alone have names of their own.
    stored = [field.name for field in parts[0]][:n_keys] if len(parts) == 1 else pipeline.keys
    clash = next((key for key in stored if key.lower() in (*_LEADING, SUM)), None)
    if clash is not None:
        raise SpecError(f"pipeline {pipeline.pipeline}: keys: {clash!r} is taken by a column of the state; rename the column in the source")
    if len(parts) == 1:
        own = list(parts[0])
        return pa.schema([*own[:n_keys], *([_BUCKET] if n_keys else []), *own[n_keys:]])
    found: dict[str, pa.Field] = {}
    spans = span_columns([window.name for window in pipeline.windows if window.fills_gaps])
    for field in (field for schema in parts for field in schema):
        same = found.setdefault(field.name.lower(), field)
        # A column of the source that live rows store may be named like one of spans.
        if (same.name, same.type) != (field.name, field.type) or (same is not field and field.name in spans):
            raise SpecError(
                f"pipeline {pipeline.pipeline}: two columns of the state would be named {field.name!r}; rename a window, or a "
                "column in the source"
            )
    if n_keys:
        found[BUCKET] = _BUCKET
    first = [name for name in (*map(str.lower, pipeline.keys), *_LEADING, *spans) if name in found]
    rest = [name for name in found if name not in (*first, SUM)]
    return pa.schema([found[name] for name in (*first, *rest, SUM)])


def keys_of(schema: pa.Schema) -> list[str]:
    """The key columns of a state table: they come first. Columns of parts that a changed spec has added come last."""
    return list(takewhile(lambda name: name not in (*_LEADING, SUM), schema.names))
