"""Progress along the axis: what each row met when it arrived, and how far the windows have come.

The watermark that a row meets is the greatest event time of the rows *before* it, minus the disorder; its own time is left out. Windows
that end at or before the watermark are complete; those that end at or before ``closed``, the lateness behind it, take no more rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from windowmill.windowing.kernels.combine import Bools, Ints

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline

#: Before anything has been seen; after the end of the input. Lengths taken off an instant stop at BEFORE.
BEFORE, AFTER = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class Clock:
    """Progress after some rows.

    Attributes
    ----------
    moves
        Whether rows move the watermark; where the orchestrator vouches for intervals, they do not.
    seen
        Greatest event time so far; ``BEFORE`` if there was none.
    ended
        Whether the input has ended: the watermark is then at infinity.
    since
        The watermark through which windows have been shown before.
    """

    disorder: int
    lateness: int
    moves: bool = True
    seen: int = BEFORE
    ended: bool = False
    since: int = BEFORE

    @classmethod
    def of(cls, pipeline: Pipeline) -> Clock:
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
        """Through where windows had been closed when the watermark was ``watermark``."""
        return np.where(watermark == AFTER, AFTER, np.maximum(watermark, BEFORE + self.lateness) - self.lateness)

    def arrive(self, times: Ints, usable: Bools) -> tuple[Clock, Ints]:
        """The clock after rows with these ``times``, of which those not ``usable`` move nothing; and the watermark that each met."""
        so_far = np.maximum.accumulate(np.concatenate(([self.seen], np.where(usable, times, BEFORE))))
        before = so_far[:-1]
        met = np.maximum(before, BEFORE + self.disorder) - self.disorder if self.moves else np.full(len(times), BEFORE, np.int64)
        return replace(self, seen=int(so_far[-1])), met

    def end(self) -> Clock:
        return replace(self, ended=True)

    def passed(self) -> Clock:
        """The clock once all windows through its watermark have been shown."""
        return replace(self, since=max(self.since, self.watermark))
