"""Chooses the way to compute a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from windowmill.checkpoints.state.log import is_log
from windowmill.jobs.ways.base import Way
from windowmill.jobs.ways.input import TableInput
from windowmill.jobs.ways.live_rows import LiveRowWay
from windowmill.jobs.ways.slices import SliceWay
from windowmill.windowing.ways import slices_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def way_of(spark: SparkSession, batch: TableInput, state: str) -> Way[Any, Any]:
    """The way to compute ``batch``, whose state table is at the path ``state``: by slices if windows and aggregates allow it.

    :func:`windowmill.windowing.ways.slices_of` decides, and ``windowmill explain`` shows its choice. A table of live rows that an older
    release made, which kept slices for fewer windows and aggregates, stays one.
    """
    slices = slices_of(batch.pipeline, batch.types)
    if slices is None or (DeltaTable.is_deltatable(state) and is_log(state)):
        return LiveRowWay(spark, batch, state)
    return SliceWay(spark, batch, slices, state)
