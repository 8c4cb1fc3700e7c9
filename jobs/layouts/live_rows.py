"""The part with state layout *live rows*: the state keeps rows that later windows may hold, and each batch reads them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from windowmill.jobs.layouts.base import EntriesWanted, Keyed, KeyedPart
from windowmill.jobs.layouts.input import Emission, Input
from windowmill.windowing.columnar.added_columns import NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.columnar.hashes import RowCheck, verify_once
from windowmill.windowing.columnar.keyed import PartitionTask, StateLog
from windowmill.windowing.columnar.results import Advanced
from windowmill.windowing.layouts import Rows
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class LiveRowReading:
    """What a batch of windows over live rows reads of new rows, and how it stores them.

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
    """Computes the windows that keep live rows."""

    name = "live rows"
    needs_arrival_watermark = True

    def __init__(self, batch: Input, rows: Rows) -> None:
        super().__init__(replace(batch, pipeline=rows.pipeline))
        log = StateLog(rows.pipeline, batch.types, rows.pipeline.conditions(), shared=rows.shared)
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
        """Columns of the state that say which windows hold a live row, and how."""
        return tuple(table.held for table in self._reading.log.tables if table.held)

    @property
    def reading(self) -> LiveRowReading:
        return self._reading

    @property
    def rows(self) -> pa.Schema:
        return self.reading.schema

    def keyed(self, emission: Emission) -> Keyed:
        batch, reading = self.batch, self.reading
        clock, schema = emission.clock(batch.rule), batch.sink_schema
        task = PartitionTask(batch.pipeline, reading.log, schema, clock, batch.batch, keep=batch.builds_state)
        own = partial(advance, reading, task, emission.ends, batch.check)
        return Keyed(reading, reading.schema, self.schema, reading.log.keys, own, batch.lateness)

    def wanted(self, emission: Emission, *, has_rows: bool, revised_after: int | None) -> EntriesWanted | None:  # noqa: ARG002
        """All entries of the keys that have new rows or are due by the watermark."""
        batch, log = self.batch, self._reading.log
        if not batch.restores:
            return None
        # A user's function sees all columns of the source, also those added later.
        whole = any(window.reads_whole_rows for window in batch.pipeline.windows)
        return EntriesWanted(log.schema, list(log.live.values()) if whole else (), log.keys, batch.batch, emission.watermark)


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
    verify_once(check, stored)
    return task.work(stored, reading.labelled(rows), ends)
