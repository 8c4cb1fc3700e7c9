"""Cumulative windows: ``type: cumulative``."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import model_validator

from windowmill.windowing.axis import WindowGrid
from windowmill.windowing.costs import Shape
from windowmill.windowing.fields import Instant, PositiveDuration, Zone
from windowmill.windowing.windows.base import Spacing
from windowmill.windowing.windows.grid_rules import GridRules
from windowmill.windowing.windows.registry import register
from windowmill.windowing.windows.ruled import RuledWindow

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline


@register
class Cumulative(RuledWindow):
    """Windows of step, 2·step … size that share their start."""

    type: Literal["cumulative"]
    size: PositiveDuration
    step: PositiveDuration
    origin: Instant | None = None
    timezone: Zone | None = None

    hop_field: ClassVar[str] = "step"

    @model_validator(mode="after")
    def _whole_steps(self) -> Self:
        size, step = (self.size.months, self.size.elapsed() if not self.size.months else 0), self.step
        if step.months or self.size.months:
            whole = bool(step.months) and not self.size.months % step.months and not (step.days or step.ticks or size[1])
        else:
            whole = size[1] % step.elapsed() == 0
        if not whole:
            raise ValueError(f"expected size to be a whole number of steps; {self.size} is not a multiple of {step}")
        return self

    def rules(self) -> GridRules:
        return GridRules(self.size, hop=self.size, step=self.step, origin=self.origin, timezone=self.timezone)

    def describe(self) -> str:
        return f"cumulative: {self.size}, in steps of {self.step}"

    def shape(self, pipeline: Pipeline) -> Shape:
        return self.rules().shape(pipeline, f"the rows of {self.step} to {self.size}", f"those of {self.step}")

    def spacing(self) -> Spacing:
        return Spacing(f"up to {self.size} in steps of {self.step}", self.size, self.step)

    def grid(self) -> WindowGrid:
        return self.rules().grid()
