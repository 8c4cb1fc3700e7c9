"""Who computes a pipeline's batches: Spark's tasks or this process; and whether a batch is sure to use Spark, before it is planned."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast, get_args

from windowmill.checkpoints.places import Runnable
from windowmill.expectations.suites import needs_spark, rules
from windowmill.jobs.sources.base import Reading, SourceTable
from windowmill.jobs.spark.spark_settings import is_short_run
from windowmill.windowing.errors import LocalComputeError, SourceError, SpecError, WindowmillError, first_line
from windowmill.windowing.settings import COMPUTE, MASTER
from windowmill.windowing.spec import Compute, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windowmill.jobs.batch.progress import Progress
    from windowmill.jobs.sources.delta_log import DeltaSource
    from windowmill.jobs.sources.folder import FolderSource
    from windowmill.jobs.sources.table_rows import TableRows

#: The variable that spark-submit sets for its driver.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
#: PySpark's variable of a Spark Connect server.
_SERVER = "SPARK_REMOTE"


def compute_of(pipeline: Pipeline) -> Compute:
    """The pipeline's field ``compute``, or the deployment's ``WINDOWMILL_COMPUTE``.

    Raises
    ------
    SpecError
        If the variable has an unknown value.
    """
    given = COMPUTE.given()
    if not given:
        return pipeline.compute
    if given not in get_args(Compute):
        raise SpecError(
            f"{COMPUTE.name}: got {given!r}; expected spark, auto or local; correct the variable, or unset it to follow each spec"
        )
    return cast("Compute", given)


def tries_this_process(pipeline: Pipeline) -> bool:
    """Whether this process computes a batch of few rows: by ``local``, and by ``auto`` where Spark would run on this machine alone."""
    compute = compute_of(pipeline)
    return compute == "local" or (compute == "auto" and not names_a_cluster())


def names_a_cluster() -> bool:
    """Whether this deployment has a Spark other than this process's own: a Connect server, a master, or a driver of spark-submit.

    Tasks of Airflow get its connections in these variables.
    """
    if os.environ.get(_SERVER) or _SUBMITTED in os.environ:
        return True
    return (_running_master() or MASTER.given() or "local").partition("[")[0] != "local"


def is_elsewhere(compute: Mapping[str, object]) -> bool:
    """Whether the batch with this ``compute`` was computed by Spark in processes that this one did not start."""
    return compute.get("engine") == "spark" and names_a_cluster()


def _running_master() -> str | None:
    """Master of the classic session that this process has already; Spark is not imported for the answer."""
    context: Any = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    running = None if context is None else context._active_spark_context  # noqa: SLF001 - getOrCreate would start one
    return None if running is None else running.master


def refused_locally(pipeline: Pipeline, batch: int, why: str) -> LocalComputeError:
    """The error for a ``batch`` that only Spark could compute, where ``compute`` is ``local``."""
    return never_spark(f"pipeline {pipeline.pipeline}: batch {batch}: {why}")


def never_spark(why: str) -> LocalComputeError:
    """The error where only Spark could do what ``why`` says, and ``compute`` is ``local``."""
    return LocalComputeError(f"{why}; compute is local, which never uses Spark: set it to auto or spark ({COMPUTE.name} too)")


def failed_locally(pipeline: Pipeline, batch: int, err: Exception) -> WindowmillError:
    """As :func:`refused_locally`, because of ``err``; where storage does not answer, which Spark asks, too, the error for that."""
    from windowmill.checkpoints.stores import is_unavailable, remedy  # imports deltalake, which no check of a spec needs

    cause = err.__cause__
    if cause is None or not is_unavailable(cause):
        return refused_locally(pipeline, batch, str(err))
    return SourceError(
        f"pipeline {pipeline.pipeline}: batch {batch}: the source's rows cannot be read now ({first_line(cause)}); "
        f"{remedy(cause, 'run again')}"
    )


def refused_rules(pipeline: Pipeline, batch: int) -> LocalComputeError:
    """The error for a ``batch`` with a rule that only Spark can evaluate, where ``compute`` is ``local``."""
    named = ", ".join(f"expectations.{rule.index} ({rule.type})" for rule in rules(pipeline) if needs_spark(rule))
    # Rules of other types go to Spark for a column with NaN.
    why = f"only Spark evaluates {named}" if named else "a result is NaN, which only Spark compares as a rule asks"
    return refused_locally(pipeline, batch, why)


def describe(compute: Mapping[str, Any]) -> str:
    """Who computed a batch, for people.

    >>> describe({"engine": "local"}), describe({})
    ('local', '–')
    >>> describe({"engine": "spark", "application": "app-1", "jobs": 1, "stages": 1, "tasks": 1, "executors": 1})
    'Spark app-1, 1 task in 1 job'
    """
    if compute.get("engine") != "spark":
        return str(compute.get("engine", "–"))
    counted = " in ".join(_counted(compute[name], name) for name in ("tasks", "jobs") if name in compute)
    executors = compute.get("executors", 1)
    on = f" on {executors} executors" if executors > 1 else ""
    return f"Spark {compute['application']}, {counted}{on}"


def describe_briefly(compute: Mapping[str, Any]) -> str:
    """Number of Spark's tasks, or ``local``, for a column of a table.

    >>> describe_briefly({"engine": "spark", "application": "app-1", "jobs": 3, "tasks": 1_200})
    '1,200'
    """
    return f"{compute['tasks']:,}" if compute.get("engine") == "spark" else describe(compute)


def _counted(n: int, name: str) -> str:
    return f"{n:,} {name if n != 1 else name.removesuffix('s')}"


def start_spark(pipeline: Pipeline, progress: Progress, *, brief: bool = False) -> SparkSession:
    """Start Spark, or connect to it, for tasks of ``pipeline``; ``brief`` is whether it has little to do."""
    from windowmill.jobs.spark.access import access_to
    from windowmill.jobs.spark.session import spark_session
    from windowmill.jobs.spark.shipping import shipment_of

    with progress.step("start", "Spark"):
        shipment = shipment_of(pipeline)  # what it holds decides which session of a server is used
        name = f"windowmill {pipeline.pipeline}"
        spark = spark_session(name, brief=brief, shipment=shipment, say=lambda what: progress.say(f"  {what}"))
        access_to(spark).ship(shipment)
    return spark


def table_rows(pipeline: Pipeline, source: DeltaSource | FolderSource, progress: Progress) -> TableRows:
    """The rows of ``source``, for corrections and purges; Spark is started where only it reads them as runs do.

    Reading them raises ``LocalComputeError`` then, if ``compute`` is ``local``.
    """
    from windowmill.jobs.sources.table_rows import TableRows  # imports numba

    start = cache(partial(start_spark, pipeline, progress))

    def needed(why: str) -> SparkSession:
        if compute_of(pipeline) == "local":
            raise never_spark(f"pipeline {pipeline.pipeline}: source {source.path}: {why}")
        return start()

    return TableRows.of(pipeline, source, needed)


def is_sure_to_use_spark(runnable: Runnable, source: SourceTable, reading: Reading) -> bool:
    """Whether a run over ``reading`` is sure to use Spark: to compute, or to evaluate rules that only Spark evaluates."""
    compute = compute_of(runnable.pipeline)
    if compute == "local" or (reading.files and not tries_this_process(runnable.pipeline)):
        return compute != "local"
    return is_beyond_process(runnable, source, reading) or any(map(needs_spark, rules(runnable.pipeline)))


def has_brief_use(runnable: Runnable, source: SourceTable, reading: Reading) -> bool:
    """Whether Spark's JVM has little to do: the batch is small, or tasks read its files and evaluate all its conditions by Arrow.

    The answer is the same before and after the batch is planned.
    """
    if is_short_run(reading.size_bytes):
        return True
    pipeline = runnable.pipeline
    if not (pipeline.conditions() or (pipeline.source is not None and pipeline.source.filter)):
        return source.plain_files(reading) is not None
    return _is_plain(pipeline, source, reading)


def is_beyond_process(runnable: Runnable, source: SourceTable, reading: Reading) -> bool:
    """Whether only Spark can read the rows of ``reading``, or they are too many for this process, as far as the source's log shows."""
    from windowmill.jobs.layouts import limits  # imports numba, which a run that finds nothing new does not need

    try:
        limits.check_files(reading.files, None)
    except limits.TooLargeError:
        return True
    return not _is_plain(runnable.pipeline, source, reading)


def _is_plain(pipeline: Pipeline, source: SourceTable, reading: Reading) -> bool:
    """Whether Arrow reads the rows of ``reading`` and evaluates all conditions on them."""
    from windowmill.jobs.sources.plain_rows import PlainRows  # imports numba and pandas

    return PlainRows.of(pipeline, source, reading) is not None
