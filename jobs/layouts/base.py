"""The interface of a part (what it reads, which state it wants, how it computes a batch), and the base of parts that advance keys.

Sessions, positions and live rows are advanced key by key. They differ in what they store of a key and in how they advance it. All of them
join new and stored rows of a key as follows: in this process both are tables, and on Spark one shuffle brings them together
(:mod:`windowmill.jobs.schedulers.exchange`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from windowmill.jobs.layouts import limits
from windowmill.jobs.layouts.lateness import marked, usable
from windowmill.jobs.layouts.output import Output, RowWriter
from windowmill.windowing.columnar.hashes import BITS_WITHIN, Share, in_buckets
from windowmill.windowing.columnar.results import Advanced
from windowmill.windowing.counts import Counts

if TYPE_CHECKING:
    from windowmill.checkpoints.state.readers import State
    from windowmill.checkpoints.state.reading import ReadLimit, Wanted
    from windowmill.jobs.layouts.input import Emission, Input
    from windowmill.jobs.schedulers.local import NewRows
    from windowmill.windowing.columnar.positions import PositionStage
    from windowmill.windowing.columnar.slices import RowColumns
    from windowmill.windowing.kernels.layout import Layout
    from windowmill.windowing.layouts import StateLayout
    from windowmill.windowing.slicing.edges import WindowGrid
    from windowmill.windowing.spec import Pipeline
    from windowmill.windowing.watermark import LatenessRule

New = TypeVar("New")
#: Number of rows that this process advances together. More are divided by key into shares, so that each reuses the memory of the last.
SHARE_ROWS = 1 << 17


@dataclass(frozen=True)
class Loaded:
    """New rows, for ``work`` to map, and restored rows of a part in this process; either may be null."""

    work: MapReduce
    rows: pa.Table | None
    stored: pa.Table | None

    def advanced(self) -> Iterator[Advanced]:
        lifted = [] if self.rows is None else list(self.work.map([self.rows], None))
        return self.work.reduce(lifted, self.stored)


def written(writer: RowWriter, done: Advanced) -> Output:
    """Write the result rows and the state that a part has computed for some keys; returns the counts."""
    for rows in done.results:
        writer.results(rows)
    writer.state(done.state)
    return Output(refused=len(done.refused), counts=done.counts)


@dataclass(frozen=True)
class PartialsWanted:
    """Slices or sessions of the batches before ``before_batch``, with the columns of ``schema``."""

    schema: pa.Schema
    wanted: Wanted
    before_batch: int

    def read(self, state: State, rows: pa.Table | None, limit: ReadLimit) -> pa.Table | None:  # noqa: ARG002 - as the other kinds
        """Read them in this process, as new ``rows`` need them; null if they exceed ``limit``."""
        return state.partials(self.schema, self.wanted, before_batch=self.before_batch, limit=limit)


@dataclass(frozen=True)
class PositionsWanted:
    """What new rows need of the windows over positions of ``stage``, with the columns of ``schema``."""

    schema: pa.Schema
    stage: PositionStage

    def read(self, state: State, rows: pa.Table | None, limit: ReadLimit) -> pa.Table | None:
        new = self.stage.state.rows.empty_table() if rows is None else rows
        return state.positions(self.schema, self.stage, new, limit)


@dataclass(frozen=True)
class EntriesWanted:
    """Live rows of the keys that new rows have, or that are due by ``watermark``, as of the batches before ``before_batch``."""

    #: ``schema``, ``may_lack``: columns of entries, of which the state may lack some until a batch adds them.
    schema: pa.Schema
    may_lack: Collection[str]
    keys: Mapping[str, str]  #: The log's column for each key column of new rows.
    before_batch: int
    watermark: int

    def read(self, state: State, rows: pa.Table | None, limit: ReadLimit) -> pa.Table | None:
        touched = self.schema.empty_table().select(list(self.keys.values()))
        if rows is not None:
            touched = rows.select(list(self.keys)).rename_columns(touched.column_names)
        before, watermark = self.before_batch, self.watermark
        return state.log(self.schema, self.may_lack, touched, self.keys, before_batch=before, watermark=watermark, limit=limit)


#: Rows of the state that a part needs.
StateWanted = PartialsWanted | PositionsWanted | EntriesWanted


class Readings(NamedTuple):
    """Columns that are read of a new row, as a part's ``reading`` names them."""

    keys: tuple[str, ...] = ()
    ties: tuple[str, ...] = ()
    source_columns: Sequence[str] = ()
    conditions: Sequence[str] = ()
    layout: Layout | None = None


