"""Decides whether a batch uses Spark. If not from its beginning, a step that turns out to need Spark asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalake import DeltaTable

from windowmill.checkpoints.features import delta_rs_can_write
from windowmill.checkpoints.runnable import Runnable
from windowmill.expectations.suites import needs_spark, rules
from windowmill.jobs.batch.engine import compute_of, tries_this_process
from windowmill.jobs.sources.base import Reading, SourceTable

if TYPE_CHECKING:
    from windowmill.jobs.sources.plain_rows import PlainRows


def is_sure_to_use_spark(runnable: Runnable, source: SourceTable, reading: Reading) -> bool:
    """Whether a run over ``reading`` is sure to use Spark, which then may start at once."""
    compute = compute_of(runnable.pipeline)
    if compute == "local" or (reading.files and not tries_this_process(runnable.pipeline)):
        return compute != "local"
    return rows_without_spark(runnable, source, reading) is None or any(map(needs_spark, rules(runnable.pipeline)))


def rows_without_spark(runnable: Runnable, source: SourceTable, reading: Reading) -> PlainRows | None:
    """The rows of ``reading`` for a run that does not use Spark from its beginning; null if the run does.

    A run uses Spark from its beginning to create the sink, to write tables with features that delta-rs does not support, and to read rows
    that are many or that :mod:`windowmill.jobs.sources.plain_rows` cannot read.
    """
    places = runnable.places
    if not DeltaTable.is_deltatable(runnable.sink_path):
        return None
    if not all(map(delta_rs_can_write, (runnable.sink_path, places.state, places.quarantine))):
        return None
    # Imports numba and pandas, which a run that finds nothing new does not need.
    from windowmill.jobs.sources.plain_rows import PlainRows
    from windowmill.jobs.ways import limits

    return PlainRows.of(runnable.pipeline, source, reading) if limits.are_few(reading.files, None) else None
