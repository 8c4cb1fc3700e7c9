"""The view of a state of windows over positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.markup import escape

from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.state.inspection import PositionsInspection
from windowmill.jobs.commands.answers import titled
from windowmill.jobs.commands.state_views.base import View, cell, partials_told, source_types, value_of
from windowmill.windowing.columnar.added_columns import BATCH, DUE, KIND, LEVEL, NUMBER_OF, TIME
from windowmill.windowing.columnar.position_nodes import FIRST, POSITION
from windowmill.windowing.columnar.positions import FRONT, KEY_ROW, LIVE, NEXT, NODE, SEQUENCE, WAITING, PositionState, scalar_of
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.slicing.policy_settings import STATE
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import AFTER, BEFORE


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
        scalars = {scalar: entry[scalar_of(name, scalar)] for scalar in STATE}
        front, stop = entry[scalar_of(name, FRONT)], entry[NEXT]
        held = [leaf for leaf in leaves if leaf[SEQUENCE] == entry[SEQUENCE] and leaf[POSITION] >= front]
        span = {place: self.instant(held[at][FIRST]) if held else None for place, at in (("oldest", 0), ("newest", -1))}
        shown = {scalar: None if value in (BEFORE, AFTER) else value_of(value) for scalar, value in scalars.items()}
        n_held = entry[LIVE] if entry[SEQUENCE] in self._state.deltas else stop - front
        return {"window": name, "scalars": shown, "first_position": front, "next_position": stop, "rows": n_held, **span}

    def _leaf(self, row: Mapping[str, Any]) -> dict[str, Any]:
        partials = {name: row[name] for name, _ in self._layout.stored_columns}
        told = partials_told(partials, {held.name for held in self._layout.objects})
        return {"position": row[POSITION], "time": self.instant(row[FIRST]), "batch": row[BATCH], "partials": told}

    def show_key(self, name: str, data: Mapping[str, Any]) -> Iterator[RenderableType]:
        restored = data["restored"]
        due = "never" if restored["due"] is None else f"when the watermark is at {restored['due']}"
        yield escape(
            f"{name or self.pipeline.pipeline}: the state holds {restored['leaves']:,} leaves, {restored['nodes']:,} nodes over them and "
            f"{restored['waiting']:,} tuples that wait; batch {self.next_batch} would restore those that it needs if a row of the key "
            f"arrives; without one: {due}"
        )
        table = titled("", ())
        for column in ("window", "remembers", "holds"):
            table.add_column(column, overflow="fold")
        for window in data["windows"]:
            scalars = "\n".join(f"{scalar} {cell(value)}" for scalar, value in window["scalars"].items())
            span = f", {window['oldest']} to {window['newest']}" if window["rows"] else ""
            table.add_row(escape(window["window"]), scalars, escape(f"{window['rows']:,} tuples{span}"))
        yield table
        yield from self.show_list("tuples that wait", data["waiting"], restored["waiting"], ", the next to be applied")
        leaves = [{column: leaf[column] for column in ("position", "time", "batch")} for leaf in data["leaves"]]
        yield from self.show_list("leaves", leaves, restored["leaves"], ", the latest (--json has their partials)")
