"""Slicers of windows whose bounds depend on rows (sessions, snapshots, count windows) or on a function, and the slicer of a window's type.

*Windows of a function*, as in Cutty: it takes each row once, in order, and returns the windows that begin and end there.
``function(state, columns) -> (state, number of windows that begin before the row, numbers of those that end after it)``; ``state`` starts
as ``None``, and the windows of a key are numbered 0, 1, … as they begin.

*Revised windows* may change after they were emitted: they are replayed key by key, and emitted by version, by the rules of the other
slicers. There a row is identified by its leaf index, so comparing indices compares (time, tie_break, arrival). Rows are processed one by
one: whether a version is new depends on all versions emitted before it.

References
----------
Carbone, Traub, Katsifodimos, Haridi and Markl (2016), Cutty: aggregate sharing for user-defined windows, doi:10.1145/2983323.2983807.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Set
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from windowmill.windowing.errors import SpecError, StateError, UnsupportedError
from windowmill.windowing.kernels import event_bounds, policies
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.policies import judge_tuples
from windowmill.windowing.registry import imported_for
from windowmill.windowing.slicing.leaves import BatchEffect, Engine, Leaves, Windows, earliest, runs
from windowmill.windowing.watermark import AFTER, BEFORE, Clock, commits_of
from windowmill.windowing.windows.types import Count, Custom, PluginWindow, Session, Snapshot

if TYPE_CHECKING:
    from windowmill.windowing.slicing.leaves import Slicer
    from windowmill.windowing.spec import Pipeline
    from windowmill.windowing.windows.base import Window


WindowFunction = Callable[[Any, Mapping[str, Any]], tuple[Any, int, Iterable[int]]]
_NONE = np.empty(0, np.int64)
#: Prefix of columns that live rows add; a user's function does not see them.
OWN_PREFIX = "_ "


@dataclass
class FunctionProgress:
    """Progress of a user's function on one key."""

    state: Any = None  #: The function's own state.
    #: Number of rows it has taken, and of windows that have begun.
    rows: int = 0
    begun: int = 0
    #: For each chain, the first row of its latest window and the end of the front of its two stacks (−1 for none).
    chains: list[tuple[int, int]] = field(default_factory=list)
    open: dict[int, int] = field(default_factory=dict)  #: First row of each open window, by number.

    def feed(self, function: WindowFunction, columns: Mapping[str, Any], time: int) -> list[tuple[int, int]]:
        """Call ``function`` with one row; returns number and first row of each window that ends after it."""
        self.state, begins, ends = function(self.state, columns)
        for number in range(self.begun, self.begun + begins):
            self.open[number] = self.rows
        self.begun += begins
        self.rows += 1
        ended = []
        for number in ends:
            if number not in self.open:
                raise SpecError(f"function: window {number} ends at {time}, but is not open; windows are numbered from 0 as they begin")
            ended.append((number, self.open.pop(number)))
        return ended

    def chain_of(self, first: int, least: int) -> int:
        """Assign a window that ends now and begins at row ``first`` to a chain, at least the ``least``-th one; O(number of chains).

        Windows of a chain begin in the order in which they end, so they share two stacks. The function chooses the chain whose latest
        window begins nearest before this one. So there are as many chains as windows nest in each other.

        Examples
        --------
        >>> progress = FunctionProgress()
        >>> [progress.chain_of(first, 0) for first in (0, 2, 1, 3)]
        [0, 0, 1, 0]
        """
        fitting = [(low, -chain) for chain, (low, _) in enumerate(self.chains) if chain >= least and low <= first]
        chain = -max(fitting)[1] if fitting else len(self.chains)
        if chain == len(self.chains):
            self.chains.append((first, -1))
        self.chains[chain] = first, self.chains[chain][1]
        return chain

    def dump(self) -> str:
        return json.dumps([_plain(self.state), self.rows, self.begun, self.chains, list(self.open.items())])

    @classmethod
    def load(cls, text: str) -> FunctionProgress:
        state, rows, begun, chains, opened = json.loads(text)
        return cls(_unplain(state), rows, begun, [(low, middle) for low, middle in chains], dict(map(tuple, opened)))


