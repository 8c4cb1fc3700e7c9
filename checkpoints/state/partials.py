"""The state table of partials: every batch appends partials of slices and sessions, which later batches read for their windows.

Each batch adds one row for each slice of a key that it touches; readers combine the rows of a slice. Nodes over slices are rows of the same
table. Each batch also adds one row for each open session of a key that it touches; the latest row holds the whole session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from windowmill.checkpoints.delta_tables import newest
from windowmill.checkpoints.features import delta_rs_can_write
from windowmill.checkpoints.quoting import quoted
from windowmill.checkpoints.state.base import REWRITE, BatchFiles, StateTable, by_batches, files_of, number_of_rows, order_of
from windowmill.checkpoints.state.reading import reporting_damage
from windowmill.checkpoints.state.wanted import (
    OpenSessions,
    ReadLimit,
    Wanted,
    condition,
    may_hold,
    open_condition,
    rows_of_part,
    span_condition,
)
from windowmill.checkpoints.stores import table_at
from windowmill.windowing.columnar.added_columns import ARRIVAL, BATCH, CLOSED, LAST, LEVEL, REACHING, SLICE, SUM
from windowmill.windowing.columnar.checksums import without_checksums
from windowmill.windowing.columnar.known_spans import span_columns
from windowmill.windowing.kernels.layout import Layout

#: Limits on rows and bytes of a file into which successive batches' slices are merged: the merge sorts them in memory.
SORTED_ROWS, SORTED_BYTES = 2_000_000, 64 << 20
#: Column of a merge beside those of the state, quoted: whether a later batch has superseded the row.
_SUPERSEDED = '"_ superseded"'


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
    are nodes, see :mod:`windowmill.windowing.nodes`. ``known`` adds the spans of the windows of these names, in rows of their own.
    ``intervals`` adds ``_reaching``, which is 1 for events that began before the slice and last into it, and 0 for others. ``revises`` adds
    ``_arrival``, the moment at which the late rows of the slice arrived; null for rows in time.
    """
    own = [SLICE, *([LEVEL] if nodes else []), *([REACHING] if intervals else []), CLOSED, *([ARRIVAL] if revises else [])]
    own += [*span_columns(known), BATCH]
    return pa.schema([*keys.items(), *((name, pa.int64()) for name in own), *layout.stored_columns])


class PartialTable(StateTable):
    """The table at ``path`` of one pipeline's slices and sessions; it reads and appends the columns of ``schema``."""

    def read(self, wanted: Wanted, *, before_batch: int, limit: ReadLimit) -> pa.Table | None:
        """The ``wanted`` rows of the batches before ``before_batch``, verified; none if they exceed ``limit``.

        A failed attempt may have left rows of ``before_batch`` itself. They are not read; the retry computes the same rows.
        """
        if not self._exists:
            return self._schema.empty_table()
        with reporting_damage(self._path):
            table = newest(self._path)
            files = files_of(table)
            if limit.is_exceeded(wanted, [file for file in files if may_hold(file, wanted)]):
                return None
            return self._read(table, files, wanted, before_batch, limit.rows)

    def files_with(self, wanted: Wanted) -> list[dict[str, Any]]:
        """The log's entry of each file that may hold ``wanted`` rows."""
        return [file for file in files_of(newest(self._path)) if may_hold(file, wanted)]

    def _read(
        self, table: DeltaTable, files: Sequence[Mapping[str, Any]], wanted: Wanted, before_batch: int, most_rows: int
    ) -> pa.Table | None:
        """The ``wanted`` rows, verified; none if there are more than ``most_rows``. ``files`` are all files of the table."""
        checked = rows_of_part(wanted) if SUM in self._schema.names else None
        rows = self._rows(table, files, self._schema, condition(wanted, before_batch=before_batch), most_rows, checked=checked)
        if rows is None or checked is None:
            return rows
        return without_checksums(rows)


def has_nodes(path: str) -> bool:
    """Whether the state table at ``path`` also holds nodes; this is fixed when the table is created."""
    return LEVEL in table_at(path).schema().to_arrow().names


