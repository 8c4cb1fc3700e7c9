"""From an Airflow run to the command that it stands for, and from the command's summary to what consumers are told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from dags.process import JobHeldError, JobRefusedError
from windowing.errors import SpecError

#: What a manual run may be told; anything else in ``dag_run.conf`` is refused.
PARAMS = ("from", "to", "max_batches")


def command_of(context: Mapping[str, Any], *, vouches: bool = False) -> list[str]:
    """The windowmill command (without spec) that a DAG run stands for.

    A run of type backfill recomputes its data interval, a manual one with ``from`` and ``to`` that range. Every other run advances the
    pipeline by its ledger, whatever interval Airflow has in mind: what has been done already is not done again.

    Parameters
    ----------
    context
        Of the task; keys that belong to an interval are absent in runs without one.
    vouches
        Whether the end of the data interval is the watermark (``time.watermark: data_interval_end``).

    Raises
    ------
    SpecError
        When ``dag_run.conf`` or the params hold what no run understands.
    """
    dag_run, params = context["dag_run"], context.get("params") or {}
    unknown = sorted(set(dag_run.conf or {}) - set(PARAMS))
    if unknown:
        raise SpecError(f"dag_run.conf: unknown {', '.join(map(repr, unknown))}; known are {', '.join(PARAMS)}")
    start, end, max_batches = (params.get(name) for name in PARAMS)
    # An enum or its value, depending on who made the context.
    if getattr(dag_run.run_type, "value", dag_run.run_type) == "backfill":
        if not (start is end is max_batches is None):
            raise SpecError("dag_run.conf: a backfill recomputes each run's own data interval; leave from, to and max_batches out")
        interval = context.get("data_interval_start"), context.get("data_interval_end")
        if None in interval:
            raise SpecError("this backfill run has no data interval to recompute; trigger a run with from and to instead")
        return _recompute(*interval)
    if (start is None) != (end is None):
        raise SpecError(f"params: got from={start!r}, to={end!r}; give both (windows that end in (from, to] are recomputed) or neither")
    if start is not None:
        if max_batches is not None:
            raise SpecError("params: max_batches limits a run that advances; a range from … to is recomputed in one batch")
        return _recompute(_instant("from", start), _instant("to", end))
    command = ["run"] if max_batches is None else ["run", "--max-batches", str(int(max_batches))]
    if vouches and context.get("data_interval_end") is not None:
        command += ["--data-interval-end", f"{context['data_interval_end'].astimezone(UTC):%Y-%m-%dT%H:%M:%S}"]
    return command


@contextmanager
def failing_fast() -> Iterator[None]:
    """Turn what no retry can mend into the exception that Airflow does not retry."""
    try:
        yield
    except (JobHeldError, JobRefusedError, SpecError) as err:
        raise AirflowFailException(str(err)) from err


def extra_of(summary: Mapping[str, Any], context: Mapping[str, Any]) -> dict[str, Any]:
    """What the asset event tells its consumers about a run, as JSON values."""
    batches = summary.get("batches") or []
    windows: dict[str, int] = {}
    for batch in batches:
        for name, rows in (batch.get("windows") or {}).items():
            windows[name] = windows.get(name, 0) + rows
    verdicts = [batch["verdict"] for batch in batches if batch.get("verdict")]
    extra = {
        "rows": _total(batches, "rows_published"),
        "windows": windows,
        "window_end_min": min((batch["window_end_min"] for batch in batches if batch.get("window_end_min")), default=None),
        "window_end_max": max((batch["window_end_max"] for batch in batches if batch.get("window_end_max")), default=None),
        # One warned batch makes the event a warned one: a consumer that minds should not miss it.
        "verdict": next((verdict for verdict in verdicts if verdict != "passed"), verdicts[0] if verdicts else None),
        "batches": [batch["batch"] for batch in batches],
        "rows_late": _total(batches, "rows_late"),
        "rows_quarantined": _total(batches, "rows_quarantined"),
    }
    for name in ("data_interval_start", "data_interval_end"):
        if context.get(name) is not None:
            extra[name] = _utc(context[name])
    return extra


def _total(batches: list[Mapping[str, Any]], column: str) -> int:
    return sum(batch.get(column) or 0 for batch in batches)


def _recompute(start: datetime, end: datetime) -> list[str]:
    if end <= start:
        raise SpecError(f"params: got from={start.isoformat()}, to={end.isoformat()}; expected from to be earlier")
    return ["backfill", "--from", _utc(start), "--to", _utc(end)]


def _instant(name: str, value: object) -> datetime:
    try:
        instant = datetime.fromisoformat(str(value))
    except ValueError as err:
        raise SpecError(f"params: {name}: got {value!r}; expected an instant such as 2013-02-01T00:00:00Z") from err
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def _utc(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat()
