"""The one state table of a pipeline: which part each row belongs to, how it is compacted, and how a batch replaces it.

A row belongs to one part of the pipeline. It has the columns of that part and is null in all others, so its checksum is that of its own
columns. Files of compacted rows are large; :mod:`windowmill.checkpoints.state.positions` reads few of their row groups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import ColumnProperties, DeltaTable, QueryBuilder, WriterProperties, write_deltalake

from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.data_files import DataFile, FileWriter
from windowmill.checkpoints.delta_tables import newest
from windowmill.checkpoints.features import delta_rs_can_write
from windowmill.checkpoints.quoting import quoted
from windowmill.checkpoints.state.positions import footer
from windowmill.checkpoints.state.reading import EVERYTHING, Present, Where, read_file, reporting_damage, rows_of_spans
from windowmill.checkpoints.state.tables import (
    COMPACTED_BYTES,
    FEW_ENTRIES,
    FEW_FILES,
    REWRITE,
    BatchFiles,
    NeededRows,
    batches_of,
    by_batches,
    files_of,
    keys_of,
    latest_entries,
    number_of_rows,
    order_of,
    own_entries,
)
from windowmill.checkpoints.stores import is_table, table_at
from windowmill.windowing.columnar.added_columns import BATCH, BUCKET, GAP, KIND, NUMBER_OF, SLICE, SUM, TIME
from windowmill.windowing.columnar.positions import HEAD, KEY_ROW, LIVE, NODE, NODE_LEVEL, POSITION, SEQUENCE, THROUGH, WAITING
from windowmill.windowing.columnar.rows import are_among, codes_of
from windowmill.windowing.kernels.lift import int64_of
from windowmill.windowing.watermark import BEFORE, COMMIT_SHIFT

if TYPE_CHECKING:
    from windowmill.windowing.kernels.combine import Bools, Ints
    from windowmill.windowing.layouts import StateLayout

#: Levels of which nodes are stored together, and rows and bytes of a row group: the nodes at either end of the windows of keys that are
#: at about the same positions lie in few row groups.
NEAR_LEVELS, GROUP_ROWS, GROUP_BYTES = 6, 8_192, 1 << 20
#: Files of one batch with more rows than this are laid out for searches.
LAID_OUT_ROWS = 100_000
#: Columns of :func:`needed_rows` in addition to those of the state, quoted.
_AGE, _NEWEST, _LEAST, _PASSED, _VERSION = '"_ age"', '"_ newest"', '"_ head"', '"_ through"', '"_ version"'


def overgrown_from(path: str, *, lay_out: bool = False) -> int | None:
    """The first batch of the newest files at ``path`` that are worth merging; null for none.

    Reads only the Delta log, and with ``lay_out`` footers of large files.

    Files are merged with newer ones if these together have at least half as many rows. So each row is rewritten a logarithmic number of
    times, and at most about half of the rows of an old file are superseded. With ``lay_out`` a large file of one batch is also rewritten
    in the order in which it is searched.
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
    """Whether ``file`` is one of a large batch, of which a search reads more than it needs, because its row groups are large."""
    first, last = batches_of(file)
    if first != last or file["num_records"] <= LAID_OUT_ROWS:
        return False
    metadata = footer(table, file)
    return bool(metadata.num_rows > 4 * GROUP_ROWS * metadata.num_row_groups)


def search_order(keys: Sequence[str], *, live: bool) -> list[str]:
    """The sort order in SQL of rows that are searched: by groups of levels, then by stretches of positions, then by keys.

    Rows of other parts in the table do not take part. ``live`` is as for :func:`needed_rows`.
    """
    of_keys = [f"CASE WHEN {SEQUENCE} IS NOT NULL THEN {quoted(key)} END" for key in keys]
    levels, stretch = f"{NODE_LEVEL} / {NEAR_LEVELS}", f"{POSITION} >> (({NODE_LEVEL} / {NEAR_LEVELS} + 1) * {NEAR_LEVELS})"
    if live:
        # Of windows that evict by a delta, all inner nodes are read, and any leaf may leave: inner nodes are one group.
        levels = f"CASE WHEN {LIVE} IS NULL THEN {levels} WHEN {NODE_LEVEL} > 0 THEN 1 ELSE 0 END"
        stretch = f"CASE WHEN {LIVE} IS NULL THEN {stretch} END"
    order = [f"CASE WHEN {SEQUENCE} IS NOT NULL THEN {each} END" for each in (levels, stretch)]
    return [KIND, SEQUENCE, *order, *of_keys, POSITION, NODE_LEVEL]


