"""Windows that follow the rules of a grid or of policies."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from windowmill.windowing.windows.base import ColumnUse, Window
from windowmill.windowing.windows.grid_rules import GridRules
from windowmill.windowing.windows.policy_rules import PolicyRules

if TYPE_CHECKING:
    from windowmill.windowing.reference.events import Course, Event, Tally, WindowResult
    from windowmill.windowing.slicing.leaves import Slicer
    from windowmill.windowing.spec import Pipeline


class RuledWindow(Window):
    """A window that its rules describe but for what ``explain`` and the report say of its type."""

    @abstractmethod
    def rules(self) -> GridRules | PolicyRules:
        """The rules that its fields stand for."""

    def slicer(self, pipeline: Pipeline) -> Slicer:
        return self.rules().slicer(self, pipeline)

    def reference_rows(self, events: Sequence[Event], tally: Tally, course: Course) -> Iterator[WindowResult]:
        return self.rules().reference_rows(self, events, tally, course)

    @property
    def fills_gaps(self) -> bool:
        return self.empty == "emit" and isinstance(self.rules(), GridRules)

    @property
    def follows_policies(self) -> bool:
        return isinstance(self.rules(), PolicyRules)

    def partials_problem(self, where: str) -> str | None:
        return self.rules().partials_problem(self, where)

    def policies(self) -> PolicyRules:
        rules = self.rules()
        return rules if isinstance(rules, PolicyRules) else super().policies()

    def reach(self) -> int:
        return self.rules().reach()

    def windows_of_event(self, lasting: int = 1) -> int:
        return self.rules().windows_of_event(lasting)

    @property
    def counted_from(self) -> datetime | int | None:
        return self.rules().origin

    @property
    def zone(self) -> str | None:
        return self.rules().timezone

    def columns(self) -> Mapping[str, ColumnUse]:
        return self.rules().columns()

    def conditions(self) -> Mapping[str, str]:
        return self.rules().conditions()

    @property
    def numbers_triggers(self) -> bool:
        return self.rules().numbers_triggers
