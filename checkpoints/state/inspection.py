"""Inspects a state table: its content, and what the next run would restore for a key. Read-only; no JVM.

Each query reads only the columns that it needs and pushes the key down to the files, so tables may be larger than memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import QueryBuilder

from windowmill.checkpoints.delta_tables import sizes_of
from windowmill.checkpoints.quoting import quoted, sql_text
from windowmill.checkpoints.state.compaction import are_latest, are_needed, shares_of
from windowmill.checkpoints.state.reading import OpenSessions, rows_of, rows_of_spans
from windowmill.checkpoints.state.tables import number_of_rows
from windowmill.checkpoints.stores import table_at
from windowmill.windowing.axis import to_us
from windowmill.windowing.columnar.added_columns import (
    BATCH,
    CLOSED,
    DUE,
    FIRST,
    GAP,
    GONE,
    HEAD,
    KIND,
    LAST,
    LEVEL,
    LIVE,
    LONGEST,
    NODE_LEVEL,
    NUMBER_OF,
    POSITION,
    REACHING,
    SEQUENCE,
    SLICE,
    THROUGH,
    TIME,
    WATERMARK_OF,
)
from windowmill.windowing.columnar.keyed import KEY_ENTRY, ROW, LogTableOfWindow
from windowmill.windowing.columnar.known_spans import first_of, last_of, span_columns
from windowmill.windowing.columnar.positions import NODE, WAITING
from windowmill.windowing.columnar.sessions import latest_fragments
from windowmill.windowing.columnar.slice_partials import marks_of
from windowmill.windowing.errors import SpecError
from windowmill.windowing.kernels.combine import Ints


class Inspection:
    """A state table at its newest version, as the batch ``before_batch`` would see it: without rows that a failed attempt at it left."""

    def __init__(self, path: str, keys: Sequence[str], before_batch: int) -> None:
        self._table = table_at(path)
        self._keys, self.before_batch = list(keys), before_batch
        self.schema = pa.schema(self._table.schema().to_arrow())

    def files(self) -> dict[str, int]:
        """The table's version, and its numbers of files, bytes and entries."""
        sizes = sizes_of(self._table).values()
        return {"version": self._table.version(), "files": len(sizes), "bytes": sum(sizes), "entries": number_of_rows(self._table)}

    def largest_keys(self, limit: int) -> list[dict[str, Any]]:
        """The ``limit`` keys with the most entries: key columns, and ``entries``."""
        names = ", ".join(map(quoted, self._keys))
        return self._rows(
            f"SELECT {names}, count(*) AS entries FROM state WHERE {BATCH} < {self.before_batch} "
            f"GROUP BY {names} ORDER BY entries DESC, {names} LIMIT {limit}"
        )

    def _number_of_keys(self) -> int:
        if not self._keys:
            return 1
        return int(self._one(f"SELECT count(*) AS n FROM (SELECT DISTINCT {', '.join(map(quoted, self._keys))} FROM state)")["n"])

    def _of(self, key: Mapping[str, Any]) -> str:
        return " AND ".join(["true", *(equals(name, value, self.schema.field(name).type) for name, value in key.items())])

    def _one(self, query: str) -> dict[str, Any]:
        return self._rows(query)[0]

    def _rows(self, query: str) -> list[dict[str, Any]]:
        return list(self._query(query).to_pylist())

    def _query(self, query: str) -> pa.Table:
        return pa.table(QueryBuilder().register("state", self._table).execute(query).read_all())


class _PartialsInspection(Inspection):
    """A table of slices or sessions with these columns of ``partials``."""

    def __init__(self, path: str, keys: Sequence[str], before_batch: int, partials: Sequence[str]) -> None:
        super().__init__(path, keys, before_batch)
        # The first partial of every slice and session is its number of rows.
        self._n_rows, *self._partials = (name for name in partials if name in self.schema.names)
        self._readable = f"{BATCH} < {before_batch}"

    def _entry(self, row: Mapping[str, Any], own: Mapping[str, str]) -> dict[str, Any]:
        """Tell ``row``: the columns of ``own`` by its names, ``batch``, ``rows``, and ``partials`` by column."""
        partials = {name: row[name] for name in self._partials}
        columns = {**own, "batch": BATCH, "rows": self._n_rows}
        return {name: row[column] for name, column in columns.items()} | {"partials": partials}


