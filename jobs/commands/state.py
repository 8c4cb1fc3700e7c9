"""``windowmill state``: a summary of the stored state by layout and, for one key, its rows and which of them are still needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any

import pyarrow as pa
import typer
from deltalake import Schema
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from windowmill.checkpoints.data_files import missing
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.state.compaction import NEEDED, NeededPartials, NeededRows
from windowmill.checkpoints.state.inspection import TIMES, Inspection, key_value
from windowmill.checkpoints.state.reading import reporting_damage
from windowmill.checkpoints.stores import is_table
from windowmill.jobs.commands.summaries import bound, facts_table, titled
from windowmill.jobs.commands.terminal import Answer, AsJson, Spec, load_pipeline, named_values, show
from windowmill.jobs.json_lines import plain
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.columnar.added_columns import (
    ABOVE,
    BATCH,
    BUCKET,
    CLOSED,
    DUE,
    FIRST,
    LAST,
    ROW_KEY,
    SLICE,
    SUM,
    THROUGH,
    TIME,
    UNTIL_OF,
    WATERMARK_OF,
)
from windowmill.windowing.columnar.hashes import REMEDY
from windowmill.windowing.columnar.keyed import label_of
from windowmill.windowing.columnar.known_spans import last_of, span_columns
from windowmill.windowing.columnar.objects import decode
from windowmill.windowing.columnar.positions import SCALAR_INSTANTS, scalar_of
from windowmill.windowing.errors import SpecError, StateError, StateMissingError
from windowmill.windowing.layouts import StateLayout, divide
from windowmill.windowing.spec import Pipeline

#: Number of characters of a stored value that a table shows.
_SHOWN = 40
#: Columns of the state that are instants if the axis is time; windows have further ones.
_INSTANTS = (SLICE, CLOSED, FIRST, LAST, ABOVE, TIME, UNTIL_OF, WATERMARK_OF, THROUGH, DUE)


def state_of(pipeline: Pipeline, key: Sequence[str], limit: int) -> Answer:
    """Summarize the stored state; show the rows of ``key`` if it is given, ``NAME=VALUE`` for each column, or the pipeline has none."""
    ledger, path = Ledger.open(pipeline), Places.of(pipeline).state
    ledger.check_meaning(pipeline)
    with reporting_damage(path):
        if not is_table(path):
            return Answer({"pipeline": pipeline.pipeline, "state": None}, f"{pipeline.pipeline}: no state yet; {_made_by(ledger, path)}")
        stored = StoredState(pipeline, ledger, path)
        return stored.of_key(key, limit) if key or not pipeline.keys else stored.of_all_keys()


class StoredState:
    """The state table of a pipeline, and the forms in which its rows are shown."""

    def __init__(self, pipeline: Pipeline, ledger: Ledger, path: str) -> None:
        parts, last = divide(pipeline, source_types(ledger, path, pipeline)), ledger.last_commit
        emitted = last.outcome.emitted if last and last.outcome else None
        spans = () if parts.slices is None else parts.slices.grids.known
        policies = () if parts.positions is None else parts.positions.pipeline.windows
        self._pipeline = pipeline
        # A log of live rows has labels of its own for keys.
        self._keys = {name: label_of(name) if parts.names == ("live rows",) else name for name in pipeline.keys}
        self._objects = set() if parts.layout is None else {held.name for held in parts.layout.objects}
        scalars = (scalar_of(window.name, name) for window in policies for name in SCALAR_INSTANTS)
        self._instants = {*_INSTANTS, *span_columns(spans), *scalars}
        partials = NeededPartials.after(emitted, {part.name: part.pipeline for part in parts.each})
        needed = NeededRows(list(self._keys.values()), ledger.next_commit, parts.names, partials, tuple(map(last_of, spans)))
        self._table = Inspection(path, needed)
        self._facts = {"next_batch": ledger.next_commit, **self._table.files(), "emitted_through": self._instant(emitted)}

    def of_all_keys(self) -> Answer:
        layouts = self._summary()
        return Answer(self._data(layouts), Group(_table_of_facts(self._facts), _table_of_layouts(layouts)))

    def of_key(self, given: Sequence[str], limit: int) -> Answer:
        """The entries of the key that is ``given``: of each layout the last ``limit`` ones, those that are needed at the end."""
        types = {name: self._table.schema.field(label).type for name, label in self._keys.items()}
        key = _key(self._pipeline, given, types)
        found = list(self._table.rows({self._keys[name]: value for name, value in key.items()}))
        layouts = self._summary(found)
        entries = dict[StateLayout, list[dict[str, Any]]]()
        for layout in layouts:
            rows = pa.concat_tables(own for part, own in found if part == layout)
            order = [(name, "ascending") for name in (NEEDED, *TIMES[layout], BATCH)]
            entries[layout] = self._entries(rows.sort_by(order).slice(max(0, len(rows) - limit)))
        shown = {name: value_of(pa.scalar(value, types[name]).as_py()) for name, value in key.items()}
        heading = Text(", ".join(f"{name}={value}" for name, value in shown.items()), style="bold")
        lists = [part for layout, own in entries.items() for part in _list_of(layout, own, layouts[layout]["entries"])]
        text = Group(heading if key else _table_of_facts(self._facts), _table_of_layouts(layouts), *lists)
        return Answer(self._data(layouts) | {"key": shown, "entries": entries}, text)

    def _data(self, layouts: Mapping[StateLayout, Mapping[str, Any]]) -> dict[str, Any]:
        return {"pipeline": self._pipeline.pipeline, "state": self._facts, "layouts": layouts}

    def _summary(self, found: Iterable[tuple[StateLayout, pa.Table]] | None = None) -> dict[StateLayout, dict[str, Any]]:
        layouts = self._table.summary(found)
        for facts in layouts.values():
            facts |= {name: self._instant(facts[name]) for name in ("oldest", "newest")}
        return layouts

    def _instant(self, t: int | None) -> str | int | None:
        """``t`` in the form of the other commands; null for an instant that never comes."""
        return None if t is None or not AXIS_BEGIN < t < AXIS_END else bound(t, not self._pipeline.time.integer_axis)

    def _entries(self, rows: pa.Table) -> list[dict[str, Any]]:
        """Of each of ``rows`` whether it is needed, and its columns that are not null; without keys and checksum."""
        hidden = {*self._keys.values(), BUCKET, SUM, ROW_KEY, NEEDED}
        entries = []
        for row in rows.to_pylist():
            values = {name: self._value(name, value) for name, value in row.items() if name not in hidden}
            entries.append({"needed": row[NEEDED], "row": {name: value for name, value in values.items() if value is not None}})
        return entries

    def _value(self, name: str, value: Any) -> Any:
        """The ``value`` of a column in its JSON form; partials that are stored as bytes are decoded."""
        if value is None:
            return None
        if name in self._instants:
            return self._instant(value)
        return value_of(decode(value) if name in self._objects else value)


def source_types(ledger: Ledger, path: str, pipeline: Pipeline) -> dict[str, pa.DataType]:
    """Types of the source's columns, as the last plan read them, and of those that steps of ``pipeline`` make."""
    newest = ledger.newest
    if newest is None:
        raise StateError(f"state {path}: there is no ledger in its folder; restore the folder from a copy")
    types = {field.name: field.type for field in pa.schema(Schema.from_json(newest.plan.source_schema).to_arrow())}
    if not pipeline.steps:
        return types
    from windowmill.jobs.sources.row_steps import RowSteps  # loads the parser

    return types | dict(RowSteps.of(pipeline, types).made)


