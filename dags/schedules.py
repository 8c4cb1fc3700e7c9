"""What a spec says of its DAGs: when they run, their default arguments, and whom failed tasks and batches with warnings alert.

A DAG runs at the instants of the spec's ``schedule``, or after an asset's events. A function that ``airflow`` names takes a task's
context; a notifier of Airflow is one, too. It is imported when it is called: DAGs parse without it.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, CronDataIntervalTimetable
from croniter import croniter

from windowmill.dags.links import page_of
from windowmill.dags.specs import identity_of, name_of, redacting
from windowmill.windowing.errors import SpecError
from windowmill.windowing.fields import AirflowSettings
from windowmill.windowing.redaction import redacted
from windowmill.windowing.registry import imported
from windowmill.windowing.spec import SCHEDULE_WORDS, Pipeline

#: Key of the context under which an ``on_warning`` function finds what the warning is about.
ABOUT = "windowmill"
_log = logging.getLogger(__name__)


def timetable_of(spec: str | os.PathLike[str] | Pipeline, pipeline: Pipeline) -> Any:
    """The argument ``schedule`` of the pipeline's DAG; raises ``SpecError`` if the spec's schedule is not valid.

    Without one, a pipeline over another one's results runs after each event of the other sink's asset.
    """
    schedule = pipeline.schedule
    if schedule is None:
        return None if pipeline.upstream is None else [sink_asset(pipeline.upstream)]
    if not isinstance(schedule, str):
        return [Asset.ref(name=schedule.asset)]
    _check_cron(name_of(spec), schedule)
    return cron_timetable(schedule)


def sink_asset(pipeline: Pipeline) -> Asset:
    """The asset of the pipeline's sink, named like the pipeline, so that ``schedule: {asset: <pipeline>}`` follows it."""
    sink = pipeline.sink
    if sink is None:
        raise SpecError(f"{pipeline.pipeline}: sink: missing; without a table there is nothing to follow")
    if sink.path is None:
        return Asset(name=pipeline.pipeline, uri=f"windowmill:{sink.table}", group="windowmill")
    uri = identity_of(sink.path) if "://" in sink.path else Path(sink.path).absolute().as_uri()
    return Asset(name=pipeline.pipeline, uri=uri, group="windowmill")


@functools.cache
def cron_timetable(schedule: str) -> CronDataIntervalTimetable:
    """The timetable of a cron expression, shared by all DAGs that have it."""
    # Only this timetable gives scheduled, manual and backfill runs the same aligned intervals; a plain cron string gives empty ones.
    return CronDataIntervalTimetable(schedule, timezone="UTC")


def check_new_versions(where: str, pipeline: Pipeline) -> None:
    """Refuse ``new_versions`` for a pipeline whose windows an interval without rows completes too; ``where`` names the spec.

    Raises ``SpecError`` if the watermark is the end of the data interval.
    """
    if pipeline.asserts_interval:
        raise SpecError(
            f"{where}: time.watermark: got data_interval_end, with which an interval without rows completes windows too; "
            "let it run at each instant of its schedule, or use watermark: max_event_time"
        )


def _check_cron(where: str, schedule: str) -> None:
    # Airflow checks the expression only when it stores the DAG, and then reports the whole file instead of this field.
    if schedule in SCHEDULE_WORDS or _is_cron(schedule):
        return
    with redacting():
        raise SpecError(
            f"{where}: schedule: got {schedule!r}; expected five cron fields such as '*/30 * * * *', "
            f"one of {', '.join(sorted(SCHEDULE_WORDS))}, or {{asset: name}}"
        )


@functools.cache
def _is_cron(schedule: str) -> bool:
    return len(schedule.split()) == 5 and bool(croniter.is_valid(schedule))


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
