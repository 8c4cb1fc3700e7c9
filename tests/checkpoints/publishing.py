"""Pipelines that publish rows without computing any: in files, which a record and one commit to each table name."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from tests.checkpoints.records import counts, plan
from windowmill.checkpoints.batches import Changes, Outcome, Plan
from windowmill.checkpoints.committer import DeltaRsCommitter, Publication
from windowmill.checkpoints.data_files import DataFile, write_files
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.own_tables import ORDER, OwnTable, refuse_committed, verify
from windowmill.checkpoints.protocol import publish_pending, record

ROWS = pa.table({"window": ["w"], "n": [1]})
NOW = datetime(2024, 1, 1, tzinfo=UTC)
ROLES = ("sink", "state")


def written(place: str, rows: pa.Table, batch: int, attempt: str = "a", task: int = 0) -> tuple[DataFile, ...]:
    """Files with the ``rows`` of ``batch``, which no table contains yet."""
    return write_files(place, rows.schema, [rows], batch=batch, attempt=attempt, task=task)


def publish(path: str, rows: pa.Table, batch: int, role: str = "state") -> None:
    """Commit ``rows`` as those of ``batch``."""
    DeltaRsCommitter().commit(path, Publication(role, "app", batch, Changes.of(rows.schema, written(path, rows, batch))))


class Pipeline:
    """A ledger and tables below a folder, and batches that add a row to sink and state."""

    def __init__(self, folder: Path, ledger: str = "ledger") -> None:
        self.folder, self.ledger_path = folder, str(folder / ledger)
        self.tables = {role: OwnTable(role, str(folder / role)) for role in (*ORDER, "held")}

    def ledger(self) -> Ledger:
        return Ledger(self.ledger_path, integer_axis=True)

    def plan(self, ledger: Ledger, attempt: str = "a") -> Plan:
        last = ledger.last_commit
        return plan(ledger.count, attempt, generation=ledger.generation, from_version=last.to_version if last else -1)

    def changes(self, planned: Plan, roles: tuple[str, ...] = ROLES, files: int = 1, **more: Any) -> dict[str, Changes]:
        changes = {}
        for role in roles:
            new = [written(self.tables[role].place, ROWS, planned.batch, planned.attempt, task) for task in range(files)]
            changes[role] = Changes.of(ROWS.schema, itertools.chain(*new), **more)
        return changes

    def recorded(self, ledger: Ledger, planned: Plan, changes: Mapping[str, Changes], verdict: str = "passed") -> None:
        """Record a batch with these ``changes``."""
        record(ledger, planned, Outcome(10, 5, verdict, counts(rows_published=1)), changes, self.tables, NOW)

    def record(self, verdict: str = "passed", roles: tuple[str, ...] = ROLES, **options: Any) -> Ledger:
        """Record the next batch, whose commits are not made yet."""
        ledger = self.ledger()
        publish_pending(ledger, self.tables)
        planned = self.plan(ledger)
        refuse_committed(planned, ledger, self.tables)
        self.recorded(ledger, planned, self.changes(planned, roles, **options), verdict)
        return ledger

    def run(self, verdict: str = "passed", roles: tuple[str, ...] = ROLES, **options: Any) -> None:
        publish_pending(self.record(verdict, roles, **options), self.tables)

    def rows(self, role: str) -> int:
        return sum(n for n in pa.table(DeltaTable(self.tables[role].place).get_add_actions()).column("num_records").to_pylist())

    def files(self, role: str) -> set[str]:
        return {file.name for file in Path(self.tables[role].place).glob("*.parquet")}

    def verify(self, **options: bool) -> Ledger:
        ledger = self.ledger()
        publish_pending(ledger, self.tables, **options)
        verify(ledger, self.tables, **options)
        return ledger


def log_entry(pipeline: Pipeline, role: str, version: int) -> Path:
    return Path(pipeline.tables[role].place, "_delta_log", f"{version:020d}.json")
