"""The base of the views of a state table, and the form in which stored values are shown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from deltalake import Schema
from rich.console import RenderableType
from rich.text import Text

from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.state.inspection import Inspection
from windowmill.jobs.commands.summaries import bound, facts_table, titled
from windowmill.jobs.json_lines.read import plain
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.columnar.partial_bytes import decode
from windowmill.windowing.errors import StateError
from windowmill.windowing.slicing.policy_settings import INSTANTS
from windowmill.windowing.spec import Pipeline

#: Number of characters of a stored value that a table shows.
_SHOWN = 40
#: Columns of lists that are instants, if the axis is time.
_INSTANTS: Set[str] = frozenset(
    ("window_start", "window_end", "first_slice", "last_slice", "last_event", "slice", "reaching", "closed", "time", "watermark")
)
#: What a terminal shows in place of some words in the names of facts.
_PLAIN: Mapping[str, str] = {
    "emitted through": "results through",
    "entries needed": "entries still needed",
    "entries superseded": "entries no longer needed",
    "entries unfinished": "entries of an unfinished batch",
}


class View(ABC):
    """What all kinds of state share: the number of the next batch, the form of instants, and the limit of lines."""

    inspection: Inspection

    def __init__(self, pipeline: Pipeline, ledger: Ledger, limit: int) -> None:
        self.pipeline, self.limit = pipeline, limit
        last = ledger.last_commit
        self.emitted = last.outcome.emitted if last and last.outcome else None
        self.next_batch = ledger.next_commit

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Facts about the whole table, by name."""

    @abstractmethod
    def of_key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """What the next run would restore for ``key``, and for which windows."""

    @abstractmethod
    def show_key(self, name: str, data: Mapping[str, Any]) -> Iterator[RenderableType]:
        """Render what :meth:`of_key` gives of the key ``name``."""

    def largest(self) -> list[dict[str, Any]]:
        """The keys with the most entries; none if the pipeline has no keys."""
        if not self.pipeline.keys:
            return []
        return [{name: value_of(value) for name, value in row.items()} for row in self.inspection.largest_keys(self.limit)]

    def instant(self, t: int | None) -> str | int | None:
        """``t`` in the form of the other commands; null for an instant that never comes."""
        return None if t is None or not AXIS_BEGIN < t < AXIS_END else bound(t, not self.pipeline.time.integer_axis)

    def scalar(self, name: str, value: Any) -> Any:
        """The scalar ``name`` of a window's policies in its JSON form; null for an instant that never comes."""
        return self.instant(value) if name in INSTANTS and isinstance(value, int) else value_of(value)

    def show_summary(self, data: Mapping[str, Any]) -> Iterator[RenderableType]:
        """Render what :meth:`summary` gives."""
        facts = facts_table()
        for name, value in data.items():
            if name != "largest_keys":
                facts.add_row(_label(name), cell(value))
        yield facts
        if data["largest_keys"]:
            yield from self.show_list("keys with the most entries", data["largest_keys"], data["keys"], instants=frozenset())

    def show_list(
        self, title: str, rows: Sequence[Mapping[str, Any]], total: int, which: str = "", *, instants: Set[str] = _INSTANTS
    ) -> Iterator[RenderableType]:
        """Render ``rows`` under a heading with their number; ``which`` says which rows of ``total`` they are, ``instants`` is columns."""
        # As a line of its own: a table would break its title at its own width.
        yield Text(f"\n{title}: {total:,}" if len(rows) == total else f"\n{title}: {len(rows):,} of {total:,}{which}", style="bold")
        if not rows:
            return
        names, table = list(rows[0]), titled("", ())
        for name in names:
            table.add_column(name.replace("_", " "), justify="right" if isinstance(rows[0][name], int) else "left", overflow="fold")
        for row in rows:
            table.add_row(*(cell(breakable(row[name]) if name in instants else row[name]) for name in names))
        yield table


def _label(name: str) -> str:
    """The name of a fact in plain words.

    >>> _label("sessions_entries_superseded"), _label("oldest_slice")
    ('sessions entries no longer needed', 'oldest slice')
    """
    label = name.replace("_", " ")
    for words, plainly in _PLAIN.items():
        label = label.replace(words, plainly)
    return label


def source_types(ledger: Ledger, path: str) -> dict[str, pa.DataType]:
    """Types of the source's columns, as the last plan read them."""
    newest = ledger.newest
    if newest is None:
        raise StateError(f"state {path}: there is no ledger in its folder; restore the folder from a copy")
    return {field.name: field.type for field in pa.schema(Schema.from_json(newest.plan.source_schema).to_arrow())}


def partials_told(partials: Mapping[str, Any], objects: Set[str]) -> dict[str, Any]:
    """``partials`` by column in their JSON form; those of the columns ``objects`` are decoded."""
    return {name: value_of(decode(value) if name in objects else value) for name, value in partials.items()}


def value_of(value: Any) -> Any:
    """Convert ``value`` to its JSON form."""
    if isinstance(value, datetime | date):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(map(value_of, value), key=str)
    return _nested(value, value_of) if isinstance(value, list | tuple | dict) else plain(value, False)


def _nested(value: Sequence[Any] | dict[str, Any], each: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        # A user's partial may have keys that JSON has not.
        return {name if isinstance(name, str) else str(each(name)): each(item) for name, item in value.items()}
    return [each(item) for item in value]


def breakable(instant: Any) -> Any:
    """``instant`` with a space between date and time, at which a narrow column breaks it.

    >>> breakable("2025-03-01T12:00:00Z"), breakable(7)
    ('2025-03-01 12:00:00Z', 7)
    """
    return instant.replace("T", " ", 1) if isinstance(instant, str) else instant


def cell(value: Any) -> str:
    """``value`` as text for a cell of a table, cut if it is long."""
    if value is None:
        return "–"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
