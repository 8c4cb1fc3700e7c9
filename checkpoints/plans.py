"""Plans of batches: what each kind of batch will do, pinned before any work, and stored in the ledger with exactly its own fields."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END, from_us
from windowmill.windowing.counts import Counts, Totals

#: For each earlier batch, the last source version that it read, and the instant through which windows were closed to its rows.
FoundClosed = list[tuple[int, int | None]]


class _Kinds(ABC):
    """What distinguishes kinds of plans: where these are no fields of a kind, its plans have these values."""

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

    #: Whether the batch builds the state: every run does, a backfill as the first, or if it counts other rows than earlier batches.
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
    kept_batch: int | None = None

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
    #: Name of the pipeline.
    pipeline: str = ""
    #: What the spec means, with variables as written. Shows what has changed where ``meaning`` differs.
    definition: dict[str, object] = field(default_factory=dict)

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
        return self.from_version

    @property
    def recounts(self) -> bool:
        """Whether it counts rows of the source in place of those that earlier batches have counted."""
        return self.replaces_state and not self.changes_spec

    @property
    def goes_back(self) -> bool:
        """Whether position and progress after the batch are earlier ones."""
        return self.kept_batch is not None

    @property
    def shown_since(self) -> int:
        """The first batch as of which the sink still has all rows after this one has removed some."""
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
    def passes_over(self) -> bool:
        """Whether it takes up versions that no batch has read, whatever they changed, as rows that they removed are gone."""
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
    #: Where it replaces the state: the version after which it reads the source, through ``to_version``. It recomputes all windows that end
    #: after ``range_from`` then, and stays where the last run has come to. Null for any other backfill.
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

    def describe(self, *, instants: bool) -> str:
        begin, end = (format_instant(t, instants=instants) for t in self.range)
        return f"backfill of the windows that end after {begin} through {end}, from {self._versions()}"


class _ReplacingPlan(Plan):
    """A plan whose batch replaces the whole state, from which later batches go on."""

    __slots__ = ()

    replaces_state = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RestatePlan(_ReplacingPlan):
    """The plan of a restatement: windows and state of some keys are recomputed from the source as it is at ``to_version``."""

    action: ClassVar[str] = "restate"
    restates: ClassVar[bool] = True

    #: First and last version of the source whose changed rows say what is recomputed; null for everything.
    changed: tuple[int, int] | None = None
    #: Only windows that end in (``range_from``, ``range_to``] are published again; null for no bound.
    range_from: int | None = None
    range_to: int | None = None
    #: No window that ends at or before this instant has ever been shown, because the pipeline began with a backfill; null for none.
    shown_after: int | None = None
    #: Whether rows that were quarantined as too late count from now on.
    late: bool = False
    #: Files of a folder that were delivered again, or taken away, and are read as they are now.
    files: list[str] = field(default_factory=list)

    @property
    def found_closed(self) -> FoundClosed:
        return []

    @property
    def passes_over(self) -> bool:
        return self.changed is None and not self.files and self.to_version > self.from_version

    def describe(self, *, instants: bool) -> str:
        about = f"the files {', '.join(self.files)}" if self.files else "rows quarantined as too late" if self.late else "all keys"
        if self.changed is not None:
            first, last = self.changed
            about = f"rows changed by source version{f's {first} to {last}' if first < last else f' {first}'}"
        ends = (("after", self.range_from), ("through", self.range_to))
        bounds = [f"{word} {format_instant(at, instants=instants)}" for word, at in ends if at is not None]
        within = f", of windows that end {' '.join(bounds)}" if bounds else ""
        return f"restatement for {about}{within}, from the source at version {self.to_version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyPlan(_ReplacingPlan):
    """The plan of a batch that carries out a changed spec: it replaces the whole state, and stays where the last run has come to."""

    action: ClassVar[str] = "apply"
    recomputes: ClassVar[bool] = True
    changes_spec: ClassVar[bool] = True

    #: The version after which it reads the source, through ``to_version``: what earlier batches have read, or nothing.
    read_from: int
    #: Names of the windows whose rows it publishes. They replace the rows that the sink has of these windows.
    fills: tuple[str, ...] = ()
    #: It publishes the windows that end after this instant; null for none.
    history: int | None = None
    #: Windows and aggregates, as ``windows.NAME``, that meant something else before, if only by the value of a variable or by code.
    redefined: tuple[str, ...] = ()
    #: As :attr:`BackfillPlan.found_closed`.
    found_closed: FoundClosed = field(default_factory=list)
    #: As :attr:`Plan.definition`, what the stored state means where the batch makes the new one of it; null where it reads the source.
    carried: dict[str, object] | None = None
    #: Files of the source whose event times all lie before this instant are not read; null for none.
    needed_from: int | None = None
    #: Where it reads the source, the layouts whose windows all stay: it keeps their stored state.
    keeps: tuple[str, ...] = ()
    #: Of sessions that do not all stay, the gaps of those that do: what the state has stored of these stays, too.
    keeps_gaps: tuple[int, ...] = ()
    #: As :attr:`Plan.definition`, what the kept state means; null if nothing is kept.
    kept_from: dict[str, object] | None = None

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
            what += f", fills windows {', '.join(self.fills)}{since}"
        return f"{what}, reads nothing of the source" if self.carried is not None else f"{what}, from {self._versions()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan(_ReplacingPlan):
    """The plan of a restoration, which goes back to a savepoint. ``to_version`` is the savepoint's, before ``from_version``."""

    action: ClassVar[str] = "restore"

    #: Its name.
    savepoint: str
    #: The newest batch that counts afterwards, as all later ones are undone.
    kept_batch: int = field()
    #: Backfills after it, whose rows of windows that end at or before ``through`` stay: these have been published before.
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
    """The plan of a purge, which takes all that is known of some keys out of the pipeline's tables. It does not name the keys.

    It passes over the versions of the source through ``to_version``, which have only removed rows of these keys, or which the spec ignores.
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

    builds_state = False

    #: The last batch whose rows are folded: as the table stood after it, or later, the latest view is what it was.
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
    return f"{from_us(instant):%Y-%m-%d %H:%M}" if instants else str(instant)
