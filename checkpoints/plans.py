"""Plans of batches that are neither runs nor backfills; each is stored with exactly its own fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from windowmill.checkpoints.batches import Plan, told


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


#: Kinds of plan in this module, by action.
KINDS: Mapping[str, type[Plan]] = {kind.action: kind for kind in (RestatePlan,)}
