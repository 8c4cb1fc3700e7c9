"""How far a pipeline is behind: its newest event against now, and its newest batch against its schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from croniter import croniter

from windowmill.expectations.rule import compare_age
from windowmill.jobs.report.short_texts import elapsed, moment
from windowmill.windowing.spec import FRESHNESS, Pipeline

#: Instants of the schedule are counted up to so many.
_COUNTED = 1_000
#: From this share of late or quarantined rows on, their numbers are marked.
WORTH_A_LOOK = 0.01


@dataclass(frozen=True, slots=True)
class Freshness:
    """The newest event and the newest batch in words."""

    #: Distance of the newest event from now, such as ``4 days behind``; for an integer axis the event itself.
    event: str
    #: Time since the newest batch ended, and how many instants of the schedule have passed since.
    batch: str
    #: Number of these instants at which something waited, as far as it is known; null without a schedule by the clock.
    missed: int | None


def freshness_of(
    pipeline: Pipeline, seen: datetime | int | None, ended: datetime | None, now: datetime, waits: Callable[[], int | None]
) -> Freshness:
    """Compare the newest event ``seen`` and the end of the newest batch with ``now``; ``waits`` counts versions that no batch has read."""
    missed = _missed(pipeline.schedule, ended, now) if isinstance(pipeline.schedule, str) else None
    batch = "no batch yet" if ended is None else f"{elapsed(max((now - ended).total_seconds(), 0))} ago"
    if missed and waits() == 0:
        missed, batch = 0, f"{batch}; the source has nothing new since"
    elif missed:
        counted = f"{missed:,}{' or more' if missed == _COUNTED else ''}"
        batch += f"; {counted} scheduled instant{'' if missed == 1 else 's'} since without a batch"
    if not isinstance(seen, datetime):
        return Freshness(moment(seen), batch, missed)
    seconds = (now - seen).total_seconds()
    return Freshness(f"{elapsed(abs(seconds))} {'behind' if seconds >= 0 else 'ahead'}", batch, missed)


def staleness_of(pipeline: Pipeline, seen: datetime | int | None, now: datetime) -> Iterator[tuple[str, str]]:
    """Severity and message of each freshness rule that the newest event ``seen`` breaks now: where nothing arrives no batch is judged."""
    age_us = (now - seen) // timedelta(microseconds=1) if isinstance(seen, datetime) else None
    for rule in pipeline.expectations:
        if rule.type == FRESHNESS and not (found := compare_age(rule.arguments["freshness"], age_us)).kept:
            yield rule.severity, found.message


def _missed(schedule: str, ended: datetime | None, now: datetime) -> int | None:
    if ended is None or not croniter.is_valid(schedule):
        return None
    instants = croniter(schedule, ended)
    missed = 0
    while missed < _COUNTED and instants.get_next(datetime) <= now.astimezone(UTC):
        missed += 1
    return missed


def share_of(part: int, whole: int) -> float:
    """``part`` of ``whole`` from 0 to 1; 0 of nothing."""
    return part / whole if whole else 0.0
