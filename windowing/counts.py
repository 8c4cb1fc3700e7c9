"""Counts of a batch's rows: one value from the result of a task to the ledger's record, ``history`` and the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

#: Marks a field that a record of the ledger may lack: then it has its default value.
OPTIONAL: Mapping[str, bool] = {"optional": True}


@dataclass(frozen=True, slots=True)
class WindowRows:
    """Number of result rows of a window of the spec, and their first and last window end, in ticks of the axis."""

    rows: int
    first_end: int
    last_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of one layout, of one task, of a batch, or of several batches; ``+`` adds them up.

    Each layout counts all rows that it gets: ``combine_counts`` of ``jobs/layouts/output`` says whose number is the batch's. Records of the
    ledger hold these fields; earlier records may lack those that are optional.
    """

    #: Number of rows read, of those that count in a window, and of late ones among these.
    rows_read: int = 0
    rows_applied: int = 0
    rows_late: int = 0
    #: Number of rows read that filters, of the source or of steps, leave out.
    filtered: int = field(default=0, metadata=OPTIONAL)
    #: Number of rows that are left out because an applied one with the same id came before.
    duplicates: int = field(default=0, metadata=OPTIONAL)
    #: Number of rows changed by source versions that ``source.changes: ignore`` skipped; they are not part of ``rows_read``.
    rows_ignored: int = 0
    #: Number of quarantined rows by reason.
    quarantined: Mapping[str, int] = field(default_factory=dict)
    #: By window name, the number of rows that came too late for a window that holds them, quarantined ones included; without zeros.
    late_missed: Mapping[str, int] = field(default_factory=dict)
    #: Number of restored state rows by kind.
    state_restored: Mapping[str, int] = field(default_factory=dict)
    #: Result rows by window name.
    windows: Mapping[str, WindowRows] = field(default_factory=dict)

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{each.name: _added(getattr(self, each.name), getattr(other, each.name)) for each in fields(self)})

    @property
    def rows_quarantined(self) -> int:
        return sum(self.quarantined.values())

    @property
    def rows_kept(self) -> int:
        """Number of rows read that filters keep."""
        return self.rows_read - self.filtered

    @property
    def rows_published(self) -> int:
        return sum(each.rows for each in self.windows.values())

    @property
    def window_ends(self) -> tuple[int, int] | None:
        """First and last window end of the result rows; null if there are none."""
        if not self.windows:
            return None
        return min(each.first_end for each in self.windows.values()), max(each.last_end for each in self.windows.values())

    def rows_of_windows(self) -> dict[str, int]:
        return {name: each.rows for name, each in self.windows.items()}

    def shown(self) -> dict[str, Any]:
        """The counts that ``history`` and the summary of a run show, by name."""
        return {name: getattr(self, name) for name in _SHOWN}


_SHOWN = (
    *("rows_read", "rows_applied", "rows_late", "late_missed", "rows_quarantined", "duplicates", "filtered", "rows_ignored"),
    "rows_published",
)


def _added(one: Any, other: Any) -> Any:
    if isinstance(one, int):
        return one + other
    if isinstance(one, WindowRows):
        return WindowRows(one.rows + other.rows, min(one.first_end, other.first_end), max(one.last_end, other.last_end))
    return {**one, **other, **{name: _added(one[name], other[name]) for name in one.keys() & other.keys()}}


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all committed batches; rows that a backfill of a running pipeline or a restatement read again count once.

    Result rows are those that batches have written: rows that a backfill published again count twice, and the sink has fewer.
    """

    batches: int = 0
    backfills: int = 0
    counts: Counts = field(default_factory=Counts)
