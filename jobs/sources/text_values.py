"""Parses the texts of CSV files and JSON lines into values of a column's type, and finds the type that takes all texts of a column.

Instants and dates are in ISO forms, or by the patterns of the options ``timestampFormat`` and ``dateFormat``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.instants import PATTERN, instants_or_null, pattern_of

if TYPE_CHECKING:
    from windowmill.windowing.fields import Source


_ISO_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"


@dataclass(frozen=True, slots=True)
class TextTimes:
    """The patterns of a source's options; null for ISO forms. Picklable."""

    timestamp: str | None = None
    date: str | None = None

    @classmethod
    def of(cls, settings: Source | None) -> TextTimes:
        """Those of ``settings``; ISO forms without a source."""
        options = settings.options if settings is not None else {}
        return cls(options.get("timestampFormat"), options.get("dateFormat"))

    def instants(self, texts: pa.Array) -> pa.Array:
        """Microseconds since 1970 of the texts of a timestamp column; null for a text that is no instant."""
        return instants_or_null(texts) if self.timestamp is None else pattern_of(self.timestamp).instants(_valid(texts))

    def dates(self, texts: pa.Array) -> pa.Array | None:
        """Dates of the texts of a date column, null for a text that is none; null where dates are in ISO forms."""
        return None if self.date is None else pattern_of(self.date).dates(_valid(texts))

    def on_axis(self, texts: pa.Array) -> pa.Array:
        """As :meth:`instants`, of the texts of a text column, which may also be dates by the pattern of dates."""
        if self.date is None:
            return self.instants(texts)
        days = pattern_of(self.date).instants(_valid(texts))
        return days if self.timestamp is None else pc.coalesce(self.instants(texts), days)

    def type_of(self, texts: Iterable[str]) -> pa.DataType | None:
        """The type of a column that holds ``texts``, all of which are dates, or instants; null if they are not, or there are none."""
        every = list(texts)
        if not every:
            return None
        for kind, given, iso in ((pa.date32(), self.date, _ISO_DAY), (pa.timestamp("us", "UTC"), self.timestamp, PATTERN)):
            if given is None:
                takes = re.compile(iso).fullmatch
                fits = all(takes(text.strip(" \t\r\n")) for text in every)
            else:
                fits = not pattern_of(given).instants(pa.array(every, pa.string())).null_count
            if fits:
                return kind
        return None


#: Without patterns.
ISO = TextTimes()


def _valid(texts: pa.Array) -> pa.Array:
    """``texts`` as Arrow's own; null where one is not even UTF-8, as Spark makes texts of bytes."""
    plain = texts.cast(pa.string())
    try:
        plain.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([_decoded(text) for text in plain.cast(pa.binary()).to_pylist()], pa.string())
    return plain


def _decoded(text: bytes | None) -> str | None:
    try:
        return None if text is None else text.decode()
    except UnicodeDecodeError:
        return None


_WHOLE = r"[+-]?[0-9]{1,19}"
_NUMBER = r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|NaN|Inf|Infinity)"
_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_LOGICAL = "(?i:true|false)"
_SPACES = " \t\r\n"


def parsed(texts: pa.Array, kind: pa.DataType, times: TextTimes = ISO) -> pa.Array:
    """``texts`` as values of ``kind``, dates and instants by ``times``; null for a text that is none. What is no text is cast."""
    if texts.type == kind:
        return texts
    if not pa.types.is_string(texts.type):
        return _narrowed(texts, kind)
    if pa.types.is_timestamp(kind):
        return (times if kind.tz else ISO).instants(texts).cast(pa.timestamp("us")).cast(kind)
    if pa.types.is_date(kind) and (dates := times.dates(texts)) is not None:
        return dates
    texts = pc.utf8_trim(texts, _SPACES)
    pattern, each = _FORMS[_form(kind)]
    fitting = pc.if_else(pc.match_substring_regex(texts, f"^(?:{pattern})$"), texts, pa.scalar(None, pa.string()))
    if _form(kind) == "number" or _form(kind) == "whole":
        fitting = pc.utf8_ltrim(fitting, "+")
    try:
        if _form(kind) != "whole" or fitting.null_count == texts.null_count:
            return _narrowed(fitting.cast(_WIDE.get(_form(kind), kind)), kind)
        fitting = texts  # 30.0 and 3e1 are whole numbers
    except pa.ArrowInvalid:  # a value is out of the type's range
        pass
    return pa.array([None if text is None else each(text, kind) for text in fitting.to_pylist()], kind)


