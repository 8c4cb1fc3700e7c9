"""Which rows of the state no batch reads any more, when a state table has enough of them, and the compaction that drops them.

A batch appends rows and changes none, so what a later batch has superseded stays in the table until compaction. A rule for each layout says
which of its rows a later batch may read. The state in memory and :mod:`windowmill.checkpoints.state.inspection` use the same rules.

Compaction reads a table by shares of its keys, so that its memory is bounded; a table without keys is one share.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add, or_
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import ColumnProperties, DeltaTable, QueryBuilder, WriterProperties, write_deltalake

from windowmill.checkpoints.delta_tables import delta_rs_can_write, files_of, own_commit
from windowmill.checkpoints.quoting import quoted
from windowmill.checkpoints.state.reading import (
    NOTHING,
    ColumnComparison,
    Either,
    OpenSessions,
    Where,
    footer,
    rows_before,
    rows_of,
    rows_of_spans,
)
from windowmill.checkpoints.state.tables import SORTED_BY, keys_of, number_of_rows, order_of, own_rows
from windowmill.checkpoints.stores import table_at
from windowmill.windowing.columnar.added_columns import (
    BATCH,
    BUCKET,
    GAP,
    HEAD,
    KIND,
    LAST,
    LIVE,
    NODE_LEVEL,
    NUMBER_OF,
    POSITION,
    ROW_KEY,
    SEQUENCE,
    SLICE,
    SUM,
    THROUGH,
    TIME,
)
from windowmill.windowing.columnar.hashes import REMEDY, Share
from windowmill.windowing.columnar.keyed import GONE, KEY_ENTRY
from windowmill.windowing.columnar.positions import KEY_ROW, NODE, WAITING
from windowmill.windowing.columnar.rows import codes_of
from windowmill.windowing.errors import StateCorruptError
from windowmill.windowing.grids import Grids
from windowmill.windowing.kernels.lift import int64_of
from windowmill.windowing.watermark import BEFORE

if TYPE_CHECKING:
    from windowmill.windowing.kernels.combine import Bools, Ints
    from windowmill.windowing.layouts import StateLayout
    from windowmill.windowing.spec import Pipeline

#: Columns by which rows are chosen and sorted, but for keys and spans; and the place of a row among others.
READ = frozenset((*SORTED_BY, BATCH, SEQUENCE, GAP, POSITION, LIVE, HEAD, THROUGH, TIME, NUMBER_OF))
_PLACE = "_ place"
#: Column of rows of a table: whether a later batch may need the row.
NEEDED = "_ needed"
#: Commit properties of a rewrite of existing rows.
REWRITE = own_commit("maintenance")
#: Reading a table whole is cheap up to so many superseded rows, or so many files.
FEW_ENTRIES, FEW_FILES = 100_000, 64
#: Greatest size of a table's files, in bytes, at which it is compacted in memory without being asked to.
COMPACTED_BYTES = 1 << 30
#: Limits on rows and bytes of a file into which successive batches' slices are merged: the merge sorts them in memory.
SORTED_ROWS, SORTED_BYTES = 2_000_000, 64 << 20
#: Bytes in memory of the rows of keys that are compacted at once; the most shares into which keys are divided.
SHARE_BYTES, MOST_SHARES = 1 << 30, 1 << 10
#: Types of texts and bytes of which an array may hold more than 2 GiB.
_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
#: Number of levels whose nodes are stored together, and rows and bytes of a row group. So few row groups hold the nodes at both ends of the
#: windows of keys at similar positions.
NEAR_LEVELS, GROUP_ROWS, GROUP_BYTES = 6, 8_192, 1 << 20
#: Files of one batch with more rows than this are sorted for searches.
LAID_OUT_ROWS = 100_000


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
    def within(self) -> str:
        """The SQL condition for their rows."""
        return f"{BATCH} >= {self.first} AND {BATCH} <= {self.last}"

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


@dataclass(frozen=True)
class NeededPartials:
    """The slices and sessions that a later batch may read."""

    where: Where
    #: Others, which no batch reads any more.
    expired: Where = NOTHING

    @classmethod
    def slices_from(cls, start: int) -> NeededPartials:
        """Slices and nodes that start at or after ``start``."""
        return cls(ColumnComparison(SLICE, ">=", start), ColumnComparison(SLICE, "<", start))

    @classmethod
    def sessions(cls, wanted: OpenSessions) -> NeededPartials:
        closed = (ColumnComparison(GAP, "=", gap) & ColumnComparison(LAST, "<=", wanted.last_after(gap)) for gap in wanted.gaps)
        return cls(rows_of(wanted), Either(tuple(closed)))

    @classmethod
    def after(cls, emitted: int | None, parts: Mapping[StateLayout, Pipeline]) -> NeededPartials | None:
        """Those of the ``parts`` that a window which ends after ``emitted`` can contain; null if nothing has been emitted: all of them."""
        if emitted is None:
            return None
        needed = list[NeededPartials]()
        if "slices" in parts:
            needed.append(cls.slices_from(Grids.of(parts["slices"]).first_slice_after(emitted)))
        if "sessions" in parts:
            gaps = tuple(window.session_gap() for window in parts["sessions"].windows)
            needed.append(cls.sessions(OpenSessions(gaps, emitted)))
        return reduce(or_, needed) if needed else None

    def __or__(self, other: NeededPartials) -> NeededPartials:
        return NeededPartials(self.where | other.where, self.expired | other.expired)


def are_latest_spans(rows: pa.Table, keys: Sequence[str]) -> Bools:
    """Mask of each key's latest of ``rows``, which are rows of spans; O(n log n)."""
    codes, n_keys = codes_of([rows], keys)
    return np.asarray(_latest_of(codes, n_keys, rows)[codes] == np.arange(len(codes)), np.bool_)


