"""The view of a state by slices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.markup import escape

from windowmill.checkpoints.inspection import SlicesInspection
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.commands.state_views.base import View, partials_told, source_types
from windowmill.windowing.axis import WindowGrid
from windowmill.windowing.grids import Grids
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.kernels.grid_ranges import grid_windows
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.rows import Rows
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import AFTER


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
        self.inspection = SlicesInspection(path, pipeline.keys, self.next_batch, partials, self._needed_from, self._grids.known)

    def summary(self) -> dict[str, Any]:
        facts = self.inspection.summary()
        spans = {"oldest_slice": self.instant(facts.pop("oldest")), "newest_slice": self.instant(facts.pop("newest"))}
        facts |= spans | {"emitted_through": self.instant(self.emitted), "needed_from": self.instant(self._needed_from)}
        return {"kind": "slices", "next_batch": self.next_batch} | self.inspection.files() | facts | {"largest_keys": self.largest()}

    def of_key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """The entries that the next run would restore, and the windows still to come that contain them."""
        starts, n_rows, entries = self.inspection.slices_of(key)
        listed = self.inspection.entries_of(key, self.limit)
        for entry in listed:
            entry |= {"slice": self.instant(entry["slice"]), "closed": self.instant(entry["closed"])}
            entry["partials"] = partials_told(entry["partials"], self._objects)
        windows = list(self._windows(starts, n_rows))
        spans = self.inspection.spans_of(key) if self._grids.known else {}
        known = [
            {"window": name, "first_slice": self.instant(first), "last_slice": self.instant(last)} for name, (first, last) in spans.items()
        ]
        return {
            "restored": {"slices": len(starts), "entries": entries, "rows": int(n_rows.sum())},
            "windows": sorted(windows, key=lambda window: window.pop("order"))[: self.limit],
            "windows_in_all": sum(len(self._to_come(grid, starts)[0]) for _, grid in self._grids.named),
            "entries": listed,
            "known": known,
        }

    def _windows(self, starts: Ints, n_rows: Ints) -> Iterator[dict[str, Any]]:
        """For each window of the spec, the first windows that are still to come and contain a slice; at most ``limit`` each."""
        rows_before = np.append(0, np.cumsum(n_rows))
        for name, grid in self._grids.named:
            bounds = (bound[: self.limit].tolist() for bound in self._to_come(grid, starts))
            for start, end in zip(*bounds, strict=True):
                first, stop = np.searchsorted(starts, (start, end)).tolist()
                yield {
                    "order": (end, name),
                    "window": name,
                    "window_start": self.instant(start),
                    "window_end": self.instant(end),
                    "slices": stop - first,
                    "first_slice": self.instant(int(starts[first])),
                    "last_slice": self.instant(int(starts[stop - 1])),
                    "rows": int(rows_before[stop] - rows_before[first]),
                }

    def _to_come(self, grid: WindowGrid, starts: Ints) -> tuple[Ints, Ints]:
        """Starts and ends of the windows that contain a slice and have not been emitted, in order of their ends."""
        if not len(starts):
            return starts, starts
        after = int(starts[0]) if self.emitted is None else max(self.emitted, int(starts[0]))
        numbering, n = grid.numbered(starts, starts + 1), len(starts)
        # As points at their starts: between slices that lie far apart there may be very many windows.
        points = Rows(np.array([0, n]), starts, starts + 1, np.arange(n))
        found = grid_windows(numbering.grid, points, False, np.ones(n, np.bool_), starts, after, AFTER)
        return numbering.bounds(found[1])

    def show_key(self, name: str, data: Mapping[str, Any]) -> Iterator[RenderableType]:
        restored = data["restored"]
        instead = "; nodes that hold the same are read in their place" if "entries_of_nodes" in data["state"] else ""
        yield escape(
            f"{name or self.pipeline.pipeline}: batch {self.next_batch} would restore {restored['slices']:,} slices "
            f"({restored['entries']:,} entries) of {restored['rows']:,} rows{instead}"
        )
        yield from self.show_list("windows to come that hold them", data["windows"], data["windows_in_all"], ", the next to end")
        entries = [{name: entry[name] for name in ("slice", "closed", "batch", "rows")} for entry in data["entries"]]
        if data["known"]:
            yield from self.show_list("known, so that empty windows between have rows", data["known"], len(data["known"]))
        yield from self.show_list("entries", entries, restored["entries"], ", the latest slices (--json has their partials)")