def needed_rows(state: str, keys: Sequence[str], where: str, *, live: bool, removes: bool = True) -> str:
    """The SQL query for the rows of ``state`` that satisfy ``where`` and that a batch after them all may need.

    ``live`` says that the table has windows that evict by a delta, whose nodes supersede one another; ``removes``, that no older rows are
    left that a node without live tuples supersedes, so that it is not needed.
    """
    of_key = [*keys, SEQUENCE]
    renamed = [f'"_ key {number}"' for number in range(len(of_key))]
    named = ", ".join(f"{quoted(name)} AS {alias}" for name, alias in zip(of_key, renamed, strict=True))
    age = f"row_number() OVER (PARTITION BY {', '.join(map(quoted, of_key))} ORDER BY {BATCH} DESC) AS {_AGE}"
    known = f"SELECT {named}, {BATCH} AS {_NEWEST}, {HEAD} AS {_LEAST}, {THROUGH} AS {_PASSED}, {age} FROM {state}"
    newest = f"SELECT * FROM ({known} WHERE {KIND} = '{KEY_ROW}' AND {where}) WHERE {_AGE} = 1"
    same = " AND ".join(f"(s.{quoted(name)} IS NOT DISTINCT FROM n.{alias})" for name, alias in zip(of_key, renamed, strict=True))
    # Rows of a key without its ``key`` row are kept, so that the next batch of the key reports the damage.
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
        "live rows": own_entries(beside_positions="positions" in layouts),
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

    These are superseded entries of the log of live rows; superseded rows of keys, applied tuples, and nodes over positions that begin
    before all windows; superseded spans. Partials of slices and sessions stay, or those that are ``needed``, if given. Rows of
    ``before_batch`` itself, which a failed attempt may have left, stay. Nodes over positions are sorted, and cut into row groups, as
    they are searched. A table with features that delta-rs cannot write is left as it is. The parts whose rows are in the table have these
    ``layouts``, and each row of spans has a value in one of the columns ``spans``. ``first`` is the first batch whose
    rows are rewritten, null for all; it is given only where all windows go over positions.
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
        # Fewer rows of a row group if they are wide, but not so few that footers are long.
        group = min(GROUP_ROWS, max(GROUP_ROWS // 16, GROUP_BYTES * rows // max(1, size), 1))
    before = number_of_rows(table)
    # Write to the version that was read: otherwise rows that another writer has appended since would be lost.
    write_deltalake(
        table,
        QueryBuilder().register("state", table).execute(query),
        mode="overwrite",
        predicate=None if first is None else since,
        commit_properties=REWRITE,
        # With properties of its own, delta-rs does not compress unless asked to. Hardly any two checksums are equal.
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
    """The SQL query for the rows for which ``where`` holds that a later batch may need, and for those of ``before_batch``.

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
    """The changes of the state at ``path`` by which the rows that a batch has ``built`` replace all but those that :func:`keep` kept."""
    if not is_table(path):
        return built
    table = newest(path)
    removes = tuple(str(file["path"]) for file in files_of(table))
    if built is None:
        built = Changes.of(pa.schema(table.schema().to_arrow()))
    return replace(built, kept=kept, removes=removes)


def rows_numbered(path: str, commit: int) -> int:
    """One more than the greatest place among the rows of ``commit`` that the state at ``path`` holds; 0 if it holds none of them."""
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

    ``touched`` has the key columns alone, which are the first of the state, whatever it calls them. Without key columns nothing stays.
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