def are_latest(log: pa.Table, keys: Sequence[str]) -> Bools:
    """Mask of the latest entry of each key and live row in ``log``; O(n log n)."""
    kind = log.column(KIND)
    # Row numbers identify rows, and key columns identify keys.
    codes = codes_of([log], keys)[0]
    number = pc.if_else(pc.equal(kind, KEY_ENTRY), -1, log.column(NUMBER_OF)).to_numpy()
    order = np.lexsort((log.column(BATCH).to_numpy(), number, codes))
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = (codes[order][1:] != codes[order][:-1]) | (number[order][1:] != number[order][:-1])
    found = np.zeros(len(order), np.bool_)
    found[order[is_last]] = True
    return np.asarray(found & pc.not_equal(kind, GONE).to_numpy(), np.bool_)


def are_needed(rows: pa.Table, keys: Sequence[str], *, removes: bool = True) -> Bools:
    """Mask of those of ``rows``, over positions, that a later batch may need; O(n log n).

    They are the latest ``key`` row of each key, the tuples that still wait, and the nodes that do not begin before all windows. Nodes of
    windows that evict by a delta supersede one another; ``removes`` says that those without live tuples are not needed, because no older
    rows that they supersede are left.
    """
    codes, n_keys = codes_of([rows], [*keys, SEQUENCE])
    kind, needed = rows.column(KIND), np.zeros(len(rows), np.bool_)
    of_key, of_node, waiting = (np.flatnonzero(pc.equal(kind, each).to_numpy()) for each in (KEY_ROW, NODE, WAITING))
    marks = rows.select([BATCH, HEAD, THROUGH]).take(pa.array(of_key))
    newest = _latest_of(codes[of_key], n_keys, marks)
    newest = newest[newest >= 0]
    needed[of_key[newest]] = True
    # The rows of a key that lacks its ``key`` row are kept, so that the next batch of the key reports the damage.
    head, through = (np.full(n_keys, BEFORE, np.int64) for _ in range(2))
    for found, column in ((head, HEAD), (through, THROUGH)):
        found[codes[of_key[newest]]] = _integers(marks.column(column), BEFORE)[newest]
    needed[waiting] = _integers(rows.column(TIME))[waiting] >= through[codes[waiting]]
    head, begin = head[codes[of_node]], _integers(rows.column(POSITION))[of_node]
    needed[of_node] = begin >= head
    if LIVE in rows.column_names:
        nodes = rows.select([*keys, SEQUENCE, NODE_LEVEL, POSITION, LIVE, BATCH]).take(pa.array(of_node))
        places, n_places = codes_of([nodes], [*keys, SEQUENCE, NODE_LEVEL, POSITION])
        is_left = _latest_of(places, n_places, nodes)[places] == np.arange(len(places))
        is_left &= begin + (np.int64(1) << _integers(nodes.column(NODE_LEVEL))) > head
        live = nodes.column(LIVE)
        if removes:
            is_left &= _integers(live) > 0
        is_left |= head == BEFORE
        of_delta = live.is_valid().to_numpy()
        needed[of_node[of_delta]] = is_left[of_delta]
    return needed


