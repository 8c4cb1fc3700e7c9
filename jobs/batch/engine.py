"""Who computes a pipeline's batches: Spark's tasks or this process; and whether a batch is sure to use Spark, before it is planned."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, cast, get_args

from windowmill.expectations.suites import needs_spark, rules
from windowmill.windowing.errors import LocalComputeError, SpecError
from windowmill.windowing.settings import COMPUTE, MASTER
from windowmill.windowing.spec import Compute, Pipeline

#: The variable that spark-submit sets for its driver.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
#: PySpark's variable of a Spark Connect server.
_SERVER = "SPARK_REMOTE"


def compute_of(pipeline: Pipeline) -> Compute:
    """The pipeline's field ``compute``, or the deployment's ``WINDOWMILL_COMPUTE``; raises ``SpecError`` if that has an unknown value."""
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
