"""The plan of a batch, its outcome, the files of its tables, and all combined: the values stored in the ledger's records."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Literal

import pyarrow as pa

from windowmill.checkpoints.data_files import DataFile, stored_type
from windowmill.windowing.axis import from_us

Status = Literal["held", "committed", "abandoned"]
#: For each earlier batch, the last source version that it read, and the instant through which windows were closed to its rows.
FoundClosed = list[tuple[int, int | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ABC):
    """What a batch will do, pinned before any work: what all kinds of batches have in common.

    Attributes
    ----------
    action
        Name of the kind of plan in messages, JSON and the ledger.
    batch
        Number of the batch in the pipeline's life, from 0; also the version of its Delta transactions.
    attempt
        The attempt at this batch, whose data files have it in their names; 12 hexadecimal digits. Each plan is a new attempt.
    generation
        Identity of this ledger. A recreated ledger gets a new one, so that it cannot continue the Delta transactions of the old one.
    source_id, from_version, to_version
        Delta id of the source table, and the range of versions (from, to] to read; from −1 is the beginning.
    seen
        Greatest event time of the rows in all earlier batches; null for the first batch.
    emitted
        Every window that ends at or before this instant has been emitted.
    now_us
        Wall-clock time of the run, against which ``max_future_skew`` is measured.
    meaning
        Hash of the part of the spec that determines the result.
    source_schema
        The source's Delta schema (JSON) at ``to_version``.
    snapshot
        Version whose table snapshot is read. Its rows count as arrived in event-time order, so none of them is late. It may be greater
        than ``to_version`` if later versions rewrote files, or, in a backfill, changed rows. Null if all rows arrived in log order.
    """

    action: ClassVar[str]

    batch: int
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
    windowmill: str = ""
    snapshot: int | None = None
    #: SHA-256 of each user module that the spec names.
    modules: dict[str, str] = field(default_factory=dict)
    #: Version of the time zone data that the windows use.
    tzdata: str | None = None
    #: Digest of each of these zones' offsets from UTC through ``now_us``.
    zones: dict[str, str] = field(default_factory=dict)
    #: Tells the source's commit of ``to_version`` from that of a copy which has gone its own way; null if unknown.
    source_mark: str | None = None
    #: Name of the pipeline.
    pipeline: str = ""
    #: What the spec means, with variables as written. Shows what has changed where ``meaning`` differs.
    definition: dict[str, object] = field(default_factory=dict)

    @property
    @abstractmethod
    def builds_state(self) -> bool:
        """Whether the batch builds the state: every run does, a backfill only as a pipeline's very first batch."""

    @property
    def replaces_state(self) -> bool:
        """Whether the batch reads no state, and what it builds takes the place of the state that is there."""
        return False

    @property
    def rereads(self) -> bool:
        """Whether earlier batches have read the same rows, and quarantined those of them that did not count."""
        return not self.builds_state

    @property
    def reads_from(self) -> int:
        """The version after which the batch reads."""
        return self.from_version

    @property
    def goes_back(self) -> bool:
        """Whether position and progress after the batch are earlier ones."""
        return False

    @abstractmethod
    def describe(self, *, instants: bool) -> str:
        """What the batch does, for messages; ``instants`` says whether the axis is time."""

    @property
    def arrival(self) -> Literal["log", "event_time"]:
        """The order in which rows count as arrived; rows of versions after ``snapshot`` always arrive in log order."""
        return "log" if self.snapshot is None else "event_time"

    def app_id(self, role: str) -> str:
        """Application id of the batch's Delta transaction in the table with this ``role``; it survives renaming the pipeline."""
        return f"windowmill/{self.generation}/{role}"

    def _versions(self) -> str:
        versions = f"source versions {self.reads_from + 1} to {self.to_version}"
        return versions if self.snapshot is None else f"{versions}, from the snapshot at version {self.snapshot}, in event-time order"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan(Plan):
    """The plan of a run, which advances the pipeline.

    Attributes
    ----------
    interval_end
        End of the data interval, up to which the orchestrator guarantees complete input (``watermark: data_interval_end``).
    """

    action: ClassVar[str] = "run"

    interval_end: int | None = None

    @property
    def builds_state(self) -> bool:
        """As :attr:`Plan.builds_state`: always."""
        return True

    def describe(self, *, instants: bool) -> str:  # noqa: ARG002 - a run names no instants
        """As :meth:`Plan.describe`."""
        return self._versions() if self.to_version > self.from_version else "no new rows, a later watermark"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillPlan(Plan):
    """The plan of a backfill, which recomputes the windows that end in (``range_from``, ``range_to``].

    Attributes
    ----------
    builds_state
        Whether this is the pipeline's very first batch, which builds the state.
    found_closed
        With ``watermark: data_interval_end``: one pair for each earlier batch, oldest first. It holds the last source version that the
        batch read, and the instant through which windows were already closed to its rows; null if none were.
    """

    action: ClassVar[str] = "backfill"

    range_from: int
    range_to: int
    # A bare annotation would take the inherited property for its default.
    builds_state: bool = field()
    found_closed: FoundClosed = field(default_factory=list)

    @property
    def range(self) -> tuple[int, int]:
        """The window ends (begin, end] that the backfill recomputes."""
        return self.range_from, self.range_to

    def describe(self, *, instants: bool) -> str:
        """As :meth:`Plan.describe`."""
        begin, end = (told(t, instants=instants) for t in self.range)
        return f"backfill of the windows that end after {begin} through {end}, from {self._versions()}"


