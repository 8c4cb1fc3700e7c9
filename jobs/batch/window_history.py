"""What the ledger tells of windows that earlier specs had: rows of the sink that the spec of now did not give stay as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from windowmill.checkpoints.batches import standing
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.plans import ApplyPlan, Plan
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.spec import Pipeline


def has_dropped_windows(pipeline: Pipeline, ledger: Ledger) -> bool:
    """Whether the sink may hold rows of windows that the spec does not have."""
    names = {window.name for window in pipeline.windows}
    return any(windows.keys() - names for _, windows in _windows_of(ledger))


def shown_after(pipeline: Pipeline, ledger: Ledger) -> Mapping[str, int]:
    """For each window that a changed spec brought, the instant after which rows of it end; windows with all their history are left out."""
    found: dict[str, int] = {}
    before: Mapping[str, Any] | None = None
    for plan, windows in _windows_of(ledger):
        if before is not None and isinstance(plan, ApplyPlan):
            found |= {name: _shown_after(pipeline, plan, name) for name, window in windows.items() if before.get(name) != window}
        before = windows
    return {name: instant for name, instant in found.items() if instant > AXIS_BEGIN}


def _windows_of(ledger: Ledger) -> Iterator[tuple[Plan, Mapping[str, Any]]]:
    """The plans of the batches that count, oldest first, each with the windows of its spec by name."""
    for batch in standing(ledger.batches()):
        meaning: Mapping[str, Any] = batch.plan.definition
        yield batch.plan, {window["name"]: window for window in meaning.get("windows", ())}


def _shown_after(pipeline: Pipeline, plan: ApplyPlan, name: str) -> int:
    if plan.history is not None and name in plan.fills:
        return plan.history
    if plan.emitted is None:
        return AXIS_BEGIN
    window = next((each for each in pipeline.windows if each.name == name), None)
    at_watermark = pipeline.emit == "revise" or (window is not None and window.follows_policies)
    return plan.emitted + (pipeline.time.lateness.elapsed() if at_watermark else 0)