class SlicesInspection(_PartialsInspection):
    """The slices of a table. No run reads slices that start before ``needed_from`` again; null means that all are needed.

    ``known`` are the windows for which the table has the keys' spans; ``intervals`` is whether events reach into slices, ``nodes`` whether
    batches read nodes in the place of slices.
    """

    def __init__(
        self,
        path: str,
        keys: Sequence[str],
        before_batch: int,
        partials: Sequence[str],
        needed_from: int | None,
        known: Sequence[str] = (),
        *,
        intervals: bool = False,
        nodes: bool = False,
    ) -> None:
        super().__init__(path, keys, before_batch, partials)
        self._known, self._family = known, (REACHING,) if intervals else ()
        # Nodes repeat the content of slices. Rows of a spec without nodes have no level in a table that another spec has given the column.
        self._slices = f"{SLICE} IS NOT NULL" + (f" AND coalesce({LEVEL}, 0) = 0" if LEVEL in self.schema.names else "")
        self._nodes = nodes and LEVEL in self.schema.names
        self._needed = self._readable if needed_from is None else f"{self._readable} AND {SLICE} >= {needed_from}"

    def summary(self) -> dict[str, Any]:
        """Count keys, and entries that are needed, superseded (expired) or of an unfinished batch; give the span of the slices."""
        counts = self._one(
            f"SELECT count(*) AS entries, min({SLICE}) AS oldest, max({SLICE}) AS newest, "
            f"count(*) FILTER (WHERE {self._needed}) AS entries_needed, count(*) FILTER (WHERE NOT ({self._readable})) AS unfinished, "
            f"count(*) FILTER (WHERE NOT ({self._slices})) AS nodes "
            f"FROM state WHERE {SLICE} IS NOT NULL"
        )
        superseded = counts["entries"] - counts["entries_needed"] - counts["unfinished"]
        facts = {"keys": self._number_of_keys(), "entries_needed": counts["entries_needed"], "entries_superseded": superseded}
        if self._nodes or counts["nodes"]:
            facts["entries_of_nodes"] = counts["nodes"]
        if self._known:
            spans = f"SELECT count(*) AS n FROM state WHERE {rows_of_spans(span_columns(self._known)).sql}"
            facts["entries_of_spans"] = self._one(spans)["n"]
        return facts | {"entries_unfinished": counts["unfinished"], "oldest": counts["oldest"], "newest": counts["newest"]}

    def slices_of(self, key: Mapping[str, Any]) -> tuple[Ints, Ints, Ints, int]:
        """The slices of ``key`` that a run would restore, and the number of entries.

        Of slices their starts, ascending; whether their events reach into them, 1 or 0; and the rows in each.
        """
        by = ", ".join((SLICE, *self._family))
        slices = self._query(
            f"SELECT {by}, sum({quoted(self._n_rows)}) AS n, count(*) AS entries FROM state "
            f"WHERE {self._needed} AND {self._slices} AND {self._of(key)} GROUP BY {by} ORDER BY {by}"
        )
        starts, n_rows = (slices.column(name).to_numpy() for name in (SLICE, "n"))
        return starts, marks_of(slices, REACHING), n_rows, sum(slices.column("entries").to_pylist())

    def entries_of(self, key: Mapping[str, Any], limit: int) -> list[dict[str, Any]]:
        """The last entries of ``key`` that a run would restore: ``slice``, ``closed``, ``batch``, ``rows``, and ``partials`` by column.

        For interval events, ``reaching`` is whether those of the entry reach into the slice.
        """
        entries = self._rows(
            f"SELECT * FROM state WHERE {self._needed} AND {self._slices} AND {self._of(key)} "
            f"ORDER BY {SLICE} DESC, {BATCH} DESC, {CLOSED} DESC LIMIT {limit}"
        )
        own = {"slice": SLICE, "closed": CLOSED} | ({"reaching": REACHING} if self._family else {})
        return [self._entry(row, own) for row in reversed(entries)]

    def spans_of(self, key: Mapping[str, Any]) -> dict[str, tuple[int | None, int | None]]:
        """By window, the starts of the first and last slice in which it has counted an event of ``key``; null if it has counted none."""
        names = span_columns(self._known)
        bounds = ", ".join(f"{('min', 'max')[place % 2]}({name}) AS {name}" for place, name in enumerate(names))
        found = self._one(f"SELECT {bounds} FROM state WHERE {self._readable} AND {rows_of_spans(names).sql} AND {self._of(key)}")
        return {window: (found[first_of(window)], found[last_of(window)]) for window in self._known}


