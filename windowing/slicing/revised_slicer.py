"""Windows of rows or of a function that late rows may change after they were emitted: replayed key by key, and emitted by version.

The slicer follows the rules of :mod:`windowmill.windowing.slicing.slicers` and :mod:`windowmill.windowing.slicing.custom_slicer`.
A row is identified by its leaf index, so comparing indices compares (time, tie_break, arrival).

Unlike the other slicers, this one processes rows one by one: whether a version is new depends on all versions emitted before it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Set
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.slicing.custom_slicer import OWN_PREFIX, FunctionProgress, WindowFunction
from windowmill.windowing.slicing.leaves import BatchEffect, Engine, Leaves, Windows, earliest
from windowmill.windowing.watermark import BEFORE, Clock, commits_of

_NONE = np.empty(0, np.int64)
_SHOWN = pa.list_(pa.struct([("revision", pa.int64()), ("start", pa.int64()), ("end", pa.int64()), ("numbers", pa.list_(pa.int64()))]))
#: The cells of a row by column.
Cells = Mapping[str, Any]


class Version(NamedTuple):
    """One version of a window: its bounds and the leaf indices of its rows."""

    start: int
    end: int
    rows: tuple[int, ...]


@dataclass(frozen=True)
class LeafTimes:
    """Start, end, and half-open end of each leaf, by leaf index."""

    time: list[int]
    until: list[int]
    stop: list[int]


@dataclass
class Replay(ABC):
    """The windows of one key over the rows accepted so far."""

    times: LeafTimes
    rows: list[int] = field(default_factory=list, init=False)  #: Leaf indices of the rows that open windows may hold, ascending.
    mark: int = field(default=BEFORE, init=False)  #: Instant through which windows are closed; each shape defines it exactly.

    def accept(self, row: int, closed: int) -> bool:
        """Add ``row`` if a window that would hold it is still open; returns whether it was added."""
        insort(self.rows, row)
        if self.is_awaited(row, closed):
            return True
        self.rows.remove(row)
        return False

    @abstractmethod
    def is_awaited(self, row: int, closed: int) -> bool:
        """Whether a window that holds ``row``, which is among the rows, is still open."""

    @abstractmethod
    def windows(self) -> list[Version]:
        """The current versions of the windows that are not closed."""

    def complete(self, window: Version, watermark: int) -> bool:
        """Whether no row at or after ``watermark`` can change ``window``."""
        return window.end <= watermark

    @abstractmethod
    def close(self, closed: int) -> list[Version]:
        """Remove and return the windows that are complete at ``closed``."""

    def replaces(self, new: Version, old: Version) -> bool:
        """Whether ``new`` is another version of ``old``."""
        return new.start < old.end and old.start < new.end


@dataclass
class SessionReplay(Replay):
    """Sessions: rows at most ``gap`` apart; a session longer than ``longest`` is split."""

    gap: int
    longest: int

    def is_awaited(self, row: int, closed: int) -> bool:
        return any(row in window.rows and not self.complete(window, closed) for window in self.windows())

    def complete(self, window: Version, watermark: int) -> bool:
        # A row at the end still joins, unless the session was split there.
        return window.end < watermark or (window.end == watermark and window.end == window.start + self.longest)

    def windows(self) -> list[Version]:
        versions: list[Version] = []
        held: list[int] = []
        start = reach = 0
        for row in self.rows:
            at = self.times.time[row]
            if held and (at - reach > self.gap or at - start >= self.longest):
                versions.append(Version(start, min(reach + self.gap, start + self.longest), tuple(held)))
                held = []
            if not held:
                start = reach = at
            held.append(row)
            reach = max(reach, self.times.until[row])
        return [*versions, Version(start, min(reach + self.gap, start + self.longest), tuple(held))] if held else versions

    def close(self, closed: int) -> list[Version]:
        ended = [window for window in self.windows() if self.complete(window, closed)]
        gone = {row for window in ended for row in window.rows}
        self.rows = [row for row in self.rows if row not in gone]
        return ended


@dataclass
class SnapshotReplay(Replay):
    """Snapshots: the spans between neighbouring start and end points; those before ``mark`` are final."""

    def is_awaited(self, row: int, closed: int) -> bool:
        return self.times.stop[row] > closed

    def _points(self) -> list[int]:
        starts = {max(self.times.time[row], self.mark) for row in self.rows}
        return sorted(starts | {self.times.stop[row] for row in self.rows})

    def windows(self) -> list[Version]:
        time, stop = self.times.time, self.times.stop
        spans = [
            Version(start, end, tuple(row for row in self.rows if time[row] < end and stop[row] > start))
            for start, end in pairwise(self._points())
        ]
        return [span for span in spans if span.rows]

    def close(self, closed: int) -> list[Version]:
        ended = [window for window in self.windows() if window.end <= closed]
        self.mark = max(self.mark, *(point for point in self._points() if point <= closed), BEFORE)
        self.rows = [row for row in self.rows if self.times.stop[row] > self.mark]
        return ended


@dataclass
class CountReplay(Replay):
    """Count windows: from each start time after ``mark`` through the ``size``-th one."""

    size: int

    def _starts(self) -> list[int]:
        return sorted({self.times.time[row] for row in self.rows if self.times.time[row] > self.mark})

    def is_awaited(self, row: int, closed: int) -> bool:
        starts = self._starts()
        unfinished = starts[max(0, len(starts) - self.size + 1) :]
        if any(self.times.stop[row] > start for start in unfinished):
            return True
        return any(row in window.rows and window.end > closed for window in self.windows())

    def windows(self) -> list[Version]:
        time, stop, starts = self.times.time, self.times.stop, self._starts()
        return [
            Version(start, last + 1, tuple(row for row in self.rows if time[row] <= last and stop[row] > start))
            for start, last in zip(starts, starts[self.size - 1 :], strict=False)
        ]

    def close(self, closed: int) -> list[Version]:
        ended = [window for window in self.windows() if window.end <= closed]
        self.mark = max([self.mark, *(window.start for window in ended)])
        self.rows = [row for row in self.rows if self.times.stop[row] - 1 > self.mark]
        return ended

    def replaces(self, new: Version, old: Version) -> bool:
        return new.start == old.start


@dataclass
class CustomReplay(Replay):
    """Windows that a user's function defines. Rows before ``mark`` are final; later rows are replayed."""

    function: WindowFunction
    columns: Callable[[int], Mapping[str, Any]]
    progress: FunctionProgress = field(default_factory=FunctionProgress)
    last: int = -1

    def is_awaited(self, row: int, closed: int) -> bool:  # noqa: ARG002 - rows fed to the function decide, not closed windows
        return row >= self.last

    def _feed(self, progress: FunctionProgress, rows: Iterable[int]) -> list[Version]:
        numbered = []  # sorted by number below: of two windows with the same bounds the later one is another version
        oldest = self.progress.rows - sum(row <= self.last for row in self.rows)
        for row in rows:
            at = self.times.time[row]
            for number, first in progress.feed(self.function, self.columns(row), at):
                held = self.rows[first - oldest : progress.rows - oldest]
                numbered.append((number, Version(self.times.time[held[0]], at + 1, tuple(held))))
        return [version for _, version in sorted(numbered)]

    def windows(self) -> list[Version]:
        return self._feed(deepcopy(self.progress), [row for row in self.rows if row > self.last])

    def close(self, closed: int) -> list[Version]:
        self.mark = max(self.mark, closed)
        ready = [row for row in self.rows if row > self.last and self.times.time[row] < self.mark]
        progress = deepcopy(self.progress)
        ended = self._feed(progress, ready)
        self.progress, self.last = progress, max([self.last, *ready])
        oldest = progress.rows - sum(row <= self.last for row in self.rows)
        first_open = min(progress.open.values(), default=progress.rows) - oldest
        self.rows = self.rows[first_open:]
        return ended

    def replaces(self, new: Version, old: Version) -> bool:
        return new.start == old.start and new.end == old.end


