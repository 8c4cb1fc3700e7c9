"""Verifies a sample of a pipeline's published rows, and keeps the result in the quality table."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
from rich.filesize import decimal

from windowmill.checkpoints.batches import standing
from windowmill.checkpoints.features import own_commit
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.own_tables import own_tables
from windowmill.checkpoints.plans import RestatePlan
from windowmill.checkpoints.protocol import outstanding
from windowmill.checkpoints.stores import write_table
from windowmill.checkpoints.writers import lease
from windowmill.expectations.history import SCHEMA
from windowmill.jobs.batch.loop import LEASE_WAIT_SECONDS
from windowmill.jobs.batch.planning import check_owner
from windowmill.jobs.batch.progress import late_missed
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.kinds import open_source
from windowmill.jobs.spark.access import access_to
from windowmill.jobs.spark.session import spark_session
from windowmill.jobs.spark.shipping import shipment_of
from windowmill.jobs.spec_checks import runnable_of
from windowmill.jobs.verify.by_reference import MAX_ROWS, recomputed
from windowmill.jobs.verify.compare import ComparedRow, Comparison, RecomputedValue
from windowmill.jobs.verify.plain import Plain
from windowmill.jobs.verify.published import PublishedRow, Sample, sample
from windowmill.jobs.verify.source_rows import CurrentRows, quarantined_rows, relevant_columns, source_rows
from windowmill.windowing.errors import OutOfTurnError

if TYPE_CHECKING:
    from windowmill.checkpoints.batches import Batch
    from windowmill.checkpoints.places import Runnable
    from windowmill.jobs.batch.progress import Progress
    from windowmill.windowing.spec import Pipeline
    from windowmill.windowing.windows.base import Window

#: How rows were recomputed.
BY_SQL, BY_REFERENCE = "Spark SQL", "the reference engine"
#: Origin and type of the rows of the quality table; the number of the rule, after those of a spec.
ORIGIN, TYPE, RULE = "verify", "verify_published_rows", 1_000_000
_NO_SQL = "has no form in SQL"
_UNKNOWN_ORDER = (
    "rows came late, and since then files of the source were rewritten, or windows were computed anew in which no row is late, so which "
    "windows count them is not known"
)
#: Rows that differ whose texts are kept in the quality table, and files that a query leaves out by name.
_EXAMPLES, _FILES_NAMED = 5, 20


@dataclass(frozen=True)
class Verification:
    """The result of a verification.

    Attributes
    ----------
    batch
        The last batch whose rows were verified; null if nothing has been published.
    changed
        Versions that changed rows of the source since the pipeline began, with their operation.
    missed
        By window name, the number of rows that came too late for a window that holds them; windows leave these out.
    """

    batch: int | None
    seed: int
    source_version: int
    comparison: Comparison
    changed: Sequence[tuple[int, str]] = ()
    missed: Mapping[str, int] = field(default_factory=dict)


def verify(
    pipeline: Pipeline, progress: Progress, *, number: int, seed: int, ends: tuple[int | None, int | None] = (None, None)
) -> Verification:
    """Recompute ``number`` random published rows that end in ``ends`` (begin, end], and compare; changes nothing but the quality table.

    Raises
    ------
    OutOfTurnError
        If the last batch lacks commits.
    SpecChangedError
        If the spec is not the one that computed the rows.
    """
    runnable, ledger = runnable_of(pipeline), Ledger.open(pipeline)
    check_owner(pipeline, ledger)
    ledger.check_meaning(pipeline)
    source, batches = open_source(runnable.pipeline), ledger.batches()
    committed = standing(batches)
    plans = [batch.plan for batch in committed]
    if not any(plan.builds_state for plan in plans) or "sink" not in _written(runnable, ledger):
        return Verification(None, seed, source.version, Comparison())
    files = source.snapshot(source.version)
    progress.say(
        f"{pipeline.pipeline}: verifies {number} rows by {len(files):,} files ({decimal(sum(file.size_bytes for file in files))}) of "
        f"{source.path} at version {source.version}, which are read {_times_read(pipeline)} times"
    )
    with progress.step("start", "Spark"):
        shipment = shipment_of(pipeline)
        spark = spark_session(f"windowmill verify {pipeline.pipeline}", shipment=shipment, say=progress.say)
        access_to(spark).ship(shipment)
    newest, now_us = committed[-1], time.time_ns() // 1_000
    with progress.step("sample", f"{number} rows of {runnable.sink_path}"):
        chosen = sample(spark, pipeline, number=number, seed=seed, ends=ends, through=newest.number)
    with progress.step("survey", f"the source {source.path} at version {source.version}"):
        rows = source_rows(spark, runnable, source, plans, now_us=now_us)
        columns = relevant_columns(pipeline, source)
        quarantined = quarantined_rows(spark, runnable.places.quarantine, columns, Columns.of(source.schema_json))
    late = sum(batch.rows_late for batch in committed if batch.plan.builds_state) > 0
    plain = Plain(spark, pipeline, source, rows.rows, columns, quarantined)
    comparing = _Comparing(plain, rows, chosen, Comparison(), late=late)
    with progress.step("compare", f"{len(chosen.rows)} rows with what the source gives"):
        comparing.grids()
        for window in pipeline.windows:
            if not window.on_grid:
                comparing.window(window)
    comparing.name_left_out()
    found = Verification(newest.number, seed, source.version, comparing.comparison, rows.changed, _missed(committed))
    if chosen.rows:
        _keep(runnable, newest, found, progress.say)
    return found


def _missed(committed: Sequence[Batch]) -> Mapping[str, int]:
    """As :attr:`Verification.missed`; of rows before a restatement it is not known which still do, so they are left out."""
    restated = (place for place, batch in enumerate(committed, 1) if isinstance(batch.plan, RestatePlan))
    return late_missed(committed[max(restated, default=0) :])


def _times_read(pipeline: Pipeline) -> int:
    """How often the source is read at most: for its event times, for all windows on grids, and for each other window."""
    on_grids = [window.on_grid for window in pipeline.windows]
    return 1 + any(on_grids) + on_grids.count(False)


def _written(runnable: Runnable, ledger: Ledger) -> set[str]:
    """Roles of the tables that there are."""
    lacking = outstanding(ledger, own_tables(runnable))
    if lacking and ledger.held_batch is None:
        raise OutOfTurnError(
            f"pipeline {runnable.name}: batch {ledger.count - 1} lacks its commit to {', '.join(lacking)}, which the next run makes; "
            "`windowmill run`, then verify"
        )
    return set(ledger.written())


@dataclass
class _Comparing:
    """The comparison of a sample, window by window of the spec; ``late`` is whether rows came late and were counted."""

    plain: Plain
    source: CurrentRows
    sample: Sample
    comparison: Comparison
    late: bool

    @property
    def doubt(self) -> str | None:
        """Why rows may differ although nothing is wrong; null if they may not."""
        return _UNKNOWN_ORDER if self.late and not self.source.order_known else None

    def grids(self) -> None:
        """Compare the sampled rows of all windows on a grid: one reading of the source is enough for them."""
        rows, keys = self._of({window.name for window in self.plain.pipeline.windows if window.on_grid})
        if rows:
            self._by_sql(rows, self.plain.on_grids(rows, keys), None)

    def window(self, window: Window) -> None:
        """Compare the sampled rows of ``window``, which is on no grid."""
        rows, keys = self._of({window.name})
        if not rows:
            return
        if self._is_plain_session(window):
            self._by_sql(rows, self.plain.of_sessions(rows, keys, window.session_gap()), window.session_gap())
        else:
            self._by_reference(window, rows, keys)

    def _of(self, windows: Collection[str]) -> tuple[list[PublishedRow], pa.Table]:
        """The sampled rows of these windows, and their keys."""
        numbers = [n for n, row in enumerate(self.sample.rows) if row.window in windows]
        return [self.sample.rows[n] for n in numbers], self.sample.keys.take(pa.array(numbers, pa.int64()))

    def _is_plain_session(self, window: Window) -> bool:
        # To late rows a session may have been closed that their time would join.
        return window.joins_by_gap and window.greatest_size() is None and self.plain.pipeline.time.end is None and not self.late

    def _by_sql(self, rows: Sequence[PublishedRow], found: Sequence[dict[str, RecomputedValue] | None], gap: int | None) -> None:
        for row, expected in zip(rows, found, strict=True):
            query = self.plain.query(row, gap, without=self._too_late_for(row))
            self.comparison.add(row, expected, query, BY_SQL, self.doubt)

    def _by_reference(self, window: Window, rows: Sequence[PublishedRow], keys: pa.Table) -> None:
        pipeline = self.plain.pipeline
        if pipeline.time.watermark == "data_interval_end":
            self.comparison.left_out[
                f"rows of {window.name}", "the end of an interval is its watermark, which the source does not tell"
            ] += len(rows)
            return
        found = recomputed(self.plain, self.source, rows, keys)
        if found is None:
            why = f"the sampled keys have more than {MAX_ROWS:,} rows, too many for the reference engine"
            self.comparison.left_out[f"rows of {window.name}", why] += len(rows)
            return
        for row, expected in zip(rows, found, strict=True):
            own = None if expected is None else {name: value for name, value in expected.items() if pipeline.aggregates[name].use is None}
            self.comparison.add(row, own, None, BY_REFERENCE, self.doubt)

    def _too_late_for(self, row: PublishedRow) -> list[str]:
        """Files whose rows found the window closed."""
        late = [path for path, closed in self.source.closed_files if closed >= row.end]
        return late[:_FILES_NAMED]

    def name_left_out(self) -> None:
        """Count the columns that were not compared."""
        for name in self.plain.pipeline.aggregates:
            rows = len(self.comparison.rows) - self.comparison.compared[name]
            missing = sum(1 for row in self.comparison.rows if any(each.column is None for each in row.differences))
            if rows > missing:
                self.comparison.left_out[f"column {name}", _NO_SQL] += rows - missing


def _keep(runnable: Runnable, newest: Batch, found: Verification, say: Callable[[str], None]) -> None:
    """Add the result to the quality table, beside the rules of the last batch."""
    comparison, differing = found.comparison, found.comparison.differing
    shares = {name: comparison.equal[name] / compared for name, compared in comparison.compared.items()}
    message = f"{len(differing)} of {len(comparison.rows)} published rows differ from the source at version {found.source_version}"
    row = {
        "pipeline": runnable.name,
        "generation": newest.plan.generation,
        "batch": newest.number,
        "attempt": newest.plan.attempt,
        "at": datetime.now(UTC),
        "status": newest.verdict,
        "rule": RULE,
        "origin": ORIGIN,
        "type": TYPE,
        "arguments": "{}",
        "severity": "warning",
        "outcome": "failed" if differing else "passed",
        "observed": json.dumps({"seed": found.seed, "equal": shares}),
        "elements": len(comparison.rows),
        "unexpected": len(differing),
        "message": message if differing else "",
        "examples": json.dumps(list(_examples(differing[:_EXAMPLES]))),
    }
    with lease(runnable.places.root, wait_seconds=LEASE_WAIT_SECONDS, on_wait=say):
        write_table(
            runnable.places.quality, pa.Table.from_pylist([row], schema=SCHEMA), mode="append", commit_properties=own_commit("verify")
        )


def _examples(rows: Sequence[ComparedRow]) -> Iterator[str]:
    for row in rows:
        yield ", ".join(f"{each.column or row.row.window}: {each.published!r} instead of {each.recomputed!r}" for each in row.differences)
