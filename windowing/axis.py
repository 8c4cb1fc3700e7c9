"""The time axis: its instants, and the durations of a spec (``5 minutes``, ``1 hour 30 minutes``, ``PT5M``, ``1 month``, plain integers).

All instants and lengths are integers on one axis: microseconds since 1970-01-01 UTC, or the units of an integer axis. Windows are
half-open, and division is floor division, so instants before 1970 need no special case.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_core import CoreSchema, PydanticCustomError, core_schema

if TYPE_CHECKING:
    from windowmill.windowing.kernels.combine import Ints

#: One instant, or an array of them.
T = TypeVar("T", int, "Ints")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Every event time lies between these two instants; sums and differences of instants and lengths between them fit into 64 bits.
AXIS_BEGIN, AXIS_END = -(1 << 62), 1 << 62
SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US

_UNITS_US = {"microsecond": 1, "us": 1, "millisecond": 1_000, "ms": 1_000, "second": SECOND_US, "sec": SECOND_US, "s": SECOND_US}
_UNITS_US |= {"minute": 60 * SECOND_US, "min": 60 * SECOND_US, "hour": 3_600 * SECOND_US, "h": 3_600 * SECOND_US}
_UNITS_DAYS = {"day": 1, "d": 1, "week": 7, "w": 7}
_UNITS_MONTHS = {"month": 1, "quarter": 3, "year": 12}
#: Greatest length in days: added to any instant of a calendar it fits in 64 bits.
_LONGEST_DAYS = 3_652_500
_PART = re.compile(r"\s*([0-9]{1,19}(?:\.[0-9]{1,19})?)\s*([a-zA-Z]{1,16})\s*(?:,|and\b)?")
_ISO = re.compile(
    r"P(?:(?P<Y>\d{1,19})Y)?(?:(?P<M>\d{1,19})M)?(?:(?P<W>\d{1,19})W)?(?:(?P<D>\d{1,19})D)?"
    r"(?:T(?=\d)(?:(?P<h>\d{1,19})H)?(?:(?P<m>\d{1,19})M)?(?:(?P<s>\d{1,19}(?:\.\d{1,19})?)S)?)?",
    re.ASCII,
)
_EXPECTED_DURATION = "a duration such as '5 minutes', '1 hour 30 minutes' or 'PT5M' (a plain integer on an integer axis)"


def to_us(instant: datetime) -> int:
    """Microseconds since the epoch; an instant without a zone is taken as UTC."""
    aware = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def from_us(t_us: int) -> datetime:
    """The UTC instant of ``t_us`` microseconds since the epoch."""
    return _EPOCH + timedelta(microseconds=t_us)


@dataclass(frozen=True, slots=True)
class Duration:
    """A length on the time axis.

    Months and days are separate from elapsed time because their length depends on the calendar of a time zone.
    """

    #: Calendar parts.
    months: int = 0
    days: int = 0
    #: Elapsed time in microseconds; on an integer axis, units of the axis.
    ticks: int = 0
    #: Whether it is written as a plain integer, as an integer axis requires.
    plain: bool = field(default=False, compare=False)

    @property
    def is_calendar(self) -> bool:
        """Whether its length can depend on a time zone: whole days or months."""
        return bool(self.months or self.days)

    def elapsed(self) -> int:
        """Length in ticks, with days of 24 hours.

        >>> Duration.parse("1 hour 30 minutes").elapsed()
        5400000000

        Raises ``ValueError`` if it has months, whose length is not fixed.
        """
        if self.months:
            msg = f"{self} has no fixed length"
            raise ValueError(msg)
        return self.days * DAY_US + self.ticks

    @property
    def longest(self) -> int:
        """Upper bound on the length in ticks: months of 31 days."""
        return self.ticks + (self.days + 31 * self.months) * DAY_US

    @property
    def shortest(self) -> int:
        """Lower bound on the length in ticks: months of 28 days."""
        return self.ticks + (self.days + 28 * self.months) * DAY_US

    def __str__(self) -> str:
        if self.plain:
            return str(self.ticks)
        parts = [(self.months, "month"), (self.days, "day")]
        rest = self.ticks
        for name, unit in (("hour", 3_600 * SECOND_US), ("minute", 60 * SECOND_US), ("second", SECOND_US), ("microsecond", 1)):
            parts.append((rest // unit, name))
            rest %= unit
        return " ".join(f"{n} {name}{'s' * (n != 1)}" for n, name in parts if n) or "0 seconds"

    @classmethod
    def parse(cls, value: object) -> Duration:
        """Parse a duration of a spec; raises ``ValueError`` with the expected form.

        >>> Duration.parse("PT5M") == Duration.parse("5 minutes") == Duration(ticks=300_000_000)
        True
        """
        if isinstance(value, Duration):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            if abs(value) > AXIS_END:
                raise ValueError(f"expected at most 2^62 = {AXIS_END} ticks of the axis")
            return cls(ticks=value, plain=True)
        text = value.strip() if isinstance(value, str) and len(value) <= 200 else ""
        parsed = _parse_iso(text) or _parse_words(text)
        if parsed is None:
            raise ValueError(f"expected {_EXPECTED_DURATION}")
        if parsed.months * 31 + parsed.days + parsed.ticks // DAY_US > _LONGEST_DAYS:
            raise ValueError("expected less than 10,000 years")
        return parsed

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> CoreSchema:
        def validate(value: object) -> Duration:
            try:
                return cls.parse(value)
            except ValueError as err:
                raise PydanticCustomError("duration", "{problem}", {"problem": str(err)}) from err

        def dump(value: Duration) -> str | int:
            return value.ticks if value.plain else str(value)

        return core_schema.no_info_plain_validator_function(
            validate,
            serialization=core_schema.plain_serializer_function_ser_schema(dump),
            json_schema_input_schema=core_schema.union_schema([core_schema.str_schema(), core_schema.int_schema()]),
        )


#: A length of nothing; equal to one of no ticks.
ZERO = Duration()


def _parse_words(text: str) -> Duration | None:
    months = days = ticks = position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if not match:
            return None
        number, unit = match[1], match[2] if match[2] in ("ms", "us", "s") else match[2].lower().removesuffix("s")
        position = match.end()
        if unit in _UNITS_US:
            ticks += _exact(number, _UNITS_US[unit])
        elif "." in number:
            return None
        elif unit in _UNITS_DAYS:
            days += int(number) * _UNITS_DAYS[unit]
        elif unit in _UNITS_MONTHS:
            months += int(number) * _UNITS_MONTHS[unit]
        else:
            return None
    return Duration(months, days, ticks) if text else None


def _parse_iso(text: str) -> Duration | None:
    match = _ISO.fullmatch(text)
    if not match or not any(match.groups()):
        return None
    part = {name: value or "0" for name, value in match.groupdict().items()}
    seconds = _exact(part["s"], SECOND_US) + (int(part["h"]) * 60 + int(part["m"])) * 60 * SECOND_US
    return Duration(int(part["Y"]) * 12 + int(part["M"]), int(part["W"]) * 7 + int(part["D"]), seconds)


def _exact(number: str, unit_us: int) -> int:
    whole, _, fraction = number.partition(".")
    scaled = int(fraction or "0") * unit_us
    if scaled % 10 ** len(fraction):
        raise ValueError(f"expected {_EXPECTED_DURATION}, no finer than a microsecond")
    return int(whole) * unit_us + int(scaled // 10 ** len(fraction))
