"""Batches as the ledger's records store them: plans, outcomes, and the files of their tables.

A plan says what each kind of batch will do. It is pinned before any work, and stored with exactly its own fields.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa
from deltalake import Schema

from windowmill.checkpoints.data_files import DataFile, stored_type
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END, from_us
from windowmill.windowing.bounds import PRINTABLE
from windowmill.windowing.counts import OPTIONAL, Counts, Totals

if TYPE_CHECKING:
    from windowmill.windowing.watermark import LatenessRule

#: For each earlier batch, the last source version that it read, and the instant through which windows were closed to its rows.
FoundClosed = list[tuple[int, int | None]]


class _Kinds(ABC):
    """Properties that distinguish kinds of plans; a plan has these values unless its kind has them as fields."""

    __slots__ = ()

    #: Name of the kind of plan in messages, JSON and the ledger.
    action: ClassVar[str]
    #: Whether it is a run, which reads what is new and publishes windows for the first time.
    advances: ClassVar[bool] = False
    #: Whether it computes windows from the source's history: attempts share what is finished, and savepoints need what it replaces.
    recomputes: ClassVar[bool] = False
    #: Whether it publishes only windows that differ from what the sink shows.
    restates: ClassVar[bool] = False
    changes_spec: ClassVar[bool] = False
    purges: ClassVar[bool] = False
    #: Whether the latest view stays as it is, whatever rows go.
    keeps_view: ClassVar[bool] = False

    #: Whether the batch builds the state, as every run does, and a backfill that is the first batch, or counts other rows than before.
    builds_state: bool = True
    #: As of :class:`RunPlan`, :class:`RestatePlan`, :class:`ApplyPlan` and :class:`RestorePlan`.
    interval_end: int | None = None
    files: Sequence[str] = ()
    fills: tuple[str, ...] = ()
    history: int | None = None
    redefined: tuple[str, ...] = ()
    carried: dict[str, object] | None = None
    needed_from: int | None = None
    keeps: tuple[str, ...] = ()
    keeps_gaps: tuple[int, ...] = ()
    kept_from: dict[str, object] | None = None
    reads_others: bool = False
    rejudges: bool = False
    of_published: bool = False
    kept_batch: int | None = None
    spared: Sequence[int] = ()

    def recomputes_end(self, end: int) -> bool:  # noqa: ARG002 - runs compute what no earlier batch has
        """Whether it computes all windows again that end there."""
        return False

    def brings_up_to_date(self, lookup: str) -> bool:  # noqa: ARG002 - only restatements may
        """Whether all windows reflect the version of a looked-up table that the plan reads."""
        return False

    @abstractmethod
    def describe(self, *, instants: bool) -> str:
        """What the batch does, for messages; ``instants`` says whether the axis is time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_Kinds):
    """What a batch will do, pinned before any work: what all kinds of batches have in common."""

    #: Number of the batch in the pipeline's life, from 0; also the version of its Delta transactions.
    batch: int
    #: The attempt at this batch, whose data files have it in their names; 12 hexadecimal digits. Each plan is a new attempt.
    attempt: str
    #: Identity of this ledger. A recreated ledger gets a new one, so that it cannot continue the Delta transactions of the old one.
    generation: str
    #: Delta id of the source table, and the range of versions (from, to] to read; from −1 is the beginning.
    source_id: str
    from_version: int
    to_version: int
    #: Wall-clock time of the run, against which ``max_future_skew`` is measured.
    now_us: int
    #: Hash of the part of the spec that determines the result.
    meaning: str
    #: The source's Delta schema (JSON) at ``to_version``.
    source_schema: str
    #: Greatest event time of the rows in all earlier batches; null for the first batch.
    seen: int | None = None
    #: Every window that ends at or before this instant has been emitted.
    emitted: int | None = None
    #: The watermark before the batch where other settings of time have moved it; null where it follows from ``emitted``.
    watermark: int | None = field(default=None, metadata=OPTIONAL)
    #: The instant through which windows have been shown where this follows neither from ``watermark`` nor from ``emitted``.
    shown: int | None = field(default=None, metadata=OPTIONAL)
    windowmill: str = ""
    #: Version whose table snapshot is read. Its rows count as arrived in event-time order, so none of them is late. It may be greater than
    #: ``to_version`` if later versions rewrote files, or, in a backfill, changed rows. Null if all rows arrived in log order.
    snapshot: int | None = None
    #: SHA-256 of each user module that the spec names.
    modules: dict[str, str] = field(default_factory=dict)
    #: Version of the time zone data that the windows use.
    tzdata: str | None = None
    #: Digest of each of these zones' offsets from UTC through ``now_us``.
    zones: dict[str, str] = field(default_factory=dict)
    #: Identifies the source's commit of ``to_version``: a copy that has diverged has another mark; null if unknown.
    source_mark: str | None = None
    #: Tables that it looks up, by name of the lookup: Delta id and version, or of a folder a digest of its list of files.
    lookups: dict[str, dict[str, Any]] = field(default_factory=dict, metadata=OPTIONAL)
    #: Of a source that is another pipeline, its name as ``pipeline``, and its first and last batch that are covered as ``batches``.
    upstream: dict[str, Any] = field(default_factory=dict, metadata=OPTIONAL)
    #: Name of the pipeline.
    pipeline: str = ""
    #: What the spec means, with variables as written. Shows what has changed where ``meaning`` differs.
    definition: dict[str, object] = field(default_factory=dict)

    @property
    def replaces_state(self) -> bool:
        """Whether the batch reads no state, and replaces the existing state by the one that it builds."""
        return False

    @property
    def remembers(self) -> bool:
        """Whether the batch remembers the rows that it applies, so that later ones with their ids are duplicates."""
        return self.builds_state

    @property
    def rereads(self) -> bool:
        """Whether earlier batches have read the same rows, and quarantined those that did not count."""
        return not self.builds_state

    @property
    def reads_from(self) -> int:
        return self.from_version

    def watermark_by(self, rule: LatenessRule) -> int:
        """The watermark that earlier batches have reached, given the ``rule`` of the batch's spec."""
        return rule.watermark_of(self.emitted) if self.watermark is None else self.watermark

    def shown_by(self, rule: LatenessRule) -> int | None:
        """The instant through which earlier batches have shown windows, except those with policies; null if they have shown none."""
        if self.shown is not None or self.emitted is None:
            return self.shown
        return self.watermark_by(rule) if rule.revises else self.emitted

    @property
    def recounts(self) -> bool:
        """Whether it counts rows of the source instead of those that earlier batches have counted."""
        return self.replaces_state and not self.changes_spec

    @property
    def goes_back(self) -> bool:
        """Whether the batch returns position and progress to earlier values."""
        return self.kept_batch is not None

    @property
    def shown_since(self) -> int:
        """The first batch as of which the sink can still be read once this batch has removed rows."""
        return self.batch

    @property
    def range(self) -> tuple[int, int] | None:
        """The window ends (begin, end] that a backfill recomputes; null for any other batch."""
        return None

    @property
    def replaced(self) -> tuple[int, int] | None:
        """The window ends (begin, end] whose rows are replaced, if the plan alone determines them."""
        return None

    @property
    def found_closed(self) -> FoundClosed | None:
        """Which windows were closed when earlier batches read the same rows (:attr:`BackfillPlan.found_closed`); null for new rows."""
        return None

    @property
    def leaves_through(self) -> int | None:
        """The instant through which a restatement of what another pipeline has corrected leaves published windows; null for any other."""
        return None

    @property
    def passes_over(self) -> bool:
        """Whether it reads unread versions even if they changed rows: the rows that they removed cannot be read any more."""
        return False

    def totals_after(self, before: Totals, counts: Counts) -> Totals:
        """The totals ``before`` the batch plus its published ``counts``; rows that earlier batches have read count once."""
        new = counts if self.builds_state and not self.replaces_state else Counts(windows=counts.windows)
        return Totals(before.batches + 1, before.backfills + (self.range is not None), before.counts + new)

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
    """The plan of a run, which advances the pipeline."""

    action: ClassVar[str] = "run"
    advances: ClassVar[bool] = True

    #: End of the data interval, up to which the orchestrator guarantees complete input (``watermark: data_interval_end``).
    interval_end: int | None = None

    def describe(self, *, instants: bool) -> str:  # noqa: ARG002 - a run names no instants
        return self._versions() if self.to_version > self.from_version else "no new rows, a later watermark"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillPlan(Plan):
    """The plan of a backfill, which recomputes the windows that end in (``range_from``, ``range_to``]."""

    action: ClassVar[str] = "backfill"
    recomputes: ClassVar[bool] = True

    range_from: int
    range_to: int
    # A bare annotation would take the inherited value for its default.
    #: Whether this is the pipeline's very first batch, or replaces the state, as it counts other rows than earlier batches.
    builds_state: bool = field()
    #: With ``watermark: data_interval_end``: one pair for each earlier batch, oldest first. It holds the last source version that the batch
    #: read, and the instant through which windows were already closed to its rows; null if none were.
    found_closed: FoundClosed = field(default_factory=list)
    #: If it replaces the state: the version after which it reads the source, through ``to_version``. Then it recomputes all windows that
    #: end after ``range_from``, and advances no further than the last run. Null for any other backfill.
    read_from: int | None = None

    @property
    def replaces_state(self) -> bool:
        return self.read_from is not None

    @property
    def replaced(self) -> tuple[int, int] | None:
        return (self.range_from, AXIS_END) if self.replaces_state else None

    @property
    def rereads(self) -> bool:
        return self.replaces_state or not self.builds_state

    @property
    def reads_from(self) -> int:
        return self.from_version if self.read_from is None else self.read_from

    @property
    def range(self) -> tuple[int, int]:
        return self.range_from, self.range_to

    def recomputes_end(self, end: int) -> bool:
        return self.range_from < end and (self.replaces_state or end <= self.range_to)

    def describe(self, *, instants: bool) -> str:
        begin, end = (format_instant(t, instants=instants) for t in self.range)
        return f"backfill of the windows that end after {begin} through {end}, from {self._versions()}"


