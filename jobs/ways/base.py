"""Defines a part of a pipeline, which computes its windows of a batch, and the results."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from windowmill.jobs.spark.staging import Staged
    from windowmill.jobs.ways.counting import Windows
    from windowmill.jobs.ways.emission import Emission
    from windowmill.jobs.ways.new_rows import NewRows
    from windowmill.jobs.ways.numbered_rows import NumberedRows
    from windowmill.windowing.axis import WindowGrid
    from windowmill.windowing.columnar.slices import Reading
    from windowmill.windowing.kernels.combine import Ints
    from windowmill.windowing.ways import WayName


@dataclass(frozen=True)
class Computed:
    """The result of combining a batch's rows with the restored state, of one part or of all.

    Attributes
    ----------
    rows
        Result rows; none if no window with rows is complete.
    state
        New rows of the state; none if there are none.
    windows
        Number of result rows by window name, with the first and last window end.
    rows_applied, rows_late
        Number of rows that count in a window, and of late ones among them.
    new_state
        Number of slices or log entries that the batch touched.
    refused
        Of a part: numbers of the rows that came too late for each of its windows, on Spark in a column ``NUMBER_OF``; null if there are
        none, or if grids tell.
    rows_refused
        Number of these rows.
    judged
        Of all parts: new rows, including all that were not applied, which have a reason; none if all were applied. A table holds only
        the rows that were not applied.
    cached
        DataFrames that Spark has cached for these results.
    """

    rows: DataFrame | pa.Table | None = None
    state: DataFrame | pa.Table | None = None
    windows: Windows = field(default_factory=dict)
    rows_applied: int = 0
    rows_late: int = 0
    new_state: int = 0
    refused: DataFrame | Ints | None = None
    rows_refused: int = 0
    judged: DataFrame | pa.Table | None = None
    cached: tuple[DataFrame, ...] = ()

    def release(self) -> None:
        """Free what Spark has cached."""
        for frame in self.cached:
            frame.unpersist()


@dataclass(frozen=True)
class Applied:
    """The result of *apply*: computed rows, the pipeline's progress, and the staged quarantine rows."""

    emission: Emission
    computed: Computed
    rows_read: int
    quarantined: Staged | None = None

    @property
    def row_count(self) -> int:
        """Number of result rows."""
        return sum(n for n, _, _ in self.computed.windows.values())

    @property
    def rows_quarantined(self) -> int:
        return self.quarantined.rows if self.quarantined else 0

    def with_quarantined(self, staged: Staged) -> Applied:
        return replace(self, quarantined=staged)

    def release(self) -> None:
        """Free what Spark has cached and what was staged."""
        self.computed.release()
        if self.quarantined is not None:
            self.quarantined.drop()


class Loaded(Protocol):
    """New rows and restored state of a part, both in Spark or both in this process."""

    def compute(self) -> Computed:
        """Compute complete windows and new state."""
        ...


class Part(Protocol):
    """The windows of a pipeline that go one way; each way has its own kind of state."""

    @property
    def way(self) -> WayName:
        """The way that they go."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """Columns of its rows of the state."""
        ...

    @property
    def reading(self) -> Reading:
        """What this process reads of the new rows of a small batch."""
        ...

    @property
    def grids(self) -> Sequence[WindowGrid]:
        """The grids of its windows, if all are on grids: whether a row is too late then follows from its time; else none."""
        ...

    @property
    def spans(self) -> Sequence[str]:
        """Columns of the state that tell its rows of spans of keys: each has a value in one of them. None if it has no such rows."""
        ...

    @property
    def by_arrival(self) -> bool:
        """Whether rows may have met windows that end after the range of a backfill, because the watermark at their arrival judges them."""
        ...

    def few(self, new: NewRows | None, emission: Emission) -> Loaded | None:
        """Load a small batch in this process; null if its state or windows turn out to be too large."""
        ...

    def on_spark(self, new: NumberedRows | None, emission: Emission) -> Loaded:
        """Load a batch on Spark."""
        ...
