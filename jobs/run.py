"""One batch, the whole story: plan → survey → restore → apply → validate → publish → remember → commit.

Whatever dies, wherever it dies, the next run takes up the pinned plan and does the same again: each table's commit carries the batch's
number, so what had landed is not written twice, and only the ledger's record makes the batch count.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame

from checkpoints.ledger import Commit, Ledger, Plan
from checkpoints.places import Places
from checkpoints.state import LogTable, compact_log, is_overgrown
from expectations import docs, history
from expectations.engine import preload
from expectations.gate import Verdict, validate
from jobs import apply, sink
from jobs.delta_log import read_source_table
from jobs.progress import Progress
from jobs.runs import Done, Ruling
from jobs.session import spark_session
from jobs.shipping import ship_modules
from jobs.staging import Staged, clear
from windowing.errors import HeldError
from windowing.spec import Pipeline

#: Result rows up to which a batch is validated in pandas, without a Spark job; above it Great Expectations works in Spark.
MAX_ROWS_IN_PANDAS = 1_000_000


def run_batch(pipeline: Pipeline, plan: Plan, ledger: Ledger, places: Places, progress: Progress, ruling: Ruling | None = None) -> Done:
    """Carry out ``plan`` and commit it.

    Raises
    ------
    HeldError
        If a critical expectation failed: nothing is published, the plan stays open, and the rows are kept for inspection.
    """
    with _steps(pipeline, plan, ledger, places, progress) as batch:
        arrived = batch.survey()
        restored = batch.restore(arrived)
        result = batch.apply(arrived, restored)
        verdict = batch.validate(result, ruling)
        published = batch.publish(result, ruling)
        remembered = batch.remember(result)
        done = batch.commit(result, verdict, published, remembered)
        batch.compact()
        return done


class _Steps:
    """The steps of one batch; each may be repeated without harm."""

    def __init__(self, pipeline: Pipeline, plan: Plan, ledger: Ledger, places: Places, progress: Progress) -> None:
        self.pipeline, self.plan, self.ledger, self.places, self.progress = pipeline, plan, ledger, places, progress
        self.app = f"windowmill/{pipeline.pipeline}/{plan.generation}"
        self.metadata = json.dumps(
            {"pipeline": pipeline.pipeline, "generation": plan.generation, "batch": plan.batch, "attempt": plan.attempt}
        )
        # Of this attempt alone: another may be at the same batch where no lease keeps it out, as on object storage.
        self.staging = f"{places.root}/.staging/{uuid.uuid4().hex[:12]}"
        self.applied: apply.Applied | None = None
        #: The result rows, where they came to this process to be validated.
        self.collected: pa.Table | None = None
        preload()
        self.batch = apply.Batch.of(pipeline, plan, read_source_table(pipeline.source.path), places.state)  # type: ignore[union-attr, arg-type]
        with progress.step("start", "Spark"):
            new_bytes = sum(file.size_bytes for file in self.batch.files)
            self.spark = spark_session(f"windowmill {pipeline.pipeline}", brief=new_bytes < apply.LITTLE_BYTES)
            ship_modules(self.spark, pipeline)
        self.state = self.batch.state(self.spark, places.state)

    def survey(self) -> apply.Arrived:
        with self.progress.step("survey", "which windows the new rows complete"):
            return apply.arrive(self.spark, self.batch)

    def restore(self, arrived: apply.Arrived) -> DataFrame | pa.Table | None:
        with self.progress.step("restore", "the state that rows and windows need"):
            return apply.restore(self.batch, arrived, self.state)

    def apply(self, arrived: apply.Arrived, restored: DataFrame | pa.Table | None) -> apply.Applied:
        with self.progress.step("apply", "new rows and restored state into windows"):
            self.applied = apply.apply(self.batch, arrived, restored, self.staging)
            return self.applied

    def validate(self, result: apply.Applied, ruling: Ruling | None) -> str:
        """The verdict on the rows about to be published; raises ``HeldError`` when they must not be."""
        with self.progress.step("validate", f"{result.row_count} rows against the expectations"):
            small = result.row_count <= MAX_ROWS_IN_PANDAS
            rows = self._no_rows() if result.rows is None else result.rows
            if small and isinstance(rows, DataFrame):
                rows = rows.toArrow()
            self.collected = rows if small else None
            verdict = validate(rows, self.pipeline, columns=self.batch.sink_schema.names, count=result.row_count)
            self._record(verdict)
        self.progress.say(f"  {verdict.describe()}")
        if verdict.status != "held":
            return verdict.status
        if ruling:
            return {"release": "released", "discard": "discarded"}[ruling]
        self._hold(result)
        raise HeldError(
            f"pipeline {self.pipeline.pipeline}: batch {self.plan.batch} is held, nothing was published: "
            f"{verdict.describe()}; see its rows in "
            f"{self.places.held}, then run again with changed expectations, or `windowmill release` or `windowmill discard` it"
        )

    def publish(self, result: apply.Applied, ruling: Ruling | None) -> int | None:
        """One idempotent commit to the sink; rows set aside go to the quarantine table."""
        plan = self.plan
        with self.progress.step("publish", f"{0 if ruling == 'discard' else result.row_count} rows"):
            if result.quarantined:
                result.quarantined.append_to(self.places.quarantine, app_id=f"{self.app}/quarantine", version=plan.batch)
            if ruling == "discard" or (result.rows is None and plan.batch > 0 and plan.builds_state):
                return None
            path: str = self.pipeline.sink.path  # type: ignore[union-attr, assignment]
            replaces = None if plan.builds_state else (result.after, result.through)
            little = self.collected is not None and sink.takes_table(path, result.row_count, replaces)
            rows = self.collected if little else self._frame(result)
            return sink.publish(
                rows,
                result.row_count,
                path,
                app_id=f"{self.app}/sink",
                batch=plan.batch,
                metadata=self.metadata,
                replaces=replaces,
                instants=self.batch.instants,
            )

    def remember(self, result: apply.Applied) -> int | None:
        """One idempotent commit to the state."""
        with self.progress.step("remember", f"{result.new_state if result.state is not None else 0} rows of state"):
            if result.state is None:
                return None
            return self.state.remember(
                result.state, result.new_state, app_id=f"{self.app}/state", batch=self.plan.batch, metadata=self.metadata
            )

    def commit(self, result: apply.Applied, verdict: str, sink_version: int | None, state_version: int | None) -> Done:
        """The commit point: with this record the batch has happened."""
        with self.progress.step("commit", "one record in the ledger"):
            outcome = self._outcome(result, verdict, sink_version, state_version)
            self.ledger.record_commit(self.plan, outcome, datetime.now(UTC))
        return Done(self.plan, outcome)

    def compact(self) -> None:
        """Keep what later batches read in proportion to the state, however many have come before; the batch has been committed."""
        path = self.places.state
        try:
            if isinstance(self.state, LogTable) and DeltaTable.is_deltatable(path) and is_overgrown(path):
                with self.progress.step("compact", "entries of the state that later ones have superseded"):
                    compact_log(path, self.plan.batch + 1)
        except Exception as err:  # noqa: BLE001 - whatever it is: the batch has happened, and a log that is long is as good as a short one
            self.progress.say(f"  the state was not compacted ({str(err).splitlines()[0] if str(err) else type(err).__name__})")

    def release(self) -> None:
        """Free what Spark has cached and what was staged."""
        if self.applied is not None:
            self.applied.release()
        clear(self.staging)

    def _frame(self, result: apply.Applied) -> DataFrame:
        rows = self._no_rows() if result.rows is None else result.rows
        return rows if isinstance(rows, DataFrame) else self.spark.createDataFrame(rows)

    def _no_rows(self) -> pa.Table:
        return self.batch.sink_schema.empty_table()

    def _record(self, verdict: Verdict) -> None:
        plan, at = self.plan, datetime.now(UTC)
        # A crash and its retry are one validation; a batch that was held is validated anew.
        attempt = self.ledger.open_batch.holds if self.ledger.open_batch else 0
        history.record(
            self.places.quality,
            verdict,
            pipeline=self.pipeline.pipeline,
            generation=plan.generation,
            batch=plan.batch,
            attempt=attempt,
            at=at,
        )
        docs.write_docs(self.places.docs, verdict, pipeline=self.pipeline.pipeline, batch=plan.batch, at=at)

    def _hold(self, result: apply.Applied) -> None:
        staged = Staged(self._frame(result), f"{self.staging}/held")
        staged.replace(self.places.held)
        staged.drop()
        self.ledger.record_held(self.plan, self._outcome(result, "held", None, None), datetime.now(UTC))

    def _outcome(self, result: apply.Applied, verdict: str, sink_version: int | None, state_version: int | None) -> Commit:
        published = {} if verdict in ("held", "discarded") else {name: n for name, (n, _, _) in result.windows.items()}
        return Commit(
            seen=result.seen,
            emitted=result.emitted,
            verdict=verdict,
            rows_read=result.rows_read,
            rows_applied=result.rows_applied,
            rows_late=result.rows_late,
            rows_quarantined=result.quarantined.rows if result.quarantined else 0,
            rows_published=sum(published.values()),
            slices=result.new_state,
            windows=published,
            window_end_min=min((low for _, low, _ in result.windows.values()), default=None),
            window_end_max=max((high for _, _, high in result.windows.values()), default=None),
            sink_version=sink_version,
            state_version=state_version,
            timings={name: round(seconds, 3) for name, seconds in self.progress.timings.items()},
        )


@contextmanager
def _steps(pipeline: Pipeline, plan: Plan, ledger: Ledger, places: Places, progress: Progress) -> Iterator[_Steps]:
    batch = _Steps(pipeline, plan, ledger, places, progress)
    try:
        yield batch
    finally:
        batch.release()
