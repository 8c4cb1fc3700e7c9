"""Windows that a user's function tells: ``type: custom``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from windowmill.windowing.costs import Shape
from windowmill.windowing.windows.base import Window
from windowmill.windowing.windows.registry import register

if TYPE_CHECKING:
    from windowmill.windowing.reference.events import Course, Event, Tally, WindowResult
    from windowmill.windowing.slicing.leaves import Slicer
    from windowmill.windowing.spec import Pipeline


@register
class Custom(Window):
    """Deterministic windows given by a function from record to (windows beginning, windows ending) (Cutty)."""

    type: Literal["custom"]
    function: Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")]

    def slicer(self, pipeline: Pipeline) -> Slicer:
        from windowmill.windowing.imports import imported_for
        from windowmill.windowing.slicing.custom_slicer import CustomSlicer
        from windowmill.windowing.slicing.replay import CustomReplay
        from windowmill.windowing.slicing.revised_slicer import RevisedSlicer

        function = imported_for("function", self.function)
        if pipeline.emit == "revise":
            return RevisedSlicer(lambda times, cells: CustomReplay(times, function, cells.__getitem__), reads_cells=True)
        return CustomSlicer(function)

    def reference_rows(self, events: Sequence[Event], tally: Tally, course: Course) -> Iterator[WindowResult]:
        from windowmill.windowing.reference.event_windows import Customs, event_rows

        return event_rows(Customs(self), events, tally, course)

    def describe(self) -> str:
        return f"custom: {self.function}"

    def shape(self, pipeline: Pipeline) -> Shape:  # noqa: ARG002 - what the function keeps open is not known
        why = f"cut where {self.function} begins or ends a window"
        leaves, new = "the rows that the function gives it", "those since the window before"
        return Shape("custom", why, leaves, new, state="the rows of open windows")

    def reach(self) -> int:
        return 1  # windows begin at a row, and end a tick past one

    def functions(self) -> Mapping[str, str]:
        return {"function": self.function}

    @property
    def reads_whole_rows(self) -> bool:
        # Which columns its function looks at is not known.
        return True

    @property
    def ends_can_coincide(self) -> bool:
        # The function may close several windows at one event.
        return True
