"""The ledger: what each batch set out to do, and that it has been done. One small Delta table a pipeline; no JVM.

Records are only ever appended. A batch has a *plan* (written before any work, never changed; a retry finds and reuses it), maybe a
*held* record (a critical expectation failed), and in the end one *commit*: the commit point of the whole run. A record lands only if
nothing else has landed since the ledger was read (the Delta version is the fence), so of two writers exactly one wins.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from checkpoints.places import Places
from windowing.axis import from_us
from windowing.errors import FencedError, LedgerError, SpecChangedError
from windowing.spec import Pipeline

#: Goes up when a record's meaning changes; an older windowmill refuses a newer ledger.
FORMAT = 1

_SCHEMA = pa.schema(
    [
        ("format", pa.int32()),
        ("kind", pa.string()),
        ("batch", pa.int64()),
        ("attempt", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("body", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a batch will do, pinned before any work.

    Attributes
    ----------
    batch
        Number of the batch in the pipeline's life, from 0; also the version of its Delta transactions.
    action
        ``run`` advances the pipeline; ``backfill`` recomputes the windows that end in (``range_from``, ``range_to``].
    generation
        Identity of this ledger: a ledger made anew must not continue another's Delta transactions.
    source_id, from_version, to_version
        Delta id of the source table and its versions (from, to]; from −1 means from the beginning.
    seen
        Greatest event time of all rows before this batch; null before the first.
    emitted
        Every window that ends at or before this instant has been emitted.
    now_us
        The run's own time, against which ``max_future_skew`` is measured.
    interval_end
        End of the data interval that the orchestrator vouches for (``watermark: data_interval_end``).
    found_closed
        Of a backfill where the orchestrator vouches, for each batch before it in order: the source version through which it read, and
        the instant through which its rows found windows closed; null for none.
    meaning
        Hash of the part of the spec that decides the result.
    source_schema
        The source's Delta schema (JSON) at ``to_version``.
    """

    batch: int
    action: Literal["run", "backfill"]
    attempt: str
    generation: str
    source_id: str
    from_version: int
    to_version: int
    now_us: int
    meaning: str
    source_schema: str
    seen: int | None = None
    emitted: int | None = None
    range_from: int | None = None
    range_to: int | None = None
    interval_end: int | None = None
    found_closed: list[tuple[int, int | None]] = field(default_factory=list)
    #: Whether this batch builds the state: every run does, a backfill only as a pipeline's very first batch.
    builds_state: bool = True
    windowmill: str = ""

    @property
    def range(self) -> tuple[int, int]:
        """A backfill's (begin, end] of window ends."""
        if self.range_from is None or self.range_to is None:
            raise LedgerError(f"batch {self.batch}: a {self.action} has no range of window ends; restore the ledger from a copy")
        return self.range_from, self.range_to


