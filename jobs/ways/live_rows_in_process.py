"""Computes a small batch by live rows in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.conditions.duckdb import conditions_of
from windowmill.jobs.ways import limits
from windowmill.jobs.ways.base import Computed
from windowmill.jobs.ways.live_row_pass import advance
from windowmill.jobs.ways.new_rows import NewRows
from windowmill.jobs.ways.pass_output import written
from windowmill.jobs.ways.task_output import OutputWriter
from windowmill.windowing.columnar.added_columns import NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.columnar.log import StateLog
from windowmill.windowing.columnar.partition_task import PartitionTask
from windowmill.windowing.columnar.rows import codes_of
from windowmill.windowing.grids import grids_among
from windowmill.windowing.slicing.policy_settings import PolicySettings
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from windowmill.jobs.ways.input import Input
    from windowmill.windowing.watermark import Clock


@dataclass(frozen=True)
class LiveRowReading:
    """What this process reads of the new rows of a small batch, and what it makes of them; parameters as for :class:`.LiveRows`."""

    pipeline: Pipeline
    types: Mapping[str, pa.DataType]
    log: StateLog

    @property
    def keys(self) -> tuple[str, ...]:
        return self.pipeline.keys

    @property
    def ties(self) -> tuple[str, ...]:
        return self.pipeline.time.tie_break

    @property
    def layout(self) -> None:
        """No partials: rows are kept as they are."""
        return

    @property
    def source_columns(self) -> Sequence[str]:
        return [name for name, _ in self.log.columns_of_fresh()]

    @property
    def conditions(self) -> Sequence[str]:
        return conditions_of(self.pipeline)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows read: as those of ``log.fresh_schema``, by the names of the source's columns."""
        own = [(name, pa.int64()) for name in (NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF)]
        own += [(name, self.types[name]) for name in dict.fromkeys(self.source_columns)]
        return pa.schema([*own, *((name, pa.bool_()) for name in self.log.conditions)])

    def fresh(self, new: NewRows | None, batch: Input) -> pa.Table:
        """The usable ``new`` rows, null for none, with the columns of ``log.fresh_schema``."""
        return self.log.fresh_schema.empty_table() if new is None else self.labelled(new.usable(batch, self.schema))

    def labelled(self, rows: pa.Table) -> pa.Table:
        """``rows`` with the columns of ``schema``, as those of ``log.fresh_schema``."""
        schema, log = self.log.fresh_schema, self.log
        labels = dict(log.columns_of_fresh()) | dict(log.conditions)
        columns = {labels.get(name, name): rows.column(name) for name in rows.column_names}
        columns |= {label: columns[label].fill_null(False) for label in log.conditions.values()}
        return pa.table({name: columns[name] for name in schema.names}, schema=schema)


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

    def compute(self, writer: OutputWriter) -> Computed:
        return written(writer, advance(self.fresh, self.stored, self.task, self.ends, None))


def check_fits(fresh: pa.Table, stored: pa.Table, reading: LiveRowReading, clock: Clock) -> None:
    """Raise ``TooLargeError`` if the windows on grids, or the ticks, of these rows and entries are too many for this process.

    Windows of most other kinds are no more than the rows.
    """
    pipeline, tables = reading.pipeline, [table for table in (fresh, stored) if table.num_rows]
    instants = [pc.min_max(table.column(name)) for table in tables for name in (TIME, UNTIL_OF)]
    known = [instant for span in instants for instant in span.as_py().values() if instant is not None]
    if not known:
        return
    _, n_keys = codes_of(tables, list(reading.log.keys.values()))
    after = max(clock.since, min(known))
    ends = sum(grid.count_ends(after, min(clock.watermark, grid.last_end_holding(max(known)))) for grid in grids_among(pipeline))
    n_rows = sum(table.num_rows for table in tables)
    by_policies = (PolicySettings(window, window.policies(), pipeline) for window in pipeline.windows if window.follows_policies)
    ticks = sum(settings.most_ticks(after, clock.watermark, n_keys, n_rows) for settings in by_policies)
    if n_keys * ends + ticks > limits.MOST_RESULTS:
        raise limits.too_many(n_keys * ends + ticks, "windows and ticks at most", limits.MOST_RESULTS)
