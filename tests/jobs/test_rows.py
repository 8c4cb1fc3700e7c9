"""The reader by blocks and the reader by rows give the same; so do the two ways to print."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.specs import a_spec
from windowmill.jobs import json_lines as reader
from windowmill.jobs.conditions.truths import columns_used
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
    names, uses = columns_used(pipeline())
    return read_blocks(data, names, uses)


def by_row(data: bytes) -> reader.JsonRows:
    names, uses = columns_used(pipeline())
    return reader._read_each(data.decode().splitlines(keepends=True), names, uses, whole=False)


PLAIN = {"k": "a", "t": "2013-01-01T00:00:00Z", "v": 1, "x": 0.5, "b": True, "other": [1]}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"v": 2.5},
        {"v": None, "k": None, "x": None, "b": None, "t": None},
        {"k": 'quo"te \\ \u2028 é\n'},
        {"t": "2013-01-01T00:00:00.123456Z"},
        {"t": "1901-02-03T04:05:06.000001Z"},
        {"v": -(2**63)},
        {"x": 1e300},
        {"other": {"deep": None}},
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
        "",
        "[1]",
        "{broken",
        '{"k": "a"} {"k": "b"}',
        json.dumps(PLAIN | {"v": "NaN"}),
        json.dumps(PLAIN | {"x": "Infinity"}),
        json.dumps(PLAIN | {"v": True}),
        json.dumps(PLAIN | {"v": 2**64}),
        json.dumps(PLAIN | {"k": 5}),
        json.dumps(PLAIN | {"t": 1356998400}),
        json.dumps(PLAIN | {"t": "2013-01-01T00:00:00+02:00"}),
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
