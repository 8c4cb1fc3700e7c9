"""Windows that rows or a function decide, under ``emit: revise``: each version that a late row brings is shown.

Unlike the other slicers this one goes row by row: which version is new depends on all that were shown before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from windowing.kernels.combine import Ints
from windowing.slicing.customs import OWN_PREFIX, Told, load
from windowing.slicing.replay import (
    CountReplay,
    CustomReplay,
    Replay,
    SessionReplay,
    Shown,
    SnapshotReplay,
    Times,
    Version,
)
from windowing.slicing.windows import Applied, Leaves, Windows
from windowing.spec import Count, Custom, Pipeline, Session, Snapshot
from windowing.watermark import AFTER, BEFORE, Clock

_NONE = np.empty(0, np.int64)


class RevisedSlicer:
    """One session, snapshot, count or custom window over all keys, every version of it."""

    def __init__(self, window: Session | Snapshot | Count | Custom, _pipeline: Pipeline) -> None:
        self._window = window
        self._function = load(window.function) if isinstance(window, Custom) else None
        self._rows, self._row_keys = _NONE, _NONE
        self._marks: dict[int, tuple[int, int, str]] = {}
        self._shown: dict[int, list[tuple[int, int, int, list[int]]]] = {}

    def _replay(self, times: Times, columns: Mapping[int, Mapping[str, Any]]) -> Replay:
        window = self._window
        if isinstance(window, Session):
            return SessionReplay(times, window.gap.elapsed(), window.max_size.elapsed() if window.max_size is not None else AFTER)
        if isinstance(window, Snapshot):
            return SnapshotReplay(times)
        if isinstance(window, Count):
            return CountReplay(times, window.count)
        assert self._function is not None
        return CustomReplay(times, self._function, columns.__getitem__)

    def apply(self, leaves: Leaves, clock: Clock) -> Applied:
        times = Times(leaves.time.tolist(), leaves.until.tolist(), leaves.stop.tolist())
        columns: Mapping[int, Mapping[str, Any]] = {}
        if isinstance(self._window, Custom):
            names = [name for name in leaves.table.column_names if not name.startswith(OWN_PREFIX)]
            columns = dict(enumerate(leaves.table.select(names).to_pylist()))
        place = dict(zip(leaves.number.tolist(), range(len(leaves)), strict=True))
        counted, kept = np.zeros(len(leaves), np.bool_), np.zeros(len(leaves), np.bool_)
        closed = clock.closed_at(leaves.watermark).tolist()
        watermarks = leaves.watermark.tolist()
        replays: dict[int, Replay] = {}
        shown: dict[int, Shown] = {}
        found: list[tuple[int, int, Version]] = []

        def replay_of(key: int) -> Replay:
            if key not in replays:
                replay = replays[key] = self._replay(times, columns)
                mark, last, told = self._marks.get(key, (BEFORE, -1, ""))
                replay.mark = mark
                if isinstance(replay, CustomReplay):
                    replay.last, replay.told = place.get(last, -1), Told.load(told) if told else Told()
                shown[key] = Shown(
                    [
                        (revision, Version(start, end, tuple(sorted(place[number] for number in numbers))))
                        for revision, start, end, numbers in self._shown.get(key, [])
                    ]
                )
            return replays[key]

        for key, number in zip(self._row_keys.tolist(), self._rows.tolist(), strict=True):
            replay_of(key).rows.append(place[number])
        for replay in replays.values():
            replay.rows.sort()
        for row in sorted(np.flatnonzero(leaves.new).tolist(), key=leaves.number.tolist().__getitem__):
            key = int(leaves.key[row])
            replay = replay_of(key)
            found += [(key, revision, version) for revision, version in shown[key].settle(replay, watermarks[row], closed[row])]
            counted[row] = replay.accept(row, closed[row])
        for key in sorted({*replays, *self._marks}):
            replay = replay_of(key)
            found += [(key, revision, version) for revision, version in shown[key].settle(replay, clock.watermark, clock.closed)]
        self._remember(leaves, replays, shown)
        for replay in replays.values():
            kept[replay.rows] = True
            if isinstance(replay, CustomReplay) and replay.last >= 0:
                kept[replay.last] = True
        for versions in shown.values():
            for _, version in versions.versions:
                kept[list(version.rows)] = True
        return Applied(counted, leaves.new & ~counted, kept, [_windows(found)])

    def _remember(self, leaves: Leaves, replays: Mapping[int, Replay], shown: Mapping[int, Shown]) -> None:
        rows = [(key, row) for key, replay in replays.items() for row in replay.rows]
        self._row_keys = np.array([key for key, _ in rows], np.int64)
        self._rows = leaves.number[np.array([row for _, row in rows], np.int64)]
        for key, replay in replays.items():
            last, told = -1, ""
            if isinstance(replay, CustomReplay):
                last, told = int(leaves.number[replay.last]) if replay.last >= 0 else -1, replay.told.dump()
            self._marks[key] = (replay.mark, last, told)
            self._shown[key] = [
                (revision, version.start, version.end, leaves.number[list(version.rows)].tolist())
                for revision, version in shown[key].versions
            ]

    def flipped(self, windows: Windows, flips: Ints) -> None:
        """Versions are listed row by row."""

    def snapshot(self) -> dict[str, pa.Table]:
        shown = [(key, *version) for key, versions in self._shown.items() for version in versions]
        names = ("key", "revision", "start", "end")
        columns = {name: pa.array([row[index] for row in shown], pa.int64()) for index, name in enumerate(names)}
        marks = list(self._marks.items())
        return {
            "rows": pa.table({"key": self._row_keys, "number": self._rows}),
            "shown": pa.table({**columns, "numbers": pa.array([row[4] for row in shown], pa.list_(pa.int64()))}),
            "keys": pa.table(
                {
                    "key": pa.array([key for key, _ in marks], pa.int64()),
                    "mark": pa.array([mark for _, (mark, _, _) in marks], pa.int64()),
                    "last": pa.array([last for _, (_, last, _) in marks], pa.int64()),
                    "told": pa.array([told for _, (_, _, told) in marks], pa.string()),
                }
            ),
        }

    def restore(self, tables: dict[str, pa.Table]) -> None:
        self._row_keys, self._rows = (tables["rows"].column(name).to_numpy() for name in ("key", "number"))
        self._marks = {row["key"]: (row["mark"], row["last"], row["told"]) for row in tables["keys"].to_pylist()}
        self._shown = {}
        for row in tables["shown"].to_pylist():
            self._shown.setdefault(row["key"], []).append((row["revision"], row["start"], row["end"], row["numbers"]))


def _windows(found: list[tuple[int, int, Version]]) -> Windows:
    found = sorted(found, key=lambda version: version[0])
    offsets = np.cumsum([0, *(len(version.rows) for _, _, version in found)]).astype(np.int64)
    members = np.array([row for _, _, version in found for row in version.rows], np.int64)
    key, revision, start, end = (
        np.array([(key, revision, version.start, version.end) for key, revision, version in found], np.int64).reshape(-1, 4).T.copy()
    )
    return Windows.of(key, start, end, revision=revision, members=(offsets, members))
