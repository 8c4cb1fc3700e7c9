"""Whether a batch uses Spark from its beginning. Otherwise it starts Spark when a step needs it, or never."""

from __future__ import annotations

from deltalake import DeltaTable

from windowmill.checkpoints.features import delta_rs_can_write
from windowmill.checkpoints.runnable import Runnable
from windowmill.jobs.sources.base import Reading, SourceTable
from windowmill.jobs.spark import launch


def needs_spark(runnable: Runnable, source: SourceTable, reading: Reading) -> bool:
    """Whether a run over ``reading`` uses Spark from its beginning.

    It does where Spark runs already, as only the start of Spark takes long. Otherwise Spark is needed to create the sink, to write tables
    with features that delta-rs does not support, for many rows, and for rows that :mod:`windowmill.jobs.sources.plain_rows` cannot read.
    """
    places = runnable.places
    if launch.is_at_hand() or not DeltaTable.is_deltatable(runnable.sink_path):
        return True
    if not all(map(delta_rs_can_write, (runnable.sink_path, places.state, places.quarantine))):
        return True
    # Imports numba and pandas, which a run that finds nothing new does not need.
    from windowmill.jobs.sources.plain_rows import PlainRows
    from windowmill.jobs.ways import limits

    return not limits.are_few(reading.files, None) or PlainRows.of(runnable.pipeline, source, reading) is None
