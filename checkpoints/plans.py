"""Plans of batches that are neither runs nor backfills; each is stored with exactly its own fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from windowmill.checkpoints.batches import FoundClosed, Plan, told
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END


@dataclass(frozen=True, slots=True, kw_only=True)
class RestatePlan(Plan):
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

    @property
    def builds_state(self) -> bool:
        """As :attr:`Plan.builds_state`: later batches go on from it."""
        return True

    @property
    def replaces_state(self) -> bool:
        """As :attr:`Plan.replaces_state`: always."""
        return True

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
class ApplyPlan(Plan):
    """The plan of a batch that carries out a changed spec: it builds the whole state anew, and stays where the last run has come to.

    Attributes
    ----------
    read_from
        The version after which it reads the source, through ``to_version``: what earlier batches have read.
    fills
        Names of the windows whose rows it publishes. They replace the rows that the sink has of these windows.
    history
        It publishes the windows that end after this instant; null for none.
    found_closed
        As :attr:`BackfillPlan.found_closed`.
    """

    action: ClassVar[str] = "apply"

    read_from: int
    fills: tuple[str, ...] = ()
    history: int | None = None
    found_closed: FoundClosed = field(default_factory=list)

    @property
    def builds_state(self) -> bool:
        """As :attr:`Plan.builds_state`: always."""
        return True

    @property
    def replaces_state(self) -> bool:
        """As :attr:`Plan.replaces_state`: always."""
        return True

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
        what = "a changed spec: builds the state anew"
        if self.history is not None and self.fills:
            since = "" if self.history == AXIS_BEGIN else f" that end after {told(self.history, instants=instants)}"
            what += f", fills windows {', '.join(self.fills)}{since}"
        return f"{what}, from {self._versions()}"


#: Kinds of plan in this module, by action.
KINDS: Mapping[str, type[Plan]] = {kind.action: kind for kind in (RestatePlan, ApplyPlan)}
