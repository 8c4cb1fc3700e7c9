"""Determines which windows a batch emits, and the progress from which the next batch continues."""

from __future__ import annotations

from dataclasses import dataclass, replace

from windowmill.checkpoints.plans import Plan
from windowmill.jobs.layouts.returning import returnable
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.watermark import BEFORE, Clock, LatenessRule


@returnable
@dataclass(frozen=True, slots=True)
class Emission:
    """Progress along the time axis with one batch.

    Attributes
    ----------
    seen
        Greatest event time so far; null if no row ever had one.
    emitted
        The instant through which all windows are emitted once the batch is committed; null if none are.
    after, through
        The batch emits the windows that end in (``after``, ``through``].
    watermark, since
        The watermark after the batch, ``AFTER`` once the input has ended, and the one through which earlier batches have emitted windows.
    ends
        The range (begin, end] of window ends that a backfill emits; null for all. Sessions and live rows need it, because their windows
        may close or trigger later than they end.
    """

    seen: int | None
    emitted: int | None
    after: int
    through: int
    watermark: int = BEFORE
    since: int = BEFORE
    ends: tuple[int, int] | None = None

    def clock(self, rule: LatenessRule) -> Clock:
        """The clock of windows over rows."""
        return Clock(rule.lateness, BEFORE if self.seen is None else self.seen, self.watermark, self.since)


def emission_of(rule: LatenessRule, plan: Plan, seen: int | None, *, emits_within_range_only: bool = True) -> Emission:
    """The emission of ``plan`` after event times up to ``seen``.

    ``emits_within_range_only`` is as of the function of that name: whether a backfill that builds the state leaves later windows to runs.
    """
    emission = _windows_of(rule, plan, seen, emits_within_range_only=emits_within_range_only)
    closed = rule.watermark_of(emission.emitted)
    # Not the interval's own end: an earlier batch may have asserted a later one.
    watermark = closed if rule.asserted or emission.seen is None else rule.watermark(emission.seen)
    if (plan.rereads or plan.replaces_state) and emission.emitted is not None:
        # A restatement may have moved the watermark past windows that are not emitted yet: the next run emits them.
        watermark = min(watermark, closed)
    if plan.range is None:
        return replace(emission, watermark=watermark, since=rule.watermark_of(None if plan.replaces_state else plan.emitted))
    ends = emission.after, AXIS_END if plan.builds_state else emission.through
    return replace(emission, watermark=watermark, ends=ends)


def _windows_of(rule: LatenessRule, plan: Plan, seen: int | None, *, emits_within_range_only: bool) -> Emission:
    after = AXIS_BEGIN if plan.emitted is None else plan.emitted
    if plan.replaces_state:
        # It publishes again the windows that earlier batches have emitted, and advances nothing.
        if plan.range is not None:
            return Emission(plan.seen, plan.emitted, plan.range[0], max(plan.range[0], after))
        if plan.passes_over:  # rows that were appended, too
            return Emission(_greatest(plan.seen, seen), plan.emitted, AXIS_BEGIN, after)
        return Emission(plan.seen, plan.emitted, AXIS_BEGIN, after)
    if plan.range is not None and not plan.builds_state:
        # It recomputes windows that have been emitted; the pipeline's progress stays.
        begin, end = plan.range
        shown = begin if plan.emitted is None else rule.watermark_of(plan.emitted)
        return Emission(plan.seen, plan.emitted, begin, max(begin, min(end, shown)))
    if rule.asserted and plan.advances:
        # A batch that leaves a backlog asserts nothing, so ``emitted`` does not change.
        emitted = _greatest(plan.emitted, None if plan.interval_end is None else rule.closed(plan.interval_end))
    else:
        emitted = emitted_after(rule, plan.emitted, seen)
    if plan.range is None:
        return Emission(seen, emitted, after, after if emitted is None else emitted)
    begin, end = plan.range
    through = begin if emitted is None else max(begin, min(end, emitted) if emits_within_range_only else emitted)
    return Emission(seen, through if emits_within_range_only else emitted, begin, through)


def emitted_after(rule: LatenessRule, emitted: int | None, seen: int | None) -> int | None:
    """The instant through which windows are complete after event times up to ``seen``, at least ``emitted``; null for none."""
    return _greatest(emitted, None if seen is None else rule.closed_after(seen))


def _greatest(*instants: int | None) -> int | None:
    return max((instant for instant in instants if instant is not None), default=None)
