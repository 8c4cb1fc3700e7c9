"""The tasks of a pipeline's DAGs, for the factory and for hand-written DAGs. They have no template fields: a spec is never rendered."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, BaseOperator, ExceptionRetryPolicy, RetryAction, RetryRule
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from windowmill.checkpoints.places import Places
from windowmill.dags.commands import CommandProcess, CommandResult, command_of, failing_fast, printed_summary, raise_for, summary_of
from windowmill.dags.links import PAGES
from windowmill.dags.metrics import count_batches, gauge_pipeline
from windowmill.dags.schedules import defaults_of, report_warnings
from windowmill.dags.specs import Spec, redacting
from windowmill.windowing.axis import from_us
from windowmill.windowing.counts import Counts
from windowmill.windowing.errors import SpecError
from windowmill.windowing.redaction import redacted
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from airflow.sdk import Asset, Context

    from windowmill.checkpoints.batches import Batch

#: Type of connection -> parts of it, or fields of its extra, and the variables that they become.
_VARIABLES: Mapping[str, Mapping[str, str]] = {
    "aws": {
        "login": "AWS_ACCESS_KEY_ID",
        "password": "AWS_SECRET_ACCESS_KEY",
        "aws_session_token": "AWS_SESSION_TOKEN",
        "region_name": "AWS_REGION",
        "endpoint_url": "AWS_ENDPOINT_URL",
        "profile_name": "AWS_PROFILE",
    },
    "google_cloud_platform": {"key_path": "GOOGLE_SERVICE_ACCOUNT", "keyfile_dict": "GOOGLE_SERVICE_ACCOUNT_KEY"},
    "wasb": {
        "login": "AZURE_STORAGE_ACCOUNT_NAME",
        "password": "AZURE_STORAGE_ACCOUNT_KEY",
        "sas_token": "AZURE_STORAGE_SAS_TOKEN",
        "tenant_id": "AZURE_STORAGE_TENANT_ID",
    },
}
#: Number of newest events to read: overlapping announcements and manual events may be newer than the one with the highest batch.
EVENTS_READ = 50


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
        """Variables that the command gets in addition to the task's."""
        return storage_variables(self.storage_conn_id)

    def on_kill(self) -> None:
        """Stop the command; Airflow calls this if the running task is cleared, marked or timed out."""
        if self._job is not None:
            self._job.stop()