class SessionsInspection(_PartialsInspection):
    """The sessions of a table; the next batch restores the ``wanted`` ones. ``own`` are the columns that fragments of sessions have."""

    def __init__(
        self, path: str, keys: Sequence[str], before_batch: int, partials: Sequence[str], wanted: OpenSessions, own: Sequence[str]
    ) -> None:
        super().__init__(path, keys, before_batch, partials)
        self._own = {name.removeprefix("_"): name for name in own if name != GONE}
        self._open = f"{self._readable} AND {rows_of(wanted).sql}"

    def summary(self) -> dict[str, Any]:
        """Count keys, and entries that are needed, superseded (or closed) or of an unfinished batch; give the span of the open sessions."""
        counts = self._one(
            f"SELECT count(*) AS entries, count(*) FILTER (WHERE {self._open}) AS needed, "
            f"count(*) FILTER (WHERE {self._readable}) AS readable, "
            f"min({FIRST}) FILTER (WHERE {self._open}) AS oldest, max({LAST}) FILTER (WHERE {self._open}) AS newest "
            f"FROM state WHERE {LAST} IS NOT NULL"
        )
        facts = {"keys": self._number_of_keys(), "entries_needed": counts["needed"]}
        facts |= {"entries_superseded": counts["readable"] - counts["needed"], "entries_unfinished": counts["entries"] - counts["readable"]}
        return facts | {"oldest": counts["oldest"], "newest": counts["newest"]}

    def fragments_of(self, key: Mapping[str, Any]) -> tuple[list[dict[str, Any]], int]:
        """The fragments of open sessions of ``key``, each with its own columns, in order; and the number of entries that hold them."""
        entries = self._query(f"SELECT * FROM state WHERE {self._open} AND {self._of(key)} ORDER BY {GAP}, {FIRST}")
        # Arrow cannot take rows of the views that DataFusion makes of texts.
        rows, latest = entries.to_pylist(), list[int]()
        of_window: dict[tuple[int, int | None], list[int]] = {}
        for index, row in enumerate(rows):
            of_window.setdefault((row[GAP], row.get(LONGEST)), []).append(index)
        bounds = entries.select([name for name in (FIRST, LAST, BATCH, GONE) if name in entries.column_names])
        for (_, longest), indices in of_window.items():
            found = latest_fragments(bounds.take(indices), np.zeros(len(indices), np.int64), cut=longest is not None)
            latest += [indices[place] for place in found.tolist()]
        return [self._entry(rows[index], self._own) for index in latest], len(entries)


