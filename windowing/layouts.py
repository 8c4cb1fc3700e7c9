r"""Layouts of the state of windows: partials of slices, sessions or tuples, or live rows; and what decides the layout of each window.

====================  ================================  =========================  ===============================  =====================
\                     slices                            sessions                   positions                        live rows
====================  ================================  =========================  ===============================  =====================
windows               on grids                          sessions; with a greatest  with policies, shown once      all others too
                                                        size those shown once
kept between batches  partials of slices; with          bounds and partials of     partials of tuples, and nodes    rows that windows
                      ``empty: emit`` spans of keys     open sessions              over them; tuples that wait      still to come may
                                                                                   for the watermark                hold
a batch reads of      the slices of the windows that    the open sessions of all   of the keys that it touches or   the rows of keys that
them                  it completes; all spans           keys                       that are due, the tuples that    it touches or that
                                                                                   may leave, and few nodes for     are due
                                                                                   for the rest of a window
====================  ================================  =========================  ===============================  =====================

The windows of a pipeline with the same layout are a *part* of it. Over interval events, windows on grids keep slices, windows with
policies are refused, and all others keep live rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import pyarrow as pa

from windowmill.windowing.columnar.added_columns import STATE_COLUMNS
from windowmill.windowing.columnar.known_spans import span_columns
from windowmill.windowing.columnar.sessions import own_columns
from windowmill.windowing.errors import SpecError
from windowmill.windowing.grids import Grids, why_no_partials
from windowmill.windowing.kernels.event_bounds import SessionLimits
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import AFTER
from windowmill.windowing.windows.base import Window

StateLayout = Literal["slices", "sessions", "positions", "live rows"]


@dataclass(frozen=True)
class Slices:
    """The windows on grids of a pipeline: the pipeline with these windows alone, how it is cut into slices, and what a slice holds."""

    name: ClassVar[StateLayout] = "slices"
    pipeline: Pipeline
    grids: Grids
    layout: Layout


@dataclass(frozen=True)
class Sessions:
    """The sessions of a pipeline: the pipeline with these windows alone, name and limits of each, and the layout of their partials."""

    name: ClassVar[StateLayout] = "sessions"
    pipeline: Pipeline
    limits: tuple[tuple[str, SessionLimits], ...]
    layout: Layout

    @classmethod
    def of(cls, pipeline: Pipeline, layout: Layout) -> Self:
        sizes = [(window, window.greatest_size()) for window in pipeline.windows]
        limits = ((window.name, SessionLimits(window.session_gap(), AFTER if size is None else size)) for window, size in sizes)
        return cls(pipeline, tuple(limits), layout)

    @property
    def gaps(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(limits.gap for _, limits in self.limits))

    @property
    def own_columns(self) -> tuple[str, ...]:
        """Columns that its rows of the state have in addition to keys, batch and partials."""
        return own_columns(revises=self.pipeline.emit == "revise", cuts=self.cuts)

    @property
    def cuts(self) -> bool:
        return any(limits.longest < AFTER for _, limits in self.limits)


@dataclass(frozen=True)
class Positions:
    """The windows of a pipeline that follow policies: the pipeline with these windows alone, and the layout of their partials."""

    name: ClassVar[StateLayout] = "positions"
    pipeline: Pipeline
    layout: Layout


@dataclass(frozen=True)
class Rows:
    """The windows of a pipeline that keep live rows: the pipeline with these windows alone; ``shared`` is whether it has others."""

    name: ClassVar[StateLayout] = "live rows"
    pipeline: Pipeline
    shared: bool = False


@dataclass(frozen=True)
class Parts:
    """The windows of a pipeline, each in the part with its layout; null for a layout that no window has.

    Parts that keep partials have the same layout.
    """

    slices: Slices | None = None
    sessions: Sessions | None = None
    positions: Positions | None = None
    rows: Rows | None = None

    @property
    def each(self) -> tuple[Slices | Sessions | Positions | Rows, ...]:
        return tuple(part for part in (self.slices, self.sessions, self.positions, self.rows) if part is not None)

    @property
    def names(self) -> tuple[StateLayout, ...]:
        return tuple(part.name for part in self.each)

    @property
    def layout(self) -> Layout | None:
        """The layout of partials; null if none are kept."""
        part = self.slices or self.sessions or self.positions
        return None if part is None else part.layout


_LAYOUTS: tuple[StateLayout, ...] = ("slices", "sessions", "positions", "live rows")


def divide(pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> Parts:
    """The parts of a pipeline over columns of ``types``.

    Raises ``SpecError`` if the aggregates do not fit the columns, or a key has the name of a column that partials need.
    """
    if any(each.expr for each in pipeline.aggregates.values()):
        pipeline = pipeline.over_rows()
    found = windows_by_layout(pipeline)
    if set(found) <= {"live rows"}:
        _check_keys(pipeline, None, None)
        return Parts(rows=Rows(pipeline))
    layout = Layout.of(pipeline, types)
    on_grids, joined, by_policies, others = (found.get(layout) for layout in _LAYOUTS)
    slices = None if on_grids is None else Slices(on_grids, Grids.of(on_grids), layout)
    sessions = None if joined is None else Sessions.of(joined, layout)
    _check_keys(pipeline, slices, layout)
    positions = None if by_policies is None else Positions(by_policies, layout)
    return Parts(slices, sessions, positions, None if others is None else Rows(others, shared=True))


def windows_by_layout(pipeline: Pipeline) -> dict[StateLayout, Pipeline]:
    windows_of: dict[StateLayout, list[Window]] = {layout: [] for layout in _LAYOUTS}
    for index, window in enumerate(pipeline.windows):
        if why_no_partials(pipeline, index):
            windows_of["live rows"].append(window)
        else:
            windows_of["positions" if window.follows_policies else "sessions" if window.joins_by_gap else "slices"].append(window)
    return {layout: pipeline.model_copy(update={"windows": tuple(windows)}) for layout, windows in windows_of.items() if windows}


def _check_keys(pipeline: Pipeline, slices: Slices | None, layout: Layout | None) -> None:
    """Refuse keys with the name of a column of the state."""
    spans = () if slices is None else map(str.lower, span_columns(slices.grids.known))
    partials = () if layout is None else (name.lower() for name, _ in layout.stored_columns)
    taken = STATE_COLUMNS | {*spans, *partials}
    clash = next((key for key in pipeline.keys if key.lower() in taken), None)
    if clash is not None:
        raise SpecError(f"pipeline {pipeline.pipeline}: keys: {clash!r} is taken by a column of the state; rename the column in the source")


def check_strict(pipeline: Pipeline) -> None:
    """Raise ``SpecError`` if the spec is strict and needs live rows."""
    if pipeline.strict and (problem := strict_problem(why_rows(pipeline))):
        raise SpecError(f"pipeline {pipeline.pipeline}: strict: {problem}")


def strict_problem(why: Sequence[str]) -> str | None:
    """What is wrong with a strict spec that needs live rows because of ``why``; null if nothing needs them."""
    if not why:
        return None
    return f"the state would keep raw rows ({'; '.join(why)}); change that, give it a pipeline of its own, or leave strict out"


def why_rows(pipeline: Pipeline) -> tuple[str, ...]:
    """The parts of the spec that need live rows, each with its reason; empty if the state keeps partials."""
    return tuple(dict.fromkeys(reason for index in range(len(pipeline.windows)) for reason in why_no_partials(pipeline, index)))


def live_columns(pipeline: Pipeline, columns: Iterable[str]) -> list[str]:
    """The source's ``columns`` that windows and aggregates still read after a row has arrived."""
    if any(window.reads_whole_rows for window in pipeline.windows):
        return list(columns)
    names = [*pipeline.time.tie_break, *(name for spec in pipeline.aggregates.values() for name in spec.columns)]
    names += [use.column for window in pipeline.windows for use in window.columns().values()]
    return list(dict.fromkeys(names))
