"""Chooses the way to compute a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windowmill.checkpoints.state.log import keeps_log
from windowmill.jobs.ways.base import Way
from windowmill.jobs.ways.input import TableInput
from windowmill.jobs.ways.live_rows import LiveRowWay
from windowmill.jobs.ways.positions import PositionWay
from windowmill.jobs.ways.sessions import SessionWay
from windowmill.jobs.ways.slices import SliceWay
from windowmill.windowing.ways import partials_of, positions_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def way_of(spark: SparkSession, batch: TableInput, state: str) -> Way[Any, Any]:
    """The way to compute ``batch``, whose state table is at the path ``state``: by partials if windows and aggregates allow it.

    :mod:`windowmill.windowing.ways` decides, and ``windowmill explain`` shows its choice. A table of live rows that an older release
    made, which kept partials for fewer windows and aggregates, stays one.
    """
    if keeps_log(state):
        return LiveRowWay(spark, batch, state)
    positions = positions_of(batch.pipeline, batch.types)
    if positions is not None:
        return PositionWay(spark, batch, positions, state)
    partials = partials_of(batch.pipeline, batch.types)
    if partials is not None and partials.sessions is not None:
        return SessionWay(spark, batch, partials.sessions, partials.slices, state)
    if partials is not None and partials.slices is not None:
        return SliceWay(spark, batch, partials.slices, state)
    return LiveRowWay(spark, batch, state)
