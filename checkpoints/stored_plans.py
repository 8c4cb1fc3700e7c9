"""The stored form of a plan: the same flat JSON object for a run and a backfill."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

from windowmill.checkpoints.batches import BackfillPlan, Plan, RunPlan

_COMMON = tuple(common.name for common in fields(Plan))


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """The fields of a stored plan, in their stored order. A field that only the other kind of plan has holds its default."""

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
    builds_state: bool = True
    windowmill: str = ""
    snapshot: int | None = None
    modules: dict[str, str] = field(default_factory=dict)
    tzdata: str | None = None
    zones: dict[str, str] = field(default_factory=dict)
    source_mark: str | None = None
    pipeline: str = ""
    definition: dict[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan) -> StoredPlan:
        """The stored form of ``plan``."""
        own = {one.name: getattr(plan, one.name) for one in fields(plan)}
        return cls(**own | {"action": plan.action, "builds_state": plan.builds_state})

    def plan(self) -> Plan:
        """The plan that was stored; raises ``ValueError`` if its fields contradict its action."""
        common = {name: getattr(self, name) for name in _COMMON}
        if self.action == RunPlan.action:
            if self.range_from is not None or self.range_to is not None or self.found_closed or not self.builds_state:
                raise ValueError("is a run with fields of a backfill")
            return RunPlan(**common, interval_end=self.interval_end)
        if self.interval_end is not None:
            raise ValueError("is a backfill with the data interval of a run")
        if self.range_from is None or self.range_to is None:
            raise ValueError("is a backfill without a range of window ends")
        return BackfillPlan(
            **common,
            range_from=self.range_from,
            range_to=self.range_to,
            found_closed=self.found_closed,
            builds_state=self.builds_state,
        )
