"""The views of a state of partials: by slices, and by sessions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import RenderableType

from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.state.inspection import SessionsInspection, SlicesInspection
from windowmill.checkpoints.state.wanted import OpenSessions
from windowmill.jobs.commands.state_views.view import View, partials_told, source_types
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.grid_partials import SlicePartials, windows_of
from windowmill.windowing.grids import Grids
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.sessions import SessionLimits
from windowmill.windowing.layouts import Sessions
from windowmill.windowing.slicing.edges import WindowGrid
from windowmill.windowing.slicing.leaves import Windows
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import AFTER, BEFORE


class SlicesView(View):
    """State by slices."""

    inspection: SlicesInspection

    def __init__(self, pipeline: Pipeline, ledger: Ledger, path: str, limit: int) -> None:
        super().__init__(pipeline, ledger, limit)
        self._grids = Grids.of(pipeline)
        self._needed_from = None if self.emitted is None else self._grids.first_slice_after(self.emitted)
        layout = Layout.of(pipeline, source_types(ledger, path))
        self._objects = {held.name for held in layout.objects}
        partials = [column for column, _ in layout.stored_columns]
        self.inspection = SlicesInspection(
            path, pipeline.keys, self.next_batch, partials, self._needed_from, self._grids.known, intervals=self._grids.intervals
        )

    def summary(self) -> dict[str, Any]:
        facts = self.inspection.summary()
        spans = {"oldest_slice": self.instant(facts.pop("oldest")), "newest_slice": self.instant(facts.pop("newest"))}
        facts |= spans | {"emitted_through": self.instant(self.emitted), "needed_from": self.instant(self._needed_from)}
        return {"kind": "slices", "next_batch": self.next_batch} | self.inspection.files() | facts | {"largest_keys": self.largest()}

    def of_key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """The entries that the next run would restore, and the windows still to come that contain them."""
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
