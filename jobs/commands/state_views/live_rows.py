"""The view of a state by live rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.markup import escape

from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.state.inspection import LogInspection
from windowmill.checkpoints.state.joint import own_rows
from windowmill.jobs.commands.answers import titled
from windowmill.jobs.commands.state_views.base import View, cell, source_types, value_of
from windowmill.jobs.conditions.duckdb import conditions_of
from windowmill.windowing.columnar.log import StateLog
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import AFTER, BEFORE
from windowmill.windowing.ways import WayName


class LiveRowsView(View):
    """State by live rows; ``ways`` are those of all parts whose rows are in the table, by default none else."""

    inspection: LogInspection

    def __init__(self, pipeline: Pipeline, ledger: Ledger, path: str, limit: int, ways: Sequence[WayName] = ()) -> None:
        super().__init__(pipeline, ledger, limit)
        log = StateLog(pipeline, source_types(ledger, path), conditions_of(pipeline), beside=len(ways) > 1)
        own = own_rows("live rows", ways or ["live rows"])
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
            window["scalars"] = {name: self._remembered(value) for name, value in window["scalars"].items()}
            for span in window["holds"].values():
                span |= {"oldest": self.instant(span["oldest"]), "newest": self.instant(span["newest"])}
        return {"restored": restored | {"due": self.instant(restored["due"])}, "windows": windows, "rows": rows}

    def _remembered(self, value: Any) -> Any:
        """``value`` for output; a list is given as its length and last items."""
        if isinstance(value, list):
            return {"items": len(value), "last": [value_of(item) for item in value[-self.limit :]]}
        return None if isinstance(value, int) and value in (BEFORE, AFTER) else value_of(value)

    def show_key(self, name: str, data: Mapping[str, Any]) -> Iterator[RenderableType]:
        restored = data["restored"]
        due = "never" if restored["due"] is None else f"when the watermark is at {restored['due']}"
        yield escape(
            f"{name or self.pipeline.pipeline}: batch {self.next_batch} would restore {restored['live_rows']:,} live rows "
            f"({restored['entries']:,} entries) if a row of the key arrives; without one: {due}"
        )
        table = titled("", ())
        for column in ("window", "remembers", "holds"):
            table.add_column(column, overflow="fold")
        for window in data["windows"]:
            scalars = "\n".join(f"{name} {cell(value)}" for name, value in window["scalars"].items())
            holds = "\n".join(f"{name}: {_span(span)}" for name, span in window["holds"].items())
            table.add_row(escape(window["window"]), scalars, escape(holds))
        yield table
        yield from self.show_list("live rows", data["rows"], restored["live_rows"], ", the latest to arrive")


def _span(span: Mapping[str, Any]) -> str:
    return f"{span['rows']:,} rows" + (f", {span['oldest']} to {span['newest']}" if span["rows"] else "")
