"""Plans of batches that are neither runs nor backfills; each is stored with exactly its own fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from windowmill.checkpoints.batches import Batch, FoundClosed, Plan, Undo, told
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END


class _ReplacingPlan(Plan):
    """A plan whose batch replaces the whole state, from which later batches go on."""

    __slots__ = ()

    @property
    def builds_state(self) -> bool:
        """As :attr:`Plan.builds_state`: always."""
        return True

    @property
    def replaces_state(self) -> bool:
        """As :attr:`Plan.replaces_state`: always."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RestatePlan(_ReplacingPlan):
    """The plan of a restatement: windows and state of some keys are computed anew from the source as it is at ``to_version``.

    Attributes
    ----------
    changed
        First and last version of the source whose changed rows say what is computed anew; null for everything.
    range_from, range_to
        Only windows that end in (``range_from``, ``range_to``] are shown anew; null for no bound.
    shown_after
        No window that ends at or before this instant has ever been shown, because the pipeline began with a backfill; null for none.
    late
        Whether rows that were quarantined as too late count from now on.
    """

    action: ClassVar[str] = "restate"

    changed: tuple[int, int] | None = None
    range_from: int | None = None
    range_to: int | None = None
    shown_after: int | None = None
    late: bool = False

    def describe(self, *, instants: bool) -> str:
        """As :meth:`Plan.describe`."""
        about = "rows quarantined as too late" if self.late else "all keys"
        if self.changed is not None:
            first, last = self.changed
            about = f"rows changed by source version{f's {first} to {last}' if first < last else f' {first}'}"
        bounds = [
            f"{word} {told(at, instants=instants)}"
            for word, at in (("after", self.range_from), ("through", self.range_to))
            if at is not None
        ]
        within = f", of windows that end {' '.join(bounds)}" if bounds else ""
        return f"restatement for {about}{within}, from the source at version {self.to_version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyPlan(_ReplacingPlan):
    """The plan of a batch that carries out a changed spec: it replaces the whole state, and stays where the last run has come to.

    Attributes
    ----------
    read_from
        The version after which it reads the source, through ``to_version``: what earlier batches have read, or nothing.
    fills
        Names of the windows whose rows it publishes. They replace the rows that the sink has of these windows.
    history
        It publishes the windows that end after this instant; null for none.
    found_closed
        As :attr:`BackfillPlan.found_closed`.
    carried
        What the spec meant that the stored state is of, as :attr:`Plan.definition`, where the batch makes the new state of that; null
        where it reads the source.
    needed_from
        Files of the source whose event times all lie before this instant are not read; null for none.
    """

    action: ClassVar[str] = "apply"

    read_from: int
    fills: tuple[str, ...] = ()
    history: int | None = None
    found_closed: FoundClosed = field(default_factory=list)
    carried: dict[str, object] | None = None
    needed_from: int | None = None

    @property
    def rereads(self) -> bool:
        """As :attr:`Plan.rereads`: always."""
        return True

    @property
    def reads_from(self) -> int:
        """As :attr:`Plan.reads_from`."""
        return self.read_from

    @property
    def replaced(self) -> tuple[int, int] | None:
        """The window ends (begin, end] whose rows of the windows ``fills`` are replaced; null for none."""
        return None if self.history is None or not self.fills else (self.history, AXIS_END)

    def describe(self, *, instants: bool) -> str:
        """As :meth:`Plan.describe`."""
        what = "a changed spec: carries the state over" if self.carried is not None else "a changed spec: builds the state anew"
        if self.history is not None and self.fills:
            since = "" if self.history == AXIS_BEGIN else f" that end after {told(self.history, instants=instants)}"
            what += f", fills windows {', '.join(self.fills)}{since}"
        return f"{what}, reads nothing of the source" if self.carried is not None else f"{what}, from {self._versions()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan(_ReplacingPlan):
    """The plan of a restoration, which goes back to a savepoint. ``to_version`` is the savepoint's, before ``from_version``.

    Attributes
    ----------
    savepoint
        Its name.
    kept_batch
        The newest batch that counts afterwards.
    spared
        Backfills after it, whose rows of windows that end at or before ``through`` stay: these have been published before.
    totals
        Sums over the batches that count, as of :class:`.Totals`.
    """

    action: ClassVar[str] = "restore"

    savepoint: str
    kept_batch: int
    spared: list[int] = field(default_factory=list)
    through: int | None = None
    totals: dict[str, int] = field(default_factory=dict)

    @property
    def goes_back(self) -> bool:
        """As :attr:`Plan.goes_back`: always."""
        return True

    def undo(self, role: str) -> Undo:
        """Which rows go from the table with this ``role``."""
        return Undo(self.kept_batch, tuple(self.spared) if role == "sink" else (), self.through)

    def describe(self, *, instants: bool) -> str:  # noqa: ARG002 - it names no instants
        """As :meth:`Plan.describe`."""
        return f"back to the savepoint {self.savepoint} of batch {self.kept_batch}, at source version {self.to_version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgePlan(Plan):
    """The plan of a purge, which takes all that is known of some keys out of the pipeline's tables. It does not name the keys.

    It passes over the versions of the source through ``to_version``, which have only removed rows of these keys, or which the spec ignores.

    Attributes
    ----------
    columns
        The key columns whose values choose the keys.
    keys
        Number of these values.
    """

    action: ClassVar[str] = "purge"

    columns: tuple[str, ...]
    keys: int

    @property
    def builds_state(self) -> bool:
        """As :attr:`Plan.builds_state`: the state is that of the source without these keys."""
        return True

    def describe(self, *, instants: bool) -> str:  # noqa: ARG002 - it names no instants
        """As :meth:`Plan.describe`."""
        removed = ""
        if self.to_version > self.from_version:
            removed = f", whose rows are gone from the source since version {self.to_version}"
        return f"purge of {self.keys:,} key{'' if self.keys == 1 else 's'}, by {', '.join(self.columns)}{removed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldPlan(Plan):
    """The plan of a batch that removes rows of windows which newer revisions have superseded, or which are retracted.

    Attributes
    ----------
    through
        The last batch whose rows are folded: as the table stood after it, or later, the latest view is what it was.
    """

    action: ClassVar[str] = "fold"

    through: int

    @property
    def builds_state(self) -> bool:
        """As :attr:`Plan.builds_state`: never."""
        return False

    def describe(self, *, instants: bool) -> str:  # noqa: ARG002 - it names no instants
        """As :meth:`Plan.describe`."""
        return f"folds the revisions of batches through {self.through}"


#: Kinds of plan in this module, by action.
KINDS: Mapping[str, type[Plan]] = {kind.action: kind for kind in (RestatePlan, ApplyPlan, RestorePlan, PurgePlan, FoldPlan)}


def standing(batches: Iterable[Batch], *, restorations: bool = False) -> list[Batch]:
    """The committed among all ``batches`` of a ledger, oldest first, that no restoration has undone; with ``restorations``, or without."""
    left: list[Batch] = []
    for batch in batches:
        if batch.status != "committed":
            continue
        if isinstance(batch.plan, RestorePlan):
            kept = batch.plan.kept_batch
            left = [earlier for earlier in left if earlier.number <= kept]
        left.append(batch)
    return [batch for batch in left if restorations or not isinstance(batch.plan, RestorePlan)]
