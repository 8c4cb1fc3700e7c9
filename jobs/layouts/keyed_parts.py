"""Parts that advance the state of whole keys: sessions, positions, and live rows.

They differ in what they store of a key and in how they advance it. How the new rows of a key meet its stored ones is the same for all: in
this process both are tables, and on Spark one shuffle brings them together (:mod:`windowmill.jobs.schedulers.spark.exchange`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from windowmill.jobs.layouts import limits
from windowmill.jobs.layouts.base import Lifted, Loaded, unchanged
from windowmill.jobs.layouts.lateness import marked, usable
from windowmill.windowing.columnar.advanced import Advanced
from windowmill.windowing.columnar.buckets import BITS_WITHIN, Share, in_buckets

if TYPE_CHECKING:
    from windowmill.jobs.layouts.emission import Emission
    from windowmill.jobs.layouts.input import Input
    from windowmill.jobs.schedulers.local.new_rows import NewRows
    from windowmill.windowing.columnar.slices import RowColumns
    from windowmill.windowing.layouts import StateLayout
    from windowmill.windowing.slicing.edges import WindowGrid


#: Number of rows that this process advances together. More are divided by key into shares, so that the memory of one serves the next.
SHARE_ROWS = 1 << 17


@dataclass(frozen=True)
class Keyed:
    """How a part advances whole keys in one batch; picklable.

    Attributes
    ----------
    reading
        What the part reads of a new row.
    rows, stored
        Columns of new rows, and of stored ones.
    keys
        Name of each key column in new rows -> its name in stored rows.
    advance
        Applies the new rows of some keys to their stored ones.
    lateness
        The pipeline's, in ticks of the axis.
    """

    reading: RowColumns
    rows: pa.Schema
    stored: pa.Schema
    keys: Mapping[str, str]
    advance: Callable[[pa.Table, pa.Table], Advanced]
    lateness: int
    most_readers: ClassVar[int] = limits.MAX_READINGS

    @property
    def width(self) -> int:
        return len(self.rows)

    def are_few(self, n_rows: int) -> bool:  # noqa: ARG002 - as of slices
        return False

    def judged(self, rows: pa.Table) -> pa.Table:
        return usable(marked(rows, self.lateness)).select(self.rows.names).cast(self.rows)

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


class KeyedPart(ABC):
    """A part whose state is advanced key by key; ``batch`` has the pipeline of the part's windows alone."""

    name: ClassVar[StateLayout]
    grids: Sequence[WindowGrid] = ()
    spans: Sequence[str] = ()
    may_emit_past_range = True
    needs_arrival_watermark = False

    def __init__(self, batch: Input) -> None:
        self.batch = batch

    @property
    @abstractmethod
    def reading(self) -> RowColumns:
        """What the part reads of a new row."""

    @property
    @abstractmethod
    def rows(self) -> pa.Schema:
        """Columns of a new row."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """Columns of stored rows."""

    @abstractmethod
    def keyed(self, emission: Emission) -> Keyed:
        """How the part advances keys in this batch."""

    def map_reduce(self, emission: Emission, *, has_late: bool) -> Keyed:  # noqa: ARG002 - each row is judged
        return self.keyed(emission)

    def judged(self, new: NewRows | None) -> pa.Table:
        """The usable rows, with the columns ``rows``; none for null."""
        if new is None:
            return self.rows.empty_table()
        if self.batch.is_limited:
            limits.check_rows(new.table.num_rows, self.reading.layout)
        return new.usable(self.batch, self.rows)

    def load(self, rows: pa.Table | None, stored: pa.Table | None, emission: Emission) -> Loaded:
        return Loaded(self.keyed(emission), rows, stored)
