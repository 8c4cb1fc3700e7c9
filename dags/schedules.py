"""When a pipeline's DAG runs: at the instants of its spec's schedule, after an asset's events, or when its source has new versions."""

from __future__ import annotations

import functools
import os
from typing import Any

from airflow.sdk import Asset, AssetWatcher, CronDataIntervalTimetable
from croniter import croniter

from windowmill.dags.specs import Spec, name_of, read_pipeline, redacting
from windowmill.windowing.errors import SpecError
from windowmill.windowing.spec import SCHEDULE_WORDS, Pipeline

#: Airflow's meaning of ``@quarterly``, the one schedule word that croniter does not know.
_QUARTERLY = "0 0 1 */3 *"


def timetable_of(spec: str | os.PathLike[str] | Pipeline, pipeline: Pipeline) -> Any:
    """The argument ``schedule`` of the pipeline's DAG; raises ``SpecError`` if the spec's schedule is not valid."""
    schedule = pipeline.schedule
    if schedule is None:
        return None
    if not isinstance(schedule, str):
        return [Asset.ref(name=schedule.asset)]
    _check_cron(name_of(spec), schedule)
    return cron_timetable(schedule)


@functools.cache
def cron_timetable(schedule: str) -> CronDataIntervalTimetable:
    """The timetable of a cron expression, shared by all DAGs that have it."""
    # Only this timetable gives scheduled, manual and backfill runs the same aligned intervals; a plain cron string gives empty ones.
    return CronDataIntervalTimetable(schedule, timezone="UTC")


def new_versions_of(spec: str | os.PathLike[str] | Pipeline, *, cron: str | None = None) -> Asset:
    """An asset that gets an event when the pipeline's source has rows that the pipeline has not read.

    In a DAG: ``schedule=[new_versions_of(spec)]``.

    Parameters
    ----------
    spec
        Path of the pipeline's YAML file, as the triggerer sees it, or the pipeline itself.
    cron
        When to look, in UTC; without it, the spec's ``schedule``.

    Raises
    ------
    SpecError
        If the spec is wrong, or neither says when to look.
    """
    return source_asset(spec, read_pipeline(spec), cron)


def source_asset(spec: str | os.PathLike[str] | Pipeline, pipeline: Pipeline, cron: str | None = None) -> Asset:
    """As :func:`new_versions_of`, for a ``pipeline`` that has been read."""
    from windowmill.dags.triggers import NewVersionsTrigger, trigger_spec

    where = name_of(spec)
    check_new_versions(where, pipeline)
    cron = cron or (pipeline.schedule if isinstance(pipeline.schedule, str) else None)
    if cron is None:
        raise SpecError(f"{where}: schedule: got no cron expression; it says when to look for new versions of the source")
    _check_cron(where, cron)
    name = f"{pipeline.pipeline}__source"
    trigger = NewVersionsTrigger(**trigger_spec(Spec.of(spec)), cron=_QUARTERLY if cron == "@quarterly" else cron)
    # What this pipeline has not read is not the table itself, which may be an asset of its own.
    return Asset(name=name, uri=f"windowmill:{name}", group="windowmill", watchers=[AssetWatcher(name=name, trigger=trigger)])


def check_new_versions(where: str, pipeline: Pipeline) -> None:
    """Refuse ``new_versions`` for a pipeline whose windows an interval without rows completes too; ``where`` names the spec.

    Raises ``SpecError`` if the watermark is the end of the data interval.
    """
    if pipeline.time.watermark == "data_interval_end":
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
