"""Determines a pipeline's progress with a batch: the windows it emits, and where the next batch continues."""

from __future__ import annotations

from dataclasses import dataclass

from windowmill.checkpoints.plans import Plan
from windowmill.jobs.layouts.returning import returnable
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.spec import Pipeline


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
    """

    seen: int | None
    emitted: int | None
    after: int
    through: int

    def ends(self, plan: Plan | None) -> tuple[int, int] | None:
        """The range (begin, end] of window ends that a backfill emits; null for all.

        Sessions and live rows need it, because their windows may close or trigger later than they end.
        """
        if plan is None or plan.range is None:
            return None
        return self.after, AXIS_END if plan.builds_state else self.through


def emission_of(pipeline: Pipeline, plan: Plan, seen: int | None, *, stops_at_range: bool = True) -> Emission:
    """The emission of ``plan`` after event times up to ``seen``.

    ``stops_at_range`` is whether a backfill that builds the state can stop at the end of its range. Otherwise it also emits later windows
    that are complete.
    """
    if plan.replaces_state:
        # All that earlier batches have shown, as they would show it now; neither moves on.
        through = AXIS_BEGIN if plan.emitted is None else plan.emitted
        if plan.range is not None:
            return Emission(plan.seen, plan.emitted, plan.range[0], max(plan.range[0], through))
        if plan.passes_over:  # rows that were appended, too
            return Emission(max((at for at in (plan.seen, seen) if at is not None), default=None), plan.emitted, AXIS_BEGIN, through)
        return Emission(plan.seen, plan.emitted, AXIS_BEGIN, through)
    if plan.range is not None and not plan.builds_state:
        return _of_recomputed(pipeline, plan, plan.range)
    emitted = _emitted(pipeline, plan, seen)
    if plan.range is not None:
        return _of_backfill(plan.range, seen, emitted, stops_at_range=stops_at_range)
    after = AXIS_BEGIN if plan.emitted is None else plan.emitted
    return Emission(seen, plan.emitted if emitted is None else emitted, after, after if emitted is None else emitted)


def _of_recomputed(pipeline: Pipeline, plan: Plan, ends: tuple[int, int]) -> Emission:
    """The emission of a backfill of a running pipeline: it recomputes what has been shown, by the progress of that pipeline."""
    begin, end = ends
    shown = begin if plan.emitted is None else plan.emitted + pipeline.time.lateness.elapsed()
    return Emission(plan.seen, plan.emitted, begin, max(begin, min(end, shown)))


def _of_backfill(ends: tuple[int, int], seen: int | None, emitted: int | None, *, stops_at_range: bool) -> Emission:
    """The emission of a backfill that is a pipeline's first batch."""
    begin, end = ends
    if not stops_at_range:
        return Emission(seen, emitted, begin, begin if emitted is None else max(begin, emitted))
    through = begin if emitted is None else max(begin, min(end, emitted))
    return Emission(seen, through, begin, through)


def _emitted(pipeline: Pipeline, plan: Plan, seen: int | None) -> int | None:
    """The instant through which windows are complete; it never moves back."""
    time = pipeline.time
    complete = None if seen is None else seen - time.disorder.elapsed() - time.lateness.elapsed()
    if plan.advances and time.watermark == "data_interval_end":
        # A batch that leaves a backlog vouches for nothing, so ``emitted`` does not change.
        complete = plan.emitted if plan.interval_end is None else plan.interval_end - time.lateness.elapsed()
    return complete if plan.emitted is None or complete is None else max(plan.emitted, complete)
