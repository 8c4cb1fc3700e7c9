"""Divides a batch into parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from windowmill.jobs.ways.base import Part
from windowmill.jobs.ways.input import Input
from windowmill.jobs.ways.limits import OnlySparkError
from windowmill.jobs.ways.live_rows import LiveRowPart
from windowmill.jobs.ways.positions import PositionPart
from windowmill.jobs.ways.sessions import SessionPart
from windowmill.jobs.ways.slices import SlicePart
from windowmill.windowing.ways import divide

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windowmill.checkpoints.state.readers import State


def no_spark() -> SparkSession:
    """What :func:`parts_of` is given in a process without a session; raises ``OnlySparkError``."""
    raise OnlySparkError("only Spark can read the state")


def parts_of(spark: Callable[[], SparkSession], batch: Input, state: State) -> list[Part]:
    """The parts of ``batch``, given the ``state`` before it; ``spark`` gives the session.

    :mod:`windowmill.windowing.ways` divides the windows, and ``windowmill explain`` shows its choice.
    """
    divided = divide(batch.pipeline, batch.types)
    parts: list[Part] = []
    if divided.slices is not None:
        parts.append(SlicePart(spark, batch, divided.slices, state))
    if divided.sessions is not None:
        parts.append(SessionPart(spark, batch, divided.sessions, state))
    if divided.positions is not None:
        parts.append(PositionPart(spark, batch, divided.positions, state))
    if divided.rows is not None:
        parts.append(LiveRowPart(spark, batch, divided.rows, state))
    return parts
