"""The one state table of a pipeline: its columns, which part each row belongs to, how it is compacted, and how a batch replaces it.

Each batch appends rows, once, and later batches read what they need. All parts share one table, with the columns of :func:`joint_schema`.
A row belongs to one part of the pipeline. It has the columns of that part and is null in all others, so its checksum depends on the columns
of its part alone.

*Partials.* A batch adds one row for each slice of a key that it touches; readers combine the rows of a slice. Nodes over slices are rows of
the same table. For each open session of a key that it touches, a batch adds one row, which holds the whole session and supersedes its
earlier rows.

*Live rows.* They are kept in a log, in which the latest entry of a key or row counts (:mod:`windowmill.windowing.columnar.keyed`).

Files of compacted rows over positions are large; :mod:`windowmill.checkpoints.state.readers` reads few of their row groups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import ColumnProperties, DeltaTable, QueryBuilder, WriterProperties, write_deltalake

from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.data_files import DataFile, FileWriter
from windowmill.checkpoints.delta_tables import delta_rs_can_write, files_of, newest, own_commit
from windowmill.checkpoints.quoting import quoted
from windowmill.checkpoints.state.reading import (
    EVERYTHING,
    NOTHING,
    ColumnComparison,
    Either,
    OpenSessions,
    Present,
    Where,
    footer,
    read_file,
    reporting_damage,
    rows_before,
    rows_of,
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
    HEAD,
    KIND,
    LAST,
    LEVEL,
    LIVE,
    NODE_LEVEL,
    NUMBER_OF,
    POSITION,
    REACHING,
    ROW_KEY,
    SEQUENCE,
    SLICE,
    SUM,
    THROUGH,
    TIME,
)
from windowmill.windowing.columnar.keyed import GONE, KEY_ENTRY
from windowmill.windowing.columnar.known_spans import span_columns
from windowmill.windowing.columnar.positions import KEY_ROW, NODE, WAITING
from windowmill.windowing.columnar.rows import are_among, codes_of
from windowmill.windowing.errors import SpecError
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.lift import int64_of
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import AFTER, BEFORE, COMMIT_SHIFT

if TYPE_CHECKING:
    from windowmill.windowing.kernels.combine import Bools, Ints
    from windowmill.windowing.layouts import StateLayout

#: Commit properties of a rewrite of existing rows.
REWRITE = own_commit("maintenance")
#: Reading a table whole is cheap up to so many superseded rows, or so many files.
FEW_ENTRIES, FEW_FILES = 100_000, 64
#: Greatest size of a table's files, in bytes, at which it is compacted in memory without being asked to.
COMPACTED_BYTES = 1 << 30
#: Limits on rows and bytes of a file into which successive batches' slices are merged: the merge sorts them in memory.
SORTED_ROWS, SORTED_BYTES = 2_000_000, 64 << 20
#: Number of levels whose nodes are stored together, and rows and bytes of a row group. So few row groups hold the nodes at both ends of the
#: windows of keys at similar positions.
NEAR_LEVELS, GROUP_ROWS, GROUP_BYTES = 6, 8_192, 1 << 20
#: Files of one batch with more rows than this are sorted for searches.
LAID_OUT_ROWS = 100_000
#: Additional column of a merge, quoted: whether a later batch has superseded the row.
_SUPERSEDED = '"_ superseded"'
#: Additional columns of :func:`latest_entries` and :func:`needed_rows`, quoted; no key column has such a name.
_AGE, _NEWEST, _LEAST, _PASSED, _VERSION = '"_ age"', '"_ newest"', '"_ head"', '"_ through"', '"_ version"'
_BUCKET = pa.field(BUCKET, pa.int32())
#: Columns that separate the parts' rows, or that reads filter by. They come first: Delta keeps statistics of the first columns only.
_LEADING = (BUCKET, KIND, SEQUENCE, SLICE, LEVEL, REACHING, CLOSED, GAP, NODE_LEVEL, FIRST, LAST, BATCH)


def order_of(columns: Sequence[str], *, of_batch: bool = False) -> list[str]:
    """The columns by which rows of a table with these ``columns`` are sorted.

    Rows that are read together are then stored together, so statistics exclude most files and pages from a read of few rows. The files of a
    batch (``of_batch``) are not sorted if no read filters by kind, level or family of slices.
    """
    if of_batch and not {KIND, LEVEL, NODE_LEVEL, REACHING} & set(columns):
        return []
    return [name for name in (KIND, LEVEL, NODE_LEVEL, REACHING, SLICE, LAST, BUCKET) if name in columns]


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

    It has if the rows appended since outnumber the compacted ones by more than ``FEW_ENTRIES``, or if it has more than ``FEW_FILES`` files.
    So compaction costs amortised constant time per row. A row supersedes at most one older row, so at least half of the rows read are live,
    apart from ``FEW_ENTRIES``.
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


def has_nodes(path: str) -> bool:
    """Whether the state table at ``path`` has the column of nodes; batches that do not replace the whole state do not add it."""
    return LEVEL in table_at(path).schema().to_arrow().names


@dataclass(frozen=True)
class NeededRows:
    """The rows that a later batch may read."""

    #: Selects them.
    where: Where
    #: Rows of the same parts that no batch reads any more.
    expired: Where = NOTHING
    #: SQL condition: a later batch has superseded the needed row.
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
        """Each key's latest spans from batches before ``before_batch``; spans of that batch itself, which may have failed, stay, too."""
        span = rows_of_spans(columns)
        earlier = span & rows_before(before_batch)
        by = ", ".join([*map(quoted, keys), f"({earlier.sql} IS TRUE)"])
        return cls(span, superseded=f"({earlier.sql} IS TRUE AND row_number() OVER (PARTITION BY {by} ORDER BY {BATCH} DESC) > 1)")

    @classmethod
    def all_but_old_spans(cls, keys: Sequence[str], columns: Sequence[str], before_batch: int) -> NeededRows:
        """All rows except those of spans that :meth:`spans` finds superseded."""
        return replace(cls.spans(keys, columns, before_batch), where=EVERYTHING)

    def __or__(self, other: NeededRows) -> NeededRows:
        superseded = f"{self.superseded} OR {other.superseded}"
        return NeededRows(self.where | other.where, self.expired | other.expired, superseded)

    def latest_of(self, rows: str) -> str:
        """SQL after FROM for those of ``rows`` (a table and a condition) that are not superseded; AND and a condition may follow."""
        return f"(SELECT *, {self.superseded} AS {_SUPERSEDED} FROM {rows}) WHERE NOT {_SUPERSEDED}"


