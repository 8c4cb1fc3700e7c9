"""Types of a spec's fields that pipelines and their windows share."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from windowmill.windowing.durations import Duration


class SpecMapping(BaseModel):
    """A mapping in a spec: unknown fields are refused, and what has been read does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _column(value: str) -> str:
    if "\0" in value:
        raise ValueError("expected the name of a column, which holds no null character")
    return value


def _condition(value: str) -> str:
    if not value.strip():
        raise ValueError("expected a Spark SQL condition; leave the field out where there is none")
    return value


def _whole(value: object) -> object:
    if isinstance(value, bool | float):
        raise ValueError("expected a whole number")
    return value


def _positive(value: Duration) -> Duration:
    if value.is_zero or value.ticks < 0:
        raise ValueError("expected a duration longer than zero")
    return value


def _fixed(value: Duration) -> Duration:
    if value.months:
        raise ValueError("expected a fixed length; months have none")
    return value


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError) as err:
        raise ValueError("expected a time zone of the IANA database, such as Europe/Vienna") from err
    return value


def _instant(value: object) -> object:
    if isinstance(value, datetime | int):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)  # noqa: DTZ001 - a wall-clock instant; its zone is the window's
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            pass
    raise ValueError("expected an instant such as 2013-01-01T00:00:00Z (an integer on an integer axis)")


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
Column = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_column)]
Condition = Annotated[str, AfterValidator(_condition)]
#: Kernels keep an index a tuple in 64 bits with room to spare; no window of this size could be held anyway.
Number = Annotated[int, BeforeValidator(_whole), Field(gt=0, le=1_000_000_000)]
PositiveDuration = Annotated[Duration, BeforeValidator(lambda v: _positive(Duration.parse(v)))]
FixedDuration = Annotated[Duration, BeforeValidator(lambda v: _fixed(_positive(Duration.parse(v))))]
Zone = Annotated[str, AfterValidator(_zone)]
Instant = Annotated[
    datetime | int,
    BeforeValidator(_instant),
    PlainSerializer(lambda v: v.isoformat() if isinstance(v, datetime) else v, return_type=str | int),
]
