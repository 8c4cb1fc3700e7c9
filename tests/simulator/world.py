"""A pipeline's source, tables, data files and ledger in memory, under the product's own protocol code.

Every write is a point at which a scheduler may let a process die before it, die after it, lose the response, or let another process go
first (:mod:`tests.simulator.scheduler`). Nothing here decides what is right: that is the ledger and :mod:`windowmill.checkpoints.protocol`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.checkpoints.records import plan
from windowmill.checkpoints.batches import Changes, Outcome, Plan, identity_of
from windowmill.checkpoints.committer import Publication
from windowmill.checkpoints.data_files import DataFile
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.own_tables import ORDER, BatchCommit, Change, TableVersion, refuse_committed, verify
from windowmill.checkpoints.protocol import publish_pending, record, rule
from windowmill.checkpoints.records import LedgerRecord
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.counts import Counts
from windowmill.windowing.errors import FencedError, HeldError, LedgerBehindError, OutOfTurnError, StateCorruptError

MEANING = "meaning"
#: A value that a critical expectation refuses.
UNLUCKY = 13
#: The tables of the world; what is remembered of rows is written as the state is, and would make four times as many interleavings.
TABLES = tuple(role for role in ORDER if role != "seen")
#: The order in which a batch writes: its files, its record, and a commit to each table.
WRITES = ("files", "batch", *TABLES)
#: The order in which a batch that is held writes, and then a ruling that publishes it.
HELD_WRITES, RULING_WRITES = ("files", "batch", "quality", "held"), ("ruling", "sink", "current", "quarantine", "state")
Probe = Callable[[str, Callable[[], None]], None]


class LostResponseError(Exception):
    """The write has landed, and whoever made it does not get to know."""


def at_once(name: str, write: Callable[[], None]) -> None:
    """The probe of a process that nothing disturbs."""
    write()


@dataclass
class Log:
    """The commits of a table and its data files, by their paths with a folder before them."""

    commits: list[Change] = field(default_factory=list)
    files: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    #: Versions up to this one have been pruned: a writer that is behind can make one of them again, and it counts for nothing.
    floor: int = -1

    def rows(self) -> Counter[Any]:
        """The rows that the table has; fails if a file that a commit names is gone."""
        live = set[str]()
        for change in self.commits:
            live = (live - change.removed) | change.added
        return Counter(row for path in live for row in self.files[path.split()[0]])

    def versions(self) -> int:
        return len(self.commits)


@dataclass
class MemoryTable:
    """A table as one process sees it; as :class:`windowmill.checkpoints.own_tables.OwnTable`."""

    role: str
    log: Log
    tables: Mapping[str, Log]
    probe: Probe = at_once
    view: None = None

    @property
    def place(self) -> str:
        return self.role

    def table_version(self) -> TableVersion | None:
        return TableVersion("id", self.log.versions() - 1) if self.log.commits else None

    def change_at(self, version: int) -> Change | None:
        return self.log.commits[version] if 0 <= version < self.log.versions() else None

    def changes_after(self, version: int) -> Iterator[Change]:
        return iter(self.log.commits[version + 1 :])

    def newest_batch(self, app_id: str) -> int | None:
        return max((change.transactions[app_id] for change in self.log.commits if app_id in change.transactions), default=None)

    def commit_of(self, app_id: str, batch: int, *, after: int, paths: Collection[str] = ()) -> BatchCommit | None:
        for change in self.log.commits[after + 1 :]:
            found = change.transactions.get(app_id)
            if found is not None and found > batch:
                raise LedgerBehindError(f"{self.place}: batch {found} is committed")
            if found == batch:
                return BatchCommit(change.version, change.digest, change.note)
        return None

    def refuse_misfit(self, changes: Changes) -> None:
        """Every table takes every row."""

    def missing(self, files: Sequence[DataFile]) -> list[DataFile]:
        return [file for file in files if file.path not in self.log.files]

    def fetch(self, files: Sequence[DataFile], source: str | None = None, folder: str = "") -> None:
        for file in files:
            path = f"{folder}/{file.path}".lstrip("/")
            if path in self.log.files:
                continue
            role, _, below = (source or "").partition("/")
            wanted = f"{below}/{file.path}".lstrip("/")
            if source is None or wanted not in self.tables[role].files:
                raise StateCorruptError(f"{self.place}: {file.path} is gone")
            self.log.files[path] = self.tables[role].files[wanted]

    def commit(self, publication: Publication) -> None:
        read = self.log.versions()

        def write() -> None:
            newest = self.newest_batch(publication.app_id)
            if read < self.log.versions() and read <= self.log.floor:
                return  # an old version, made again
            if newest is not None and newest >= publication.batch:
                return
            changes, before = publication.changes, self.log.commits
            added = frozenset(identity_of({"path": file.path}) for file in changes.files)
            removed = frozenset().union(*(change.added for change in before)) if publication.replaces_all else frozenset[str]()
            once = {publication.app_id: publication.batch}
            before.append(Change(len(before), "WRITE", added, removed, dict(publication.note), once))

        self.probe(self.role, write)

    def remove(self, files: Sequence[DataFile], folder: str = "") -> None:
        for file in files:
            self.log.files.pop(f"{folder}/{file.path}".lstrip("/"), None)


class MemoryRecords:
    """The ledger's records; one append wins of those that have read the same."""

    def __init__(self, world: World, probe: Probe) -> None:
        self._world, self._read, self._probe = world, 0, probe

    def load(self) -> list[LedgerRecord]:
        self._read = len(self._world.records)
        return list(self._world.records)

    def read(self, first: int, before: int) -> list[LedgerRecord]:
        return [record for record in self._world.records if first <= record.batch < before]

    def append(self, record: LedgerRecord) -> None:
        def write() -> None:
            records = self._world.records
            if len(records) != self._read:
                if self._read < self._world.floor:
                    return  # an old version of the log, made again
                raise FencedError("another run wrote")
            records.append(record)

        self._probe(record.kind, write)


