"""Asset events of a sink: their contents, and which batches still have to be announced.

The ledger lists the batches, and Airflow's stored events of the asset show which of them were announced. Airflow stores an event in the
transaction that marks its task as successful. So if an announcement is lost, the next event covers its batches. A batch is announced
twice only if stored events are missing or two announcements overlap; consumers can drop such duplicates by the event's batch range.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any

from windowmill.windowing.axis import from_us

if TYPE_CHECKING:
    from windowmill.checkpoints.batches import Batch

#: Number of newest events to read: overlapping announcements and manual events may be newer than the one with the highest batch.
EVENTS_READ = 50


def announced_through(events: Iterable[Mapping[str, Any] | None], generation: str) -> int:
    """Number of the last batch announced by ``events``; −1 if there is none.

    Parameters
    ----------
    events
        Extras of earlier events. Manual events, and those of a ledger with another identity, are ignored.
    generation
        Identity of the ledger.
    """
    numbers = [extra["batches"][-1] for extra in events if extra and extra.get("generation") == generation and extra.get("batches")]
    return max(numbers, default=-1)


def unannounced(batches: Iterable[Batch], through: int) -> list[Batch]:
    """Committed batches after number ``through``; empty if none of them changed the sink."""
    new = [batch for batch in batches if batch.status == "committed" and batch.number > through]
    return new if any(map(_changed_sink, new)) else []


def extra_of(batches: Sequence[Batch], generation: str, context: Mapping[str, Any]) -> dict[str, Any]:
    """The event's extra for ``batches`` (at least one), as JSON values."""
    windows: dict[str, int] = {}
    for batch in batches:
        for name, rows in (batch.outcome.windows if batch.outcome else {}).items():
            windows[name] = windows.get(name, 0) + rows
    published = [(batch, batch.outcome) for batch in batches if batch.outcome and batch.rows_published]
    verdicts = [batch.verdict for batch in batches if batch.verdict]
    extra: dict[str, Any] = {
        "rows": sum(batch.rows_published for batch in batches),
        "windows": windows,
        "window_end_min": min((_end(batch, end) for batch, out in published if (end := out.window_end_min) is not None), default=None),
        "window_end_max": max((_end(batch, end) for batch, out in published if (end := out.window_end_max) is not None), default=None),
        # The verdict is "passed" only if all batches passed, so that no consumer misses a warning.
        "verdict": next((verdict for verdict in verdicts if verdict != "passed"), verdicts[0] if verdicts else None),
        "batches": [batches[0].number, batches[-1].number],
        "generation": generation,
        "rows_late": sum(batch.rows_late for batch in batches),
        "rows_quarantined": sum(batch.rows_quarantined for batch in batches),
    }
    for name in ("data_interval_start", "data_interval_end"):
        if context.get(name) is not None:
            extra[name] = context[name].astimezone(UTC).isoformat()
    return extra


def _changed_sink(batch: Batch) -> bool:
    # A backfill that publishes no rows still removes the old rows of its range.
    return bool(batch.rows_published) or (batch.is_backfill and batch.verdict != "discarded")


def _end(batch: Batch, end: int) -> str | int:
    return end if batch.integer_axis else from_us(end).isoformat().replace("+00:00", "Z")
