"""Runs batches until the source is drained, and backfills; one process at a time. Imports Spark only if there is work to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from windowmill.checkpoints import protocol
from windowmill.checkpoints.batches import Plan
from windowmill.checkpoints.commit_stores import check_conditional_writes
from windowmill.checkpoints.kept_tables import tables_kept
from windowmill.checkpoints.lease import lease
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.own_tables import own_tables
from windowmill.checkpoints.protocol import Attempt
from windowmill.checkpoints.runnable import Runnable
from windowmill.jobs.batch import planning
from windowmill.jobs.batch.outcomes import Done, Ruling
from windowmill.jobs.batch.progress import Progress
from windowmill.jobs.batch.spark_use import is_sure_to_use_spark
from windowmill.jobs.batch.warnings import warnings_of
from windowmill.jobs.sources.base import Reading, SourceTable
from windowmill.jobs.sources.reading import Arrival
from windowmill.jobs.spark import launch
from windowmill.jobs.spark.settings import is_short_run
from windowmill.jobs.spec_checks import runnable_of
from windowmill.windowing.errors import OutOfTurnError, ServerGoneError
from windowmill.windowing.spec import Pipeline

#: How long a run waits for another run of the same pipeline on this machine.
LEASE_WAIT_SECONDS = 600.0


def run(
    pipeline: Pipeline,
    progress: Progress,
    *,
    max_batches: int | None = None,
    interval_end: datetime | None = None,
    ruling: Ruling | None = None,
    arrival: Arrival = "log",
    accepted: planning.Accepted = planning.NOTHING_ACCEPTED,
) -> list[Done]:
    """Run batches until the source is drained or ``max_batches`` are done; returns the committed batches.

    Parameters
    ----------
    interval_end
        End of the data interval, up to which the orchestrator guarantees complete input.
    ruling
        What to do with the held batch: publish it anyway, or commit it without its rows. Only that batch is run.
    arrival
        The order in which the rows of a first batch count as arrived: log order where the log still contains it, or event-time order.
    accepted
        Differences to accept: changes by others only before the first batch, edited modules during the whole run.

    Raises
    ------
    HeldError
        If a critical expectation failed; nothing of that batch is published.
    """
    done: list[Done] = []
    with _leased(pipeline, progress) as (runnable, ledger):
        if ruling:
            _require_held(runnable, ledger, ruling)
        while max_batches is None or len(done) < max_batches:
            plan = planning.next_run(
                runnable,
                ledger,
                interval_end=interval_end,
                arrival="log" if done else arrival,
                accepted=replace(accepted, changes=False) if done else accepted,
                on_reading=partial(_begin_spark_if_sure, runnable),
            )
            if plan is None:
                break
            done.append(_execute(runnable, plan, ledger, progress, ruling))
            if ruling:
                break
    return done


def backfill(
    pipeline: Pipeline,
    progress: Progress,
    *,
    begin: int,
    end: int,
    arrival: Arrival = "log",
    accepted: planning.Accepted = planning.NOTHING_ACCEPTED,
) -> Done:
    """Recompute the windows that end in (``begin``, ``end``], instants on the axis, from the source's history in one batch.

    ``arrival`` is the order in which the rows count as arrived: the order in which earlier batches read them, or event-time order.
    """
    with _leased(pipeline, progress) as (runnable, ledger):
        plan = planning.next_backfill(runnable, ledger, begin=begin, end=end, arrival=arrival, accepted=accepted, on_reading=_begin_spark)
        return _execute(runnable, plan, ledger, progress, None)


def abandon(pipeline: Pipeline, progress: Progress) -> Plan:
    """Abandon the open batch; raises ``OutOfTurnError`` if no batch is open, or if any of its rows have landed."""
    with _leased(pipeline, progress) as (runnable, ledger):
        if ledger.open_batch is None:
            raise OutOfTurnError(f"pipeline {pipeline.pipeline}: no batch is open, so there is nothing to abandon; see `windowmill status`")
        plan = ledger.open_batch.plan
        protocol.abandon(plan, pipeline.pipeline, ledger, own_tables(runnable), datetime.now(UTC))
        return plan


@contextmanager
def _leased(pipeline: Pipeline, progress: Progress) -> Iterator[tuple[Runnable, Ledger]]:
    """Hold the pipeline's lease, and open its ledger."""
    runnable = runnable_of(pipeline)
    check_conditional_writes(runnable.places.root, [runnable.sink_path, runnable.places.root], progress.say)
    with lease(runnable.places.root, wait_seconds=LEASE_WAIT_SECONDS, on_wait=progress.say), tables_kept():
        yield runnable, Ledger.open(pipeline)


def _begin_spark(_source: SourceTable, reading: Reading) -> None:
    launch.begin(brief=is_short_run(reading.size_bytes))


def _begin_spark_if_sure(runnable: Runnable, source: SourceTable, reading: Reading) -> None:
    if is_sure_to_use_spark(runnable, source, reading):
        _begin_spark(source, reading)


def _execute(runnable: Runnable, plan: Plan, ledger: Ledger, progress: Progress, ruling: Ruling | None) -> Done:
    progress.timings.clear()
    progress.say(f"{runnable.name}: batch {plan.batch}: {plan.describe(instants=runnable.pipeline.time.unit is None)}")
    from windowmill.jobs.batch.steps import run_batch  # imports Spark; a run that finds nothing new does not need it

    try:
        done = run_batch(runnable, plan, ledger, progress, ruling)
    except ServerGoneError as err:
        # Another attempt at the same plan, as a new run would make it; where no server answers it starts Spark in this process.
        progress.say(f"  {err}; batch {plan.batch} begins anew")
        progress.timings.clear()
        done = run_batch(runnable, plan, ledger, progress, ruling)
    for line in warnings_of(done.commit, runnable.pipeline, runnable.places):
        progress.say(f"  warning: {line}")
    return done


def _require_held(runnable: Runnable, ledger: Ledger, ruling: Ruling) -> None:
    if ledger.open_batch is None or ledger.open_batch.status != "held":
        raise OutOfTurnError(f"pipeline {runnable.name}: no batch is held, so there is nothing to {ruling}; see `windowmill status`")
    Attempt(ledger.open_batch.plan, runnable.name, ledger, own_tables(runnable)).require(ruling)
