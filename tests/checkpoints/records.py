"""Plans, outcomes and whole ledgers for tests, written the way runs write them or as fast as possible."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from windowmill.checkpoints.batches import BackfillPlan, Outcome, Plan, RunPlan
from windowmill.checkpoints.ledger import BATCH, CHANGES, OUTCOME, PLAN, TOTALS, stored
from windowmill.checkpoints.records import FORMAT, DeltaRecords, LedgerRecord
from windowmill.windowing.counts import Counts, Totals, WindowRows

NOW = datetime(2024, 1, 1, tzinfo=UTC)
#: Fields of an outcome.
OUTCOMES = {each.name for each in fields(Outcome)}


def plan(batch: int, attempt: str = "a", *, action: str = "run", **changes: Any) -> Plan:
    values = {
        "batch": batch, "attempt": attempt, "generation": "g", "source_id": "s", "from_version": batch - 1,
        "to_version": batch, "now_us": 0, "meaning": "m", "source_schema": "{}",
    }  # fmt: skip
    kind = {"run": RunPlan, "backfill": BackfillPlan}[action]
    return kind(**values | changes)


def counts(*, rows_published: int = 0, rows_quarantined: int = 0, ends: tuple[int, int] = (0, 0), **given: Any) -> Counts:
    """Counts with so many result rows, of the window ``w``, and so many quarantined ones, without an event time."""
    windows = {"w": WindowRows(rows_published, *ends)} if rows_published else {}
    return Counts(**{"windows": windows, "quarantined": {"null_time": rows_quarantined} if rows_quarantined else {}} | given)


def commit(**changes: Any) -> Outcome:
    """The outcome of a batch; ``changes`` are fields of it, and arguments of :func:`counts`."""
    own = {"seen": 10, "emitted": 5, "verdict": "passed"} | {name: changes.pop(name) for name in OUTCOMES if name in changes}
    return Outcome(**{"counts": counts(**changes)} | own)


def history(batches: int) -> Iterator[LedgerRecord]:
    """The records of ``batches`` committed batches, without numbers and checksums."""
    totals = Totals()
    for number in range(batches):
        planned, outcome = plan(number), commit(seen=number, emitted=number, rows_read=3, rows_published=2)
        totals = planned.totals_after(totals, outcome.published_counts)
        at = NOW + timedelta(minutes=5 * number)
        body = {PLAN: stored(planned), CHANGES: {}, OUTCOME: asdict(outcome), TOTALS: asdict(totals)}
        yield LedgerRecord(FORMAT, BATCH, number, "a", at, json.dumps(body))


def append_all(path: str, records: Iterable[LedgerRecord]) -> None:
    """Append ``records`` one by one as they are, past all the ledger's checks."""
    store = DeltaRecords(path)
    store.load()
    for record in records:
        store.append(record)
        store.load()
