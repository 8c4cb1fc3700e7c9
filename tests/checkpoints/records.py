"""Plans, outcomes and whole ledgers for tests, written the way runs write them or as fast as possible."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from windowmill.checkpoints.assembling import BATCH, CHANGES, OUTCOME, PLAN, TOTALS, Totals, stored
from windowmill.checkpoints.batches import Commit
from windowmill.checkpoints.plans import BackfillPlan, Plan, RunPlan
from windowmill.checkpoints.records import FORMAT, LedgerRecord

NOW = datetime(2024, 1, 1, tzinfo=UTC)


def plan(batch: int, attempt: str = "a", *, action: str = "run", **changes: Any) -> Plan:
    values = {
        "batch": batch, "attempt": attempt, "generation": "g", "source_id": "s", "from_version": batch - 1,
        "to_version": batch, "now_us": 0, "meaning": "m", "source_schema": "{}",
    }  # fmt: skip
    kind = {"run": RunPlan, "backfill": BackfillPlan}[action]
    return kind(**values | changes)


def commit(**changes: Any) -> Commit:
    return Commit(**{"seen": 10, "emitted": 5, "verdict": "passed"} | changes)


def history(batches: int) -> Iterator[LedgerRecord]:
    """The records of ``batches`` committed batches, without numbers and checksums."""
    totals = Totals()
    for number in range(batches):
        planned, outcome = plan(number), commit(seen=number, emitted=number, rows_read=3, rows_published=2)
        totals = totals.plus(planned, outcome)
        at = NOW + timedelta(minutes=5 * number)
        body = {PLAN: stored(planned), CHANGES: {}, OUTCOME: asdict(outcome), TOTALS: asdict(totals)}
        yield LedgerRecord(FORMAT, BATCH, number, "a", at, json.dumps(body))
