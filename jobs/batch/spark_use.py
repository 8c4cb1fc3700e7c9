"""Tells whether a batch is sure to use Spark, which then starts while the batch is planned. Otherwise a step that needs it asks for it.

Tells also what the JVM is for: one that starts the tasks and no more does without the optimizing compiler.
"""

from __future__ import annotations

from windowmill.checkpoints.runnable import Runnable
from windowmill.expectations.suites import needs_spark, rules
from windowmill.jobs.batch.engine import compute_of, tries_this_process
from windowmill.jobs.sources.base import Reading, SourceTable
from windowmill.jobs.spark.settings import is_short_run


def is_sure_to_use_spark(runnable: Runnable, source: SourceTable, reading: Reading) -> bool:
    """Whether a run over ``reading`` is sure to use Spark: to compute, or to evaluate rules that only Spark evaluates."""
    compute = compute_of(runnable.pipeline)
    if compute == "local" or (reading.files and not tries_this_process(runnable.pipeline)):
        return compute != "local"
    return is_beyond_process(runnable, source, reading) or any(map(needs_spark, rules(runnable.pipeline)))


def has_brief_use(runnable: Runnable, source: SourceTable, reading: Reading) -> bool:
    """Whether Spark's JVM has little to do: the batch is small, or tasks read its files by Arrow and evaluate no condition.

    The answer is the same before and after the batch is planned.
    """
    pipeline = runnable.pipeline
    conditions = pipeline.conditions() or (pipeline.source is not None and pipeline.source.filter)
    return is_short_run(reading.size_bytes) or (not conditions and source.plain_files(reading) is not None)


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
