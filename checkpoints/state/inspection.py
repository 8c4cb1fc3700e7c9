"""The rows of a state table, layout by layout, and which of them a later batch may need. Read-only; no JVM.

A read takes only the columns that it needs, pushes the key down to the files, and takes some keys at a time, so tables may be larger than
memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.delta_tables import sizes_of
from windowmill.checkpoints.quoting import quoted, sql_text
from windowmill.checkpoints.state.compaction import NEEDED, READ, NeededRows, shares_of
from windowmill.checkpoints.state.reading import rows_before
from windowmill.checkpoints.state.tables import number_of_rows
from windowmill.checkpoints.stores import table_at
from windowmill.windowing.axis import to_us
from windowmill.windowing.columnar.added_columns import FIRST, LAST, ROW_KEY, SLICE, TIME
from windowmill.windowing.errors import SpecError

if TYPE_CHECKING:
    from windowmill.windowing.layouts import StateLayout

#: Columns with the instants between which the events of a row lie.
TIMES: Mapping[StateLayout, tuple[str, ...]] = {
    "slices": (SLICE,),
    "sessions": (FIRST, LAST),
    "positions": (FIRST, TIME),
    "live rows": (TIME,),
}


class Inspection:
    """A state table at its newest version, as the next batch will see it: without rows that a failed attempt at that batch has left."""

    def __init__(self, path: str, needed: NeededRows) -> None:
        self._table, self._needed = table_at(path), needed
        self.schema = pa.schema(self._table.schema().to_arrow())

    def files(self) -> dict[str, int]:
        """The table's version, and its numbers of files, bytes and entries."""
        sizes = sizes_of(self._table).values()
        return {"version": self._table.version(), "files": len(sizes), "bytes": sum(sizes), "entries": number_of_rows(self._table)}

    def rows(self, key: Mapping[str, Any], columns: Collection[str] | None = None) -> Iterator[tuple[StateLayout, pa.Table]]:
        """The rows of each layout that have the values of ``key``, some keys at a time.

        They have those of ``columns`` that the table has, by default all, a number of their key ``ROW_KEY``, and ``NEEDED``.
        """
        own = [equals(name, value, self.schema.field(name).type) for name, value in key.items()]
        for rows in shares_of(self._table, " AND ".join([rows_before(self._needed.before_batch).sql, *own]), columns):
            yield from self._needed.marked(rows)

    def summary(self, found: Iterable[tuple[StateLayout, pa.Table]] | None = None) -> dict[StateLayout, dict[str, Any]]:
        """Of each layout the numbers of entries, of needed ones and of keys, and the span of the needed ones.

        ``found``: rows as of :meth:`rows`; null for all rows of the table.
        """
        counts = {layout: Counter[str]() for layout in self._needed.layouts}
        times = {layout: list[pa.Array]() for layout in self._needed.layouts}
        read = {*self._needed.keys, *READ, *self._needed.spans, *(name for names in TIMES.values() for name in names)}
        for layout, rows in self.rows({}, read) if found is None else found:
            needed = rows.filter(pc.field(NEEDED))
            counts[layout] += Counter(entries=len(rows), entries_needed=len(needed), keys=pc.count_distinct(rows.column(ROW_KEY)).as_py())
            times[layout] += [chunk for name in TIMES[layout] for chunk in needed.column(name).chunks]
        spans = {layout: pc.min_max(pa.chunked_array(chunks, pa.int64())).as_py() for layout, chunks in times.items()}
        return {
            layout: {name: count[name] for name in ("entries", "entries_needed", "keys")}
            | {"oldest": spans[layout]["min"], "newest": spans[layout]["max"]}
            for layout, count in counts.items()
        }


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
