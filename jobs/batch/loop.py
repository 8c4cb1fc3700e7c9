"""Runs the batches of a pipeline, one process at a time; Spark is imported only if there is work to do."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from deltalake.exceptions import DeltaError

from windowmill.checkpoints import current, protocol, stores
from windowmill.checkpoints.batches import Changes, Outcome, Plan, RestatePlan
from windowmill.checkpoints.delta_tables import tables_kept
from windowmill.checkpoints.ledger import Ledger, Notes
from windowmill.checkpoints.own_tables import own_tables
from windowmill.checkpoints.places import Places, Runnable
from windowmill.checkpoints.protocol import check_conditional_writes, lease
from windowmill.checkpoints.rewriting import KeysFile
from windowmill.checkpoints.stores import is_table, use_options_of
from windowmill.jobs.batch import planning
from windowmill.jobs.batch.engine import compute_of
from windowmill.jobs.batch.planning import has_brief_use, is_sure_to_use_spark
from windowmill.jobs.batch.progress import CommittedBatch, Progress, Ruling, warnings_of
from windowmill.jobs.batch.spark_committer import tables_of
from windowmill.jobs.batch.window_history import check_discarded
from windowmill.jobs.runnables import runnable_of
from windowmill.jobs.sources.base import Reading, SourceTable, open_source
from windowmill.jobs.sources.reading import Arrival, History
from windowmill.jobs.spark import launch
from windowmill.jobs.spec_checks import not_run, refuse_first, rule_problems
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.errors import LocalComputeError, OutOfTurnError, ServerGoneError, UnsupportedError
from windowmill.windowing.registry import imported
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from windowmill.jobs.batch.restating import Restatement

#: How long a run waits for another run of the same pipeline on this machine.
LEASE_WAIT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Expected:
    """The position of a pipeline when a plan was made: the identity of its ledger, and the number of the next batch."""

    generation: str
    batch: int

    @classmethod
    def of(cls, ledger: Ledger) -> Expected:
        return cls(ledger.generation, ledger.count)


class Turn:
    """A process's turn at a pipeline: it holds the lease, and has published the last batch. Every command that changes tables uses one.

    ``done`` are the committed batches of the turn; the last batch of an earlier run is among them if its commits were made by this one.
    """

    def __init__(self, runnable: Runnable, ledger: Ledger, progress: Progress, done: list[CommittedBatch] | None = None) -> None:
        self.runnable, self.pipeline, self.ledger, self.progress = runnable, runnable.pipeline, ledger, progress
        self.done = [] if done is None else done
        self._source: SourceTable | None = None

    def catch_up(self) -> None:
        """Bring the input of a pipeline over another one's results up to date, unless a batch is held: its plan has pinned the input."""
        if self.runnable.source.pipeline is not None and self.ledger.held_batch is None:
            imported("windowmill.jobs.sources.chains:sync")(self.runnable, self.ledger, self.progress.step)

    def reads(self, source: SourceTable, reading: Reading) -> None:
        """Planning calls this with what the batch will read: starts Spark early if the batch is sure to use it."""
        self._source = source
        if is_sure_to_use_spark(self.runnable, source, reading):
            launch.begin(brief=has_brief_use(self.runnable, source, reading))

    def execute(self, plan: Plan) -> CommittedBatch | None:
        """Compute, validate, record and publish the batch of ``plan``; null if it would change nothing."""
        source, self._source = self._source, None
        if source is not None:
            source.remember(plan.to_version)  # fixes the versions that it reads, before any work
        restatement = self._restatement(plan)
        if restatement is not None and restatement.touches_nothing:
            return None
        self.progress.timings.clear()
        if plan.recomputes:
            plan = Notes(self.runnable.places.finished).resumed(plan)
        self.announce(plan)
        from windowmill.jobs.batch.steps import run_batch  # imports Spark; a run that finds nothing new does not need it

        try:
            done = run_batch(self.runnable, plan, self.ledger, self.progress, restatement)
        except ServerGoneError as err:
            # Make another attempt, as a new run would; if no server answers, it starts Spark in this process.
            self.progress.say(f"  {err}; batch {plan.batch} starts again")
            self.progress.timings.clear()
            plan = replace(plan, attempt=uuid.uuid4().hex[:12])
            done = run_batch(self.runnable, plan, self.ledger, self.progress, self._restatement(plan))
        if done is not None:
            self._warn(done)
        return done

    def rewrite(
        self, plan: Plan, outcome: Outcome, changes: Iterable[tuple[str, Changes]], doing: str = "", *, quietly: bool = False
    ) -> CommittedBatch:
        """Execute ``plan``, which removes rows from tables and computes none.

        ``changes``: pairs of a table's role and its changes; taking a pair writes the files. A later pair of the same role replaces the
        earlier one. ``doing``: what this does, for messages; ``quietly`` prints none.
        """
        tables, written = tables_of(self.runnable), dict[str, Changes]()
        step: Callable[[str, str], AbstractContextManager[None]] = (lambda *_: nullcontext()) if quietly else self.progress.step
        try:
            with step("restore" if plan.goes_back else "rewrite", doing):
                written.update(changes)
                if self.runnable.current_path is not None and "sink" in written:
                    written["current"] = current.changes_of(self.runnable, self.ledger, plan, written["sink"])
        except BaseException:
            protocol.discard_files(written, tables)
            raise
        with step("record", f"batch {plan.batch}"):
            protocol.record(self.ledger, plan, outcome, written, tables, datetime.now(UTC))
        with step("publish", ", ".join(written) or "nothing"):
            protocol.publish_pending(self.ledger, tables)
        return CommittedBatch(plan, outcome)

    def rule(self, ruling: Ruling | None, accepted: planning.Acceptance, by: str | None) -> CommittedBatch:
        """Publish or drop the held batch's results: by ``ruling`` or, if that is null, by validating them again under the present rules."""
        held = self.ledger.held_batch
        assert held is not None
        self.ledger.check_meaning(self.pipeline)
        planning.check_tables(self.runnable, self.ledger, accepted)
        self.progress.timings.clear()
        self.announce(held.plan, " is held")
        if ruling:
            verdict = {"release": "released", "discard": "discarded"}[ruling]
            done = CommittedBatch(held.plan, protocol.rule(self.ledger, verdict, tables_of(self.runnable), datetime.now(UTC), by=by))
        else:
            from windowmill.jobs.batch.finishing import validate_again

            refuse_first(self.pipeline, rule_problems(self.pipeline))
            done = validate_again(self.runnable, held, self.ledger, self.progress)
        self._warn(done)
        return done

    def announce(self, plan: Plan, is_held: str = "") -> None:
        what = plan.describe(instants=not self.pipeline.time.integer_axis)
        self.progress.say(f"{self.runnable.name}: batch {plan.batch}{is_held}: {what}")

    def _restatement(self, plan: Plan) -> Restatement | None:
        if not isinstance(plan, RestatePlan):
            return None
        from windowmill.jobs.batch.restating import Restatement  # imports numba

        return Restatement.of(self.runnable, plan, open_source(self.pipeline), self.ledger, self.progress)

    def _warn(self, done: CommittedBatch) -> None:
        for line in warnings_of(done.outcome.counts, self.pipeline, self.runnable.places):
            self.progress.say(f"  warning: {line}")


