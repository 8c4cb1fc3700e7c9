"""Leaves duplicates out of a batch, before its parts see the rows: rows whose values of ``dedup.by`` an applied row had before.

The decision needs all rows with an id together, and the entries of rows that earlier batches have applied. This process decides over all
new rows at once; tasks of Spark, over those of a share of the ids each, by the exchange that brings the rows of a key together. So
:class:`Deduplication` is a :class:`.MapReduce` whose keys are ids, and whose state is what is remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.layouts import lateness, limits
from windowmill.jobs.layouts.base import Lifted, Readings, unchanged
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.columnar.added_columns import ID_HIGH, ID_LOW, LAPSED, NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.columnar.duplicates import ENTRIES, Arrivals, duplicates, has_each, ids_of
from windowmill.windowing.columnar.results import Advanced
from windowmill.windowing.columnar.rows import ascending, by_time, distinct_values, without
from windowmill.windowing.counts import Counts
from windowmill.windowing.errors import UnsupportedError
from windowmill.windowing.grids import Grids, greatest_reach
from windowmill.windowing.watermark import commits_of

if TYPE_CHECKING:
    from windowmill.jobs.layouts.input import Input
    from windowmill.jobs.schedulers.local import NewRows
    from windowmill.windowing.columnar.hashes import Share
    from windowmill.windowing.kernels.combine import Ints
    from windowmill.windowing.slicing.edges import WindowGrid
    from windowmill.windowing.spec import Pipeline
    from windowmill.windowing.watermark import LatenessRule


class Memory(Protocol):
    """Entries of rows that earlier batches have applied."""

    def matching(self, high: Ints, since: int) -> pa.Table:
        """The entries whose high half is one of ``high``, which are in ascending order, and whose time is at or after ``since``."""


class EntriesInMemory:
    """Entries of the batches of ``windowmill try``."""

    def __init__(self) -> None:
        self._entries = ENTRIES.empty_table()

    def add(self, entries: pa.Table) -> None:
        self._entries = pa.concat_tables([self._entries, entries])

    def matching(self, high: Ints, since: int) -> pa.Table:
        own = self._entries.filter(pc.greater_equal(self._entries.column(TIME), since))
        return own.filter(pc.is_in(own.column(ID_HIGH), pa.array(high, pa.int64())))


def reading_of(pipeline: Pipeline) -> Readings:
    """The columns of a new row by which duplicates are found."""
    assert pipeline.dedup is not None
    return Readings(ties=pipeline.time.tie_break, source_columns=pipeline.dedup.by)


@dataclass(frozen=True)
class Found:
    """What a batch finds: numbers of the duplicates, ascending, and entries of the rows to remember."""

    numbers: Ints
    entries: pa.Table


@dataclass(frozen=True)
class Deduplication:
    """How the duplicates of a batch are found; picklable."""

    pipeline: Pipeline
    types: Mapping[str, pa.DataType]  #: Arrow types of the columns that are read.
    rule: LatenessRule
    #: The grids of the windows if all are on grids, so that a row's time alone decides whether it is too late; else empty.
    grids: Sequence[WindowGrid]
    memory: Memory | None  #: What earlier batches have applied; null for nothing.
    since: int = AXIS_BEGIN  #: No later row is a duplicate of one whose time lies before it.
    bounds: Sequence[int] = ()  #: Of a range that is recomputed from rows in another order than batches read: it must not divide an id.
    most_readers: ClassVar[int] = limits.MAX_READINGS

    @classmethod
    def of(cls, batch: Input, memory: Memory | None, since: int = AXIS_BEGIN) -> Self:
        own = reading_of(batch.pipeline)
        types = {name: batch.types[name] for name in (*own.source_columns, *own.ties)}
        on_grids = all(window.on_grid for window in batch.pipeline.windows)
        return cls(batch.pipeline, types, batch.rule, Grids.of(batch.pipeline).grids if on_grids else (), memory, since)

    @cached_property
    def reading(self) -> Readings:
        return reading_of(self.pipeline)

    @property
    def keys(self) -> Mapping[str, str]:
        return {ID_HIGH: ID_HIGH}

    @property
    def width(self) -> int:
        return len(self._schema)

    @cached_property
    def _schema(self) -> pa.Schema:
        """Columns of a row that may be a duplicate, or have some."""
        own = [(name, pa.int64()) for name in (ID_HIGH, ID_LOW, NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF)]
        return pa.schema([*own, (LAPSED, pa.bool_()), *((self._tie(name), self.types[name]) for name in self.reading.ties)])

    def _tie(self, name: str) -> str:
        return f"_ tie {self.reading.ties.index(name)}"

    def are_few(self, n_rows: int) -> bool:  # noqa: ARG002 - as of slices
        return False

    def judged(self, rows: pa.Table) -> pa.Table:
        """Those of ``rows``, as of :func:`.lateness.with_arrival`, that may be duplicates: usable ones, with no null in ``dedup.by``."""
        by = list(self.reading.source_columns)
        rows = lateness.usable(rows)
        rows = rows.filter(has_each(rows, by))
        found = pc.fill_null(rows.column(WATERMARK_OF), AXIS_BEGIN)
        rows = lateness.marked(rows.set_column(rows.schema.get_field_index(WATERMARK_OF), WATERMARK_OF, found), self.rule)
        lapsed = np.zeros(rows.num_rows, np.bool_)
        if self.grids:
            late = lateness.too_late_among(rows.select(lateness.JUDGED_BY.names), None, self.grids)
            lapsed = np.isin(rows.column(NUMBER_OF).to_numpy(), late)
        high, low = ids_of(rows.select(by))
        own = {ID_HIGH: pa.array(high), ID_LOW: pa.array(low), LAPSED: pa.array(lapsed)}
        own |= {name: rows.column(name) for name in (NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF)}
        own |= {self._tie(name): rows.column(name) for name in self.reading.ties}
        return pa.table([own[name] for name in self._schema.names], self._schema.names).cast(self._schema)

    def map(self, rows: Iterable[pa.Table], share: Share | None) -> Iterator[Lifted]:
        return unchanged(rows, self.keys, share)

    def reduce(self, lifted: Sequence[Lifted], stored: pa.Table | None) -> Iterator[Advanced]:  # noqa: ARG002 - it reads its memory itself
        """The entries of some ids as rows of state, and the numbers of their duplicates as refused ones."""
        found = self.found(pa.concat_tables([self._schema.empty_table(), *(each.rows for each in lifted)]))
        yield Advanced((), found.entries, found.numbers, Counts())

    def found(self, rows: pa.Table) -> Found:
        """The duplicates among ``rows``, as of :meth:`judged`: all of some ids."""
        rows = ascending(rows.combine_chunks(), NUMBER_OF)
        number = rows.column(NUMBER_OF).to_numpy()
        order = by_time(rows, TIME, [self._tie(name) for name in self.reading.ties])
        order = order[np.argsort(commits_of(number)[order], kind="stable")]
        high, low, until, watermark = (rows.column(name).to_numpy() for name in (ID_HIGH, ID_LOW, UNTIL_OF, WATERMARK_OF))
        counts = ~rows.column(LAPSED).to_numpy(zero_copy_only=False)
        arrived = Arrivals(high, low, until, commits_of(number), watermark, counts).at(order)
        within, dedup = self.pipeline.remembers_for, self.pipeline.dedup
        assert dedup is not None
        if self.bounds:
            refuse_divided(self.pipeline, rows, self.bounds)
        remembered = ENTRIES.empty_table()
        if self.memory is not None and len(number):
            remembered = self.memory.matching(distinct_values(high), max(AXIS_BEGIN, int(watermark.min()) - within))
        copies = duplicates(arrived, remembered, within, repeats=dedup.within is not None)
        staying = np.flatnonzero(~copies & arrived.counts & (arrived.time >= self.since))
        return Found(np.sort(number[order][copies]), arrived.at(staying).entries)

    def of_new(self, new: NewRows, batch: Input) -> tuple[NewRows, Found]:
        """The ``new`` rows of ``batch`` without its duplicates, and these."""
        rows = lateness.arrived(new.table, batch)
        found = self.found(self.judged(rows))
        return replace(new, table=without(rows, NUMBER_OF, found.numbers)), found


def refuse_divided(pipeline: Pipeline, rows: pa.Table, bounds: Sequence[int]) -> None:
    """Refuse a range whose ``bounds`` divide rows of one id: which of them counts could change on one side, and not on the other.

    ``rows``: their ``ID_HIGH`` and ``TIME``.
    """
    times = rows.group_by(ID_HIGH, use_threads=False).aggregate([(TIME, "min"), (TIME, "max")])
    first, last = (times.column(f"{TIME}_{which}").to_numpy() for which in ("min", "max"))
    reach = greatest_reach(pipeline)
    ends = np.full(len(last), AXIS_END) if reach is None else last + reach
    if any(((first < last) & (first < bound) & (ends > bound)).any() for bound in bounds):
        raise UnsupportedError(
            f"pipeline {pipeline.pipeline}: rows with equal values of dedup.by have times inside and outside of the range, so another of "
            "them could count on one side of it alone; recompute all windows: `windowmill restate --from BEGIN`"
        )
