"""The view of a state by sessions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.markup import escape

from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.state.inspection import SessionsInspection
from windowmill.checkpoints.state.wanted import OpenSessions
from windowmill.jobs.commands.state_views.base import View, partials_told, source_types
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.sessions import SessionLimits
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import AFTER
from windowmill.windowing.ways import Sessions


class SessionsView(View):
    """State by sessions."""

    inspection: SessionsInspection

    def __init__(self, pipeline: Pipeline, ledger: Ledger, path: str, limit: int) -> None:
        super().__init__(pipeline, ledger, limit)
        layout = Layout.of(pipeline, source_types(ledger, path))
        sessions = Sessions.of(pipeline, layout)
        self._limits = sessions.limits
        self._objects = {held.name for held in layout.objects}
        wanted = OpenSessions(sessions.gaps, AXIS_BEGIN if self.emitted is None else self.emitted)
        partials = [column for column, _ in layout.stored_columns]
        self.inspection = SessionsInspection(path, pipeline.keys, self.next_batch, partials, wanted, sessions.own_columns)

    def summary(self) -> dict[str, Any]:
        facts = self.inspection.summary()
        facts |= {"oldest": self.instant(facts["oldest"]), "newest": self.instant(facts["newest"])}
        facts |= {"emitted_through": self.instant(self.emitted)}
        return {"kind": "sessions", "next_batch": self.next_batch} | self.inspection.files() | facts | {"largest_keys": self.largest()}

    def of_key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """The fragments of open sessions that the next run would restore, with the bounds that their windows have so far."""
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
        yield escape(
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
