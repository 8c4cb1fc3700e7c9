"""Whether time grows with the overlap: ``python -m benchmarks.overlap``.

The same number of events and of result rows, once with every event in 10 windows and once in 1,440: the windows that begin before a key's
first event are made up for by events that span less.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks import measurement
from benchmarks.events import MINUTE_US, Events
from benchmarks.measurement import Figure, Measurement
from benchmarks.race import Entry, Race, ratios

OVERLAPS = (10, 1440)


def main(arguments: list[str] | None = None) -> Measurement:
    parser = measurement.options(__doc__, rows=5_000_000, keys=100)
    parser.add_argument("--windows", type=int, default=15_840, help="windows of each key, one every minute (default %(default)s)")
    given = parser.parse_args(arguments)
    console = measurement.terminal()
    workload = f"{given.rows:,} events, {given.keys:,} keys, {given.windows:,} windows of each key"
    measured = Measurement("overlap", f"windows every minute that overlap {OVERLAPS[0]} and {OVERLAPS[1]} times", workload)
    console.print(workload)
    entries = []
    for overlap in OVERLAPS:
        events = Events(given.rows, given.keys, given.windows - overlap + 1).land(given.folder.absolute() / "events")
        task = {"events": str(events), "size_us": overlap * MINUTE_US, "hop_us": MINUTE_US}
        entries.append(Entry(f"overlap {overlap}", "benchmarks.spark_ways", "windowmill hopping", task))
    with (
        tempfile.TemporaryDirectory(dir=given.folder) as scratch,
        Race(entries, Path(scratch), limit=given.limit, budget=given.budget, warm=given.warm, say=console.print) as race,
    ):
        race.compete(given.repetitions)
        rows = [count_rows(race.rows_of(entry.label)) for entry in entries]
    measured.take(list(race.results.values()))
    few, many = race.results.values()
    measured.figures = [
        Figure(f"overlap {OVERLAPS[1]} / overlap {OVERLAPS[0]}: time", ratios(few, many), most=1.3),
        Figure("… result rows", [rows[1] / rows[0]]),
    ]
    measured.notes.append(f"result rows: {rows[0]:,} and {rows[1]:,}")
    measured.finish(console, given.results)
    return measured


def count_rows(path: Path) -> int:
    """Rows of the Parquet files in a folder that Spark wrote."""
    import pyarrow.dataset as ds

    return int(ds.dataset(sorted(map(str, path.glob("part-*.parquet"))), format="parquet").count_rows())


if __name__ == "__main__":
    main()