class _ReplacingPlan(Plan):
    """A plan whose batch replaces the whole state; later batches continue from the new one."""

    __slots__ = ()

    replaces_state = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RestatePlan(_ReplacingPlan):
    """The plan of a restatement: windows and state of some keys are recomputed from the source as it is at ``to_version``."""

    action: ClassVar[str] = "restate"
    restates: ClassVar[bool] = True

    #: First and last version of the source whose changed rows decide what is recomputed; null to recompute everything.
    changed: tuple[int, int] | None = None
    #: Only windows that end in (``range_from``, ``range_to``] are published again; null for no bound.
    range_from: int | None = None
    range_to: int | None = None
    #: No window that ends at or before this instant was ever shown, because the pipeline began with a backfill; null if there is none.
    shown_after: int | None = None
    #: Whether rows that were quarantined as too late count from now on.
    late: bool = False
    #: Files of a folder that were delivered again, or taken away, and are read as they are now.
    files: list[str] = field(default_factory=list)
    #: Name of the lookup whose changed table decides what is recomputed; null for none.
    lookup: str | None = field(default=None, metadata=OPTIONAL)
    #: Of looked-up tables, by name of the lookup: first and last version that published windows may not reflect.
    lookups_changed: dict[str, list[int]] = field(default_factory=dict, metadata=OPTIONAL)

    @property
    def found_closed(self) -> FoundClosed:
        return []

    def brings_up_to_date(self, lookup: str) -> bool:
        whole = self.range_from is None and self.range_to is None
        return whole and (self.lookup == lookup or (self.changed is None and not self.late and not self.files and self.lookup is None))

    @property
    def passes_over(self) -> bool:
        return self.changed is None and not self.files and self.to_version > self.from_version

    @property
    def leaves_through(self) -> int | None:
        # One that the user asks for reads versions that have been read.
        return self.range_from if self.upstream and self.changed is not None and self.to_version > self.from_version else None

    def recomputes_end(self, end: int) -> bool:
        within = (self.range_from is None or self.range_from < end) and (self.range_to is None or end <= self.range_to)
        return within and self.changed is None and not self.late and self.lookup is None

    def describe(self, *, instants: bool) -> str:
        about = f"the files {', '.join(self.files)}" if self.files else "rows quarantined as too late" if self.late else "all keys"
        if self.changed is not None:
            about = f"rows changed by source version{_in_words(self.changed)}"
        if self.lookup is not None:
            first, last = self.lookups_changed[self.lookup]
            about = f"rows that look up what changed in {self.lookup}, by its version{_in_words((first, last))}"
        ends = (("after", self.range_from), ("through", self.range_to))
        bounds = [f"{word} {format_instant(at, instants=instants)}" for word, at in ends if at is not None]
        within = f", of windows that end {' '.join(bounds)}" if bounds else ""
        return f"restatement for {about}{within}, from the source at version {self.to_version}"


