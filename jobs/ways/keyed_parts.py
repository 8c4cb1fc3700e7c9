"""Parts that advance the state of whole keys: sessions, positions, and live rows.

They differ in what they store of a key and in how they advance it. How the new rows of a key meet its stored ones is the same for all: in
this process both are tables, and on Spark one shuffle brings them together (:mod:`windowmill.jobs.ways.keyed_pass`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from windowmill.jobs.ways import keyed_pass, limits
from windowmill.jobs.ways.base import PartResult
from windowmill.jobs.ways.output import Output
from windowmill.jobs.ways.pass_output import Advance, written
from windowmill.windowing.columnar.buckets import Share, in_buckets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from windowmill.checkpoints.state.readers import State
    from windowmill.jobs.ways.emission import Emission
    from windowmill.jobs.ways.file_rows import FileRows
    from windowmill.jobs.ways.input import Input
    from windowmill.jobs.ways.new_rows import NewRows
    from windowmill.jobs.ways.numbered_rows import NumberedRows
    from windowmill.jobs.ways.output import RowWriter
    from windowmill.windowing.axis import WindowGrid
    from windowmill.windowing.columnar.slices import Reading
    from windowmill.windowing.ways import WayName


#: Number of rows of the keys that this process advances together: memory of one share of them serves the next.
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
        For each key column of new rows, that of stored ones.
    advance
        Applies the new rows of some keys to their stored ones.
    """

    reading: Reading
    rows: pa.Schema
    stored: pa.Schema
    keys: Mapping[str, str]
    advance: Advance


@dataclass(frozen=True)
class KeyedTables:
    """Usable new rows and restored state of a batch in this process."""

    rows: pa.Table
    stored: pa.Table
    keyed: Keyed

    def compute(self, writer: RowWriter) -> PartResult:
        done = [written(writer, self.keyed.advance(rows, stored)) for rows, stored in self._shares()]
        refused = [each.refused for each in done if each.refused is not None]
        return PartResult(sum((each.output for each in done), Output()), np.sort(np.concatenate(refused)))

    def _shares(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """New and stored rows of shares of the keys; one share for few rows."""
        n_shares = 1 + (self.rows.num_rows + self.stored.num_rows) // SHARE_ROWS
        every, (new, old) = Share.every(n_shares), (list(names) for names in (self.keyed.keys, self.keyed.keys.values()))
        if n_shares == 1 or not new:
            yield self.rows, self.stored
            return
        of_rows, of_stored = dict(in_buckets(self.rows, new, every)), dict(in_buckets(self.stored, old, every))
        for number in range(n_shares):
            if number in of_rows or number in of_stored:
                yield of_rows.get(number, self.rows.slice(0, 0)), of_stored.get(number, self.stored.slice(0, 0))


class KeyedPart(ABC):
    """A part whose state is advanced key by key.

    Parameters
    ----------
    spark
        Gives the session.
    batch
        The batch, with the pipeline of the part's windows alone.
    state
        The state before the batch.
    """

    way: ClassVar[WayName]
    grids: Sequence[WindowGrid] = ()
    spans: Sequence[str] = ()
    by_arrival = True
    revises_by_watermark = False

    def __init__(self, spark: Callable[[], SparkSession], batch: Input, state: State) -> None:
        self._spark, self._batch, self._state = spark, batch, state

    @property
    @abstractmethod
    def reading(self) -> Reading:
        """What the part reads of a new row."""

    @abstractmethod
    def keyed(self, emission: Emission) -> Keyed:
        """How the part advances keys in this batch."""

    @abstractmethod
    def read(self, rows: pa.Table, emission: Emission) -> pa.Table | None:
        """The stored rows that the batch needs, read and verified in this process; none if they are too many for it.

        ``rows`` are the usable new rows. Raises ``TooLargeError`` if the windows of both are too many for this process.
        """

    @abstractmethod
    def restore(self, new: FileRows | NumberedRows | None, emission: Emission) -> DataFrame | None:
        """As :meth:`read`, on Spark; null for no rows."""

    def here(self, new: NewRows | None, emission: Emission) -> KeyedTables:
        keyed = self.keyed(emission)
        if new is not None and self._batch.is_limited:
            limits.check_rows(new.table.num_rows, keyed.reading.layout)
        rows = keyed.rows.empty_table() if new is None else new.usable(self._batch, keyed.rows)
        stored = self.read(rows, emission)
        if stored is None:
            raise limits.state_beyond(self._state.name)
        return KeyedTables(rows, stored, keyed)

    def on_spark(self, new: FileRows | NumberedRows | None, emission: Emission) -> keyed_pass.KeyedFrames:
        spark, stored = self._spark(), self.restore(new, emission)
        return keyed_pass.KeyedFrames(spark, new, stored, self.keyed(emission), self._batch.partitions(spark))
