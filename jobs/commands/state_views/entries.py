"""The views of a state of entries per key: by positions, and by live rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.state.compaction import own_rows
from windowmill.checkpoints.state.inspection import LogInspection, PositionsInspection
from windowmill.jobs.commands.state_views.view import View, breakable, cell, partials_told, source_types, value_of
from windowmill.jobs.commands.summaries import titled
from windowmill.windowing.columnar.added_columns import BATCH, DUE, KIND, LEVEL, NUMBER_OF, TIME
from windowmill.windowing.columnar.position_nodes import FIRST, POSITION
from windowmill.windowing.columnar.positions import FRONT, KEY_ROW, LIVE, NEXT, NODE, SEQUENCE, WAITING, PositionState, scalar_of
from windowmill.windowing.columnar.state_log import StateLog
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.layouts import StateLayout
from windowmill.windowing.slicing.policy_settings import STATE
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import AFTER


class PositionsView(View):
    """State by positions."""

    inspection: PositionsInspection

    def __init__(self, pipeline: Pipeline, ledger: Ledger, path: str, limit: int) -> None:
        super().__init__(pipeline, ledger, limit)
        types = source_types(ledger, path)
        self._layout = Layout.of(pipeline, types)
        self._state = PositionState(pipeline, types, self._layout)
        self.inspection = PositionsInspection(path, pipeline.keys, self.next_batch)

    def summary(self) -> dict[str, Any]:
        facts = self.inspection.summary()
        spans = {"oldest_row": self.instant(facts.pop("oldest")), "newest_row": self.instant(facts.pop("newest"))}
        facts |= spans | {"emitted_through": self.instant(self.emitted)}
        return {"kind": "positions", "next_batch": self.next_batch} | self.inspection.files() | facts | {"largest_keys": self.largest()}

    def of_key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """What each window holds of the key, the tuples that wait, and the latest leaves with their partials."""
        rows = self.inspection.rows_of(key)
        entries = {row[SEQUENCE]: row for row in rows if row[KIND] == KEY_ROW}
        leaves = [row for row in rows if row[KIND] == NODE and row[LEVEL] == 0]
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

    def __init__(self, pipeline: Pipeline, ledger: Ledger, path: str, limit: int, layouts: Sequence[StateLayout] = ()) -> None:
        super().__init__(pipeline, ledger, limit)
        log = StateLog(pipeline, source_types(ledger, path), pipeline.conditions(), shared=len(layouts) > 1)
        own = own_rows("live rows", layouts or ["live rows"])
        self.inspection = LogInspection(path, list(log.keys.values()), self.next_batch, log.tables, own)
        self._labels = log.keys

    def summary(self) -> dict[str, Any]:
        facts = self.inspection.summary()
        spans = {"oldest_row": self.instant(facts.pop("oldest")), "newest_row": self.instant(facts.pop("newest"))}
        facts |= spans | {"emitted_through": self.instant(self.emitted)}
        return {"kind": "live rows", "next_batch": self.next_batch} | self.inspection.files() | facts | {"largest_keys": self.largest()}

    def of_key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """The live rows that the next run would restore, and each window's stored numbers."""
        key = {self._labels[name]: value for name, value in key.items()}
        restored = self.inspection.key(key)
        if restored is None:
            return {"restored": {"live_rows": 0, "entries": 0, "due": None}, "windows": [], "rows": []}
        rows = self.inspection.rows_of(key, self.limit)
        for row in rows:
            row |= {"time": self.instant(row["time"]), "watermark": self.instant(row["watermark"])}
        windows = self.inspection.windows_of(key)
        for window in windows:
            window["scalars"] = {name: self._remembered(name, value) for name, value in window["scalars"].items()}
            for span in window["holds"].values():
                span |= {"oldest": self.instant(span["oldest"]), "newest": self.instant(span["newest"])}
        return {"restored": restored | {"due": self.instant(restored["due"])}, "windows": windows, "rows": rows}

    def _remembered(self, name: str, value: Any) -> Any:
        """``value`` for output; a list is given as its length and last items."""
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
    """When a key without new rows is restored next."""
    return "never" if due is None else f"when the watermark is at {due}"


def _windows_table() -> Table:
    """An empty table of what the windows of a key remember and hold."""
    table = titled("", ())
    for column in ("window", "remembers", "holds"):
        table.add_column(column, overflow="fold")
    return table


def _remembered(window: Mapping[str, Any]) -> str:
    """The scalars of a window's policies, a line each."""
    return "\n".join(f"{name} {cell(value)}" for name, value in window["scalars"].items())
