"""Window types of plugins, which bring what computes their windows as methods."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from windowmill.windowing.windows.base import Window

if TYPE_CHECKING:
    from windowmill.windowing.reference.events import Course, Event, Tally, WindowResult
    from windowmill.windowing.slicing.leaves import Slicer
    from windowmill.windowing.spec import Pipeline


class PluginWindow(Window):
    """One window of a type that a plugin adds. Its module may import numpy and numba inside these methods alone, as DAG files load it."""

    @abstractmethod
    def slicer(self, pipeline: Pipeline) -> Slicer:
        """What cuts live rows into the windows of this one, for the kernels."""

    @abstractmethod
    def reference_rows(self, events: Sequence[Event], tally: Tally, course: Course) -> Iterator[WindowResult]:
        """The result rows of one key as the reference engine has them.

        Parameters
        ----------
        events
            All events of the key, in the order of arrival.
        tally
            Receives the numbers of the events that were counted and of those refused as late.
        """
