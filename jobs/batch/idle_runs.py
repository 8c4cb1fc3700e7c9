"""Decides whether a run without new rows has windows to emit: by the end of its data interval, or after a restatement."""

from __future__ import annotations

import time
from datetime import datetime

from windowmill.checkpoints.batches import Batch
from windowmill.checkpoints.ledger import Ledger
from windowmill.windowing.axis import to_us
from windowmill.windowing.durations import Duration
from windowmill.windowing.errors import SpecError, UnsupportedError
from windowmill.windowing.grids import Grids
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import LatenessRule


def asserted_through(pipeline: Pipeline, interval_end: datetime | None) -> int | None:
    """The instant (µs) through which the orchestrator asserts that the input is complete; null if the pipeline does not ask for it.

    Raises
    ------
    SpecError
        If it is missing, or further ahead of the clock than an event may be: every later row would be too late.
    """
    if pipeline.time.watermark != "data_interval_end":
        return None
    if interval_end is None:
        raise SpecError(
            f"pipeline {pipeline.pipeline}: time.watermark is data_interval_end, so each run needs the end of its interval; "
            "give --data-interval-end (the DAG does), or use watermark: max_event_time"
        )
    asserted, skew = to_us(interval_end), pipeline.time.max_future_skew
    ahead = Duration(days=1) if skew is None or skew.plain else skew
    if asserted > time.time_ns() // 1_000 + ahead.elapsed():
        raise SpecError(
            f"pipeline {pipeline.pipeline}: --data-interval-end: got {interval_end.isoformat()}, which is more than {ahead} ahead of the "
            "clock, so every row until then would be too late; give the end of an interval that is over"
        )
    return asserted


def lags_behind(pipeline: Pipeline, last: Batch | None) -> bool:
    """Whether a restatement has moved the watermark past windows that are not emitted yet; a run without new rows emits them."""
    if last is None or not last.plan.replaces_state or pipeline.time.watermark == "data_interval_end":
        return False
    seen, emitted = last.outcome.seen, last.outcome.emitted
    return seen is not None and (emitted is None or emitted < LatenessRule.of(pipeline).closed_after(seen))


def moves_on(pipeline: Pipeline, ledger: Ledger, asserted: int | None) -> bool:
    """Whether a run without new rows would still complete windows, because a later data interval advances the watermark."""
    last = ledger.last_commit
    if asserted is None or last is None or last.outcome is None:
        return False
    emitted, rule = last.outcome.emitted, LatenessRule.of(pipeline)
    if emitted is None:
        return True
    # Revised rows first appear when the watermark passes a window's end, final rows when the window is closed.
    shown = (rule.watermark_of(emitted), asserted) if rule.revises else (emitted, rule.closed(asserted))
    try:
        grids = Grids.of(pipeline)
    except UnsupportedError:
        grids = None
    # Windows that are not on a grid may end at any instant.
    if grids is None or any(window.joins_by_gap for window in pipeline.windows):
        return shown[0] < shown[1]
    return grids.any_end(*shown)