def _in_words(versions: tuple[int, int]) -> str:
    """The end of a phrase that names these versions, the first and the last."""
    first, last = versions
    return f"s {first} to {last}" if first < last else f" {first}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyPlan(_ReplacingPlan):
    """The plan of a batch that carries out a changed spec: it replaces the whole state, and keeps the last run's position and progress."""

    action: ClassVar[str] = "apply"
    recomputes: ClassVar[bool] = True
    changes_spec: ClassVar[bool] = True

    #: The version after which it reads the source, through ``to_version``: what earlier batches have read, or nothing.
    read_from: int
    #: Names of the windows whose rows it publishes. They replace the rows that the sink has of these windows.
    fills: tuple[str, ...] = ()
    #: It publishes the windows that end after this instant; null if it publishes none.
    history: int | None = None
    #: Windows and aggregates, as ``windows.NAME``, that meant something else before, if only by the value of a variable or by code.
    redefined: tuple[str, ...] = ()
    #: As :attr:`BackfillPlan.found_closed`.
    found_closed: FoundClosed = field(default_factory=list)
    #: Meaning of the stored state, as :attr:`Plan.definition`, from which the batch makes the new state; null if it reads the source.
    carried: dict[str, object] | None = None
    #: Files of the source whose event times all lie before this instant are not read; null to read all.
    needed_from: int | None = None
    #: If it reads the source, the layouts whose windows all stay: their stored state is kept.
    keeps: tuple[str, ...] = ()
    #: Gaps of the sessions that stay, if others do not: their stored state stays, too.
    keeps_gaps: tuple[int, ...] = ()
    #: As :attr:`Plan.definition`, what the kept state means; null if nothing is kept.
    kept_from: dict[str, object] | None = None
    #: Whether it reads rows that earlier batches have left out, or other values of rows, by another filter or other steps.
    reads_others: bool = False
    #: Whether all windows get the rows that its settings of time would have given from the beginning.
    rejudges: bool = field(default=False, metadata=OPTIONAL)
    #: Whether the rows of the windows that it fills are the published ones, of which only expressions over a row are computed again.
    of_published: bool = field(default=False, metadata=OPTIONAL)

    @property
    def remembers(self) -> bool:
        return self.reads_others or self.rejudges

    @property
    def rereads(self) -> bool:
        return True

    @property
    def reads_from(self) -> int:
        return self.read_from

    @property
    def replaced(self) -> tuple[int, int] | None:
        return None if self.history is None or not self.fills else (self.history, AXIS_END)

    def describe(self, *, instants: bool) -> str:
        what = "a changed spec: carries the state over" if self.carried is not None else "a changed spec: rebuilds the state"
        if self.history is not None and self.fills:
            since = "" if self.history == AXIS_BEGIN else f" that end after {format_instant(self.history, instants=instants)}"
            what += f", fills windows {', '.join(self.fills)}{since}{' from their published rows' if self.of_published else ''}"
        return f"{what}, reads nothing of the source" if self.carried is not None else f"{what}, from {self._versions()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan(_ReplacingPlan):
    """The plan of a restoration, which goes back to a savepoint. ``to_version`` is the savepoint's, before ``from_version``."""

    action: ClassVar[str] = "restore"

    #: Its name.
    savepoint: str
    #: The newest batch that counts afterwards, as all later ones are undone.
    kept_batch: int = field()
    #: Later backfills whose rows of windows that end at or before ``through`` stay, because these windows were published before.
    spared: list[int] = field(default_factory=list)
    through: int | None = None
    #: Sums over the batches that count.
    totals: Totals = field(default_factory=Totals)

    def totals_after(self, before: Totals, counts: Counts) -> Totals:  # noqa: ARG002 - it publishes no rows
        return Totals(before.batches + 1, before.backfills, replace(self.totals.counts, windows=before.counts.windows))

    def describe(self, *, instants: bool) -> str:  # noqa: ARG002 - it names no instants
        return f"back to the savepoint {self.savepoint} of batch {self.kept_batch}, at source version {self.to_version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgePlan(Plan):
    """The plan of a purge, which removes all data of some keys from the pipeline's tables. It does not name the keys.

    It skips the versions of the source through ``to_version``: they only removed rows of these keys, or the spec ignores them.
    """

    action: ClassVar[str] = "purge"
    purges: ClassVar[bool] = True

    #: The key columns whose values choose the keys.
    columns: tuple[str, ...]
    #: Number of these values.
    keys: int
    #: Whether versions that the spec ignores have changed rows of other keys, too, or may have.
    ignores_others: bool = False

    @property
    def shown_since(self) -> int:
        return 0  # what it removes must not come back by time travel, and rows of other keys are as they were

    def describe(self, *, instants: bool) -> str:  # noqa: ARG002 - it names no instants
        removed = f", whose rows are gone from the source since version {self.to_version}" if self.to_version > self.from_version else ""
        return f"purge of {self.keys:,} key{'' if self.keys == 1 else 's'}, by {', '.join(self.columns)}{removed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldPlan(Plan):
    """The plan of a batch that removes rows of windows which newer revisions have superseded, or which are retracted."""

    action: ClassVar[str] = "fold"
    keeps_view: ClassVar[bool] = True

    builds_state = False

    #: The last batch whose rows are folded; the latest view as of this or a later batch does not change.
    through: int

    @property
    def shown_since(self) -> int:
        return self.through

    def describe(self, *, instants: bool) -> str:  # noqa: ARG002 - it names no instants
        return f"folds the revisions of batches through {self.through}"


