"""Executes one batch: plan → survey → restore → apply → validate → publish → remember → commit.

After a crash at any point the next run repeats the same plan. Each table's commit carries the batch number, so a commit that has landed
is adopted and not written twice, and only the record in the ledger makes the batch count (:mod:`windowmill.checkpoints.protocol`).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from windowmill.checkpoints.batches import BackfillPlan, Commit, Plan
from windowmill.checkpoints.failpoints import reach
from windowmill.checkpoints.formats import prepare
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.own_tables import own_tables
from windowmill.checkpoints.protocol import Attempt
from windowmill.checkpoints.runnable import Runnable
from windowmill.checkpoints.upkeep import merge_if_many
from windowmill.expectations import docs, history
from windowmill.expectations.engine import load_in_background
from windowmill.expectations.gate import Verdict, validate
from windowmill.expectations.rates import Loss
from windowmill.jobs.batch import engine, sink
from windowmill.jobs.batch.adopting import same_quarantined, same_rows
from windowmill.jobs.batch.losses import loss_of
from windowmill.jobs.batch.outcomes import Done, Ruling
from windowmill.jobs.batch.progress import Progress
from windowmill.jobs.batch.spark_use import rows_without_spark
from windowmill.jobs.sources.kinds import open_source
from windowmill.jobs.sources.reading import reading_of
from windowmill.jobs.spark import failures
from windowmill.jobs.spark.access import access_to
from windowmill.jobs.spark.session import import_client, spark_session
from windowmill.jobs.spark.settings import is_short_run
from windowmill.jobs.spark.shipping import shipment_of
from windowmill.jobs.spark.staging import STAGING, Staged, clear, clear_leftovers
from windowmill.jobs.spark.usage import Usage
from windowmill.jobs.ways import limits
from windowmill.jobs.ways.base import Applied
from windowmill.jobs.ways.choose import way_of
from windowmill.jobs.ways.input import TableInput
from windowmill.jobs.ways.surveyed import Surveyed
from windowmill.jobs.ways.way import Restored, Way
from windowmill.windowing.columnar.added_columns import BATCH, SUM
from windowmill.windowing.columnar.chunks import without_empty_chunks
from windowmill.windowing.errors import HeldError, ServerGoneError, TooLargeError, WindowmillError, first_line

#: Interval in batches at which the quality and quarantine tables are compacted if they have many small files.
MERGED_EVERY = 16


def run_batch(runnable: Runnable, plan: Plan, ledger: Ledger, progress: Progress, ruling: Ruling | None = None) -> Done:
    """Execute ``plan`` and commit it.

    Raises
    ------
    HeldError
        If a critical expectation failed: nothing is published, the batch stays open, and its rows are kept for inspection.
    """
    with _steps(runnable, plan, ledger, progress) as batch:
        way = batch.way
        surveyed = batch.survey(way)
        restored = batch.restore(way, surveyed)
        result = batch.apply(way, surveyed, restored)
        verdict = batch.validate(result, ruling)
        published = batch.publish(result, verdict)
        remembered = batch.remember(way, result)
        done = batch.commit(result, verdict, published, remembered)
        batch.compact(way)
        return done


class _Steps:
    """The steps of one batch; each is idempotent."""

    def __init__(self, runnable: Runnable, plan: Plan, ledger: Ledger, progress: Progress) -> None:
        self.runnable, self.plan, self.ledger, self.progress = runnable, plan, ledger, progress
        self.pipeline, self.places = pipeline, places = runnable.pipeline, runnable.places
        self.attempt = Attempt(plan, runnable.name, ledger, own_tables(runnable), rules=runnable.rules_digest)
        # Each attempt has its own folder: on object storage, which has no lease, another may work on the same batch.
        if "://" not in places.root:  # listing object storage is slow, so `maintain` does it
            clear_leftovers(places.root, running=True)
        self.staging = f"{places.root}/{STAGING}/{uuid.uuid4().hex[:12]}"
        self.applied: Applied | None = None
        #: The result rows, if they were collected into this process for validation.
        self.collected: pa.Table | None = None
        self.usage = Usage(f"{pipeline.pipeline}, batch {plan.batch}")
        progress.around = self.usage.step
        import_client()
        load_in_background()
        # The table's columns may have changed since the plan was made.
        source = replace(open_source(pipeline), schema_json=plan.source_schema)
        reading = reading_of(runnable, source, plan)
        # Without rows there is nothing to distribute: no task is worth its start.
        here = engine.tries_this_process(pipeline) or not reading.files
        plain = rows_without_spark(runnable, source, reading) if here and not isinstance(plan, BackfillPlan) else None
        self.batch = TableInput.of(runnable, plan, source, reading, plain, left_at=ledger.state_version)
        if not here:
            self.batch = replace(self.batch, by_tasks=True)
        self.spark = cache(self._start_spark)
        if plain is None:
            self.spark()
        self.way = way_of(self.spark, self.batch, places.state)

    def _start_spark(self) -> SparkSession:
        if engine.compute_of(self.pipeline) == "local":
            raise TooLargeError(
                f"pipeline {self.pipeline.pipeline}: batch {self.plan.batch} is too much for this process, and compute is local: it takes "
                f"up to {limits.MOST_ROWS:,} new rows and {limits.MOST_BYTES >> 20} MB of plain files, and rules and conditions "
                f"that need no Spark; set compute: auto or spark, or unset {engine.VARIABLE}"
            )
        with self.progress.step("start", "Spark"):
            brief = is_short_run(self.batch.reading.size_bytes)
            shipment = shipment_of(self.pipeline)  # what it holds decides which session of a server is used
            spark = spark_session(f"windowmill {self.pipeline.pipeline}", brief=brief, shipment=shipment, say=self._warn)
            access_to(spark).ship(shipment)
            self.usage.watch(spark)
        return spark

    def _warn(self, what: str) -> None:
        self.progress.say(f"  {what}")

    def survey(self, way: Way) -> Surveyed:
        reach("survey.begin")
        with self.progress.step("survey", "which windows the new rows complete"):
            return way.survey()

    def restore(self, way: Way, surveyed: Surveyed) -> Restored:
        reach("restore.begin")
        with self.progress.step("restore", "the state that rows and windows need"):
            return way.restore(surveyed)

    def apply(self, way: Way, surveyed: Surveyed, restored: Restored) -> Applied:
        reach("apply.begin")
        with self.progress.step("apply", "new rows and restored state into windows"):
            self.applied = way.apply(surveyed, restored, self.staging)
            return self.applied

    def validate(self, result: Applied, ruling: Ruling | None) -> str:
        """The verdict on the rows to publish; raises ``HeldError`` if they must not be published."""
        reach("validate.begin")
        with self.progress.step("validate", f"{result.row_count} rows against the expectations"):
            small = result.row_count <= limits.MOST_VALIDATED_IN_PANDAS
            rows = self._rows(result)
            if small and isinstance(rows, DataFrame):
                rows = rows.toArrow()
            self.collected = rows if small else None
            published = self.attempt.verdict()
            if published is not None:
                # An earlier attempt validated and published the rows before it died: they can no longer be held.
                self.progress.say(f"  batch {self.plan.batch} has been published by an earlier attempt ({published})")
                return published
            verdict = validate(
                rows,
                self.pipeline,
                columns=self.batch.sink_schema.names,
                count=result.row_count,
                rows_read=result.rows_read,
                rows_quarantined=result.rows_quarantined,
                loss=partial(self._loss, result),
                spark=self.spark,
            )
            self._record(verdict)
        self.progress.say(f"  {verdict.describe()}")
        for row in verdict.lost:
            self.progress.say(f"    quarantined, for example: {json.dumps(row, ensure_ascii=False)}")
        if ruling == "discard":
            return "discarded"
        if verdict.status != "held":
            return verdict.status
        if ruling == "release":
            return "released"
        self._hold(result)
        raise HeldError(
            f"pipeline {self.pipeline.pipeline}: batch {self.plan.batch} is held, nothing was published: "
            f"{verdict.describe()}; see its rows in "
            f"{self.places.held}, then run again with other expectations or other limits of quarantine, or `windowmill release` or "
            "`windowmill discard` it"
        )

    def _loss(self, result: Applied) -> Loss:
        assert result.quarantined is not None  # rows that are not quarantined exceed no limit
        first = self.ledger.last_commit is None
        return loss_of(result.quarantined, self.pipeline, rows_read=result.rows_read, seen=result.emission.seen, first=first)

    def publish(self, result: Applied, verdict: str) -> int | None:
        """One idempotent commit to the sink; quarantined rows go to the quarantine table."""
        reach("publish.begin")
        with self.progress.step("publish", f"{0 if verdict == 'discarded' else result.row_count} rows"):
            version = None if self._publishes_nothing(result, verdict) else self._publish(result, verdict)
            # A backfill of a running pipeline rereads rows that earlier batches have quarantined already.
            if result.quarantined and self.plan.builds_state:
                self._quarantine(result.quarantined)
            return version

    def _publishes_nothing(self, result: Applied, verdict: str) -> bool:
        return verdict == "discarded" or (result.computed.rows is None and "sink" in self.attempt.written and self.plan.builds_state)

    def _publish(self, result: Applied, verdict: str) -> int:
        plan = self.plan
        path = self.runnable.sink_path
        replaces = None if plan.builds_state else (result.emission.after, result.emission.through)

        def write() -> None:
            as_table = self.collected is not None and sink.takes_table(path, self.collected, replaces)
            sink.publish(
                self.collected if as_table else self._frame(result),
                result.row_count,
                path,
                app_id=self.attempt.app_id("sink"),
                batch=plan.batch,
                metadata=self.attempt.metadata(verdict=verdict),
                replaces=replaces,
                instants=self.batch.instants,
            )

        same = self._same(lambda: self._frame(result), path, "batch")
        # The commit of a backfill may also rewrite rows of the files that it replaces.
        return self.attempt.write("sink", write, same, count=result.row_count if replaces is None else None).version

    def _quarantine(self, staged: Staged) -> None:
        app_id, path = self.attempt.app_id("quarantine"), self.places.quarantine

        def write() -> None:
            prepare(path, staged.schema, "quarantine")
            staged.append_to(path, app_id=app_id, version=self.plan.batch, metadata=self.attempt.metadata())

        self.attempt.write("quarantine", write, lambda: same_quarantined(staged.table(), path, self.plan.batch), count=staged.rows)

    def remember(self, way: Way, result: Applied) -> int | None:
        """One idempotent commit to the state."""
        reach("remember.begin")
        rows, count = result.computed.state, result.computed.new_state
        with self.progress.step("remember", f"{count if rows is not None else 0} rows of state"):
            if rows is None:
                return None
            app_id, batch = self.attempt.app_id("state"), self.plan.batch
            # An attempt of the first release wrote its rows without checksums.
            unchecked = [SUM] if batch <= self.batch.check.unchecked_through else []
            return self.attempt.write(
                "state",
                lambda: way.remember(rows, count, app_id=app_id, metadata=self.attempt.metadata()),
                self._same(lambda: self._as_frame(rows).drop(*unchecked), self.places.state, BATCH, partials=True),
                count=None if isinstance(rows, DataFrame) else rows.num_rows,
            ).version

    def _same(self, rows: Callable[[], DataFrame], path: str, column: str, *, partials: bool = False) -> Callable[[], bool]:
        """A check that ``rows`` equal this batch's rows in the table at ``path``; ``column`` is the table's batch column."""

        def same() -> bool:
            theirs = self.spark().read.format("delta").load(path).where(f"{column} = {self.plan.batch}")
            return same_rows(rows(), theirs, partials=partials)

        return same

    def commit(self, result: Applied, verdict: str, sink_version: int | None, state_version: int | None) -> Done:
        """Record the batch in the ledger: the commit point."""
        reach("commit.begin")
        with self.progress.step("commit", "one record in the ledger"):
            outcome = self._outcome(result, verdict, sink_version, state_version)
            self.attempt.commit(outcome, datetime.now(UTC))
        self.progress.say(f"  computed by {engine.told(outcome.compute)}")
        return Done(self.plan, outcome)

    def compact(self, way: Way) -> None:
        """Compact the tables after the commit, so that the cost of reading them does not grow with the number of batches."""
        reach("compact.before")
        try:
            if way.is_overgrown():
                with self.progress.step("compact", "entries of the state that later ones have superseded"):
                    way.compact()
            if self.plan.batch % MERGED_EVERY == MERGED_EVERY - 1:
                for path in (self.places.quality, self.places.quarantine):
                    merge_if_many(path)
        except Exception as err:  # noqa: BLE001 - the batch is committed; compaction only saves time
            self.progress.say(f"  the tables were not compacted ({first_line(err)})")
        reach("compact.after")

    def release(self) -> None:
        """Release Spark's cache and the staged files."""
        self.progress.around = nullcontext
        self.usage.end()
        if self.applied is not None:
            self.applied.release()
        clear(self.staging)

    def _frame(self, result: Applied) -> DataFrame:
        return self._as_frame(self._rows(result))

    def _as_frame(self, rows: DataFrame | pa.Table) -> DataFrame:
        if isinstance(rows, DataFrame):
            return rows
        # Spark on its own would take instants without a zone for instants.
        return self.spark().createDataFrame(without_empty_chunks(rows), from_arrow_schema(rows.schema, prefer_timestamp_ntz=True))

    def _rows(self, result: Applied) -> DataFrame | pa.Table:
        """The result rows; an empty table if there are none."""
        rows = result.computed.rows
        return self.batch.sink_schema.empty_table() if rows is None else rows

    def _record(self, verdict: Verdict) -> None:
        plan, at = self.plan, datetime.now(UTC)

        def write() -> None:
            prepare(self.places.quality, history.SCHEMA, "quality")
            history.record(
                self.places.quality,
                verdict,
                pipeline=self.pipeline.pipeline,
                generation=plan.generation,
                batch=plan.batch,
                attempt=self.ledger.open_batch.holds if self.ledger.open_batch else 0,
                at=at,
                app_id=self.attempt.app_id("quality"),
                metadata=self.attempt.metadata(),
            )

        # An earlier attempt with the same rules recorded the same results.
        self.attempt.write("quality", write, lambda: True)
        try:
            docs.write_docs(self.places.docs, verdict, pipeline=self.pipeline.pipeline, batch=plan.batch, at=at)
        except (OSError, pa.ArrowException) as err:
            # The page only shows the contents of the quality table, so a batch must not fail because of it.
            self.progress.say(f"  {self.places.docs}: the page of this batch was not written ({first_line(err)})")

    def _hold(self, result: Applied) -> None:
        rows = self._rows(result)
        staged = Staged.of_table(rows) if isinstance(rows, pa.Table) else Staged.of(rows, f"{self.staging}/held")
        prepare(self.places.held, staged.schema, "held")
        staged.replace(self.places.held)
        staged.drop()
        self.attempt.hold(self._outcome(result, "held", None, None), datetime.now(UTC))

    def _outcome(self, result: Applied, verdict: str, sink_version: int | None, state_version: int | None) -> Commit:
        computed, emission = result.computed, result.emission
        published = {} if verdict in ("held", "discarded") else {name: n for name, (n, _, _) in computed.windows.items()}
        return Commit(
            seen=emission.seen,
            emitted=emission.emitted,
            verdict=verdict,
            rows_read=result.rows_read,
            rows_applied=computed.rows_applied,
            rows_late=computed.rows_late,
            rows_quarantined=result.rows_quarantined,
            rows_published=sum(published.values()),
            slices=computed.new_state,
            windows=published,
            window_end_min=min((low for _, low, _ in computed.windows.values()), default=None),
            window_end_max=max((high for _, _, high in computed.windows.values()), default=None),
            sink_version=sink_version,
            state_version=state_version,
            timings={name: round(seconds, 3) for name, seconds in self.progress.timings.items()},
            rows_ignored=self.batch.reading.rows_ignored,
            compute=self.usage.told(),
            written=self.attempt.written,
            attempt=self.attempt.id,
        )


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
            batch = None  # what Spark has cached is gone with it
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
