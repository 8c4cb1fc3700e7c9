"""Runs batches until the source is drained, and backfills; one process at a time. Imports Spark only if there is work to do."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from windowmill.checkpoints import protocol
from windowmill.checkpoints.batches import Changes, Outcome
from windowmill.checkpoints.delta_tables import tables_kept
from windowmill.checkpoints.finished import Notes
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.own_tables import own_tables
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.plans import Plan, RestatePlan
from windowmill.checkpoints.writers import check_conditional_writes, lease
from windowmill.jobs.batch import planning
from windowmill.jobs.batch.catalog import ask_locations, register_new
from windowmill.jobs.batch.engine import has_brief_use, is_sure_to_use_spark
from windowmill.jobs.batch.progress import CommittedBatch, Progress, Ruling, warnings_of
from windowmill.jobs.batch.spark_committer import tables_of
from windowmill.jobs.batch.window_history import check_discarded
from windowmill.jobs.sources.base import Reading, SourceTable
from windowmill.jobs.sources.reading import Arrival, History
from windowmill.jobs.spark import launch
from windowmill.jobs.spec_checks import check_expectations, runnable_of
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.errors import OutOfTurnError, ServerGoneError
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from windowmill.jobs.batch.applying import Application
    from windowmill.jobs.batch.restating import Restatement

#: Times a step; takes its name and what it does.
Step = Callable[[str, str], AbstractContextManager[object]]
#: How long a run waits for another run of the same pipeline on this machine.
LEASE_WAIT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Expected:
    """Where a pipeline was when a plan was made: the identity of its ledger, and the number of the next batch."""

    generation: str
    batch: int

    @classmethod
    def of(cls, ledger: Ledger) -> Expected:
        """Where it is now."""
        return cls(ledger.generation, ledger.count)


def run(
    pipeline: Pipeline,
    progress: Progress,
    *,
    max_batches: int | None = None,
    interval_end: datetime | None = None,
    ruling: Ruling | None = None,
    held: int | None = None,
    by: str | None = None,
    arrival: Arrival = "log",
    accepted: planning.Acceptance = planning.NOTHING_ACCEPTED,
) -> list[CommittedBatch]:
    """Run batches until the source is drained or ``max_batches`` are done; returns the committed batches.

    Parameters
    ----------
    interval_end
        End of the data interval, up to which the orchestrator guarantees complete input.
    ruling
        What to do with the held batch: publish it anyway, or commit it without its rows. Only that batch is run.
    held
        With ``ruling``, the number of the batch that must be the held one; null for whichever is held.
    by
        With ``ruling``, who rules; the ledger records it.
    arrival
        The order in which the rows of a first batch count as arrived: log order where the log still contains it, or event-time order.
    accepted
        Differences to accept: changes by others only before the first batch, edited modules during the whole run.

    Raises
    ------
    HeldError
        If a critical expectation failed; nothing of that batch is published.
    """
    with leased(pipeline, progress, changes=accepted.changes) as (runnable, ledger, done):
        if ruling or ledger.held_batch:
            if ruling:
                _check_held(runnable, ledger, ruling, held)
            done.append(_rule(runnable, ledger, progress, ruling, accepted, by))
        else:
            done.extend(_changed(runnable, ledger, progress))
        while not ruling and (max_batches is None or len(done) < max_batches):
            plan = planning.next_run(
                runnable,
                ledger,
                interval_end=interval_end,
                arrival="log" if done else arrival,
                accepted=replace(accepted, changes=False) if done else accepted,
                on_reading=(planned := _Planned(runnable)),
            )
            if plan is None:
                break
            planned.remember(plan)
            done.append(_execute(runnable, plan, ledger, progress))
    return done


def backfill(
    pipeline: Pipeline,
    progress: Progress,
    *,
    begin: int,
    end: int,
    history: History = "current",
    accepted: planning.Acceptance = planning.NOTHING_ACCEPTED,
) -> CommittedBatch:
    """Recompute the windows that end in (``begin``, ``end``], instants on the axis, from the source's history in one batch.

    ``history`` says which rows count, and in which order: those that the table holds now, in the order in which earlier batches read them
    as far as it has only appended; those that earlier batches read; or those of the table in event-time order.
    """
    with leased(pipeline, progress, changes=accepted.changes) as (runnable, ledger, done):
        if done and done[0].plan.range == (begin, end):
            return done[0]
        planned = _Planned(runnable)
        plan = planning.next_backfill(
            runnable,
            ledger,
            begin=begin,
            end=end,
            history=history,
            accepted=accepted,
            on_reading=planned,
            on_other_rows=lambda why: progress.say(f"{runnable.name}: {why}; --as-arrived reads what earlier batches read"),
        )
        planned.remember(plan)
        return _execute(runnable, plan, ledger, progress)


def restate(
    pipeline: Pipeline,
    progress: Progress,
    *,
    changed: tuple[int, int] | None = None,
    ends: tuple[int | None, int | None] = (None, None),
    late: bool = False,
    files: Sequence[str] = (),
    accepted: planning.Acceptance = planning.NOTHING_ACCEPTED,
) -> list[CommittedBatch]:
    """Compute windows and state anew from the source as it is now; returns the batches, none if nothing was to be restated.

    Without ``changed``, ``ends``, ``late`` and ``files`` these are batches through the last version that changed rows of those that no
    batch has read.

    Parameters
    ----------
    changed
        First and last version, read already, whose changed rows are restated.
    ends
        Only windows that end in this range (begin, end] are shown anew; null for no bound.
    late
        Whether rows that were quarantined as too late count from now on.
    files
        Files of a folder that were delivered again, or taken away, and count as they are now.
    """
    with leased(pipeline, progress, changes=accepted.changes) as (runnable, ledger, done):
        if changed is None and ends == (None, None) and not late and not files:
            through = planning.last_change(runnable, ledger)
            while through is not None and ledger.last_commit is not None and ledger.last_commit.to_version < through:
                plan = planning.next_run(runnable, ledger, restates=True, accepted=accepted)
                assert plan is not None
                done.append(_execute(runnable, plan, ledger, progress))
            return done
        planned = _Planned(runnable)
        plan = planning.next_restatement(
            runnable, ledger, changed=changed, ends=ends, late=late, files=files, accepted=accepted, on_reading=planned
        )
        planned.remember(plan)
        restatement = _restatement(runnable, plan, ledger, progress)
        if restatement is None or restatement.touches_nothing:
            return done
        restated = _attempted(runnable, plan, ledger, progress, restatement)
        return done if restated is None else [*done, restated]


def run_to_change(runnable: Runnable, ledger: Ledger, progress: Progress, accepted: planning.Acceptance) -> list[CommittedBatch]:
    """Run batches over what the source has appended before its first unread version that changed rows; the lease must be held."""
    done: list[CommittedBatch] = []
    while planning.reads_before_change(runnable, ledger):
        plan = planning.next_run(runnable, ledger, restates=True, accepted=accepted)
        assert plan is not None
        done.append(_execute(runnable, plan, ledger, progress))
    return done


def _restatement(runnable: Runnable, plan: Plan, ledger: Ledger, progress: Progress) -> Restatement | None:
    """What ``plan`` computes anew, if it is a restatement."""
    if not isinstance(plan, RestatePlan):
        return None
    from windowmill.jobs.batch.restating import Restatement  # imports numba
    from windowmill.jobs.sources.kinds import open_source

    return Restatement.of(runnable, plan, open_source(runnable.pipeline), ledger, progress)


def apply(
    pipeline: Pipeline,
    progress: Progress,
    *,
    history: int | None,
    expected: Expected | None = None,
    accept_changes: bool = False,
    by: str | None = None,
) -> CommittedBatch | None:
    """Carry out a changed spec in one batch; null if there is nothing to do.

    Parameters
    ----------
    history
        Windows that are new, or get new values, are published where they end after this instant; null for none.
    expected
        The position of the pipeline for which a kept plan was made.
    accept_changes
        Whether to go on although others have changed rows of the pipeline's tables.
    by
        Who has approved the change; the ledger records it.

    Raises
    ------
    SpecChangedError
        If the spec cannot be applied.
    OutOfTurnError
        If the pipeline has moved past ``expected``, or a batch is held.
    """
    with leased(pipeline, progress, changes=accept_changes) as (runnable, ledger, done):
        if done and done[0].plan.changes_spec and pipeline.means(done[0].plan.definition, done[0].plan.meaning):
            return done[0]
        found = _application(runnable, ledger, history, accept_changes=accept_changes)
        if found is not None and expected not in (None, Expected.of(ledger)):
            raise OutOfTurnError(
                f"pipeline {pipeline.pipeline}: has moved past the plan, which was not made for batch {ledger.count}, the next one; "
                "make another plan by `windowmill plan`"
            )
        ledger.asked_by = by
        return None if found is None else _execute(runnable, found.plan, ledger, progress)


def _changed(runnable: Runnable, ledger: Ledger, progress: Progress) -> list[CommittedBatch]:
    """Say what a changed spec means, and carry it out if the spec allows that (``apply: auto``); otherwise planning refuses it."""
    pipeline, last = runnable.pipeline, ledger.newest_kept
    if last is None or pipeline.means(last.plan.definition, last.plan.meaning):
        return []
    from windowmill.jobs.batch import applying

    changes = applying.changes_of(pipeline, ledger)
    assert changes is not None
    for line in applying.lines_of(changes):
        progress.say(f"  {line}")
    if pipeline.apply != "auto" or not changes.only_add:
        return []
    found = _application(runnable, ledger, AXIS_BEGIN)
    return [] if found is None else [_execute(runnable, found.plan, ledger, progress)]


def _application(runnable: Runnable, ledger: Ledger, history: int | None, *, accept_changes: bool = False) -> Application | None:
    from windowmill.jobs.batch import applying

    planned = _Planned(runnable)
    found = applying.next_apply(runnable, ledger, history=history, accept_changes=accept_changes, on_reading=planned)
    if found is not None:
        planned.remember(found.plan)
    return found


def abandon(pipeline: Pipeline, progress: Progress) -> Plan:
    """Abandon the held batch; raises ``OutOfTurnError`` if none is held, as the rows of every other batch have been published."""
    with leased(pipeline, progress) as (runnable, ledger, _):
        held = ledger.held_batch
        if held is None:
            raise OutOfTurnError(f"pipeline {pipeline.pipeline}: no batch is held, so there is nothing to abandon; see `windowmill status`")
        protocol.rule(ledger, "abandoned", own_tables(runnable), datetime.now(UTC))
        return held.plan


@contextmanager
def leased(pipeline: Pipeline, progress: Progress, *, changes: bool = False) -> Iterator[tuple[Runnable, Ledger, list[CommittedBatch]]]:
    """Hold the pipeline's lease, open its ledger, and finish the batch of a run that died after its record; also gives that batch."""
    ask_locations(pipeline, progress.say)
    runnable = runnable_of(pipeline)
    check_conditional_writes(runnable.places.root, [runnable.sink_path, runnable.places.root], progress.say)
    with lease(runnable.places.root, wait_seconds=LEASE_WAIT_SECONDS, on_wait=progress.say), tables_kept():
        ledger = Ledger.open(pipeline)
        planning.check_owner(pipeline, ledger)
        made, newest = protocol.publish_pending(ledger, tables_of(runnable), accept_changes=changes), ledger.newest
        done = progress.committed = []
        if made and newest is not None:
            progress.say(f"{runnable.name}: batch {newest.number} was recorded by an earlier run; made the {made} commits that it lacked")
            if newest.status == "committed":
                done.append(CommittedBatch(newest.plan, newest.outcome))
        if newest is not None and newest.plan.purges:
            from windowmill.jobs.batch.forgetting import forget  # loads what other runs do not need

            forget(runnable, ledger)
        yield runnable, ledger, done
        register_new(pipeline, progress.say)


