"""The watermark: all arithmetic between event times, the watermark, and the instant through which windows are closed.

The watermark at a row's arrival is the greatest event time of the *commits before its own*, minus the disorder: rows of one commit arrive
together, and the order in which they are stored says nothing. Windows that end at or before the watermark are complete. Windows that end at
or before ``closed`` = watermark − lateness take no more rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.spec import setting_of

if TYPE_CHECKING:
    from windowmill.windowing.kernels.combine import Ints
    from windowmill.windowing.spec import Pipeline

#: Instants before and after all others: the watermark before the first row, and after the end of the input. A length subtracted from an
#: instant gives at least BEFORE.
BEFORE, AFTER = -(1 << 63), (1 << 63) - 1
#: Number of low bits of a row's number that count the rows of its commit; the bits above are the number of the commit.
COMMIT_SHIFT = 33


def commits_of(numbers: Ints) -> Ints:
    return numbers >> COMMIT_SHIFT


@dataclass(frozen=True, slots=True)
class LatenessRule:
    """A pipeline's rule of which rows are late, and which windows are closed; picklable."""

    #: In ticks of the axis.
    disorder: int
    lateness: int
    #: Whether late rows bring revisions.
    revises: bool = False
    #: Whether the orchestrator asserts the watermark; events do not advance it then.
    asserted: bool = False
    #: Where settings have changed, the least and the greatest watermark that a row finds, and instant through which windows are closed to
    #: it. New rows find at least what earlier settings have reached, rows that are read again no more than the pipeline has reached.
    watermarks: tuple[int, int] = (BEFORE, AFTER)
    closings: tuple[int, int] = (BEFORE, AFTER)
    #: The greatest instant through which windows had been shown when a row came.
    shown: int = AFTER

    @classmethod
    def of(cls, pipeline: Pipeline) -> LatenessRule:
        time = pipeline.time
        return cls(time.disorder.elapsed(), time.lateness.elapsed(), pipeline.emit == "revise", time.watermark == "data_interval_end")

    @classmethod
    def of_meaning(cls, meaning: Mapping[str, Any]) -> LatenessRule:
        """The rule of a spec with this :meth:`.Pipeline.meaning`."""
        disorder, lateness = (setting_of(meaning, "time", name) for name in ("disorder", "lateness"))
        asserted = meaning["time"].get("watermark") == "data_interval_end"
        return cls(disorder, lateness, setting_of(meaning, "emit") == "revise", asserted)

    @property
    def ahead(self) -> int:
        """How far the windows that have been shown are ahead of closed ones: those that late rows revise are shown at the watermark."""
        return self.lateness if self.revises else 0

    def watermark(self, seen: int) -> int:
        """The watermark after event times through ``seen``."""
        return max(BEFORE, seen - self.disorder)

    def closed(self, watermark: int) -> int:
        """The instant through which windows are closed at ``watermark``."""
        return max(BEFORE, watermark - self.lateness)

    def closed_after(self, seen: int) -> int:
        """The instant through which windows are closed after event times through ``seen``."""
        return self.closed(self.watermark(seen))

    def watermark_of(self, closed: int | None) -> int:
        """The watermark at which windows are closed through ``closed``; null if none are closed."""
        return BEFORE if closed is None else closed + self.lateness

    def at_arrival(self, commits: Ints, highs: Ints, seen: int | None) -> Ints:
        """The watermark that each of several groups of rows finds; int64, shape (n_groups,); parameters as of :func:`seen_before`.

        >>> commits, highs = np.array([0, 1, 1, 2]), np.array([10, 7, 12, 3])
        >>> LatenessRule(disorder=2, lateness=0).at_arrival(commits, highs, None)[1:]
        array([ 8,  8, 10])
        """
        found = np.maximum(seen_before(commits, highs, seen), AXIS_BEGIN + self.disorder) - self.disorder
        return np.asarray(np.clip(found, *self.watermarks), np.int64)

    def closed_at(self, watermarks: Ints) -> Ints:
        """Instants through which windows are closed to rows that find these ``watermarks``; int64, same shape."""
        return np.clip(watermarks - self.lateness, *self.closings)


def seen_before(commits: Ints, highs: Ints, seen: int | None) -> Ints:
    """The greatest event time before the commit of each group of rows, ``BEFORE`` for none; int64, shape (n_groups,); O(n_groups).

    Parameters
    ----------
    commits
        The number of each group's commit, ascending.
    highs
        The greatest event time of each group; ``BEFORE`` for none.
    seen
        The greatest event time of all earlier batches; null if there is none.
    """
    so_far = np.maximum.accumulate(np.concatenate(([BEFORE if seen is None else seen], highs)))
    return np.asarray(so_far[first_of_commit(commits)])


def first_of_commit(commits: Ints) -> Ints:
    """For each group of rows, the number of groups of earlier commits; int64, shape (n_groups,)."""
    begins = np.append(True, commits[1:] != commits[:-1])[: len(commits)]
    return np.asarray(np.maximum.accumulate(np.where(begins, np.arange(len(commits)), 0)), np.int64)


@dataclass(frozen=True, slots=True)
class Clock:
    """Progress with a batch, in ticks of the axis."""

    #: As of :class:`LatenessRule`.
    lateness: int
    #: Greatest event time so far; ``BEFORE`` for none.
    seen: int = BEFORE
    #: After the batch; ``AFTER`` once the input has ended.
    watermark: int = BEFORE
    #: The watermark through which earlier batches have emitted windows.
    since: int = BEFORE
    #: As of :class:`LatenessRule`.
    closings: tuple[int, int] = (BEFORE, AFTER)
    #: The instants through which windows are closed and shown after the batch, where they do not follow from the watermark.
    through: tuple[int, int] | None = None

    @property
    def ended(self) -> bool:
        return self.watermark == AFTER

    @property
    def closed(self) -> int:
        """The instant through which windows are closed after the batch."""
        if self.through is not None:
            return self.through[0]
        return AFTER if self.ended else max(BEFORE, self.watermark - self.lateness)

    @property
    def shown(self) -> int:
        """The instant through which windows that late rows revise are shown after the batch."""
        return self.watermark if self.through is None else self.through[1]

    def closed_at(self, watermark: Ints) -> Ints:
        """Instants through which windows are closed at each ``watermark``; int64, same shape."""
        closed = np.where(watermark == AFTER, AFTER, np.maximum(watermark, BEFORE + self.lateness) - self.lateness)
        return np.clip(closed, *self.closings)