@dataclass
class EmittedVersions:
    """Emitted versions of windows that still take rows, with their revision numbers; ``~revision`` of those that have been retracted."""

    versions: list[tuple[int, Version]] = field(default_factory=list)

    def resolve(self, replay: Replay, watermark: int, closed: int) -> list[tuple[int, Version]]:
        """Return the versions to emit at ``watermark`` with their revisions, and forget closed windows.

        A version whose window has other bounds since is retracted: it is emitted again, without rows.
        """
        windows = replay.windows()
        fresh = self._retracted({(window.start, window.end) for window in windows})
        current = set(windows)
        for window in windows:
            if not replay.complete(window, watermark):
                continue
            earlier = [(revision, version) for revision, version in self.versions if replay.replaces(window, version)]
            if all(version != window or revision < 0 for revision, version in earlier):
                # A retracted version counts as its retraction if that has the window's bounds.
                numbers = (
                    number if number >= 0 else ~number + ((version.start, version.end) == (window.start, window.end))
                    for number, version in earlier
                )
                revision = 1 + max(numbers, default=-1)
                # A user's function may give two windows with these bounds: the version of the other one stays.
                self.versions = [
                    (number, version)
                    for number, version in self.versions
                    if (version.start, version.end) != (window.start, window.end) or (number >= 0 and version in current)
                ]
                self.versions.append((revision, window))
                fresh.append((revision, window))
        ended = {(version.start, version.end) for version in replay.close(closed)}
        # Retracted versions go once no open window holds any of their rows.
        live = set(replay.rows)
        self.versions = [
            (revision, version)
            for revision, version in self.versions
            if (version.start, version.end) not in ended and not live.isdisjoint(version.rows)
        ]
        return fresh

    def _retracted(self, bounds: Set[tuple[int, int]]) -> list[tuple[int, Version]]:
        """Retract the versions that have none of ``bounds``: one revision without rows for the versions of one window."""
        gone: dict[tuple[int, int], int] = {}
        for revision, version in self.versions:
            its = (version.start, version.end)
            if revision >= 0 and its not in bounds:
                gone[its] = max(gone.get(its, 0), revision + 1)
        self.versions = [
            (~revision if revision >= 0 and (version.start, version.end) in gone else revision, version)
            for revision, version in self.versions
        ]
        return [(revision, Version(start, end, ())) for (start, end), revision in gone.items()]


