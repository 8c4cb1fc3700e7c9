"""The sensor that waits for new versions of a pipeline's source."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator
from airflow.triggers.base import StartTriggerArgs

from windowmill.dags.commands import JobFailedError, JobRefusedError, advances, failing_fast
from windowmill.dags.specs import Spec
from windowmill.dags.triggers import SourceVersionTrigger
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from airflow.sdk import Context


class SourceVersionSensor(BaseSensorOperator):
    """Waits until the pipeline's source has a version with rows that the pipeline has not read, according to its ledger.

    It waits in the triggerer from the beginning to the end, so it takes no slot and starts no process. Runs that recompute a range (of
    type backfill, or with ``from`` and ``to``) do not wait.

    Parameters
    ----------
    spec
        Path of the pipeline's YAML file, as each worker and the triggerer see it, or the pipeline itself.
    wait_for_table
        Whether to wait for a source that does not exist yet; otherwise the task fails.
    **kwargs
        As for any sensor: ``poke_interval`` (60 s), ``timeout`` (7 days), ``soft_fail`` to be skipped instead of failing.
    """

    template_fields = ()  # a spec's path is not a template

    def __init__(self, *, spec: str | os.PathLike[str] | Pipeline, wait_for_table: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.spec = Spec.of(spec)
        self.wait_for_table = wait_for_table
        self.start_from_trigger = True
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls=f"{SourceVersionTrigger.__module__}.{SourceVersionTrigger.__name__}",
            trigger_kwargs=self._trigger().serialize()[1],
            next_method="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def execute(self, context: Context) -> None:
        """Defer; only where no scheduler does it, as in ``dag.test()``."""
        if advances(context):
            self.defer(trigger=self._trigger(), method_name="execute_complete", timeout=timedelta(seconds=self.timeout))

    def execute_complete(self, context: Context, event: Any = None) -> None:  # noqa: ARG002 - Airflow passes it
        if isinstance(event, dict) and "error" in event:
            with failing_fast():
                raise (JobRefusedError if event.get("refused") else JobFailedError)(event["error"])

    def _trigger(self) -> SourceVersionTrigger:
        return SourceVersionTrigger(
            path=self.spec.path, fields=self.spec.fields, poke_interval=self.poke_interval, wait_for_table=self.wait_for_table
        )
