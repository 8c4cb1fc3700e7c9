"""Defines a way to compute a batch: its four steps and their results."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from windowmill.jobs.spark.staging import Staged
    from windowmill.jobs.ways.counting import Windows
    from windowmill.jobs.ways.emission import Emission


@dataclass(frozen=True)
class Computed:
    """The result of combining a batch's rows with the restored state.

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
    judged
        New rows, including all that were not applied, which have a reason; none if all were applied.
    rows_refused
        Number of rows that came too late for every window.
    cached
        DataFrames that Spark has cached for these results.
    """

    rows: DataFrame | pa.Table | None = None
    state: DataFrame | pa.Table | None = None
    windows: Windows = field(default_factory=dict)
    rows_applied: int = 0
    rows_late: int = 0
    new_state: int = 0
    judged: DataFrame | None = None
    rows_refused: int = 0
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


Surveyed = TypeVar("Surveyed")
Restored = TypeVar("Restored")


class Way(Protocol[Surveyed, Restored]):
    """Computes the batches of a pipeline, step by step; each way has its own kind of state."""

    def survey(self) -> Surveyed:
        """Read the new rows' event times, and decide which windows the batch completes."""
        ...

    def restore(self, surveyed: Surveyed) -> Restored:
        """Read the state that these rows and windows need, as the last batch left it."""
        ...

    def apply(self, surveyed: Surveyed, restored: Restored, staging: str) -> Applied:
        """Combine rows and state into complete windows; stage rows that cannot be applied under the folder ``staging``."""
        ...

    def remember(self, rows: DataFrame | pa.Table, count: int, *, app_id: str, metadata: str) -> int:
        """Append the batch's ``count`` new rows of state in one commit; returns the table's version."""
        ...

    def is_overgrown(self) -> bool:
        """Whether the state has grown enough to be compacted. Reads only its Delta log."""
        ...

    def compact(self) -> None:
        """Compact the state, after the commit."""
        ...