@contextmanager
def leased(pipeline: Pipeline, progress: Progress, *, changes: bool = False) -> Iterator[Turn]:
    """Hold the lease, and publish a batch whose run died after its record; ``changes`` accepts rows that others have changed."""
    ask_locations(pipeline, progress.say)
    runnable = runnable_of(pipeline)
    places = [runnable.sink_path, runnable.places.root, *(() if runnable.current_path is None else (runnable.current_path,))]
    check_conditional_writes(runnable.places.root, places, progress.say)
    with lease(runnable.places.root, wait_seconds=LEASE_WAIT_SECONDS, on_wait=progress.say), tables_kept():
        ledger = Ledger.open(pipeline)
        planning.check_owner(pipeline, ledger)
        made, newest = protocol.publish_pending(ledger, tables_of(runnable), accept_changes=changes), ledger.newest
        done = progress.committed = []
        if made and newest is not None:
            progress.say(f"{runnable.name}: batch {newest.number} was recorded by an earlier run; made the {made} commits that it lacked")
            if newest.status == "committed":
                done.append(CommittedBatch(newest.plan, newest.outcome))
        if newest is not None and newest.plan.purges and KeysFile(ledger.path, newest.plan.attempt).is_there:
            from windowmill.jobs.batch.finishing import forget  # loads what other runs do not need

            forget(runnable, ledger)
        yield Turn(runnable, ledger, progress, done)
        register_new(pipeline, progress.say)


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

    - ``interval_end``: end of the data interval, up to which the orchestrator guarantees complete input.
    - ``ruling``: what to do with the held batch: publish it anyway, or commit it without its rows. Only that batch is run.
    - ``held``: with ``ruling``, the number that the held batch must have; null for any.
    - ``by``: with ``ruling``, who rules; the ledger records it.
    - ``arrival``: the order in which the rows of a first batch count as arrived: log order where the log still contains it, or event-time
      order.
    - ``accepted``: differences to accept: changes by others only before the first batch, edited modules during the whole run.

    Raises ``HeldError`` if a critical expectation failed; nothing of that batch is published.
    """
    with leased(pipeline, progress, changes=accepted.changes) as turn:
        done = turn.done
        turn.catch_up()
        if ruling or turn.ledger.held_batch:
            if ruling:
                _check_held(turn, ruling, held)
            done.append(turn.rule(ruling, accepted, by))
            if not ruling:
                turn.catch_up()
        elif (applied := _changed(turn)) is not None:
            done.append(applied)
        while not ruling and (max_batches is None or len(done) < max_batches):
            plan = planning.next_run(
                turn.runnable,
                turn.ledger,
                interval_end=interval_end,
                arrival="log" if done else arrival,
                accepted=replace(accepted, changes=False) if done else accepted,
                on_reading=turn.reads,
            )
            if plan is None or (batch := turn.execute(plan)) is None:
                break
            done.append(batch)
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
    """Recompute windows that end in (``begin``, ``end``] on the axis in one batch; ``history`` chooses the rows and their order."""
    with leased(pipeline, progress, changes=accepted.changes) as turn:
        if turn.done and turn.done[0].plan.range == (begin, end):
            return turn.done[0]
        turn.catch_up()
        plan = planning.next_backfill(
            turn.runnable,
            turn.ledger,
            begin=begin,
            end=end,
            history=history,
            accepted=accepted,
            on_reading=turn.reads,
            on_other_rows=lambda why: progress.say(f"{turn.runnable.name}: {why}; --as-arrived reads what earlier batches read"),
        )
        backfilled = turn.execute(plan)
        assert backfilled is not None  # it replaces rows
        return backfilled


def restate(
    pipeline: Pipeline,
    progress: Progress,
    *,
    changed: tuple[int, int] | None = None,
    ends: tuple[int | None, int | None] = (None, None),
    late: bool = False,
    files: Sequence[str] = (),
    lookup: str | None = None,
    accepted: planning.Acceptance = planning.NOTHING_ACCEPTED,
) -> list[CommittedBatch]:
    """Recompute windows and state from the source as it is now; returns the batches, none if there was nothing to restate.

    Without ``changed``, ``ends``, ``late``, ``files`` and ``lookup``, batches run through the last unread version that changed rows.

    - ``changed``: first and last version, read already, whose changed rows are restated.
    - ``ends``: only windows that end in this range (begin, end] are published again; null for no bound.
    - ``late``: whether rows that were quarantined as too late count from now on.
    - ``files``: files of a folder that were delivered again, or removed; their current rows replace those that were read.
    - ``lookup``: name of a lookup whose table has changed; rows that look up what changed count with its present rows.
    """
    with leased(pipeline, progress, changes=accepted.changes) as turn:
        runnable, ledger, done = turn.runnable, turn.ledger, turn.done
        turn.catch_up()
        if changed is None and ends == (None, None) and not late and not files and lookup is None:
            through = planning.last_change(runnable, ledger)
            while through is not None and ledger.last_commit is not None and ledger.last_commit.to_version < through:
                done.append(_advanced(turn, accepted))
            return done
        plan = planning.next_restatement(
            runnable, ledger, changed=changed, ends=ends, late=late, files=files, lookup=lookup, accepted=accepted, on_reading=turn.reads
        )
        restated = None if plan is None else turn.execute(plan)
        return done if restated is None else [*done, restated]


def run_to_change(turn: Turn, accepted: planning.Acceptance) -> list[CommittedBatch]:
    """Run batches over the unread versions before the first one that changed rows."""
    done: list[CommittedBatch] = []
    while planning.reads_before_change(turn.runnable, turn.ledger):
        done.append(_advanced(turn, accepted))
    return done


def _advanced(turn: Turn, accepted: planning.Acceptance) -> CommittedBatch:
    """Execute the next batch of a source that has unread versions, be it a run or a restatement."""
    plan = planning.next_run(turn.runnable, turn.ledger, restates=True, accepted=accepted)
    done = None if plan is None else turn.execute(plan)
    assert done is not None
    return done


def apply(
    pipeline: Pipeline,
    progress: Progress,
    *,
    history: int | None,
    recompute: bool = False,
    expected: Expected | None = None,
    accept_changes: bool = False,
    by: str | None = None,
) -> CommittedBatch | None:
    """Carry out a changed spec in one batch; null if there is nothing to do.

    - ``history``: windows that are new, or get new values, are published if they end after this instant; null to publish none.
    - ``recompute``: whether all windows are recomputed by changed settings of time.
    - ``expected``: the position of the pipeline for which a kept plan was made.
    - ``accept_changes``: whether to accept that others have changed rows of the pipeline's tables.
    - ``by``: who has approved the change; the ledger records it.

    Raises ``SpecChangedError`` if the spec cannot be applied; ``OutOfTurnError`` if the pipeline has moved past ``expected``, or a batch is
    held.
    """
    from windowmill.jobs.batch.applying import next_apply

    with leased(pipeline, progress, changes=accept_changes) as turn:
        ledger, done = turn.ledger, turn.done
        if done and done[0].plan.changes_spec and pipeline.means(done[0].plan.definition, done[0].plan.meaning):
            return done[0]
        turn.catch_up()
        found = next_apply(
            turn.runnable, ledger, history=history, recompute=recompute, accept_changes=accept_changes, on_reading=turn.reads
        )
        if found is not None and expected not in (None, Expected.of(ledger)):
            raise OutOfTurnError(
                f"pipeline {pipeline.pipeline}: has moved past the plan, which was not made for batch {ledger.count}, the next one; "
                "make another plan by `windowmill plan`"
            )
        ledger.asked_by = by
        return None if found is None else turn.execute(found.plan)


def _changed(turn: Turn) -> CommittedBatch | None:
    """Say what a changed spec means, and apply it if it has ``apply: auto`` and only adds; otherwise planning refuses it."""
    pipeline, last = turn.pipeline, turn.ledger.newest_kept
    if last is None or pipeline.means(last.plan.definition, last.plan.meaning):
        return None
    from windowmill.jobs.batch import applying

    changes = applying.changes_of(pipeline, turn.ledger)
    assert changes is not None
    for line in applying.lines_of(changes):
        turn.progress.say(f"  {line}")
    if pipeline.apply != "auto" or not changes.only_add:
        return None
    found = applying.next_apply(turn.runnable, turn.ledger, history=AXIS_BEGIN, on_reading=turn.reads)
    return None if found is None else turn.execute(found.plan)


def abandon(pipeline: Pipeline, progress: Progress) -> Plan:
    """Abandon the held batch; raises ``OutOfTurnError`` if none is held, as the rows of every other batch have been published."""
    with leased(pipeline, progress) as turn:
        held = turn.ledger.held_batch
        if held is None:
            raise OutOfTurnError(f"pipeline {pipeline.pipeline}: no batch is held, so there is nothing to abandon; see `windowmill status`")
        protocol.rule(turn.ledger, "abandoned", own_tables(turn.runnable), datetime.now(UTC))
        return held.plan


def _check_held(turn: Turn, ruling: Ruling, number: int | None) -> None:
    runnable, ledger, held = turn.runnable, turn.ledger, turn.ledger.held_batch
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


Say = Callable[[str], None]
#: Prefix under which the record names a sink that has still to be registered.
_NEW = "new "


def ask_locations(pipeline: Pipeline, say: Say) -> None:
    """Record the places of the tables that the spec names, unless they are recorded; starts Spark only for that.

    A source that is gone from its recorded place is looked up again: it may have been renamed, or moved.

    Raises ``SourceMissingError`` if the catalog has no such source; ``LocalComputeError`` if Spark has to be asked, and must not be used.
    """
    tables = stores.named(pipeline)
    if not tables:
        return
    problem = next(not_run(pipeline), None)
    if problem:
        raise UnsupportedError(f"pipeline {pipeline.pipeline}: {problem[0]}: {problem[1]}")
    use_options_of(pipeline)
    known = stores.recorded(pipeline)
    unknown = {field: table for field, table in tables.items() if table not in known or (field == "source" and _is_gone(pipeline))}
    if not unknown:
        return
    _check_compute(pipeline)
    from windowmill.jobs.spark import session

    spark = session.session_for(pipeline, say)
    for field, table in unknown.items():
        location = session.location_of(spark, table)
        if location is None and field != "sink":
            raise session.not_found(spark, f"{field}.table", table)
        if location is None:
            location = session.location_for(spark, table)
            known[f"{_NEW}{table}"] = location
        known[table] = location
        say(f"{pipeline.pipeline}: {field}.table: {table} lies at {location}; recorded in {Places.of(pipeline).root}")
    stores.record(pipeline, known)


def _is_gone(pipeline: Pipeline) -> bool:
    """Whether the source is certainly not at its recorded place any more."""
    source = stores.located(pipeline).source
    try:
        return source is not None and source.path is not None and not is_table(source.path)
    except (OSError, DeltaError):
        return False


def register_new(pipeline: Pipeline, say: Say) -> None:
    """Register the sink in the catalog if it has been made since its place was recorded."""
    table = stores.named(pipeline).get("sink")
    known = stores.recorded(pipeline) if table is not None else {}
    location = known.get(f"{_NEW}{table}")
    if table is None or location is None or not is_table(location):
        return
    _check_compute(pipeline)
    from windowmill.jobs.spark import session

    session.register(session.session_for(pipeline, say), table, location)
    stores.record(pipeline, {name: place for name, place in known.items() if name != f"{_NEW}{table}"})
    say(f"{pipeline.pipeline}: sink.table: {table} is registered in the catalog")


def _check_compute(pipeline: Pipeline) -> None:
    if compute_of(pipeline) == "local":
        raise LocalComputeError(
            f"pipeline {pipeline.pipeline}: only Spark's catalog knows where its tables lie, and compute is local; run it once with "
            "WINDOWMILL_COMPUTE=spark, or give the path of each"
        )
