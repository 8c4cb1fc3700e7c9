"""The state of a pipeline as its parts read it: the state table, or rows in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from windowmill.checkpoints.state.compaction import are_needed
from windowmill.checkpoints.state.positions import PositionTable, SearchedRows, applied_before
from windowmill.checkpoints.state.reading import ReadLimit, Wanted, Where, rows_before, rows_of
from windowmill.checkpoints.state.tables import LogTable, PartialTable, are_latest, entries_before, has_nodes, of_keys
from windowmill.checkpoints.stores import is_table
from windowmill.windowing.columnar.added_columns import SUM

if TYPE_CHECKING:
    from windowmill.windowing.columnar.hashes import KeysOfShare, RowCheck
    from windowmill.windowing.columnar.positions import PositionStage
    from windowmill.windowing.kernels.combine import Bools

#: Number of tables of appended rows that are merged into one: a read visits each.
_MAX_TABLES = 64
#: Number of rows of a part up to which none are dropped: a read of them takes less time than finding those that are needed.
FEW_ROWS = 4_096


@dataclass(frozen=True)
class DeltaState:
    """The state table at the path ``name``."""

    name: str
    #: Verifies rows.
    check: RowCheck
    #: Whether a batch replaces all rows.
    replaced: bool = False
    #: The keys whose rows are read; null for all.
    only: KeysOfShare | None = None

    @property
    def holds_nodes(self) -> bool:
        # Other batches go on with the columns that the rows have.
        return self.replaced or not is_table(self.name) or has_nodes(self.name)

    def partials(self, schema: pa.Schema, wanted: Wanted, *, before_batch: int, limit: ReadLimit) -> pa.Table | None:
        """As :meth:`.PartialTable.read`, with the columns of ``schema``."""
        return PartialTable(self.name, schema, self.check, self.only).read(wanted, before_batch=before_batch, limit=limit)

    def positions(self, schema: pa.Schema, stage: PositionStage, rows: pa.Table, limit: ReadLimit) -> pa.Table | None:
        """As :meth:`.PositionTable.read`, with the columns of ``schema``."""
        return PositionTable(self.name, schema, self.check, self.only).read(stage, rows, limit)

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
        """As :meth:`.LogTable.read`, with the columns of ``schema``, of which the state may lack some until a batch adds them."""
        table = LogTable(self.name, schema, self.check, self.only, may_lack=may_lack)
        return table.read(touched, keys, before_batch=before_batch, watermark=watermark, limit=limit)


class MemoryState:
    """The rows that batches have appended. Readers check only the limit on rows."""

    name = "in memory"
    holds_nodes = True

    def __init__(self) -> None:
        # By the names of the columns: each part has its own.
        self._tables: dict[frozenset[str], list[pa.Table]] = {}
        self._left: dict[frozenset[str], int] = {}

    @property
    def rows(self) -> pa.Table | None:
        """All rows, each null in the columns of other parts; null if there are none."""
        every = [table for tables in self._tables.values() for table in tables]
        return pa.concat_tables(every, promote_options="default") if every else None

    def append(self, rows: pa.Table) -> None:
        """Append ``rows`` that a part adds with a batch."""
        tables = self._tables.setdefault(frozenset(rows.column_names), [])
        tables.append(rows)
        if len(tables) > _MAX_TABLES:
            tables[:] = [pa.concat_tables(tables).combine_chunks()]

    def drop(self, schema: pa.Schema, needed: Callable[[pa.Table], Bools]) -> None:
        """Drop those rows of a part that are not ``needed``, if its rows have doubled since they were last dropped."""
        part = frozenset(schema.names)
        tables = self._tables.get(part, [])
        if sum(map(len, tables)) > 2 * self._left.get(part, 0) + FEW_ROWS:
            rows = pa.concat_tables(tables)
            tables[:] = [rows.filter(pa.array(needed(rows))).combine_chunks()]
            self._left[part] = len(tables[0])

    def partials(self, schema: pa.Schema, wanted: Wanted, *, before_batch: int, limit: ReadLimit) -> pa.Table | None:
        """The ``wanted`` rows, without checksums; none if they exceed ``limit``."""
        rows = self._chosen(schema, rows_before(before_batch) & rows_of(wanted))
        return rows.drop_columns([SUM]) if rows.num_rows <= limit.rows else None

    def positions(self, schema: pa.Schema, stage: PositionStage, rows: pa.Table, limit: ReadLimit) -> pa.Table | None:
        """The rows that new ``rows`` need; none if they exceed ``limit``."""
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
        """The entries of the keys that are in ``touched`` or due by ``watermark``, without checksums; none if the log exceeds ``limit``."""
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
