"""Progress on the axis: the watermark at each row's arrival, and the instant through which windows have been emitted.

The watermark at a row's arrival is the greatest event time of the *commits before its own*, minus the disorder: rows of one commit arrive
together, and the order in which they are stored says nothing. Windows that end at or before the watermark are complete. Windows that end at
or before ``closed`` = watermark − lateness take no more rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from windowmill.windowing.kernels.combine import Bools, Ints

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline

#: Instants before and after all others: the watermark before the first row, and after the end of the input. A length subtracted from an
#: instant gives at least BEFORE.
BEFORE, AFTER = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)
#: Number of low bits of a row's number that count the rows of its commit; the bits above are the number of the commit.
COMMIT_SHIFT = 33


def commits_of(numbers: Ints) -> Ints:
    """The numbers of the commits with which rows of these ``numbers`` arrived."""
    return numbers >> COMMIT_SHIFT


@dataclass(frozen=True, slots=True)
class Clock:
    """Progress after some rows; all fields but the flags are in ticks of the axis.

    Attributes
    ----------
    moves
        Whether rows advance the watermark; they do not if the orchestrator asserts intervals.
    seen
        Greatest event time so far; ``BEFORE`` if there is none.
    ended
        Whether the input has ended; the watermark is then ``AFTER``.
    since
        Watermark through which windows have been emitted before.
    """

    disorder: int
    lateness: int
    moves: bool = True
    seen: int = BEFORE
    ended: bool = False
    since: int = BEFORE

    @classmethod
    def of(cls, pipeline: Pipeline) -> Clock:
        """The clock before the first row."""
        time = pipeline.time
        return cls(time.disorder.elapsed(), time.lateness.elapsed(), time.watermark == "max_event_time")

    @property
    def watermark(self) -> int:
        if self.ended:
            return AFTER
        return max(BEFORE, self.seen - self.disorder) if self.moves else BEFORE

    @property
    def closed(self) -> int:
        return int(self.closed_at(np.array([self.watermark]))[0])

    def closed_at(self, watermark: Ints) -> Ints:
        """Instants through which windows are closed at each ``watermark``; int64, same shape."""
        return np.where(watermark == AFTER, AFTER, np.maximum(watermark, BEFORE + self.lateness) - self.lateness)

    def arrive(self, times: Ints, usable: Bools, numbers: Ints) -> tuple[Clock, Ints]:
        """The clock after n rows with these ``times``, and the watermark at each row's arrival (int64, shape (n,)); O(n).

        Rows that are not ``usable`` do not advance the clock. ``numbers`` ascend; no commit is split between two calls.

        >>> times, usable, commits = np.array([10, 7, 12, 3]), np.full(4, True), np.array([0, 1, 1, 2])
        >>> Clock(disorder=2, lateness=0).arrive(times, usable, commits << COMMIT_SHIFT)[1][1:]
        array([ 8,  8, 10])
        """
        so_far = np.maximum.accumulate(np.concatenate(([self.seen], np.where(usable, times, BEFORE))))
        commits = commits_of(numbers)
        # Index of the first row of each row's commit.
        begins = np.append(True, commits[1:] != commits[:-1])[: len(commits)]
        before = so_far[np.maximum.accumulate(np.where(begins, np.arange(len(commits)), 0))]
        at_arrival = np.maximum(before, BEFORE + self.disorder) - self.disorder if self.moves else np.full(len(times), BEFORE, np.int64)
        return replace(self, seen=int(so_far[-1])), at_arrival

    def end(self) -> Clock:
        return replace(self, ended=True)

    def passed(self) -> Clock:
        """The clock after all windows through its watermark have been emitted."""
        return replace(self, since=max(self.since, self.watermark))
