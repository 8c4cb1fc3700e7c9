"""The tasks of a pipeline's DAGs, for the factory and for hand-written DAGs. They have no template fields: a spec is never rendered."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from windowmill.dags.commands import command_of, failing_fast
from windowmill.dags.events import EVENTS_READ, announced_through, extra_of, unannounced
from windowmill.dags.process import CommandProcess, CommandResult, raise_for, summary_of
from windowmill.dags.specs import Spec, redacting
from windowmill.dags.storage import storage_environment, storage_variables
from windowmill.windowing.redaction import redacted
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from airflow.sdk import Asset, Context


class PipelineOperator(BaseOperator):
    """Base of a pipeline's tasks.

    Parameters
    ----------
    spec
        Path of the pipeline's YAML file, as each worker sees it, or the pipeline itself.
    storage_conn_id
        Airflow connection of type ``aws``, ``google_cloud_platform`` or ``wasb`` with the credentials of the tables' object storage;
        without it, they are those of the worker's environment.
    """

    def __init__(self, *, spec: str | os.PathLike[str] | Pipeline, storage_conn_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.spec = Spec.of(spec)
        self.storage_conn_id = storage_conn_id


class CommandOperator(PipelineOperator):
    """Base of the tasks that run a windowmill command in a child process."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._job: CommandProcess | None = None

    def run_job(self, arguments: Sequence[str]) -> CommandResult:
        """Run ``windowmill ARGUMENTS…``; its messages go to the task's log."""
        self._job = CommandProcess(arguments, self.environment())
        self.log.info("windowmill %s", redacted(" ".join(arguments)))
        return self._job.run(self.log.info)

    def environment(self) -> Mapping[str, str]:
        """Variables that the command gets beside those of the task."""
        return storage_variables(self.storage_conn_id)

    def on_kill(self) -> None:
        """Stop the command; Airflow calls this if the running task is cleared, marked or timed out."""
        if self._job is not None:
            self._job.stop()


class MicroBatchOperator(CommandOperator):
    """Advances the pipeline, or recomputes a range; returns the command's summary.

    Parameters
    ----------
    connect_conn_id
        Airflow connection of type Spark Connect, whose server the command uses; without it, the one that ``SPARK_REMOTE`` names, if any.

    Raises
    ------
    JobFailedError
        After a conflict or a crash; Airflow retries the task.
    AirflowFailException
        If a quality rule holds the batch, or the arguments or the spec are wrong; Airflow does not retry.
    """

    def __init__(self, *, connect_conn_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.connect_conn_id = connect_conn_id

    def environment(self) -> Mapping[str, str]:
        if self.connect_conn_id is None:
            return super().environment()
        from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook  # not needed for parsing

        return {**super().environment(), "SPARK_REMOTE": SparkConnectHook(self.connect_conn_id).get_connection_url()}

    def execute(self, context: Context) -> dict[str, Any]:
        with failing_fast(), self.spec.file() as path:
            command = command_of(context, vouches=self.spec.read().time.watermark == "data_interval_end")
            return summary_of(command[0], self.run_job([*command, path, "--json"]))


class MaintainOperator(CommandOperator):
    """Compacts and vacuums the pipeline's tables; keeps everything that a later run may need."""

    def execute(self, context: Context) -> None:  # noqa: ARG002 - Airflow passes it
        with failing_fast(), self.spec.file() as path:
            raise_for("maintain", self.run_job(["maintain", path]))


class QualityReportOperator(PipelineOperator):
    """Writes the pipeline's report page and returns a summary of its last batch, whether published or held.

    It does so in the task's own process: the page takes a tenth of a second of processor time, a command would take a second.
    """

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow passes it
        with storage_environment(self.storage_conn_id):
            return self._report()

    def _report(self) -> dict[str, Any]:
        from windowmill.checkpoints.ledger import Ledger  # not needed for parsing
        from windowmill.checkpoints.places import Places
        from windowmill.jobs.report import write_report

        pipeline = self.spec.read()
        with redacting():
            latest = Ledger.open(pipeline).newest
        if latest is None:
            raise AirflowSkipException(f"{pipeline.pipeline} has no batch yet, so there is nothing to report")
        with redacting():
            write_report(pipeline)
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


class AnnounceOperator(PipelineOperator):
    """Sends the sink's asset event for all batches committed since the last event; is skipped if there is nothing to announce.

    This is a separate task because Airflow sends an event for every outlet of a successful task, and a micro-batch that publishes nothing
    succeeds too. It reads the ledger instead of the micro-batch's summary, because an attempt that died after its commit returned none.

    Parameters
    ----------
    asset
        Asset of the pipeline's sink.
    """

    def __init__(self, *, asset: Asset, **kwargs: Any) -> None:
        # Also an inlet, to read the asset's earlier events.
        super().__init__(inlets=[asset], outlets=[asset], **kwargs)
        self.asset = asset

    def execute(self, context: Context) -> dict[str, Any]:
        from windowmill.checkpoints.ledger import Ledger  # not needed for parsing

        pipeline = self.spec.read()
        with redacting(), storage_environment(self.storage_conn_id):
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