class PositionsInspection(Inspection):
    """A table of windows over positions."""

    _READ = (BATCH, SEQUENCE, KIND, HEAD, THROUGH, NODE_LEVEL, POSITION, LIVE, FIRST, TIME)

    def summary(self) -> dict[str, Any]:
        """Count keys, leaves, inner nodes, waiting tuples, and entries that are needed, superseded or of an unfinished batch."""
        counts, first, times = Counter[str](), list[pa.Array](), list[pa.Array]()
        for rows in shares_of(self._table, f"{SEQUENCE} IS NOT NULL", {*self._keys, *self._READ}):
            read, needed = self._needed(rows)
            nodes = needed.filter(pc.field(KIND) == NODE)
            leaves = _count(nodes, pc.field(NODE_LEVEL) == 0)
            counts += Counter(leaves=leaves, nodes=len(nodes) - leaves, waiting=_count(needed, pc.field(KIND) == WAITING))
            counts += _entries(rows, read, needed)
            first += needed.column(FIRST).chunks
            times += read.column(TIME).chunks
        facts = {"keys": self._number_of_keys()} | {name: counts[name] for name in ("leaves", "nodes", "waiting", *_ENTRIES)}
        return facts | {"oldest": _span(first)["oldest"], "newest": _span(times)["newest"]}

    def rows_of(self, key: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The rows of ``key`` that a batch may need, nodes in order of their positions."""
        rows = pa.concat_tables(shares_of(self._table, f"{SEQUENCE} IS NOT NULL AND {self._of(key)}"))
        order = [(name, "ascending") for name in (SEQUENCE, POSITION, NODE_LEVEL, NUMBER_OF)]
        return list(self._needed(rows)[1].sort_by(order).to_pylist())

    def _needed(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Those of ``rows`` of earlier batches, and those of these that a batch may need."""
        read = rows.filter(pc.field(BATCH) < self.before_batch)
        return read, read.filter(pa.array(are_needed(read, self._keys)))


class LogInspection(Inspection):
    """A log of live rows; ``tables`` describe what it stores for each window, ``own`` is the SQL condition for its entries."""

    def __init__(self, path: str, keys: Sequence[str], before_batch: int, tables: Sequence[LogTableOfWindow], own: str) -> None:
        super().__init__(path, keys, before_batch)
        self._tables, self._own = tables, own

    def summary(self) -> dict[str, Any]:
        """Count keys, live rows, and entries that are needed, superseded or of an unfinished batch; give the span of the live rows."""
        counts, times = Counter[str](), list[pa.Array]()
        for entries in shares_of(self._table, self._own, {*self._keys, BATCH, KIND, NUMBER_OF, TIME}):
            read, latest = self._latest(entries)
            rows = latest.filter(pc.field(KIND) == ROW)
            counts += Counter(live_rows=len(rows)) + _entries(entries, read, latest)
            times += rows.column(TIME).chunks
        return {"keys": self._number_of_keys()} | {name: counts[name] for name in ("live_rows", *_ENTRIES)} | _span(times)

    def restored(self, key: Mapping[str, Any]) -> tuple[dict[str, Any], pa.Table]:
        """The latest entries of ``key``, and in numbers what a run would restore of them.

        ``live_rows`` is their number, ``entries`` that of entries read; ``due`` is the watermark from which the key has work.
        """
        columns = {*self._keys, BATCH, KIND, NUMBER_OF, TIME, DUE, WATERMARK_OF}
        columns |= {column for table in self._tables for column in (table.held, *table.columns.values()) if column}
        read, latest = self._latest(pa.concat_tables(shares_of(self._table, f"{self._own} AND {self._of(key)}", columns)))
        facts = {"live_rows": _count(latest, pc.field(KIND) == ROW), "entries": len(read), "due": pc.max(latest.column(DUE)).as_py()}
        return facts, latest

    def windows_of(self, latest: pa.Table) -> list[dict[str, Any]]:
        """What the ``latest`` entries of a key say of each window: scalars, and number and span of the rows that the window holds."""
        [mark] = latest.filter(pc.field(KIND) == KEY_ENTRY).to_pylist()
        rows, windows = latest.filter(pc.field(KIND) == ROW), dict[str, dict[str, Any]]()
        for table in self._tables:
            window = windows.setdefault(table.window, {"window": table.window, "scalars": {}, "holds": {}})
            if not table.held:
                window["scalars"] = {column: mark[label] for column, label in table.columns.items()}
            else:
                held = rows.filter(pc.field(table.held))
                window["holds"][table.name] = {"rows": len(held)} | _span(held.column(TIME).chunks)
        return list(windows.values())

    def rows_of(self, latest: pa.Table, limit: int) -> list[dict[str, Any]]:
        """The last ``limit`` live rows, ascending; ``watermark`` is that at arrival, ``batch`` the last that changed the row."""
        rows = latest.filter(pc.field(KIND) == ROW).sort_by(NUMBER_OF)
        own = {"number": NUMBER_OF, "time": TIME, "watermark": WATERMARK_OF, "batch": BATCH}
        return [
            {name: row[column] for name, column in own.items()}
            | {"held_by": [f"{table.window}: {table.name}" for table in self._tables if table.held and row[table.held]]}
            for row in rows[max(0, len(rows) - limit) :].to_pylist()
        ]

    def _latest(self, entries: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Those of ``entries`` of earlier batches, and the latest of these."""
        read = entries.filter(pc.field(BATCH) < self.before_batch)
        return read, read.filter(pa.array(are_latest(read, self._keys)))


#: How many entries a batch needs, how many others have superseded, and how many are of an unfinished batch.
_ENTRIES = ("entries_needed", "entries_superseded", "entries_unfinished")


def _entries(rows: pa.Table, read: pa.Table, needed: pa.Table) -> Counter[str]:
    return Counter(dict(zip(_ENTRIES, (len(needed), len(read) - len(needed), len(rows) - len(read)), strict=True)))


def _count(rows: pa.Table, condition: pc.Expression) -> int:
    return len(rows.filter(condition))


def _span(times: Sequence[pa.Array]) -> dict[str, int | None]:
    span = pc.min_max(pa.chunked_array(times, pa.int64())).as_py()
    return {"oldest": span["min"], "newest": span["max"]}


def key_value(text: str | None, kind: pa.DataType, name: str) -> Any:
    """Parse ``text`` as a value of key ``name``; null stays null, instants are ISO 8601 (UTC unless they have an offset), bytes 0x00ff.

    >>> key_value("7", pa.int32(), "id"), key_value(None, pa.string(), "name")
    (7, None)

    Raises ``SpecError`` if ``text`` is not a value of type ``kind``.
    """
    if text is None:
        return None
    try:
        if pa.types.is_timestamp(kind):
            return to_us(datetime.fromisoformat(text))
        if pa.types.is_binary(kind) and text[:2].lower() == "0x":
            return bytes.fromhex(text[2:])
        return pa.scalar(text).cast(kind).as_py()
    except (pa.ArrowException, ValueError) as err:
        form = "; bytes are written 0x00ff" if pa.types.is_binary(kind) else ""
        raise SpecError(f"--key {name}={text}: not of type {kind}; keys are as the source has them{form}") from err


_ARROW_NAMES = {
    **{str(kind): str(kind).title() for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    "float": "Float32",
    "double": "Float64",
    "date32[day]": "Date32",
    "bool": "Boolean",
    "timestamp[us]": "Timestamp(Microsecond, None)",
    "timestamp[us, tz=UTC]": 'Timestamp(Microsecond, Some("UTC"))',
}


def equals(name: str, value: Any, kind: pa.DataType) -> str:
    """A condition in DataFusion's SQL with a literal of type ``kind``: a plain literal would widen the column, or be a string."""
    column = quoted(name)
    if value is None:
        return f"{column} IS NULL"
    if isinstance(value, float):
        # State has no −0.0. Statistics, which are used to look up an equality, omit NaN.
        value = value + 0.0
        if math.isnan(value):
            return f"isnan({column})"
    if isinstance(value, bytes):
        return f"{column} = X'{value.hex()}'"
    if isinstance(value, Decimal):
        return f"{column} = arrow_cast('{value}', 'Decimal128({kind.precision}, {kind.scale})')"
    text = value if isinstance(value, int) and not isinstance(value, bool) else sql_text(str(value))
    return f"{column} = " + (f"arrow_cast({text}, '{_ARROW_NAMES[str(kind)]}')" if str(kind) in _ARROW_NAMES else str(text))
