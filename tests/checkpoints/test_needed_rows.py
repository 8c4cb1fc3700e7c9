"""Which rows of the state a later batch may need, beside the rule row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowmill.checkpoints.state.compaction import are_latest, are_needed
from windowmill.windowing.columnar.keyed import GONE, KEY_ENTRY, ROW
from windowmill.windowing.columnar.positions import KEY_ROW, NODE, WAITING

KEYS = st.sampled_from(["a", "b", None])
SMALL = st.integers(0, 3)
#: Batch, key, kind and number of an entry; of a key and a number a batch has one entry.
ENTRIES = st.lists(
    st.tuples(SMALL, KEYS, st.sampled_from([ROW, GONE, KEY_ENTRY]), SMALL),
    min_size=1,
    max_size=24,
    unique_by=lambda entry: (entry[0], entry[1], -1 if entry[2] == KEY_ENTRY else entry[3]),
)
#: Batch, key, sequence, kind, and what the kind has: the head and ``through`` of a key, the level, position and live tuples of a node, the
#: time of a tuple that waits.
POSITIONS = st.lists(
    st.tuples(SMALL, KEYS, st.sampled_from(["s", "t"]), st.sampled_from([KEY_ROW, NODE, WAITING]), SMALL, st.integers(0, 7), SMALL),
    min_size=1,
    max_size=30,
    unique_by=lambda row: (row[:4], row[4:6] if row[3] == NODE else row[5] if row[3] == WAITING else None),
)


@given(ENTRIES)
def test_the_latest_entries_of_keys_and_live_rows_are_needed(entries):
    batch, key, kind, number = zip(*entries, strict=True)
    numbers = [None if each == KEY_ENTRY else n for each, n in zip(kind, number, strict=True)]
    rows = pa.table({"_batch": batch, "k": pa.array(key, pa.string()), "_kind": kind, "_number": pa.array(numbers, pa.int64())})
    in_order = sorted(enumerate(rows.to_pylist()), key=lambda each: each[1]["_batch"])
    latest = {(each["k"], each["_number"]): place for place, each in in_order}
    expected = sorted(place for place in latest.values() if kind[place] != GONE)
    assert np.flatnonzero(are_latest(rows, ["k"])).tolist() == expected


@pytest.mark.parametrize("live", [False, True])
@given(rows=POSITIONS, removes=st.booleans())
def test_rows_of_positions_that_are_left_of_their_keys_are_needed(live, rows, removes):
    # Each key has a row of its own in its first batch, without which a table is damaged.
    named = {(key, sequence) for _, key, sequence, *_ in rows}
    rows = [(-1, key, sequence, KEY_ROW, 0, 0, 0) for key, sequence in named] + rows
    is_key, is_node = ([row[3] == kind for row in rows] for kind in (KEY_ROW, NODE))

    def cells(place: int, where: list[bool]) -> pa.Array:
        return pa.array([row[place] if given else None for row, given in zip(rows, where, strict=True)], pa.int64())

    table = pa.table(
        {
            "_batch": [row[0] for row in rows],
            "k": pa.array([row[1] for row in rows], pa.string()),
            "_sequence": [row[2] for row in rows],
            "_kind": [row[3] for row in rows],
            "_head": cells(5, is_key),
            "_through": pa.array([row[6] - 2 if row[3] == KEY_ROW and row[6] else None for row in rows], pa.int64()),
            "_node_level": cells(4, is_node),
            "_position": cells(5, is_node),
            "_time": pa.array([row[5] - 2 if row[3] == WAITING else None for row in rows], pa.int64()),
        }
    )
    if live:
        # Nodes of sequence "t" are of windows that do not evict by a delta.
        table = table.append_column("_live", cells(6, [node and row[2] == "s" for node, row in zip(is_node, rows, strict=True)]))
    every = table.to_pylist()
    in_order = sorted(every, key=lambda row: row["_batch"])
    marks = {(row["k"], row["_sequence"]): row for row in in_order if row["_kind"] == KEY_ROW}
    place_of = ("k", "_sequence", "_node_level", "_position")
    nodes = {tuple(row[name] for name in place_of): row for row in in_order if row["_kind"] == NODE}

    def is_needed(row: dict[str, Any]) -> bool:
        mark = marks[row["k"], row["_sequence"]]
        if row["_kind"] == KEY_ROW:
            return row is mark
        if row["_kind"] == WAITING:
            return mark["_through"] is None or row["_time"] >= mark["_through"]
        if row.get("_live") is None:
            return row["_position"] >= mark["_head"]
        is_latest = nodes[tuple(row[name] for name in place_of)] is row
        return is_latest and row["_position"] + 2 ** row["_node_level"] > mark["_head"] and (row["_live"] > 0 or not removes)

    expected = [place for place, row in enumerate(every) if is_needed(row)]
    assert np.flatnonzero(are_needed(table, ["k"], removes=removes)).tolist() == expected
