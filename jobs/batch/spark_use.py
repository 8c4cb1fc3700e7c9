"""Tells whether a batch is sure to use Spark, which then starts while the batch is planned. Otherwise a step that needs it asks for it."""

from __future__ import annotations

from windowmill.checkpoints.runnable import Runnable
from windowmill.expectations.suites import needs_spark, rules
from windowmill.jobs.batch.engine import compute_of, tries_this_process
from windowmill.jobs.sources.base import Reading, SourceTable


def is_sure_to_use_spark(runnable: Runnable, source: SourceTable, reading: Reading) -> bool:
    """Whether a run over ``reading`` is sure to use Spark: to compute, or to evaluate rules that only Spark evaluates."""
    compute = compute_of(runnable.pipeline)
    if compute == "local" or (reading.files and not tries_this_process(runnable.pipeline)):
        return compute != "local"
    return is_beyond_process(runnable, source, reading) or any(map(needs_spark, rules(runnable.pipeline)))


def is_beyond_process(runnable: Runnable, source: SourceTable, reading: Reading) -> bool:
    """Whether only Spark can read the rows of ``reading``, or they are too many for this process, as far as the source's log tells."""
    # Imports numba and pandas, which a run that finds nothing new does not need.
    from windowmill.jobs.sources.plain_rows import PlainRows
    from windowmill.jobs.ways import limits

    try:
        limits.check_files(reading.files, None)
    except limits.TooLargeError:
        return True
    return PlainRows.of(runnable.pipeline, source, reading) is None