def _form(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind):
        return "whole"
    if pa.types.is_floating(kind):
        return "number"
    return "logical" if pa.types.is_boolean(kind) else "day" if pa.types.is_date(kind) else "decimal"


def _narrowed(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """``values`` in a type that may hold fewer; null for one that it does not hold."""
    if pa.types.is_integer(kind) and values.type != kind:
        bits = kind.bit_width - 1
        fits = pc.and_(pc.greater_equal(values, -(1 << bits)), pc.less_equal(values, (1 << bits) - 1))
        values = pc.if_else(fits, values, pa.scalar(None, values.type))
    return values.cast(kind, safe=not pa.types.is_floating(kind))


def _whole(text: str, kind: pa.DataType) -> int | None:
    number = _plain_number(text)
    if number is None or number.adjusted() > _MOST_DIGITS or number != int(number):
        return None
    value, bits = int(number), kind.bit_width - 1
    return value if -(1 << bits) <= value < 1 << bits else None


def _plain_number(text: str) -> Decimal | None:
    """The number that a text is, exactly; null for none, NaN, infinities and exponents of 18 digits."""
    if _IS_NUMBER(text) is None:
        return None
    try:
        number = Decimal(text.replace("Inf", "Infinity") if text.endswith("Inf") else text)
    except InvalidOperation:  # its exponent is beyond those of decimals
        return None
    return number if number.is_finite() else None


def _day(text: str, _: pa.DataType) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _decimal(text: str, kind: pa.DataType) -> Decimal | None:
    try:
        value = Decimal(text).quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, _DECIMALS)
    except InvalidOperation:
        return None
    return value if value.is_finite() and len(value.as_tuple().digits) <= kind.precision else None


_FORMS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "whole": (_WHOLE, _whole),
    "number": (_NUMBER, lambda text, _: float(text)),
    "logical": (_LOGICAL, lambda text, _: text.lower() == "true"),
    "day": (_DAY, _day),
    "decimal": (_NUMBER, _decimal),
}
_WIDE = {"whole": pa.int64(), "number": pa.float64()}
_IS_LOGICAL = re.compile(_LOGICAL).fullmatch
_IS_NUMBER = re.compile(_NUMBER).fullmatch
_IS_WHOLE = re.compile("[+-]?[0-9]+").fullmatch
#: Digits of the longest decimal.
_MOST_DIGITS = 38
#: Python's default context has 28 digits.
_DECIMALS = Context(prec=2 * _MOST_DIGITS)
#: Up to here each whole number is a floating-point number.
EXACT = 1 << 53


class WrittenFloat(float):
    """A floating-point number of JSON that is printed with the digits of its text; a plain float may lose some."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> WrittenFloat:
        """The number that ``text`` says."""
        self = super().__new__(cls, text)
        self.text = text
        return self

    def __repr__(self) -> str:
        return self.text


#: Matches JSON that may hold a number of which orjson loses digits: a whole number beyond 64 bits, or a fraction with more than 15 digits.
MAY_BE_LONG = re.compile(r"[0-9]{19}|(?<![0-9.])(?=[0-9.]{17})[0-9]+\.").search


def guessed(texts: set[str], times: TextTimes = ISO) -> pa.DataType:
    """The type that takes all of a column's ``texts``; text for none."""
    written = times.type_of(texts)
    if written is not None:
        return written
    texts = {text.strip(_SPACES) for text in texts}
    if texts and all(map(_IS_NUMBER, texts)):
        return number_type(texts)
    return pa.bool_() if texts and all(map(_IS_LOGICAL, texts)) else pa.string()


def number_type(texts: set[str]) -> pa.DataType:
    """The type of numbers in which whole ones stay as they are; text for none."""
    whole = [int(text) for text in texts if _IS_WHOLE(text) and len(text) <= _MOST_DIGITS]
    span = max(map(abs, whole), default=0)
    if all(map(_IS_WHOLE, texts)):
        if len(whole) < len(texts):
            return pa.string()
        return pa.int64() if all(-(1 << 63) <= number < 1 << 63 for number in whole) else pa.decimal128(_MOST_DIGITS)
    if span <= EXACT and len(whole) == sum(1 for text in texts if _IS_WHOLE(text)):
        return pa.float64()
    numbers = [_plain_number(text) for text in texts]
    exponents = [_MOST_DIGITS if number is None else -int(number.as_tuple().exponent) for number in numbers]
    scale = max(0, *exponents)
    return pa.decimal128(_MOST_DIGITS, scale) if len(str(span)) + scale <= _MOST_DIGITS else pa.string()
