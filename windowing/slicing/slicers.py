"""Slicers of windows whose bounds depend on rows (sessions, snapshots, count windows), and the slicer of a window's type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windowmill.windowing.errors import UnsupportedError
from windowmill.windowing.kernels import event_bounds as kernel
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.registry import imported_for
from windowmill.windowing.slicing.custom_slicer import CustomSlicer
from windowmill.windowing.slicing.leaves import BatchEffect, Engine, Leaves, Windows, earliest
from windowmill.windowing.slicing.revised_slicer import CountReplay, CustomReplay, RevisedSlicer, SessionReplay, SnapshotReplay
from windowmill.windowing.watermark import AFTER, BEFORE, Clock
from windowmill.windowing.windows.plugged import PluginWindow
from windowmill.windowing.windows.types import Count, Custom, Session, Snapshot

if TYPE_CHECKING:
    from windowmill.windowing.slicing.leaves import Slicer
    from windowmill.windowing.spec import Pipeline
    from windowmill.windowing.windows.base import Window

_NONE = np.empty(0, np.int64)


class _Slicer:
    """The base of the three slicers: holds the numbers of the rows in open windows, and one or two instants per key."""

    marks: tuple[str, ...] = ()
    engine: Engine = "recompute"

    def __init__(self, pipeline: Pipeline) -> None:
        self._intervals = pipeline.time.end is not None
        self._live = _NONE
        self._marks = dict.fromkeys(self.marks, _NONE)

    def flipped(self, windows: Windows, flips: Ints) -> None:
        """Ignored: windows are listed row by row, unless a subclass overrides this."""

    def _held(self, leaves: Leaves) -> Bools:
        for name, column in self._marks.items():
            self._marks[name] = np.append(column, np.full(leaves.n_keys - len(column), BEFORE, np.int64))
        return leaves.among(self._live)

    def due(self, leaves: Leaves, applied: BatchEffect, clock: Clock) -> Ints:
        return earliest(leaves, applied.kept, leaves.time, clock.lateness)

    def snapshot(self) -> dict[str, pa.Table]:
        return {"rows": pa.table({"number": self._live}), "keys": pa.table(self._marks)}

    def restore(self, tables: dict[str, pa.Table]) -> None:
        self._live = tables["rows"].column("number").to_numpy()
        self._marks = {name: tables["keys"].column(name).to_numpy().copy() for name in self.marks}


class SessionSlicer(_Slicer):
    """Sessions over all keys: rows at most ``gap`` ticks apart; a session longer than ``longest`` ticks is split."""

    def __init__(self, gap: int, longest: int, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self._gap, self._longest = gap, longest

    def apply(self, leaves: Leaves, clock: Clock) -> BatchEffect:
        closed = clock.closed_at(leaves.watermark)
        suspect = leaves.new & (leaves.time < closed)
        accepted = leaves.new & ~suspect
        live = self._held(leaves) | accepted
        owner, key, start, end = kernel.sessions(
            self._gap, self._longest, leaves.rows()._replace(stop=leaves.until), closed, suspect, live, accepted, clock.closed
        )
        self._live = leaves.number[live]
        members = np.flatnonzero(owner >= 0)
        members = members[np.argsort(owner[members], kind="stable")].astype(np.int64)
        offsets = np.searchsorted(owner[members], np.arange(len(key) + 1)).astype(np.int64)
        return BatchEffect(accepted, leaves.new & ~accepted, live, [Windows.of(key, start, end, members=(offsets, members))])

    def due(self, leaves: Leaves, applied: BatchEffect, clock: Clock) -> Ints:
        longest = np.where(leaves.time > AFTER - self._longest, AFTER, np.minimum(leaves.time, AFTER - self._longest) + self._longest)
        return earliest(leaves, applied.kept, np.minimum(leaves.until + self._gap + 1, longest), clock.lateness)


class SnapshotSlicer(_Slicer):
    """Snapshots over all keys; ``fixed`` is the last point of a key through which its windows are closed."""

    marks = ("fixed",)

    def apply(self, leaves: Leaves, clock: Clock) -> BatchEffect:
        closed, rows = clock.closed_at(leaves.watermark), leaves.rows()
        accepted = leaves.new & (rows.stop > closed)
        held = self._held(leaves) | accepted
        fixed = self._marks["fixed"]
        *bounds, offsets, members, begins = kernel.snapshots(rows, closed, accepted & (leaves.time < closed), held, fixed, clock.closed)
        live = held & (rows.stop > fixed[leaves.key])
        self._live = leaves.number[live]
        return BatchEffect(
            accepted, leaves.new & ~accepted, live, [Windows.of(*bounds, members=(offsets, members))], accepted & (begins > leaves.time)
        )

    def due(self, leaves: Leaves, applied: BatchEffect, clock: Clock) -> Ints:
        point = np.where(leaves.time > self._marks["fixed"][leaves.key], leaves.time, leaves.stop)
        return earliest(leaves, applied.kept, point, clock.lateness)


class CountSlicer(_Slicer):
    """Count windows, of ``size`` start times each, over all keys; ``begun`` is the start of a key's last closed window."""

    marks = ("begun", "middle_end")
    engine: Engine = "two_stacks"

    def __init__(self, size: int, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self._size = size

    def apply(self, leaves: Leaves, clock: Clock) -> BatchEffect:
        closed = clock.closed_at(leaves.watermark)
        suspect = leaves.new & (leaves.time < closed)
        accepted = leaves.new & ~suspect
        held = self._held(leaves) | accepted
        begun = self._marks["begun"]
        judged, fronts = kernel.RowFlags(closed, suspect, held, accepted), kernel.Fronts(begun, self._marks["middle_end"])
        found = kernel.counts(self._size, leaves.rows(), judged, fronts, clock.closed, self._intervals)
        table, sequence, offsets, members, middles, self._lasting = found
        key, group, start, end, lo, hi = (np.ascontiguousarray(column) for column in table.T)
        windows = Windows.of(key, start, end, group=group, ranges=(sequence, lo, hi), middles=middles, members=(offsets, members))
        live = held & (leaves.stop - 1 > begun[leaves.key])
        self._live = leaves.number[live]
        return BatchEffect(accepted, leaves.new & ~accepted, live, [windows])

    def flipped(self, windows: Windows, flips: Ints) -> None:
        made = (flips >= 0) & (self._lasting != 0)
        if made.any():
            self._marks["middle_end"][windows.key[windows.group_offsets[:-1]][made]] = windows.end[flips[made]]


def slicer_of(window: Window, pipeline: Pipeline) -> Slicer:
    """What cuts live rows into the windows of ``window``, for the kernels.

    Raises ``UnsupportedError`` if its windows keep no rows, and ``SpecError`` if a function of the user's cannot be imported.
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
