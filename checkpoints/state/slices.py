"""The state table of slices: partials per key and slice, appended by every batch, read back for the windows still to come.

A row per key, slice and batch that touched it; readers combine them. Nodes over slices are rows of the same table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from windowmill.checkpoints.features import delta_rs_can_write
from windowmill.checkpoints.kept_tables import newest
from windowmill.checkpoints.opening import damage_told
from windowmill.checkpoints.quoting import backquoted, quoted
from windowmill.checkpoints.reading import WHOLE_BYTES, read_whole, require_columns
from windowmill.checkpoints.state.base import REWRITE, StateTable, files_of, number_of_rows
from windowmill.checkpoints.state.wanted import Condition, ReadLimit, Wanted, condition, may_hold
from windowmill.windowing.columnar.checksums import SUM, RowCheck
from windowmill.windowing.columnar.slices import BATCH, CLOSED, LEVEL, SLICE
from windowmill.windowing.kernels.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Rows and bytes of a file that successive batches' slices are merged into: they are sorted in memory.
SORTED_ROWS, SORTED_BYTES = 2_000_000, 64 << 20


def state_schema(keys: dict[str, pa.DataType], layout: Layout, *, nodes: bool = False) -> pa.Schema:
    """Columns of the state table: keys, start of the slice, ``_closed`` (windows that end later count it; null: all), batch, partials.

    With ``nodes`` also ``_level``: rows where it is not 0 are nodes, see :mod:`windowmill.windowing.nodes`.
    """
    own = [(SLICE, pa.int64()), *([(LEVEL, pa.int64())] if nodes else []), (CLOSED, pa.int64()), (BATCH, pa.int64())]
    return pa.schema([*keys.items(), *own, *((stored.name, stored.type) for stored in layout.fields)])


class SliceTable(StateTable):
    """The slices of one pipeline at ``path``."""

    def __init__(self, spark: SparkSession, path: str, schema: pa.Schema, check: RowCheck | None = None) -> None:
        super().__init__(spark, path, schema, check)
        if LEVEL in schema.names:
            self._order = _reading_order(schema.names)

    def restore(self, wanted: Wanted, *, before_batch: int) -> DataFrame | None:
        """The ``wanted`` rows as the batches before ``before_batch`` left them, in Spark; none where there is no table yet.

        An attempt that died after remembering left rows of ``before_batch`` itself: they are not read, and the retry's are the same.
        Rows have their checksums, which whoever packs them verifies.
        """
        if not self._exists:
            return None
        rows = self._on_spark()
        require_columns(self._path, rows.columns, self._schema.names)
        return rows.where(condition(wanted, before_batch=before_batch).sql).select(*map(backquoted, self._schema.names))

    def read(self, wanted: Wanted, *, before_batch: int, limit: ReadLimit) -> pa.Table | None:
        """As :meth:`restore`, but read by this process and verified; none where that exceeds the ``limit``."""
        if not self._exists:
            return self._schema.empty_table()
        with damage_told(self._path):
            table = newest(self._path)
            files = files_of(table)
            if limit.is_exceeded(wanted, [file for file in files if may_hold(file, wanted)]):
                return None
            return self._read(table, files, condition(wanted, before_batch=before_batch), limit.rows)

    def files_with(self, wanted: Wanted) -> list[dict[str, Any]]:
        """What the table's log says of each file that may hold any of what is ``wanted``."""
        return [file for file in files_of(newest(self._path)) if may_hold(file, wanted)]

    def _read(self, table: DeltaTable, files: Sequence[Mapping[str, Any]], wanted: Condition, most_rows: int) -> pa.Table | None:
        """The rows that are ``wanted``, verified; none if they are more than ``most_rows``. ``files`` are all of the table's."""
        if sum(file["size_bytes"] for file in files) <= WHOLE_BYTES:
            rows = read_whole(table, files, self._schema, wanted.expression)
        else:
            rows = self._queried(table, wanted.sql, most_rows)
        if rows.num_rows > most_rows:
            return None
        if SUM not in self._schema.names:
            return rows
        self._check.verify(rows)
        return rows.drop_columns([SUM])

    def _queried(self, table: DeltaTable, where: str, most_rows: int) -> pa.Table:
        """The rows where a condition holds; not many more than ``most_rows``."""
        require_columns(self._path, pa.schema(table.schema().to_arrow()).names, self._schema.names)
        names = ", ".join(map(quoted, self._schema.names))
        found = pa.RecordBatchReader.from_stream(
            QueryBuilder().register("state", table).execute(f"SELECT {names} FROM state WHERE {where}")
        )
        batches, rows = [], 0
        for batch in found:
            batches.append(batch)
            rows += batch.num_rows
            if rows > most_rows:
                break
        return pa.Table.from_batches(batches, found.schema).cast(self._schema)


