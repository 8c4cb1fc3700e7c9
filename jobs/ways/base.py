"""A way of computing a batch: its four steps, and what it makes of the batch."""

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
    """What a batch's rows and the restored state come to.

    Attributes
    ----------
    rows
        Result rows; none if no window with rows is complete.
    state
        New rows of the state; none if there is nothing to remember.
    windows
        Number of result rows by window name, with the first and last window end.
    rows_applied, rows_late
        Rows that count in a window, and those of them that came behind the watermark.
    new_state
        Number of slices or entries that the batch touched.
    judged
        New rows, among them all that were not applied, which have a reason; none if all were applied.
    cached
        What Spark has cached of it.
    """

    rows: DataFrame | pa.Table | None = None
    state: DataFrame | pa.Table | None = None
    windows: Windows = field(default_factory=dict)
    rows_applied: int = 0
    rows_late: int = 0
    new_state: int = 0
    judged: DataFrame | None = None
    cached: DataFrame | None = None

    def release(self) -> None:
        """Free what Spark has cached."""
        if self.cached is not None:
            self.cached.unpersist()


@dataclass(frozen=True)
class Applied:
    """A batch applied: what it came to, how far the pipeline gets with it, and the rows set aside."""

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
    """How the batches of a pipeline are computed, step by step; each way has its own kind of state."""

    def survey(self) -> Surveyed:
        """Read the new rows' event times, and decide which windows the batch completes."""
        ...

    def restore(self, surveyed: Surveyed) -> Restored:
        """The state that these rows and windows need, as the last batch left it."""
        ...

    def apply(self, surveyed: Surveyed, restored: Restored, staging: str) -> Applied:
        """Bring rows and state together in complete windows; rows that cannot be applied are staged under the folder ``staging``."""
        ...

    def remember(self, rows: DataFrame | pa.Table, count: int, *, app_id: str, metadata: str) -> int:
        """Append the batch's ``count`` new rows of state in one commit; the table's version."""
        ...

    def is_overgrown(self) -> bool:
        """Whether the state has grown so far that compacting it pays. From its Delta log alone."""
        ...

    def compact(self) -> None:
        """Compact the state, after the commit."""
        ...
