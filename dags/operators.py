"""The tasks of a pipeline's DAGs, to be placed by the factory or by hand. None of them has template fields: a spec is never rendered."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from windowmill.dags.commands import command_of, failing_fast
from windowmill.dags.events import EVENTS_READ, announced_through, extra_of, unannounced
from windowmill.dags.process import Finished, Job, raise_for, summary_of
from windowmill.dags.specs import Spec, redacting
from windowmill.windowing.redaction import redacted
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from airflow.sdk import Asset, Context


class PipelineOperator(BaseOperator):
    """Base of the tasks that run a windowmill command in a process of its own.

    Parameters
    ----------
    spec
        Path of the pipeline's YAML file, as each worker sees it, or the pipeline itself.
    """

    def __init__(self, *, spec: str | os.PathLike[str] | Pipeline, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.spec = Spec.of(spec)
        self._job: Job | None = None

    def run_job(self, arguments: Sequence[str]) -> Finished:
        """Run ``windowmill ARGUMENTS…``; its messages go to the task's log."""
        self._job = Job(arguments)
        self.log.info("windowmill %s", redacted(" ".join(arguments)))
        return self._job.run(self.log.info)

    def on_kill(self) -> None:
        """Called when the task is cleared, marked or timed out while it runs."""
        if self._job is not None:
            self._job.stop()


class MicroBatchOperator(PipelineOperator):
    """Advances the pipeline, or recomputes a range; returns the command's summary.

    Raises
    ------
    JobFailedError
        A conflict or a crash, worth a retry.
    AirflowFailException
        Not worth one: a quality rule holds the batch, or the arguments or the spec are wrong.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        with failing_fast(), self.spec.file() as path:
            command = command_of(context, vouches=self.spec.read().time.watermark == "data_interval_end")
            return summary_of(command[0], self.run_job([*command, path, "--json"]))


class MaintainOperator(PipelineOperator):
    """Compacts and cleans the pipeline's tables; never what a later run may still need."""

    def execute(self, context: Context) -> None:  # noqa: ARG002 - Airflow passes it
        with failing_fast(), self.spec.file() as path:
            raise_for("maintain", self.run_job(["maintain", path]))


class QualityReportOperator(PipelineOperator):
    """Writes the pipeline's report page and tells how its last batch went; after good and held batches alike."""

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow passes it
        from windowmill.checkpoints.ledger import Ledger  # deltalake is for the run, not for parsing
        from windowmill.checkpoints.places import Places

        pipeline = self.spec.read()
        with redacting():
            latest = Ledger.open(pipeline).newest
        if latest is None:
            raise AirflowSkipException(f"{pipeline.pipeline} has no batch yet, so there is nothing to report")
        with failing_fast(), self.spec.file() as path:
            raise_for("report", self.run_job(["report", path]))
        places = Places.of(pipeline)
        result = {
            **{name: getattr(latest, name) for name in ("number", "action", "status", "verdict")},
            **{name: getattr(latest, name) for name in ("rows_read", "rows_applied", "rows_late", "rows_quarantined", "rows_published")},
            "report": redacted(places.report),
            "docs": redacted(f"{places.docs}/index.html"),
            "quality": redacted(places.quality),
        }
        for name, value in result.items():
            self.log.info("%s: %s", name, value)
        return result


class AnnounceOperator(BaseOperator):
    """Sends the sink's asset event for all batches committed since the last one; is skipped, and sends none, when there is nothing to tell.

    A task of its own because Airflow sends an event for every outlet of every task that succeeds, and a micro-batch with
    nothing to publish succeeds too. What to tell is read from the ledger, not from the micro-batch's summary: an attempt that
    died after its commit has left none.

    Parameters
    ----------
    spec
        Path of the pipeline's YAML file, as each worker sees it, or the pipeline itself.
    asset
        Of the pipeline's sink.
    """

    def __init__(self, *, spec: str | os.PathLike[str] | Pipeline, asset: Asset, **kwargs: Any) -> None:
        # An inlet, too: the earlier events of the asset say what has been told.
        super().__init__(inlets=[asset], outlets=[asset], **kwargs)
        self.spec = Spec.of(spec)
        self.asset = asset

    def execute(self, context: Context) -> dict[str, Any]:
        from windowmill.checkpoints.ledger import Ledger  # deltalake is for the run, not for parsing

        pipeline = self.spec.read()
        with redacting():
            ledger = Ledger.open(pipeline)
        earlier = context["inlet_events"][self.asset].ascending(False).limit(EVENTS_READ)
        through = announced_through((event.extra for event in earlier), ledger.generation)
        batches = unannounced(ledger.since(through + 1), through)
        if not batches:
            raise AirflowSkipException("nothing has been published since the last event, so no one needs to know")
        extra = extra_of(batches, ledger.generation, context)
        context["outlet_events"][self.asset].extra = extra
        self.log.info("batches %d to %d: %d rows", *extra["batches"], extra["rows"])
        return extra
