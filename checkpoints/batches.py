"""What a batch sets out to do, what it has done, and the two together: the values that the ledger's records hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from windowing.axis import from_us
from windowing.errors import LedgerError

Status = Literal["open", "held", "committed", "abandoned"]


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
    snapshot
        The source's rows through this version are read as the table held them then, and count as arrived in the order of event time:
        none is late. Past ``to_version`` where the table held the same rows then. Null where all rows arrived in the order of the log.
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
    snapshot: int | None = None
    #: SHA-256 of each module of the user's own that the spec names, and the version of the time zone data that its windows use.
    modules: dict[str, str] = field(default_factory=dict)
    tzdata: str | None = None
    #: Begin of the names of this batch's Delta transactions; null in plans of format 1, where they held the pipeline's name.
    app: str | None = None

    @property
    def arrival(self) -> Literal["log", "event_time"]:
        """In which order the rows count as arrived; after a ``snapshot`` that is older than ``to_version``, later rows by the log."""
        return "log" if self.snapshot is None else "event_time"

    def app_id(self, pipeline: str, role: str) -> str:
        """Name of the batch's Delta transaction in the table that has this ``role``: it stays when the pipeline is renamed."""
        return self.legacy_app_id(pipeline, role) if self.app is None else f"{self.app}/{role}"

    def legacy_app_id(self, pipeline: str, role: str) -> str:
        """As :meth:`app_id`, of a plan of format 1."""
        return f"windowmill/{pipeline}/{self.generation}/{role}"

    @property
    def range(self) -> tuple[int, int]:
        """A backfill's (begin, end] of window ends."""
        if self.range_from is None or self.range_to is None:
            raise LedgerError(f"batch {self.batch}: a {self.action} has no range of window ends; restore the ledger from a copy")
        return self.range_from, self.range_to


@dataclass(frozen=True, slots=True)
class Written:
    """What a batch wrote to a table of the pipeline's own, and what the next batch compares the table with.

    Attributes
    ----------
    batch
        The batch that wrote to the table last.
    table_id, version
        Delta id of the table; the version that the commit made. The id is null where format 1 did not record it.
    rows, digest
        Rows added, and a digest of the files that hold them; null where it is not known.
    attempt
        The attempt that won, if it is known.
    """

    batch: int
    table_id: str | None
    version: int
    rows: int = 0
    digest: str | None = None
    attempt: str | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """What a batch has done.

    ``windows`` counts the published rows by window name; ``rows_ignored`` are those that the source changed in versions which
    ``source.changes: ignore`` left out, not among ``rows_read``; ``timings`` are seconds by step; ``sink_version`` and
    ``state_version`` are Delta versions after the batch, null where it wrote nothing. ``written`` tells, by role, what this batch or an
    earlier one wrote to each of the pipeline's tables; ``attempt`` is the attempt that committed.
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
    written: dict[str, Written] = field(default_factory=dict)
    attempt: str | None = None

    def __post_init__(self) -> None:
        # As the ledger's JSON has them.
        written = {role: Written(**value) if isinstance(value, dict) else value for role, value in self.written.items()}
        object.__setattr__(self, "written", written)


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch as ``history`` tells it: its plan with its outcome so far, and how often it has been held."""

    plan: Plan
    planned_at: datetime
    outcome: Commit | None
    status: Status
    ended_at: datetime | None
    holds: int = 0
    integer_axis: bool = False
    #: The attempt that ended the batch, or held it.
    ended_by: str | None = None

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
    rows_ignored = property(lambda self: self.outcome.rows_ignored if self.outcome else 0)
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
