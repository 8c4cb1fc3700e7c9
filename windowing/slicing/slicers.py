"""The slicer of a window that keeps live rows, by its type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windowmill.windowing.errors import UnsupportedError
from windowmill.windowing.imports import imported_for
from windowmill.windowing.slicing.custom_slicer import CustomSlicer
from windowmill.windowing.slicing.event_slicers import CountSlicer, SessionSlicer, SnapshotSlicer
from windowmill.windowing.slicing.replay import CountReplay, CustomReplay, SessionReplay, SnapshotReplay
from windowmill.windowing.slicing.revised_slicer import RevisedSlicer
from windowmill.windowing.watermark import AFTER
from windowmill.windowing.windows.plugged import PluginWindow
from windowmill.windowing.windows.types import Count, Custom, Session, Snapshot

if TYPE_CHECKING:
    from windowmill.windowing.slicing.leaves import Slicer
    from windowmill.windowing.spec import Pipeline
    from windowmill.windowing.windows.base import Window


def slicer_of(window: Window, pipeline: Pipeline) -> Slicer:
    """What cuts live rows into the windows of ``window``, for the kernels.

    Raises
    ------
    UnsupportedError
        If its windows keep no rows.
    SpecError
        If a function of the user's cannot be imported.
    """
    revises = pipeline.emit == "revise"
    match window:
        case Session():
            size = window.greatest_size()
            gap, longest = window.gap.elapsed(), AFTER if size is None else size
            if revises:
                return RevisedSlicer(lambda times, _cells: SessionReplay(times, gap, longest), latest_first=True)
            return SessionSlicer(gap, longest, pipeline)
        case Snapshot():
            return RevisedSlicer(lambda times, _cells: SnapshotReplay(times), clips=True) if revises else SnapshotSlicer(pipeline)
        case Count():
            n = window.count
            return RevisedSlicer(lambda times, _cells: CountReplay(times, n)) if revises else CountSlicer(n, pipeline)
        case Custom():
            function = imported_for("function", window.function)
            if revises:
                return RevisedSlicer(lambda times, cells: CustomReplay(times, function, cells.__getitem__), reads_cells=True)
            return CustomSlicer(function)
        case PluginWindow():
            return window.slicer(pipeline)
    raise UnsupportedError(f"window {window.name}: {window.type} windows are made of partials, and keep no rows")
