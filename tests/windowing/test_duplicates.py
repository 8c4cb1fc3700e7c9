"""Which rows are duplicates: as a plain search among all rows before finds; and ids, which differ where values do."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from windowmill.windowing.columnar.added_columns import ID_HIGH, TIME
from windowmill.windowing.columnar.duplicates import ENTRIES, Arrivals, duplicates, ids_of


def some_rows(rng: random.Random, n: int) -> list[dict[str, Any]]:
    """Rows in order of arrival; the high halves of some different ids are equal."""
    rows, commit, watermark = [], 0, 0
    n_ids = rng.choice([1, 3, n])
    for _ in range(n):
        if rng.random() < 0.3:
            commit, watermark = commit + 1, watermark + rng.choice([0, 0, 1, 3, 9])
        own = rng.randrange(n_ids)
        time = watermark + rng.randint(-8, 8)
        counts = rng.random() < 0.9
        rows.append({"id": (own // 2, own % 2), "time": time, "commit": commit, "watermark": watermark, "counts": counts})
    rows.sort(key=lambda row: (row["commit"], row["time"]))
    return rows


def searched(rows: list[dict[str, Any]], within: int, *, repeats: bool) -> list[bool]:
    """Which rows are duplicates, by the definition."""
    applied: list[dict[str, Any]] = []
    found = []
    for row in rows:
        found.append(
            any(
                other["id"] == row["id"]
                and (other["commit"] == row["commit"] or row["watermark"] <= other["time"] + within)
                and (not repeats or abs(row["time"] - other["time"]) <= within)
                for other in applied
            )
        )
        if not found[-1] and row["counts"]:
            applied.append(row)
    return found


def arrivals(rows: list[dict[str, Any]]) -> Arrivals:
    high, low, *others = (
        np.array(column, np.int64)
        for column in (
            [row["id"][0] for row in rows],
            [row["id"][1] for row in rows],
            *([row[name] for row in rows] for name in ("time", "commit", "watermark")),
        )
    )
    return Arrivals(high, low, *others, np.array([row["counts"] for row in rows], np.bool_))


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("seed", range(150))
def test_duplicates_are_those_of_a_search_however_commits_are_cut_into_batches(seed, repeats):
    rng = random.Random(seed)
    rows, within = some_rows(rng, rng.choice([0, 1, 5, 30, 200])), rng.choice([0, 2, 6, 40])
    expected = searched(rows, within, repeats=repeats)
    found, entries, begin = list[bool](), [ENTRIES.empty_table()], 0
    while begin < len(rows):
        last = rows[min(len(rows), begin + rng.choice([1, 4, 50])) - 1]["commit"]
        end = next((place for place in range(begin, len(rows)) if rows[place]["commit"] > last), len(rows))
        batch, own = arrivals(rows[begin:end]), pa.concat_tables(entries)
        # What no later row finds is forgotten.
        own = own.filter(pa.array(own.column(TIME).to_numpy() + within >= rows[begin]["watermark"]))
        mask = duplicates(batch, own.take(pa.array(rng.sample(range(len(own)), len(own)), pa.int64())), within, repeats=repeats)
        entries.append(batch.at(np.flatnonzero(~mask & batch.counts)).entries)
        found += mask.tolist()
        begin = end
    assert found == expected


def test_ids_of_equal_values_are_equal_in_wider_types_and_other_forms():
    same = [
        (pa.array([1, 2], pa.int16()), pa.array([1, 2], pa.int64())),
        (pa.array([1.5, -0.0], pa.float32()), pa.array([1.5, 0.0], pa.float64())),
        (pa.array(["a", "b"]), pa.array(["a", "b"]).dictionary_encode()),
        (pa.array(["a", "b"]), pa.array(["a", "b"], pa.large_string())),
        (
            pa.array([Decimal("1.50"), Decimal("2.00")], pa.decimal128(9, 2)),
            pa.array([Decimal("1.50"), Decimal("2.00")], pa.decimal128(20, 2)),
        ),
    ]
    for one, other in same:
        assert [half.tolist() for half in ids_of(pa.table([one], ["x"]))] == [half.tolist() for half in ids_of(pa.table([other], ["y"]))]


def test_ids_of_values_that_look_alike_differ():
    at = datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    columns = [
        pa.array([1]),
        pa.array([True]),
        pa.array([1.0]),
        pa.array(["1"]),
        pa.array([b"1"]),
        pa.array([at], pa.timestamp("us", "UTC")),
        pa.array([Decimal(1)], pa.decimal128(9, 0)),
        pa.array([[1]]),
        pa.array([{"a": 1}]),
        pa.array([{"b": 1}]),
        pa.array([{"a": 1, "b": None}], pa.struct([("a", pa.int64()), ("b", pa.int64())])),
        pa.array([{"a": None, "b": 1}], pa.struct([("a", pa.int64()), ("b", pa.int64())])),
    ]
    pairs = [("ab", "c"), ("a", "bc"), ("", "abc"), ("abc", ""), ("c", "ab")]
    tables = [pa.table([column], ["x"]) for column in columns]
    tables += [pa.table([[one], [other]], ["x", "y"]) for one, other in pairs]
    for half in range(2):
        assert len({int(ids_of(table)[half][0]) for table in tables}) == len(tables)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["numbers", "texts", "pairs"])
def test_ten_million_ids_differ(kind):
    n = 10_000_000
    numbers = pa.array(np.arange(n))
    values = {
        "numbers": {"x": numbers},
        "texts": {"x": pa.array(np.char.add("event-", np.arange(n).astype("U8")))},
        "pairs": {"x": pa.array(np.arange(n) // 3_000), "y": pa.array(np.arange(n) % 3_000)},
    }[kind]
    high, low = ids_of(pa.table(values))
    arrived = Arrivals(high, low, *(np.zeros(n, np.int64) for _ in range(3)), np.ones(n, np.bool_))
    assert not duplicates(arrived, ENTRIES.empty_table(), 0, repeats=False).any()
    # Each half by itself is expected to have 3 * 10^-6 equal pairs.
    assert all(len(np.unique(half, return_counts=True)[0]) == n for half in (high, low))
    assert arrived.entries.column(ID_HIGH).null_count == 0
