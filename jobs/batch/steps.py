"""Executes one batch: widens tables, then compute → validate → record → publish → compact.

If columns of the source have become wider, sink and state are first rewritten once in the wider types. So every reader finds one type per
column, in all files of a table.

Tasks write files into the folders of the tables. The record in the ledger, which names these files, is the commit point. A crash before the
record leaves files that nobody reads. A crash after it leaves tables without their commits, which the next run makes
(:mod:`windowmill.checkpoints.protocol`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import psutil
import pyarrow as pa
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from windowmill.checkpoints import current, protocol
from windowmill.checkpoints.batches import Changes, Outcome, Plan
from windowmill.checkpoints.committer import beyond_delta_rs, error_of, retyped, rewrite, widens, wider_fields
from windowmill.checkpoints.data_files import rows_of
from windowmill.checkpoints.delta_tables import newest
from windowmill.checkpoints.failpoints import reach
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.quoting import backquoted
from windowmill.checkpoints.savepoints import keep_replaced
from windowmill.checkpoints.state.reading import open_state, read_file, reporting_damage
from windowmill.checkpoints.state.tables import keys_of, replacing
from windowmill.checkpoints.stores import is_table, is_unavailable, options_of, remedy
from windowmill.jobs.batch import engine, finishing
from windowmill.jobs.batch.corrections import renumbered
from windowmill.jobs.batch.job import ComputedBatch, FinishedShares, Job, state_schema
from windowmill.jobs.batch.planning import has_brief_use
from windowmill.jobs.batch.progress import CommittedBatch, Progress, Restated
from windowmill.jobs.batch.spark_committer import tables_of
from windowmill.jobs.batch.task import compute_in_a_task
from windowmill.jobs.batch.validating import ResultFiles, held_error, quality_changes, report, write_docs
from windowmill.jobs.batch.window_history import has_dropped_windows
from windowmill.jobs.layouts.limits import OnlySparkError, TooLargeError
from windowmill.jobs.schedulers.file_rows import answers_of
from windowmill.jobs.sources.base import open_source
from windowmill.jobs.sources.columns import Columns, in_sql
from windowmill.jobs.sources.delta_log import times_from
from windowmill.jobs.sources.reading import reading_of
from windowmill.jobs.spark import failures, remote
from windowmill.jobs.spark.session import import_client, start_spark
from windowmill.jobs.spark.spark_settings import SERVER
from windowmill.jobs.spark.usage import Usage
from windowmill.windowing.columnar.added_columns import BUCKET, SUM
from windowmill.windowing.columnar.hashes import with_buckets, with_checksums
from windowmill.windowing.errors import ServerGoneError, SinkRefusedError, SourceError, WindowmillError, first_line
from windowmill.windowing.kernels.layout import WiderPartials
from windowmill.windowing.kernels.slices import hopping_windows
from windowmill.windowing.layouts import divide
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import BEFORE, LatenessRule

if TYPE_CHECKING:
    from windowmill.expectations.gate import Verdict
    from windowmill.jobs.batch.restating import Restatement
    from windowmill.jobs.layouts.input import Emission
    from windowmill.jobs.spark.access import SparkSession


def widen_tables(job: Job, ledger: Ledger, progress: Progress) -> None:
    """Widen the columns of sink and state that are too narrow for the batch ``job``."""
    last = ledger.newest_kept
    if last is None:
        return
    pipeline, types = job.runnable.pipeline, job.input.types
    kinds = {field.name: field.type for field in job.input.expressions.schema}
    if is_table(job.runnable.sink_path) and (wider := wider_fields(newest(job.runnable.sink_path), kinds)):
        with progress.step("widen", f"{', '.join(wider)} of the sink"):
            _widen_sink(job, {name: kinds[name] for name in wider})
    if not is_table(job.runnable.places.state):
        return
    stored = list[tuple[Pipeline, Mapping[str, pa.DataType]]]()
    if last.plan.source_schema != job.plan.source_schema:
        before = pipeline if pipeline.means(last.plan.definition, last.plan.meaning) else pipeline.meaning_as(last.plan.definition)
        stored.append((before, Columns.of(last.plan.source_schema).seen_by(before).arrow))
    if job.plan.changes_spec:  # its windows may reuse columns that an earlier spec left in narrower types
        stored.append((pipeline, types))
    for made_by, columns in stored:
        state = _StateWidening.of(job, made_by, columns)
        if state.kinds:
            with progress.step("widen", "columns of the state"):
                state.write()


def _widen_sink(job: Job, kinds: Mapping[str, pa.DataType]) -> None:
    place = job.runnable.sink_path
    table = newest(place)
    there = pa.schema(table.schema().to_arrow())
    reason = beyond_delta_rs("sink", table, Changes(removes=(place,)))
    if reason is not None:
        name, kind = next(iter(kinds.items()))
        was, sql = in_sql(there.field(name).type), in_sql(kind)
        raise SinkRefusedError(
            f"sink {place}: its column {name} is {was} and has to be {sql} now; it {reason}, so widen it by Spark (ALTER TABLE … SET "
            f"TBLPROPERTIES ('delta.enableTypeWidening' = 'true'), ALTER COLUMN {backquoted(name)} TYPE {sql}), and run again"
        )
    schema = retyped(table, kinds)
    columns = pa.schema(schema.to_arrow())

    _rewrite("sink", job, table, schema, lambda file: rows_of(place, [file["path"]], columns))


@dataclass(frozen=True)
class _StateWidening:
    """Rewrites the state of ``job`` in wider types."""

    job: Job
    table: DeltaTable
    stored: pa.Schema  #: Its columns.
    kinds: Mapping[str, pa.DataType]  #: New types of columns that are widened or replace others.
    partials: WiderPartials  #: How partials are converted.

    @classmethod
    def of(cls, job: Job, pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> Self:
        """For a state that batches of ``pipeline`` have made from columns of ``types``."""
        table = newest(job.runnable.places.state)
        stored = pa.schema(table.schema().to_arrow())
        wide = {name: job.input.types.get(name, kind) for name, kind in types.items()}
        partials = WiderPartials.between(*(divide(pipeline, each).layout for each in (types, wide)))
        assert partials is not None  # the plan has been checked
        converted = partials.replacing(stored.names)
        kinds = {
            field.name: field.type
            for field in state_schema(pipeline, wide)
            if field.name in converted
            or (field.name in stored.names and field.type != (was := stored.field(field.name).type) and widens(was, field.type))
        }
        return cls(job, table, stored, kinds, partials)

    def write(self) -> None:
        schema = retyped(self.table, self.kinds, self.partials.replaced)
        columns = pa.schema(schema.to_arrow())
        _rewrite("state", self.job, self.table, schema, lambda file: self._rows(file, columns))

    def _rows(self, file: Mapping[str, Any], columns: pa.Schema) -> Iterator[pa.Table]:
        with reporting_damage(self.job.runnable.places.state):
            rows = read_file(self.table.table_uri, file, self.stored, self.stored.names)
            if SUM in rows.column_names:
                self.job.check.verify(rows)
        found = {name: rows.column(name) for name in rows.column_names} | self.partials.columns(rows)
        n = rows.num_rows
        wider = pa.table([found[each.name].cast(each.type) if each.name in found else pa.nulls(n, each.type) for each in columns], columns)
        wider = with_buckets(wider, keys_of(columns)) if BUCKET in columns.names else wider
        yield with_checksums(wider) if SUM in columns.names else wider


def _rewrite(role: str, job: Job, table: DeltaTable, schema: DeltaSchema, rows: Callable[[Mapping[str, Any]], Iterator[pa.Table]]) -> None:
    place = job.runnable.sink_path if role == "sink" else job.runnable.places.state
    try:
        rewrite(place, table, schema, rows, batch=job.plan.batch, attempt=job.plan.attempt, is_followed=role == "sink")
    except CommitFailedError as err:
        raise error_of(role)(f"{role} {place}: others wrote to it while its columns were widened ({first_line(err)}); run again") from err


def run_batch(
    runnable: Runnable, plan: Plan, ledger: Ledger, progress: Progress, restatement: Restatement | None = None
) -> CommittedBatch | None:
    """Execute ``plan``; null if its ``restatement`` changes nothing. Raises ``HeldError`` if the batch is recorded as held."""
    batch: _Steps | None = None
    try:
        batch = _Steps(runnable, plan, ledger, progress, restatement)
        computed = batch.compute()
        if restatement is not None and restatement.changes_nothing(computed):
            return None
        verdict = batch.validate(computed)
        outcome = batch.record(computed, verdict)
        batch.publish(outcome, verdict)
        batch.compact(computed)
        return CommittedBatch(plan, outcome, batch.restated)
    except WindowmillError:
        raise
    except Exception as err:
        ours = failures.typed(err)
        if isinstance(ours, ServerGoneError):
            remote.detach()
        if ours is not None:
            raise ours from err
        raise
    finally:
        if batch is not None:
            batch.release()


class _Steps:
    """The steps of one batch."""

    def __init__(self, runnable: Runnable, plan: Plan, ledger: Ledger, progress: Progress, restatement: Restatement | None) -> None:
        if plan.lookups:
            from windowmill.jobs.sources.lookups import pinned  # loads what a spec without lookups does without

            runnable = replace(runnable, pipeline=pinned(runnable.pipeline, plan.lookups))
        self.runnable, self.plan, self.ledger, self.progress = runnable, plan, ledger, progress
        self.pipeline, self.places = pipeline, places = runnable.pipeline, runnable.places
        self.spark = cache(self._start_spark)
        self.tables = tables_of(runnable, self.spark)
        #: Files that no record names yet, by role of their table.
        self.changes: dict[str, Changes] = {}
        self._begun = processor_seconds()
        #: The batch's use of Spark; null until it needs a session.
        self.usage: Usage | None = None
        progress.on_step = None
        #: What computed the batch, as :attr:`.Outcome.compute`.
        self.engine: dict[str, object] = {}
        #: Finished shares of the keys, which the next attempt can reuse; null if this batch keeps none.
        self.finished: FinishedShares | None = None
        if os.environ.get(SERVER):
            import_client()  # before another thread imports what needs it too
        # The table's columns may have changed since the plan was made.
        source = replace(open_source(pipeline), schema_json=plan.source_schema)
        self.restatement = restatement
        self.restated: Restated | None = None
        if restatement is None:
            reading = reading_of(runnable, source, plan)
            if plan.needed_from is not None:
                reading = times_from(source, reading, pipeline.time, plan.needed_from)
        else:
            with progress.step("select", "the rows to recompute"):
                source, reading = restatement.write_rows()
        state = ledger.written().get("state")
        check = open_state(places.state, left_at=None if state is None else state.version)
        others = plan.range is not None and has_dropped_windows(pipeline, ledger)
        windows = tuple(window.name for window in pipeline.windows) if others else None
        stores = [runnable.source_path, runnable.sink_path, places.root]
        stores += [lookup.location for lookup in pipeline.lookups if lookup.location] if pipeline.steps else []
        options = {place: found for place in stores if (found := options_of(place)) is not None}
        self.job = Job(runnable, plan, source, reading, check, windows, options)
        widen_tables(self.job, ledger, progress)

    def _start_spark(self) -> SparkSession:
        if engine.compute_of(self.pipeline) == "local":
            raise engine.refused_rules(self.pipeline, self.plan.batch)
        brief = has_brief_use(self.runnable, self.job.source, self.job.reading)
        spark = start_spark(self.pipeline, self.progress, brief=brief)
        self.usage = Usage(spark, f"{self.pipeline.pipeline}, batch {self.plan.batch}")
        self.progress.on_step = self.usage.describe
        self.usage.describe(self.progress.current)
        return spark

    def compute(self) -> ComputedBatch:
        """Compute the batch into files, which :attr:`changes` lists from then on."""
        reach("compute.begin")
        computed = self._computed()
        self.changes = dict(computed.changes)
        if self.restatement is not None:
            with self.progress.step("compare", "windows with those that the sink shows"):
                computed, self.restated = self.restatement.finished(computed)
            self.changes = dict(computed.changes)
            self.progress.say(f"  {self.restated.describe()}")
        elif self.plan.replaces_state:
            replaced = replacing(self.places.state, self.changes.pop("state", None))
            self.changes |= {} if replaced is None else {"state": replaced}
        elif "sink" in self.changes and self.plan.advances:
            schema = self.job.input.expressions.schema
            self.changes["sink"] = renumbered(self.runnable, self.ledger, self.plan, schema, self.changes["sink"])
        return computed

    def _computed(self) -> ComputedBatch:
        if self.plan.carried is not None:
            from windowmill.jobs.batch.compute import compute_from_state

            self.engine = {"engine": "local"}
            return compute_from_state(self.job, self.progress.step)
        in_a_task = True
        # A batch without rows is not worth the start of a task.
        if engine.tries_this_process(self.pipeline) or not self.job.reading.files:
            from windowmill.jobs.batch.compute import compute_locally

            if self.job.reading.files and not hopping_windows.is_compiled:
                self.progress.say("  compiling kernels, once on this machine: a minute or more (`windowmill setup` does it beforehand)")
            try:
                computed = compute_locally(self.job, step=self.progress.step)
            except TooLargeError as err:
                if engine.compute_of(self.pipeline) == "local":
                    raise failed_locally(self.pipeline, self.plan.batch, err) from err
                self.progress.say(f"  by Spark: {err}")
                in_a_task = isinstance(err, OnlySparkError)  # else it is too large for one task, too
            else:
                self.engine = {"engine": "local"}
                return computed
        computed = self._computed_by_spark(in_a_task=in_a_task)
        assert self.usage is not None  # Spark has computed the batch
        self.engine = self.usage.recorded(computed.executors)
        return computed

    def _computed_by_spark(self, *, in_a_task: bool) -> ComputedBatch:
        finishing.import_engine(self.pipeline)  # while the JVM of a cold run starts
        if self.job.input.plain is None and self.job.reading.files:
            with self.progress.step("conditions", "those that only Spark evaluates"):
                self.job = replace(self.job, answers=answers_of(self.job.input, self.spark(), self.job.options))
        if in_a_task:
            spark = self.spark()
            with suppress(TooLargeError):
                return compute_in_a_task(self.job, spark, self.progress.step)
        from windowmill.jobs.batch.compute import compute_by_spark

        self.finished = FinishedShares.of(self.runnable, self.plan, self.progress.finished)
        return compute_by_spark(self.job, self.spark(), self.progress.step, self.finished)

    def validate(self, computed: ComputedBatch) -> Verdict:
        reach("validate.begin")
        with self.progress.step("validate", f"{computed.counts.rows_published:,} rows against the expectations"):
            rows = ResultFiles(self.runnable.sink_path, self.changes.get("sink", Changes()).adds, self.job.input.expressions.schema)
            place, seen = self.places.quarantine, computed.emission.seen
            verdict = finishing.verdict_on(
                self.runnable, self.ledger, self.plan, rows, place, self.changes, computed.counts, seen, self.spark
            )
        report(verdict, self.progress)
        return verdict

    def _progress(self, emission: Emission) -> tuple[int | None, int | None]:
        """``watermark`` and ``shown`` of the outcome after a change of settings; null where they follow from these again."""
        assert emission.shown is not None
        assert emission.emitted is not None
        rule, shown = LatenessRule.of(self.runnable.pipeline), emission.shown[1]
        follows = rule.closed(emission.watermark) == emission.emitted
        follows = follows and (rule.asserted or rule.watermark(emission.seen or BEFORE) >= emission.watermark)
        by_default = emission.watermark if rule.revises else emission.emitted
        if follows and shown == by_default:
            return None, None
        return emission.watermark, None if shown == by_default else shown

    def record(self, computed: ComputedBatch, verdict: Verdict) -> Outcome:
        """Record the batch and the results of its rules in the ledger: the commit point."""
        reach("record.begin")
        with self.progress.step("record", "the batch and its files in the ledger"):
            at = datetime.now(UTC)
            if self.plan.rereads and "quarantine" in self.changes:
                # Earlier batches have quarantined these rows already.
                self.tables["quarantine"].remove(self.changes.pop("quarantine").adds)
            quality = quality_changes(self.runnable, self.plan, verdict, "0", at)
            if quality is not None:
                self.changes["quality"] = quality
            if self.runnable.current_path is not None and "sink" in self.changes:
                with self.progress.step("current", "the newest window of each key"):
                    self.changes["current"] = current.changes_of(self.runnable, self.ledger, self.plan, self.changes["sink"])
            # On a cluster, Spark's processes do not belong to this one: its processor time is that of the client alone.
            client = "client_" if self.engine.get("engine") == "spark" and engine.names_a_cluster() else ""
            watermark, shown = (None, None) if computed.emission.shown is None else self._progress(computed.emission)
            outcome = Outcome(
                seen=computed.emission.seen,
                emitted=computed.emission.emitted,
                verdict=verdict.status,
                counts=computed.counts,
                timings={name: round(seconds, 3) for name, seconds in self.progress.timings.items()},
                compute=self.engine,
                used={
                    f"{client}processor_seconds": round(processor_seconds() - self._begun, 2),
                    "bytes_read": self.job.reading.size_bytes,
                    "bytes_written": sum(file.size for each in self.changes.values() for file in each.files),
                    "state_bytes": _state_bytes(self.places.state, self.changes.get("state", Changes())),
                },
                watermark=watermark,
                shown=shown,
            )
            if self.plan.recomputes and "sink" in self.changes:
                folder, replaced = self.runnable.places.savepoints, self.changes["sink"].removes
                keep_replaced(folder, self.runnable.sink_path, replaced, batch=self.plan.batch)
            changes, self.changes = self.changes, {}  # from here on the protocol decides which files are left over
            protocol.record(self.ledger, self.plan, outcome, changes, self.tables, at, shared=self.finished is not None)
            if self.finished is not None:
                self.finished.clear()
        self.progress.say(f"  computed by {engine.describe(outcome.compute)}")
        return outcome

    def publish(self, outcome: Outcome, verdict: Verdict) -> None:
        """Make one commit to each table, and write the page of the verdict; raises ``HeldError`` if the batch is held."""
        reach("publish.begin")
        rows, held = f"{outcome.counts.rows_published} rows", verdict.status == "held"
        with self.progress.step(*("hold", f"{rows}, none of which is published") if held else ("publish", rows)):
            protocol.publish_pending(self.ledger, self.tables)
            write_docs(self.runnable, self.plan, verdict, datetime.now(UTC), self.progress)
        if held:
            raise held_error(self.runnable, self.ledger, self.plan, verdict)

    def compact(self, computed: ComputedBatch) -> None:
        """Compact the tables, so that the cost of reading them does not grow with the number of batches."""
        reach("compact.before")
        try:
            finishing.compact_tables(self.job, computed, self.progress)
        except Exception as err:  # noqa: BLE001 - the batch is published; compaction only saves time
            self.progress.say(f"  the tables were not compacted ({first_line(err)})")
        reach("compact.after")

    def release(self) -> None:
        """Delete the files of a batch that was not recorded."""
        self.progress.on_step = None
        if self.usage is not None:
            self.usage.end()
        if self.finished is None:
            protocol.discard_files(self.changes, self.tables)
        if self.restatement is not None:
            with suppress(OSError):  # the error that ended the batch is the one to report
                self.restatement.remove_rows()


def failed_locally(pipeline: Pipeline, batch: int, err: Exception) -> WindowmillError:
    """The error of :func:`.refused_locally` for ``err``; ``SourceError`` if storage is unavailable, for then Spark would fail, too."""
    cause = err.__cause__
    if cause is None or not is_unavailable(cause):
        return engine.refused_locally(pipeline, batch, str(err))
    return SourceError(
        f"pipeline {pipeline.pipeline}: batch {batch}: the source's rows cannot be read now ({first_line(cause)}); "
        f"{remedy(cause, 'run again')}"
    )


def processor_seconds() -> float:
    """Processor time of this process and its descendants, which include Spark's JVM and workers if this process started them."""
    total = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended meanwhile
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _state_bytes(path: str, changes: Changes) -> int:
    """Size of the state table at ``path`` with ``changes``."""
    sizes: dict[str, int] = {}
    with suppress(TableNotFoundError):
        files = pa.table(newest(path).get_add_actions(flatten=True)).select(["path", "size_bytes"])  # without statistics: no pandas
        sizes = {file["path"]: file["size_bytes"] for file in files.to_pylist()}
    left = sum(size for name, size in sizes.items() if name not in changes.removes)
    return left + sum(file.size for file in changes.files)
