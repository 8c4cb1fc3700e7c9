"""Hopping windows: ``type: hopping``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

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
class Hopping(RuledWindow):
    """One window of ``size`` every ``hop``, counted from ``origin``."""

    type: Literal["hopping"]
    size: PositiveDuration
    hop: PositiveDuration
    origin: Instant | None = None
    timezone: Zone | None = None

    def rules(self) -> GridRules:
        return GridRules(self.size, self.hop, origin=self.origin, timezone=self.timezone)

    def describe(self) -> str:
        """Its type and lengths in a few words.

        Examples
        --------
        >>> Hopping(name="day", type="hopping", size="24 hours", hop="5 minutes").describe()
        'hopping: 24 hours, every 5 minutes'
        """
        return f"hopping: {self.size}, every {self.hop}"

    def shape(self, pipeline: Pipeline) -> Shape:
        alone = not (self.size.months or self.hop.months) and self.hop.elapsed() >= self.size.elapsed()
        new = "all of them" if alone else f"those of {self.hop}"
        return self.rules().shape(pipeline, f"the rows of {self.size}", new, alone=alone)

    def spacing(self) -> Spacing:
        return Spacing(f"{self.size} every {self.hop}", self.size, self.hop)

    def grid(self) -> WindowGrid:
        return self.rules().grid()

    @property
    def ends_can_coincide(self) -> bool:
        # 29, 30 and 31 January plus a month are all the last of February. Where the clocks are set back, two starts an hour apart have one
        # wall-clock time, and so have their ends a day later. Of two midnights that are one because a zone skips the day between them, each
        # may end a window.
        on_the_wall = self.timezone is not None and self.size.is_calendar and not self.hop.months
        return bool(self.size.months and not self.hop.months) or (on_the_wall and self.hop != self.size)