@dataclass(frozen=True, slots=True)
class Commit:
    """What a batch has done.

    ``windows`` counts the published rows by window name; ``timings`` are seconds by step; ``sink_version`` and ``state_version`` are
    Delta versions after the batch, null where it wrote nothing.
    """

    seen: int | None
    emitted: int | None
    verdict: str
    rows_read: int = 0
    rows_applied: int = 0
    rows_late: int = 0
    rows_quarantined: int = 0
    rows_published: int = 0
    slices: int = 0
    windows: dict[str, int] = field(default_factory=dict)
    window_end_min: int | None = None
    window_end_max: int | None = None
    sink_version: int | None = None
    state_version: int | None = None
    timings: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch as ``history`` tells it: its plan with its outcome so far, and how often it has been held."""

    plan: Plan
    planned_at: datetime
    outcome: Commit | None
    status: Literal["open", "held", "committed"]
    ended_at: datetime | None
    holds: int = 0
    integer_axis: bool = False

    number = property(lambda self: self.plan.batch)
    action = property(lambda self: self.plan.action)
    from_version = property(lambda self: self.plan.from_version)
    to_version = property(lambda self: self.plan.to_version)
    verdict = property(lambda self: self.outcome.verdict if self.outcome else None)
    committed_at = property(lambda self: self.ended_at if self.status == "committed" else None)
    rows_read = property(lambda self: self.outcome.rows_read if self.outcome else 0)
    rows_applied = property(lambda self: self.outcome.rows_applied if self.outcome else 0)
    rows_late = property(lambda self: self.outcome.rows_late if self.outcome else 0)
    rows_quarantined = property(lambda self: self.outcome.rows_quarantined if self.outcome else 0)
    rows_published = property(lambda self: self.outcome.rows_published if self.outcome else 0)
    timings = property(lambda self: self.outcome.timings if self.outcome else {})

    @property
    def seen(self) -> datetime | int | None:
        """Greatest event time after the batch."""
        return self._instant(self.outcome.seen if self.outcome else self.plan.seen)

    @property
    def emitted(self) -> datetime | int | None:
        """Every window that ends at or before this instant is in the sink."""
        return self._instant(self.outcome.emitted if self.outcome and self.status == "committed" else self.plan.emitted)

    def _instant(self, t: int | None) -> datetime | int | None:
        return t if t is None or self.integer_axis else from_us(t)


class Ledger:
    """A pipeline's ledger, as it stood when it was last read."""

    def __init__(self, path: str, *, integer_axis: bool = False) -> None:
        self.path = path
        self._integer_axis = integer_axis
        self._table: DeltaTable | None = None
        self._batches: list[Batch] = []
        self._records = 0
        self.refresh()

    @classmethod
    def open(cls, pipeline: Pipeline) -> Ledger:
        """The ledger of ``pipeline``; an empty one if it has never run."""
        return cls(Places.of(pipeline).ledger, integer_axis=pipeline.time.unit is not None)

    def refresh(self) -> None:
        """Read the ledger anew.

        Raises
        ------
        LedgerError
            If a record is missing, cut off, or written by a newer windowmill.
        """
        try:
            self._table = DeltaTable(self.path)
            rows = _records(self._table)
        except TableNotFoundError:
            self._table, rows = None, []
        except (DeltaError, pa.ArrowException, OSError) as err:
            raise LedgerError(
                f"ledger {self.path}: cannot be read ({_first_line(err)}); restore the folder from a copy, nothing has been changed"
            ) from err
        self._batches = _assemble(rows, self.path, self._integer_axis)
        self._records = len(rows)

    def batches(self) -> list[Batch]:
        """All batches, oldest first."""
        return list(self._batches)

    @property
    def last_commit(self) -> Batch | None:
        """The newest committed batch that moved the pipeline on; backfills of a running pipeline do not."""
        return next((batch for batch in reversed(self._batches) if batch.status == "committed" and batch.plan.builds_state), None)

    @property
    def open_batch(self) -> Batch | None:
        """The batch that has a plan but no commit; a retry takes up its plan."""
        return self._batches[-1] if self._batches and self._batches[-1].status != "committed" else None

    @property
    def generation(self) -> str:
        """Identity of this ledger; a new one before the first plan."""
        return self._batches[0].plan.generation if self._batches else uuid.uuid4().hex[:12]

    def check_meaning(self, pipeline: Pipeline) -> None:
        """Refuse a spec whose rows would not fit those already published; raises ``SpecChangedError``."""
        if self._batches and self._batches[-1].plan.meaning != pipeline.meaning_hash():
            raise SpecChangedError(
                f"pipeline {pipeline.pipeline}: keys, time, windows, aggregates, filter or emit differ from those that built {self.path} "
                f"(last batch {self._batches[-1].number}); put the old ones back, or give the new definition its own sink "
                "and backfill it there"
            )

    def record_plan(self, plan: Plan, at: datetime) -> None:
        """Write ``plan``; raises ``FencedError`` when another attempt wrote first."""
        if self.open_batch is not None or plan.batch != len(self._batches):
            raise FencedError(f"ledger {self.path}: batch {plan.batch} cannot be planned now; another attempt has been here, run again")
        self._append("plan", plan.batch, plan.attempt, at, plan)

    def record_held(self, plan: Plan, outcome: Commit, at: datetime) -> None:
        """Note that a critical expectation failed: the batch stays open and unpublished."""
        self._append("held", plan.batch, plan.attempt, at, outcome)

    def record_commit(self, plan: Plan, outcome: Commit, at: datetime) -> None:
        """The commit point of a batch; raises ``FencedError`` when another attempt has committed it."""
        if self.open_batch is None or self.open_batch.number != plan.batch:
            raise FencedError(f"ledger {self.path}: batch {plan.batch} has been committed by another attempt; nothing more to do")
        self._append("commit", plan.batch, plan.attempt, at, outcome)

    def _append(self, kind: str, batch: int, attempt: str, at: datetime, body: Plan | Commit) -> None:
        record = {"format": FORMAT, "kind": kind, "batch": batch, "attempt": attempt, "at": at, "body": json.dumps(asdict(body))}
        rows = pa.Table.from_pylist([record], schema=_SCHEMA)
        # No retries: a retry would rebase onto the other writer's record, and both would have planned or committed the same batch.
        fence = CommitProperties(max_commit_retries=0, custom_metadata={"kind": kind, "batch": str(batch), "attempt": attempt})
        try:
            if self._table is None:
                if "://" not in self.path:
                    Path(self.path).mkdir(parents=True, exist_ok=True)
                self._table = DeltaTable.create(self.path, schema=_SCHEMA, mode="error", name="windowmill ledger")
            write_deltalake(self._table, rows, mode="append", commit_properties=fence)
        except (CommitFailedError, DeltaError) as err:
            self.refresh()
            raise FencedError(
                f"ledger {self.path}: another run wrote while this one was at its {kind} of batch {batch}; it stops without effect"
            ) from err
        self.refresh()


