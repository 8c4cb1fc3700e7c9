"""The generated bids, drawn as Nexmark draws them, and how answers over them are compared."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from benchmarks.nexmark import settled, strangers
from examples.nexmark.bids import CHANNELS, EXTRA_LETTERS, FIRST_ID, HOT_CHANNELS, SCHEMA, START_US, Bids, land

EVENTS = 300_000


@pytest.fixture(scope="module")
def bids():
    return pa.concat_tables(Bids().between(0, EVENTS))


#: For each bid, how many times 50 events came before it.
CYCLES = np.repeat(np.arange(EVENTS // 50), 46)


def test_forty_six_of_fifty_events_are_bids_evenly_in_time(bids):
    assert (bids.schema, len(bids)) == (SCHEMA, EVENTS * 46 // 50)
    times = bids.column("dateTime").cast(pa.int64()).to_numpy()
    assert times[0] == START_US  # the fifth event; ten events share a millisecond
    assert (times[-1], set(np.diff(times).tolist())) == (START_US + (EVENTS - 1) // 10 * 1_000, {0, 1_000})
    slow = pa.concat_tables(Bids(rate=7).between(0, 100)).column("dateTime").cast(pa.int64()).to_numpy()
    assert slow[0] == START_US + 4_000_000 // 7_000 * 1_000


def test_auctions_bidders_and_prices_are_drawn_as_nexmark_draws_them(bids):
    newest = CYCLES * 3 + 2
    auction = bids.column("auction").to_numpy() - FIRST_ID
    hot = auction == newest // 100 * 100
    assert abs(hot.mean() - 0.5) < 0.01
    behind = (newest - auction)[~hot]
    assert (behind.min(), behind.max()) == (-10, 100)
    later = behind[CYCLES[~hot] > 100]
    assert np.bincount(later + 10, minlength=111).min() > 0.8 * len(later) / 111 * 0.9
    bidder = bids.column("bidder").to_numpy() - FIRST_ID
    hot = bidder == CYCLES // 100 * 100 + 1
    assert abs(hot.mean() - 0.75) < 0.01
    ahead = (bidder - CYCLES)[~hot]
    assert (ahead.max(), ahead.min() > -1_000, bidder.min() >= 0) == (10, True, True)
    shares, _ = np.histogram(np.log10(bids.column("price").to_numpy() / 100) / 6, bins=10, range=(0, 1))
    assert shares.sum() == len(bids)
    assert abs(shares / len(bids) - 0.1).max() < 0.005, "uniform on a logarithmic scale"


def test_half_of_the_bids_come_by_a_hot_channel_and_each_channel_has_its_url(bids):
    counts = dict(zip(*(column.to_pylist() for column in pc.value_counts(bids.column("channel")).flatten()), strict=True))
    assert len(counts) > 0.99 * CHANNELS
    assert all(abs(counts[name] / len(bids) - 0.125) < 0.01 for name in HOT_CHANNELS)
    pairs = bids.select(["channel", "url"]).group_by(["channel", "url"]).aggregate([])
    assert len(pairs) == len(counts)
    named = pc.match_substring(pairs.column("url"), "&channel_id=").to_pylist()
    assert abs(sum(named) / len(named) - 0.9) < 0.02
    lengths = pc.utf8_length(bids.column("extra")).to_numpy()
    assert (lengths.min(), lengths.max()) == (EXTRA_LETTERS[0], EXTRA_LETTERS[1] - 1)
    assert set("".join(bids.column("extra")[:200].to_pylist())) <= set("abcdefghijklmnopqrstuvwxyz")


def test_the_same_bids_however_the_stream_is_cut(bids, tmp_path):
    cut = [table for begin, end in ((0, 3), (3, 77_777), (77_777, EVENTS)) for table in Bids().between(begin, end)]
    assert pa.concat_tables(cut).combine_chunks().equals(bids.combine_chunks())
    other = pa.concat_tables(Bids(seed=8).between(0, 1_000))
    assert other.column("price").to_pylist() != bids.column("price")[: len(other)].to_pylist()
    for begin, end in ((0, 40), (40, 60_000)):
        land(Bids(), begin, end, tmp_path / "bids")
    landed = DeltaTable(str(tmp_path / "bids")).to_pyarrow_table()
    assert DeltaTable(str(tmp_path / "bids")).version() == 1
    assert sorted(landed.column("extra").to_pylist()) == sorted(bids.column("extra")[: len(landed)].to_pylist())


def test_a_changelog_settles_to_the_rows_that_were_not_taken_back(tmp_path):
    (tmp_path / "log").mkdir()
    changes = [("INSERT", 1, 5), ("UPDATE_BEFORE", 1, 5), ("UPDATE_AFTER", 1, 6), ("INSERT", 2, 5), ("INSERT", 3, 1), ("DELETE", 3, 1)]
    # A row that was left and came back is there once.
    changes += [("UPDATE_BEFORE", 1, 6), ("UPDATE_AFTER", 1, 5)]
    for number, part in enumerate((changes[::2], changes[1::2])):
        ops, keys, values = zip(*part, strict=True)
        pq.write_table(pa.table({"op": ops, "bidder": keys, "num": values}), tmp_path / f"log/part-{number}")
    found = pq.read_table(settled(tmp_path / "log", ("bidder", "num"))).to_pylist()
    assert sorted((row["bidder"], row["num"]) for row in found) == [(1, 5), (2, 5)]


def test_a_last_bid_that_nobody_made_is_found(tmp_path):
    bids = pa.concat_tables(Bids().between(0, 1_000))
    pq.write_table(bids, tmp_path / "bids.parquet")
    rows = bids.rename_columns([{"dateTime": "bid_at"}.get(name, name) for name in bids.column_names])
    pq.write_table(rows, tmp_path / "rows.parquet")
    assert strangers(tmp_path / "rows.parquet", tmp_path / "bids.parquet") == 0
    pq.write_table(rows.set_column(2, "price", pc.add(rows.column("price"), 1)), tmp_path / "rows.parquet")
    assert strangers(tmp_path / "rows.parquet", tmp_path / "bids.parquet") == len(rows)
