"""Row checksums: the same however Arrow holds a row, another for any row that differs."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from windowmill.windowing.columnar.added_columns import SUM
from windowmill.windowing.columnar.hashes import RowCheck, row_checksums, with_checksums
from windowmill.windowing.errors import StateCorruptError

#: Of each type a few values, all of them different.
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [0, 1, -1, 1 << 62],
    pa.int16(): [0, 1, -32768],
    pa.uint8(): [0, 255],
    pa.bool_(): [True, False],
    pa.float64(): [0.0, 1.0, -1.0, float("nan"), float("inf"), 5e-324],
    pa.float32(): [0.0, 1.5, float("nan")],
    pa.string(): ["", "a", "ab", "a\0", "a long text of more than eight bytes", "a long text of more than eight bytez"],
    pa.large_string(): ["", "x"],
    pa.binary(): [b"", b"\0", b"\0\0", b"12345678", b"123456789"],
    pa.binary(3): [b"abc", b"abd"],
    pa.decimal128(20, 2): [Decimal("0.00"), Decimal("0.01"), Decimal("-0.01"), Decimal("184467440737095516.16")],
    pa.timestamp("us", "UTC"): [datetime(1960, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC)],
    pa.date32(): [date(1969, 12, 31), date(1970, 1, 1)],
    pa.list_(pa.int64()): [[], [1], [1, 2], [2, 1], [None], [1, None], [None, 1]],
    pa.list_(pa.list_(pa.string())): [[["a", "b"]], [["a"], ["b"]], [[], ["ab"]], [None]],
    pa.list_(pa.float64(), 2): [[1.0, 2.0], [2.0, 1.0], [None, 1.0]],
    pa.struct([("x", pa.int64()), ("y", pa.string())]): [{"x": 1, "y": "1"}, {"x": None, "y": "1"}, {"x": 1, "y": None}],
    pa.map_(pa.string(), pa.int64()): [[], [("a", 1)], [("a", 2)], [("b", 1)]],
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_different_values_have_different_checksums_and_a_null_has_none(kind):
    values = [*VALUES[kind], None]
    sums = row_checksums(pa.table({"a": pa.array(values, kind)})).to_pylist()
    assert len(set(sums)) == len(values)
    assert sums[-1] == row_checksums(pa.table({"b": [1]}).select([]).append_column("c", pa.nulls(1)))[0].as_py()
    other = row_checksums(pa.table({"b": pa.array(values, kind)})).to_pylist()
    assert not set(sums[:-1]) & set(other), "a cell counts with its column's name"


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_chunks_slices_and_the_order_of_columns_do_not_matter(kind):
    column = pa.array([*VALUES[kind], None] * 3, kind)
    table = pa.table({"a": column, "n": range(len(column))})
    sums = row_checksums(table)
    assert row_checksums(table.select(["n", "a"])).equals(sums)
    cut = pa.concat_tables([table.slice(0, 3), table.slice(3, 1), table.slice(4)])
    assert row_checksums(cut).equals(sums)
    assert row_checksums(table.slice(2, 4)).equals(sums.slice(2, 4))
    assert row_checksums(table.take([5, 1])).equals(sums.take(pa.array([5, 1])))
    assert row_checksums(table.append_column("z", pa.nulls(len(column), pa.string()))).equals(sums)


def test_how_values_are_held_does_not_matter():
    texts = pa.array(["a", None, "é", ""])
    forms = [texts, texts.cast(pa.large_string()), texts.dictionary_encode(), texts.cast(pa.string_view())]
    assert len({tuple(row_checksums(pa.table({"a": form})).to_pylist()) for form in forms}) == 1
    zeros = np.array([0.0, -0.0, np.nan, -np.nan])
    zeros.view(np.uint64)[3] ^= 5
    first, second, third, fourth = row_checksums(pa.table({"a": zeros})).to_pylist()
    assert (first, third) == (second, fourth), "stores may normalize both"
    instants = pa.array([datetime(2024, 1, 1)])  # noqa: DTZ001 - a column without zone
    assert row_checksums(pa.table({"a": instants})).equals(row_checksums(pa.table({"a": instants.cast(pa.timestamp("us", "UTC"))})))


def test_the_checksums_of_a_row_are_those_of_earlier_releases():
    row = {"k": ["a"], "n": [7], "v": [0.5], "d": [Decimal("1.25")], "l": [["x", None]], "_batch": [3]}
    assert row_checksums(pa.table(row)).to_pylist() == [1551033296673873993]


def test_rows_that_differ_from_what_was_written_are_refused():
    rows = with_checksums(pa.table({"k": ["a", "b", "c"], "_slice": [1, 2, 3], "_batch": [0, 1, 2]}))
    check = RowCheck("/data/state")
    check.verify(rows)
    message = r"state /data/state: 1 of 3 rows read differ from what was written; nothing was written; restore the folder from a copy"
    for name, other in (("k", ["a", "b", "d"]), ("_slice", [1, 2, 4]), ("_batch", [0, 1, 3]), ("k", [None, "b", "c"])):
        with pytest.raises(StateCorruptError, match=message):
            check.verify(rows.set_column(rows.schema.get_field_index(name), name, [other]))
    with pytest.raises(StateCorruptError, match="3 of 3 rows"):
        check.verify(rows.set_column(0, "k", pa.nulls(3, pa.string())))
    with pytest.raises(StateCorruptError, match="1 of 3 rows"):
        check.verify(rows.set_column(3, SUM, pc.if_else([False, False, True], None, rows[SUM])))
    with pytest.raises(StateCorruptError, match="3 of 3 rows"):
        check.verify(rows.set_column(3, SUM, pa.nulls(3, pa.int64())))
