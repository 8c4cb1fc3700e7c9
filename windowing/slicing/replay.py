"""One key's rows replayed in the order of their arrival, for windows that late rows may change after they were shown.

The rules of :mod:`windowmill.windowing.slicing.event_slicers` and :mod:`windowmill.windowing.slicing.custom_slicer`, a row at a time.
Rows are known by their place among the leaves, so that comparing places compares (time, tie_break, arrival).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from windowmill.windowing.slicing.custom_slicer import Told, WindowFunction
from windowmill.windowing.watermark import BEFORE


class Version(NamedTuple):
    """A window as it stands: its bounds and the places of its rows."""

    start: int
    end: int
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Times:
    """Start, end, and end as a half-open interval of each leaf, by place."""

    time: list[int]
    until: list[int]
    stop: list[int]


class Replay(Protocol):
    """The windows of one key from the rows accepted so far.

    Attributes
    ----------
    rows
        Places of the rows that windows still open may hold, ascending.
    mark
        How far windows have been closed, in the shape's own sense.
    """

    rows: list[int]
    mark: int

    def accept(self, row: int, closed: int) -> bool:
        """Take ``row`` in if a window that would hold it is still open; say whether."""

    def windows(self) -> list[Version]:
        """The windows that are not closed, as they are now."""

    def complete(self, window: Version, watermark: int) -> bool:
        """Whether no row at ``watermark`` or after it changes ``window``."""

    def close(self, closed: int) -> list[Version]:
        """Take out the windows that are complete at ``closed``."""

    def replaces(self, new: Version, old: Version) -> bool:
        """Whether ``new`` is another version of ``old``."""


def _passed(window: Version, watermark: int) -> bool:
    return window.end <= watermark


def _overlap(new: Version, old: Version) -> bool:
    return new.start < old.end and old.start < new.end


@dataclass
class SessionReplay:
    """Rows at most ``gap`` apart, cut where a session would get longer than ``longest``."""

    times: Times
    gap: int
    longest: int
    rows: list[int] = field(default_factory=list)
    mark: int = BEFORE

    def accept(self, row: int, closed: int) -> bool:
        insort(self.rows, row)
        if any(row in window.rows and not self.complete(window, closed) for window in self.windows()):
            return True
        self.rows.remove(row)
        return False

    def complete(self, window: Version, watermark: int) -> bool:
        # A row at the end still joins, unless the session was cut there.
        return window.end < watermark or (window.end == watermark and window.end == window.start + self.longest)

    def windows(self) -> list[Version]:
        found: list[Version] = []
        held: list[int] = []
        start = reach = 0
        for row in self.rows:
            at = self.times.time[row]
            if held and (at - reach > self.gap or at - start >= self.longest):
                found.append(Version(start, min(reach + self.gap, start + self.longest), tuple(held)))
                held = []
            if not held:
                start = reach = at
            held.append(row)
            reach = max(reach, self.times.until[row])
        return [*found, Version(start, min(reach + self.gap, start + self.longest), tuple(held))] if held else found

    def close(self, closed: int) -> list[Version]:
        ended = [window for window in self.windows() if self.complete(window, closed)]
        gone = {row for window in ended for row in window.rows}
        self.rows = [row for row in self.rows if row not in gone]
        return ended

    replaces = staticmethod(_overlap)


@dataclass
class SnapshotReplay:
    """The spans between neighbouring start and end points; what lies before ``mark`` is fixed."""

    times: Times
    rows: list[int] = field(default_factory=list)
    mark: int = BEFORE

    def accept(self, row: int, closed: int) -> bool:
        if self.times.stop[row] <= closed:
            return False
        insort(self.rows, row)
        return True

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

    complete = staticmethod(_passed)
    replaces = staticmethod(_overlap)


@dataclass
class CountReplay:
    """From each start time after ``mark`` to the ``size``-th, one tick past it."""

    times: Times
    size: int
    rows: list[int] = field(default_factory=list)
    mark: int = BEFORE

    def _starts(self) -> list[int]:
        return sorted({self.times.time[row] for row in self.rows if self.times.time[row] > self.mark})

    def accept(self, row: int, closed: int) -> bool:
        insort(self.rows, row)
        starts = self._starts()
        unfinished = starts[max(0, len(starts) - self.size + 1) :]
        if any(self.times.stop[row] > start for start in unfinished):
            return True
        if any(row in window.rows and window.end > closed for window in self.windows()):
            return True
        self.rows.remove(row)
        return False

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

    complete = staticmethod(_passed)

    def replaces(self, new: Version, old: Version) -> bool:
        return new.start == old.start


@dataclass
class CustomReplay:
    """Windows that a function tells; rows before ``mark`` it has been told of for good, of the others it is told again and again."""

    times: Times
    function: WindowFunction
    columns: Callable[[int], Mapping[str, Any]]
    told: Told = field(default_factory=Told)
    rows: list[int] = field(default_factory=list)
    mark: int = BEFORE
    last: int = -1

    def accept(self, row: int, closed: int) -> bool:  # noqa: ARG002 - what has been told decides, not what is closed
        if row < self.last:
            return False
        insort(self.rows, row)
        return True

    def _tell(self, told: Told, rows: Iterable[int]) -> list[Version]:
        found = []  # in the order of their numbers: of two with the same bounds the later is taken for another version
        oldest = self.told.rows - sum(row <= self.last for row in self.rows)
        for row in rows:
            at = self.times.time[row]
            for number, first in told.tell(self.function, self.columns(row), at):
                held = self.rows[first - oldest : told.rows - oldest]
                found.append((number, Version(self.times.time[held[0]], at + 1, tuple(held))))
        return [version for _, version in sorted(found)]

    def windows(self) -> list[Version]:
        return self._tell(deepcopy(self.told), [row for row in self.rows if row > self.last])

    def close(self, closed: int) -> list[Version]:
        self.mark = max(self.mark, closed)
        ready = [row for row in self.rows if row > self.last and self.times.time[row] < self.mark]
        told = deepcopy(self.told)
        ended = self._tell(told, ready)
        self.told, self.last = told, max([self.last, *ready])
        heard = sum(row <= self.last for row in self.rows)
        oldest = told.rows - heard
        kept = min(told.open.values(), default=told.rows) - oldest
        self.rows = [row for place, row in enumerate(self.rows) if place >= kept]
        return ended

    complete = staticmethod(_passed)

    def replaces(self, new: Version, old: Version) -> bool:
        return new.start == old.start and new.end == old.end


@dataclass
class Shown:
    """Versions shown whose windows still take rows, with their revisions."""

    versions: list[tuple[int, Version]] = field(default_factory=list)

    def settle(self, replay: Replay, watermark: int, closed: int) -> list[tuple[int, Version]]:
        """What is to be shown once the watermark has come to ``watermark``, and forget what is closed."""
        fresh = []
        for window in replay.windows():
            if not replay.complete(window, watermark):
                continue
            earlier = [(revision, version) for revision, version in self.versions if replay.replaces(window, version)]
            if all(version != window for _, version in earlier):
                revision = 1 + max((revision for revision, _ in earlier), default=-1)
                self.versions.append((revision, window))
                fresh.append((revision, window))
        ended = set(replay.close(closed))
        self.versions = [(revision, version) for revision, version in self.versions if version not in ended]
        return fresh
