"""The plan of a batch, its outcome, and both combined: the values stored in the ledger's records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Literal

from windowmill.windowing.axis import from_us

Status = Literal["open", "held", "committed", "abandoned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ABC):
    """What a batch will do, pinned before any work: what runs and backfills have in common.

    Attributes
    ----------
    action
        Name of the kind of plan in messages, JSON and the ledger.
    batch
        Number of the batch in the pipeline's life, from 0; also the version of its Delta transactions.
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
        than ``to_version`` if the table still held the same rows. Null if all rows arrived in log order.
    """

    action: ClassVar[Literal["run", "backfill"]]

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
    #: Prefix of the batch's Delta transaction ids; null in plans of format 1, whose ids contain the pipeline's name.
    app: str | None = None
    #: Tells the source's commit of ``to_version`` from that of a copy which has gone its own way; null if unknown.
    source_mark: str | None = None
    #: Name of the pipeline; empty in plans of releases that did not record it.
    pipeline: str = ""
    #: What the spec means, with variables as written; empty in older plans. It tells what has changed where ``meaning`` differs.
    definition: dict[str, object] = field(default_factory=dict)

    @property
    @abstractmethod
    def builds_state(self) -> bool:
        """Whether the batch builds the state: every run does, a backfill only as a pipeline's very first batch."""

    @abstractmethod
    def describe(self, *, instants: bool) -> str:
        """What the batch does, for messages; ``instants`` says whether the axis is time."""

    @property
    def arrival(self) -> Literal["log", "event_time"]:
        """The order in which rows count as arrived; rows of versions after ``snapshot`` always arrive in log order."""
        return "log" if self.snapshot is None else "event_time"

    def app_id(self, pipeline: str, role: str) -> str:
        """Application id of the batch's Delta transaction in the table with this ``role``; it survives renaming the pipeline."""
        return self.legacy_app_id(pipeline, role) if self.app is None else f"{self.app}/{role}"

    def legacy_app_id(self, pipeline: str, role: str) -> str:
        """As :meth:`app_id`, for a plan of format 1."""
        return f"windowmill/{pipeline}/{self.generation}/{role}"

    def _versions(self) -> str:
        versions = f"source versions {self.from_version + 1} to {self.to_version}"
        return versions if self.snapshot is None else f"{versions}, from the snapshot at version {self.snapshot}, in event-time order"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan(Plan):
    """The plan of a run, which advances the pipeline.

    Attributes
    ----------
    interval_end
        End of the data interval, up to which the orchestrator guarantees complete input (``watermark: data_interval_end``).
    """

    action: ClassVar[Literal["run", "backfill"]] = "run"

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

    action: ClassVar[Literal["run", "backfill"]] = "backfill"

    range_from: int
    range_to: int
    # A bare annotation would take the inherited property for its default.
    builds_state: bool = field()
    found_closed: list[tuple[int, int | None]] = field(default_factory=list)

    @property
    def range(self) -> tuple[int, int]:
        """The window ends (begin, end] that the backfill recomputes."""
        return self.range_from, self.range_to

    def describe(self, *, instants: bool) -> str:
        """As :meth:`Plan.describe`."""
        begin, end = (f"{from_us(t):%Y-%m-%d %H:%M}" if instants else str(t) for t in self.range)
        return f"backfill of the windows that end after {begin} through {end}, from {self._versions()}"


@dataclass(frozen=True, slots=True)
class Written:
    """The last write to one of the pipeline's own tables; the next batch verifies the table against it.

    Attributes
    ----------
    batch
        The batch that last wrote to the table.
    table_id, version
        Delta id of the table, and the version that the commit created. The id is null in format 1, which did not record it.
    rows, digest
        Rows added, and a digest of the files that hold them; null if unknown.
    attempt
        The attempt that made the commit; null if unknown.
    """

    batch: int
    table_id: str | None
    version: int
    rows: int = 0
    digest: str | None = None
    attempt: str | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """The outcome of a batch.

    ``windows`` counts the published rows by window name. ``rows_ignored`` counts the rows changed by source versions that
    ``source.changes: ignore`` skipped; they are not part of ``rows_read``. ``timings`` holds seconds by step. ``sink_version`` and
    ``state_version`` are the Delta versions that the batch created, null where it wrote nothing. ``written`` maps each role to the last
    write to that table, by this batch or an earlier one. ``attempt`` is the attempt that committed. ``compute`` says who computed the
    batch: ``{"engine": "local"}``, or Spark's application with its numbers of jobs, stages, tasks and executors.
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
    rows_ignored: int = 0
    compute: dict[str, object] = field(default_factory=dict)
    written: dict[str, Written] = field(default_factory=dict)
    attempt: str | None = None

    def __post_init__(self) -> None:
        # Values read from the ledger's JSON are still dicts.
        written = {role: Written(**value) if isinstance(value, dict) else value for role, value in self.written.items()}
        object.__setattr__(self, "written", written)


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch as ``history`` shows it: its plan, its outcome so far, and how often it was held."""

    plan: Plan
    planned_at: datetime
    outcome: Commit | None
    status: Status
    ended_at: datetime | None
    holds: int = 0
    integer_axis: bool = False
    #: The attempt that ended or held the batch.
    ended_by: str | None = None

    number = property(lambda self: self.plan.batch)
    action = property(lambda self: self.plan.action)
    is_backfill = property(lambda self: isinstance(self.plan, BackfillPlan))
    from_version = property(lambda self: self.plan.from_version)
    to_version = property(lambda self: self.plan.to_version)
    verdict = property(lambda self: self.outcome.verdict if self.outcome else None)
    committed_at = property(lambda self: self.ended_at if self.status == "committed" else None)
    rows_read = property(lambda self: self.outcome.rows_read if self.outcome else 0)
    rows_applied = property(lambda self: self.outcome.rows_applied if self.outcome else 0)
    rows_late = property(lambda self: self.outcome.rows_late if self.outcome else 0)
    rows_quarantined = property(lambda self: self.outcome.rows_quarantined if self.outcome else 0)
    rows_ignored = property(lambda self: self.outcome.rows_ignored if self.outcome else 0)
    rows_published = property(lambda self: self.outcome.rows_published if self.outcome else 0)
    timings = property(lambda self: self.outcome.timings if self.outcome else {})
    compute = property(lambda self: self.outcome.compute if self.outcome else {})

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