class _Planned:
    """Called with the source that a plan will read: keeps it, and begins to start Spark where the batch is sure to use it."""

    def __init__(self, runnable: Runnable) -> None:
        self._runnable = runnable
        self._source: SourceTable | None = None

    def __call__(self, source: SourceTable, reading: Reading) -> None:
        self._source = source
        if is_sure_to_use_spark(self._runnable, source, reading):
            launch.begin(brief=has_brief_use(self._runnable, source, reading))

    def remember(self, plan: Plan) -> None:
        """Fix the versions that ``plan`` reads, before any work."""
        if self._source is not None:
            self._source.remember(plan.to_version)


def rewrite(
    runnable: Runnable, ledger: Ledger, plan: Plan, outcome: Outcome, changes: Iterable[tuple[str, Changes]], doing: str, step: Step
) -> CommittedBatch:
    """Execute ``plan``, which takes rows out of tables and computes none; the lease must be held.

    Parameters
    ----------
    changes
        Writes the files, table by table: the role of each, and its changes; later ones of a role replace earlier ones.
    doing
        What that does, for messages.
    """
    tables, written = tables_of(runnable), dict[str, Changes]()
    try:
        with step("restore" if plan.goes_back else "rewrite", doing):
            written.update(changes)
    except BaseException:
        protocol.discard_files(written, tables)
        raise
    with step("record", f"batch {plan.batch}"):
        protocol.record(ledger, plan, outcome, written, tables, datetime.now(UTC))
    with step("publish", ", ".join(written) or "nothing"):
        protocol.publish_pending(ledger, tables)
    return CommittedBatch(plan, outcome)


