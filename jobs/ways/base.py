"""Defines a part of a pipeline, which computes its windows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from windowmill.jobs.ways.output import Output, RowWriter
from windowmill.windowing.columnar.advanced import Advanced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from windowmill.jobs.ways.emission import Emission
    from windowmill.jobs.ways.file_rows import FileRows
    from windowmill.jobs.ways.new_rows import NewRows
    from windowmill.jobs.ways.numbered_rows import NumberedRows
    from windowmill.jobs.ways.task_output import Targets
    from windowmill.windowing.axis import WindowGrid
    from windowmill.windowing.columnar.slices import Reading
    from windowmill.windowing.kernels.combine import Ints
    from windowmill.windowing.ways import WayName


@dataclass(frozen=True)
class PartResult:
    """What a part computed of a batch in this process: its counts, and the numbers of the rows that every window dropped as late."""

    output: Output
    refused: Ints


#: Applies new rows to stored ones; either may be null.
Advance = Callable[[pa.Table | None, pa.Table | None], Iterable[Advanced]]


@dataclass(frozen=True)
class Loaded:
    """New rows and restored state of a part in this process; either may be null. ``advance`` applies the rows to the state."""

    rows: pa.Table | None
    stored: pa.Table | None
    advance: Advance

    def compute(self, writer: RowWriter) -> PartResult:
        """Compute complete windows and new state, and write them."""
        output, refused = Output(), [np.empty(0, np.int64)]
        for done in self.advance(self.rows, self.stored):
            output += written(writer, done)
            refused.append(done.refused)
        return PartResult(output, np.sort(np.concatenate(refused)))


def written(writer: RowWriter, done: Advanced) -> Output:
    """Write the result rows and the state that a part has computed for some keys; returns the counts."""
    for rows in done.results:
        writer.results(rows)
    new_state = writer.state(done.state)
    touched = new_state if done.touched is None else done.touched
    return Output(rows_applied=done.applied, rows_late=done.late, rows_refused=len(done.refused), new_state=touched)


class LoadedOnSpark(Protocol):
    """New rows and restored state of a part on Spark."""

    def compute(self, targets: Targets) -> Output:
        """Have tasks compute complete windows and new state, and write them as ``targets`` say."""
        ...


class Part(Protocol):
    """The windows of a pipeline that go one way; each way has its own kind of state."""

    @property
    def way(self) -> WayName:
        """State layout of these windows."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """Columns of its state rows."""
        ...

    @property
    def reading(self) -> Reading:
        """What this process reads of the new rows of a small batch."""
        ...

    @property
    def grids(self) -> Sequence[WindowGrid]:
        """The grids of its windows if all are on grids, so that the time of a row decides whether it is too late; else empty."""
        ...

    @property
    def spans(self) -> Sequence[str]:
        """Columns of which each span row has at least one; empty if the part has no span rows."""
        ...

    @property
    def by_arrival(self) -> bool:
        """Whether rows of a backfill may count in windows that end after its range, because the watermark at their arrival judges them."""
        ...

    @property
    def revises_by_watermark(self) -> bool:
        """Whether revisions need the watermark at the arrival of every row, not of late ones alone."""
        ...

    def here(self, new: NewRows | None, emission: Emission) -> Loaded:
        """Load a small batch in this process; raises ``TooLargeError`` if its state or windows turn out to be too large."""
        ...

    def on_spark(self, new: FileRows | NumberedRows | None, emission: Emission) -> LoadedOnSpark:
        """Load a batch on Spark."""
        ...
