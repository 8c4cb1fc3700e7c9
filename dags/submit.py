"""Runs the micro-batch by spark-submit on the master of an Airflow connection."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException

from windowmill.dags.commands import CommandResult, command_of, failing_fast, raise_for
from windowmill.dags.links import PAGES
from windowmill.dags.metrics import count_batches
from windowmill.dags.schedules import report_warnings
from windowmill.dags.specs import Spec, redacting
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from airflow.sdk import Context

APPLICATION = Path(__file__).absolute().with_name("spark_main.py")

_EXIT_CODE = re.compile(r"Error code is: (\d+)")


class SubmittedBatchOperator(SparkSubmitOperator):
    """As ``MicroBatchOperator``, but spark-submit starts the driver.

    The operator reads the outcome from the ledger, which this worker must be able to reach like the driver: a driver on the cluster has no
    other means of reporting it. Delta's jars and settings are added unless the arguments name others.

    Parameters
    ----------
    spec
        Path of the pipeline's YAML file, as the driver sees it, or the pipeline itself (client mode only: it is passed as a local file).
    **kwargs
        Arguments of ``SparkSubmitOperator``.
    """

    operator_extra_links = PAGES
    template_fields = ()  # a spec's path is not a template

    def __init__(self, *, spec: str | os.PathLike[str] | Pipeline, **kwargs: Any) -> None:
        kwargs.setdefault("application", str(APPLICATION))
        super().__init__(**kwargs)
        self.spec = Spec.of(spec)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]  # Airflow stores any value that a task returns
        from windowmill.jobs.spark.jars import jar_paths
        from windowmill.jobs.spark.spark_settings import DELTA_CONF

        if not (self.jars or self.packages):
            self.jars = ",".join(map(str, jar_paths()))
        # At INFO, Spark logs hundreds of lines, all of which the hook copies to the task's log.
        quiet = {"spark.log.level": "WARN"}
        self.conf = {**DELTA_CONF, **quiet, "spark.pyspark.python": sys.executable, **(self.conf or {})}
        with failing_fast(), self.spec.file() as path:
            command = command_of(context, asserts_interval=self.spec.read().asserts_interval)
            first_new = self._ledger().next_commit
            self.application_args = [*command, path, "--json"]
            try:
                super().execute(context)
            except AirflowException as err:
                if code := _EXIT_CODE.search(str(err)):
                    # The hook has already logged the driver's own message.
                    raise_for(command[0], CommandResult(int(code[1]), "", "see the driver's last line above"))
                raise
            pipeline = self.spec.read()
            batches = [_summary(batch) for batch in self._ledger().since(first_new) if batch.status == "committed"]
            count_batches(pipeline.pipeline, batches)
            report_warnings(pipeline, batches, context)
            return {"pipeline": pipeline.pipeline, "batches": batches}

    def _ledger(self) -> Any:
        from windowmill.checkpoints.ledger import Ledger  # not needed for parsing

        pipeline = self.spec.read()
        with redacting():
            return Ledger.open(pipeline)


def _summary(batch: Any) -> dict[str, Any]:
    outcome, counts = batch.outcome, batch.counts
    return {
        "batch": batch.number,
        "action": batch.action,
        "verdict": batch.verdict,
        **counts.shown(),
        "windows": counts.rows_of_windows(),
        "compute": outcome.compute,
        "timings": outcome.timings,
    }
