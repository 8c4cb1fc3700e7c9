"""The state table of windows over positions, read by search: small files whole, of the others row groups and pages.

A run leaves small files, and compaction leaves large ones whose row groups are few positions of few keys each. So what is read of a large
file follows from what a batch needs, not from the size of the state.

See :mod:`windowmill.windowing.columnar.positions` for the kinds of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from windowmill.checkpoints.delta_tables import files_of
from windowmill.checkpoints.state.reading import (
    WHOLE_BYTES,
    Present,
    ReadLimit,
    Where,
    open_file,
    read_whole,
    require_columns,
    rows_before,
)
from windowmill.windowing.columnar.added_columns import BATCH, BUCKET, DUE, KIND
from windowmill.windowing.columnar.hashes import KeyFilter, KeysOfShare, buckets_of
from windowmill.windowing.columnar.position_reads import Bounds, Demand, arriving_values, split_nodes
from windowmill.windowing.columnar.positions import ABOVE, FIRST, NODE, NODE_LEVEL, POSITION, SEQUENCE, PositionStage
from windowmill.windowing.columnar.rows import key_codes, keys_of
from windowmill.windowing.kernels.combine import Ints

#: Size of a file that is read whole; choosing among its few row groups would save nothing.
SMALL_BYTES = 1 << 20
#: Least number of rows of which masks are computed together: each computation takes time for every key, too.
_TOGETHER = 1 << 17
#: Products of keys and row groups up to which each row group is compared with each key.
_MAX_COMPARED = 10_000_000
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True)
class _Large:
    """A file of which row groups are chosen; ``span`` gives the least and greatest value of a column in a row group, if known."""

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

    These are ``small`` rows in memory, with the columns of the state, and ``large`` files of which row groups are chosen, and of these
    rows of the keys ``only``, if given.
    """

    def __init__(
        self, stage: PositionStage, limit: ReadLimit, small: pa.Table, large: Sequence[_Large] = (), only: KeysOfShare | None = None
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
        """The rows that are no nodes, of the keys of ``touched`` rows and of keys that are due; null if they exceed the limit.

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

    def _due(self, groups: Sequence[tuple[_Large, Sequence[int]]]) -> pa.Table:
        """The keys that are due by a ``key`` row in these row groups or in small files, even if a later row supersedes it."""
        columns, watermark = [*self._stage.keys, BATCH, SEQUENCE, DUE], self._stage.clock.watermark
        early = [(file, [group for group in numbers if (file.span(group, DUE) or (_LEAST,))[0] <= watermark]) for file, numbers in groups]
        rows = [self._small.select(columns), *self._read(early, columns)]
        return pa.concat_tables([part.filter(pc.less_equal(part.column(DUE), watermark)).select(self._stage.keys) for part in rows])

    def _groups(self, file: _Large) -> list[int]:
        """The row groups of ``file`` that may hold rows of the keys whose rows are read."""
        groups, only = range(file.parquet.metadata.num_row_groups), self._only
        return [group for group in groups if only is None or (span := file.buckets(group)) is None or only.may_be_between(*span)]

    def nodes(self, demand: Demand, keys: pa.Table) -> pa.Table | None:
        """The nodes that ``demand`` asks for of its keys ``keys``, with all columns of the state; null if they exceed the limit."""
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

    def _with_nodes(self, file: _Large, demand: Demand, buckets: Ints | None) -> list[int]:
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

    def _exceed(self, groups: Sequence[tuple[_Large, Sequence[int]]]) -> bool:
        """Whether the chosen row groups are more than this process decodes, or one of them is."""
        chosen = [file.parquet.metadata.row_group(group) for file, numbers in groups for group in numbers]
        size, most = sum(group.total_byte_size for group in chosen), max((group.num_rows for group in chosen), default=0)
        return size > self._limit.searched_bytes or most > self._limit.rows

    def _read(self, groups: Sequence[tuple[_Large, Sequence[int]]], columns: Sequence[str]) -> Iterator[pa.Table]:
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


def _opened(table: DeltaTable, file: Mapping[str, Any], columns: Sequence[str]) -> _Large:
    parquet = open_file(table.table_uri, file)
    schema = parquet.metadata.schema
    places = {schema.column(number).path: number for number in range(len(schema))}
    require_columns(table.table_uri, parquet.schema_arrow.names, columns)
    return _Large(parquet, places)


def _in_parts(metadata: pq.FileMetaData, groups: Sequence[int], together: int) -> Iterator[list[int]]:
    """``groups`` in runs of up to about so many rows."""
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
    """Concatenate successive ``tables`` until each has at least ``n_rows``, but the last. A column that some lack is null there."""
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
