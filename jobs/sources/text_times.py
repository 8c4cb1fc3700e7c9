"""How texts of a source are instants and dates: in ISO forms, or by the patterns of its options ``timestampFormat`` and ``dateFormat``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.datetime_patterns import PatternError, pattern_of
from windowmill.jobs.instants import PATTERN, instants_or_null

if TYPE_CHECKING:
    from windowmill.windowing.spec import Source

#: Options of the formats whose values are texts, by Spark's names.
OPTIONS = ("dateFormat", "timestampFormat")
_ISO_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"


def pattern_problems(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Problems with the patterns among ``options``, as pairs (path of the field, problem and remedy)."""
    for name in OPTIONS:
        try:
            if name in options:
                pattern_of(options[name])
        except PatternError as err:
            yield f"source.options.{name}", str(err)


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