class Lifted(NamedTuple):
    """Output of map: rows for the task that reduces them, and counts that this task adds up."""

    rows: pa.Table
    counts: tuple[int, ...] = ()


def unchanged(rows: Iterable[pa.Table], keys: Iterable[str], share: Share | None) -> Iterator[Lifted]:
    """The output of a map that leaves ``rows`` as they are; only those of a ``share`` of the ``keys``, if given."""
    return (Lifted(table if share is None else share.rows(table, list(keys))) for table in rows)


class MapReduce(Protocol):
    """How tasks compute a part: map runs where new rows are read, reduce takes all rows of some keys, new and stored; picklable."""

    @property
    def reading(self) -> RowColumns:
        """The columns that it reads of a new row."""

    @property
    def keys(self) -> Mapping[str, str]:
        """Name of each key column in new rows -> its name in stored rows."""

    @property
    def width(self) -> int | None:
        """How many numbers map keeps of a new row; null if there is no bound."""

    @property
    def most_readers(self) -> int:
        """Greatest number of tasks that each read all rows for their share of the keys; one per core is always allowed."""

    def are_few(self, n_rows: int) -> bool:
        """Whether one task should read and reduce ``n_rows`` new rows."""

    def judged(self, rows: pa.Table) -> pa.Table:
        """The usable ones of ``rows``, as :func:`.lateness.with_arrival` returns them, judged by the watermark at their arrival."""

    def map(self, rows: Iterable[pa.Table], share: Share | None) -> Iterator[Lifted]:
        """Map judged ``rows`` in order of arrival; only those of a ``share`` of the keys, if given."""

    def reduce(self, lifted: Sequence[Lifted], stored: pa.Table | None) -> Iterator[Advanced]:
        """Windows and new state of all rows of some keys."""


class Part(ABC):
    """The windows of a pipeline with one state layout, and what a batch computes of them."""

    name: ClassVar[StateLayout]  #: State layout of these windows.
    schema: pa.Schema  #: Columns of its state rows.
    reading: RowColumns  #: The columns that it reads of a new row.
    #: The grids of its windows if all are on grids, so that a row's time alone decides whether it is too late; else empty.
    grids: Sequence[WindowGrid] = ()
    spans: tuple[str, ...] = ()  #: Columns of spans, one of which has a value in each row of spans; empty if none are stored.
    #: Whether late rows of a backfill may have counted in windows that end after its range.
    may_emit_past_range = True
    #: Whether revisions need the watermark at the arrival of every row, not only of late ones.
    needs_arrival_watermark = False

    def __init__(self, batch: Input, pipeline: Pipeline) -> None:
        #: The batch, with the pipeline of the part's windows alone.
        self.batch = replace(batch, pipeline=pipeline)

    @abstractmethod
    def judged(self, new: NewRows | None) -> pa.Table | None:
        """The rows of a small batch as :meth:`load` takes them; raises ``TooLargeError`` if they are too many."""

    @abstractmethod
    def wanted(self, emission: Emission, *, has_rows: bool, revised_after: int | None) -> StateWanted | None:
        """The rows of the state that the batch needs; null if it needs none.

        ``has_rows``: whether there are new rows. ``revised_after``: lower bound of the ends of the windows that late rows of the batch
        revise; null if they revise none.
        """

    @abstractmethod
    def map_reduce(self, emission: Emission, *, has_late: bool) -> MapReduce:
        """How the part is computed by map and reduce; ``has_late`` is whether any of the rows may be late."""

    @abstractmethod
    def load(self, rows: pa.Table | None, stored: pa.Table | None, emission: Emission) -> Loaded:
        """A small batch of :meth:`judged` new rows and :meth:`wanted` stored ones; raises ``TooLargeError`` if it is too large."""


