"""What the asset event of a sink tells its consumers, and which batches have not been told yet.

The ledger knows the batches; Airflow's stored events of the same asset know what was told. Airflow stores an event in the transaction
that marks its task a success, so a batch whose announcement was lost is told by the next one, and a batch is told twice only when the
stored events are gone or two announcements overlap. The range of batches in the event lets a consumer drop such repeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any

from windowing.axis import from_us

if TYPE_CHECKING:
    from checkpoints.batches import Batch

#: Newest events looked at: overlapping announcements and events made by hand may stand above the one that reaches furthest.
EVENTS_READ = 50


def announced_through(events: Iterable[Mapping[str, Any] | None], generation: str) -> int:
    """Number of the last batch that ``events`` have told, −1 for none.

    Parameters
    ----------
    events
        Extras of earlier events. Those made by hand, or of a ledger with another identity, say nothing about this one.
    generation
        Identity of the ledger.
    """
    told = [extra["batches"][-1] for extra in events if extra and extra.get("generation") == generation and extra.get("batches")]
    return max(told, default=-1)


def unannounced(batches: Iterable[Batch], through: int) -> list[Batch]:
    """Committed batches after number ``through``; empty when none of them changed the sink."""
    new = [batch for batch in batches if batch.status == "committed" and batch.number > through]
    return new if any(map(_changed_sink, new)) else []


def extra_of(batches: Sequence[Batch], generation: str, context: Mapping[str, Any]) -> dict[str, Any]:
    """What the event tells about ``batches`` (at least one), as JSON values."""
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
        # One warned batch makes the event a warned one: a consumer that minds should not miss it.
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
    # A backfill replaces the rows of its range, with none when the source has none left.
    return batch.rows_published > 0 or (batch.action == "backfill" and batch.outcome is not None and batch.outcome.sink_version is not None)


def _end(batch: Batch, end: int) -> str | int:
    return end if batch.integer_axis else from_us(end).isoformat().replace("+00:00", "Z")
