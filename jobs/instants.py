"""Texts that are instants: one set of forms, whoever reads them, and the datetime patterns of Spark's readers.

Without a pattern, a text is a date; or a date and a time of hours, minutes, seconds or up to nine digits of their fraction, of which six
count. A time may have a zone: ``Z``, ``UTC``, as BigQuery exports it, or an offset. A time of day, ``now``, ``today`` and the like name no
instant: what they would mean changes with the clock.

By a pattern, a text is read as Spark reads it: it must match as a whole, letters of either case are the same, and fields that the pattern
lacks are those of 1970-01-01 00:00. What Spark refuses when it parses (names of weekdays, quarters, weeks) is refused here, too.

References
----------
Spark SQL, Datetime Patterns for Formatting and Parsing; java.time.format.DateTimeFormatterBuilder.appendPattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.axis import DAY_US, SECOND_US, to_us

_OFFSET = r"[+-](?:0[0-9]|1[0-7])(?::?[0-5][0-9])?"
_DATE = r"(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-[0-9]{2}-[0-9]{2}"
_TIME = r"[0-9]{2}(?::[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?)?"
#: What an instant looks like, in the syntax that Python, Java and RE2 share; spaces around it do not count.
PATTERN = f" *{_DATE}(?:[ T]{_TIME}(?:Z| ?UTC|{_OFFSET})?)? *"
_MATCHES = re.compile(PATTERN).fullmatch
#: The zone of a text that names it.
_UTC = " ?UTC *$"
_FIRST_US = to_us(datetime(1, 1, 1, tzinfo=UTC))


def instant_us(text: str) -> int:
    """Microseconds since 1970; UTC unless the text says otherwise. Raises ``ValueError`` for any other text.

    Examples
    --------
    >>> instant_us("1970-01-01T01:00+01:00"), instant_us("1970-01-01 00:00:00.1234567")
    (0, 123456)
    """
    if not _MATCHES(text):
        raise ValueError(text)
    instant = datetime.fromisoformat(re.sub(_UTC, "Z", text.strip(" ")))
    try:
        return to_us(instant)
    except OverflowError as err:  # an offset takes it out of the years 1 to 9999
        raise ValueError(text) from err


def instants(texts: pa.Array) -> pa.Array:
    """Texts as timestamps in UTC: all with a zone, or all without; raises ``ArrowInvalid`` where they must be read one by one."""
    if pc.any(pc.match_substring(texts, "UTC")).as_py():
        texts = pc.replace_substring_regex(texts, _UTC, "Z")
    try:
        found = texts.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
        zoned = True
    except pa.ArrowInvalid:
        found, zoned = texts.cast(pa.timestamp("us")), False
    # Arrow takes greater offsets and the year 0 too.
    odd = zoned and not pc.all(pc.ends_with(texts, "Z")).as_py() and not pc.all(pc.match_substring_regex(texts, f"^(?:{PATTERN})$")).as_py()
    least = pc.min(found.cast(pa.int64())).as_py()
    if odd or (least is not None and least < _FIRST_US):
        raise pa.ArrowInvalid("a text that is no instant")
    return found


def instants_or_null(texts: pa.Array) -> pa.Array:
    """Microseconds since 1970 of each text; null for a text that is no instant."""
    try:
        return instants(texts.cast(pa.string())).cast(pa.int64())
    except pa.ArrowInvalid:
        return pa.array(map(_instant_or_null, texts.cast(pa.binary()).to_pylist()), pa.int64())


def _instant_or_null(text: bytes | None) -> int | None:
    try:
        return None if text is None else instant_us(text.decode())
    except ValueError:  # no instant, or not even UTF-8, as Spark makes texts of bytes
        return None


MONTH_NAMES = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"]
_SHORT = "|".join(name[:3] for name in MONTH_NAMES)
_LONG = "|".join(MONTH_NAMES)
#: A number of up to nine digits, which 64 bits hold with room to spare.
_DIGITS = "[0-9]{1,9}"
_REGION = r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*"


def _offset(*forms: str, zero: str = "") -> str:
    signed = "|".join(f"[+-]{form}" for form in forms)
    return f"{zero}|{signed}" if zero else signed


_TWO = "[0-9]{2}"
_COLONS = _offset(f"{_TWO}:{_TWO}:{_TWO}", f"{_TWO}:{_TWO}")
#: Letter and its number -> the field that it gives, and the texts that it takes.
_FIELDS: dict[str, tuple[str, str]] = {
    "y": ("year", _DIGITS),
    "yy": ("year_of_2000", _TWO),
    "yyyy": ("year", "[0-9]{4}"),
    **dict.fromkeys("ML", ("month", _DIGITS)),
    **{letter * 2: ("month", _TWO) for letter in "ML"},
    **{letter * 3: ("month_name", _SHORT) for letter in "ML"},
    **{letter * 4: ("month_name", _LONG) for letter in "ML"},
    "D": ("day_of_year", _DIGITS),
    "DDD": ("day_of_year", "[0-9]{3}"),
    "a": ("half", "AM|PM"),
    "X": ("offset", _offset(f"{_TWO}{_TWO}", _TWO, zero="Z")),
    "XX": ("offset", _offset(f"{_TWO}{_TWO}", zero="Z")),
    "XXX": ("offset", _offset(f"{_TWO}:{_TWO}", zero="Z")),
    "XXXX": ("offset", _offset(f"{_TWO}{_TWO}{_TWO}", f"{_TWO}{_TWO}", zero="Z")),
    "XXXXX": ("offset", f"Z|{_COLONS}"),
    "x": ("offset", _offset(f"{_TWO}{_TWO}", _TWO)),
    "xx": ("offset", _offset(f"{_TWO}{_TWO}")),
    "xxx": ("offset", _offset(f"{_TWO}:{_TWO}")),
    **{"Z" * count: ("offset", _offset(f"{_TWO}{_TWO}")) for count in (1, 2, 3)},
    "ZZZZZ": ("offset", f"Z|{_COLONS}"),
    "VV": ("zone", f"{_COLONS}|{_REGION}"),
    **{"z" * count: ("zone_name", f"{_COLONS}|[A-Za-z][A-Za-z0-9_]*(?:/[A-Za-z_-]+)*") for count in (1, 2, 3)},
    **{"S" * count: ("fraction", f"[0-9]{{1,{count}}}") for count in range(1, 10)},
}
for _letter, _name in (("d", "day"), ("H", "hour"), ("k", "hour_24"), ("h", "hour_12"), ("K", "hour_11"), ("m", "minute"), ("s", "second")):
    _FIELDS |= {_letter: (_name, _DIGITS), _letter * 2: (_name, _TWO)}
#: The letters that patterns may have, for messages.
_KNOWN = "y M L d D H k h K m s S a X x Z z VV"
#: Groups of fields; a text can have only one field of a group.
_ONE_OF = (
    {"year", "year_of_2000"},
    {"month", "month_name", "day_of_year"},
    {"day", "day_of_year"},
    {"hour", "hour_24", "hour_12", "hour_11"},
    {"half"},
    {"minute"},
    {"second"},
    {"fraction"},
    {"offset", "zone", "zone_name"},
)
#: Names of zones that the letter z takes in addition to those of the IANA database; each is the zone, whichever half of the year it names.
_SHORT_NAMES = {
    name: f"America/{city}"
    for names, city in (("EST EDT", "New_York"), ("CST CDT", "Chicago"), ("MST MDT", "Denver"), ("PST PDT", "Los_Angeles"))
    for name in names.split()
} | {"HST": "Pacific/Honolulu", "CEST": "Europe/Paris"}
_PARTS = re.compile(r"(?P<run>([A-Za-z])\2*)|'(?P<literal>[^']*)'|(?P<optional>[\[\]])|(?P<other>[^A-Za-z'\[\]])")
#: Least and greatest values of the fields that are numbers.
_RANGES = {
    "year": (1, 9_999),
    "month": (1, 12),
    "day": (1, 31),
    "day_of_year": (1, 366),
    "minute": (0, 59),
    "second": (0, 59),
    "hour": (0, 23),
    "hour_24": (1, 24),
    "hour_12": (1, 12),
    "hour_11": (0, 11),
    "year_of_2000": (0, 99),
}


class PatternError(ValueError):
    """A text that is no pattern, or has letters that are not read; the message names them, and the letters that are."""


@dataclass(frozen=True)
class DatetimePattern:
    """A pattern, and the regular expression of the texts that it takes, whose groups are its ``fields``: names with a number behind."""

    text: str
    expression: str
    fields: tuple[str, ...]

    def instants(self, texts: pa.Array) -> pa.Array:
        """Microseconds since 1970 of each text, UTC unless it says otherwise; null for a text that the pattern does not take."""
        found = _Found.of(self, texts)
        at = found.instants(found.days())
        return pa.array(at, pa.int64(), mask=~found.fits)

    def dates(self, texts: pa.Array) -> pa.Array:
        """The date that each text writes; null for a text that the pattern does not take."""
        found = _Found.of(self, texts)
        days = found.days()
        found.instants(days)  # a text with a wrong time of day is no date, either
        return pa.array(days, pa.int64(), mask=~found.fits).cast(pa.int32()).cast(pa.date32())


@dataclass
class _Found:
    """The texts of each field, empty where there is none, and which texts are instants as far as it is known."""

    texts: Mapping[str, pa.Array]
    fits: np.ndarray

    @classmethod
    def of(cls, pattern: DatetimePattern, texts: pa.Array) -> _Found:
        groups = pc.extract_regex(texts, pattern.expression)
        # An empty text is null to Spark's readers, also where every part of the pattern is optional.
        fits = pc.and_(groups.is_valid(), pc.fill_null(pc.not_equal(texts, ""), False)).to_numpy(zero_copy_only=False)
        fields: dict[str, pa.Array] = {}
        for group in pattern.fields:
            name, cells = group.rpartition("_")[0], pc.fill_null(pc.struct_field(groups, group), "")
            before = fields.get(name)
            if before is not None:  # in two optional parts, of which a text may have both
                both = pc.and_(pc.not_equal(before, ""), pc.not_equal(cells, ""))
                fits = fits & ~pc.and_(both, pc.not_equal(before, cells)).to_numpy(zero_copy_only=False)
                cells = pc.if_else(pc.equal(before, ""), cells, before)
            fields[name] = cells
        return cls(fields, fits)

    def number(self, name: str, otherwise: Any) -> Any:
        """The numbers of a field, and ``otherwise`` where a text has none; those out of its range do not fit."""
        if name not in self.texts:
            return otherwise
        given = pc.not_equal(self.texts[name], "")
        low, high = _RANGES[name]
        values = pc.if_else(given, self.texts[name], str(low)).cast(pa.int64()).to_numpy(zero_copy_only=False)
        self.fits &= (low <= values) & (values <= high)
        return np.where(given.to_numpy(zero_copy_only=False), np.clip(values, low, high), otherwise)

    def numbers_by(self, name: str, value_of: Callable[[str], int | None], otherwise: Any) -> Any:
        """The numbers that ``value_of`` gives of a field's texts, and ``otherwise`` where there is none; a text with null does not fit."""
        if name not in self.texts:
            return otherwise
        known = self.texts[name].dictionary_encode()
        numbers = pa.array([value_of(text) if text else 0 for text in known.dictionary.to_pylist()], pa.int64()).take(known.indices)
        self.fits &= numbers.is_valid().to_numpy(zero_copy_only=False)
        given = pc.not_equal(self.texts[name], "").to_numpy(zero_copy_only=False)
        return np.where(given, pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False), otherwise)

    def days(self) -> Any:
        """Days since 1970; dates that no calendar has do not fit."""
        ones = np.ones(len(self.fits), np.int64)
        year = self.number("year", self.number("year_of_2000", ones * -30) + 2_000)
        first = (year - 1_970).astype("datetime64[Y]").astype("datetime64[M]")
        day_of_year, month = self.number("day_of_year", ones * 0), self.numbers_by("month_name", _month, ones)
        month = first + np.where(day_of_year, 0, self.number("month", month) - 1).astype("timedelta64[M]")
        day = np.where(day_of_year, day_of_year, self.number("day", ones))
        found = month.astype("datetime64[D]") + (day - 1).astype("timedelta64[D]")
        same = np.where(day_of_year, found.astype("datetime64[Y]") == first.astype("datetime64[Y]"), found.astype("datetime64[M]") == month)
        self.fits &= same
        return found.astype(np.int64)

    def instants(self, days: Any) -> Any:
        """Microseconds since 1970, UTC, of the times on ``days``."""
        noon = self.numbers_by("half", lambda text: 12 if text.upper() == "PM" else 0, 0)
        hour = self.number("hour_11", self.number("hour_12", 0) % 12) + noon
        hour = self.number("hour", self.number("hour_24", hour) % 24)
        if "half" in self.texts:
            self.fits &= pc.equal(self.texts["half"], "").to_numpy(zero_copy_only=False) | ((hour >= 12) == (noon > 0))
        seconds = (hour * 60 + self.number("minute", 0)) * 60 + self.number("second", 0)
        at = days * DAY_US + seconds * SECOND_US - self.numbers_by("offset", _offset_us, 0)
        if "fraction" in self.texts:
            six = pc.utf8_slice_codeunits(pc.utf8_rpad(self.texts["fraction"], 6, "0"), 0, 6)
            at = at + six.cast(pa.int64()).to_numpy(zero_copy_only=False)
        for field in ("zone", "zone_name"):
            at = self._in_zones(field, at) if field in self.texts else at
        return at

    def _in_zones(self, field: str, wall: Any) -> Any:
        """The instants of times on the wall clock of zones; a repeated one is the first, a skipped one is by the offset before."""
        known = self.texts[field].dictionary_encode()
        indices, found = known.indices.to_numpy(zero_copy_only=False), wall.copy()
        for number, name in enumerate(known.dictionary.to_pylist()):
            rows = np.flatnonzero((indices == number) & self.fits)
            zone = _zone(name, named=field == "zone_name") if name else 0
            if zone is None:
                self.fits[rows] = False
            elif isinstance(zone, int):
                found[rows] -= zone
            else:
                # Wall-clock times: without a zone until it is put in.
                at_wall = (datetime(1970, 1, 1) + timedelta(microseconds=at) for at in wall[rows].tolist())  # noqa: DTZ001
                found[rows] = [to_us(at.replace(tzinfo=zone)) for at in at_wall]
        return found