def told(instant: int, *, instants: bool) -> str:
    """An instant on the axis for messages; ``instants`` says whether the axis is time."""
    return f"{from_us(instant):%Y-%m-%d %H:%M}" if instants else str(instant)


@dataclass(frozen=True, slots=True)
class Changes:
    """What a batch changes in one table, by one commit.

    Attributes
    ----------
    adds
        Files of new rows.
    kept
        Files with rows that no rule judges: those of removed files that stay (a backfill), retracted windows (a restatement).
    removes
        Paths of the files that ``adds`` and ``kept`` replace, as the table names them; without ``replaces`` these are all files.
    replaces
        Range (begin, end] of window ends whose rows are replaced; null to append.
    schema
        The table's schema (Delta JSON), from which it is made, or widened. Null in a record if the table had all columns.
    windows
        Names of the windows whose rows of the range ``replaces`` are meant; null for all.
    widens
        Whether columns are added to a sink that lacks some. Other tables of a pipeline are always widened.
    """

    adds: tuple[DataFile, ...] = ()
    kept: tuple[DataFile, ...] = ()
    removes: tuple[str, ...] = ()
    replaces: tuple[int, int] | None = None
    schema: str | None = None
    windows: tuple[str, ...] | None = None
    widens: bool = False

    @classmethod
    def of(
        cls,
        schema: pa.Schema,
        adds: Iterable[DataFile] = (),
        *,
        kept: Iterable[DataFile] = (),
        removes: Iterable[str] = (),
        replaces: tuple[int, int] | None = None,
        windows: tuple[str, ...] | None = None,
        widens: bool = False,
    ) -> Changes:
        """Changes of a table with the columns ``schema``, all nullable."""
        from deltalake import Schema  # an executor makes no changes

        stored = pa.schema([pa.field(field.name, stored_type(field.type)) for field in schema])
        return cls(tuple(adds), tuple(kept), tuple(removes), replaces, Schema.from_arrow(stored).to_json(), windows, widens)

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The files that the commit adds."""
        return self.adds + self.kept

    @property
    def rows(self) -> int:
        """Number of rows in them."""
        return sum(file.rows for file in self.files)

    @property
    def digest(self) -> str:
        """Digest of the files added, as of the commit (:func:`digest_of`)."""
        return digest_of(identity_of({"path": file.path}) for file in self.files)


@dataclass(frozen=True, slots=True)
class Undo:
    """Which rows of a table with a column ``batch`` go: those of batches after ``after``.

    Attributes
    ----------
    spared
        Batches after it whose rows of windows that end at or before ``through`` stay: backfills, which replaced rows of earlier batches.
    """

    after: int
    spared: tuple[int, ...] = ()
    through: int | None = None


def identity_of(file: Mapping[str, object]) -> str:
    """Identifies the rows of a file by its action in a log: with another deletion vector, the same path holds other rows."""
    deleted = file.get("deletionVector")
    vector = deleted if isinstance(deleted, dict) else {}
    return f"{file['path']} {vector.get('storageType', '')}{vector.get('pathOrInlineDv', '')}@{vector.get('offset', '')}"


def digest_of(identities: Iterable[str]) -> str:
    """SHA-256 of files, each identified by :func:`identity_of`; 16 hexadecimal digits."""
    return hashlib.sha256("\n".join(sorted(identities)).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class LastWrite:
    """The last write to one of the pipeline's own tables; the next batch verifies the table against it.

    Attributes
    ----------
    batch
        The batch that last wrote to the table.
    table_id, version
        Delta id of the table, and the version that the commit created.
    digest
        Digest of the files added; null if others have changed the table since, and the user has accepted it.
    """

    batch: int
    table_id: str
    version: int
    digest: str | None


@dataclass(frozen=True, slots=True)
class Commit:
    """The outcome of a batch.

    ``windows`` counts the published rows by window name, ``restored`` the rows of state that were restored by kind. ``rows_ignored`` counts
    the rows changed by source versions that ``source.changes: ignore`` skipped; they are not part of ``rows_read``. ``timings`` holds the
    seconds by step. ``compute`` says who computed the batch: ``{"engine": "local"}``, or Spark's application with its numbers of jobs,
    stages, tasks and executors. ``used`` holds ``processor_seconds``, ``bytes_read`` of the source's files, ``bytes_written``, and the
    ``state_bytes`` after the batch; it is empty in older records. ``written`` maps each role to the last write to that table by the batches
    before this one; this batch's own commits are made after the record, and found by their transactions.
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
    restored: dict[str, int] = field(default_factory=dict)
    windows: dict[str, int] = field(default_factory=dict)
    window_end_min: int | None = None
    window_end_max: int | None = None
    timings: dict[str, float] = field(default_factory=dict)
    rows_ignored: int = 0
    compute: dict[str, object] = field(default_factory=dict)
    used: dict[str, float] = field(default_factory=dict)
    written: dict[str, LastWrite] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch as ``history`` shows it: its plan, its outcome so far, and the files of its tables.

    Attributes
    ----------
    ended_at
        When it was recorded; if it was held, when it was last ruled on.
    changes
        By role, what the batch changes in its tables; of a batch of many files only in its ``manifest``.
    manifest
        Name and digest of the file that holds the changes; null if the record does.
    validations
        Changes of the quality table by later validations of a held batch, oldest first.
    holds
        How often a validation has held it.
    ruled_by
        Who released, discarded or abandoned it, or approved the change of the spec that it carries out; null if nobody was named.
    """

    plan: Plan
    outcome: Commit
    status: Status
    ended_at: datetime
    changes: Mapping[str, Changes] = field(default_factory=dict)
    manifest: tuple[str, str] | None = None
    validations: Sequence[Changes] = ()
    holds: int = 0
    integer_axis: bool = False
    ruled_by: str | None = None

    number = property(lambda self: self.plan.batch)
    action = property(lambda self: self.plan.action)
    from_version = property(lambda self: self.plan.from_version)
    to_version = property(lambda self: self.plan.to_version)
    attempt = property(lambda self: self.plan.attempt)
    verdict = property(lambda self: self.outcome.verdict)
    planned_at = property(lambda self: from_us(self.plan.now_us))
    committed_at = property(lambda self: self.ended_at if self.status == "committed" else None)
    rows_read = property(lambda self: self.outcome.rows_read)
    rows_applied = property(lambda self: self.outcome.rows_applied)
    rows_late = property(lambda self: self.outcome.rows_late)
    rows_quarantined = property(lambda self: self.outcome.rows_quarantined)
    rows_ignored = property(lambda self: self.outcome.rows_ignored)
    rows_published = property(lambda self: self.outcome.rows_published if self.status == "committed" else 0)
    timings = property(lambda self: self.outcome.timings)
    compute = property(lambda self: self.outcome.compute)
    used = property(lambda self: self.outcome.used)

    @property
    def is_backfill(self) -> bool:
        """Whether it is a backfill."""
        return isinstance(self.plan, BackfillPlan)

    @property
    def seen(self) -> datetime | int | None:
        """Greatest event time after the batch."""
        return self._instant(self.outcome.seen)

    @property
    def emitted(self) -> datetime | int | None:
        """Every window that ends at or before this instant is in the sink."""
        return self._instant(self.outcome.emitted if self.status == "committed" else self.plan.emitted)

    def _instant(self, t: int | None) -> datetime | int | None:
        return t if t is None or self.integer_axis else from_us(t)
