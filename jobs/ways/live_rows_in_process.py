"""Computes a small batch by live rows in this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.ways import limits
from windowmill.jobs.ways.base import Computed
from windowmill.jobs.ways.new_rows import computed
from windowmill.windowing.columnar.advanced import Advanced
from windowmill.windowing.columnar.log import TIME_OF, UNTIL_OF
from windowmill.windowing.columnar.partition_task import PartitionTask
from windowmill.windowing.columnar.rows import codes_of
from windowmill.windowing.grids import grids_among
from windowmill.windowing.slicing.policy_settings import PolicySettings

if TYPE_CHECKING:
    from windowmill.jobs.ways.live_row_pass import LiveRows
    from windowmill.windowing.watermark import Clock


@dataclass(frozen=True)
class LoadedInProcess:
    """Usable new rows, and the entries of the log for their keys and those that are due.

    Attributes
    ----------
    ends
        Restricts the results to windows that end in this range (begin, end].
    """

    fresh: pa.Table
    stored: pa.Table
    task: PartitionTask
    ends: tuple[int, int] | None

    def compute(self) -> Computed:
        done = self.task.work(self.stored, self.fresh)
        results = [table for table in done.results(self.ends) if table.num_rows]
        return computed(Advanced(results, done.changes, done.refused, done.applied, done.late))


def fits(fresh: pa.Table, stored: pa.Table, rows: LiveRows, clock: Clock) -> bool:
    """Whether the windows on grids, and the ticks, of these rows and entries are few enough for this process.

    Windows of most other kinds are no more than the rows.
    """
    tables = [table for table in (fresh, stored) if table.num_rows]
    instants = [pc.min_max(table.column(name)) for table in tables for name in (TIME_OF, UNTIL_OF)]
    known = [instant for span in instants for instant in span.as_py().values() if instant is not None]
    if not known:
        return True
    _, n_keys = codes_of(tables, list(rows.log.keys.values()))
    after = max(clock.since, min(known))
    ends = sum(grid.count_ends(after, min(clock.watermark, grid.last_end_holding(max(known)))) for grid in grids_among(rows.pipeline))
    n_rows = sum(table.num_rows for table in tables)
    by_policies = (PolicySettings(window, window.policies(), rows.pipeline) for window in rows.pipeline.windows if window.follows_policies)
    ticks = sum(settings.most_ticks(after, clock.watermark, n_keys, n_rows) for settings in by_policies)
    return n_keys * ends + ticks <= limits.MOST_RESULTS
