"""The fixed grids of a pipeline's event-time windows, and what follows from them for slices and progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windowmill.windowing.axis import Edges, Grid
from windowmill.windowing.errors import UnsupportedError
from windowmill.windowing.spec import Pipeline


@dataclass(frozen=True)
class Grids:
    """The named grids of a pipeline, sharing slices."""

    named: tuple[tuple[str, Grid], ...]

    @classmethod
    def of(cls, pipeline: Pipeline) -> Grids:
        """Grids of all windows; raises ``UnsupportedError`` for a window that is not on a fixed grid."""
        named = []
        for i, window in enumerate(pipeline.windows):
            if why := window.grid_problem(f"windows.{i}"):
                raise UnsupportedError(f"pipeline {pipeline.pipeline}: {why}; such windows go by live rows")
            named.append((window.name, window.fixed_grid()))
        return cls(tuple(named))

    @property
    def grids(self) -> Sequence[Grid]:
        return [grid for _, grid in self.named]

    @property
    def edges(self) -> Edges:
        return Edges.of(self.grids)

    def first_slice_after(self, emitted: int) -> int:
        """Start of the earliest slice that a window ending after ``emitted`` can hold; older slices are never read again."""
        return min(grid.first_end_after(emitted) - grid.size for grid in self.grids)

    def any_end(self, after: int, through: int) -> bool:
        """Whether any window ends in (``after``, ``through``]."""
        return any(grid.count_ends(after, through) for grid in self.grids)


def why_no_grids(pipeline: Pipeline) -> tuple[str, ...]:
    """What of the spec keeps its windows from being made of slices of fixed grids, each with its reason; nothing if they are."""
    found = []
    if pipeline.emit == "revise":
        found.append("emit: revise shows a window again for each late row, and one row more is no slice")
    if pipeline.time.end is not None:
        found.append("time.end: an event that lasts lies in many slices at once")
    return (*found, *(reason for i, window in enumerate(pipeline.windows) if (reason := window.grid_problem(f"windows.{i}"))))
