"""Counts the jobs, stages, tasks and executors by which Spark computes a batch, and describes its jobs in Spark's UI.

In a classic session jobs carry a tag of the batch, and Spark's status store knows what ran. A client of Spark Connect gets the stages
of each of its operations, but no executors.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from windowmill.jobs.spark.access import ConnectAccess, access_to

if TYPE_CHECKING:
    from windowmill.jobs.spark.access import SparkSession

#: How long counting waits for what Spark still has to note of tasks that have ended.
_NOTED_MS = 2_000
_DESCRIPTION = "spark.job.description"


class TaskCounts(NamedTuple):
    """What Spark has run; ``executors`` are the ids of those that ran tasks, as far as they are known."""

    jobs: int
    stages: int
    tasks: int
    executors: frozenset[str] = frozenset()


class Usage:
    """What one batch, which ``title`` names to Spark, uses of it from now on."""

    def __init__(self, spark: SparkSession, title: str) -> None:
        self._title = title
        self._watched = _OfServer(spark) if isinstance(access_to(spark), ConnectAccess) else _OfProcess(spark)

    def describe(self, step: str) -> None:
        """Name the jobs that follow by ``step``; by the batch alone if that is empty."""
        self._watched.describe(f"{self._title}: {step}" if step else self._title)

    def recorded(self, executors: Collection[str]) -> dict[str, object]:
        """Who computed the batch, for its record; ``executors`` are the processes that ran tasks, as reported by these."""
        counts = self._watched.counts()
        used = {"jobs": max(counts.jobs, 1), "stages": max(counts.stages, 1), "tasks": max(counts.tasks, len(executors), 1)}
        return {"engine": "spark", **self._watched.where(), **used, "executors": len(counts.executors or executors)}

    def end(self) -> None:
        with suppress(Exception):  # the session may be gone
            self._watched.end()


class _OfProcess:
    """The jobs of a classic session."""

    def __init__(self, spark: SparkSession) -> None:
        self._context, self._tag = spark.sparkContext, f"windowmill-{uuid.uuid4().hex[:12]}"
        self._before = self._context.getLocalProperty(_DESCRIPTION)
        self._context.addJobTag(self._tag)

    def where(self) -> dict[str, str]:
        """Application id and master."""
        return {"application": self._context.applicationId, "master": self._context.master or ""}

    def describe(self, text: str) -> None:
        """Have Spark show ``text`` with the jobs that follow."""
        self._context.setJobDescription(text)

    def counts(self) -> TaskCounts:
        scala: Any = self._context._jsc.sc()  # noqa: SLF001 - PySpark's own tracker knows no tags
        with suppress(Exception):  # a timeout: what has been noted is counted
            scala.listenerBus().waitUntilEmpty(_NOTED_MS)
        tracker, store = self._context.statusTracker(), scala.statusStore()
        jobs = list(scala.statusTracker().getJobIdsForTag(self._tag))
        ids = {stage for job in jobs if (info := tracker.getJobInfo(job)) for stage in info.stageIds}
        stages = [stage for stage in map(tracker.getStageInfo, sorted(ids)) if stage is not None]
        ran = [stage for stage in stages if stage.numCompletedTasks or stage.numFailedTasks]
        executors = [store.executorSummary(stage.stageId, stage.currentAttemptId).keySet().mkString("\n") for stage in ran]
        tasks = sum(stage.numCompletedTasks + stage.numFailedTasks for stage in ran)
        return TaskCounts(len(jobs), len(ran), tasks, frozenset("\n".join(executors).split()))

    def end(self) -> None:
        self._context.removeJobTag(self._tag)
        self._context.setLocalProperty(_DESCRIPTION, self._before)  # type: ignore[arg-type]  # null removes it


class _OfServer:
    """The jobs of a session of Spark Connect: one for each operation of the client, as the server does not report how many it made.

    The server's last report on an operation may be older than its end. The stage that began last has run all the same: only stages before
    it can have been skipped.
    """

    def __init__(self, spark: Any) -> None:  # the class of Connect sessions takes a second to import
        self._spark = spark
        #: Operation -> its stages -> number of their tasks, and of those that have ended.
        self._operations: dict[str, dict[int, tuple[int, int]]] = {}
        self._tag: str | None = None
        self._spark.registerProgressHandler(self._take)

    def where(self) -> dict[str, str]:
        return {name: self._spark.conf.get(key, "") for name, key in (("application", "spark.app.id"), ("master", "spark.master"))}

    def describe(self, text: str) -> None:
        self._forget_tag()
        self._tag = text.replace(",", "")  # no tag has a comma
        self._spark.addTag(self._tag)

    def counts(self) -> TaskCounts:
        ran = [
            [ended or n for stage, (n, ended) in stages.items() if ended or stage == max(stages)] for stages in self._operations.values()
        ]
        ran = [tasks for tasks in ran if tasks]
        return TaskCounts(len(ran), sum(map(len, ran)), sum(map(sum, ran)))

    def end(self) -> None:
        self._forget_tag()
        self._spark.removeProgressHandler(self._take)

    def _take(self, *, stages: Iterable[Any] | None, operation_id: str, **_: Any) -> None:
        """Called by PySpark, more than once for each operation; stages whose rows another one has left are named without tasks that ran."""
        ended = self._operations.setdefault(operation_id, {})
        for stage in stages or ():
            ended[stage.stage_id] = stage.num_tasks, max(stage.num_completed_tasks, ended.get(stage.stage_id, (0, 0))[1])

    def _forget_tag(self) -> None:
        if self._tag is not None:
            self._spark.removeTag(self._tag)
            self._tag = None