@dataclass(frozen=True)
class NeededRows:
    """The rows that a later batch may read.

    Attributes
    ----------
    sql
        The condition that selects them.
    low
        For each column, a value from which on all rows are needed.
    superseded
        The SQL expression that finds, of the rows that ``sql`` selects, those that later batches have superseded.
    """

    sql: str
    low: Mapping[str, int]
    superseded: str = "false"

    @classmethod
    def slices_from(cls, start: int) -> NeededRows:
        """Slices and nodes that start at or after ``start``."""
        return cls(f"{SLICE} >= {start}", {SLICE: start})

    @classmethod
    def sessions(cls, wanted: OpenSessions) -> NeededRows:
        """Fragments of open sessions."""
        return cls(open_condition(wanted), {LAST: max(map(wanted.last_after, wanted.gaps)) + 1})

    @classmethod
    def spans(cls, keys: Sequence[str], columns: Sequence[str], before_batch: int) -> NeededRows:
        """For each key the latest spans of the batches before ``before_batch``; those of that batch, which may have failed, stay too."""
        span = span_condition(columns)
        earlier = f"{span} AND {BATCH} < {before_batch}"
        by = ", ".join([*map(quoted, keys), f"({earlier}) IS TRUE"])
        return cls(span, {}, f"(({earlier}) IS TRUE AND row_number() OVER (PARTITION BY {by} ORDER BY {BATCH} DESC) > 1)")

    @classmethod
    def all_but_old_spans(cls, keys: Sequence[str], columns: Sequence[str], before_batch: int) -> NeededRows:
        """Everything except the spans that are superseded, by :meth:`spans`."""
        return replace(cls.spans(keys, columns, before_batch), sql="true")

    def __or__(self, other: NeededRows) -> NeededRows:
        """The rows that either needs."""
        superseded = f"{self.superseded} OR {other.superseded}"
        return NeededRows(f"{self.sql} OR {other.sql}", {**self.low, **other.low}, superseded)

    def latest_of(self, rows: str) -> str:
        """What follows FROM in a query, up to a condition, for the ``rows`` (a table and a condition) that are not superseded."""
        return f"(SELECT *, {self.superseded} AS {_SUPERSEDED} FROM {rows}) WHERE NOT {_SUPERSEDED}"

    def others_in(self, file: Mapping[str, Any]) -> bool:
        """Whether the statistics of ``file`` allow rows that are not needed."""
        return any(
            file.get(f"null_count.{column}") != file["num_records"] and _least(file, column) < low for column, low in self.low.items()
        )


def compact_partials(path: str, needed: NeededRows | None) -> int:
    """Merge the files of successive batches at ``path`` and drop all but ``needed`` rows, if given; returns their number. No JVM.

    A merged file holds at most ``SORTED_ROWS`` rows and ``SORTED_BYTES`` bytes, sorted as they are read. Only successive batches share
    a file, so its statistics span a short stretch of the axis. The files of a larger batch are not merged, only stripped of dropped rows.
    A table with features that delta-rs cannot write is left as it is.
    """
    if not delta_rs_can_write(path):
        return 0
    rows_before = number_of_rows(table_at(path))
    for group in _merged(files_of(table_at(path))):
        table = table_at(path)
        within = f"{BATCH} >= {group.first} AND {BATCH} <= {group.last}"
        expired = needed is not None and any(map(needed.others_in, group.files))
        if not _fit(group):
            if needed is not None and expired:
                table.delete(f"{within} AND ({needed.sql}) IS NOT TRUE", commit_properties=REWRITE)
        elif expired or len(group.files) > 1:
            columns = pa.schema(table.schema().to_arrow()).names
            rows = f"state WHERE {within}"
            if needed is not None:
                rows = f"{needed.latest_of(rows)} AND ({needed.sql})"
            query = f"SELECT {', '.join(map(quoted, columns))} FROM {rows} ORDER BY {', '.join(order_of(columns))}"
            merged = QueryBuilder().register("state", table).execute(query)
            # Write to the version that was read: otherwise rows that another writer has appended since would be lost.
            write_deltalake(table, merged, mode="overwrite", predicate=within, commit_properties=REWRITE)
    return rows_before - number_of_rows(table_at(path))


def _least(file: Mapping[str, Any], column: str) -> int:
    """The least value of ``column`` in ``file``; the least of all if there are no statistics."""
    low = file.get(f"min.{column}")
    return -(1 << 63) if low is None else int(low)


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