def announce(runnable: Runnable, plan: Plan, progress: Progress) -> None:
    """Say what the batch of ``plan`` does."""
    progress.say(f"{runnable.name}: batch {plan.batch}: {plan.describe(instants=not runnable.pipeline.time.integer_axis)}")


def _execute(runnable: Runnable, plan: Plan, ledger: Ledger, progress: Progress) -> CommittedBatch:
    """Execute ``plan``, which changes something: it reads versions that no batch has read, or replaces rows."""
    done = _attempted(runnable, plan, ledger, progress, _restatement(runnable, plan, ledger, progress))
    assert done is not None
    return done


def _attempted(
    runnable: Runnable, plan: Plan, ledger: Ledger, progress: Progress, restatement: Restatement | None
) -> CommittedBatch | None:
    """Execute ``plan``, by its ``restatement`` if it is one; null if that changes nothing."""
    progress.timings.clear()
    if plan.recomputes:
        plan = Notes(runnable.places.finished).resumed(plan)
    announce(runnable, plan, progress)
    from windowmill.jobs.batch.steps import run_batch  # imports Spark; a run that finds nothing new does not need it

    try:
        done = run_batch(runnable, plan, ledger, progress, restatement)
    except ServerGoneError as err:
        # Another attempt, as a new run would make it; where no server answers it starts Spark in this process.
        progress.say(f"  {err}; batch {plan.batch} begins anew")
        progress.timings.clear()
        plan = replace(plan, attempt=uuid.uuid4().hex[:12])
        done = run_batch(runnable, plan, ledger, progress, _restatement(runnable, plan, ledger, progress))
    if done is not None:
        _warn(runnable, done, progress)
    return done