def compact_partials(path: str, needed: NeededRows | None) -> int:
    """Merge the files of successive batches at ``path``, dropping all but ``needed`` rows, if given; returns the number dropped. No JVM.

    A merged file holds at most ``SORTED_ROWS`` rows and ``SORTED_BYTES`` bytes, sorted as they are read. Only successive batches share
    a file, so its statistics span a short stretch of the axis. The files of a larger batch only lose dropped rows. A table with features
    that delta-rs cannot write is left as it is.
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


def own_entries(*, with_positions: bool) -> Where:
    """The entries of the log; in a table that also has rows over positions, which have a kind, too, the rows without a sequence."""
    return Present(KIND) & Present(SEQUENCE, present=False) if with_positions else Present(KIND)


def entries_before(columns: Collection[str], batch: int) -> Where:
    """The entries of the log from batches before ``batch``, in a table with these ``columns``."""
    return rows_before(batch) & own_entries(with_positions=SEQUENCE in columns)


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
    if len(parts) == 1:
        own = list(parts[0])
        return pa.schema([*own[:n_keys], *([_BUCKET] if n_keys else []), *own[n_keys:]])
    found: dict[str, pa.Field] = {}
    spans = span_columns([window.name for window in pipeline.windows if window.fills_gaps])
    for field in (field for schema in parts for field in schema):
        same = found.setdefault(field.name.lower(), field)
        # Live rows may store a column of the source whose name is that of a column of spans.
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


def overgrown_from(path: str, *, lay_out: bool = False) -> int | None:
    """The first batch of the newest files at ``path`` that are worth merging; null if none are.

    Reads only the Delta log, and with ``lay_out`` footers of large files.

    A file is merged with all newer ones if these together have at least half as many rows. So each row is rewritten a logarithmic number of
    times, and at most about half of the rows of an old file are superseded. With ``lay_out`` a large file of one batch is also rewritten in
    the order in which it is searched.
    """
    table = table_at(path)
    groups = by_batches(files_of(table))
    many = sum(len(group.files) for group in groups) > FEW_FILES
    first, taken = len(groups), BatchFiles(0, 0, [])
    while first and (taken + groups[first - 1]).bytes <= COMPACTED_BYTES:
        outside = sum(len(group.files) for group in groups[:first])
        if taken.files and groups[first - 1].rows > 2 * taken.rows and not (many and outside > FEW_FILES // 2):
            break
        first, taken = first - 1, taken + groups[first - 1]
    if len(taken.files) > 1 and (many or taken.rows > 2 * groups[first].rows + FEW_ENTRIES):
        return groups[first].first
    if lay_out:
        unsorted = (number for number, group in enumerate(groups) if any(_is_unsorted(table, file) for file in group.files))
        from_here = next(unsorted, len(groups))
        if from_here < len(groups) and sum(group.bytes for group in groups[from_here:]) <= COMPACTED_BYTES:
            return groups[from_here].first
    return None


def _is_unsorted(table: DeltaTable, file: Mapping[str, Any]) -> bool:
    """Whether ``file`` is from one large batch and has large row groups, so that a search reads more of it than it needs."""
    first, last = batches_of(file)
    if first != last or file["num_records"] <= LAID_OUT_ROWS:
        return False
    metadata = footer(table, file)
    return bool(metadata.num_rows > 4 * GROUP_ROWS * metadata.num_row_groups)


def search_order(keys: Sequence[str], *, live: bool) -> list[str]:
    """The sort order in SQL of rows that are searched: by groups of levels, then by stretches of positions, then by keys.

    Rows of other parts have null for all of these. ``live`` is as for :func:`needed_rows`.
    """
    of_keys = [f"CASE WHEN {SEQUENCE} IS NOT NULL THEN {quoted(key)} END" for key in keys]
    levels, stretch = f"{NODE_LEVEL} / {NEAR_LEVELS}", f"{POSITION} >> (({NODE_LEVEL} / {NEAR_LEVELS} + 1) * {NEAR_LEVELS})"
    if live:
        # Windows that evict by a delta read all inner nodes, and any leaf may leave: so inner nodes form one group.
        levels = f"CASE WHEN {LIVE} IS NULL THEN {levels} WHEN {NODE_LEVEL} > 0 THEN 1 ELSE 0 END"
        stretch = f"CASE WHEN {LIVE} IS NULL THEN {stretch} END"
    order = [f"CASE WHEN {SEQUENCE} IS NOT NULL THEN {each} END" for each in (levels, stretch)]
    return [KIND, SEQUENCE, *order, *of_keys, POSITION, NODE_LEVEL]


def needed_rows(state: str, keys: Sequence[str], where: str, *, live: bool, removes: bool = True) -> str:
    """The SQL query for those rows of ``state`` that satisfy ``where`` and that a later batch may need.

    ``live`` says that the table has windows that evict by a delta, whose nodes supersede one another; ``removes``, that nodes without live
    tuples are not needed, because no older rows that they supersede are left.
    """
    of_key = [*keys, SEQUENCE]
    renamed = [f'"_ key {number}"' for number in range(len(of_key))]
    named = ", ".join(f"{quoted(name)} AS {alias}" for name, alias in zip(of_key, renamed, strict=True))
    age = f"row_number() OVER (PARTITION BY {', '.join(map(quoted, of_key))} ORDER BY {BATCH} DESC) AS {_AGE}"
    known = f"SELECT {named}, {BATCH} AS {_NEWEST}, {HEAD} AS {_LEAST}, {THROUGH} AS {_PASSED}, {age} FROM {state}"
    newest = f"SELECT * FROM ({known} WHERE {KIND} = '{KEY_ROW}' AND {where}) WHERE {_AGE} = 1"
    same = " AND ".join(f"(s.{quoted(name)} IS NOT DISTINCT FROM n.{alias})" for name, alias in zip(of_key, renamed, strict=True))
    # The rows of a key that lacks its ``key`` row are kept, so that the next batch of the key reports the damage.
    nodes, rows = f"{POSITION} >= {_LEAST}", f"SELECT * FROM {state} WHERE {where}"
    if live:
        of_node = ", ".join([*map(quoted, of_key), KIND, NODE_LEVEL, POSITION])
        rows = f"SELECT *, row_number() OVER (PARTITION BY {of_node} ORDER BY {BATCH} DESC) AS {_VERSION} FROM {state} WHERE {where}"
        is_latest = f"{_VERSION} = 1 AND {POSITION} + (1 << {NODE_LEVEL}) > {_LEAST}" + (f" AND {LIVE} > 0" if removes else "")
        nodes = f"CASE WHEN {LIVE} IS NULL THEN {nodes} ELSE {is_latest} END"
    kinds = {
        KEY_ROW: f"{BATCH} = {_NEWEST}",
        WAITING: f"({TIME} >= {_PASSED} OR {_PASSED} IS NULL)",
        NODE: f"({nodes} OR {_LEAST} IS NULL)",
    }
    chosen = " OR ".join(f"({KIND} = '{kind}' AND {condition})" for kind, condition in kinds.items())
    return f"SELECT s.* FROM ({rows}) AS s LEFT JOIN ({newest}) AS n ON {same} WHERE {chosen}"


def are_needed(rows: pa.Table, keys: Sequence[str]) -> Bools:
    """Mask of those of ``rows``, in order of batches, that :func:`needed_rows` chooses if no rows are left out; O(n log n)."""
    codes, n_keys = codes_of([rows], [*keys, SEQUENCE])
    kind = rows.column(KIND)
    of_key, of_node = (np.flatnonzero(pc.equal(kind, each).to_numpy()) for each in (KEY_ROW, NODE))
    newest, head, through = (np.full(n_keys, BEFORE, np.int64) for _ in range(3))
    # The last value assigned counts: that of a key's latest row.
    newest[codes[of_key]] = of_key
    for found, column in ((head, HEAD), (through, THROUGH)):
        found[codes[of_key]] = _integers(rows, column)[of_key]
    needed = np.where(pc.equal(kind, WAITING).to_numpy(), _integers(rows, TIME) >= through[codes], False)
    needed[of_key] = newest[codes[of_key]] == of_key
    head, begin = head[codes[of_node]], _integers(rows, POSITION)[of_node]
    if LIVE not in rows.column_names:
        needed[of_node] = begin >= head
        return np.asarray(needed, np.bool_)
    nodes = rows.take(pa.array(of_node))
    places, n_places = codes_of([nodes], [*keys, SEQUENCE, NODE_LEVEL, POSITION])
    latest = np.zeros(n_places, np.int64)
    latest[places] = np.arange(len(places))
    live = nodes.column(LIVE).combine_chunks()
    ends = begin + (np.int64(1) << _integers(nodes, NODE_LEVEL))
    is_left = (latest[places] == np.arange(len(places))) & (ends > head) & (live.fill_null(0).to_numpy() > 0)
    needed[of_node] = np.where(live.is_null().to_numpy(zero_copy_only=False), begin >= head, is_left)
    return np.asarray(needed, np.bool_)


def _integers(rows: pa.Table, column: str) -> Ints:
    return int64_of(rows.column(column).combine_chunks())


def own_rows(layout: StateLayout, layouts: Collection[StateLayout], spans: Sequence[str] = ()) -> Where:
    """The rows of the part with this ``layout``, in a table of parts with these ``layouts``.

    Rows of spans belong to the slices; each has a value in one of the columns ``spans``.
    """
    if len(layouts) == 1:
        return EVERYTHING
    own = {
        "slices": Present(SLICE) | rows_of_spans(spans),
        "sessions": Present(GAP),
        "positions": Present(SEQUENCE),
        "live rows": own_entries(with_positions="positions" in layouts),
    }
    return own[layout]


def compact_entries(
    path: str,
    before_batch: int,
    layouts: Collection[StateLayout],
    needed: NeededRows | None = None,
    *,
    spans: Sequence[str] = (),
    first: int | None = None,
) -> int:
    """Rewrite the table at ``path`` without rows that no later batch needs, in one commit; returns the number of rows removed. No JVM.

    It drops superseded log entries of live rows, superseded spans, and of rows over positions superseded ``key`` rows, applied tuples, and
    nodes that begin before all windows. Partials of slices and sessions stay; if ``needed`` is given, only those. Rows of ``before_batch``
    itself, which a failed attempt may have left, stay. Nodes over positions are sorted, and divided into row groups, for searches. A table
    with features that delta-rs cannot write is left as it is. ``layouts`` are those of the parts in the table; each row of spans has a
    value in one of the columns ``spans``. ``first`` is the first batch whose rows are rewritten, null for all; it is given only if all
    windows are over positions.
    """
    table = table_at(path)
    if not delta_rs_can_write(table):
        return 0
    schema = pa.schema(table.schema().to_arrow())
    since = "true" if first is None else f"{BATCH} >= {first}"
    removes = first is None or all(batches_of(file)[0] >= first for file in files_of(table))
    query = _kept(schema, f"{BATCH} < {before_batch} AND {since}", before_batch, layouts, needed, spans, removes=removes)
    group = None
    if "positions" in layouts:
        rows, size = (sum(int(file[name]) for file in files_of(table)) for name in ("num_records", "size_bytes"))
        # Wide rows come in smaller row groups, but not so small that footers become long.
        group = min(GROUP_ROWS, max(GROUP_ROWS // 16, GROUP_BYTES * rows // max(1, size), 1))
    before = number_of_rows(table)
    # Write to the version that was read: otherwise rows that another writer has appended since would be lost.
    write_deltalake(
        table,
        QueryBuilder().register("state", table).execute(query),
        mode="overwrite",
        predicate=None if first is None else since,
        commit_properties=REWRITE,
        # Given writer properties, delta-rs compresses only on request. Checksums hardly ever repeat: no dictionary.
        writer_properties=WriterProperties(
            compression="ZSTD", max_row_group_size=group, column_properties={SUM: ColumnProperties(dictionary_enabled=False)}
        ),
    )
    return before - number_of_rows(table_at(path))


def _kept(
    schema: pa.Schema,
    where: str,
    before_batch: int,
    layouts: Collection[StateLayout],
    needed: NeededRows | None,
    spans: Sequence[str],
    *,
    removes: bool,
) -> str:
    """The SQL query for the rows that satisfy ``where`` and that a later batch may need, and for those of ``before_batch``.

    ``removes`` is as for :func:`needed_rows`.
    """
    live = LIVE in schema.names
    names, keys = ", ".join(map(quoted, schema.names)), keys_of(schema)
    kept = [f"SELECT {names} FROM state WHERE {BATCH} >= {before_batch}"]
    still = "true" if needed is None else needed.where.sql

    def of_slices(own: str) -> str:
        rows = f"state WHERE {own}"
        return f"{NeededRows.spans(keys, spans, before_batch).latest_of(rows) if spans else rows} AND {still}"

    kept_of: Mapping[StateLayout, Callable[[str], str]] = {
        "slices": of_slices,
        "sessions": lambda own: f"state WHERE {own} AND {still}",
        "positions": lambda own: f"({needed_rows('state', keys, own, live=live, removes=removes)})",
        "live rows": lambda own: f"({latest_entries('state', keys, own)})",
    }
    for layout in layouts:
        own = f"{where} AND {own_rows(layout, layouts, spans).sql}"
        kept.append(f"SELECT {names} FROM {kept_of[layout](own)}")
    by_key = [BUCKET, *keys] if BUCKET in schema.names else keys
    order = search_order(by_key, live=live) if "positions" in layouts else []
    order += order_of(schema.names) if len(layouts) > 1 or "live rows" in layouts else []
    query = " UNION ALL ".join(kept)
    return f"SELECT {names} FROM ({query}) ORDER BY {', '.join(order)}" if order else query


def replacing(path: str, built: Changes | None, kept: tuple[DataFile, ...] = ()) -> Changes | None:
    """The changes that replace the rows of the state at ``path`` by those that a batch has ``built`` and those that :func:`keep` copied."""
    if not is_table(path):
        return built
    table = newest(path)
    removes = tuple(str(file["path"]) for file in files_of(table))
    if built is None:
        built = Changes.of(pa.schema(table.schema().to_arrow()))
    return replace(built, kept=kept, removes=removes)


def rows_numbered(path: str, commit: int) -> int:
    """The first free row number in ``commit``: one more than the greatest that the state at ``path`` holds; 0 if it holds none."""
    if not is_table(path):
        return 0
    with reporting_damage(path):
        table = newest(path)
        schema = pa.schema([field for field in pa.schema(table.schema().to_arrow()) if field.name == NUMBER_OF])
        columns = [read_file(table.table_uri, file, schema, schema.names).column(NUMBER_OF) for file in files_of(table) if len(schema)]
    first = commit << COMMIT_SHIFT
    numbers = [column.drop_null().to_numpy() for column in columns]
    return max((int(own.max()) + 1 - first for each in numbers if len(own := each[each >> COMMIT_SHIFT == commit])), default=0)


def keep(path: str, touched: pa.Table, *, batch: int, attempt: str) -> tuple[DataFile, ...]:
    """Copy the rows of the state at ``path`` whose keys are not ``touched`` to files of their own; returns these.

    ``touched`` has only the key columns, in their order in the state, under any names. Without key columns nothing is kept.
    """
    if not is_table(path) or not touched.num_columns:
        return ()
    with reporting_damage(path):
        table = newest(path)
        schema = pa.schema(table.schema().to_arrow())
        keys = schema.names[: touched.num_columns]
        own = touched.rename_columns(keys).cast(pa.schema([schema.field(name) for name in keys]))
        with FileWriter(path, schema, batch=batch, attempt=attempt, task=0, order=order_of(schema.names)) as writer:
            for file in files_of(table):
                rows = read_file(table.table_uri, file, schema, schema.names)
                writer.write(rows.filter(pa.array(~are_among(rows, own, keys))))
    return writer.close()
