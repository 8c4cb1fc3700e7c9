"""Integers along the time axis.

All instants and lengths are integers on one axis: microseconds since 1970-01-01 UTC, or the units of an integer axis. Windows are
half-open, and division is floor division, so instants before 1970 need no special case.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from windowmill.windowing.kernels.combine import Ints

#: One instant, or an array of them.
T = TypeVar("T", int, "Ints")

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