def _check_held(runnable: Runnable, ledger: Ledger, ruling: Ruling, number: int | None) -> None:
    held = ledger.held_batch
    if held is None:
        ruled = next((batch for batch in ledger.batches() if batch.number == number and batch.verdict in ("released", "discarded")), None)
        by = f" by {ruled.ruled_by}" if ruled and ruled.ruled_by else ""
        what = f"batch {number} has been {ruled.verdict}{by}" if ruled else "no batch is held"
        raise OutOfTurnError(f"pipeline {runnable.name}: {what}, so there is nothing to {ruling}; see `windowmill status`")
    if number is not None and held.number != number:
        raise OutOfTurnError(
            f"pipeline {runnable.name}: batch {held.number} is held, not batch {number}; look at its report before you {ruling} it"
        )
    if ruling == "discard":
        check_discarded(runnable.pipeline, ledger, held)


def _rule(
    runnable: Runnable, ledger: Ledger, progress: Progress, ruling: Ruling | None, accepted: planning.Acceptance, by: str | None
) -> CommittedBatch:
    """Publish or drop the held batch's results: as ``ruling`` says, else as another validation by the present rules."""
    held = ledger.held_batch
    assert held is not None
    ledger.check_meaning(runnable.pipeline)
    planning.check_tables(runnable, ledger, accepted)
    progress.timings.clear()
    progress.say(f"{runnable.name}: batch {held.number} is held: {held.plan.describe(instants=not runnable.pipeline.time.integer_axis)}")
    if ruling:
        verdict = {"release": "released", "discard": "discarded"}[ruling]
        done = CommittedBatch(held.plan, protocol.rule(ledger, verdict, tables_of(runnable), datetime.now(UTC), by=by))
    else:
        from windowmill.jobs.batch.closing import validate_again

        check_expectations(runnable.pipeline)
        done = validate_again(runnable, held, ledger, progress)
    _warn(runnable, done, progress)
    return done


def _warn(runnable: Runnable, done: CommittedBatch, progress: Progress) -> None:
    for line in warnings_of(done.outcome.counts, runnable.pipeline, runnable.places):
        progress.say(f"  warning: {line}")