def has_nodes(path: str) -> bool:
    """Whether the state table at ``path`` holds nodes beside slices; a table keeps the form that it was made in."""
    return LEVEL in DeltaTable(path).schema().to_arrow().names


def _reading_order(columns: Sequence[str]) -> list[str]:
    """What slices and nodes are sorted by: a reader of few of them then leaves out most pages of a file by their statistics."""
    return [LEVEL, SLICE] if LEVEL in columns else [SLICE]


def compact_slices(path: str, needed_from: int | None) -> int:
    """Merge the files of successive batches at ``path``, and drop the rows that start before ``needed_from``; how many went. No JVM.

    A file gets at most ``SORTED_ROWS`` and ``SORTED_BYTES``, in the order of level and start. Files of distant batches never meet in one:
    a file's statistics span little of the axis. Where a batch wrote more at once, its files stay, without what is dropped. A table whose
    features delta-rs does not write stays as it is.
    """
    if not delta_rs_can_write(path):
        return 0
    rows_before = number_of_rows(DeltaTable(path))
    for first, last, files in _spans_of_batches(files_of(DeltaTable(path))):
        table = DeltaTable(path)
        within = f"{BATCH} >= {first} AND {BATCH} <= {last}"
        expired = needed_from is not None and any(file.get(f"min.{SLICE}") is None or file[f"min.{SLICE}"] < needed_from for file in files)
        if not _fit(files):
            if expired:
                table.delete(f"{within} AND {SLICE} < {needed_from}", commit_properties=REWRITE)
        elif expired or len(files) > 1:
            columns = pa.schema(table.schema().to_arrow()).names
            kept = within if needed_from is None else f"{within} AND {SLICE} >= {needed_from}"
            query = f"SELECT {', '.join(map(quoted, columns))} FROM state WHERE {kept} ORDER BY {', '.join(_reading_order(columns))}"
            rows = QueryBuilder().register("state", table).execute(query)
            # On the version that was read: rows that another has appended since would be lost.
            write_deltalake(table, rows, mode="overwrite", predicate=within, commit_properties=REWRITE)
    return rows_before - number_of_rows(DeltaTable(path))


def _spans_of_batches(files: Sequence[dict[str, Any]]) -> list[tuple[int, int, list[dict[str, Any]]]]:
    """First and last batch, and the files, of spans of batches that share no file; spans that fit into one file together are one."""
    spans = [(*_batches(file), [file]) for file in files]
    spans.sort(key=lambda span: span[:2])
    for belong in (lambda span, other: other[0] <= span[1], lambda span, other: _fit([*span[2], *other[2]])):
        merged = spans[:1]
        for other in spans[1:]:
            first, last, together = merged[-1]
            if belong(merged[-1], other):
                merged[-1] = (first, max(last, other[1]), [*together, *other[2]])
            else:
                merged.append(other)
        spans = merged
    return spans


def _batches(file: Mapping[str, Any]) -> tuple[int, int]:
    """First and last batch of which a file has rows; any, where there are no statistics."""
    low, high = file.get(f"min.{BATCH}"), file.get(f"max.{BATCH}")
    return (0, (1 << 63) - 1) if low is None or high is None else (low, high)


def _fit(files: Sequence[Mapping[str, Any]]) -> bool:
    rows, size = (sum(int(file[name]) for file in files) for name in ("num_records", "size_bytes"))
    return rows <= SORTED_ROWS and size <= SORTED_BYTES
