"""A pipeline's source, tables and ledger in memory, under the product's own protocol code.

Every write is a point at which a scheduler may let a process die before it, die after it, lose the response, or let another process go
first (:mod:`tests.simulator.scheduler`). Nothing here decides what is right: that is the ledger and :mod:`windowmill.checkpoints.protocol`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from windowmill.checkpoints.batches import Commit, Plan, RunPlan
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.own_tables import Change, Landed, Standing
from windowmill.checkpoints.protocol import Attempt, abandon, refuse_landed, verify
from windowmill.checkpoints.records import Record
from windowmill.windowing.errors import FencedError, HeldError, LedgerBehindError, LedgerError

NAME, MEANING = "simulated", "meaning"
#: A value that a critical expectation refuses.
UNLUCKY = 13
#: The order in which a batch writes.
WRITES = ("plan", "quality", "sink", "quarantine", "state", "commit")
Probe = Callable[[str, Callable[[], None]], None]


class LostResponseError(Exception):
    """The write has landed, and whoever made it does not get to know."""


def at_once(name: str, write: Callable[[], None]) -> None:
    """The probe of a process that nothing disturbs."""
    write()


@dataclass
class MemoryTable:
    """A table of which each commit adds rows; it takes a transaction once, as Delta does."""

    role: str
    #: Spark skips a transaction that is there without a word; delta-rs raises when it has come since the table was read.
    skips: bool
    commits: list[tuple[Change, tuple[Any, ...]]] = field(default_factory=list)
    probe: Probe = at_once
    table_id: str = "id"

    @property
    def place(self) -> str:
        return f"memory/{self.role}"

    def standing(self) -> Standing | None:
        return Standing(self.table_id, len(self.commits) - 1) if self.commits else None

    def change_at(self, version: int) -> Change | None:
        return self.commits[version][0] if version < len(self.commits) else None

    def changes_after(self, version: int) -> Iterator[Change]:
        return iter([change for change, _ in self.commits[version + 1 :]])

    def _newest(self, app_id: str) -> int | None:
        return max((change.transactions[app_id] for change, _ in self.commits if app_id in change.transactions), default=None)

    def landed(self, app_id: str, batch: int) -> Landed | None:
        newest = self._newest(app_id)
        if newest is not None and newest > batch:
            raise LedgerBehindError(f"{self.place}: batch {newest} has landed")
        for change, _ in self.commits:
            if change.transactions.get(app_id) == batch:
                return Landed(change.version, change.note.get("attempt"), change.rows, change.digest, change.note)
        return None

    def rows(self) -> Counter[Any]:
        return Counter(row for _, rows in self.commits for row in rows)

    def append(self, rows: tuple[Any, ...], app_id: str, batch: int, note: dict[str, Any]) -> None:
        known = self._newest(app_id)

        def write() -> None:
            newest = self._newest(app_id)
            if newest is not None and newest >= batch:
                if self.skips or (known is not None and known >= batch):
                    return
                raise OSError("a concurrent transaction has the same name")
            version = len(self.commits)
            change = Change(version, "WRITE", frozenset({f"{app_id}@{version}"}), frozenset(), len(rows), note, {app_id: batch})
            self.commits.append((change, rows))

        self.probe(self.role, write)


class MemoryRecords:
    """The ledger's records; one append wins of those that have read the same."""

    def __init__(self, shared: list[Record]) -> None:
        self.shared, self._read, self.probe = shared, 0, at_once

    def load(self) -> list[Record]:
        self._read = len(self.shared)
        return list(self.shared)

    def append(self, record: Record) -> None:
        def write() -> None:
            if len(self.shared) != self._read:
                raise FencedError("another run wrote")
            self.shared.append(record)

        self.probe(record.kind, write)


@dataclass
class World:
    """What outlives processes: the source's versions, the pipeline's tables, the ledger's records."""

    source: list[list[int]] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    tables: dict[str, MemoryTable] = field(default_factory=dict)
    name: str = NAME
    clock: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        for number, role in enumerate(("sink", "state", "quarantine", "quality")):
            self.tables.setdefault(role, MemoryTable(role, skips=number % 2 == 0))

    def ledger(self, probe: Probe = at_once) -> Ledger:
        store = MemoryRecords(self.records)
        store.probe = probe
        return Ledger("memory/ledger", integer_axis=True, records=store)

    def now(self) -> datetime:
        return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=next(self.clock))

    def check(self) -> None:
        """What must hold after each recovery, and of the whole once the source is drained."""
        batches = self.ledger().batches()
        committed = [batch for batch in batches if batch.status == "committed"]
        ranges = [(batch.from_version, batch.to_version) for batch in committed]
        assert [begin for begin, _ in ranges] == [-1, *(end for _, end in ranges)][: len(ranges)], f"ranges do not tile: {ranges}"
        discarded = [batch for batch in committed if batch.verdict == "discarded"]
        left_out = {version for batch in discarded for version in range(batch.from_version + 1, batch.to_version + 1)}
        through = ranges[-1][1] if ranges else -1
        totals = list(itertools.accumulate(sum(v for v in values if v > 0) for values in self.source[: through + 1]))
        wanted = Counter({(version, total): 1 for version, total in enumerate(totals) if version not in left_out})
        assert self.tables["sink"].rows() == wanted, f"sink: {self.tables['sink'].rows()} instead of {wanted}"
        assert sum(total for (_, total), n in self.tables["state"].rows().items() for _ in range(n)) == (totals[-1] if totals else 0)
        bad = Counter((version, v) for version, values in enumerate(self.source[: through + 1]) for v in values if v <= 0)
        assert self.tables["quarantine"].rows() == bad
        for batch in committed:
            assert batch.outcome is not None
            assert batch.rows_read == batch.rows_applied + batch.rows_quarantined


