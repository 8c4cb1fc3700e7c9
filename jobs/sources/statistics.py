"""What Delta's statistics tell of a file's columns of integers and instants."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from windowmill.windowing.axis import to_us

#: Delta cuts instants to milliseconds.
CUT_US = 999


def span(stats: str | None, name: str, *, instants: bool) -> tuple[int, int, int] | None:
    """A lower bound of the values of a column, and a lower and an upper one of the greatest; null if ``stats`` do not tell.

    ``name`` is that in the file. Instants are microseconds on the axis.
    """
    try:
        found = json.loads(stats or "{}")
        low, high = found["minValues"][name], found["maxValues"][name]
        if found.get("tightBounds") is False:
            return None
        if not instants:
            return (low, high, high) if isinstance(low, int) and isinstance(high, int) else None
        return _instant(low), _instant(high), _instant(high) + CUT_US
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def least_instants(stats: str | None, names: Iterable[str]) -> Mapping[str, int]:
    """A lower bound of the instants of each of those columns of which ``stats`` tell one."""
    least = {}
    try:
        lows = json.loads(stats or "{}").get("minValues") or {}
    except ValueError:
        return {}
    for name in names:
        try:
            least[name] = _instant(lows[name])
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return least


def _instant(value: object) -> int:
    return value if isinstance(value, int) else to_us(datetime.fromisoformat(str(value)).astimezone(UTC))
