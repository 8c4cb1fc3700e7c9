"""Windows whose bounds depend on rows or a function, under ``emit: revise``: emits each version that a late row causes.

Unlike the other slicers, this one processes rows one by one: whether a version is new depends on all versions emitted before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.slicing.custom_slicer import OWN_PREFIX, FunctionProgress
from windowmill.windowing.slicing.leaves import BatchEffect, Engine, Leaves, Windows, earliest
from windowmill.windowing.slicing.replay import CustomReplay, EmittedVersions, LeafTimes, Replay, Version
from windowmill.windowing.watermark import BEFORE, Clock, commits_of

_NONE = np.empty(0, np.int64)
_SHOWN = pa.list_(pa.struct([("revision", pa.int64()), ("start", pa.int64()), ("end", pa.int64()), ("numbers", pa.list_(pa.int64()))]))


#: The cells of a row by column.
Cells = Mapping[str, Any]


class RevisedSlicer:
    """All versions of one window whose bounds depend on rows or a function, over all keys.

    Parameters
    ----------
    replay
        Makes the replay of one key from the leaves' times and their cells, by leaf index.
    reads_cells
        Whether the replay reads cells; otherwise they are empty.
    latest_first
        Whether of rows that arrived together the latest is accepted first; otherwise those in closed windows come last, in order.
    clips
        Whether a row that begins before the replay's mark counts only from there on.
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
