"""Whether a run that finds no new rows has windows to show all the same."""

from __future__ import annotations

from windowmill.checkpoints.batches import Batch
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.plans import RestatePlan
from windowmill.windowing.errors import UnsupportedError
from windowmill.windowing.grids import Grids
from windowmill.windowing.spec import Pipeline


def lags_behind(pipeline: Pipeline, last: Batch | None) -> bool:
    """Whether rows of a restatement have moved the watermark, and their windows are still to be shown: by a batch without new rows."""
    if last is None or not isinstance(last.plan, RestatePlan) or pipeline.time.watermark == "data_interval_end":
        return False
    seen, emitted = last.outcome.seen, last.outcome.emitted
    behind = pipeline.time.disorder.elapsed() + pipeline.time.lateness.elapsed()
    return seen is not None and (emitted is None or emitted < seen - behind)


def moves_on(pipeline: Pipeline, ledger: Ledger, vouched: int | None) -> bool:
    """Whether a run without new rows would still complete windows, because a later data interval advances the watermark."""
    last = ledger.last_commit
    if vouched is None or last is None or last.outcome is None:
        return False
    emitted, lateness = last.outcome.emitted, pipeline.time.lateness.elapsed()
    if emitted is None:
        return True
    # Revised rows first appear when the watermark passes a window's end, final rows when the window is closed.
    shown = (emitted + lateness, vouched) if pipeline.emit == "revise" else (emitted, vouched - lateness)
    try:
        grids = Grids.of(pipeline)
    except UnsupportedError:
        grids = None
    # Windows that are not on a grid may end at any instant.
    if grids is None or any(window.joins_by_gap for window in pipeline.windows):
        return shown[0] < shown[1]
    return grids.any_end(*shown)
