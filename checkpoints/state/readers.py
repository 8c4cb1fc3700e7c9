"""Readers of the state, one for each kind of part: of the state table, or of a state in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from windowmill.checkpoints.state.compaction import are_needed
from windowmill.checkpoints.state.positions import PositionTable, SearchedRows, applied_before
from windowmill.checkpoints.state.reading import ReadLimit, Wanted, Where, rows_before, rows_of
from windowmill.checkpoints.state.tables import LogTable, PartialTable, are_latest, entries_before, has_nodes, of_keys
from windowmill.checkpoints.stores import is_table
from windowmill.windowing.columnar.hashes import without_checksums

if TYPE_CHECKING:
    from windowmill.windowing.columnar.hashes import KeysOfShare, RowCheck
    from windowmill.windowing.columnar.positions import PositionStage
    from windowmill.windowing.kernels.combine import Bools

#: Number of tables of appended rows that are merged into one: a read visits each.
_MAX_TABLES = 64
#: Number of rows of a part up to which none are dropped: a read of them takes less time than finding those that are needed.
FEW_ROWS = 4_096


class PartialReader(Protocol):
    """Reads slices or sessions; methods as those of :class:`.PartialTable`."""

    def read(self, wanted: Wanted, *, before_batch: int, limit: ReadLimit) -> pa.Table | None: ...


class PositionReader(Protocol):
    """Reads windows over positions; methods as those of :class:`.PositionTable`."""

    def read(self, stage: PositionStage, rows: pa.Table, limit: ReadLimit) -> pa.Table | None: ...


class LogReader(Protocol):
    """Reads live rows; methods as those of :class:`.LogTable`."""

    def read(
        self, touched: pa.Table, keys: Mapping[str, str], *, before_batch: int, watermark: int, limit: ReadLimit
    ) -> pa.Table | None: ...


class State(Protocol):
    """The state of one pipeline."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def holds_nodes(self) -> bool:
        """Whether it may hold nodes over slices."""
        ...

    def partials(self, schema: pa.Schema, /) -> PartialReader:
        """Reads slices, or sessions, with the columns of ``schema``."""
        ...

    def positions(self, schema: pa.Schema, /) -> PositionReader:
        """Reads windows over positions, with the columns of ``schema``."""
        ...

    def log(self, schema: pa.Schema, may_lack: Collection[str], /) -> LogReader:
        """Reads live rows, with the columns of ``schema``, of which the state may lack some until a batch adds them."""
        ...


@dataclass(frozen=True)
class DeltaState:
    """The state table at the path ``name``.

    Attributes
    ----------
    check
        Verifies rows.
    replaced
        Whether a batch replaces all rows.
    only
        The keys whose rows are read; null for all.
    """

    name: str
    check: RowCheck
    replaced: bool = False
    only: KeysOfShare | None = None

    @property
    def holds_nodes(self) -> bool:
        # Other batches go on with the columns that the rows have.
        return self.replaced or not is_table(self.name) or has_nodes(self.name)

    def partials(self, schema: pa.Schema, /) -> PartialTable:
        return PartialTable(self.name, schema, self.check, self.only)

    def positions(self, schema: pa.Schema, /) -> PositionTable:
        return PositionTable(self.name, schema, self.check, self.only)

    def log(self, schema: pa.Schema, may_lack: Collection[str], /) -> LogTable:
        return LogTable(self.name, schema, self.check, self.only, may_lack=may_lack)


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

    def rows_of(self, schema: pa.Schema) -> pa.Table:
        """The rows of the part whose rows have the columns of ``schema``."""
        tables = self._tables.get(frozenset(schema.names), ())
        return pa.concat_tables([schema.empty_table(), *(table.select(schema.names) for table in tables)])

    def drop(self, schema: pa.Schema, needed: Callable[[pa.Table], Bools]) -> None:
        """Drop those rows of a part that are not ``needed``, if its rows have doubled since they were last dropped."""
        part = frozenset(schema.names)
        tables = self._tables.get(part, [])
        if sum(map(len, tables)) > 2 * self._left.get(part, 0) + FEW_ROWS:
            rows = pa.concat_tables(tables)
            tables[:] = [rows.filter(pa.array(needed(rows))).combine_chunks()]
            self._left[part] = len(tables[0])

    def partials(self, schema: pa.Schema, /) -> MemoryPartials:
        """Reads slices, or sessions, with the columns of ``schema``."""
        return MemoryPartials(self, schema)

    def positions(self, schema: pa.Schema, /) -> MemoryPositions:
        """Reads windows over positions, with the columns of ``schema``."""
        return MemoryPositions(self, schema)

    def log(self, schema: pa.Schema, _may_lack: Collection[str], /) -> MemoryLog:
        """Reads live rows, with the columns of ``schema``, none of which is missing."""
        return MemoryLog(self, schema)


@dataclass(frozen=True)
class _Reader:
    state: MemoryState
    schema: pa.Schema

    def _chosen(self, wanted: Where) -> pa.Table:
        return self.state.rows_of(self.schema).filter(wanted.expression)


class MemoryPartials(_Reader):
    """As :class:`windowmill.checkpoints.state.tables.PartialTable`."""

    def read(self, wanted: Wanted, *, before_batch: int, limit: ReadLimit) -> pa.Table | None:
        """The ``wanted`` rows, without checksums; none if they exceed ``limit``."""
        rows = self._chosen(rows_before(before_batch) & rows_of(wanted))
        return without_checksums(rows) if rows.num_rows <= limit.rows else None


class MemoryPositions(_Reader):
    """As :class:`windowmill.checkpoints.state.positions.PositionTable`."""

    def read(self, stage: PositionStage, rows: pa.Table, limit: ReadLimit) -> pa.Table | None:
        """The rows that new ``rows`` need; none if they exceed ``limit``."""
        self.state.drop(self.schema, lambda stored: are_needed(stored, stage.keys))
        return SearchedRows(stage, limit, self._chosen(applied_before(stage))).needed(rows)


class MemoryLog(_Reader):
    """As :class:`windowmill.checkpoints.state.tables.LogTable`."""

    def read(self, touched: pa.Table, keys: Mapping[str, str], *, before_batch: int, watermark: int, limit: ReadLimit) -> pa.Table | None:
        """The entries of the keys that are in ``touched`` or due by ``watermark``, without checksums; none if the log exceeds ``limit``."""
        self.state.drop(self.schema, lambda stored: are_latest(stored, list(keys.values())))
        entries = without_checksums(self._chosen(entries_before(self.schema.names, before_batch)))
        return of_keys(entries, touched, list(keys.values()), watermark) if entries.num_rows <= limit.rows else None
