"""Compaction chooses the rows that stay by SQL, and the state in memory by numpy: both choose the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windowmill.checkpoints.state.tables import are_latest, are_needed, latest_entries, needed_rows
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


def chosen(folder: str, rows: pa.Table, query: Callable[[str], str]) -> list[int]:
    """Numbers of the ``rows`` that the ``query`` over a Delta table of them chooses."""
    write_deltalake(folder, rows.append_column("n", pa.array(np.arange(len(rows)))), mode="overwrite", schema_mode="overwrite")
    result = QueryBuilder().register("state", DeltaTable(folder)).execute(query("state"))
    return sorted(pa.RecordBatchReader.from_stream(result).read_all().column("n").to_pylist())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("state"))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ENTRIES)
def test_the_same_entries_of_live_rows_are_the_latest(folder, entries):
    batch, key, kind, number = zip(*sorted(entries, key=lambda entry: entry[0]), strict=True)
    numbers = [None if each == KEY_ENTRY else n for each, n in zip(kind, number, strict=True)]
    rows = pa.table({"_batch": batch, "k": pa.array(key, pa.string()), "_kind": kind, "_number": pa.array(numbers, pa.int64())})
    expected = chosen(folder, rows, lambda state: latest_entries(state, ["k"], "_batch >= 0"))
    assert np.flatnonzero(are_latest(rows, ["k"])).tolist() == expected


@pytest.mark.parametrize("live", [False, True])
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(POSITIONS)
def test_the_same_rows_of_positions_are_needed(folder, live, rows):
    # Each key has a row of its own in its first batch, without which a table is damaged.
    named = {(key, sequence) for _, key, sequence, *_ in rows}
    rows = [(-1, key, sequence, KEY_ROW, 0, 0, 0) for key, sequence in named] + sorted(rows, key=lambda row: row[0])
    is_key, is_node, is_waiting = ([row[3] == kind for row in rows] for kind in (KEY_ROW, NODE, WAITING))

    def cells(place: int, where: list[bool]) -> pa.Array:
        return pa.array([row[place] if given else None for row, given in zip(rows, where, strict=True)], pa.int64())

    table = pa.table(
        {
            "_batch": [row[0] for row in rows],
            "k": pa.array([row[1] for row in rows], pa.string()),
            "_sequence": [row[2] for row in rows],
            "_kind": [row[3] for row in rows],
            "_head": cells(5, is_key),
            "_through": cells(6, is_key),
            "_node_level": cells(4, is_node),
            "_position": cells(5, is_node),
            "_time": cells(5, is_waiting),
        }
    )
    if live:
        # Nodes of sequence "t" are of windows that do not evict by a delta.
        table = table.append_column("_live", cells(6, [node and row[2] == "s" for node, row in zip(is_node, rows, strict=True)]))
    expected = chosen(folder, table, lambda state: needed_rows(state, ["k"], "_batch >= -1", live=live))
    assert np.flatnonzero(are_needed(table, ["k"])).tolist() == expected