@dataclass
class Run:
    """One process: plans a batch or takes up the open plan, and carries it out; ``flaw`` is added to what it computes."""

    world: World
    probe: Probe = at_once
    ruling: str | None = None
    flaw: int = 0

    def __call__(self) -> bool:
        """Whether there was anything to do."""
        world, ledger = self.world, self.world.ledger(self.probe)
        tables = {role: replace(table, probe=self.probe) for role, table in world.tables.items()}
        open_batch, last = ledger.open_batch, ledger.last_commit
        if self.ruling and (open_batch is None or open_batch.status != "held"):
            raise LedgerError("no batch is held")
        after = last.plan.to_version if last else -1
        if open_batch is None and after == len(world.source) - 1:
            return False
        verify(ledger, tables)
        if open_batch is not None:
            plan = open_batch.plan
        else:
            plan = _plan(ledger, after, len(world.source) - 1)
            refuse_landed(plan, world.name, tables)
            ledger.record_plan(plan, world.now())
        attempt = Attempt(plan, world.name, ledger, tables)
        if self.ruling:
            attempt.require(self.ruling)
        self._carry_out(plan, attempt, tables)
        return True

    def _carry_out(self, plan: Plan, attempt: Attempt, tables: dict[str, MemoryTable]) -> None:
        new = {version: self.world.source[version] for version in range(plan.from_version + 1, plan.to_version + 1)}
        restored = sum(total for change, rows in tables["state"].commits for batch, total in rows if batch < plan.batch)
        totals = list(itertools.accumulate((sum(v for v in values if v > 0) for values in new.values()), initial=restored))[1:]
        rows = tuple((version, total + self.flaw) for version, total in zip(new, totals, strict=True))
        bad = tuple((version, v) for version, values in new.items() for v in values if v <= 0)
        unlucky = any(v == UNLUCKY for values in new.values() for v in values)

        def write(role: str, values: tuple[Any, ...], **note: str) -> None:
            table, app_id = tables[role], attempt.app_id(role)
            told = {"generation": plan.generation, "batch": plan.batch, "attempt": attempt.id, **note}
            attempt.write(role, lambda: table.append(values, app_id, plan.batch, told), lambda: self._batch(table, app_id, plan) == values)

        verdict = attempt.verdict()
        if verdict is None:
            verdict = "held" if unlucky else "passed"
            write("quality", ((plan.batch, verdict),))
            if unlucky and self.ruling is None:
                attempt.hold(Commit(None, None, "held"), self.world.now())
                raise HeldError("held")
            if unlucky:
                verdict = {"release": "released", "discard": "discarded"}[str(self.ruling)]
        if verdict != "discarded":
            write("sink", rows, verdict=verdict)
        if bad:
            write("quarantine", bad)
        write("state", ((plan.batch, totals[-1] - restored),))
        n = sum(map(len, new.values()))
        outcome = Commit(None, None, verdict, n, n - len(bad), 0, len(bad), written=attempt.written, attempt=attempt.id)
        attempt.commit(outcome, self.world.now())

    @staticmethod
    def _batch(table: MemoryTable, app_id: str, plan: Plan) -> tuple[Any, ...]:
        return next(rows for change, rows in table.commits if change.transactions.get(app_id) == plan.batch)


def drop(world: World, probe: Probe = at_once) -> None:
    """Abandon the open batch."""
    ledger = world.ledger(probe)
    assert ledger.open_batch is not None
    abandon(ledger.open_batch.plan, world.name, ledger, world.tables, world.now())


def _plan(ledger: Ledger, after: int, through: int) -> Plan:
    generation = ledger.generation
    return RunPlan(
        batch=ledger.count,
        attempt=Attempt.new_id(),
        generation=generation,
        source_id="source",
        from_version=after,
        to_version=min(through, after + 2),
        now_us=0,
        meaning=MEANING,
        source_schema="{}",
        app=f"windowmill/{generation}",
    )
