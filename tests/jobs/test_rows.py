"""The reader of lines by blocks and the one by rows give the same, so do the two ways to print, and instants are the same to both."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.specs import a_spec
from windowmill.jobs import json_lines as reader
from windowmill.jobs.conditions.truths import required_columns
from windowmill.jobs.instants import instant_us, instants, instants_or_null
from windowmill.jobs.json_lines import read_blocks, result_lines
from windowmill.windowing.columnar.results import ResultTable
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline


def pipeline(**fields: Any) -> Pipeline:
    return parse_pipeline(
        a_spec(keys=["k"], aggregates={"s": {"sum": "v"}, "m": {"max": "x"}, "f": {"bool_or": "b"}, "l": {"last": "t"}}) | fields
    )


def data_of(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def fast(data: bytes) -> pa.Table | None:
    names, uses = required_columns(pipeline())
    return read_blocks(data, names, uses)


def by_row(data: bytes) -> reader.JsonRows:
    names, uses = required_columns(pipeline())
    return reader._read_each(data.decode().splitlines(keepends=True), names, uses, whole=False)


PLAIN = {"k": "a", "t": "2013-01-01T00:00:00Z", "v": 1, "x": 0.5, "b": True, "other": [1]}


@pytest.mark.parametrize(
    "changes",
    [
        *({}, {"v": 2.5}, dict.fromkeys("vkxbt"), {"k": 'quo"te \\ \u2028 é\n'}, {"t": "2013-01-01T00:00:00.123456Z"}),
        *({"t": "1901-02-03T04:05:06.000001Z"}, {"v": -(2**63)}, {"x": 1e300}, {"other": {"deep": None}}),
    ],
)
def test_blocks_give_the_columns_that_rows_give(changes: dict[str, Any]):
    data = data_of([PLAIN, PLAIN | changes, {name: value for name, value in PLAIN.items() if name != "v"}])
    found, wanted = fast(data), by_row(data)
    assert found is not None
    assert found.equals(wanted.table)
    assert wanted.refused == []
    assert [reader.read_rows(data, pipeline()).raw[index] for index in range(3)] == wanted.raw


def test_a_column_that_turns_out_to_hold_floats_is_one_of_floats():
    data = data_of([PLAIN] * 1_500 + [PLAIN | {"v": 0.25}])
    found = fast(data)
    assert found is not None
    assert found.column("v").type == pa.float64()
    assert found.equals(by_row(data).table)


@pytest.mark.parametrize(
    "line",
    [
        *("", "[1]", "{broken", '{"k": "a"} {"k": "b"}'),
        *(json.dumps(PLAIN | {"v": value}) for value in ("NaN", True, 2**64)),
        *(json.dumps(PLAIN | {"t": value}) for value in (1356998400, "2013-01-01T00:00:00+02:00")),
        *(json.dumps(PLAIN | changes) for changes in ({"x": "Infinity"}, {"k": 5})),
        '{"k": "a", "k": "b", "t": "2013-01-01", "v": 1, "x": 1, "b": true}',
        json.dumps(PLAIN)[:-1] + ', "v": NaN}',
    ],
)
def test_what_is_out_of_the_ordinary_is_read_row_by_row(line: str):
    data = data_of([PLAIN]) + line.encode() + b"\n" + data_of([PLAIN])
    found, wanted = reader.read_rows(data, pipeline()), by_row(data)
    assert found.table.schema == wanted.table.schema
    # As text, in which a NaN equals a NaN.
    assert repr(found.table.to_pylist()) == repr(wanted.table.to_pylist())
    assert repr((list(found.lines), list(found.raw), found.refused)) == repr((wanted.lines, wanted.raw, wanted.refused))


@pytest.mark.parametrize("odd", ["soon", "2013-01-01T00:00:00+02:00", "20130101T000000", None, 5])
def test_one_odd_instant_among_many_changes_no_other(odd: Any):
    n, at = 40_000, 20_123
    stamps = [f"2013-01-01T00:00:{second % 60:02}.{second:06}" for second in range(n)]
    values = [*stamps[:at], odd, *stamps[at + 1 :]]
    wrong: dict[int, tuple[str, str]] = {}
    column = reader._column("t", values, "instant", wrong)
    assert set(wrong) == ({at} if odd in ("soon", "20130101T000000", 5) else set())
    read = [None if index in wrong else reader._instant(value) if value else None for index, value in enumerate(values)]
    assert column.cast(pa.int64()).to_pylist() == read


def test_half_a_surrogate_pair_is_no_text():
    found = reader.read_rows(b'{"k": "\\ud800", "t": "2013-01-01"}\n' + data_of([PLAIN]), pipeline())
    assert ([row.line for row in found.refused], list(found.lines)) == ([1], [2])


#: Microseconds of the years that Python's dates have.
STAMPS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
NUMBERS = st.one_of(st.none(), st.floats(), st.integers(-(10**15), 10**15).map(float))


@given(values=st.lists(st.tuples(NUMBERS, STAMPS, st.one_of(st.none(), st.text(), st.booleans())), max_size=8))
def test_columns_print_as_rows_do(values: list[tuple[float | None, int, Any]]):
    spec = pipeline()
    texts = [value if isinstance(value, str) else None for _, _, value in values]
    truths = [value if isinstance(value, bool) else None for _, _, value in values]
    columns = {
        "k": pa.array(texts, pa.string()),
        "window_start": pa.array([stamp for _, stamp, _ in values], pa.int64()),
        "s": pa.array([number for number, _, _ in values], pa.float64()),
        "f": pa.array(truths, pa.bool_()),
        "l": pa.array([stamp // 10**6 * 10**6 for _, stamp, _ in values], pa.int64()),
        "m": [[number] for number, _, _ in values],
    }
    table = ResultTable(columns, len(values))
    assert b"".join(result_lines(table, spec)) == b"".join(result_lines(list(table), spec))


#: Which texts are instants: the same to Python and to Arrow.
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
