"""What crosses the exchange, without Spark: the rows of a key meet in one group, in order of arrival, whenever their blocks come."""

from __future__ import annotations

import math
from itertools import count

import numpy as np
import pyarrow as pa
import pytest

from tests.windowing.test_slices import ALL, NUMBERS, TYPES, rows_table
from windowmill.jobs.layouts.base import Lifted
from windowmill.jobs.layouts.slices import SliceMapReduce
from windowmill.jobs.schedulers import exchange
from windowmill.windowing.columnar import grid_windows, slices


def made(n: int) -> pa.Table:
    """Rows of a few keys."""
    rng, empty = np.random.default_rng(6), dict.fromkeys(TYPES, None)
    names = [*(f"key {number}" for number in range(12)), None]
    times, values = rng.integers(0, 30, n), rng.lognormal(0, 3, n)
    rows = [(int(t), names[rng.integers(13)], rng.choice([0.0, -0.0, math.nan]), v) for t, v in zip(times, values.tolist(), strict=True)]
    return rows_table([{**empty, "t": t, "k": k, "g": g, "x": 0, "f": v, "p": v, "s": str(v)} for t, k, g, v in rows])


def reduced(work: SliceMapReduce, lifted: list[Lifted], stored: pa.Table | None) -> tuple[list[str], list[str], int]:
    """Result rows, state rows and the number of rows applied; floats as text, so that NaN equals NaN."""
    results, state, applied = list[str](), list[str](), 0
    for done in work.reduce(lifted, stored):
        results += [repr(row) for table in done.results for row in table.to_pylist()]
        state += [] if done.state is None else [repr(row) for row in done.state.to_pylist()]
        applied += done.counts.rows_applied
    return results, state, applied


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("size", [1 << 30, 100])
@pytest.mark.parametrize("together", [1 << 30, 1])
@pytest.mark.parametrize("case", [NUMBERS, ALL], ids=["numbers", "objects"])
def test_blocks_in_any_order_give_to_the_bit_what_rows_together_give(monkeypatch, case, n, size, together):
    """First, last and sums of floats depend on the order in which rows meet: it has to be the same in every attempt."""
    monkeypatch.setattr(slices, "CHUNK_ROWS", 40)
    monkeypatch.setattr(grid_windows, "CHUNK_SLICES", 20)
    monkeypatch.setattr(exchange, "_BLOCK_BYTES", size)
    monkeypatch.setattr(exchange, "_GROUP_BYTES", together)
    work, batches = SliceMapReduce(case.window_stage(0, keep=True), case.grids.grids, None), made(150).to_batches(9)
    wanted = reduced(work, list(work.map([pa.Table.from_batches(batches)], None)), None)
    blocks = list(exchange._new_blocks(work, [pa.Table.from_batches([batch]) for batch in batches], n, 1))
    # As Spark sorts them: by bucket, and otherwise in any order.
    places = {(block.column("partition")[0].as_py(), block.column("bucket")[0].as_py()) for block in blocks}
    assert {partition for partition, _ in places} == set(range(n))
    assert len({bucket for _, bucket in places}) == len(places) > n
    blocks.reverse()
    by_bucket = sorted(blocks, key=lambda block: block.column("bucket")[0].as_py())
    received = [[block for block in by_bucket if block.column("partition")[0].as_py() == number] for number in range(n)]
    groups = [list(exchange._groups_of_blocks(n, iter(own))) for own in received]
    assert sum(map(len, groups)) == (n if together > 1 else len(places))
    shares = sorted(share.first for own in groups for _, share in own), sorted(share.stop for own in groups for _, share in own)
    assert [0, *shares[1]] == [*shares[0], groups[0][0][1].n_buckets], "a bucket is in no group, or in two"
    for lifted, share in (group for own in groups for group in own):
        assert all(share.rows(each.rows, list(work.keys)).num_rows == each.rows.num_rows for each in lifted)
    found = [reduced(work, lifted, None) for own in groups for lifted, _ in own]
    assert sorted(row for rows, _, _ in found for row in rows) == sorted(wanted[0])
    assert sorted(row for _, rows, _ in found for row in rows) == sorted(wanted[1])
    assert sum(applied for _, _, applied in found) == wanted[2] == 150


def test_counts_cross_once_and_without_rows(monkeypatch):
    monkeypatch.setattr(exchange, "_BLOCK_BYTES", 1)
    rows = made(20)
    for table in (rows, rows.slice(0, 0)):
        blocks = exchange._cut(table, ["k"], 3, count(), (7, 0, 2))
        groups = [group for block in blocks for group in exchange._groups_of_blocks(3, iter([block]))]
        assert [sum(each) for each in zip(*(one.counts for new, _ in groups for one in new if one.counts), strict=True)] == [7, 0, 2]
