"""Derives the windowmill command of an Airflow run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from windowmill.dags.process import JobHeldError
from windowmill.windowing.errors import RefusedError, SpecError
from windowmill.windowing.redaction import redacted

#: Parameters of a manual run; any other name in ``dag_run.conf`` is refused.
PARAMS = ("from", "to", "max_batches")


def command_of(context: Mapping[str, Any], *, vouches: bool = False) -> list[str]:
    """The windowmill command (without spec) for a DAG run.

    A run of type backfill recomputes its data interval, and a manual run with ``from`` and ``to`` recomputes that range. Every other run
    advances the pipeline from its ledger, whatever its data interval, so no batch is repeated.

    Parameters
    ----------
    context
        The task's context; runs without a data interval lack its keys.
    vouches
        Whether the end of the data interval is the watermark (``time.watermark: data_interval_end``).

    Raises
    ------
    SpecError
        If ``dag_run.conf`` or the params are invalid.
    """
    dag_run, params = context["dag_run"], context.get("params") or {}
    unknown = sorted(set(dag_run.conf or {}) - set(PARAMS))
    if unknown:
        raise SpecError(f"dag_run.conf: unknown {', '.join(map(repr, unknown))}; known are {', '.join(PARAMS)}")
    start, end, max_batches = (params.get(name) for name in PARAMS)
    # An enum or its value, depending on the origin of the context.
    if getattr(dag_run.run_type, "value", dag_run.run_type) == "backfill":
        if not (start is end is max_batches is None):
            raise SpecError("dag_run.conf: a backfill recomputes each run's own data interval; leave from, to and max_batches out")
        begin, until = context.get("data_interval_start"), context.get("data_interval_end")
        if begin is None or until is None:
            raise SpecError("this backfill run has no data interval to recompute; trigger a run with from and to instead")
        return _recompute(begin, until)
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


def advances(context: Mapping[str, Any]) -> bool:
    """Whether a DAG run advances the pipeline, so that without new rows it has nothing to do."""
    try:
        return command_of(context)[0] == "run"
    except SpecError:  # the micro-batch says what is wrong
        return False


@contextmanager
def failing_fast() -> Iterator[None]:
    """Raise errors that no retry can fix as the exception that Airflow does not retry."""
    try:
        yield
    except (JobHeldError, RefusedError) as err:
        # Without the cause, which would repeat the message in the log.
        raise AirflowFailException(redacted(str(err))) from None


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