def value_of(value: Any) -> Any:
    if isinstance(value, datetime | date):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(map(value_of, value), key=str)
    if isinstance(value, dict):
        # A user's partial may have keys that JSON has not.
        return {name if isinstance(name, str) else str(value_of(name)): value_of(item) for name, item in value.items()}
    return list(map(value_of, value)) if isinstance(value, list | tuple) else plain(value, False)


def cell(value: Any) -> str:
    """``value`` as text for a cell of a table, cut if it is long."""
    if value is None:
        return "–"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _made_by(ledger: Ledger, path: str) -> str:
    """What makes the state that is not there yet; raises ``StateMissingError`` if batches have made it."""
    lost = StateMissingError(f"state {path}: there is no table, but committed batches have written to it; {REMEDY}")
    if "state" in ledger.written():
        raise lost
    newest = ledger.newest
    recorded = ledger.changes_of(newest).get("state") if newest and newest.status != "abandoned" else None
    if newest is None or recorded is None:
        return "the first run makes it"
    if newest.status == "held":
        return f"batch {newest.number} is held"
    if missing(path, recorded.files):
        raise lost
    return f"the next run makes the commits of batch {newest.number}, which is recorded"


def _key(pipeline: Pipeline, given: Sequence[str], types: Mapping[str, pa.DataType]) -> dict[str, Any]:
    parts = named_values(given)
    if sorted(name for name, _ in parts) != sorted(pipeline.keys):
        wanted = " ".join(f"--key {name}=…" for name in pipeline.keys) or "no --key: the pipeline has no keys"
        raise SpecError(f"--key: got {', '.join(given) or 'none'}; expected {wanted}")
    return {name: key_value(dict(parts)[name], types[name], name) for name in pipeline.keys}


def _table_of_facts(facts: Mapping[str, Any]) -> Table:
    table = facts_table()
    for name, value in facts.items():
        table.add_row("results through" if name == "emitted_through" else name.replace("_", " "), cell(value))
    return table


def _table_of_layouts(layouts: Mapping[StateLayout, Mapping[str, Any]]) -> Table:
    table = titled("", ("layout", "entries", "still needed", "keys", "oldest", "newest"), ("layout", "oldest", "newest"))
    for layout, facts in layouts.items():
        # A narrow column breaks an instant at the space.
        table.add_row(layout, *(cell(value.replace("T", " ") if isinstance(value, str) else value) for value in facts.values()))
    return table


def _list_of(layout: StateLayout, entries: Sequence[Mapping[str, Any]], total: int) -> Iterator[RenderableType]:
    """A heading and a table of the ``entries`` of one layout, of ``total``; nothing if there are none."""
    if not entries:
        return
    # As a line of its own: a table would break its title at its own width.
    which = "" if len(entries) == total else f"{len(entries):,} of "
    yield Text(f"\n{layout}: {which}{total:,} entries", style="bold")
    table = titled("", ("needed", "columns"), ("needed", "columns"))
    for entry in entries:
        table.add_row("yes" if entry["needed"] else "no", ", ".join(f"{name}={cell(value)}" for name, value in entry["row"].items()))
    yield table


def state(
    spec: Spec,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="NAME=VALUE", help="A key; give the option once per key column. NAME alone means null."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of entries of each layout.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Summarize the stored state by layout; for a key, show its entries, and which of them later runs may need."""
    show(state_of(load_pipeline(spec), key or [], limit), as_json)
