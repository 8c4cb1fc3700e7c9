"""Texts that are instants: one set of forms, whoever reads them.

A date; a date and a time of hours, minutes, seconds or up to nine digits of their fraction, of which six count; with a time a zone: ``Z``,
``UTC``, as BigQuery exports it, or an offset. A time of day, ``now``, ``today`` and the like name no instant: what they would mean changes
with the clock.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.axis import to_us

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
    """Texts as timestamps in UTC: all with a zone, or all without; raises ``ArrowInvalid`` where each must be looked at."""
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