def _plain(value: Any) -> Any:
    """Convert ``value`` to JSON; a tag preserves tuples and sets.

    >>> _plain((1, "a"))
    {'tuple': [1, 'a']}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    for kind, tag in ((tuple, "tuple"), (list, "list"), (set, "set"), (frozenset, "frozenset")):
        if type(value) is kind:
            return {tag: [_plain(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[_plain(name), _plain(item)] for name, item in value.items()]}
    raise StateError(
        f"window function: its state holds a {type(value).__name__}, which cannot be stored; "
        "keep to null, booleans, numbers, texts, lists, tuples, sets and dictionaries"
    )


def _unplain(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    [(tag, items)] = value.items()
    if tag == "dict":
        return {_unplain(name): _unplain(item) for name, item in items}
    return {"tuple": tuple, "list": list, "set": set, "frozenset": frozenset}[tag](map(_unplain, items))


class CustomSlicer:
    """One user-defined window over all keys."""

    engine: Engine = "two_stacks"

    def __init__(self, function: WindowFunction) -> None:
        self._function = function
        # The function takes rows in order once the windows before them are closed, as policies apply tuples; no ticks, no idle keys.
        self._settings = np.array([policies.COUNT, policies.COUNT, 1, AFTER, 1, 1, 0, AFTER, 0, 0, 1], np.int64)
        self._progress: list[FunctionProgress] = []
        self._held, self._waiting, self._last = _NONE, _NONE, _NONE

    def apply(self, leaves: Leaves, clock: Clock) -> BatchEffect:
        n_new = leaves.n_keys - len(self._progress)
        self._progress += [FunctionProgress() for _ in range(n_new)]
        self._last = np.append(self._last, np.full(n_new, -1, np.int64))
        held, waiting, last = (leaves.among(numbers) for numbers in (self._held, self._waiting, self._last[self._last >= 0]))
        accepted, _, _ = judge_tuples(
            self._settings,
            _NONE,
            leaves.offsets,
            leaves.time,
            commits_of(leaves.number),
            clock.closed_at(leaves.watermark),
            leaves.new,
            held | waiting | last,
        )
        known = waiting | accepted
        ready = known & (leaves.time < clock.closed) if not clock.ended else known
        sequence = np.flatnonzero(held | ready).astype(np.int64)
        # Index into the sequence of each key's row 0, counted over all rows that the key's function has taken.
        offsets = np.searchsorted(leaves.key[sequence], np.arange(leaves.n_keys + 1)).astype(np.int64)
        n_held = np.bincount(leaves.key[held], minlength=leaves.n_keys)
        self._begins = offsets[:-1] - (np.array([each.rows for each in self._progress], np.int64) - n_held)
        key, chain, end, lo, hi = self._feed(leaves, np.flatnonzero(ready), sequence)
        oldest = np.array([min(each.open.values(), default=each.rows) for each in self._progress], np.int64) + self._begins
        live = np.arange(len(sequence)) >= oldest[leaves.key[sequence]]
        self._held, self._waiting = leaves.number[sequence[live]], leaves.number[known & ~ready]
        fed = np.flatnonzero(ready)
        self._last[leaves.key[fed]] = leaves.number[fed]
        kept = known & ~ready
        kept[sequence[live]] = True
        kept[leaves.find(self._last[self._last >= 0])] = True
        self._n_chains = max((len(each.chains) for each in self._progress), default=0)
        group = key * self._n_chains + chain
        at = runs(group)[:-1]
        middles = np.array([self._progress[k].chains[c][1] for k, c in zip(key[at].tolist(), chain[at].tolist(), strict=True)], np.int64)
        windows = Windows.of(
            key,
            leaves.time[sequence[lo]],
            end,
            group=group,
            ranges=(sequence, lo, hi),
            middles=np.where(middles < 0, -1, middles + self._begins[key[at]]),
        )
        return BatchEffect(accepted, leaves.new & ~accepted, kept, [windows])

    def _feed(self, leaves: Leaves, rows: Ints, sequence: Ints) -> Ints:
        """Feed ``rows`` to their keys' functions.

        Returns key, chain, end, lo and hi of each window that ends, grouped by chain; lo and hi are indices into ``sequence``. Int64, shape
        (5, n_windows).
        """
        names = [name for name in leaves.table.column_names if not name.startswith(OWN_PREFIX)]
        cells = leaves.table.select(names).take(pa.array(rows)).to_pylist()
        starts = leaves.time[sequence].tolist()
        ended: list[tuple[int, int, int, int, int]] = []
        # Windows with equal bounds are emitted in the order in which they ended, so a later one takes no chain before an earlier one's.
        taken: dict[tuple[int, int, int], int] = {}
        for columns, key, time in zip(cells, leaves.key[rows].tolist(), leaves.time[rows].tolist(), strict=True):
            progress, begins = self._progress[key], int(self._begins[key])
            for _, first in progress.feed(self._function, columns, time):
                bounds = key, starts[first + begins], time
                chain = taken[bounds] = progress.chain_of(first, taken.get(bounds, 0))
                ended.append((key, chain, time + 1, first + begins, progress.rows + begins))
        ended.sort(key=lambda window: window[:2])
        return np.ascontiguousarray(np.array(ended, np.int64).reshape(-1, 5).T)

    def flipped(self, windows: Windows, flips: Ints) -> None:
        made = flips >= 0
        groups = windows.group[windows.group_offsets[:-1]][made].tolist()
        for group, middle in zip(groups, windows.hi[flips[made]].tolist(), strict=True):
            key, chain = divmod(group, self._n_chains)
            chains = self._progress[key].chains
            chains[chain] = chains[chain][0], middle - int(self._begins[key])

    def due(self, leaves: Leaves, applied: BatchEffect, clock: Clock) -> Ints:  # noqa: ARG002 - rows in open windows wait for no instant
        return earliest(leaves, leaves.among(self._waiting), leaves.time, clock.lateness)

    def snapshot(self) -> dict[str, pa.Table]:
        progress = pa.array([each.dump() for each in self._progress], pa.string())
        rows = {"held": pa.table({"number": self._held}), "waiting": pa.table({"number": self._waiting})}
        return {"keys": pa.table({"function_state": progress, "last": self._last}), **rows}

    def restore(self, tables: dict[str, pa.Table]) -> None:
        keys = tables["keys"]
        self._progress = [FunctionProgress.load(text) for text in keys.column("function_state").to_pylist()]
        self._last = keys.column("last").to_numpy().copy()
        self._held, self._waiting = (tables[name].column("number").to_numpy() for name in ("held", "waiting"))


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
                emitted += [
                    (key, revision, version)
                    for revision, version in shown[key].resolve(replay, min(watermarks[row], clock.shown), closed[row])
                ]
                last_moment[key] = moments[row]
            counted[row] = replay.accept(row, closed[row])
            partly[row] = self._clips and counted[row] and times.time[row] < replay.mark
        # An emitted version may be all that is left of a key; its rows stay as long as it does.
        for key in sorted({*replays, *self._marks, *self._shown}):
            replay = replay_of(key)
            emitted += [(key, revision, version) for revision, version in shown[key].resolve(replay, clock.shown, clock.closed)]
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
        owner, key, start, end = event_bounds.sessions(
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
        suspect = accepted & (leaves.time < closed)
        *bounds, offsets, members, begins = event_bounds.snapshots(rows, closed, suspect, held, fixed, clock.closed)
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
        judged, fronts = event_bounds.RowFlags(closed, suspect, held, accepted), event_bounds.Fronts(begun, self._marks["middle_end"])
        found = event_bounds.counts(self._size, leaves.rows(), judged, fronts, clock.closed, self._intervals)
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
