"""The part with state layout *live rows*: the state keeps rows that later windows may hold, and each batch reads them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self

import pyarrow as pa

from windowmill.jobs.layouts.base import EntriesWanted, Keyed, KeyedPart
from windowmill.jobs.layouts.input import Emission, Input
from windowmill.windowing.columnar.added_columns import NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.columnar.hashes import RowCheck, verify_once
from windowmill.windowing.columnar.keyed import PartitionTask, StateLog
from windowmill.windowing.columnar.results import Advanced
from windowmill.windowing.layouts import Rows
from windowmill.windowing.spec import Pipeline


@dataclass(frozen=True)
class LiveRowReading:
    """What a batch of windows over live rows reads of new rows, and how it stores them."""

    keys: tuple[str, ...]
    ties: tuple[str, ...]
    source_columns: Sequence[str]
    conditions: Sequence[str]
    log: StateLog  #: Layout of the state.
    schema: pa.Schema  #: Columns of the rows read: as those of ``log.fresh_schema``, by the names of the source's columns.
    layout: ClassVar[None] = None  #: No partials: rows are kept as they are.

    @classmethod
    def of(cls, pipeline: Pipeline, types: Mapping[str, pa.DataType], log: StateLog) -> Self:
        """For windows of ``pipeline`` over a source with columns of ``types``."""
        columns = [name for name, _ in log.columns_of_fresh()]
        own = [(name, pa.int64()) for name in (NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF)]
        own += [(name, types[name]) for name in dict.fromkeys(columns)]
        schema = pa.schema([*own, *((name, pa.bool_()) for name in log.conditions)])
        return cls(pipeline.keys, pipeline.time.tie_break, columns, pipeline.conditions(), log, schema)

    @property
    def labels(self) -> Mapping[str, str]:
        """Columns of the state for columns of the source, and of conditions, that live rows keep."""
        return dict(self.log.columns_of_fresh()) | dict(self.log.conditions)

    def labelled(self, rows: pa.Table) -> pa.Table:
        """``rows`` with the columns of ``schema``, as those of ``log.fresh_schema``."""
        schema, log = self.log.fresh_schema, self.log
        labels = self.labels
        columns = {labels.get(name, name): rows.column(name) for name in rows.column_names}
        columns |= {label: columns[label].fill_null(False) for label in log.conditions.values()}
        return pa.table({name: columns[name] for name in schema.names}, schema=schema)


class LiveRowPart(KeyedPart):
    """Computes the windows that keep live rows."""

    name = "live rows"
    reading: LiveRowReading
    needs_arrival_watermark = True

    def __init__(self, batch: Input, rows: Rows) -> None:
        super().__init__(batch, rows.pipeline)
        log = StateLog(rows.pipeline, batch.types, rows.pipeline.conditions(), shared=rows.shared)
        self.reading = LiveRowReading.of(rows.pipeline, batch.types, log)
        self.rows, self.schema = self.reading.schema, log.schema

    def keyed(self, emission: Emission) -> Keyed:
        batch, reading = self.batch, self.reading
        clock, schema = emission.clock(batch.rule), batch.expressions.schema
        task = PartitionTask(batch.pipeline, reading.log, schema, clock, batch.batch, keep=batch.builds_state)
        own = partial(advance, reading, task, emission.ends, batch.check)
        return Keyed(reading, reading.schema, self.schema, reading.log.keys, own, batch.rule)

    def wanted(self, emission: Emission, *, has_rows: bool, revised_after: int | None) -> EntriesWanted | None:  # noqa: ARG002
        """All entries of the keys that have new rows or are due by the watermark."""
        batch, log = self.batch, self.reading.log
        if not batch.restores:
            return None
        # A user's function sees all columns of the source, also those added later.
        whole = any(window.reads_whole_rows for window in batch.pipeline.windows)
        return EntriesWanted(log.schema, list(log.live.values()) if whole else (), log.keys, batch.batch, emission.watermark)


def advance(
    reading: LiveRowReading, task: PartitionTask, ends: tuple[int, int] | None, check: RowCheck | None, rows: pa.Table, stored: pa.Table
) -> Advanced:
    """Apply new ``rows`` to the ``stored`` entries of some keys; only windows that end in the range ``ends`` give results.

    ``rows``: all new rows of these keys, with the columns of ``reading.schema``. ``stored``: all entries of these keys, with the columns of
    ``task.log.schema``, or without checksums if they are verified.
    """
    verify_once(check, stored)
    return task.work(stored, reading.labelled(rows), ends)