#: Kinds of plan, by action.
KINDS: Mapping[str, type[Plan]] = {
    kind.action: kind for kind in (RunPlan, BackfillPlan, RestatePlan, ApplyPlan, RestorePlan, PurgePlan, FoldPlan)
}


def format_instant(instant: int, *, instants: bool) -> str:
    """An instant on the axis for messages; ``instants`` says whether the axis is time."""
    return f"{from_us(min(max(instant, PRINTABLE[0]), PRINTABLE[1])):%Y-%m-%d %H:%M}" if instants else str(instant)


Status = Literal["held", "committed", "abandoned"]


@dataclass(frozen=True, slots=True)
class Changes:
    """What a batch changes in one table, by one commit."""

    #: Files of new rows.
    adds: tuple[DataFile, ...] = ()
    #: Files with rows that no rule judges: those of removed files that stay (a backfill), retracted windows (a restatement).
    kept: tuple[DataFile, ...] = ()
    #: Paths of the files that ``adds`` and ``kept`` replace, as the table names them.
    #: Without ``replaces`` these are all files, or of the remembered rows those that have expired or are merged.
    removes: tuple[str, ...] = ()
    #: Range (begin, end] of window ends whose rows are replaced; all of the axis for all rows; null to append.
    replaces: tuple[int, int] | None = None
    #: The table's schema (Delta JSON), from which it is made, or widened. Null in a record if the table had all columns.
    schema: str | None = None
    #: Names of the windows whose rows in the range ``replaces`` are replaced; null for all.
    windows: tuple[str, ...] | None = None
    #: Whether columns are added to a sink that lacks some. Other tables of a pipeline are always widened.
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
        stored = pa.schema([pa.field(field.name, stored_type(field.type)) for field in schema])
        return cls(tuple(adds), tuple(kept), tuple(removes), replaces, Schema.from_arrow(stored).to_json(), windows, widens)

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The files that the commit adds."""
        return self.adds + self.kept

    @property
    def digest(self) -> str:
        """Digest of the files that the commit adds (:func:`digest_of`)."""
        return digest_of(identity_of({"path": file.path}) for file in self.files)


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
    """The last write to one of the pipeline's own tables; the next batch verifies the table against it."""

    #: The batch that last wrote to the table.
    batch: int
    #: Delta id of the table, and the version that the commit created.
    table_id: str
    version: int
    #: Digest of the files added; null if others have changed the table since, and the user has accepted it.
    digest: str | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a batch."""

    #: Greatest event time so far, and the instant through which all windows are in the sink; null for none.
    seen: int | None
    emitted: int | None
    #: The verdict of its validation, or of the ruling on it.
    verdict: str
    #: Its rows, as they were computed.
    counts: Counts = field(default_factory=Counts)
    #: Seconds by step.
    timings: dict[str, float] = field(default_factory=dict)
    #: The engine of the batch: ``{"engine": "local"}``, or Spark's application with its numbers of jobs, stages, tasks and executors.
    compute: dict[str, Any] = field(default_factory=dict)
    #: ``processor_seconds`` (of the client alone as ``client_processor_seconds``), ``bytes_read`` of the source's files, ``bytes_written``,
    #: and the ``state_bytes`` after the batch.
    used: dict[str, float] = field(default_factory=dict)
    #: By role, the last write to that table by the batches before this one; this batch's own commits are made after the record, and found
    #: by their transactions.
    written: dict[str, LastWrite] = field(default_factory=dict)
    #: As of :class:`Plan`, after the batch.
    watermark: int | None = field(default=None, metadata=OPTIONAL)
    shown: int | None = field(default=None, metadata=OPTIONAL)

    def watermark_by(self, rule: LatenessRule) -> int:
        """The watermark that has been reached, given the ``rule`` of the batch's spec."""
        return rule.watermark_of(self.emitted) if self.watermark is None else self.watermark

    @property
    def published_counts(self) -> Counts:
        """Its rows, without result rows if these are not published: the batch is held, discarded or abandoned."""
        return replace(self.counts, windows={}) if self.verdict in ("held", "discarded", "abandoned") else self.counts


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch as ``history`` shows it: its plan, its outcome so far, and the files of its tables."""

    plan: Plan
    outcome: Outcome
    status: Status
    #: When it was recorded; if it was held, when it was last ruled on.
    ended_at: datetime
    #: The changes of the batch's tables, by role; if they have many files, only the ``manifest`` has them.
    changes: Mapping[str, Changes] = field(default_factory=dict)
    #: Name and digest of the file that holds the changes; null if the record does.
    manifest: tuple[str, str] | None = None
    #: Changes of the quality table by later validations of a held batch, oldest first.
    validations: Sequence[Changes] = ()
    #: How often a validation has held it.
    holds: int = 0
    integer_axis: bool = False
    #: Who released, discarded or abandoned it, or approved the change of the spec that it carries out; null if nobody was named.
    ruled_by: str | None = None

    number = property(lambda self: self.plan.batch)
    action = property(lambda self: self.plan.action)
    from_version = property(lambda self: self.plan.from_version)
    to_version = property(lambda self: self.plan.to_version)
    attempt = property(lambda self: self.plan.attempt)
    verdict = property(lambda self: self.outcome.verdict)
    planned_at = property(lambda self: from_us(self.plan.now_us))
    committed_at = property(lambda self: self.ended_at if self.status == "committed" else None)

    @property
    def counts(self) -> Counts:
        return self.outcome.published_counts

    @property
    def left_out(self) -> tuple[str, ...]:
        """Roles of the tables that ``discarded`` leaves unchanged: also those of state, if the batch is to replace it to fit past rows."""
        if self.verdict != "discarded":
            return ()
        return ("sink", "current", "state", "seen") if self.is_backfill and self.plan.replaces_state else ("sink", "current")

    @property
    def is_backfill(self) -> bool:
        return self.plan.range is not None

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


def undone_of(batches: Iterable[Batch]) -> frozenset[int]:
    """Numbers of those of ``batches``, which have no gaps, that a later one of them, such as a restoration, has undone."""
    listed = list(batches)
    counting = {batch.number for batch in effective_batches(listed, restorations=True)}
    return frozenset(batch.number for batch in listed if batch.status == "committed" and batch.number not in counting)


def effective_batches(batches: Iterable[Batch], *, restorations: bool = False, in_sink: bool = False) -> list[Batch]:
    """The committed ``batches`` of a ledger that no restoration has undone, oldest first; with ``restorations``, or without.

    With ``in_sink`` also the undone backfills of which rows have stayed in the sink.
    """
    left: list[Batch] = []
    for batch in batches:
        if batch.status != "committed":
            continue
        if (kept := batch.plan.kept_batch) is not None:
            stay = batch.plan.spared if in_sink else ()
            left = [earlier for earlier in left if earlier.number <= kept or earlier.number in stay]
        left.append(batch)
    return [batch for batch in left if restorations or not batch.plan.goes_back]


def state_plans(batches: Iterable[Batch]) -> list[Plan]:
    """The plans of those of ``batches`` that count, oldest first, which build the state."""
    return [batch.plan for batch in effective_batches(batches) if batch.plan.builds_state]
