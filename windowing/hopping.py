"""The fixed grids of a pipeline's event-time windows, and what follows from them for slices and progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from windowing.axis import Edges, Grid, to_us
from windowing.errors import UnsupportedError
from windowing.spec import Hopping, Pipeline, Tumbling


@dataclass(frozen=True)
class Grids:
    """The named grids of a pipeline, sharing slices."""

    named: tuple[tuple[str, Grid], ...]

    @classmethod
    def of(cls, pipeline: Pipeline) -> Grids:
        """Grids of all windows; raises ``UnsupportedError`` for a window that is not tumbling or hopping of a fixed length."""
        return cls(
            tuple((window.name, _grid(window, f"pipeline {pipeline.pipeline}: windows.{i}")) for i, window in enumerate(pipeline.windows))
        )

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


def check_sliceable(pipeline: Pipeline) -> None:
    """Refuse windows that are not cut into slices of fixed grids; raises ``UnsupportedError`` naming the field."""
    name = f"pipeline {pipeline.pipeline}"
    if pipeline.emit == "revise":
        raise UnsupportedError(f"{name}: emit: revise does not run on Spark yet; use final")
    if pipeline.time.end is not None:
        raise UnsupportedError(f"{name}: time.end: interval events do not run on Spark yet")
    Grids.of(pipeline)


def _grid(window: object, where: str) -> Grid:
    if not isinstance(window, Tumbling | Hopping) or window.size is None:
        kind = getattr(window, "type", "?") + (" with evict" if isinstance(window, Tumbling) else "")
        raise UnsupportedError(f"{where}: windows of type {kind} do not run on Spark yet; tumbling and hopping windows with a size do")
    hop = window.hop if isinstance(window, Hopping) else window.size
    if window.size.months or hop.months or (window.timezone not in (None, "UTC") and (window.size.is_calendar or hop.is_calendar)):
        raise UnsupportedError(
            f"{where}: calendar lengths (months, or days in a time zone) do not run on Spark yet; give the length in hours"
        )
    if window.empty == "emit":
        raise UnsupportedError(f"{where}.empty: emit does not run on Spark yet; leave it at skip")
    origin = window.origin if window.origin is not None else 0
    return Grid(window.size.elapsed(), hop.elapsed(), to_us(origin) if isinstance(origin, datetime) else origin)
