"""The state of a pipeline as its parts read it, in this process or a task: the state table, or rows in memory.

Rows over positions are searched: small files are read whole, large ones by row group. Runs write small files; compaction writes large ones,
whose row groups each hold few positions of few keys. So the part of a large file that is read depends on what a batch needs, not on the
size of the state. See :mod:`windowmill.windowing.columnar.positions` for the kinds of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

from windowmill.checkpoints.delta_tables import files_of, newest
from windowmill.checkpoints.quoting import quoted
from windowmill.checkpoints.state.compaction import are_latest, are_needed
from windowmill.checkpoints.state.reading import (
    WHOLE_BYTES,
    Present,
    ReadLimit,
    Wanted,
    Where,
    open_file,
    read_whole,
    reporting_damage,
    require_columns,
    rows_before,
    rows_of,
    rows_of_part,
)
from windowmill.checkpoints.state.tables import entries_before, has_nodes, of_keys
from windowmill.checkpoints.stores import is_table
from windowmill.windowing.columnar.added_columns import ABOVE, BATCH, BUCKET, DUE, FIRST, KIND, NODE_LEVEL, POSITION, SEQUENCE, SUM
from windowmill.windowing.columnar.hashes import KeyFilter, KeysOfShare, buckets_of
from windowmill.windowing.columnar.position_reads import Bounds, Demand, arriving_values, split_nodes
from windowmill.windowing.columnar.positions import NODE, PositionStage
from windowmill.windowing.columnar.rows import key_codes, keys_of
from windowmill.windowing.kernels.combine import Ints

if TYPE_CHECKING:
    from windowmill.windowing.columnar.hashes import RowCheck
    from windowmill.windowing.kernels.combine import Bools

#: Greatest number of tables of appended rows before they are merged into one: a read visits each.
_MAX_TABLES = 64
#: No rows of a part are dropped up to this number: reading them takes less time than finding those that are needed.
FEW_ROWS = 4_096


@dataclass(frozen=True)
class DeltaState:
    """The state table at the path ``name``, to which batches append rows that never change.

    Reads return rows with the columns of ``schema``; null if they exceed the ``limit``.
    """

    name: str
    #: Verifies rows.
    check: RowCheck
    #: Whether a batch replaces all rows.
    replaced: bool = False
    #: The keys whose rows are read; null for all.
    only: KeysOfShare | None = None

    @property
    def holds_nodes(self) -> bool:
        # A batch that appends rows keeps the columns of the table.
        return self.replaced or not is_table(self.name) or has_nodes(self.name)

    def partials(self, schema: pa.Schema, wanted: Wanted, *, before_batch: int, limit: ReadLimit) -> pa.Table | None:
        """The ``wanted`` slices or sessions of the batches before ``before_batch``, verified.

        A failed attempt may have left rows of ``before_batch`` itself. They are not read; the retry computes the same rows.
        """
        if not is_table(self.name):
            return schema.empty_table()
        with reporting_damage(self.name):
            table = newest(self.name)
            files = files_of(table)
            where = rows_of(wanted)
            if limit.is_exceeded(wanted, [file for file in files if where.may_hold(file)]):
                return None
            checked = rows_of_part(wanted) if SUM in schema.names else None
            rows = self._rows(table, files, schema, rows_before(before_batch) & where, limit.rows, checked=checked)
            return rows if rows is None or checked is None else rows.drop_columns([SUM])

    def positions(self, schema: pa.Schema, stage: PositionStage, rows: pa.Table, limit: ReadLimit) -> pa.Table | None:
        """The rows over positions that new ``rows`` need, from batches before that of ``stage``; the caller verifies the checksums."""
        if not is_table(self.name):
            return schema.empty_table()
        with reporting_damage(self.name):
            return SearchedRows.of_table(newest(self.name), stage, limit, self.only).needed(rows)

    def log(
        self,
        schema: pa.Schema,
        may_lack: Collection[str],
        touched: pa.Table,
        keys: Mapping[str, str],
        *,
        before_batch: int,
        watermark: int,
        limit: ReadLimit,
    ) -> pa.Table | None:
        """The entries of the keys that are in ``touched`` or due by ``watermark``, as of the batches before ``before_batch``.

        They are verified, and have no checksum column. A run reads the whole log (:mod:`windowmill.windowing.columnar.keyed`) once.
        ``touched`` are new rows with the log's columns; the state ``may_lack`` some columns until a batch adds them.
        """
        if not is_table(self.name):
            return schema.empty_table()
        with reporting_damage(self.name):
            table = newest(self.name)
            files, names = files_of(table), pa.schema(table.schema().to_arrow()).names
            # Files of other parts have only nulls in the log's columns.
            if limit.is_exceeded_by([file for file in files if file.get(f"null_count.{KIND}") != file["num_records"]]):
                return None
            # The sequence, null in entries, separates them from rows over positions; files of a spec without positions lack it.
            read = schema.append(pa.field(SEQUENCE, pa.string())) if SEQUENCE in names else schema
            log = self._rows(table, files, read, entries_before(names, before_batch), limit.rows, (*may_lack, SEQUENCE))
            if log is None:
                return None
            entries = log.select(schema.names)
            # Verify before filtering: a damaged key or instant would hide a key that is due.
            self.check.verify(entries)
            return of_keys(entries.drop_columns([SUM]), touched, list(keys.values()), watermark)

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
        """The ``wanted`` rows in these ``files`` of ``table``, read by this process; null if there are more than ``most_rows``.

        Columns that the table ``may_lack`` are null. ``checked`` selects rows to verify before the ``wanted`` ones are chosen, because
        damage could hide these; a table that is not read whole verifies the ``wanted`` rows only. Null leaves verifying to the caller.
        """
        if self.only is not None:
            files = [file for file in files if self.only.may_be_in(file)]
        whole = sum(file["size_bytes"] for file in files) <= WHOLE_BYTES
        if whole:
            rows = read_whole(table, files, schema, (wanted if checked is None else checked).expression, may_lack=may_lack)
            rows = rows if self.only is None else self.only.rows(rows)
        else:
            rows = self._queried(table, schema, wanted.sql, most_rows, may_lack)
        if checked is not None:
            self.check.verify(rows)
            rows = rows.filter(wanted.expression) if whole else rows
        return None if rows.num_rows > most_rows else rows

    def _queried(self, table: DeltaTable, schema: pa.Schema, where: str, most_rows: int, may_lack: Collection[str]) -> pa.Table:
        """The rows for which the SQL condition ``where`` holds; stops soon after ``most_rows`` rows."""
        there = pa.schema(table.schema().to_arrow()).names
        require_columns(self.name, [*there, *may_lack], schema.names)
        if self.only is not None and BUCKET in there:
            low, high = self.only.share.stored
            where = f"({where}) AND {BUCKET} BETWEEN {low} AND {high}"
        names = ", ".join(quoted(name) if name in there else f"NULL AS {quoted(name)}" for name in schema.names)
        reader = pa.RecordBatchReader.from_stream(
            QueryBuilder().register("state", table).execute(f"SELECT {names} FROM state WHERE {where}")
        )
        found, n_rows = [schema.empty_table()], 0
        for batch in reader:
            rows = pa.Table.from_batches([batch]).cast(schema)
            found.append(rows if self.only is None else self.only.rows(rows))
            n_rows += len(found[-1])
            if n_rows > most_rows:
                break
        return pa.concat_tables(found)


class MemoryState:
    """The rows that batches have appended, in memory. Reads check only the limit on rows."""

    name = "in memory"
    holds_nodes = True

    def __init__(self) -> None:
        # By column names, which differ between parts.
        self._tables: dict[frozenset[str], list[pa.Table]] = {}
        self._left: dict[frozenset[str], int] = {}

    @property
    def rows(self) -> pa.Table | None:
        """All rows, each null in the columns of other parts; null if there are none."""
        every = [table for tables in self._tables.values() for table in tables]
        return pa.concat_tables(every, promote_options="default") if every else None

    def append(self, rows: pa.Table) -> None:
        """Append the ``rows`` of one part and batch."""
        tables = self._tables.setdefault(frozenset(rows.column_names), [])
        tables.append(rows)
        if len(tables) > _MAX_TABLES:
            tables[:] = [pa.concat_tables(tables).combine_chunks()]

    def drop(self, schema: pa.Schema, needed: Callable[[pa.Table], Bools]) -> None:
        """Drop those rows of a part that are not ``needed``, if they have doubled since rows were last dropped."""
        part = frozenset(schema.names)
        tables = self._tables.get(part, [])
        if sum(map(len, tables)) > 2 * self._left.get(part, 0) + FEW_ROWS:
            rows = pa.concat_tables(tables)
            tables[:] = [rows.filter(pa.array(needed(rows))).combine_chunks()]
            self._left[part] = len(tables[0])

    def partials(self, schema: pa.Schema, wanted: Wanted, *, before_batch: int, limit: ReadLimit) -> pa.Table | None:
        """The ``wanted`` rows, without checksums; null if they exceed ``limit``."""
        rows = self._chosen(schema, rows_before(before_batch) & rows_of(wanted))
        return rows.drop_columns([SUM]) if rows.num_rows <= limit.rows else None

    def positions(self, schema: pa.Schema, stage: PositionStage, rows: pa.Table, limit: ReadLimit) -> pa.Table | None:
        """The rows that new ``rows`` need; null if they exceed ``limit``."""
        self.drop(schema, lambda stored: are_needed(stored, stage.keys))
        return SearchedRows(stage, limit, self._chosen(schema, applied_before(stage))).needed(rows)

    def log(
        self,
        schema: pa.Schema,
        may_lack: Collection[str],  # noqa: ARG002 - none is missing
        touched: pa.Table,
        keys: Mapping[str, str],
        *,
        before_batch: int,
        watermark: int,
        limit: ReadLimit,
    ) -> pa.Table | None:
        """The entries of the keys that are in ``touched`` or due by ``watermark``, without checksums; null if the log exceeds ``limit``."""
        columns = list(keys.values())
        self.drop(schema, lambda stored: are_latest(stored, columns))
        entries = self._chosen(schema, entries_before(schema.names, before_batch)).drop_columns([SUM])
        return of_keys(entries, touched, columns, watermark) if entries.num_rows <= limit.rows else None

    def _chosen(self, schema: pa.Schema, wanted: Where) -> pa.Table:
        """The ``wanted`` rows of the part whose rows have the columns of ``schema``."""
        tables = self._tables.get(frozenset(schema.names), ())
        rows = pa.concat_tables([schema.empty_table(), *(table.select(schema.names) for table in tables)])
        return rows.filter(wanted.expression)


#: The state of one pipeline.
State = DeltaState | MemoryState


#: Greatest size of a file that is read whole; choosing among its few row groups would save nothing.
SMALL_BYTES = 1 << 20
#: Least number of rows whose masks are computed together: each computation takes time for every key, too.
_TOGETHER = 1 << 17
#: Greatest product of keys and row groups at which each row group is compared with each key.
_MAX_COMPARED = 10_000_000
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True)
class _LargeFile:
    """A file that is read by row group; ``span`` gives the least and greatest value of a column in a row group, if known."""

    parquet: pq.ParquetFile
    places: Mapping[str, int]

    def span(self, group: int, column: str) -> tuple[Any, Any] | None:
        statistics = self.parquet.metadata.row_group(group).column(self.places[column]).statistics
        return (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else None

    def buckets(self, group: int) -> tuple[int, int] | None:
        """The least and greatest bucket of the keys in a row group; null if its statistics lack them."""
        return self.span(group, BUCKET) if BUCKET in self.places else None

    def has_values(self, group: int, column: str) -> bool:
        chunk = self.parquet.metadata.row_group(group).column(self.places[column])
        statistics = chunk.statistics
        return statistics is None or not statistics.has_null_count or statistics.null_count < chunk.num_values

    def bounds(self, group: int) -> Bounds | None:
        """The bounds of the nodes in a row group; null if it has none."""
        if not self.has_values(group, NODE_LEVEL):
            return None
        spans = {name: self.span(group, name) or (_LEAST, _GREATEST) for name in (NODE_LEVEL, POSITION, FIRST)}
        above = self.span(group, ABOVE)
        if above is None:
            above = (_LEAST if self.has_values(group, ABOVE) else _GREATEST, _GREATEST)
        return Bounds(int(spans[NODE_LEVEL][1]), int(spans[POSITION][0]), int(spans[POSITION][1]), int(spans[FIRST][0]), int(above[0]))


class SearchedRows:
    """Searches the rows over positions of earlier batches for what a batch needs; reads nothing beyond ``limit``.

    It searches the ``small`` rows, in memory with the columns of the state, and chosen row groups of the ``large`` files; of these only
    rows of the keys ``only``, if given.
    """

    def __init__(
        self, stage: PositionStage, limit: ReadLimit, small: pa.Table, large: Sequence[_LargeFile] = (), only: KeysOfShare | None = None
    ) -> None:
        self._stage, self._limit, self._small, self._large, self._only = stage, limit, small, large, only
        self._schema = stage.state.stored_schema

    @classmethod
    def of_table(cls, table: DeltaTable, stage: PositionStage, limit: ReadLimit, only: KeysOfShare | None = None) -> Self:
        """The rows of the position table ``table``, of the keys ``only`` if given; reads its small files whole.

        Raises ``StateCorruptError`` if a file does not match the table's log, or lacks a column.
        """
        files = [file for file in files_of(table) if only is None or only.may_be_in(file)]
        files.sort(key=lambda file: int(file["size_bytes"]))
        sizes, rows = (np.cumsum([int(file[name]) for file in files]) for name in ("size_bytes", "num_records"))
        largest = np.array([int(file["size_bytes"]) for file in files])
        n_small = int(((largest <= SMALL_BYTES) & (sizes <= WHOLE_BYTES) & (rows <= limit.rows)).sum())
        schema = stage.state.stored_schema
        small = read_whole(table, files[:n_small], schema, applied_before(stage).expression)
        small = small if only is None else only.rows(small)
        return cls(stage, limit, small, [_opened(table, file, schema.names) for file in files[n_small:]], only)

    def needed(self, rows: pa.Table) -> pa.Table | None:
        """The rows that new ``rows`` need; null if they exceed the limit."""
        stage, entries = self._stage, self.entries(rows)
        if entries is None:
            return None
        keys, codes, n_keys = keys_of([entries, rows], stage.keys)
        demand = Demand.of(stage, entries, rows, codes, n_keys)
        nodes = self.nodes(demand, keys)
        if nodes is None:
            return None
        parts = [entries.filter(pa.array(demand.entries)), nodes]
        if stage.state.deltas:
            arriving = arriving_values(stage, rows, codes[len(entries) :], n_keys)
            node_keys = keys_of([keys, nodes], stage.keys)[1][len(keys) :] if stage.keys else np.zeros(len(nodes), np.int64)
            of_entries = codes[: len(entries)]
            kept, demand = split_nodes(stage, entries, of_entries, nodes, node_keys, arriving, demand.active)
            leaves = self.nodes(demand, keys)
            if leaves is None:
                return None
            parts = [parts[0], nodes.filter(pa.array(kept)), leaves]
        found = pa.concat_tables(parts)
        return found if len(found) <= self._limit.rows else None

    def entries(self, touched: pa.Table) -> pa.Table | None:
        """The rows, except nodes, of keys that ``touched`` rows have or that are due; null if they exceed the limit.

        They have all columns of the state. A few rows of other keys may be among them.
        """
        groups = [(file, [group for group in self._groups(file) if file.span(group, KIND) != (NODE, NODE)]) for file in self._large]
        if self._exceed(groups):
            return None
        keys = KeyFilter(self._stage.keys)
        keys.add(touched)
        keys.add(self._due(groups))
        parts = [keys.passed(self._small.filter(pc.not_equal(self._small.column(KIND), NODE)))]
        for rows in self._read(groups, self._stage.state.entry_columns):
            parts.append(self._whole(keys.passed(rows.filter(pc.not_equal(rows.column(KIND), NODE)))))
            if sum(map(len, parts)) > self._limit.rows:
                return None
        return pa.concat_tables(parts)

    def _due(self, groups: Sequence[tuple[_LargeFile, Sequence[int]]]) -> pa.Table:
        """The keys that are due by a ``key`` row in these row groups or in small files, even if a later row supersedes it."""
        columns, watermark = [*self._stage.keys, BATCH, SEQUENCE, DUE], self._stage.clock.watermark
        early = [(file, [group for group in numbers if (file.span(group, DUE) or (_LEAST,))[0] <= watermark]) for file, numbers in groups]
        rows = [self._small.select(columns), *self._read(early, columns)]
        return pa.concat_tables([part.filter(pc.less_equal(part.column(DUE), watermark)).select(self._stage.keys) for part in rows])

    def _groups(self, file: _LargeFile) -> list[int]:
        """The row groups of ``file`` that may hold rows of the keys whose rows are read."""
        groups, only = range(file.parquet.metadata.num_row_groups), self._only
        return [group for group in groups if only is None or (span := file.buckets(group)) is None or only.may_be_between(*span)]

    def nodes(self, demand: Demand, keys: pa.Table) -> pa.Table | None:
        """The nodes of ``keys`` that their ``demand`` asks for, with all columns of the state; null if they exceed the limit."""
        active = np.flatnonzero(demand.active)
        chosen, keys = demand.only(active), keys.take(pa.array(active)) if keys.num_columns else keys
        buckets = buckets_of(keys) if keys.num_columns else None
        groups = [(file, self._with_nodes(file, chosen, buckets)) for file in self._large]
        if self._exceed(groups):
            return None
        among = KeyFilter(self._stage.keys)
        among.add(keys)
        found, n_found = [], 0
        read = chain([self._small], self._read(groups, self._stage.state.node_columns))
        for rows in _together(map(among.passed, read), max(_TOGETHER, 4 * len(active))):
            found.append(self._whole(rows.take(pa.array(_needed(rows, chosen, keys)))))
            n_found += len(found[-1])
            if n_found > self._limit.rows:
                return None
        return pa.concat_tables(found)

    def _with_nodes(self, file: _LargeFile, demand: Demand, buckets: Ints | None) -> list[int]:
        """The row groups of ``file`` that may hold needed nodes of the keys in ``buckets``."""
        groups = self._groups(file)
        if len(groups) * len(demand.active) > _MAX_COMPARED:
            return [group for group in groups if file.bounds(group) is not None]
        found = []
        for group in groups:
            bounds = file.bounds(group)
            if bounds is None:
                continue
            may_hold, span = demand.may_hold(bounds), file.buckets(group)
            if buckets is not None and span is not None:
                may_hold &= (buckets >= span[0]) & (buckets <= span[1])
            if may_hold.any():
                found.append(group)
        return found

    def _exceed(self, groups: Sequence[tuple[_LargeFile, Sequence[int]]]) -> bool:
        """Whether the chosen row groups, or a single one, are too large for this process to decode."""
        chosen = [file.parquet.metadata.row_group(group) for file, numbers in groups for group in numbers]
        size, most = sum(group.total_byte_size for group in chosen), max((group.num_rows for group in chosen), default=0)
        return size > self._limit.searched_bytes or most > self._limit.rows

    def _read(self, groups: Sequence[tuple[_LargeFile, Sequence[int]]], columns: Sequence[str]) -> Iterator[pa.Table]:
        """The rows over positions of earlier batches in the chosen row groups, with ``columns``, some row groups at a time."""
        schema = pa.schema([self._schema.field(name) for name in columns])
        together = min(_TOGETHER, max(1, self._limit.rows))
        for file, numbers in groups:
            lacking = [name for name in columns if name not in file.places]
            own = [name for name in columns if name not in lacking]
            for part in _in_parts(file.parquet.metadata, numbers, together):
                rows = file.parquet.read_row_groups(part, columns=own)
                for name in lacking:
                    rows = rows.append_column(name, pa.nulls(rows.num_rows, schema.field(name).type))
                rows = rows.select(list(columns)).cast(schema)
                before = pc.and_(pc.less(rows.column(BATCH), self._stage.batch), rows.column(SEQUENCE).is_valid())
                rows = rows if pc.all(before).as_py() else rows.filter(before)
                yield rows if self._only is None else self._only.rows(rows)

    def _whole(self, rows: pa.Table) -> pa.Table:
        """``rows`` with all columns of the state; those that were not read are null."""
        n, read = rows.num_rows, set(rows.column_names)
        columns = [rows.column(field.name) if field.name in read else pa.nulls(n, field.type) for field in self._schema]
        return pa.table(columns, schema=self._schema)


def applied_before(stage: PositionStage) -> Where:
    """The rows over positions of the batches before that of ``stage``."""
    return rows_before(stage.batch) & Present(SEQUENCE)


def _opened(table: DeltaTable, file: Mapping[str, Any], columns: Sequence[str]) -> _LargeFile:
    parquet = open_file(table.table_uri, file)
    schema = parquet.metadata.schema
    places = {schema.column(number).path: number for number in range(len(schema))}
    require_columns(table.table_uri, parquet.schema_arrow.names, columns)
    return _LargeFile(parquet, places)


def _in_parts(metadata: pq.FileMetaData, groups: Sequence[int], together: int) -> Iterator[list[int]]:
    """``groups`` in runs of at most ``together`` rows, or of one larger row group."""
    part: list[int] = []
    rows = 0
    for group in groups:
        if part and rows + metadata.row_group(group).num_rows > together:
            yield part
            part, rows = [], 0
        part.append(group)
        rows += metadata.row_group(group).num_rows
    if part:
        yield part


def _together(tables: Iterable[pa.Table], n_rows: int) -> Iterator[pa.Table]:
    """Concatenate successive ``tables`` so that all but the last have at least ``n_rows`` rows; columns that some lack are null."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= n_rows:
            yield pa.concat_tables(waiting, promote_options="default")
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting, promote_options="default")


def _needed(rows: pa.Table, demand: Demand, keys: pa.Table) -> Ints:
    """Indices of the nodes among ``rows`` that ``demand`` asks for; its keys are ``keys``."""
    n_keys = len(demand.active)
    columns = [pa.chunked_array([*keys.column(name).chunks, *rows.column(name).chunks]) for name in keys.column_names]
    codes = key_codes(columns, n_keys + len(rows))[0][n_keys:]
    at = np.flatnonzero(pc.equal(rows.column(KIND), NODE).to_numpy() & (codes < n_keys))
    nodes = rows.select([SEQUENCE, NODE_LEVEL, POSITION, FIRST, ABOVE]).take(pa.array(at))
    return np.asarray(at[demand.holds(nodes, codes[at])], np.int64)
