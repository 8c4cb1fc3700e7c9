"""The files of a source as it is now that batches have read, and the bounds that their statistics give for a sample. No JVM.

Which commit brought a file is known as long as the file that the commit appended is still there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from windowmill.jobs.sources.base import AddedFile, SourceTable
from windowmill.jobs.sources.time_bounds import spans
from windowmill.windowing.errors import SourceRangeGoneError

if TYPE_CHECKING:
    from windowmill.checkpoints.plans import Plan
    from windowmill.windowing.spec import Pipeline

#: Times [begin, end).
Span = tuple[int, int]


@dataclass(frozen=True)
class SourceFiles:
    """The files that committed batches have read.

    Attributes
    ----------
    plans
        Those of the batches that built the state, oldest first.
    present
        All files of the source at its version.
    files
        Those of them that have been read.
    commits
        For each of these the commit that brought it; null for files of which that is not known, or that belong to the snapshot.
    order_known
        Whether every row of which it matters has its commit.
    changed
        Versions since the pipeline began that changed rows, with their operation.
    """

    pipeline: Pipeline
    source: SourceTable
    plans: Sequence[Plan]
    present: Sequence[AddedFile]
    files: Sequence[AddedFile]
    commits: Sequence[int | None]
    order_known: bool
    changed: Sequence[tuple[int, str]] = ()

    @classmethod
    def of(cls, pipeline: Pipeline, source: SourceTable, plans: Sequence[Plan]) -> SourceFiles:
        """The files that batches by ``plans``, oldest first, have read; at least one has built the state."""
        building = [plan for plan in plans if plan.builds_state]
        first, through = building[0], building[-1].to_version
        snapshot = max(first.from_version, -1 if first.snapshot is None else first.snapshot)
        present = source.snapshot(source.version)
        try:
            versions = list(source.versions(snapshot, source.version))
            before = {file.path for file in source.snapshot(first.from_version)} if first.from_version >= 0 else set()
        except SourceRangeGoneError:
            if first.from_version >= 0:
                raise
            return cls(pipeline, source, building, present, present, [None] * len(present), order_known=False)
        brought = {file.path: version.version for version in versions if not version.changes for file in version.added}
        read = [file for file in present if file.path not in before and brought.get(file.path, -1) <= through]
        held = {file.path for file in present}
        # A file that has been rewritten is gone; its rows are in another one, among rows of other commits.
        known = all(path in held for path, version in brought.items() if version <= through)
        # A restatement, or a backfill from the rows of now, has judged no row as late.
        rebuilt = any(plan.snapshot not in (None, first.snapshot) for plan in plans)
        return cls(
            pipeline,
            source,
            building,
            present,
            read,
            [brought.get(file.path) for file in read],
            order_known=known and not rebuilt,
            changed=[(version.version, version.operation) for version in versions if version.changes],
        )

    def overlapping(self, windows: Sequence[Span]) -> list[int]:
        """Indices of the files that may have rows in one of ``windows``."""
        time, bounds = self.pipeline.time, np.array(windows, np.int64).reshape(-1, 2)
        starts = spans(self.source, self.files, time.column, time.tick_us)
        ends = starts if time.end is None else spans(self.source, self.files, time.end, time.tick_us)
        return [
            n
            for n, (start, end) in enumerate(zip(starts, ends, strict=True))
            if start is None or end is None or np.any(_overlap(bounds, start[0], max(start[2], end[2])))
        ]

    def closed_through(self, greatest: Mapping[int | None, int]) -> list[int | None]:
        """For each file the instant through which windows were closed to its rows, null for none.

        ``greatest`` is the greatest event time of each commit.
        """
        if not self.order_known:
            return [None] * len(self.files)
        time = self.pipeline.time
        if time.watermark == "data_interval_end":
            return [None if commit is None else next(p.emitted for p in self.plans if commit <= p.to_version) for commit in self.commits]
        behind = time.disorder.elapsed() + time.lateness.elapsed()
        closed: dict[int | None, int | None] = {None: None}
        seen = greatest.get(None)
        for version in sorted({commit for commit in self.commits if commit is not None}):
            closed[version] = None if seen is None else seen - behind
            seen = max((time for time in (seen, greatest.get(version)) if time is not None), default=None)
        return [closed[commit] for commit in self.commits]

    def closed_by_statistics(self, windows: Sequence[Span], *, every_row_counts: bool) -> list[int | None] | None:
        """As :meth:`closed_through`, as far as it matters to ``windows``; null if the statistics of the files do not decide it.

        ``every_row_counts`` is whether each row with an event time moves the watermark, so that the greatest one of a file does.
        """
        if not self.order_known or self.pipeline.time.watermark == "data_interval_end":
            return self.closed_through({})
        found = spans(self.source, self.files, self.pipeline.time.column, self.pipeline.time.tick_us)
        known = [span for span in found if span is not None]
        if len(known) < len(found):
            return None
        least, most = (self.closed_through(self._greatest([span[place] for span in known])) for place in (1, 2))
        least = least if every_row_counts else [None] * len(known)
        bounds = np.array(windows, np.int64).reshape(-1, 2)
        for span, low, high in zip(known, least, most, strict=True):
            ends = bounds[_overlap(bounds, span[0], span[2]), 1]
            if high is not None and np.any((ends <= high) & (True if low is None else ends > low)):
                return None
        return least

    def _greatest(self, times: Sequence[int]) -> dict[int | None, int]:
        """The greatest of ``times``, one of each file, by commit."""
        greatest: dict[int | None, int] = {}
        for commit, time in zip(self.commits, times, strict=True):
            greatest[commit] = max(greatest.get(commit, time), time)
        return greatest


def _overlap(windows: np.ndarray, first: int, last: int) -> np.ndarray:
    """Mask of the ``windows``, shape (n, 2), that hold one of the instants from ``first`` to ``last``."""
    return np.asarray((windows[:, 0] <= last) & (windows[:, 1] > first), np.bool_)
