"""The batches before the one that is validated, for rules that compare it with them: from the ledger and the sink, without a JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import QueryBuilder

from windowmill.checkpoints.batches import Batch
from windowmill.checkpoints.delta_tables import newest
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.plans import Plan, RunPlan
from windowmill.checkpoints.quoting import quoted
from windowmill.checkpoints.stores import is_table
from windowmill.expectations.gx import plain
from windowmill.windowing.durations import SECOND_US

#: Runs for times that differ by at most so much are of the same time.
_SAME_TIME_US = 1_800 * SECOND_US
#: Batches looked at first.
_FEW = 64


@dataclass(frozen=True)
class PastBatches:
    """What rules ask of the batches before that of ``plan``.

    Attributes
    ----------
    rows
        Gives its own result rows with some columns.
    seen
        The greatest event time through it.
    """

    runnable: Runnable
    ledger: Ledger
    plan: Plan
    rows: Callable[[Sequence[str]], pa.Table]
    seen: int | None

    def volumes(self, batches: int) -> list[int]:
        """As in :class:`windowmill.expectations.past.Past`."""
        return [run.counts.rows_read for run in self._last(batches)]

    def volumes_ago(self, ago_us: int) -> list[int]:
        """As in :class:`windowmill.expectations.past.Past`."""
        then, found = _time_of(self.plan) - ago_us, []
        for run in self._runs():
            if _time_of(run.plan) < then - _SAME_TIME_US:
                break
            if _time_of(run.plan) <= then + _SAME_TIME_US:
                found.append(run.counts.rows_read)
        return found

    def keys(self, batches: int, window: str | None) -> tuple[int, Sequence[Mapping[str, Any]]]:
        """As in :class:`windowmill.expectations.past.Past`."""
        keys = list(self.runnable.pipeline.keys)
        own = self.rows([*keys, "window"])
        if window is not None:
            own = own.filter(pc.equal(own["window"], window))
        runs = [run.number for run in self._last(batches)]
        if not own.num_rows or not runs or not is_table(self.runnable.sink_path):
            return 0, ()
        there = set(_tuples(own.select(keys).group_by(keys).aggregate([])))
        known = list(_tuples(self._published(keys, runs, window)))
        missing = [dict(zip(keys, key, strict=True)) for key in known if key not in there]
        return len(known), sorted(missing, key=str)

    def age_us(self) -> int | None:
        """As in :class:`windowmill.expectations.past.Past`."""
        return None if self.seen is None else self.plan.now_us - self.seen

    def _published(self, keys: Sequence[str], runs: Sequence[int], window: str | None) -> pa.Table:
        columns = ", ".join(map(quoted, keys))
        within = f"batch IN ({', '.join(map(str, runs))})"
        if window is not None:
            within += f" AND \"window\" = '{window}'"  # a window's name has no quotes
        reader = QueryBuilder().register("sink", newest(self.runnable.sink_path))
        return pa.table(reader.execute(f"SELECT DISTINCT {columns} FROM sink WHERE {within}").read_all())

    def _last(self, count: int) -> list[Batch]:
        return [run for run, _ in zip(self._runs(), range(count), strict=False)]

    def _runs(self) -> Iterator[Batch]:
        """Published runs before this batch, the newest first."""
        before, span = self.plan.batch, _FEW
        while before > 0:
            first = max(0, before - span)
            batches = [batch for batch in self.ledger.since(first) if batch.number < before]
            yield from (batch for batch in reversed(batches) if batch.action == RunPlan.action and batch.status == "committed")
            before, span = first, 4 * span


def _time_of(plan: Plan) -> int:
    """The time for which a run was made: the end of its data interval, or when it was planned."""
    return plan.now_us if plan.interval_end is None else plan.interval_end


def _tuples(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Its rows in values of JSON, in which NaN equals itself."""
    return zip(*(map(plain, column.to_pylist()) for column in table.columns), strict=True)
