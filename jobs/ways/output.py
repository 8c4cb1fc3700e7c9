"""The output of a batch: result rows, state rows and counts, and the balance of its rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.data_files import DataFile
from windowmill.jobs.ways.restored import Restored, added
from windowmill.jobs.ways.returning import returnable
from windowmill.windowing.columnar.added_columns import RETRACTED
from windowmill.windowing.errors import WindowmillError

if TYPE_CHECKING:
    from windowmill.jobs.ways.base import Part
    from windowmill.jobs.ways.input import TableInput

#: Number of result rows of a window of the spec, and its first and last window end.
Span = tuple[int, int, int]
#: Spans by window name.
Windows = dict[str, Span]
#: The table that rows are for: ``retracted`` are rows of the sink that retract windows; ``refused`` are numbers of refused rows, which only
#: this batch reads.
Role = Literal["sink", "retracted", "state", "quarantine", "refused"]


@returnable
@dataclass(frozen=True)
class Output:
    """What tasks have written and counted.

    Attributes
    ----------
    windows
        Number of result rows by window name, with the first and last window end.
    rows_applied, rows_late
        Number of rows that count in a window, and of late ones among them.
    rows_refused
        Number of rows that the part, or all parts together, refused because they came too late.
    new_state
        Number of slices or log entries that the batch touched.
    reasons
        Number of quarantined rows by reason.
    executors
        One text for each process that ran tasks.
    restored
        Number of rows of state that were restored, by kind.
    missed
        By window name, the number of rows that came too late for a window that holds them, refused ones included; without zeros.
    """

    files: Mapping[Role, tuple[DataFile, ...]] = field(default_factory=dict)
    windows: Windows = field(default_factory=dict)
    rows_applied: int = 0
    rows_late: int = 0
    rows_refused: int = 0
    new_state: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    executors: frozenset[str] = frozenset()
    restored: Restored = field(default_factory=dict)
    missed: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Output) -> Output:
        return Output(
            {role: self.files.get(role, ()) + other.files.get(role, ()) for role in (*self.files, *other.files)},
            _joined(self.windows, other.windows),
            self.rows_applied + other.rows_applied,
            self.rows_late + other.rows_late,
            self.rows_refused + other.rows_refused,
            self.new_state + other.new_state,
            {reason: self.reasons.get(reason, 0) + other.reasons.get(reason, 0) for reason in (*self.reasons, *other.reasons)},
            self.executors | other.executors,
            added(self.restored, other.restored),
            added(self.missed, other.missed),
        )


def _joined(one: Windows, other: Windows) -> Windows:
    joined = dict(one)
    for name, (n, low, high) in other.items():
        before = joined.get(name, (0, low, high))
        joined[name] = (before[0] + n, min(before[1], low), max(before[2], high))
    return joined


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
    """Takes the rows that parts compute; ``windows`` are the spans of the result rows so far."""

    def __init__(self) -> None:
        self.windows: Windows = {}

    def results(self, rows: pa.Table) -> None:
        """Write result rows, all of one window of the spec; those with ``RETRACTED`` retract windows."""
        if not rows.num_rows:
            return
        ends = pc.min_max(rows.column("window_end").cast(pa.int64())).as_py()
        self.windows = _joined(self.windows, {rows.column("window")[0].as_py(): (rows.num_rows, ends["min"], ends["max"])})
        self.write("retracted" if RETRACTED in rows.column_names else "sink", rows)

    def state(self, rows: pa.Table | None) -> int:
        """Write the state ``rows`` of one part, if there are any; returns their number."""
        if rows is None or not rows.num_rows:
            return 0
        self.write("state", rows)
        return int(rows.num_rows)

    @abstractmethod
    def write(self, role: Role, rows: pa.Table) -> None:
        """Write ``rows`` to the table of this role."""


def counted(parts: Sequence[Part], done: Sequence[Output], refused: int) -> Output:
    """The output of all parts together: what they have ``done``, with the number of new rows that all of them ``refused``."""
    every = sum(done, Output())
    # A part on grids alone does not report dropped rows. What any other part drops is late.
    told = next((each for part, each in zip(parts, done, strict=True) if not part.grids), None)
    if told is None:
        [told] = done
        return every
    taken = told.rows_refused - refused
    return replace(every, rows_applied=told.rows_applied + taken, rows_late=told.rows_late + taken, rows_refused=refused)


def check_balance(batch: TableInput, done: Output, rows_read: int) -> None:
    """Raise ``WindowmillError`` if the rows of ``batch`` do not balance."""
    filtered, quarantined = batch.runnable.source.filter is not None, sum(done.reasons.values())
    by_log, is_known = sum(file.rows or 0 for file in batch.files), all(file.rows is not None for file in batch.files)
    may_be_fewer = filtered or not all(file.is_counted for file in batch.files)
    if rows_read != done.rows_applied + quarantined or (is_known and (rows_read > by_log or (rows_read < by_log and not may_be_fewer))):
        raise WindowmillError(
            f"pipeline {batch.pipeline.pipeline}: batch {batch.plan.batch} read {rows_read} rows of {by_log} in the "
            f"log, applied {done.rows_applied} and "
            f"quarantined {quarantined}: they must balance, so nothing was published; please report this"
        )