@lru_cache(maxsize=64)
def pattern_of(text: str) -> DatetimePattern:
    """The pattern that ``text`` is; raises :class:`PatternError`."""
    expression, fields, always = "", list[str](), list[str]()
    depth = at = 0
    after_number = False
    while at < len(text):
        part = _PARTS.match(text, at)
        if part is None:
            raise PatternError(f"got {text!r}, with a quote that is not closed; expected a text between two quotes")
        at, run = part.end(), part["run"]
        if run:
            if run not in _FIELDS:
                raise PatternError(_unknown(text, run))
            name, taken = _FIELDS[run]
            is_long = taken == _DIGITS
            if after_number and is_long:
                raise PatternError(f"got {text!r}: nothing parts {run!r} from the number before it; write {run * 2!r} for two digits")
            after_number = is_long
            fields.append(f"{name}_{len(fields)}")
            always += [name] if not depth else []
            expression += f"(?P<{fields[-1]}>{taken})"
            continue
        after_number = False
        if part["optional"]:
            depth += 1 if part["optional"] == "[" else -1
            if depth < 0:
                break
            expression += "(?:" if part["optional"] == "[" else ")?"
        elif part["other"] and part["other"] in "#{}":
            raise PatternError(f"got {text!r}; {part['other']} is reserved in patterns; put it between quotes")
        else:
            expression += re.escape(part["other"] if part["literal"] is None else part["literal"] or "'")
    if depth:
        raise PatternError(f"got {text!r}, with a bracket that has no partner; expected optional parts as in yyyy-MM-dd[ HH:mm]")
    if not fields:
        raise PatternError(f"got {text!r}, which has no field of a date; expected letters such as yyyy-MM-dd HH:mm:ss")
    twice = next((name for kinds in _ONE_OF for name in always if sum(each in kinds for each in always) > 1 and name in kinds), None)
    if twice:
        raise PatternError(f"got {text!r}, which gives the {twice.partition('_')[0]} twice; leave one of them out")
    return DatetimePattern(text, f"^(?i:{expression})$", tuple(fields))


