"""Runs and backfills: batch after batch until the source is drained, one process at a time. Imports Spark only if there is work to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from windowmill.checkpoints import protocol
from windowmill.checkpoints.batches import Plan
from windowmill.checkpoints.kept_tables import tables_kept
from windowmill.checkpoints.lease import lease
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.own_tables import own_tables
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.protocol import Attempt
from windowmill.jobs import planning
from windowmill.jobs.alerts import warnings_of
from windowmill.jobs.outcomes import Done, Ruling
from windowmill.jobs.progress import Progress
from windowmill.jobs.sources.reading import Arrival
from windowmill.jobs.spec_checks import check_runnable
from windowmill.windowing.axis import from_us
from windowmill.windowing.errors import LedgerError
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
        Accepted differences. Changes by others are accepted only before the first batch, edited modules during the whole run.

    Raises
    ------
    HeldError
        If a critical expectation failed; nothing of that batch is published.
    """
    done: list[Done] = []
    with _turn(pipeline, progress) as (places, ledger):
        if ruling:
            _require_held(pipeline, ledger, ruling)
        while max_batches is None or len(done) < max_batches:
            plan = planning.next_run(
                pipeline,
                ledger,
                interval_end=interval_end,
                arrival="log" if done else arrival,
                accepted=replace(accepted, changes=False) if done else accepted,
            )
            if plan is None:
                break
            done.append(_carry_out(pipeline, plan, ledger, places, progress, ruling))
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

    ``arrival`` is the order in which the rows count as arrived: that in which earlier batches read them, or event-time order.
    """
    with _turn(pipeline, progress) as (places, ledger):
        plan = planning.next_backfill(pipeline, ledger, begin=begin, end=end, arrival=arrival, accepted=accepted)
        return _carry_out(pipeline, plan, ledger, places, progress, None)


def abandon(pipeline: Pipeline, progress: Progress) -> Plan:
    """Abandon the open batch; raises ``LedgerError`` if no batch is open, or if any of its rows have landed."""
    with _turn(pipeline, progress) as (_, ledger):
        if ledger.open_batch is None:
            raise LedgerError(f"pipeline {pipeline.pipeline}: no batch is open, so there is nothing to abandon; see `windowmill status`")
        plan = ledger.open_batch.plan
        protocol.abandon(plan, pipeline.pipeline, ledger, own_tables(pipeline), datetime.now(UTC))
        return plan


@contextmanager
def _turn(pipeline: Pipeline, progress: Progress) -> Iterator[tuple[Places, Ledger]]:
    check_runnable(pipeline)
    places = Places.of(pipeline)
    with lease(places.root, wait_seconds=LEASE_WAIT_SECONDS, on_wait=progress.say), tables_kept():
        yield places, Ledger.open(pipeline)


def _carry_out(pipeline: Pipeline, plan: Plan, ledger: Ledger, places: Places, progress: Progress, ruling: Ruling | None) -> Done:
    from windowmill.jobs.run import run_batch  # Spark; a run that finds nothing new never gets here

    progress.timings.clear()
    progress.say(f"{pipeline.pipeline}: batch {plan.batch}: {_describe(plan, instants=pipeline.time.unit is None)}")
    done = run_batch(pipeline, plan, ledger, places, progress, ruling)
    for line in warnings_of(done.commit, places):
        progress.say(f"  warning: {line}")
    return done


def _require_held(pipeline: Pipeline, ledger: Ledger, ruling: Ruling) -> None:
    if ledger.open_batch is None or ledger.open_batch.status != "held":
        raise LedgerError(f"pipeline {pipeline.pipeline}: no batch is held, so there is nothing to {ruling}; see `windowmill status`")
    Attempt(ledger.open_batch.plan, pipeline.pipeline, ledger, own_tables(pipeline)).require(ruling)


def _describe(plan: Plan, *, instants: bool) -> str:
    versions = f"source versions {plan.from_version + 1} to {plan.to_version}"
    if plan.snapshot is not None:
        versions += f", from the snapshot at version {plan.snapshot}, in event-time order"
    if plan.action == "run":
        return versions if plan.to_version > plan.from_version else "no new rows, a later watermark"
    begin, end = (f"{from_us(t):%Y-%m-%d %H:%M}" if instants else str(t) for t in plan.range)
    return f"backfill of the windows that end after {begin} through {end}, from {versions}"
