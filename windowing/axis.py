"""Integers along the time axis: where windows begin and end, and which of them hold an instant.

All instants and lengths are integers on one axis: microseconds since 1970-01-01 UTC, or the units of an integer axis. Windows are
half-open, and division is floor division, so instants before 1970 need no special case.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Every event time lies between these two instants; sums and differences of instants and lengths between them fit into 64 bits.
AXIS_BEGIN, AXIS_END = -(1 << 62), 1 << 62


def to_us(instant: datetime) -> int:
    """Microseconds since the epoch; an instant without a zone is taken as UTC."""
    aware = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def from_us(t_us: int) -> datetime:
    """The UTC instant of ``t_us`` microseconds since the epoch."""
    return _EPOCH + timedelta(microseconds=t_us)


@dataclass(frozen=True, slots=True)
class Grid:
    """The windows [origin + k·hop, origin + k·hop + size) for every whole k.

    ``hop < size`` overlaps, ``hop > size`` leaves gaps.

    Examples
    --------
    >>> grid = Grid(size=10, hop=5)
    >>> [grid.start(k) for k in grid.holding(7)]
    [0, 5]
    >>> grid.first_end_after(10), grid.last_end_holding(7)
    (15, 15)
    """

    size: int
    hop: int
    origin: int = 0

    def start(self, k: int) -> int:
        """Start of window ``k``."""
        return self.origin + k * self.hop

    def end(self, k: int) -> int:
        """End of window ``k``, itself outside the window."""
        return self.start(k) + self.size

    def holding(self, t: int) -> range:
        """Indexes of the windows that hold ``t``; empty for an instant in a gap."""
        return range((t - self.size - self.origin) // self.hop + 1, (t - self.origin) // self.hop + 1)

    def last_end_holding(self, t: int) -> int:
        """End of the last window that starts at or before ``t``; in a gap that window has ended already."""
        return self.end((t - self.origin) // self.hop)

    def first_end_after(self, t: int) -> int:
        """The smallest window end greater than ``t``."""
        return self.end((t - self.size - self.origin) // self.hop + 1)

    def count_ends(self, after: int, through: int) -> int:
        """How many windows end in (after, through]."""
        return max(0, (through - self.size - self.origin) // self.hop - (after - self.size - self.origin) // self.hop)


@dataclass(frozen=True, slots=True)
class Edges:
    """The instants at which a window of any grid begins or ends: the edges of the slices that the grids share.

    A slice is the span between two neighbouring edges, so no window ever cuts one. This is the shared form of pairs: each
    (period, phase) is a sequence of edges phase + k·period. There are fewer slices than panes of width gcd(size, hop) whenever size is
    not a multiple of hop.

    References
    ----------
    Krishnamurthy, Wu and Franklin (2006), On-the-fly sharing for streamed aggregation, section 3 (paired windows).
    """

    sequences: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, grids: Iterable[Grid]) -> Edges:
        """The edges of all ``grids``; omits sequences whose edges another one contains."""
        sequences = {(grid.hop, phase % grid.hop) for grid in grids for phase in (grid.origin, grid.origin + grid.size)}
        needed = [
            (period, phase)
            for period, phase in sequences
            if not any((p, q) != (period, phase) and period % p == 0 and (phase - q) % p == 0 for p, q in sequences)
        ]
        return cls(tuple(sorted(needed)))

    def slice_start(self, t: int) -> int:
        """Start of the slice that holds ``t``: the greatest edge not after ``t``."""
        return max(t - (t - phase) % period for period, phase in self.sequences)