def _unknown(text: str, run: str) -> str:
    known = next((name for name in _FIELDS if name[0] == run[0]), None)
    if known is None:
        return f"got {text!r}: {run[0]!r} is not read; the letters are {_KNOWN}; put other letters between quotes, as in 'T'"
    lengths = ", ".join(name for name in _FIELDS if name[0] == run[0])
    return f"got {text!r}: {run!r} is not read; expected {lengths}"


def _month(name: str) -> int:
    return _SHORT.lower().split("|").index(name[:3].lower()) + 1


def _offset_us(text: str) -> int | None:
    """An offset from UTC in microseconds; null beyond the 18 hours that Java takes."""
    if text in "Zz":
        return 0
    digits = text[1:].replace(":", "").ljust(6, "0")
    hours, minutes, seconds = int(digits[:2]), int(digits[2:4]), int(digits[4:])
    total = (hours * 60 + minutes) * 60 + seconds
    return None if minutes > 59 or seconds > 59 or total > 18 * 3_600 else (-total if text[0] == "-" else total) * SECOND_US


def _zone(name: str, *, named: bool) -> ZoneInfo | int | None:
    """A zone of the IANA database, or one that is ``named`` shortly, or an offset in microseconds; null for another text."""
    if name[0] in "+-":
        return _offset_us(name)
    if name.upper() in ("UTC", "GMT", "UT", "Z"):
        return 0
    short = _SHORT_NAMES.get(name.upper())
    if short is not None and not named:
        return None
    known = short or _zones().get(name.lower())
    return None if known is None else ZoneInfo(known)


@lru_cache(maxsize=1)
def _zones() -> Mapping[str, str]:
    """The names of the IANA database by their small letters."""
    return {name.lower(): name for name in available_timezones()}
