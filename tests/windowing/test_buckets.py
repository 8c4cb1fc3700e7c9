"""Buckets of rows by key: equal keys meet, whatever table they come in."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from windowmill.windowing.columnar.hashes import KeyFilter, Share, in_buckets
from windowmill.windowing.columnar.rows import keys_of

_VALUES = {
    "int": (pa.int32(), [*range(-50, 50), None]),
    "float": (pa.float64(), [0.0, -0.0, float("nan"), float("-inf"), 1.5, *map(float, range(40)), None]),
    "single": (pa.float32(), [0.0, -0.0, float("nan"), 1.5, *map(float, range(40)), None]),
    "bool": (pa.bool_(), [True, False, None]),
    "text": (pa.string(), [*map(str, range(50)), "", "ü", None]),
    "bytes": (pa.binary(), [b"\xff\x00", b"", *(bytes([n]) for n in range(40)), None]),
    "decimal": (pa.decimal128(20, 3), [*map(Decimal, range(40)), Decimal("-0.001"), None]),
    "date": (pa.date32(), [*(date(2020, 1, 1 + n) for n in range(31)), None]),
    "instant": (pa.timestamp("us", "UTC"), [*(datetime(1960 + n, 1, 1, tzinfo=UTC) for n in range(60)), None]),
}


@pytest.mark.parametrize("keys", [*([name] for name in _VALUES), ["int", "text"], ["text", "float", "instant"]], ids=",".join)
def test_equal_keys_of_different_tables_have_one_bucket(keys):
    rng = np.random.default_rng(3)
    tables = []
    for n in (1, 7, 400, 401):
        columns = {name: pa.array([values[at] for at in rng.integers(0, len(values), n)], kind) for name, (kind, values) in _VALUES.items()}
        tables.append(pa.table(columns | {"row": np.arange(n) + 1_000 * n}))
    tables[2] = tables[2].slice(7)  # Arrow's buffers then begin before the rows
    parts: dict[int, list[pa.Table]] = {}
    for table in tables:
        for bucket, rows in in_buckets(table, keys, Share.every(5)):
            assert np.all(np.diff(rows.column("row").to_numpy()) > 0), "rows keep their order"
            parts.setdefault(bucket, []).append(rows)
    numbers = [number for found in parts.values() for rows in found for number in rows.column("row").to_pylist()]
    assert sorted(numbers) == sorted(number for table in tables for number in table.column("row").to_pylist())
    assert len(parts) > 1 or keys == ["bool"]
    together = [rows for bucket in sorted(parts) for rows in parts[bucket]]
    _, codes, _ = keys_of(together, keys)
    buckets = np.concatenate([[bucket] * len(rows) for bucket in sorted(parts) for rows in parts[bucket]])
    for code in np.unique(codes):
        assert len(set(buckets[codes == code])) == 1


@pytest.mark.parametrize("keys", [*([name] for name in _VALUES), ["int", "text"]], ids=",".join)
def test_a_filter_passes_every_row_of_its_keys_and_few_others(keys):
    rng = np.random.default_rng(4)
    columns = {name: pa.array([values[at] for at in rng.integers(0, len(values), 400)], kind) for name, (kind, values) in _VALUES.items()}
    rows = pa.table(columns | {"row": range(400)})
    among = KeyFilter(keys)
    assert among.passed(rows).num_rows == 0
    among.add(rows.slice(0, 4))
    among.add(rows.slice(4, 3))
    passed = set(among.passed(rows).column("row").to_pylist())
    _, codes, _ = keys_of([rows], keys)
    wanted = {row for row in range(400) if codes[row] in set(codes[:7])}
    assert wanted <= passed
    assert len(passed - wanted) <= 2 * 400 / len(set(codes)), "more than two other keys"


def test_a_filter_without_key_columns_passes_every_row():
    rows = pa.table({"row": range(3)})
    assert KeyFilter([]).passed(rows).equals(rows)


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([3_000_000, -800_000, None, 3_000_000], pa.int32()).cast(pa.date32()),
        pa.Array.from_buffers(pa.string(), 4, pa.array([b"\xff\xfe", b"\xfe", None, b"\xff\xfe"]).buffers()),
    ],
    ids=["dates beyond the year 9999 and before 1", "texts that are no UTF-8"],
)
def test_keys_that_python_has_no_values_for_have_buckets(keys):
    parts = dict(in_buckets(pa.table({"k": keys, "row": range(4)}), ["k"], Share.every(1 << 20)))
    assert sorted(rows.column("row").to_pylist() for rows in parts.values()) == [[0, 3], [1], [2]]


def test_without_keys_or_with_one_bucket_nothing_moves():
    table = pa.table({"k": [2, 1, 2]})
    assert [(bucket, rows.to_pylist()) for bucket, rows in in_buckets(table, [], Share.every(4))] == [(0, table.to_pylist())]
    assert [(bucket, rows.to_pylist()) for bucket, rows in in_buckets(table, ["k"], Share.every(1))] == [(0, table.to_pylist())]
    assert list(in_buckets(table.slice(0, 0), ["k"], Share.every(3))) == []
    assert list(in_buckets(table.slice(0, 0), [], Share.every(3))) == []


def test_equal_keys_have_one_bucket_whatever_their_columns_are_called():
    new = pa.table({"the key": np.arange(100), "site": np.arange(100) % 7})
    stored = new.rename_columns(["key_3f2a", "_site"])
    of_new, of_stored = (
        {bucket: rows.columns for bucket, rows in in_buckets(each, each.column_names, Share.every(5))} for each in (new, stored)
    )
    assert len(of_new) == 5
    assert of_new == of_stored


def test_shares_have_the_rows_of_their_buckets():
    table = pa.table({"k": np.arange(1_000) % 170, "row": np.arange(1_000)}).slice(3)
    every = dict(in_buckets(table, ["k"], Share.every(6)))
    shares = [Share(0, 1, 6), Share(1, 4, 6), Share(4, 4, 6), Share(4, 6, 6)]
    for share in shares:
        assert dict(in_buckets(table, ["k"], share)) == {number: every[number] for number in range(share.first, share.stop)}
    assert [share.rows(table, ["k"]).num_rows for share in shares] == [
        sum(every[number].num_rows for number in range(share.first, share.stop)) for share in shares
    ]
    assert [share.rows(table, []).num_rows for share in shares] == [len(table), 0, 0, 0]
    assert shares[2].rows(table, ["k"]).schema == table.schema


def test_many_keys_are_spread_evenly():
    sizes = [rows.num_rows for _, rows in in_buckets(pa.table({"k": np.arange(10_000) * 1_000}), ["k"], Share.every(8))]
    assert len(sizes) == 8
    assert max(sizes) < 1.2 * min(sizes)