@dataclass
class World:
    """What outlives processes: the source's versions, the pipeline's tables, the ledger's records."""

    source: list[list[int]] = field(default_factory=list)
    records: list[LedgerRecord] = field(default_factory=list)
    logs: dict[str, Log] = field(default_factory=lambda: {role: Log() for role in (*TABLES, "held")})
    clock: Iterator[int] = field(default_factory=itertools.count)
    #: How often each batch has been computed.
    computed: Counter[int] = field(default_factory=Counter)
    #: Records before this one have been pruned from the ledger's log.
    floor: int = 0

    def ledger(self, probe: Probe = at_once) -> Ledger:
        return Ledger("memory/ledger", integer_axis=True, records=MemoryRecords(self, probe))

    def tables(self, probe: Probe = at_once) -> dict[str, MemoryTable]:
        return {role: MemoryTable(role, log, self.logs, probe) for role, log in self.logs.items()}

    def now(self) -> datetime:
        return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=next(self.clock))

    def prune(self) -> None:
        """Clean up all logs, as checkpoints and log retention do."""
        self.floor = len(self.records)
        for log in self.logs.values():
            log.floor = log.versions() - 1

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
        assert self.logs["sink"].rows() == wanted, f"sink: {self.logs['sink'].rows()} instead of {wanted}"
        assert self.logs["current"].rows() == Counter([max(wanted)] if wanted else [])
        assert sum(total for (_, total), n in self.logs["state"].rows().items() for _ in range(n)) == (totals[-1] if totals else 0)
        bad = Counter((version, v) for version, values in enumerate(self.source[: through + 1]) for v in values if v <= 0)
        assert self.logs["quarantine"].rows() == bad
        assert {number for number, _ in self.logs["quality"].rows()} == {batch.number for batch in batches}
        for batch in committed:
            assert batch.counts.rows_read == batch.counts.rows_applied + batch.counts.rows_quarantined


@dataclass
class Run:
    """One process: settles the last batch, and then rules on it, or plans the next one and carries it out."""

    world: World
    probe: Probe = at_once
    ruling: str | None = None

    def __call__(self) -> bool:
        """Whether there was anything to do."""
        world, ledger, tables = self.world, self.world.ledger(self.probe), self.world.tables(self.probe)
        made = publish_pending(ledger, tables)
        if self.ruling:
            if ledger.held_batch is None:
                raise OutOfTurnError("no batch is held")
            verify(ledger, tables)
            rule(ledger, self.ruling, tables, world.now())
            return True
        if ledger.held_batch is not None:
            raise HeldError("held")
        last = ledger.last_commit
        after = last.plan.to_version if last else -1
        if after == len(world.source) - 1:
            return made > 0
        verify(ledger, tables)
        plan = _plan(ledger, after, len(world.source) - 1)
        refuse_committed(plan, ledger, tables)
        outcome, changes = self._computed(plan, tables)
        record(ledger, plan, outcome, changes, tables, world.now())
        publish_pending(ledger, tables)
        if outcome.verdict == "held":
            raise HeldError("held")
        return True

    def _computed(self, plan: Plan, tables: Mapping[str, MemoryTable]) -> tuple[Outcome, dict[str, Changes]]:
        self.world.computed[plan.batch] += 1
        new = {version: self.world.source[version] for version in range(plan.from_version + 1, plan.to_version + 1)}
        restored = sum(total for (batch, total), n in tables["state"].log.rows().items() for _ in range(n) if batch < plan.batch)
        totals = list(itertools.accumulate((sum(v for v in values if v > 0) for values in new.values()), initial=restored))[1:]
        bad = tuple((version, v) for version, values in new.items() for v in values if v <= 0)
        verdict = "held" if any(v == UNLUCKY for values in new.values() for v in values) else "passed"
        rows = {
            "quality": ((plan.batch, verdict),),
            "sink": tuple(zip(new, totals, strict=True)),
            "current": ((plan.to_version, totals[-1]),),
            "state": ((plan.batch, totals[-1] - restored),),
            "quarantine": bad,
        }
        changes = {}
        for role, values in rows.items():
            if values:
                whole = (AXIS_BEGIN, AXIS_END) if role == "current" else None
                changes[role] = Changes((DataFile(f"{role}-{plan.attempt}", 1, len(values), 0, "{}"),), replaces=whole)

        def write() -> None:
            for role, each in changes.items():
                tables[role].log.files[each.adds[0].path] = rows[role]

        self.probe("files", write)
        n = sum(map(len, new.values()))
        return Outcome(None, None, verdict, Counts(rows_read=n, rows_applied=n - len(bad), quarantined={"bad": len(bad)})), changes


_attempts = itertools.count()


def _plan(ledger: Ledger, after: int, through: int) -> Plan:
    changes = {"generation": ledger.generation, "from_version": after, "to_version": min(through, after + 2), "meaning": MEANING}
    return plan(ledger.count, f"{next(_attempts):012x}", **changes)
