"""The view of a state by sessions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.markup import escape

from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.state.inspection import SessionsInspection
from windowmill.checkpoints.state.wanted import OpenSessions
from windowmill.jobs.commands.state_views.base import View, partials_told, source_types
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.spec import Pipeline


class SessionsView(View):
    """State by sessions."""

    inspection: SessionsInspection

    def __init__(self, pipeline: Pipeline, ledger: Ledger, path: str, limit: int) -> None:
        super().__init__(pipeline, ledger, limit)
        self._gaps = {window.name: window.session_gap() for window in pipeline.windows if window.joins_by_gap}
        layout = Layout.of(pipeline, source_types(ledger, path))
        self._objects = {held.name for held in layout.objects}
        wanted = OpenSessions(tuple(dict.fromkeys(self._gaps.values())), AXIS_BEGIN if self.emitted is None else self.emitted)
        partials = [column for column, _ in layout.stored_columns]
        self.inspection = SessionsInspection(path, pipeline.keys, self.next_batch, partials, wanted, revised=pipeline.emit == "revise")

    def summary(self) -> dict[str, Any]:
        facts = self.inspection.summary()
        facts |= {"oldest": self.instant(facts["oldest"]), "newest": self.instant(facts["newest"])}
        facts |= {"emitted_through": self.instant(self.emitted)}
        return {"kind": "sessions", "next_batch": self.next_batch} | self.inspection.files() | facts | {"largest_keys": self.largest()}

    def of_key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """The open sessions that the next run would restore, with the bounds that they have so far."""
        sessions, entries = self.inspection.sessions_of(key)
        windows = [
            {
                "window": name,
                "window_start": self.instant(session["first"]),
                "window_end": self.instant(session["last"] + gap),
                "last_event": self.instant(session["last"]),
                **{name: session[name] for name in ("revision",) if name in session},
                "rows": session["rows"],
                "batch": session["batch"],
                "partials": partials_told(session["partials"], self._objects),
            }
            for session in sessions
            for name, gap in self._gaps.items()
            if gap == session["gap"]
        ]
        restored = {"sessions": len(sessions), "entries": entries, "rows": sum(session["rows"] for session in sessions)}
        return {"restored": restored, "windows": windows[: self.limit], "windows_in_all": len(windows)}

    def show_key(self, name: str, data: Mapping[str, Any]) -> Iterator[RenderableType]:
        restored = data["restored"]
        yield escape(
            f"{name or self.pipeline.pipeline}: batch {self.next_batch} would restore {restored['sessions']:,} open sessions "
            f"({restored['entries']:,} entries) of {restored['rows']:,} rows"
        )
        windows = [{column: value for column, value in window.items() if column != "partials"} for window in data["windows"]]
        yield from self.show_list(
            "open sessions, ending so if no row joins them", windows, data["windows_in_all"], " (--json has their partials)"
        )
