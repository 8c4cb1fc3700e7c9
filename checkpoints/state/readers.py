"""The state of a pipeline as its parts read it, in this process or a task: the state table, or rows in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from windowmill.checkpoints.delta_tables import files_of, newest
from windowmill.checkpoints.quoting import quoted
from windowmill.checkpoints.state.positions import SearchedRows, applied_before
from windowmill.checkpoints.state.reading import (
    WHOLE_BYTES,
    ReadLimit,
    Wanted,
    Where,
    read_whole,
    reporting_damage,
    require_columns,
    rows_before,
    rows_of,
    rows_of_part,
)
from windowmill.checkpoints.state.tables import are_latest, are_needed, entries_before, has_nodes, of_keys
from windowmill.checkpoints.stores import is_table
from windowmill.windowing.columnar.added_columns import BUCKET, KIND, SUM
from windowmill.windowing.columnar.hashes import without_checksums
from windowmill.windowing.columnar.positions import SEQUENCE

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
    """The state table at the path ``name``, to which batches append rows that never change.

    Its reads give the rows with the columns of ``schema``, and none if they exceed the ``limit``.
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
        # Other batches go on with the columns that the rows have.
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
            return rows if rows is None or checked is None else without_checksums(rows)

    def positions(self, schema: pa.Schema, stage: PositionStage, rows: pa.Table, limit: ReadLimit) -> pa.Table | None:
        """The rows over positions of the batches before that of ``stage`` that new ``rows`` need; the caller verifies the checksums."""
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

        They are verified, and without their checksums. A run reads the whole log (:mod:`windowmill.windowing.columnar.keyed`) once.
        ``touched`` are new rows with the log's columns, of which the state ``may_lack`` some until a batch adds them.
        """
        if not is_table(self.name):
            return schema.empty_table()
        with reporting_damage(self.name):
            table = newest(self.name)
            files, names = files_of(table), pa.schema(table.schema().to_arrow()).names
            # Files of other parts have only nulls in the log's columns.
            if limit.is_exceeded_by([file for file in files if file.get(f"null_count.{KIND}") != file["num_records"]]):
                return None
            # A column that entries do not have separates them from rows of positions; files of a spec without positions lack it.
            read = schema.append(pa.field(SEQUENCE, pa.string())) if SEQUENCE in names else schema
            log = self._rows(table, files, read, entries_before(names, before_batch), limit.rows, (*may_lack, SEQUENCE))
            if log is None:
                return None
            entries = log.select(schema.names)
            # Before any is left out: a damaged key or instant would hide a key that is due.
            self.check.verify(entries)
            return of_keys(without_checksums(entries), touched, list(keys.values()), watermark)

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
        return without_checksums(rows) if rows.num_rows <= limit.rows else None

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
        entries = without_checksums(self._chosen(schema, entries_before(schema.names, before_batch)))
        return of_keys(entries, touched, columns, watermark) if entries.num_rows <= limit.rows else None

    def _chosen(self, schema: pa.Schema, wanted: Where) -> pa.Table:
        """The ``wanted`` rows of the part whose rows have the columns of ``schema``."""
        tables = self._tables.get(frozenset(schema.names), ())
        rows = pa.concat_tables([schema.empty_table(), *(table.select(schema.names) for table in tables)])
        return rows.filter(wanted.expression)


#: The state of one pipeline.
State = DeltaState | MemoryState
