"""Which texts are instants: the same to Python and to Arrow."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from windowmill.jobs.instants import instant_us, instants, instants_or_null

INSTANTS = {
    "2013-01-01": datetime(2013, 1, 1, tzinfo=UTC),
    "2013-01-01T05": datetime(2013, 1, 1, 5, tzinfo=UTC),
    "2013-01-01T05Z": datetime(2013, 1, 1, 5, tzinfo=UTC),
    "2013-01-01 05:10": datetime(2013, 1, 1, 5, 10, tzinfo=UTC),
    "2013-01-01T05:10Z": datetime(2013, 1, 1, 5, 10, tzinfo=UTC),
    "2013-01-01T05:10:20.5Z": datetime(2013, 1, 1, 5, 10, 20, 500_000, tzinfo=UTC),
    "2013-01-01T05:10:20.123456789": datetime(2013, 1, 1, 5, 10, 20, 123_456, tzinfo=UTC),
    "1969-12-31T23:59:59.1234567Z": datetime(1969, 12, 31, 23, 59, 59, 123_456, tzinfo=UTC),
    "2013-01-01T05+01": datetime(2013, 1, 1, 4, tzinfo=UTC),
    "2013-01-01T05:10+0100": datetime(2013, 1, 1, 4, 10, tzinfo=UTC),
    "2013-01-01T05:10:00-17:59": datetime(2013, 1, 1, 23, 9, tzinfo=UTC),
    "2013-01-01T05:10:00.25-0030": datetime(2013, 1, 1, 5, 40, 0, 250_000, tzinfo=UTC),
    "2013-01-01 05:10:20 UTC": datetime(2013, 1, 1, 5, 10, 20, tzinfo=UTC),
    "2013-01-01 05:10:20.123456 UTC ": datetime(2013, 1, 1, 5, 10, 20, 123_456, tzinfo=UTC),
    "2013-01-01T05UTC": datetime(2013, 1, 1, 5, tzinfo=UTC),
    "  2013-01-01 ": datetime(2013, 1, 1, tzinfo=UTC),
    "0001-01-01": datetime(1, 1, 1, tzinfo=UTC),
    "9999-12-31T23:59:59.999999Z": datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
}
NO_INSTANTS = [
    *("now", "today", "epoch", "tomorrow", "yesterday", "12:30", "12:30:00", "T12:30", "", " ", "soon", "2013", "2013-01", "20130101"),
    *("2013-1-1", "2013-01-01T5:00", "2013-01-01T05:0", "2013-01-01t05:00", "2013-01-01T24:00:00", "2013-01-01T05:60"),
    *("2013-01-01T05:00:60", "2013-01-01 UTC", "2013-01-01 05:00  UTC", "2013-01-01 05:00 utc", "2013-01-01 05:00Z UTC", "UTC"),
    *("2013-01-01T05:00:00.", "2013-01-01T05:00:00,5", "2013-01-01T05:00 Z", "2013-01-01Z", "2013-01-01+01:00", "2013-W01-1", "2013-001"),
    *("2013-01-01T05:00:00+18:00", "2013-01-01T05:00:00+19:00", "2013-01-01T05:00:00+01:75", "2013-01-01T05:00:00 Europe/Vienna"),
    *("2013-02-30", "2013-00-10", "2013-13-01", "0000-01-01", "0000-12-31T23:00:00-05:00", "-2013-01-01", "10000-01-01", "+2013-01-01"),
    *("2013-01-01\n", "2013-01-01T05:00:00.1234567890", "٢٠١٣-01-01"),
]


def by_arrow(text: str) -> int | None:
    try:
        return instants(pa.array([text]))[0].cast(pa.int64()).as_py()
    except pa.ArrowInvalid:
        return None


@pytest.mark.parametrize("text", INSTANTS)
def test_reads_the_forms_that_it_documents(text):
    wanted = (INSTANTS[text] - datetime(1970, 1, 1, tzinfo=UTC)) // (datetime.resolution)
    assert instant_us(text) == wanted
    assert by_arrow(text) in (wanted, None)


@pytest.mark.parametrize("text", NO_INSTANTS)
def test_takes_nothing_else_for_an_instant(text):
    with pytest.raises(ValueError, match=r".*"):
        instant_us(text)
    assert by_arrow(text) is None


def test_arrow_reads_the_same():
    texts = [*INSTANTS, *NO_INSTANTS, None]
    wanted = [instant_us(text) if text in INSTANTS else None for text in texts]
    assert instants_or_null(pa.array(texts)).to_pylist() == wanted
    assert [instants_or_null(pa.array([text])).to_pylist() for text in texts] == [[each] for each in wanted]


def test_a_text_that_is_not_utf_8_is_no_instant():
    """Spark makes such texts of bytes."""
    stored = pa.array([b"2013-01-01", b"\xff\xfe", None])
    texts = pa.Array.from_buffers(pa.string(), len(stored), stored.buffers())
    assert instants_or_null(texts).to_pylist() == [*instants_or_null(texts.slice(0, 1)).to_pylist(), None, None]