def _latest_of(codes: Ints, n_codes: int, rows: pa.Table) -> Ints:
    """The index of the row of the latest batch of each code, among ``rows`` with these ``codes``; −1 for a code without rows."""
    order = np.argsort(rows.column(BATCH).to_numpy(), kind="stable")
    last = np.full(n_codes, -1, np.int64)
    last[codes[order]] = order  # of equal codes the last value assigned counts
    return last


def _integers(column: pa.ChunkedArray, null: int = 0) -> Ints:
    return int64_of(pc.fill_null(column.combine_chunks(), null))


def _search_order(rows: pa.Table) -> Ints:
    """The order of ``rows`` over positions for searches: by groups of levels, then by stretches of positions, then by keys."""
    level, position = (_integers(rows.column(name)) for name in (NODE_LEVEL, POSITION))
    group = level // NEAR_LEVELS
    stretch = position >> ((group + 1) * NEAR_LEVELS)
    if LIVE in rows.column_names:
        # Windows that evict by a delta read all inner nodes, and any leaf may leave: so inner nodes form one group.
        of_delta = rows.column(LIVE).is_valid().to_numpy()
        group, stretch = np.where(of_delta, np.minimum(level, 1), group), np.where(of_delta, 0, stretch)
    kinds = codes_of([rows], [KIND, SEQUENCE])[0]
    keys = [rows.column(name).to_numpy() for name in (ROW_KEY, BUCKET) if name in rows.column_names]
    return np.lexsort((level, position, *keys, stretch, group, kinds))