def _records(table: DeltaTable) -> list[dict[str, Any]]:
    # File by file and without threads: deltalake's own pyarrow reader leaves threads behind that abort the interpreter at its exit
    # (1.6.6, exit code 134), and its SQL takes half a second to start.
    files = pa_fs.PyFileSystem(DeltaStorageHandler(table.table_uri))
    names = table.get_add_actions().column("path").to_pylist()
    return [row for name in names for row in pq.ParquetFile(files.open_input_file(name)).read(use_threads=False).to_pylist()]


def _assemble(rows: list[dict[str, Any]], path: str, integer_axis: bool) -> list[Batch]:
    newer = max((row["format"] for row in rows), default=FORMAT)
    if newer > FORMAT:
        raise LedgerError(f"ledger {path}: holds format {newer}, this windowmill reads up to {FORMAT}; upgrade windowmill on this machine")
    plans = {row["batch"]: row for row in rows if row["kind"] == "plan"}
    if sorted(plans) != list(range(len(plans))):
        missing = sorted(set(range(max(plans) + 1)) - set(plans))
        raise LedgerError(
            f"ledger {path}: the plan of batch {missing[0]} is missing; restore the folder from a copy, nothing has been changed"
        )
    ends = {row["batch"]: row for row in sorted(rows, key=lambda row: (row["kind"] == "commit", row["at"])) if row["kind"] != "plan"}
    batches = []
    for number in sorted(plans):
        plan, end = plans[number], ends.get(number)
        try:
            outcome = _body(Commit, end) if end else None
            planned = _body(Plan, plan)
        except (ValueError, TypeError) as err:
            raise LedgerError(f"ledger {path}: a record of batch {number} cannot be read ({err}); restore the folder from a copy") from err
        status: Any = "open" if end is None else "held" if end["kind"] == "held" else "committed"
        holds = sum(row["kind"] == "held" and row["batch"] == number for row in rows)
        batches.append(Batch(planned, plan["at"], outcome, status, end["at"] if end else None, holds, integer_axis))
    return batches


def _body(kind: Any, row: dict[str, Any]) -> Any:
    known = {f.name for f in fields(kind)}
    return kind(**{name: value for name, value in json.loads(row["body"]).items() if name in known})


def _first_line(err: BaseException) -> str:
    return str(err).strip().splitlines()[0] if str(err).strip() else type(err).__name__
