"""The ledger: the plan and outcome of every batch, in one small Delta table per pipeline. No JVM.

Records are only appended. A batch has one *plan*, written before any work and never changed; a retry reuses it. It may have *held*
records (a critical expectation failed). It ends with one *commit*, the commit point of the whole batch, or one *abandoned* record.
An append succeeds only if no other record was added since the ledger was read: the Delta version is the fence, and of two concurrent
writers exactly one wins.

Opening a ledger reads only the newest batches; older ones are read on demand. So the cost of a run does not grow with the ledger.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime

import pyarrow as pa

from windowmill.checkpoints.assembling import FORMAT, STATUS, TOTALS, Totals, assemble, check_joined, recorded_totals, totals_of
from windowmill.checkpoints.batches import Batch, Commit, Plan, Written
from windowmill.checkpoints.failpoints import reach
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.record_table import DeltaRecords
from windowmill.checkpoints.records import Record, RecordStore
from windowmill.checkpoints.stored_plans import StoredPlan
from windowmill.windowing.errors import FencedError, LedgerCorruptError, LedgerError, SpecChangedError
from windowmill.windowing.meanings import told_difference
from windowmill.windowing.spec import Pipeline

#: Batches whose records are read at a time. A record takes kilobytes, most of them for the source's schema.
READ_AT_ONCE = 4_096


class Ledger:
    """A pipeline's ledger, as of the last read."""

    def __init__(self, path: str, *, integer_axis: bool = False, records: RecordStore | None = None) -> None:
        self.path = path
        self._integer_axis = integer_axis
        self._store: RecordStore = DeltaRecords(path) if records is None else records
        self._new_generation = uuid.uuid4().hex[:12]
        #: The newest batches, without gaps; older ones are loaded on demand.
        self._batches: list[Batch] = []
        #: Records loaded by the last :meth:`refresh`.
        self._records: list[Record] = []
        #: Changes passed to :meth:`accept` that no commit has recorded yet.
        self._accepted: dict[str, Written | None] = {}
        self.refresh()

    @classmethod
    def open(cls, pipeline: Pipeline) -> Ledger:
        """The ledger of ``pipeline``; an empty one if it has never run."""
        return cls(Places.of(pipeline).ledger, integer_axis=pipeline.time.unit is not None)

    def refresh(self) -> None:
        """Reread the newest batches.

        Raises
        ------
        LedgerError
            If the ledger cannot be read, or was written by a newer windowmill.
        LedgerCorruptError
            If a record is missing, duplicated or damaged.
        """
        self._take(self._store.load())

    def batches(self) -> list[Batch]:
        """All batches, oldest first; reads the whole ledger."""
        self._reach(0)
        last = recorded_totals(self._records, self.path)
        if last and last[1] != totals_of(batch for batch in self._batches if batch.number <= last[0]):
            raise LedgerCorruptError(
                f"ledger {self.path}: the totals in the commit of batch {last[0]} do not match the batches; restore the folder from a copy"
            )
        return list(self._batches)

    def recent(self, last: int) -> list[Batch]:
        """The newest ``last`` batches, oldest first, or all if there are fewer."""
        return self.since(max(0, self.count - last))

    def since(self, first: int) -> list[Batch]:
        """The batches from number ``first`` on."""
        self._reach(first)
        return [batch for batch in self._batches if batch.number >= first]

    @property
    def count(self) -> int:
        """Number of batches, an open one included; also the number of the next batch."""
        return self._batches[-1].number + 1 if self._batches else 0

    @property
    def next_commit(self) -> int:
        """Number of the first batch that has not been committed."""
        return self.count - (self.open_batch is not None)

    @property
    def newest(self) -> Batch | None:
        """The newest batch, whatever its kind and status."""
        return self._batches[-1] if self._batches else None

    @property
    def totals(self) -> Totals:
        """Sums over all committed batches."""
        last = recorded_totals(self._records, self.path)
        if last is None:  # no commit yet, or only commits of format 1
            return totals_of(self.batches())
        return totals_of((batch for batch in self._batches if batch.number > last[0]), last[1])

    @property
    def newest_kept(self) -> Batch | None:
        """The newest batch that was not abandoned."""
        return self._newest_that(lambda batch: batch.status != "abandoned")

    @property
    def last_commit(self) -> Batch | None:
        """The newest committed batch that advanced the pipeline; backfills of a running pipeline do not."""
        return self._newest_that(lambda batch: batch.status == "committed" and batch.plan.builds_state)

    def _newest_that(self, fits: Callable[[Batch], bool]) -> Batch | None:
        looked_at = 0
        while True:
            unseen = self._batches[: len(self._batches) - looked_at]
            found = next(filter(fits, reversed(unseen)), None)
            if found is not None or not self._batches or self._batches[0].number == 0:
                return found
            looked_at = len(self._batches)
            self._reach(max(0, self.count - 4 * looked_at))

    @property
    def open_batch(self) -> Batch | None:
        """The batch that has a plan but no commit; a retry reuses its plan."""
        return self._batches[-1] if self._batches and self._batches[-1].status in ("open", "held") else None

    def is_abandoned(self, batch: int) -> bool:
        """Whether ``batch``, which must exist, was abandoned."""
        return self.since(batch)[0].status == "abandoned"

    def written(self) -> dict[str, Written]:
        """By role, the last write to each of the pipeline's tables, as the last commit recorded it or the user accepted it since."""
        known: dict[str, Written | None] = {**self._recorded(), **self._accepted}
        return {role: written for role, written in known.items() if written is not None}

    def accept(self, role: str, written: Written | None) -> None:
        """Accept a table that others changed: the next commit records ``written`` for it; null records nothing until the next write."""
        self._accepted[role] = written

    def _recorded(self) -> dict[str, Written]:
        # The newest batches include a commit, unless many in a row were abandoned.
        return _newest_written(self._batches) or _newest_written(self.batches()) or _written_in_format_1(self.batches())

    @property
    def state_version(self) -> int | None:
        """Version of the state table after the last committed batch that wrote to it; null if none has."""
        written = self.written().get("state")
        return None if written is None else written.version

    @property
    def generation(self) -> str:
        """Identity of this ledger; before the first plan, the one that the plan will record."""
        return self._batches[-1].plan.generation if self._batches else self._new_generation

    def check_meaning(self, pipeline: Pipeline) -> None:
        """Refuse a spec whose results would not be consistent with those already published; raises ``SpecChangedError``."""
        last = self.newest_kept
        if last is None or last.plan.meaning == pipeline.meaning_hash():
            return
        if last.plan.meaning in pipeline.hashes_with_origins_in_utc():
            raise SpecChangedError(
                f"pipeline {pipeline.pipeline}: windowmill {last.plan.windowmill or 'of an earlier release'} built {self.path} and read a "
                "window's origin without an offset as UTC; it is wall time of the window's timezone, so give the pipeline a new sink and "
                "backfill it there"
            )
        if last.plan.meaning not in pipeline.older_meaning_hashes():
            raise SpecChangedError(
                f"pipeline {pipeline.pipeline}: keys, time, windows, aggregates, filter or emit differ from those that built {self.path} "
                f"(last batch {last.number}){_told_change(last.plan, pipeline)}; put the old ones back, or give the new definition its "
                "own sink and backfill it there"
            )
        if _named_by_order(pipeline, last.plan):
            raise SpecChangedError(
                f"pipeline {pipeline.pipeline}: windowmill {last.plan.windowmill or 'of an earlier release'} built {self.path} and named "
                "columns of the state by the order of the aggregates, because some differ in their condition or in signs of a column's "
                "name alone; that order is not recorded, so give the pipeline a new sink and backfill it there"
            )

    def record_plan(self, plan: Plan, at: datetime) -> None:
        """Write ``plan``; raises ``FencedError`` when another attempt wrote first."""
        if self.open_batch is not None or plan.batch != self.count:
            raise FencedError(f"ledger {self.path}: batch {plan.batch} cannot be planned now; another attempt has been here, run again")
        self._append("plan", plan.batch, plan.attempt, at, plan)

    def record_held(self, plan: Plan, outcome: Commit, at: datetime) -> None:
        """Record that a critical expectation failed; the batch stays open and unpublished."""
        self._append("held", plan.batch, outcome.attempt or plan.attempt, at, outcome)

    def record_commit(self, plan: Plan, outcome: Commit, at: datetime) -> None:
        """The commit point of a batch; raises ``FencedError`` when another attempt has committed it."""
        if self.open_batch is None or self.open_batch.number != plan.batch:
            raise FencedError(f"ledger {self.path}: batch {plan.batch} has been committed by another attempt; nothing more to do")
        self._append("commit", plan.batch, outcome.attempt or plan.attempt, at, outcome)

    def record_abandoned(self, plan: Plan, at: datetime) -> None:
        """Abandon the open ``plan``; its number is not reused. Raises ``FencedError`` when another attempt has ended the batch."""
        if self.open_batch is None or self.open_batch.number != plan.batch:
            raise FencedError(f"ledger {self.path}: batch {plan.batch} is not open any more; another attempt has been here")
        self._append("abandoned", plan.batch, plan.attempt, at, plan)

    def _append(self, kind: str, batch: int, attempt: str, at: datetime, body: Plan | Commit) -> None:
        values = asdict(StoredPlan.of(body) if isinstance(body, Plan) else body)
        if kind == "commit" and isinstance(body, Commit) and self.open_batch is not None:
            values[TOTALS] = asdict(self.totals.plus(self.open_batch.plan, body))
        record = Record(FORMAT, kind, batch, attempt, at, json.dumps(values))
        try:
            assemble([*self._records, record], self.path, integer_axis=self._integer_axis)
        except LedgerCorruptError as err:
            # With this record the ledger could never be read again.
            raise LedgerError(f"the {kind} of batch {batch} does not fit the ledger, nothing was written ({err})") from err
        reach(f"{kind}.before")
        try:
            self._store.append(record)
            reach(f"{kind}.lost")
        except Exception:
            # The append may have succeeded and only its response been lost.
            with suppress(LedgerError):  # the original error is reported
                self.refresh()
            if not self._holds(record):
                raise
        else:
            self.refresh()
        if kind == "commit":
            self._accepted.clear()
        reach(f"{kind}.after")

    def _holds(self, record: Record) -> bool:
        batch = self.newest
        if batch is None or batch.number != record.batch:
            return False
        if record.kind == "plan":
            return batch.plan.attempt == record.attempt
        return batch.status == STATUS[record.kind] and batch.ended_by == record.attempt

    def _reach(self, first: int) -> None:
        """Load the batches from number ``first`` on."""
        have = self._batches[0].number if self._batches else 0
        while first < have:
            start = max(first, have - READ_AT_ONCE)
            older = assemble(self._store.read(start, have), self.path, integer_axis=self._integer_axis)
            check_joined(older, self._batches, self.path)
            self._batches[:0] = older
            have = start

    def _take(self, records: list[Record]) -> None:
        self._batches = assemble(records, self.path, integer_axis=self._integer_axis)
        self._records = records


def _told_change(plan: Plan, pipeline: Pipeline) -> str:
    told = told_difference(plan.definition, pipeline.shown_meaning(), pipeline.meaning()) if plan.definition else None
    return f": {told}" if told else ""


def _named_by_order(pipeline: Pipeline, plan: Plan) -> bool:
    # Imported here because only ledgers of an earlier release need them.
    from deltalake import Schema

    from windowmill.windowing.ways import named_by_order

    return named_by_order(pipeline, {field.name: field.type for field in pa.schema(Schema.from_json(plan.source_schema).to_arrow())})


def _newest_written(batches: Sequence[Batch]) -> dict[str, Written]:
    outcomes = (batch.outcome for batch in reversed(batches) if batch.status == "committed")
    newest = next(outcomes, None)
    return {} if newest is None else newest.written


def _written_in_format_1(batches: Sequence[Batch]) -> dict[str, Written]:
    """The last writes by commits of format 1, which recorded only versions."""
    written: dict[str, Written] = {}
    for batch in batches:
        if batch.status == "committed" and batch.outcome is not None:
            versions = {"sink": batch.outcome.sink_version, "state": batch.outcome.state_version}
            written |= {role: Written(batch.number, None, version) for role, version in versions.items() if version is not None}
    return written