@dataclass(frozen=True)
class NeededRows:
    """Which rows of a table a later batch may need, layout by layout."""

    keys: Sequence[str]
    #: Rows of this batch and later ones, which a failed attempt may have left, stay.
    before_batch: int
    #: Layouts of the parts whose rows are in the table.
    layouts: Collection[StateLayout]
    #: Slices and sessions that are needed; null for all.
    partials: NeededPartials | None = None
    #: Columns of spans, one of which has a value in each row of spans.
    spans: Sequence[str] = ()
    #: As of :func:`are_needed`.
    removes: bool = True

    def kept(self, rows: pa.Table) -> pa.Table:
        """The needed ones of ``rows``, all rows of some keys: those of each layout together, in the order of its reads."""
        read = rows.select([name for name in rows.column_names if name in (*READ, *self.spans)])
        read = read.append_column(ROW_KEY, pa.array(codes_of([rows], self.keys)[0]))
        found: list[Ints] = []
        for layout in self.layouts:
            own = _places(read, own_rows(layout, self.layouts, self.spans))
            found.append(own[self._kept(layout, read if len(own) == len(read) else read.take(pa.array(own)))])
        return rows.take(pa.array(np.concatenate(found)))

    def marked(self, rows: pa.Table) -> Iterator[tuple[StateLayout, pa.Table]]:
        """The ``rows`` of each layout, all rows of some keys and of batches before ``before_batch``; with ``ROW_KEY`` and ``NEEDED``."""
        rows = rows.append_column(ROW_KEY, pa.array(codes_of([rows], self.keys)[0]))
        for layout in self.layouts:
            own = rows.filter(own_rows(layout, self.layouts, self.spans).expression)
            yield layout, own.append_column(NEEDED, pa.array(self._are_needed(layout, own)))

    def _kept(self, layout: StateLayout, rows: pa.Table) -> Ints:
        """The places of the needed ones of ``rows``, which are of one layout, in the order of its reads."""
        earlier = _places(rows, rows_before(self.before_batch))
        needed = np.ones(len(rows), np.bool_)
        needed[earlier] = self._are_needed(layout, rows if len(earlier) == len(rows) else rows.take(pa.array(earlier)))
        places = np.flatnonzero(needed)
        kept = rows if len(places) == len(rows) else rows.take(pa.array(places))
        if layout == "positions":
            return places[_search_order(kept)]
        order = [(name, "ascending") for name in order_of(rows.column_names)]
        return places[pc.sort_indices(kept, order).to_numpy()] if order else places

    def _are_needed(self, layout: StateLayout, rows: pa.Table) -> Bools:
        if layout == "positions":
            return are_needed(rows, [ROW_KEY], removes=self.removes)
        if layout == "live rows":
            return are_latest(rows, [ROW_KEY])
        needed = np.ones(len(rows), np.bool_)
        if self.partials is not None:
            needed[:] = False
            needed[_places(rows, self.partials.where)] = True
        if self.spans:
            of_spans = _places(rows, rows_of_spans(self.spans))
            needed[of_spans] = are_latest_spans(rows.take(pa.array(of_spans)), [ROW_KEY])
        return needed


def _places(rows: pa.Table, where: Where) -> Ints:
    """The places of those of ``rows`` for which ``where`` holds."""
    numbered = rows.append_column(_PLACE, pa.array(np.arange(len(rows))))
    return np.asarray(numbered.filter(where.expression).column(_PLACE).to_numpy(), np.int64)


def compact(
    path: str,
    before_batch: int,
    layouts: Collection[StateLayout],
    needed: NeededPartials | None = None,
    *,
    spans: Sequence[str] = (),
    first: int | None = None,
) -> int:
    """Rewrite the table at ``path`` without rows that no later batch may need; returns the number of rows removed. No JVM.

    Partials of slices and sessions stay; if ``needed`` is given, only those. Rows of ``before_batch`` itself, which a failed attempt may
    have left, stay. ``layouts`` are those of the parts in the table; each row of spans has a value in one of the columns ``spans``.

    Tables with positions or live rows are rewritten in one commit; ``first`` is the first batch whose rows are, null for all, and is given
    only if all windows are over positions. Of tables with partials alone, files of successive batches are merged: so statistics of a file
    span a short stretch of the axis. A table with features that delta-rs cannot write is left as it is.
    """
    table = table_at(path)
    if not delta_rs_can_write(table):
        return 0
    before, keys = number_of_rows(table), keys_of(pa.schema(table.schema().to_arrow()))
    if {"positions", "live rows"} & set(layouts):
        groups = by_batches(files_of(table))
        taken = [group for group in groups if first is None or group.first >= first]
        if taken:
            whole = len(taken) == len(groups)
            _rewrite(table, reduce(add, taken), NeededRows(keys, before_batch, layouts, needed, spans, removes=whole))
    else:
        for group in _merged(files_of(table)):
            _merge(table_at(path), group, NeededRows(keys, before_batch, layouts, needed, spans))
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


