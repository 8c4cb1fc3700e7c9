"""Functions that move times from the wall clock of one zone to that of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from windowmill.jobs.conditions.casts import cast
from windowmill.jobs.conditions.functions import Call, calls, literal_of
from windowmill.jobs.conditions.kinds import INSTANT, LOCAL_TIME, TEXT
from windowmill.jobs.conditions.time_texts import seconds_ahead, zone_of
from windowmill.jobs.conditions.times import SECOND
from windowmill.jobs.conditions.values import Value, applied, by_value, outside

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo


def _zone(value: Value, name: str) -> ZoneInfo | int:
    try:
        return zone_of(literal_of(value, name))
    except ValueError as err:
        raise outside(f"the zone {value.literal!r}", instead="a name such as Europe/Paris, or +02:00") from err


def _moved(value: Value, origin: ZoneInfo | int, target: ZoneInfo | int) -> Value:
    """Times on the wall clock of ``origin`` as those of ``target``."""

    def moved(micros: int) -> int:
        seconds, fraction = divmod(micros, SECOND)
        seconds -= seconds_ahead(origin, seconds, local=True)
        found = (seconds + seconds_ahead(target, seconds, local=False)) * SECOND + fraction
        if not -(2**63) <= found < 2**63:
            raise ValueError(micros)
        return found

    kind = value.kind

    def all_moved(times: pa.Array) -> tuple[pa.Array, object]:
        numbers, failed = by_value(times.view(pa.int64()), moved, pa.int64())
        return numbers.view(kind), failed

    return applied(all_moved, [value])


@calls("from_utc_timestamp", "to_utc_timestamp")
def _from_utc(call: Call) -> Value:
    value, named = call.values(2, 2)
    zone = _zone(named, call.name)
    value = cast(value, INSTANT)
    return _moved(value, 0, zone) if call.name == "from_utc_timestamp" else _moved(value, zone, 0)


@calls("convert_timezone")
def _convert(call: Call) -> Value:
    origin, target, value = call.values(3, 3)
    if value.kind not in (LOCAL_TIME, TEXT):
        raise call.refused(value)
    return _moved(cast(value, LOCAL_TIME), _zone(origin, call.name), _zone(target, call.name))
