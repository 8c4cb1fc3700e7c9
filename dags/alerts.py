"""What a spec's ``airflow`` says of its DAGs, and the functions that it names: called for a failed task, and for batches with warnings.

A function takes the task's context; a notifier of Airflow is one, too. It is imported when it is called, so that DAGs parse without it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windowmill.dags.links import page_of
from windowmill.windowing.fields import AirflowSettings
from windowmill.windowing.redaction import redacted
from windowmill.windowing.registry import imported

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline

#: Key of a context under which a function that ``on_warning`` names finds what it is about.
ABOUT = "windowmill"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Callback:
    """The function at ``place`` (``module:name``); equal at each parse, as Airflow compares what DAGs hold."""

    place: str

    def __call__(self, context: Mapping[str, Any]) -> None:
        """Call it with a context; what it raises is logged, as an alert that fails must not fail the task."""
        try:
            imported(self.place)(context)
        except Exception:  # noqa: BLE001 - it is the user's function
            _log.exception("%s could not be called", self.place)


def settings_of(pipeline: Pipeline) -> AirflowSettings:
    """The settings of the pipeline's DAGs, the default ones where its spec has none."""
    return pipeline.airflow if isinstance(pipeline.airflow, AirflowSettings) else AirflowSettings()


def defaults_of(pipeline: Pipeline) -> dict[str, Any]:
    """Those default arguments of the pipeline's tasks that its spec sets."""
    settings = settings_of(pipeline)
    given = {"retries": settings.retries, "owner": settings.owner}
    called = None if settings.on_failure is None else Callback(settings.on_failure)
    return {name: value for name, value in {**given, "on_failure_callback": called}.items() if value is not None}


def report_warnings(pipeline: Pipeline, batches: Iterable[Mapping[str, Any]], context: Mapping[str, Any]) -> None:
    """Call what ``on_warning`` names if some of ``batches``, as the summary of a command has them, have warnings."""
    place = settings_of(pipeline).on_warning
    warned = [batch["batch"] for batch in batches if batch["verdict"] == "warned"]
    if place is None or not warned:
        return
    about = {
        "pipeline": pipeline.pipeline,
        "batches": warned,
        "rules": _rules(pipeline, warned),
        "report": page_of(pipeline.pipeline, "report.html"),
    }
    Callback(place)({**context, ABOUT: about})


def _rules(pipeline: Pipeline, batches: Iterable[int]) -> list[dict[str, Any]]:
    """The rules that ``batches`` do not meet; none where the table of results cannot be read."""
    from windowmill.checkpoints.places import Places  # not needed for parsing
    from windowmill.jobs.report.quality import read_failures

    try:
        path = Places.of(pipeline).quality
        return [
            {"batch": batch, "rule": each.title, "column": each.column, "severity": each.severity, "message": redacted(each.message)}
            for batch in batches
            for each in read_failures(path, batch)
        ]
    except Exception:  # noqa: BLE001 - the batches have been committed, whatever cannot be read of them
        _log.exception("the rules that batches do not meet cannot be read")
        return []
