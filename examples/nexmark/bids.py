"""The bids of the Nexmark benchmark, generated with the distributions of its generator: ``python -m examples.nexmark.bids --help``.

Of 50 events in a row the first is a new person, the next three are new auctions, and 46 are bids; only bids are made here, and the ids of
persons and auctions follow from an event's number.

========  ==================================================================================================================
column    distribution
========  ==================================================================================================================
auction   for 1 bid in 2 the hot auction, which changes every 100 auctions; else uniform among the last 100 auctions and 10 to come
bidder    for 3 bids in 4 the hot bidder, who changes every 100 persons; else uniform among the last 1,000 persons and 10 to come
price     100 · 10^(6u), u uniform in [0, 1), rounded: cents from 1 to 1,000,000 dollars
channel   for 1 bid in 2 one of four hot channels, else one of 10,000
url       a channel's own; of the 10,000, nine in ten name the channel's id in the query
dateTime  events follow each other evenly, 10,000 a second unless told otherwise, in whole milliseconds
extra     54 to 81 letters, which bring a bid to about 100 bytes
========  ==================================================================================================================

References
----------
Tucker, Tufte, Papadimos and Maier (2008), "NEXMark: a benchmark for queries over data streams"; generator and defaults of
github.com/nexmark/nexmark.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

#: Events of each kind in a row: persons, auctions, bids.
PERSONS, AUCTIONS, BIDS = 1, 3, 46
CYCLE = PERSONS + AUCTIONS + BIDS
#: A hot auction, and a hot bidder, for so many ids.
HOT_SPAN = 100
IN_FLIGHT, ACTIVE, LEAD = 100, 1_000, 10
FIRST_ID = 1_000
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS = 10_000
EXTRA_LETTERS = (54, 82)
#: The first event, in microseconds: a minute before midnight, so that short streams have two days, too.
START_US = 1_700_006_400_000_000 - 60_000_000
#: Events drawn at once, from a random stream of their own.
BLOCK = 50_000
SCHEMA = pa.schema(
    [
        ("auction", pa.int64()),
        ("bidder", pa.int64()),
        ("price", pa.int64()),
        ("channel", pa.string()),
        ("url", pa.string()),
        ("dateTime", pa.timestamp("us", "UTC")),
        ("extra", pa.string()),
    ]
)


@dataclass(frozen=True)
class Bids:
    """An endless stream of bids: an event's bid depends on ``seed`` and the event's number alone, not on how the stream is cut.

    Attributes
    ----------
    rate
        Events a second, at most 1,000,000.
    """

    rate: int = 10_000
    seed: int = 7

    def between(self, begin: int, end: int) -> Iterator[pa.Table]:
        """The bids among the events numbered ``begin`` to ``end`` - 1, in order, in tables of at most :data:`BLOCK` rows."""
        for block in range(begin // BLOCK, -(-end // BLOCK)):
            numbers, table = self._block(block)
            first, last = np.searchsorted(numbers, (begin, end))
            yield table.slice(first, last - first)

    def instant_us(self, event: int) -> int:
        """The time of an event by its number, in microseconds."""
        return START_US + event * 1_000 // self.rate * 1_000

    def _block(self, block: int) -> tuple[np.ndarray, pa.Table]:
        """The numbers of a block's bids, shape (BLOCK * 46 / 50,), and the bids."""
        rng = np.random.default_rng([self.seed, block])
        numbers = np.arange(block * BLOCK, (block + 1) * BLOCK, dtype=np.int64)
        numbers = numbers[numbers % CYCLE >= PERSONS + AUCTIONS]
        n, cycle = len(numbers), numbers // CYCLE
        newest = cycle * AUCTIONS + AUCTIONS - 1
        oldest = np.maximum(newest - IN_FLIGHT, 0)
        auction = np.where(rng.integers(0, 2, n) > 0, newest // HOT_SPAN * HOT_SPAN, rng.integers(oldest, newest + 1 + LEAD))
        active = np.minimum(cycle + 1, ACTIVE)
        bidder = np.where(rng.integers(0, 4, n) > 0, cycle // HOT_SPAN * HOT_SPAN + 1, cycle + 1 - active + rng.integers(0, active + LEAD))
        channel = np.where(
            rng.integers(0, 2, n) > 0, rng.integers(0, len(HOT_CHANNELS), n), len(HOT_CHANNELS) + rng.integers(0, CHANNELS, n)
        )
        names, urls = self._channels
        columns = [
            auction + FIRST_ID,
            bidder + FIRST_ID,
            np.rint(100 * 10 ** (6 * rng.random(n))).astype(np.int64),
            names.take(pa.array(channel)),
            urls.take(pa.array(channel)),
            pa.array(START_US + numbers * 1_000 // self.rate * 1_000, pa.timestamp("us", "UTC")),
            _texts(rng, rng.integers(*EXTRA_LETTERS, n)),
        ]
        return numbers, pa.table(columns, schema=SCHEMA)

    @cached_property
    def _channels(self) -> tuple[pa.Array, pa.Array]:
        """Names and URLs, the hot channels' first."""
        rng = np.random.default_rng(self.seed)
        every = len(HOT_CHANNELS) + CHANNELS
        parts = [_texts(rng, rng.integers(3, 6, every)).to_pylist() for _ in range(3)]
        ids = [""] * len(HOT_CHANNELS)
        ids += [f"&channel_id={number * 2_654_435_761 % (1 << 31)}" if rng.integers(10) else "" for number in range(CHANNELS)]
        urls = [f"https://www.nexmark.com/{a}/{b}/{c}/item.htm?query=1{id_}" for a, b, c, id_ in zip(*parts, ids, strict=True)]
        return pa.array([*HOT_CHANNELS, *(f"channel-{number}" for number in range(CHANNELS))]), pa.array(urls)


def _texts(rng: np.random.Generator, lengths: np.ndarray) -> pa.Array:
    """Texts of random letters from a to z."""
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    letters = rng.integers(ord("a"), ord("z") + 1, offsets[-1], dtype=np.uint8)
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(letters))


def land(bids: Bids, begin: int, end: int, path: str | Path) -> None:
    """Append the bids among the events numbered ``begin`` to ``end`` - 1 to the Delta table at ``path``, as one version, in order.

    They are held in memory: delta-rs writes the batches of a table or a reader in any order, and only the rows of one batch in theirs.
    """
    write_deltalake(path, pa.concat_tables(bids.between(begin, end)).cast(SCHEMA).combine_chunks(), mode="append")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="Delta table to append to")
    parser.add_argument(
        "--from", type=int, default=0, dest="begin", metavar="EVENT", help="number of the first event (default %(default)s)"
    )
    parser.add_argument("--events", type=int, default=1_000_000, help="events, of which 46 in 50 are bids (default %(default)s)")
    parser.add_argument("--rate", type=int, default=Bids.rate, help="events a second of event time (default %(default)s)")
    parser.add_argument("--seed", type=int, default=Bids.seed, help="of the random numbers (default %(default)s)")
    given = parser.parse_args()
    land(Bids(given.rate, given.seed), given.begin, given.begin + given.events, given.path)


if __name__ == "__main__":
    main()
