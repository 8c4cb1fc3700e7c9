r"""The two ways in which Spark computes a pipeline: by slices, or by live rows; and what decides.

========================  ===========================================  ===================================================
\                         slices                                       live rows
========================  ===========================================  ===================================================
windows                   on grids, shown once (``final``)             all others too
aggregates                whose partials can be combined in any order  all others too
kept between batches      partials of slices                           rows that windows still to come may hold
a batch reads of them     what the windows now complete are made of    what there is of keys that it touches or that are due
========================  ===========================================  ===================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from windowmill.windowing.columnar.packing import BLOCK, LATE_ROWS, PLACE, ROWS
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


def slices_of(pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> Slices | None:
    """The slices of a pipeline over columns of ``types``; none if its windows or aggregates need live rows.

    Raises
    ------
    SpecError
        If the aggregates do not fit the columns, or a key has the name of a column that slices need.
    """
    if why_rows(pipeline, types):
        return None
    layout = Layout.of(pipeline, types)
    taken = {SLICE, LEVEL, CLOSED, BATCH, GRID, PLACE, ROWS, LATE_ROWS, BLOCK, *(name.lower() for name, _ in layout.stored_columns)}
    clash = next((key for key in pipeline.keys if key.lower() in taken), None)
    if clash is not None:
        raise SpecError(
            f"pipeline {pipeline.pipeline}: keys: {clash!r} is taken by a column of the state; rename the column in the source or by a view"
        )
    return Slices(Grids.of(pipeline), layout)


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
    """What of the spec forbids slices, each with its reason; nothing if the pipeline goes by slices.

    Raises
    ------
    SpecError
        If an aggregate does not fit its columns, or a user's cannot be imported.
    """
    aggregates = (f"aggregates.{name}: {why}" for name, spec in pipeline.aggregates.items() if (why := why_unmergeable(spec, types)))
    return (*why_no_grids(pipeline), *aggregates)
