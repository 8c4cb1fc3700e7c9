"""Executes one batch: compute → validate → record → publish → compact.

Tasks write files beside the tables that these are for. The record in the ledger, which names the files, is the commit point: before it a
crash leaves files that no one reads, after it only commits are to be made, by whoever comes next (:mod:`windowmill.checkpoints.protocol`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial

from pyspark.sql import SparkSession

from windowmill.checkpoints import protocol
from windowmill.checkpoints.batches import Batch, Changes, Commit, Plan
from windowmill.checkpoints.failpoints import reach
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.state.base import is_overgrown, is_scattered
from windowmill.checkpoints.state.compaction import compact_entries, overgrown_from
from windowmill.checkpoints.state.partials import NeededRows, compact_partials
from windowmill.checkpoints.state.reading import open_state
from windowmill.checkpoints.stores import is_table
from windowmill.checkpoints.upkeep import merge_if_many
from windowmill.expectations.engine import load_in_background
from windowmill.expectations.gate import Verdict
from windowmill.expectations.suites import rules
from windowmill.jobs.batch import engine, losses, validating
from windowmill.jobs.batch.compute import ComputedBatch, Job, compute_by_spark, compute_in_a_task, compute_locally
from windowmill.jobs.batch.engine import has_brief_use
from windowmill.jobs.batch.progress import CommittedBatch, Progress
from windowmill.jobs.batch.spark_committer import tables_of
from windowmill.jobs.batch.validating import ResultFiles, may_need_evaluation, validate_files
from windowmill.jobs.schedulers.spark.task_output import read_files
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.kinds import open_source
from windowmill.jobs.sources.reading import reading_of
from windowmill.jobs.spark import failures
from windowmill.jobs.spark.access import access_to
from windowmill.jobs.spark.session import import_client, spark_session
from windowmill.jobs.spark.shipping import shipment_of
from windowmill.jobs.spark.usage import Usage
from windowmill.jobs.ways import limits
from windowmill.jobs.ways.limits import OnlySparkError, TooLargeError
from windowmill.windowing.columnar.results import result_schema
from windowmill.windowing.errors import ServerGoneError, WindowmillError, first_line

#: Why a batch may need Spark that is computed without it.
_ONLY_SPARK_EVALUATES = "only Spark evaluates one of its rules"
#: Interval in batches at which the quality and quarantine tables are compacted if they have many small files.
MERGED_EVERY = 16


def run_batch(runnable: Runnable, plan: Plan, ledger: Ledger, progress: Progress) -> CommittedBatch:
    """Execute ``plan``.

    Raises
    ------
    HeldError
        If a critical expectation failed: the batch is recorded, but nothing of it is published until it is ruled on.
    """
    with _steps(runnable, plan, ledger, progress) as batch:
        computed = batch.compute()
        verdict = batch.validate(computed)
        outcome = batch.record(computed, verdict)
        batch.publish(outcome, verdict)
        batch.compact(computed)
        return CommittedBatch(plan, outcome)


class _Steps:
    """The steps of one batch."""

    def __init__(self, runnable: Runnable, plan: Plan, ledger: Ledger, progress: Progress) -> None:
        self.runnable, self.plan, self.ledger, self.progress = runnable, plan, ledger, progress
        self.pipeline, self.places = pipeline, places = runnable.pipeline, runnable.places
        self.spark = cache(self._start_spark)
        self.tables = tables_of(runnable, self.spark)
        #: Files that no record names yet, by role of their table.
        self.changes: dict[str, Changes] = {}
        self.usage = Usage(f"{pipeline.pipeline}, batch {plan.batch}")
        progress.around = self.usage.step
        #: Who computed the batch, as its record says it.
        self.engine: dict[str, object] = {}
        import_client()
        if may_need_evaluation(rules(pipeline)):
            load_in_background()
        # The table's columns may have changed since the plan was made.
        source = replace(open_source(pipeline), schema_json=plan.source_schema)
        state = ledger.written().get("state")
        check = open_state(places.state, left_at=None if state is None else state.version)
        self.job = Job.of(runnable, plan, source, reading_of(runnable, source, plan), check)

    def _start_spark(self) -> SparkSession:
        if engine.compute_of(self.pipeline) == "local":
            raise engine.refused_locally(self.pipeline, self.plan.batch, _ONLY_SPARK_EVALUATES)
        with self.progress.step("start", "Spark"):
            brief = has_brief_use(self.runnable, self.job.source, self.job.reading)
            shipment = shipment_of(self.pipeline)  # what it holds decides which session of a server is used
            spark = spark_session(f"windowmill {self.pipeline.pipeline}", brief=brief, shipment=shipment, say=self._warn)
            access_to(spark).ship(shipment)
        self.usage.watch(spark)
        return spark

    def _warn(self, what: str) -> None:
        self.progress.say(f"  {what}")

    def compute(self) -> ComputedBatch:
        """Compute the batch into files, which :attr:`changes` lists from then on."""
        reach("compute.begin")
        computed = self._computed()
        self.changes = dict(computed.changes)
        return computed

    def _computed(self) -> ComputedBatch:
        in_a_task = True
        # Without rows there is nothing to distribute: no task is worth its start.
        if engine.tries_this_process(self.pipeline) or not self.job.input.files:
            try:
                computed = compute_locally(self.job, step=self.progress.step)
            except TooLargeError as err:
                if engine.compute_of(self.pipeline) == "local":
                    raise engine.refused_locally(self.pipeline, self.plan.batch, str(err)) from err
                in_a_task = isinstance(err, OnlySparkError)  # else it is too large for one task, too
            else:
                self.engine = {"engine": "local"}
                return computed
        computed = self._computed_by_spark(in_a_task=in_a_task)
        self.engine = self.usage.told(computed.executors)
        return computed

    def _computed_by_spark(self, *, in_a_task: bool) -> ComputedBatch:
        if in_a_task:
            with suppress(TooLargeError):
                return compute_in_a_task(self.job, self.spark(), self.progress.step)
        return compute_by_spark(self.job, self.spark(), self.progress.step)

    def validate(self, computed: ComputedBatch) -> Verdict:
        """The verdict on the rows to publish."""
        reach("validate.begin")
        with self.progress.step("validate", f"{computed.row_count} rows against the expectations"):
            sink, quarantine = self.changes.get("sink", Changes()), self.changes.get("quarantine", Changes())

            lost = read_files(self.places.quarantine, quarantine.adds, losses.COLUMNS)
            first, seen = self.ledger.last_commit is None, computed.emission.seen
            loss = partial(losses.loss_of, lost, self.pipeline, rows_read=computed.rows_read, seen=seen, first=first)
            rows = ResultFiles(self.runnable.sink_path, sink.adds, self.job.input.sink_schema)
            verdict = validate_files(rows, self.pipeline, computed.rows_read, computed.rows_quarantined, loss, self.spark)
        validating.report(verdict, self.progress)
        return verdict

    def record(self, computed: ComputedBatch, verdict: Verdict) -> Commit:
        """Record the batch and the results of its rules in the ledger: the commit point."""
        reach("record.begin")
        with self.progress.step("record", "the batch and its files in the ledger"):
            at = datetime.now(UTC)
            if not self.plan.builds_state and "quarantine" in self.changes:
                # Earlier batches have quarantined these rows already.
                self.tables["quarantine"].remove(self.changes.pop("quarantine").adds)
            quality = validating.quality_changes(self.runnable, self.plan, verdict, "0", at)
            if quality is not None:
                self.changes["quality"] = quality
            outcome = self._outcome(computed, verdict.status)
            changes, self.changes = self.changes, {}  # from here on the protocol decides which files are left over
            protocol.record(self.ledger, self.plan, outcome, changes, self.tables, at)
        self.progress.say(f"  computed by {engine.describe(outcome.compute)}")
        return outcome

    def publish(self, outcome: Commit, verdict: Verdict) -> None:
        """One commit to each table, and the page of the verdict; raises ``HeldError`` if the results must not be published."""
        reach("publish.begin")
        with self.progress.step("publish", f"{outcome.rows_published} rows"):
            protocol.settle(self.ledger, self.tables)
            validating.write_docs(self.runnable, self.plan, verdict, datetime.now(UTC), self.progress)
        if verdict.status == "held":
            raise validating.held_error(self.runnable, self.plan, verdict)

    def compact(self, computed: ComputedBatch) -> None:
        """Compact the tables, so that the cost of reading them does not grow with the number of batches."""
        reach("compact.before")
        try:
            compact_tables(self.job, computed, self.progress)
        except Exception as err:  # noqa: BLE001 - the batch is published; compaction only saves time
            self.progress.say(f"  the tables were not compacted ({first_line(err)})")
        reach("compact.after")

    def release(self) -> None:
        """Delete the files of a batch that has not come to its record."""
        self.progress.around = nullcontext
        self.usage.end()
        protocol.discard_files(self.changes, self.tables)

    def _outcome(self, computed: ComputedBatch, verdict: str) -> Commit:
        emission = computed.emission
        windows = {name: n for name, (n, _, _) in computed.windows.items()}
        return Commit(
            seen=emission.seen,
            emitted=emission.emitted,
            verdict=verdict,
            rows_read=computed.rows_read,
            rows_applied=computed.rows_applied,
            rows_late=computed.rows_late,
            rows_quarantined=computed.rows_quarantined,
            rows_published=sum(windows.values()),
            slices=computed.new_state,
            restored=dict(computed.restored),
            windows=windows,
            window_end_min=min((low for _, low, _ in computed.windows.values()), default=None),
            window_end_max=max((high for _, _, high in computed.windows.values()), default=None),
            timings={name: round(seconds, 3) for name, seconds in self.progress.timings.items()},
            rows_ignored=self.job.reading.rows_ignored,
            compute=self.engine,
        )


def validate_again(runnable: Runnable, held: Batch, ledger: Ledger, progress: Progress) -> CommittedBatch:
    """Validate the files of the ``held`` batch by the rules of now, and publish them unless it is held again.

    Raises
    ------
    HeldError
        If a critical expectation still fails.
    """

    @cache
    def spark() -> SparkSession:
        if engine.compute_of(runnable.pipeline) == "local":
            raise engine.refused_locally(runnable.pipeline, held.number, _ONLY_SPARK_EVALUATES)
        return spark_session(f"windowmill {runnable.name}", brief=True, say=progress.say)

    tables, plan, at = tables_of(runnable, spark), held.plan, datetime.now(UTC)
    with progress.step("validate", f"the rows of batch {plan.batch}, which is held, against the expectations"):
        verdict = _validated_again(runnable, ledger, held, spark)
    validating.report(verdict, progress)
    quality = validating.quality_changes(runnable, plan, verdict, str(held.holds), at)
    with progress.step("publish", f"batch {plan.batch}, which was held"):
        outcome = protocol.rule(ledger, verdict.status, tables, at, validation=quality)
        validating.write_docs(runnable, plan, verdict, at, progress)
    if verdict.status == "held":
        raise validating.held_error(runnable, plan, verdict)
    return CommittedBatch(plan, outcome)


def _validated_again(runnable: Runnable, ledger: Ledger, held: Batch, spark: Callable[[], SparkSession]) -> Verdict:
    outcome, changes, pipeline = held.outcome, ledger.changes_of(held), runnable.pipeline
    assert outcome is not None
    quarantine = changes.get("quarantine", Changes())
    lost = read_files(f"{runnable.places.held}/_quarantine", quarantine.adds, losses.COLUMNS)
    first = ledger.last_commit is None
    loss = partial(losses.loss_of, lost, pipeline, rows_read=outcome.rows_read, seen=outcome.seen, first=first)
    schema = result_schema(pipeline, Columns.of(held.plan.source_schema).arrow)
    rows = ResultFiles(runnable.places.held, changes["sink"].adds if "sink" in changes else (), schema)
    return validate_files(rows, pipeline, outcome.rows_read, outcome.rows_quarantined, loss, spark)


@contextmanager
def _steps(runnable: Runnable, plan: Plan, ledger: Ledger, progress: Progress) -> Iterator[_Steps]:
    batch: _Steps | None = None
    try:
        batch = _Steps(runnable, plan, ledger, progress)
        yield batch
    except WindowmillError:
        raise
    except Exception as err:
        ours = failures.typed(err, runnable.places.state)
        if isinstance(ours, ServerGoneError):
            _forget_server()
        if ours is not None:
            raise ours from err
        raise
    finally:
        if batch is not None:
            batch.release()


def _forget_server() -> None:
    from windowmill.jobs.spark import remote  # loads what speaks to servers

    remote.detach()


def compact_tables(job: Job, computed: ComputedBatch, progress: Progress) -> None:
    """Compact the tables that have grown enough, after the batch of ``job``."""
    state = _State(job, beyond_process=not computed.in_one_process and _has_few_rows(job))
    if state.is_overgrown():
        with progress.step("compact", "entries of the state that later ones have superseded"):
            state.compact()
    if job.plan.batch % MERGED_EVERY == MERGED_EVERY - 1:
        for path in (job.runnable.places.quality, job.runnable.places.quarantine):
            merge_if_many(path)


def _has_few_rows(job: Job) -> bool:
    try:
        limits.check_files(job.reading.files, None)
    except limits.TooLargeError:
        return False
    return True


class _State:
    """The state table; ``beyond_process`` is whether one process could not compute a batch of few rows, because of state or results."""

    def __init__(self, job: Job, *, beyond_process: bool) -> None:
        parts = job.parts()
        self._path, self._batch, self._keys = job.runnable.places.state, job.plan.batch, job.runnable.pipeline.keys
        self._ways, self._spans = [part.way for part in parts], [name for part in parts for name in part.spans]
        self._beyond_process = beyond_process

    def is_overgrown(self) -> bool:
        """Whether the state has grown enough to be compacted. Reads only its Delta log, and footers of large files.

        Of slices and sessions alone only spans have, which batches look for in all files: else ``windowmill maintain`` merges these.
        """
        if not (self._has_entries or self._spans) or not is_table(self._path):
            return False
        return self._merged_from() is not None if self._has_entries else is_scattered(self._path)

    def compact(self) -> None:
        """Compact the state."""
        before = self._batch + 1
        if self._has_entries:
            compact_entries(self._path, before, self._ways, spans=self._spans, first=self._merged_from() or None)
        else:
            compact_partials(self._path, NeededRows.all_but_old_spans(self._keys, self._spans, before))

    @property
    def _has_entries(self) -> bool:
        """Whether the state has rows that are compacted together with all others."""
        return bool({"positions", "live rows"} & set(self._ways))

    def _merged_from(self) -> int | None:
        """The first batch whose rows are worth merging with those of all later ones, 0 for all; null for none."""
        if self._ways == ["positions"]:
            return overgrown_from(self._path, lay_out=self._beyond_process)
        return 0 if is_overgrown(self._path) else None
