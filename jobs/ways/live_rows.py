"""The part that goes by live rows: the state keeps rows that later windows may hold, and each batch reads them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.ways import limits
from windowmill.jobs.ways.base import EntriesWanted, Loaded
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.input import Input
from windowmill.jobs.ways.keyed_parts import Keyed, KeyedPart
from windowmill.windowing.columnar.added_columns import NUMBER_OF, SUM, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.columnar.advanced import Advanced
from windowmill.windowing.columnar.checksums import RowCheck
from windowmill.windowing.columnar.log import StateLog
from windowmill.windowing.columnar.partition_task import PartitionTask
from windowmill.windowing.columnar.rows import codes_of
from windowmill.windowing.grids import grids_among
from windowmill.windowing.slicing.policy_settings import PolicySettings
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.ways import Rows

if TYPE_CHECKING:
    from windowmill.windowing.watermark import Clock


@dataclass(frozen=True)
class LiveRowReading:
    """What is read of the new rows of a batch, and what becomes of them.

    Attributes
    ----------
    types
        Arrow types of the source's columns.
    log
        Layout of the state.
    """

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
        return self.pipeline.conditions()

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows read: as those of ``log.fresh_schema``, by the names of the source's columns."""
        own = [(name, pa.int64()) for name in (NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF)]
        own += [(name, self.types[name]) for name in dict.fromkeys(self.source_columns)]
        return pa.schema([*own, *((name, pa.bool_()) for name in self.log.conditions)])

    def labelled(self, rows: pa.Table) -> pa.Table:
        """``rows`` with the columns of ``schema``, as those of ``log.fresh_schema``."""
        schema, log = self.log.fresh_schema, self.log
        labels = dict(log.columns_of_fresh()) | dict(log.conditions)
        columns = {labels.get(name, name): rows.column(name) for name in rows.column_names}
        columns |= {label: columns[label].fill_null(False) for label in log.conditions.values()}
        return pa.table({name: columns[name] for name in schema.names}, schema=schema)


class LiveRowPart(KeyedPart):
    """Computes a batch by live rows."""

    way = "live rows"
    revises_by_watermark = True

    def __init__(self, batch: Input, rows: Rows) -> None:
        super().__init__(replace(batch, pipeline=rows.pipeline))
        log = StateLog(rows.pipeline, batch.types, rows.pipeline.conditions(), beside=rows.beside)
        self._reading = LiveRowReading(rows.pipeline, batch.types, log)

    @property
    def schema(self) -> pa.Schema:
        return self._reading.log.schema

    @property
    def labels(self) -> Mapping[str, str]:
        """Columns of the state for columns of the source, and of conditions, that live rows keep."""
        return dict(self._reading.log.columns_of_fresh()) | dict(self._reading.log.conditions)

    @property
    def held(self) -> tuple[str, ...]:
        """Columns of the state that say by which window, and how, a live row is held."""
        return tuple(table.held for table in self._reading.log.tables if table.held)

    @property
    def reading(self) -> LiveRowReading:
        return self._reading

    @property
    def rows(self) -> pa.Schema:
        return self.reading.schema

    def keyed(self, emission: Emission) -> Keyed:
        batch, reading = self.batch, self.reading
        clock, schema = batch.clock(emission), batch.sink_schema
        task = PartitionTask(batch.pipeline, reading.log, schema, clock, batch.batch, keep=batch.builds_state)
        own = partial(advance, reading, task, batch.ends(emission), batch.check)
        return Keyed(reading, reading.schema, self.schema, reading.log.keys, own)

    def wanted(self, emission: Emission, *, has_rows: bool, revised_after: int | None) -> EntriesWanted | None:  # noqa: ARG002
        """All entries of the keys that have new rows or are due by the watermark."""
        batch, log = self.batch, self._reading.log
        if not batch.restores:
            return None
        # A user's function sees all columns of the source, also those added later.
        whole = any(window.reads_whole_rows for window in batch.pipeline.windows)
        return EntriesWanted(log.schema, log.columns_of_rows if whole else (), log.keys, batch.batch, batch.clock(emission).watermark)

    def load(self, rows: pa.Table | None, stored: pa.Table | None, emission: Emission) -> Loaded:
        loaded = super().load(rows, stored, emission)
        if self.batch.is_limited:
            _check_fits(self.reading.labelled(loaded.rows), loaded.stored, self.reading, self.batch.clock(emission))
        return loaded


def advance(
    reading: LiveRowReading, task: PartitionTask, ends: tuple[int, int] | None, check: RowCheck | None, rows: pa.Table, stored: pa.Table
) -> Advanced:
    """Apply new ``rows`` to the ``stored`` entries of some keys; only windows that end in the range ``ends`` give results.

    Parameters
    ----------
    rows
        All new rows of these keys, with the columns of ``reading.schema``.
    stored
        All entries of these keys, with the columns of ``task.log.schema``, or without checksums if they are verified.
    """
    if check is not None and SUM in stored.column_names:
        check.verify(stored)
    done = task.work(stored, reading.labelled(rows))
    return Advanced(done.results(ends), done.changes, done.refused, done.applied, done.late, missed=done.missed)


def _check_fits(fresh: pa.Table, stored: pa.Table, reading: LiveRowReading, clock: Clock) -> None:
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
    if n_keys * ends + ticks > limits.MAX_RESULTS:
        raise limits.too_many(n_keys * ends + ticks, "windows and ticks at most", limits.MAX_RESULTS)
