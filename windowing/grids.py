"""The grids of a pipeline's event-time windows, and what follows from them for slices and progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from windowmill.windowing.axis import Edges, WindowGrid
from windowmill.windowing.errors import UnsupportedError
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from windowmill.windowing.kernels.combine import Ints


@dataclass(frozen=True)
class Grids:
    """The named grids of a pipeline, sharing slices; ``known`` are the names of those that show empty windows."""

    named: tuple[tuple[str, WindowGrid], ...]
    known: tuple[str, ...] = ()

    @classmethod
    def of(cls, pipeline: Pipeline) -> Grids:
        """Grids of all windows except sessions; raises ``UnsupportedError`` if any other window is not on a grid."""
        named = []
        for i, window in enumerate(pipeline.windows):
            if window.joins_by_gap:
                continue
            if why := window.partials_problem(f"windows.{i}"):
                raise UnsupportedError(f"pipeline {pipeline.pipeline}: {why}; such windows have no slices")
            named.append((window.name, window.grid()))
        return cls(tuple(named), tuple(window.name for window in pipeline.windows if window.fills_gaps))

    @property
    def grids(self) -> Sequence[WindowGrid]:
        return [grid for _, grid in self.named]

    @property
    def edges(self) -> Edges:
        return Edges.of(self.grids)

    def first_slice_after(self, emitted: int) -> int:
        """Start of the earliest slice that a window ending after ``emitted`` can hold; older slices are never read again."""
        return min(grid.first_start_after(emitted) for grid in self.grids)

    def any_end(self, after: int, through: int) -> bool:
        """Whether any window ends in (``after``, ``through``]."""
        return any(grid.count_ends(after, through) for grid in self.grids)


def grids_among(pipeline: Pipeline) -> list[WindowGrid]:
    """The grids of those windows that are on one, in the order of the spec."""
    on_grid = (window for window in pipeline.windows if not window.joins_by_gap and window.partials_problem("") is None)
    return [window.grid() for window in on_grid]


def why_no_partials(pipeline: Pipeline, index: int) -> tuple[str, ...]:
    """Why no partials can make up the window at ``index``: the parts of the spec, each with its reason; empty if some can."""
    window, found = pipeline.windows[index], []
    if pipeline.emit == "revise" and (window.follows_policies or window.joins_by_gap):
        found.append("emit: revise: of partials, only windows on grids are shown again")
    if pipeline.time.end is not None:
        found.append("time.end: an event that lasts lies in many slices at once")
    if not window.follows_policies and (problem := window.partials_problem(f"windows.{index}")):
        found.append(problem)
    return tuple(found)


@dataclass(frozen=True)
class Closing:
    """What decides in which windows rows count that came when some windows were closed.

    Attributes
    ----------
    first_end, last_end
        Least window end after each row's time, and greatest end of the windows that start at or before it.
    edge
        The last edge of a slice through which windows were closed when the row came.
    """

    first_end: Ints
    last_end: Ints
    edge: Ints


def closing_of(grids: Sequence[WindowGrid], time: Ints, closed: Ints) -> Closing:
    """The closing of rows at ``time`` that came when windows were closed through ``closed``."""
    first_end = np.min([grid.first_end_after(time) for grid in grids], axis=0)
    last_end = np.max([grid.last_end_holding(time) for grid in grids], axis=0)
    return Closing(first_end, last_end, Edges.of(grids).slice_starts(closed))
