"""Folds old revisions: a batch of maintenance that removes result rows which newer ones have superseded. No JVM.

The latest view does not change, nor does the table as it stood after the last batch that is folded, or later, in its latest view.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.batches import Changes, Outcome
from windowmill.checkpoints.committer import beyond_delta_rs
from windowmill.checkpoints.data_files import rows_of, write_files
from windowmill.checkpoints.delta_tables import newest
from windowmill.checkpoints.plans import FoldPlan, Plan
from windowmill.checkpoints.replacing import ReplacedRange
from windowmill.checkpoints.state.base import files_of
from windowmill.checkpoints.stores import is_table
from windowmill.jobs.batch.corrections import superseded
from windowmill.jobs.batch.loop import Turn
from windowmill.jobs.sources.changed_rows import queried
from windowmill.windowing.columnar.added_columns import RETRACTED
from windowmill.windowing.columnar.rows import are_among

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from windowmill.checkpoints.ledger import Ledger
    from windowmill.checkpoints.places import Runnable
    from windowmill.windowing.durations import Duration

_PLACE = ("window", "window_start", "window_end", "trigger", "revision", "batch")


@dataclass(frozen=True)
class Folded:
    """The result of a fold: it removed ``rows`` rows of batches through ``through``."""

    batch: int
    rows: int
    through: int

    def describe(self) -> str:
        """The result in a line.

        >>> Folded(7, 1200, 5).describe()
        'revisions: 1,200 rows folded (batch 7), of batches through 5'
        """
        return f"revisions: {self.rows:,} row{'' if self.rows == 1 else 's'} folded (batch {self.batch}), of batches through {self.through}"


def fold_revisions(turn: Turn, age: Duration | None) -> Folded | None:
    """Remove rows that were superseded more than ``age`` ago; null if there are none, or the spec folds none.

    None are while a batch is held, and from a sink that delta-rs cannot write.
    """
    runnable, ledger, progress = turn.runnable, turn.ledger, turn.progress
    through = None if age is None or ledger.held_batch is not None else _last_before(ledger, age)
    if through is None or not is_table(runnable.sink_path):
        return None
    table = newest(runnable.sink_path)
    if all(file.get("max.revision") == 0 for file in files_of(table)):
        return None
    reason = beyond_delta_rs("sink", table, Changes(removes=("*",)))
    if reason is not None:
        progress.say(f"  sink {runnable.sink_path}: {reason}, so its revisions are not folded")
        return None
    with progress.step("fold", f"revisions of batches through {through}"):
        gone = _superseded(runnable, table, through)
        return _carried_out(turn, table, gone, through) if len(gone) else None


def _last_before(ledger: Ledger, age: Duration) -> int | None:
    """The newest batch that was committed more than ``age`` ago; null for none."""
    limit = datetime.now(UTC) - timedelta(microseconds=age.elapsed())
    return max((batch.number for batch in ledger.batches() if batch.status == "committed" and batch.ended_at <= limit), default=None)


def _superseded(runnable: Runnable, table: DeltaTable, through: int) -> pa.Table:
    """Keys of the rows of batches through ``through`` that later ones of these have superseded, or that are retracted."""
    schema = pa.schema(table.schema().to_arrow())
    names = [*runnable.pipeline.keys, *_PLACE]
    # A column that the table lacks is read as nulls.
    types = {name: schema.field(name).type for name in names} | {RETRACTED: pa.bool_()}
    here = {name: name for name in types if name in schema.names}
    empty = pa.schema(list(types.items())).empty_table()
    newer = pa.concat_tables([empty, *queried(table, types, f"revision > 0 AND batch <= {through}", here)])
    if not len(newer):
        return newer.select(names)
    shown = pa.concat_tables([empty, *queried(table, types, f"batch <= {through}", here)])
    return shown.take(superseded(runnable.pipeline, shown)).select(names)


def _carried_out(turn: Turn, table: DeltaTable, gone: pa.Table, through: int) -> Folded:
    """Record and publish the batch that removes the rows ``gone``: it replaces the range of window ends that contains them."""
    plan, sink = _plan(turn.ledger, through), turn.runnable.sink_path
    bounds = pc.min_max(gone.column("window_end").cast(pa.int64())).as_py()
    replaced = ReplacedRange.of(sink, table, (bounds["min"] - 1, bounds["max"]))

    def changes() -> Iterator[tuple[str, Changes]]:
        adds = write_files(sink, replaced.schema, _staying(replaced, gone), batch=plan.batch, attempt=plan.attempt)
        yield "sink", Changes(adds)
        kept = replaced.keep(replaced.partly, batch=plan.batch, attempt=plan.attempt, task=1)
        yield "sink", Changes(adds, kept, replaced.files, (replaced.begin, replaced.end))

    turn.rewrite(plan, Outcome(plan.seen, plan.emitted, "passed"), changes(), quietly=True)
    return Folded(plan.batch, len(gone), through)


def _plan(ledger: Ledger, through: int) -> FoldPlan:
    last = ledger.last_commit
    assert last is not None  # some batch has been folded
    known = {field.name: getattr(last.plan, field.name) for field in fields(Plan)}
    known |= {"batch": ledger.count, "attempt": uuid.uuid4().hex[:12], "now_us": time.time_ns() // 1_000, "snapshot": None}
    known |= {"from_version": last.to_version, "seen": last.outcome.seen, "emitted": last.outcome.emitted}
    return FoldPlan(**known, through=through)


def _staying(replaced: ReplacedRange, gone: pa.Table) -> Iterator[pa.Table]:
    """The rows of the range ``replaced`` without those ``gone``."""
    names = gone.column_names
    gone = gone.cast(pa.schema([replaced.schema.field(name) for name in names]))
    for rows in rows_of(replaced.table, replaced.files, replaced.schema):
        within = rows.filter(replaced.within(rows))
        yield within.filter(pa.array(~are_among(within, gone, names)))
