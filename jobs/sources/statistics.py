"""The statistics of files in a Delta table's log: least and greatest values of columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import pyarrow as pa

from windowmill.windowing.axis import to_us

#: Delta cuts instants to milliseconds.
CUT_US = 999


def file_statistics(added: pa.Table) -> pa.Array:
    """Of each file the least and greatest values of integers and instants, as the JSON of a log; instants in microseconds."""
    bounds: dict[str, list[dict[str, int | None]]] = {}
    for key, name in (("minValues", "min"), ("maxValues", "max")):
        own = pa.table(added.select([name])).column(name).combine_chunks().flatten() if name in added.schema.names else []
        kinds = list(added.schema.field(name).type) if name in added.schema.names else []
        whole = {
            field.name: column.cast(pa.int64()).to_pylist()
            for field, column in zip(kinds, own, strict=True)
            if pa.types.is_integer(field.type) or (pa.types.is_timestamp(field.type) and field.type.unit == "us")
        }
        bounds[key] = [{column: values[row] for column, values in whole.items()} for row in range(added.num_rows)]
    return pa.array([json.dumps({key: rows[row] for key, rows in bounds.items()}) for row in range(added.num_rows)], pa.string())


def span(stats: str | None, name: str, *, instants: bool, tick_us: int = 1) -> tuple[int, int, int] | None:
    """A lower bound of the values of a column, and a lower and an upper one of the greatest; null if ``stats`` do not contain them.

    ``name`` is that in the file. Instants are microseconds on the axis, as are numbers of ``tick_us`` microseconds.
    """
    try:
        found = json.loads(stats or "{}")
        low, high = found["minValues"][name], found["maxValues"][name]
        if found.get("tightBounds") is False:
            return None
        if not instants:
            return (low * tick_us, high * tick_us, high * tick_us) if isinstance(low, int) and isinstance(high, int) else None
        return _instant(low), _instant(high), _instant(high) + CUT_US
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def least_instants(stats: str | None, names: Iterable[str]) -> Mapping[str, int]:
    """A lower bound of the instants of each of those columns of which ``stats`` contain one."""
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
