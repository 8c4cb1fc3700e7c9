r"""The three ways in which Spark computes a pipeline: by slices, by sessions, or by live rows; and what decides.

======================  ===================================  ==============================  ==========================================
\                       slices                               sessions                        live rows
======================  ===================================  ==============================  ==========================================
windows                 on grids, shown once (``final``)     sessions without a greatest     all others too, and both kinds together
                                                             size, shown once
aggregates              whose partials can be combined in    the same                        all others too
                        any order
kept between batches    partials of slices                   bounds and partials of open     rows that windows still to come may hold
                                                             sessions
a batch reads of them   what the windows now complete are    the open sessions               what there is of keys that it touches or
                        made of                                                              that are due
======================  ===================================  ==============================  ==========================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from windowmill.windowing.columnar.packing import BLOCK, LATE_ROWS, PLACE, ROWS
from windowmill.windowing.columnar.session_partials import FIRST, GAP, LAST
from windowmill.windowing.columnar.slices import BATCH, CLOSED, GRID, LEVEL, SLICE
from windowmill.windowing.errors import SpecError
from windowmill.windowing.grids import Grids, why_no_grids
from windowmill.windowing.kernels.layout import Layout, why_unmergeable
from windowmill.windowing.spec import Pipeline


@dataclass(frozen=True)
class Slices:
    """How a pipeline is cut into slices, and what a slice holds."""

    grids: Grids
    layout: Layout


@dataclass(frozen=True)
class Sessions:
    """The gap of each window of a pipeline by name, and what an open session holds."""

    gaps: tuple[tuple[str, int], ...]
    layout: Layout


def slices_of(pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> Slices | None:
    """The slices of a pipeline over columns of ``types``; none if it does not go by slices.

    Raises
    ------
    SpecError
        If the aggregates do not fit the columns, or a key has the name of a column that slices need.
    """
    if _why_no_partials(pipeline, types) or why_no_grids(pipeline):
        return None
    return Slices(Grids.of(pipeline), _layout(pipeline, types, (SLICE, LEVEL, CLOSED, BATCH, GRID, PLACE, ROWS, LATE_ROWS, BLOCK)))


def sessions_of(pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> Sessions | None:
    """The sessions of a pipeline over columns of ``types``; none if it does not go by sessions. Raises as :func:`slices_of`."""
    if _why_no_partials(pipeline, types) or why_no_sessions(pipeline):
        return None
    gaps = tuple((window.name, window.session_gap()) for window in pipeline.windows)
    return Sessions(gaps, _layout(pipeline, types, (GAP, FIRST, LAST, BATCH)))


def stored_layout(pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> Layout | None:
    """The layout of the partials that the state keeps; none if it keeps live rows. Raises as :func:`slices_of`."""
    found = slices_of(pipeline, types) or sessions_of(pipeline, types)
    return found.layout if found else None


def _layout(pipeline: Pipeline, types: Mapping[str, pa.DataType], own: Sequence[str]) -> Layout:
    """The layout of the partials, beside the state's ``own`` columns."""
    layout = Layout.of(pipeline, types)
    taken = {*own, *(name.lower() for name, _ in layout.stored_columns)}
    clash = next((key for key in pipeline.keys if key.lower() in taken), None)
    if clash is not None:
        raise SpecError(
            f"pipeline {pipeline.pipeline}: keys: {clash!r} is taken by a column of the state; rename the column in the source or by a view"
        )
    return layout


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
    slices = slices_of(pipeline, types)
    return slices.layout.labels_by_order if slices is not None else len(pipeline.conditions()) > 1


def why_rows(pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> tuple[str, ...]:
    """What of the spec needs live rows, each with its reason; nothing if the pipeline goes by slices or by sessions.

    Raises
    ------
    SpecError
        If an aggregate does not fit its columns, or a user's cannot be imported.
    """
    alone = all(window.joins_by_gap for window in pipeline.windows)
    windows = why_no_sessions(pipeline) if alone else why_no_grids(pipeline)
    return (*windows, *_why_no_partials(pipeline, types))


def why_no_sessions(pipeline: Pipeline) -> tuple[str, ...]:
    """What of the spec keeps its windows from being sessions of which partials are stored, each with its reason; nothing if they are."""
    found = []
    if pipeline.emit == "revise":
        found.append("emit: revise shows a session again for each late row, from the rows before it")
    if pipeline.time.end is not None:
        found.append("time.end: sessions of events that last keep their rows")
    return (*found, *(reason for i, window in enumerate(pipeline.windows) if (reason := window.session_problem(f"windows.{i}"))))


def _why_no_partials(pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> tuple[str, ...]:
    """The aggregates whose partials cannot be combined in any order, each with its reason."""
    return tuple(f"aggregates.{name}: {why}" for name, spec in pipeline.aggregates.items() if (why := why_unmergeable(spec, types)))
