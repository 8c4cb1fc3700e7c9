"""Queries Delta tables for the report through DataFusion; no JVM. Answers stay small whatever the table's size."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from windowmill.checkpoints.quoting import sql_text
from windowmill.checkpoints.stores import table_at
from windowmill.windowing.errors import WindowmillError, first_line

#: Greatest number of batches in a chart; the tables hold older ones.
BATCHES_SHOWN = 60
_REASONS_SHOWN = 20
_TEXT_SHOWN = 400


class ReportError(WindowmillError):
    """A table of the report exists but cannot be read."""


def open_table(path: str) -> DeltaTable | None:
    """The Delta table at ``path``; None if there is none yet."""
    try:
        return table_at(path)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as err:
        raise _unreadable(path, err) from err


def query(table: DeltaTable, sql: str) -> pa.Table:
    """Run ``sql``, in which the table is called ``t``."""
    try:
        # `pa.table` would load pandas to see whether it is a frame.
        return pa.RecordBatchReader.from_stream(QueryBuilder().register("t", table).execute(sql)).read_all()
    except Exception as err:  # deltalake raises a bare one where a data file is gone
        raise _unreadable(table.table_uri, err) from err


def rows_of(table: DeltaTable) -> int:
    """Number of rows that ``table`` holds."""
    return int(query(table, "SELECT count(*) AS n FROM t").column("n")[0].as_py())


def _unreadable(path: str, err: Exception) -> ReportError:
    return ReportError(
        f"table {path}: cannot be read for the report ({first_line(err)}); nothing has been written, mend the table and run it again"
    )


def literal(text: str | None) -> str:
    """A string or null as an SQL literal.

    >>> literal("it's"), literal(None)
    ("'it''s'", 'NULL')
    """
    return "NULL" if text is None else sql_text(text)


def clipped(text: object, limit: int = _TEXT_SHOWN) -> str:
    """``text`` cut to at most ``limit`` characters, the last of which is then an ellipsis.

    >>> clipped("abcdef", 4)
    'abc…'
    """
    words = "" if text is None else str(text)
    return words if len(words) <= limit else words[: limit - 1] + "…"


def named(values: Mapping[str, object]) -> str:
    """Columns and their values in one line.

    >>> named({"a": 1, "b": None})
    'a=1, b=null'
    """
    return ", ".join(f"{name}={'null' if value is None else value}" for name, value in values.items())


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason for quarantine: its numbers of rows and batches, and the keys and time of its latest row.

    The page is made to be shared, so it shows no other value of a row; the quarantine table holds them all.
    """

    reason: str
    rows: int
    batches: int
    last_batch: int
    first_event: datetime | int | None
    last_event: datetime | int | None
    detail: str
    example: str


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Quarantined rows by reason, and their counts by reason and batch for the batches shown."""

    reasons: list[Reason] = field(default_factory=list)
    by_batch: dict[str, dict[int, int]] = field(default_factory=dict)


def read_quarantine(path: str, first_batch: int, identity: Sequence[str]) -> Quarantine:
    """Count the quarantine table's rows; ``by_batch`` starts at ``first_batch``, examples show only the columns ``identity``."""
    table = open_table(path)
    if table is None:
        return Quarantine()
    # There are only a few reasons, but other programs may have written to the table: hence the limit.
    counts = "count(*) AS n, count(DISTINCT batch) AS batches, max(batch) AS last_batch"
    events = "min(event_time) AS first_event, max(event_time) AS last_event"
    latest = 'last_value(detail ORDER BY batch) AS detail, substr(last_value("row" ORDER BY batch), 1, 65536) AS example'
    rows = query(
        table, f"SELECT reason, {counts}, {events}, {latest} FROM t GROUP BY reason ORDER BY n DESC, reason LIMIT {_REASONS_SHOWN}"
    ).to_pylist()
    reasons = [
        Reason(
            clipped(row["reason"], 80), row["n"], row["batches"], row["last_batch"], row["first_event"], row["last_event"],
            clipped(row["detail"]), _named(row["example"], identity),
        )
        for row in rows
    ]  # fmt: skip
    by_batch: dict[str, dict[int, int]] = defaultdict(dict)
    shown = ", ".join(literal(row["reason"]) for row in rows if row["reason"] is not None) or "''"
    for row in query(
        table, f"SELECT reason, batch, count(*) AS n FROM t WHERE batch >= {first_batch} AND reason IN ({shown}) GROUP BY reason, batch"
    ).to_pylist():
        by_batch[clipped(row["reason"], 80)][row["batch"]] = row["n"]
    return Quarantine(reasons, dict(by_batch))


def _named(row: str | None, identity: Sequence[str]) -> str:
    try:
        values = json.loads(row or "{}")
    except ValueError:
        return ""
    return clipped(named({name: values[name] for name in identity if name in values}), 200) if isinstance(values, dict) else ""
