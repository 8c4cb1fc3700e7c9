"""The output of a batch: result rows, state rows and counts, and the balance of its rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.data_files import DataFile
from windowmill.jobs.layouts.returning import returnable
from windowmill.windowing.columnar.added_columns import RETRACTED
from windowmill.windowing.counts import Counts, WindowRows
from windowmill.windowing.errors import WindowmillError

if TYPE_CHECKING:
    from windowmill.jobs.layouts.base import Part
    from windowmill.jobs.layouts.input import TableInput

#: The table that rows are for: ``retracted`` are rows of the sink that retract windows; ``refused`` are numbers of refused rows, which only
#: this batch reads.
Role = Literal["sink", "retracted", "state", "quarantine", "refused"]


@returnable
@dataclass(frozen=True)
class Output:
    """What tasks have written and counted.

    Attributes
    ----------
    counts
        Of the rows of one layout, or of all.
    refused
        Number of rows that the layout refused because they came too late.
    executors
        One text for each process that ran tasks.
    """

    files: Mapping[Role, tuple[DataFile, ...]] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    refused: int = 0
    executors: frozenset[str] = frozenset()

    def __add__(self, other: Output) -> Output:
        return Output(
            {role: self.files.get(role, ()) + other.files.get(role, ()) for role in (*self.files, *other.files)},
            self.counts + other.counts,
            self.refused + other.refused,
            self.executors | other.executors,
        )


@dataclass(frozen=True, slots=True)
class Published:
    """The result rows that a batch publishes, where it does not publish all: those of ``windows`` that end after an instant."""

    windows: tuple[str, ...]
    after: int

    def of(self, rows: pa.Table) -> pa.Table:
        """Those of ``rows``, result rows of one window of the spec."""
        if not rows.num_rows or rows.column("window")[0].as_py() not in self.windows:
            return rows.slice(0, 0)
        return rows.filter(pc.greater(rows.column("window_end").cast(pa.int64()), self.after))


class RowWriter(ABC):
    """Takes the rows that parts compute; ``counts`` are those of the result rows so far."""

    def __init__(self) -> None:
        self.counts = Counts()

    def results(self, rows: pa.Table) -> None:
        """Write result rows, all of one window of the spec; those with ``RETRACTED`` retract windows."""
        if not rows.num_rows:
            return
        ends = pc.min_max(rows.column("window_end").cast(pa.int64())).as_py()
        written = WindowRows(rows.num_rows, ends["min"], ends["max"])
        self.counts += Counts(windows={rows.column("window")[0].as_py(): written})
        self.write("retracted" if RETRACTED in rows.column_names else "sink", rows)

    def state(self, rows: pa.Table | None) -> None:
        """Write the state ``rows`` of one part, if there are any."""
        if rows is not None and rows.num_rows:
            self.write("state", rows)

    @abstractmethod
    def write(self, role: Role, rows: pa.Table) -> None:
        """Write ``rows`` to the table of this role."""


def combine_counts(parts: Sequence[Part], done: Sequence[Output], refused: int) -> Output:
    """The output of all ``parts``, of which each has ``done`` one; ``refused`` is the number of new rows that all of them refused."""
    every = sum(done, Output())
    # Parts on grids do not report refused rows; any other part refuses exactly the rows that it does not count.
    decisive = next((each for part, each in zip(parts, done, strict=True) if not part.grids), None)
    if decisive is None:
        return every
    taken, counts = decisive.refused - refused, decisive.counts
    applied, late = counts.rows_applied + taken, counts.rows_late + taken
    return replace(every, refused=refused, counts=replace(every.counts, rows_applied=applied, rows_late=late))


def check_balance(batch: TableInput, counts: Counts) -> None:
    """Raise ``WindowmillError`` if the rows of ``batch`` do not balance."""
    filtered, read = batch.runnable.source.filter is not None, counts.rows_read
    by_log, is_known = sum(file.rows or 0 for file in batch.files), all(file.rows is not None for file in batch.files)
    may_be_fewer = filtered or not all(file.is_counted for file in batch.files)
    is_balanced = read == counts.rows_applied + counts.rows_quarantined
    if not is_balanced or (is_known and (read > by_log or (read < by_log and not may_be_fewer))):
        raise WindowmillError(
            f"pipeline {batch.pipeline.pipeline}: batch {batch.plan.batch} read {read} rows of {by_log} in the log, applied "
            f"{counts.rows_applied} and quarantined {counts.rows_quarantined}: they must balance, so nothing was published; please "
            "report this"
        )
