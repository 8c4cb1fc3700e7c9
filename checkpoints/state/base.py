"""The base of all kinds of state table: batches append rows, each batch once, and never change them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder

from windowmill.checkpoints.features import own_commit
from windowmill.checkpoints.quoting import quoted
from windowmill.checkpoints.state.reading import WHOLE_BYTES, read_whole, require_columns
from windowmill.checkpoints.state.wanted import Condition
from windowmill.checkpoints.stores import is_table, table_at
from windowmill.windowing.columnar.added_columns import BATCH, BUCKET, KIND, LAST, LEVEL, REACHING, SLICE
from windowmill.windowing.columnar.buckets import KeysOfShare
from windowmill.windowing.columnar.checksums import RowCheck

#: Commit properties of a rewrite of existing rows.
REWRITE = own_commit("maintenance")
#: A batch may read a table whole; up to this many superseded rows, or this many files, that is cheap.
FEW_ENTRIES, FEW_FILES = 100_000, 64
#: Size of the files in bytes up to which a table is compacted in memory without a request.
COMPACTED_BYTES = 1 << 30


class StateTable:
    """A table to which batches append rows that never change; readers take ``only`` the rows of these keys, if given."""

    def __init__(self, path: str, schema: pa.Schema, check: RowCheck | None = None, only: KeysOfShare | None = None) -> None:
        self._path, self._schema, self._only = path, schema, only
        self._check = RowCheck(path) if check is None else check
        self._exists = is_table(path)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the table."""
        return self._schema

    def _rows(
        self,
        table: DeltaTable,
        files: Sequence[Mapping[str, Any]],
        schema: pa.Schema,
        wanted: Condition,
        most_rows: int,
        may_lack: Collection[str] = (),
        *,
        checked: pc.Expression | None = None,
    ) -> pa.Table | None:
        """The ``wanted`` rows, read by this process; none if there are more than ``most_rows``.

        Parameters
        ----------
        files
            All files of the table.
        schema
            The columns to read.
        may_lack
            Columns that are null where the table lacks them.
        checked
            Has the rows read verified. Of a table read whole these are the rows that are verified before the ``wanted`` ones are chosen,
            which damage could hide. Null leaves verifying to the caller.
        """
        if self._only is not None:
            files = [file for file in files if self._only.may_be_in(file)]
        whole = sum(file["size_bytes"] for file in files) <= WHOLE_BYTES
        if whole:
            rows = self._own(read_whole(table, files, schema, wanted.expression if checked is None else checked, may_lack=may_lack))
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
            where = f"({where}) AND ({BUCKET} IS NULL OR {BUCKET} BETWEEN {low} AND {high})"
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
    return [name for name in (KIND, LEVEL, REACHING, SLICE, LAST, BUCKET) if name in columns]


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
    """Number of rows of ``table``, from its log."""
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