class RevisedSlicer:
    """All versions of one window whose bounds depend on rows or a function, over all keys.

    ``replay``: makes the replay of one key from the leaves' times and their cells, by leaf index.
    ``reads_cells``: whether the replay reads cells; otherwise they are empty.
    ``latest_first``: whether of rows that arrived together the latest is accepted first; otherwise those in closed windows come last, in
        order.
    ``clips``: whether a row that begins before the replay's mark counts only from there on.
    """

    engine: Engine = "recompute"

    def __init__(
        self,
        replay: Callable[[LeafTimes, Mapping[int, Cells]], Replay],
        *,
        reads_cells: bool = False,
        latest_first: bool = False,
        clips: bool = False,
    ) -> None:
        self._replay, self._reads_cells, self._latest_first, self._clips = replay, reads_cells, latest_first, clips
        self._rows, self._n_keys = _NONE, 0
        self._marks: dict[int, tuple[int, int, str]] = {}
        self._shown: dict[int, list[tuple[int, int, int, list[int]]]] = {}

    def apply(self, leaves: Leaves, clock: Clock) -> BatchEffect:
        times = LeafTimes(leaves.time.tolist(), leaves.until.tolist(), leaves.stop.tolist())
        cells: Mapping[int, Cells] = {}
        if self._reads_cells:
            names = [name for name in leaves.table.column_names if not name.startswith(OWN_PREFIX)]
            cells = dict(enumerate(leaves.table.select(names).to_pylist()))
        index_of = dict(zip(leaves.number.tolist(), range(len(leaves)), strict=True))
        counted, kept, partly = (np.zeros(len(leaves), np.bool_) for _ in range(3))
        closed, watermarks = clock.closed_at(leaves.watermark).tolist(), leaves.watermark.tolist()
        replays: dict[int, Replay] = {}
        shown: dict[int, EmittedVersions] = {}
        emitted: list[tuple[int, int, Version]] = []

        def replay_of(key: int) -> Replay:
            if key not in replays:
                replay = replays[key] = self._replay(times, cells)
                mark, last, progress = self._marks.get(key, (BEFORE, -1, ""))
                replay.mark = mark
                if isinstance(replay, CustomReplay):
                    replay.last = index_of.get(last, -1)
                    replay.progress = FunctionProgress.load(progress) if progress else FunctionProgress()
                shown[key] = EmittedVersions(
                    [
                        (revision, Version(start, end, tuple(sorted(index_of[number] for number in numbers))))
                        for revision, start, end, numbers in self._shown.get(key, [])
                    ]
                )
            return replays[key]

        for number in self._rows.tolist():
            replay_of(int(leaves.key[index_of[number]])).rows.append(index_of[number])
        for replay in replays.values():
            replay.rows.sort()
        moments = commits_of(leaves.number).tolist()
        last_moment: dict[int, int] = {}

        def turn(row: int) -> tuple[int, ...]:
            return (moments[row], -row) if self._latest_first else (moments[row], times.time[row] < closed[row], row)

        for row in sorted(np.flatnonzero(leaves.new).tolist(), key=turn):
            key = int(leaves.key[row])
            replay = replay_of(key)
            if last_moment.get(key) != moments[row]:
                emitted += [(key, revision, version) for revision, version in shown[key].resolve(replay, watermarks[row], closed[row])]
                last_moment[key] = moments[row]
            counted[row] = replay.accept(row, closed[row])
            partly[row] = self._clips and counted[row] and times.time[row] < replay.mark
        # An emitted version may be all that is left of a key; its rows stay as long as it does.
        for key in sorted({*replays, *self._marks, *self._shown}):
            replay = replay_of(key)
            emitted += [(key, revision, version) for revision, version in shown[key].resolve(replay, clock.watermark, clock.closed)]
        self._remember(leaves, replays, shown)
        for replay in replays.values():
            kept[replay.rows] = True
            if isinstance(replay, CustomReplay) and replay.last >= 0:
                kept[replay.last] = True
        for versions in shown.values():
            for _, version in versions.versions:
                kept[list(version.rows)] = True
        return BatchEffect(counted, leaves.new & ~counted, kept, _windows(emitted), partly)

    def _remember(self, leaves: Leaves, replays: Mapping[int, Replay], shown: Mapping[int, EmittedVersions]) -> None:
        self._n_keys = leaves.n_keys
        self._rows = leaves.number[np.array([row for replay in replays.values() for row in replay.rows], np.int64)]
        for key, replay in replays.items():
            last, progress = -1, ""
            if isinstance(replay, CustomReplay):
                last, progress = int(leaves.number[replay.last]) if replay.last >= 0 else -1, replay.progress.dump()
            self._marks[key] = (replay.mark, last, progress)
            self._shown[key] = [
                (revision, version.start, version.end, leaves.number[list(version.rows)].tolist())
                for revision, version in shown[key].versions
            ]

    def flipped(self, windows: Windows, flips: Ints) -> None:
        """Ignored: versions are listed row by row."""

    def due(self, leaves: Leaves, applied: BatchEffect, clock: Clock) -> Ints:  # noqa: ARG002 - versions are emitted by the watermark itself
        return earliest(leaves, applied.kept, leaves.time)

    def snapshot(self) -> dict[str, pa.Table]:
        names = ("revision", "start", "end", "numbers")
        marks = [self._marks.get(key, (BEFORE, -1, "")) for key in range(self._n_keys)]
        versions = [self._shown.get(key, []) for key in range(self._n_keys)]
        shown = [[dict(zip(names, version, strict=True)) for version in those] for those in versions]
        return {
            "keys": pa.table(
                {
                    "mark": pa.array([mark for mark, _, _ in marks], pa.int64()),
                    "last": pa.array([last for _, last, _ in marks], pa.int64()),
                    "function_state": pa.array([progress for _, _, progress in marks], pa.string()),
                    "emitted": pa.array(shown, _SHOWN),
                }
            ),
            "rows": pa.table({"number": self._rows}),
        }

    def restore(self, tables: dict[str, pa.Table]) -> None:
        """Continue from the tables of ``snapshot``; the leaves give the key of each row."""
        self._rows = tables["rows"].column("number").to_numpy()
        self._n_keys = tables["keys"].num_rows
        self._marks, self._shown = {}, {}
        for key, row in enumerate(tables["keys"].to_pylist()):
            if row["mark"] > BEFORE or row["last"] >= 0 or row["function_state"]:
                self._marks[key] = (row["mark"], row["last"], row["function_state"])
            if row["emitted"]:
                self._shown[key] = [(each["revision"], each["start"], each["end"], each["numbers"]) for each in row["emitted"]]


def _windows(emitted: list[tuple[int, int, Version]]) -> list[Windows]:
    """The versions that are shown, and those that are retracted, which have no rows."""
    held, gone = (_of_versions([each for each in emitted if bool(each[2].rows) is shown]) for shown in (True, False))
    return [held, replace(gone, retracted=True)]


def _of_versions(emitted: list[tuple[int, int, Version]]) -> Windows:
    emitted = sorted(emitted, key=lambda version: version[0])
    offsets = np.cumsum([0, *(len(version.rows) for _, _, version in emitted)]).astype(np.int64)
    members = np.array([row for _, _, version in emitted for row in version.rows], np.int64)
    key, revision, start, end = (
        np.array([(key, revision, version.start, version.end) for key, revision, version in emitted], np.int64).reshape(-1, 4).T.copy()
    )
    return Windows.of(key, start, end, revision=revision, members=(offsets, members))