class ComputingOperator(CommandOperator):
    """Base of the tasks whose command computes a batch.

    Parameters
    ----------
    connect_conn_id
        Airflow connection of type Spark Connect, whose server the command uses; without it, the one that ``SPARK_REMOTE`` names, if any.
    """

    operator_extra_links = PAGES

    def __init__(self, *, connect_conn_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.connect_conn_id = connect_conn_id
        self._summary: dict[str, Any] | None = None

    def environment(self) -> Mapping[str, str]:
        if self.connect_conn_id is None:
            return super().environment()
        from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook  # not needed for parsing

        return {**super().environment(), "SPARK_REMOTE": SparkConnectHook(self.connect_conn_id).get_connection_url()}

    def computed(self, command: Sequence[str], context: Mapping[str, Any]) -> dict[str, Any]:
        """Run the command, count the batches that it has committed, report their warnings, and return its summary."""
        finished = self.run_job([*command, "--json"])
        # Also of a command that has failed at a later batch: no other task counts and reports these.
        if batches := (printed_summary(finished) or {}).get("batches", ()):
            pipeline = self.spec.read()
            count_batches(pipeline.pipeline, batches)
            with storage_environment(self.storage_conn_id):
                report_warnings(pipeline, batches, context)
        self._summary = summary_of(command[0], finished)
        return self._summary

    def get_openlineage_facets_on_complete(self, task_instance: object) -> Any:  # noqa: ARG002 - the OpenLineage provider passes it
        from windowmill.dags.lineage import lineage_of  # needs the provider

        with storage_environment(self.storage_conn_id):
            return lineage_of(self.spec.read(), self._summary)


class MicroBatchOperator(ComputingOperator):
    """Advances the pipeline, or recomputes a range; returns the command's summary.

    Raises
    ------
    JobFailedError
        After a conflict or a crash; Airflow retries the task.
    AirflowFailException
        If a quality rule holds the batch, or the arguments or the spec are wrong or changed; Airflow does not retry.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        with failing_fast(), self.spec.file() as path:
            command = command_of(context, asserts_interval=self.spec.read().asserts_interval)
            return self.computed([*command, path], context)


class MaintainOperator(CommandOperator):
    """Compacts and vacuums the pipeline's tables; keeps everything that a later run may need."""

    def execute(self, context: Context) -> None:  # noqa: ARG002 - Airflow passes it
        with failing_fast(), self.spec.file() as path:
            raise_for("maintain", self.run_job(["maintain", path]))


class VerifyOperator(CommandOperator):
    """Recomputes a random sample of published rows from the source; fails if one differs, with the rows in its log.

    Parameters
    ----------
    sample
        Number of rows.
    """

    def __init__(self, *, sample: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sample = sample

    def execute(self, context: Context) -> None:  # noqa: ARG002 - Airflow passes it
        with failing_fast(), self.spec.file() as path:
            finished = self.run_job(["verify", path, "--sample", str(self.sample)])
            self.log.info("%s", redacted(finished.output))
            raise_for("verify", finished)


class QualityReportOperator(PipelineOperator):
    """Writes the pipeline's report page and returns a summary of its last batch, whether published or held.

    It fails if the newest event breaks a critical freshness rule, which judges no batch where nothing arrives.

    It does so in the task's own process: the page takes a tenth of a second of processor time, a command would take a second.
    """

    operator_extra_links = PAGES

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow passes it
        with storage_environment(self.storage_conn_id):
            return self._report()

    def get_openlineage_facets_on_complete(self, task_instance: object) -> Any:  # noqa: ARG002 - the OpenLineage provider passes it
        from windowmill.dags.lineage import quality_of  # needs the provider

        with storage_environment(self.storage_conn_id):
            return quality_of(self.spec.read())

    def _report(self) -> dict[str, Any]:
        from windowmill.checkpoints.ledger import Ledger  # not needed for parsing
        from windowmill.jobs.report.page import staleness_of, write_report

        pipeline = self.spec.read()
        with redacting():
            ledger = Ledger.open(pipeline)
            latest = ledger.newest
        if latest is None:
            raise AirflowSkipException(f"{pipeline.pipeline} has no batch yet, so there is nothing to report")
        with redacting():
            write_report(pipeline)
        gauge_pipeline(pipeline, latest, ledger.last_commit, datetime.now(UTC))
        places = Places.of(pipeline)
        result = {
            **{name: getattr(latest, name) for name in ("number", "action", "status", "verdict")},
            **latest.counts.shown(),
            "report": redacted(places.report),
            "docs": redacted(f"{places.docs}/index.html"),
            "quality": redacted(places.quality),
        }
        for name, value in result.items():
            self.log.info("%s: %s", name, value)
        last = ledger.last_commit
        for severity, message in staleness_of(pipeline, last.seen if last else None, datetime.now(UTC)):
            if severity == "critical":
                raise AirflowFailException(f"{pipeline.pipeline} is stale: {message}; check what fills its source")
            self.log.warning("%s is stale: %s", pipeline.pipeline, message)
        return result


class AnnounceOperator(PipelineOperator):
    """Sends the sink's asset event for all batches committed since the last event; is skipped if there is nothing to announce.

    This is a separate task because Airflow sends an event for every outlet of a successful task, and a micro-batch that publishes nothing
    succeeds too. It reads the ledger instead of the micro-batch's summary, because an attempt that died after its commit returned none.

    The ledger lists the batches, and Airflow's stored events of the asset show which of them were announced. Airflow stores an event in the
    transaction that marks its task as successful. So if an announcement is lost, the next event covers its batches. A batch is announced
    twice only if stored events are missing or two announcements overlap; consumers can drop such duplicates by the event's batch range.

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
        # Manual events, and those of a ledger with another identity, announce nothing of this one.
        extras: list[Any] = [event.extra for event in earlier if event.extra and event.extra.get("generation") == ledger.generation]
        through = max((extra["batches"][-1] for extra in extras if extra.get("batches")), default=-1)
        batches = [batch for batch in ledger.since(through + 1) if batch.status == "committed" and batch.number > through]
        # A backfill that publishes no rows still removes the old rows of its range, as a restoration removes those of later batches.
        if not any(
            batch.counts.rows_published or batch.plan.goes_back or (batch.is_backfill and batch.verdict != "discarded") for batch in batches
        ):
            raise AirflowSkipException("nothing has been published since the last event, so no one needs to know")
        extra = extra_of(batches, ledger.generation, context)
        context["outlet_events"][self.asset].extra = extra
        self.log.info("batches %d to %d: %d rows", *extra["batches"], extra["rows"])
        return extra


def default_args_of(pipeline: Pipeline, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Default arguments of the tasks of the pipeline's DAGs; its spec overrides those of all pipelines, and ``given`` ones override both.

    A held batch and a refused command raise ``AirflowFailException``, which Airflow never retries. The policy covers what a task refuses
    in its own process, such as a spec that it cannot read.
    """
    of_all = {
        "owner": "windowmill",
        "retries": 3,
        "retry_delay": timedelta(seconds=30),
        "retry_exponential_backoff": True,
        "max_retry_delay": timedelta(minutes=10),
        "retry_policy": ExceptionRetryPolicy(
            [RetryRule("windowmill.windowing.errors.RefusedError", RetryAction.FAIL, reason="refused; no retry mends it")],
        ),
    }
    return {**of_all, **defaults_of(pipeline), **(given or {})}


def storage_variables(conn_id: str | None) -> dict[str, str]:
    """The variables of the Airflow connection ``conn_id``; none without one.

    Raises ``SpecError`` if it is of another type than ``aws``, ``google_cloud_platform`` and ``wasb``.
    """
    if conn_id is None:
        return {}
    connection = BaseHook.get_connection(conn_id)
    known = _VARIABLES.get(connection.conn_type or "")
    if known is None:
        raise SpecError(
            f"storage_conn_id: the connection {conn_id} is of type {connection.conn_type!r}; expected one of {', '.join(_VARIABLES)}, or "
            "leave it out and set the variables on the workers"
        )
    parts: dict[str, Any] = connection.extra_dejson | {"login": connection.login, "password": connection.password}
    found = {variable: str(parts[name]) for name, variable in known.items() if parts.get(name)}
    if found.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        found["AWS_ALLOW_HTTP"] = "true"
    return found


@contextmanager
def storage_environment(conn_id: str | None) -> Iterator[None]:
    """Put the variables of the connection into the environment of this task's process."""
    added = storage_variables(conn_id)
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def extra_of(batches: Sequence[Batch], generation: str, context: Mapping[str, Any]) -> dict[str, Any]:
    """The event's extra for ``batches`` (at least one), as JSON values."""
    counts = sum((batch.counts for batch in batches), Counts())
    ends = [
        tuple(end if batch.integer_axis else from_us(end).isoformat().replace("+00:00", "Z") for end in batch.counts.window_ends)
        for batch in batches
        if batch.counts.window_ends
    ]
    verdicts = [batch.verdict for batch in batches if batch.verdict]
    extra: dict[str, Any] = {
        "rows": counts.rows_published,
        "windows": counts.rows_of_windows(),
        "window_end_min": min((first for first, _ in ends), default=None),
        "window_end_max": max((last for _, last in ends), default=None),
        # The verdict is "passed" only if all batches passed, so that no consumer misses a warning.
        "verdict": next((verdict for verdict in verdicts if verdict != "passed"), verdicts[0] if verdicts else None),
        "batches": [batches[0].number, batches[-1].number],
        "generation": generation,
        "rows_late": counts.rows_late,
        "rows_quarantined": counts.rows_quarantined,
    }
    for name in ("data_interval_start", "data_interval_end"):
        if context.get(name) is not None:
            extra[name] = context[name].astimezone(UTC).isoformat()
    return extra