def _merge(table: DeltaTable, group: BatchFiles, needed_rows: NeededRows) -> None:
    """Merge the files of ``group`` if they are small enough to be sorted in memory; a larger file only loses rows that no batch reads."""
    expired = needed_rows.partials is not None and any(map(needed_rows.partials.expired.may_hold, group.files))
    if _fit(group):
        if expired or len(group.files) > 1:
            _rewrite(table, group, needed_rows)
    elif needed_rows.partials is not None and expired:
        kept = needed_rows.partials.where | rows_of_spans(needed_rows.spans) if needed_rows.spans else needed_rows.partials.where
        within = f"{group.within} AND {BATCH} < {needed_rows.before_batch}"
        table.delete(f"{within} AND ({kept.sql}) IS NOT TRUE", commit_properties=REWRITE)


def _rewrite(table: DeltaTable, group: BatchFiles, needed_rows: NeededRows) -> None:
    """Replace the files of ``group`` by those of their rows that are needed."""
    size = None
    if "positions" in needed_rows.layouts:
        # Row groups are small, for searches: wide rows come in smaller ones, but not so small that footers become long.
        size = min(GROUP_ROWS, max(GROUP_ROWS // 16, GROUP_BYTES * group.rows // max(1, group.bytes), 1))
    kept, n_read = list[pa.Table](), 0
    for rows in shares_of(table, group.within):
        kept.append(needed_rows.kept(rows))
        n_read += len(rows)
    if n_read != group.rows:
        raise StateCorruptError(f"state {table.table_uri}: files have {n_read:,} rows, by the table's log {group.rows:,}; {REMEDY}")
    write_deltalake(
        table,  # the version that was read: otherwise rows that another writer has appended since would be lost
        pa.concat_tables(kept),
        mode="overwrite",
        # Given a predicate, delta-rs reads all files again for rows that do not satisfy it.
        predicate=None if len(group.files) == len(files_of(table)) else group.within,
        commit_properties=REWRITE,
        # Given writer properties, delta-rs compresses only on request. Checksums hardly ever repeat: no dictionary.
        writer_properties=WriterProperties(
            compression="ZSTD", max_row_group_size=size, column_properties={SUM: ColumnProperties(dictionary_enabled=False)}
        ),
    )


def shares_of(table: DeltaTable, where: str, columns: Collection[str] | None = None) -> Iterator[pa.Table]:
    """The rows of a state table for which the SQL condition ``where`` holds, some keys at a time with all their rows.

    They have those of ``columns`` that the table has, by default all; texts and bytes in types without a limit of 2 GiB. A share that turns
    out to be larger than ``SHARE_BYTES`` is divided and read again.
    """
    schema = pa.schema(table.schema().to_arrow())
    n_shares = 1 << (number_of_rows(table) // SORTED_ROWS).bit_length() if BUCKET in schema.names else 1
    most_shares = MOST_SHARES if BUCKET in schema.names else 1
    large = pa.schema([field.with_type(_LARGE.get(field.type, field.type)) for field in schema if columns is None or field.name in columns])
    waiting = [Share(number, number + 1, n_shares) for number in range(n_shares)]
    while waiting:
        share = waiting.pop(0)
        low, high = share.stored
        own = where if share.n_buckets == 1 else f"{where} AND {BUCKET} BETWEEN {low} AND {high}"
        rows = _read(table, own, large, SHARE_BYTES if share.n_buckets < most_shares else None)
        if rows is None:
            waiting[:0] = [Share(2 * share.first + half, 2 * share.first + half + 1, 2 * share.n_buckets) for half in (0, 1)]
        else:
            yield rows


def _read(table: DeltaTable, where: str, schema: pa.Schema, most_bytes: int | None) -> pa.Table | None:
    """The rows for which ``where`` holds; null if they have more than ``most_bytes`` in memory."""
    query = f"SELECT {', '.join(map(quoted, schema.names))} FROM state WHERE {where}"
    found, size = [schema.empty_table()], 0
    for batch in pa.RecordBatchReader.from_stream(QueryBuilder().register("state", table).execute(query)):
        found.append(pa.Table.from_batches([batch]).cast(schema))
        size += found[-1].nbytes
        if most_bytes is not None and size > most_bytes:
            return None
    return pa.concat_tables(found)