@dataclass(frozen=True, slots=True)
class BatchSurvey(Generic[New]):
    """What the survey of a batch finds."""

    new: New | None  #: New rows; null if the batch has none.
    counts: Counts  #: Number of rows read, and of those that filters leave out.
    emission: Emission  #: The windows that become complete.
    seen: int | None = None  #: Greatest event time of all rows read so far; null if none were.


def columns_read(*stages: RowColumns) -> list[str]:
    return list(dict.fromkeys(name for stage in stages for name in (*stage.keys, *stage.ties, *stage.source_columns)))


def conditions_read(*stages: RowColumns) -> list[str]:
    return list(dict.fromkeys(text for stage in stages for text in stage.conditions))


def emits_within_range_only(batch: Input, parts: Sequence[Part]) -> bool:
    """Whether a backfill emits no windows that end after its range; it has to if late rows may have counted in them."""
    return batch.pipeline.time.watermark != "max_event_time" or not any(part.may_emit_past_range for part in parts)


@dataclass(frozen=True)
class Keyed:
    """How a part advances whole keys in one batch; picklable."""

    reading: RowColumns  #: What the part reads of a new row.
    #: ``rows``, ``stored``: columns of new rows, and of stored ones.
    rows: pa.Schema
    stored: pa.Schema
    keys: Mapping[str, str]  #: Name of each key column in new rows -> its name in stored rows.
    advance: Callable[[pa.Table, pa.Table], Advanced]  #: Applies the new rows of some keys to their stored ones.
    rule: LatenessRule
    most_readers: ClassVar[int] = limits.MAX_READINGS

    @property
    def width(self) -> int:
        return len(self.rows)

    def are_few(self, n_rows: int) -> bool:  # noqa: ARG002 - as of slices
        return False

    def judged(self, rows: pa.Table) -> pa.Table:
        return usable(marked(rows, self.rule)).select(self.rows.names).cast(self.rows)

    def map(self, rows: Iterable[pa.Table], share: Share | None) -> Iterator[Lifted]:
        return unchanged(rows, self.keys, share)

    def reduce(self, lifted: Sequence[Lifted], stored: pa.Table | None) -> Iterator[Advanced]:
        """Advance all keys; if they have many rows, a share of the keys at a time."""
        rows = pa.concat_tables([self.rows.empty_table(), *(each.rows for each in lifted)]).combine_chunks()
        stored = self.stored.empty_table() if stored is None else stored
        n_shares = 1 + (rows.num_rows + stored.num_rows) // SHARE_ROWS
        every, (new, old) = Share.every(n_shares), (list(names) for names in (self.keys, self.keys.values()))
        if n_shares == 1 or not new:
            yield self.advance(rows, stored)
            return
        of_rows, of_stored = (dict(in_buckets(table, keys, every, BITS_WITHIN)) for table, keys in ((rows, new), (stored, old)))
        for number in range(n_shares):
            if number in of_rows or number in of_stored:
                yield self.advance(of_rows.get(number, rows.slice(0, 0)), of_stored.get(number, stored.slice(0, 0)))


class KeyedPart(Part):
    """A part whose state is advanced key by key."""

    rows: pa.Schema  #: Columns of a new row.

    @abstractmethod
    def keyed(self, emission: Emission) -> Keyed:
        """How the part advances keys in this batch."""

    def map_reduce(self, emission: Emission, *, has_late: bool) -> Keyed:  # noqa: ARG002 - each row is judged
        return self.keyed(emission)

    def judged(self, new: NewRows | None) -> pa.Table:
        """The usable rows of ``new``, with the columns ``rows``; an empty table for null."""
        if new is None:
            return self.rows.empty_table()
        if self.batch.is_limited:
            limits.check_rows(new.table.num_rows, self.reading.layout)
        return new.usable(self.batch, self.rows)

    def load(self, rows: pa.Table | None, stored: pa.Table | None, emission: Emission) -> Loaded:
        return Loaded(self.keyed(emission), rows, stored)
