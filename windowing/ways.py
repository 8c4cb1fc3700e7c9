r"""The ways in which a pipeline is computed: by partials of slices and of sessions, or of tuples, or by live rows; and what decides.

====================  ================================  =========================  ===============================  =====================
\                     slices                            sessions                   positions                        live rows
====================  ================================  =========================  ===============================  =====================
windows               on grids                          sessions without a         with policies that evict from    all others too
                                                        greatest size, shown       the front, shown once, beside
                                                        once                       no others
aggregates            whose partials can be combined    the same                   the same                         all others too
                      in any order
kept between batches  partials of slices; with          bounds and partials of     partials of tuples, and nodes    rows that windows
                      ``empty: emit`` spans of keys     open sessions              over them; tuples that wait      still to come may
                                                                                   for the watermark                hold
a batch reads of      the slices of the windows that    the open sessions of all   of the keys that it touches or   the rows of keys that
them                  it completes; all spans           keys                       that are due, the tuples that    it touches or that
                                                                                   may leave, and 2·log2 n nodes    are due
                                                                                   for the rest of a window
====================  ================================  =========================  ===============================  =====================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from windowmill.windowing.columnar.checksums import SUM
from windowmill.windowing.columnar.known_spans import columns_of
from windowmill.windowing.columnar.packing import BLOCK, LATE_ROWS, PLACE, ROWS
from windowmill.windowing.columnar.session_partials import FIRST, GAP, LAST
from windowmill.windowing.columnar.slices import ARRIVAL, BATCH, CLOSED, GRID, LEVEL, ORDER, SLICE
from windowmill.windowing.errors import SpecError
from windowmill.windowing.grids import Grids, why_no_partials
from windowmill.windowing.kernels.layout import Layout, why_unmergeable
from windowmill.windowing.spec import Pipeline


@dataclass(frozen=True)
class Slices:
    """How a pipeline is cut into slices, and what a slice holds."""

    grids: Grids
    layout: Layout


@dataclass(frozen=True)
class Sessions:
    """The name and gap of each session window of a pipeline, and the layout of a session's partials."""

    gaps: tuple[tuple[str, int], ...]
    layout: Layout


@dataclass(frozen=True)
class Positions:
    """The layout of the partials of a pipeline all of whose windows evict from the front."""

    layout: Layout


@dataclass(frozen=True)
class Partials:
    """The partials that a pipeline's state keeps, of slices, of sessions or of both; the other is null. Both have the same layout."""

    slices: Slices | None
    sessions: Sessions | None
    layout: Layout


def partials_of(pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> Partials | None:
    """The partials of slices and sessions of a pipeline over columns of ``types``; none if it goes by positions or by live rows.

    Raises
    ------
    SpecError
        If the aggregates do not fit the columns, or a key has the name of a column that partials need.
    """
    if _by_positions(pipeline) or why_rows(pipeline, types):
        return None
    layout, grids = Layout.of(pipeline, types), Grids.of(pipeline)
    gaps = tuple((window.name, window.session_gap()) for window in pipeline.windows if window.joins_by_gap)
    slices, sessions = Slices(grids, layout) if grids.named else None, Sessions(gaps, layout) if gaps else None
    own = (SLICE, LEVEL, CLOSED, ARRIVAL, ORDER, GRID, PLACE, ROWS, LATE_ROWS, BLOCK, *columns_of(grids.known)) if slices else ()
    taken = {BATCH, SUM, *own, *((GAP, FIRST, LAST) if sessions else ()), *(name.lower() for name, _ in layout.stored_columns)}
    clash = next((key for key in pipeline.keys if key.lower() in taken), None)
    if clash is not None:
        raise SpecError(
            f"pipeline {pipeline.pipeline}: keys: {clash!r} is taken by a column of the state; rename the column in the source or by a view"
        )
    return Partials(slices, sessions, layout)


def positions_of(pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> Positions | None:
    """How a pipeline over columns of ``types`` is computed over positions of tuples; null if not all of its windows allow it.

    Raises
    ------
    SpecError
        If the aggregates do not fit the columns.
    """
    if not _by_positions(pipeline) or why_rows(pipeline, types):
        return None
    return Positions(Layout.of(pipeline, types))


def _by_positions(pipeline: Pipeline) -> bool:
    return all(window.evicts_from_front for window in pipeline.windows)


def check_strict(pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> None:
    """Raise ``SpecError`` if the spec is strict and needs live rows over columns of ``types``."""
    if pipeline.strict and (problem := strict_problem(why_rows(pipeline, types))):
        raise SpecError(f"pipeline {pipeline.pipeline}: strict: {problem}")


def strict_problem(why: Sequence[str]) -> str | None:
    """What is wrong with a strict spec that needs live rows because of ``why``; null if nothing needs them."""
    if not why:
        return None
    return f"the state would keep raw rows ({'; '.join(why)}); change that, give it a pipeline of its own, or leave strict out"


def named_by_order(pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> bool:
    """Whether earlier releases named columns of this pipeline's state by the order of its aggregates: a swap of two exchanged them."""
    found = partials_of(pipeline, types)
    # Earlier releases had logs where there are sessions, revisions or empty windows.
    others = pipeline.emit == "revise" or any(window.joins_by_gap or window.fills_gaps for window in pipeline.windows)
    by_slices = found is not None and not others
    return found.layout.labels_by_order if found is not None and by_slices else len(pipeline.conditions()) > 1


def why_rows(pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> tuple[str, ...]:
    """The parts of the spec that need live rows, each with its reason; empty if the state keeps partials.

    Raises
    ------
    SpecError
        If an aggregate does not fit its columns, or a user's cannot be imported.
    """
    aggregates = (f"aggregates.{name}: {why}" for name, spec in pipeline.aggregates.items() if (why := why_unmergeable(spec, types)))
    return (*why_no_partials(pipeline, positions=_by_positions(pipeline)), *aggregates)
