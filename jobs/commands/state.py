"""``windowmill state``: a summary of the stored state and, for one key, what the next run would restore for which window."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer
from deltalake import Schema
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from windowmill.checkpoints.data_files import missing
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.state.inspection import (
    LogInspection,
    PositionsInspection,
    SessionsInspection,
    SlicesInspection,
    key_value,
)
from windowmill.checkpoints.state.reading import OpenSessions, reporting_damage
from windowmill.checkpoints.state.tables import own_rows
from windowmill.checkpoints.stores import is_table
from windowmill.jobs.commands.summaries import bound, facts_table, titled
from windowmill.jobs.commands.terminal import Answer, AsJson, Spec, load_pipeline, named_values, show
from windowmill.jobs.json_lines import plain
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.columnar.added_columns import BATCH, DUE, FIRST, KIND, LIVE, NEXT, NODE_LEVEL, NUMBER_OF, POSITION, SEQUENCE, TIME
from windowmill.windowing.columnar.hashes import REMEDY
from windowmill.windowing.columnar.keyed import StateLog
from windowmill.windowing.columnar.objects import decode
from windowmill.windowing.columnar.positions import FRONT, INSTANTS, KEY_ROW, NODE, STATE, WAITING, PositionState, scalar_of
from windowmill.windowing.columnar.slice_partials import SlicePartials, windows_of
from windowmill.windowing.errors import SpecError, StateError, StateMissingError
from windowmill.windowing.grids import Grids, Nodes
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.kernels.event_bounds import SessionLimits
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.layouts import Sessions, StateLayout, describe_layouts, divide
from windowmill.windowing.slicing.edges import WindowGrid
from windowmill.windowing.slicing.leaves import Windows
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import AFTER, BEFORE

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
#: Facts about the whole table, which are the same in all views.
_SHARED = ("next_batch", "version", "files", "bytes", "entries", "keys", "emitted_through")


class View(ABC):
    """What all kinds of state share: the number of the next batch, the form of instants, and the limit of lines."""

    inspection: LogInspection | PositionsInspection | SessionsInspection | SlicesInspection
    #: What the state is of, and what its oldest and newest entries are called.
    kind: str
    entry = "_row"
    #: Names of key columns in the state, where they are others than in the source.
    labels: Mapping[str, str] = MappingProxyType({})

    def __init__(self, pipeline: Pipeline, ledger: Ledger, limit: int) -> None:
        self.pipeline, self.limit = pipeline, limit
        last = ledger.last_commit
        self.emitted = last.outcome.emitted if last and last.outcome else None
        self.next_batch = ledger.next_commit

    def summary(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"kind": self.kind, "next_batch": self.next_batch} | self.inspection.files() | self.inspection.summary()
        facts |= {f"{name}{self.entry}": self.instant(facts.pop(name)) for name in ("oldest", "newest")}
        return facts | {"emitted_through": self.instant(self.emitted)} | self.own_facts() | {"largest_keys": self.largest()}

    def own_facts(self) -> dict[str, Any]:
        """Facts that other kinds of state do not have."""
        return {}

    @abstractmethod
    def of_key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """What the next run would restore for ``key``, and for which windows."""

    @abstractmethod
    def show_key(self, name: str, data: Mapping[str, Any]) -> Iterator[RenderableType]:
        """Render what :meth:`of_key` gives of the key ``name``."""

    def largest(self) -> list[dict[str, Any]]:
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
        facts = facts_table()
        for name, value in data.items():
            if name != "largest_keys":
                label = name.replace("_", " ")
                for words, plainly in _PLAIN.items():
                    label = label.replace(words, plainly)
                facts.add_row(label, cell(value))
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


def partials_told(partials: Mapping[str, Any], objects: Set[str]) -> dict[str, Any]:
    """``partials`` by column in their JSON form; those of the columns ``objects`` are decoded."""
    return {name: value_of(decode(value) if name in objects else value) for name, value in partials.items()}


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


def breakable(instant: Any) -> Any:
    """``instant`` with a space between date and time, at which a narrow column breaks it."""
    return instant.replace("T", " ", 1) if isinstance(instant, str) else instant


def cell(value: Any) -> str:
    """``value`` as text for a cell of a table, cut if it is long."""
    if value is None:
        return "–"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


class PositionsView(View):
    """State by positions."""

    inspection: PositionsInspection
    kind = "positions"

    def __init__(self, pipeline: Pipeline, ledger: Ledger, path: str, limit: int) -> None:
        super().__init__(pipeline, ledger, limit)
        types = source_types(ledger, path, pipeline)
        self._layout = Layout.of(pipeline, types)
        self._state = PositionState(pipeline, types, self._layout)
        self.inspection = PositionsInspection(path, pipeline.keys, self.next_batch)

    def of_key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        rows = self.inspection.rows_of(key)
        entries = {row[SEQUENCE]: row for row in rows if row[KIND] == KEY_ROW}
        leaves = [row for row in rows if row[KIND] == NODE and row[NODE_LEVEL] == 0]
        waiting = sorted((row for row in rows if row[KIND] == WAITING), key=lambda row: row[TIME])
        due = min((entry[DUE] for entry in entries.values()), default=AFTER)
        known = [(index, entries[name]) for name, held in self._state.sequences.items() if name in entries for index in held]
        windows = [self._window(index, entry, leaves) for index, entry in known]
        restored = {"leaves": len(leaves), "nodes": sum(row[KIND] == NODE for row in rows) - len(leaves), "waiting": len(waiting)}
        return {
            "restored": restored | {"entries": len(rows), "due": self.instant(due)},
            "windows": windows,
            "waiting": [{"time": self.instant(row[TIME]), "number": row[NUMBER_OF], "batch": row[BATCH]} for row in waiting[: self.limit]],
            "leaves": [self._leaf(row) for row in leaves[-self.limit :]],
        }

    def _window(self, index: int, entry: Mapping[str, Any], leaves: list[dict[str, Any]]) -> dict[str, Any]:
        name = self.pipeline.windows[index].name
        scalars = {scalar: self.scalar(scalar, entry[scalar_of(name, scalar)]) for scalar in STATE}
        front, stop = entry[scalar_of(name, FRONT)], entry[NEXT]
        held = [leaf for leaf in leaves if leaf[SEQUENCE] == entry[SEQUENCE] and leaf[POSITION] >= front]
        span = {place: self.instant(held[at][FIRST]) if held else None for place, at in (("oldest", 0), ("newest", -1))}
        n_held = entry[LIVE] if entry[SEQUENCE] in self._state.deltas else stop - front
        return {"window": name, "scalars": scalars, "first_position": front, "next_position": stop, "rows": n_held, **span}

    def _leaf(self, row: Mapping[str, Any]) -> dict[str, Any]:
        partials = {name: row[name] for name, _ in self._layout.stored_columns}
        shown = partials_told(partials, {held.name for held in self._layout.objects})
        return {"position": row[POSITION], "time": self.instant(row[FIRST]), "batch": row[BATCH], "partials": shown}

    def show_key(self, name: str, data: Mapping[str, Any]) -> Iterator[RenderableType]:
        restored = data["restored"]
        yield (
            f"{name or self.pipeline.pipeline}: the state holds {restored['leaves']:,} leaves, {restored['nodes']:,} nodes over them and "
            f"{restored['waiting']:,} tuples that wait; batch {self.next_batch} would restore those that it needs if a row of the key "
            f"arrives; without one: {_when(restored['due'])}"
        )
        table = _windows_table()
        for window in data["windows"]:
            span = f", {breakable(window['oldest'])} to {breakable(window['newest'])}" if window["rows"] else ""
            table.add_row(window["window"], _remembered(window), f"{window['rows']:,} tuples{span}")
        yield table
        yield from self.show_list("tuples that wait", data["waiting"], restored["waiting"], ", the next to be applied")
        leaves = [{column: leaf[column] for column in ("position", "time", "batch")} for leaf in data["leaves"]]
        yield from self.show_list("leaves", leaves, restored["leaves"], ", the latest (--json has their partials)")


class LiveRowsView(View):
    """State by live rows; ``layouts`` are those of all parts whose rows are in the table, by default none else."""

    inspection: LogInspection
    kind = "live rows"

    def __init__(self, pipeline: Pipeline, ledger: Ledger, path: str, limit: int, layouts: Sequence[StateLayout] = ()) -> None:
        super().__init__(pipeline, ledger, limit)
        log = StateLog(pipeline, source_types(ledger, path, pipeline), pipeline.conditions(), shared=len(layouts) > 1)
        own = own_rows("live rows", layouts or ["live rows"]).sql
        self.inspection = LogInspection(path, list(log.keys.values()), self.next_batch, log.tables, own)
        self.labels = log.keys

    def of_key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        key = {self.labels[name]: value for name, value in key.items()}
        restored, latest = self.inspection.restored(key)
        if not len(latest):
            return {"restored": restored, "windows": [], "rows": []}
        rows = self.inspection.rows_of(latest, self.limit)
        for row in rows:
            row |= {"time": self.instant(row["time"]), "watermark": self.instant(row["watermark"])}
        windows = self.inspection.windows_of(latest)
        for window in windows:
            window["scalars"] = {name: self._remembered(name, value) for name, value in window["scalars"].items()}
            for span in window["holds"].values():
                span |= {"oldest": self.instant(span["oldest"]), "newest": self.instant(span["newest"])}
        return {"restored": restored | {"due": self.instant(restored["due"])}, "windows": windows, "rows": rows}

    def _remembered(self, name: str, value: Any) -> Any:
        if isinstance(value, list):
            return {"items": len(value), "last": [value_of(item) for item in value[-self.limit :]]}
        return self.scalar(name, value)

    def show_key(self, name: str, data: Mapping[str, Any]) -> Iterator[RenderableType]:
        restored = data["restored"]
        yield (
            f"{name or self.pipeline.pipeline}: batch {self.next_batch} would restore {restored['live_rows']:,} live rows "
            f"({restored['entries']:,} entries) if a row of the key arrives; without one: {_when(restored['due'])}"
        )
        table = _windows_table()
        for window in data["windows"]:
            holds = "\n".join(f"{name}: {_span(span)}" for name, span in window["holds"].items())
            table.add_row(window["window"], _remembered(window), holds)
        yield table
        yield from self.show_list("live rows", data["rows"], restored["live_rows"], ", the latest to arrive")


def _span(span: Mapping[str, Any]) -> str:
    return f"{span['rows']:,} rows" + (f", {breakable(span['oldest'])} to {breakable(span['newest'])}" if span["rows"] else "")


def _when(due: str | None) -> str:
    return "never" if due is None else f"when the watermark is at {due}"


def _windows_table() -> Table:
    table = titled("", ())
    for column in ("window", "remembers", "holds"):
        table.add_column(column, overflow="fold")
    return table


def _remembered(window: Mapping[str, Any]) -> str:
    return "\n".join(f"{name} {cell(value)}" for name, value in window["scalars"].items())


class SlicesView(View):
    """State by slices."""

    inspection: SlicesInspection
    kind, entry = "slices", "_slice"

    def __init__(self, pipeline: Pipeline, ledger: Ledger, path: str, limit: int) -> None:
        super().__init__(pipeline, ledger, limit)
        self._grids = Grids.of(pipeline)
        self._needed_from = None if self.emitted is None else self._grids.first_slice_after(self.emitted)
        layout = Layout.of(pipeline, source_types(ledger, path, pipeline))
        self._objects = {held.name for held in layout.objects}
        partials = [column for column, _ in layout.stored_columns]
        self.inspection = SlicesInspection(
            path,
            pipeline.keys,
            self.next_batch,
            partials,
            self._needed_from,
            self._grids.known,
            intervals=self._grids.intervals,
            nodes=Nodes.of(self._grids.grids) is not None,
        )

    def own_facts(self) -> dict[str, Any]:
        return {"needed_from": self.instant(self._needed_from)}

    def of_key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        starts, reaching, n_rows, entries = self.inspection.slices_of(key)
        listed = self.inspection.entries_of(key, self.limit)
        for entry in listed:
            entry |= {"slice": self.instant(entry["slice"]), "closed": self.instant(entry["closed"])}
            entry["partials"] = partials_told(entry["partials"], self._objects)
        to_come = {name: self._to_come(grid, starts, reaching) for name, grid in self._grids.named}
        windows = [window for name, found in to_come.items() for window in self._windows(name, found, starts, n_rows)]
        spans = self.inspection.spans_of(key) if self._grids.known else {}
        known = [
            {"window": name, "first_slice": self.instant(first), "last_slice": self.instant(last)} for name, (first, last) in spans.items()
        ]
        return {
            "restored": {"slices": int((reaching == 0).sum()), "entries": entries, "rows": int(n_rows[reaching == 0].sum())},
            "windows": sorted(windows, key=lambda window: window.pop("order"))[: self.limit],
            "windows_in_all": sum(map(len, to_come.values())),
            "entries": listed,
            "known": known,
        }

    def _windows(self, name: str, found: Windows, starts: Ints, n_rows: Ints) -> Iterator[dict[str, Any]]:
        """The first of the windows that are ``found`` of one window of the spec; at most ``limit``."""
        for place in range(min(self.limit, len(found))):
            start, end = int(found.start[place]), int(found.end[place])
            begun = found.sequence[found.lo[place] : found.hi[place]]
            reaching = found.members[found.member_offsets[place] : found.member_offsets[place + 1]]
            first, last = (self.instant(int(starts[begun[edge]])) if len(begun) else None for edge in (0, -1))
            facts = {"window_start": self.instant(start), "window_end": self.instant(end)}
            facts |= {"slices": len(begun), "first_slice": first, "last_slice": last}
            if self._grids.intervals:
                facts["rows_from_before"] = int(n_rows[reaching].sum())
            yield {"order": (end, name), "window": name} | facts | {"rows": int(n_rows[begun].sum() + n_rows[reaching].sum())}

    def _to_come(self, grid: WindowGrid, starts: Ints, reaching: Ints) -> Windows:
        """The windows that contain a slice and have not been emitted, in order of their ends."""
        if not len(starts):
            return Windows.none()
        after = int(starts[0]) if self.emitted is None else max(self.emitted, int(starts[0]))
        n = len(starts)
        # Late rows are shown in all windows of their slice.
        slices = SlicePartials.of_one_key(starts, np.full(n, BEFORE, np.int64), reaching)
        # As points at their starts: between slices that lie far apart there may be very many windows.
        return windows_of(grid.numbered(starts, starts + 1), slices, np.array([0, n]), after, AFTER)[0]

    def show_key(self, name: str, data: Mapping[str, Any]) -> Iterator[RenderableType]:
        restored = data["restored"]
        instead = "; nodes that hold the same are read in their place" if "entries_of_nodes" in data["state"] else ""
        yield (
            f"{name or self.pipeline.pipeline}: batch {self.next_batch} would restore {restored['slices']:,} slices "
            f"({restored['entries']:,} entries) of {restored['rows']:,} rows{instead}"
        )
        yield from self.show_list("windows to come that hold them", data["windows"], data["windows_in_all"], ", the next to end")
        shown = ("slice", "reaching", "closed", "batch", "rows")
        entries = [{name: entry[name] for name in shown if name in entry} for entry in data["entries"]]
        if data["known"]:
            yield from self.show_list("known, so that empty windows between have rows", data["known"], len(data["known"]))
        yield from self.show_list("entries", entries, restored["entries"], ", the latest slices (--json has their partials)")


class SessionsView(View):
    """State by sessions."""

    inspection: SessionsInspection
    kind, entry = "sessions", ""

    def __init__(self, pipeline: Pipeline, ledger: Ledger, path: str, limit: int) -> None:
        super().__init__(pipeline, ledger, limit)
        layout = Layout.of(pipeline, source_types(ledger, path, pipeline))
        sessions = Sessions.of(pipeline, layout)
        self._limits = sessions.limits
        self._objects = {held.name for held in layout.objects}
        wanted = OpenSessions(sessions.gaps, AXIS_BEGIN if self.emitted is None else self.emitted)
        partials = [column for column, _ in layout.stored_columns]
        self.inspection = SessionsInspection(path, pipeline.keys, self.next_batch, partials, wanted, sessions.own_columns)

    def of_key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        fragments, entries = self.inspection.fragments_of(key)
        windows = [
            {
                "window": name,
                "window_start": self.instant(start),
                "window_end": self.instant(end),
                "last_event": self.instant(fragment["last"]),
                **{own: fragment[own] for own in ("revision",) if own in fragment},
                "rows": fragment["rows"],
                "batch": fragment["batch"],
                "partials": partials_told(fragment["partials"], self._objects),
            }
            for name, limits in self._limits
            for start, end, fragment in _with_bounds(fragments, limits)
        ]
        restored = {"sessions": len(fragments), "entries": entries, "rows": sum(fragment["rows"] for fragment in fragments)}
        return {"restored": restored, "windows": windows[: self.limit], "windows_in_all": len(windows)}

    def show_key(self, name: str, data: Mapping[str, Any]) -> Iterator[RenderableType]:
        restored = data["restored"]
        yield (
            f"{name or self.pipeline.pipeline}: batch {self.next_batch} would restore {restored['sessions']:,} open sessions "
            f"({restored['entries']:,} entries) of {restored['rows']:,} rows"
        )
        windows = [{column: value for column, value in window.items() if column != "partials"} for window in data["windows"]]
        yield from self.show_list(
            "open sessions, ending so if no row joins them", windows, data["windows_in_all"], " (--json has their partials)"
        )


def _with_bounds(fragments: Sequence[Mapping[str, Any]], limits: SessionLimits) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
    """Start and end of the window of each fragment with these ``limits``, and the fragment; several may make up a session that is cut."""
    pieces: list[list[Mapping[str, Any]]] = []
    for fragment in fragments:
        own, first = SessionLimits(fragment["gap"], fragment.get("longest") or AFTER), fragment["first"]
        if own == limits:
            if not pieces or first - pieces[-1][-1]["last"] > limits.gap or first - pieces[-1][0]["first"] >= limits.longest:
                pieces.append([])
            pieces[-1].append(fragment)
    for piece in pieces:
        start, last = piece[0]["first"], piece[-1]["last"]
        yield from ((start, start + min(last + limits.gap - start, limits.longest), fragment) for fragment in piece)


def state_of(pipeline: Pipeline, key: Sequence[str], limit: int) -> Answer:
    """Summarize the stored state; show the ``key`` in detail if it is given, ``NAME=VALUE`` for each column, or the pipeline has none."""
    ledger, path = Ledger.open(pipeline), Places.of(pipeline).state
    ledger.check_meaning(pipeline)
    with reporting_damage(path):
        if not is_table(path):
            return Answer({"pipeline": pipeline.pipeline, "state": None}, f"{pipeline.pipeline}: no state yet; {_made_by(ledger, path)}")
        return _answer(_view(pipeline, ledger, path, limit), key)


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


def _view(pipeline: Pipeline, ledger: Ledger, path: str, limit: int) -> View:
    parts, views = divide(pipeline, source_types(ledger, path, pipeline)), dict[StateLayout, View]()
    if parts.slices is not None:
        views["slices"] = SlicesView(parts.slices.pipeline, ledger, path, limit)
    if parts.sessions is not None:
        views["sessions"] = SessionsView(parts.sessions.pipeline, ledger, path, limit)
    if parts.positions is not None:
        views["positions"] = PositionsView(parts.positions.pipeline, ledger, path, limit)
    if parts.rows is not None:
        views["live rows"] = LiveRowsView(parts.rows.pipeline, ledger, path, limit, parts.names)
    return next(iter(views.values())) if len(views) == 1 else MixedView(pipeline, ledger, limit, views)


def _answer(view: View, key: Sequence[str]) -> Answer:
    pipeline = view.pipeline
    data: dict[str, Any] = {"pipeline": pipeline.pipeline, "state": view.summary()}
    parts: list[RenderableType] = [] if key else list(view.show_summary(data["state"]))
    if key or not pipeline.keys:
        types = {name: view.inspection.schema.field(view.labels.get(name, name)).type for name in pipeline.keys}
        wanted = _key(pipeline, key, types)
        data["key"] = {name: value_of(pa.scalar(value, types[name]).as_py()) for name, value in wanted.items()}
        data |= view.of_key(wanted)
        parts += view.show_key(", ".join(f"{name}={value}" for name, value in data["key"].items()), data)
    return Answer(data, Group(*parts))


def _key(pipeline: Pipeline, given: Sequence[str], types: Mapping[str, pa.DataType]) -> dict[str, Any]:
    parts = named_values(given)
    if sorted(name for name, _ in parts) != sorted(pipeline.keys):
        wanted = " ".join(f"--key {name}=…" for name in pipeline.keys) or "no --key: the pipeline has no keys"
        raise SpecError(f"--key: got {', '.join(given) or 'none'}; expected {wanted}")
    return {name: key_value(dict(parts)[name], types[name], name) for name in pipeline.keys}


class MixedView(View):
    """State of several parts: what the view of each shows."""

    def __init__(self, pipeline: Pipeline, ledger: Ledger, limit: int, views: Mapping[StateLayout, View]) -> None:
        super().__init__(pipeline, ledger, limit)
        self._views = {layout.replace(" ", "_"): view for layout, view in views.items()}
        self.kind = describe_layouts(list(views))
        self.inspection = next(iter(views.values())).inspection

    def summary(self) -> dict[str, Any]:
        summaries = {part: view.summary() for part, view in self._views.items()}
        first = next(iter(summaries.values()))
        others = {*_SHARED, "kind", "largest_keys"}
        own = {f"{part}_{name}": fact for part, facts in summaries.items() for name, fact in facts.items() if name not in others}
        shared = {name: first[name] for name in _SHARED}
        return {"kind": self.kind} | shared | own | {"largest_keys": first["largest_keys"]}

    def of_key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        return {part: view.of_key(key) for part, view in self._views.items()}

    def show_key(self, name: str, data: Mapping[str, Any]) -> Iterator[RenderableType]:
        for part, view in self._views.items():
            own = {fact.removeprefix(f"{part}_"): value for fact, value in data["state"].items()}
            yield from view.show_key(name, {"state": own, **data[part]})


def state(
    spec: Spec,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="NAME=VALUE", help="A key; give the option once per key column. NAME alone means null."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of lines of each list.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the stored state; for a key, what the next run would restore, and for which windows."""
    show(state_of(load_pipeline(spec), key or [], limit), as_json)
