"""What a run over positions reads of long windows: ``python -m benchmarks.positions``.

Pipelines with a short and a long window take the same new rows in turn on one warm Spark session: the last 1,000 and the last 100,000
tuples of each key, shown at every tuple and at every minute; and the tuples of the last hour, day and seven days, at an event a second and
key and a tick every minute. Beside the times stand the rows that a run restores of a key, and the state after compaction.

A table tells what a batch of m new tuples restores, writes and combines for a window of n tuples that is shown once a batch, for m from 1
to n, beside the bound of the Reactive Aggregator, m(1 + log2(n/m)).
"""

from __future__ import annotations

import argparse
import math
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from deltalake import DeltaTable

from benchmarks import measurement
from benchmarks.measurement import Figure, Measurement
from benchmarks.pipelines import WARM_ROUNDS, Growing
from benchmarks.position_counts import table
from benchmarks.processes import timed
from benchmarks.race import Result, ratios
from benchmarks.spark_ways import session
from windowmill.checkpoints.delta_tables import sizes_of
from windowmill.checkpoints.places import Places
from windowmill.windowing.columnar.added_columns import KIND, NODE_LEVEL
from windowmill.windowing.columnar.positions import WAITING

AGGREGATES = {"n": {"count": "*"}, "top": {"max": "v"}, "spread": {"stddev_samp": "v"}, "code_of_top": {"arg_max": ["v", "code"]}}
TRIGGERS: dict[str, dict[str, Any]] = {"every tuple": {"count": 1}, "every minute": {"time": "1 minute"}}
#: Windows by time and their length in seconds, which is also their number of tuples of a key.
SPANS = {"1 hour": 3_600, "1 day": 86_400, "7 days": 604_800}
MAX_RATIO = 1.5


def main(arguments: list[str] | None = None) -> Measurement:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", type=int, default=1_000, help="tuples of the short window (default %(default)s)")
    parser.add_argument("--long", type=int, default=100_000, help="tuples of the long window (default %(default)s)")
    parser.add_argument("--keys", type=int, default=10, help="keys of the windows by count (default %(default)s)")
    parser.add_argument("--time-keys", type=int, default=2, help="keys of the windows by time (default %(default)s)")
    parser.add_argument("--spans", nargs="*", choices=SPANS, default=list(SPANS), help="windows by time (default all)")
    parser.add_argument("--rows", type=int, default=1_000, help="new rows a run (default %(default)s)")
    parser.add_argument("--table", type=int, default=1 << 14, help="tuples of the window of the table (default %(default)s)")
    parser.add_argument("--repetitions", type=int, default=6, help="counted runs of each (default %(default)s)")
    given = measurement.place(parser).parse_args(arguments)
    console = measurement.terminal()
    workload = f"{given.rows:,} new rows; the last {given.short:,} and {given.long:,} tuples of {given.keys} keys; {', '.join(given.spans)}"
    measured = Measurement("positions", "runs over positions of long windows", workload)
    given.folder.mkdir(parents=True, exist_ok=True)
    session()  # one that will live long; the first run would start one for a small batch
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        folder = Path(scratch).absolute()
        kinds = [_by_count(folder, trigger, n, given.keys) for trigger in TRIGGERS for n in (given.short, given.long)]
        kinds += [_by_time(folder, span, given.time_keys) for span in given.spans]
        for kind in kinds:
            _, seconds, _ = timed(partial(kind.pipeline.land_history, kind.history))
            console.print(f"{kind.name}: {kind.history:,} rows of history in {seconds:.0f} s")
        for round_ in range(-WARM_ROUNDS, given.repetitions):
            console.print(f"  {'warm-up' if round_ < 0 else f'round {round_ + 1}'}:", *(kind.run(round_, given.rows) for kind in kinds))
        measured.notes += [kind.state() for kind in kinds]
        measured.figures = _figures(kinds, given.rows)
        measured.notes += [f"window of {given.table:,} tuples: {line}" for line in table(folder / "table", given.table)]
    measured.take([kind.result for kind in kinds])
    measured.finish(console, given.results)
    return measured


@dataclass
class Kind:
    """A pipeline with one window of about ``length`` tuples of a key, and its runs."""

    name: str
    group: str
    length: int
    pipeline: Growing
    history: int
    result: Result
    restored: list[float]
    rows_a_tuple: float = 0.0

    def run(self, round_: int, rows: int) -> str:
        """Take ``rows`` new rows; a round from 0 on counts."""
        self.pipeline.land(rows)
        (seconds, done, _), _, cpu = timed(self.pipeline.run)
        if round_ >= 0:
            self.result.take(round_, seconds, cpu)
            self.restored.append(sum(done.outcome.counts.state_restored.values()) / self.pipeline.keys)
        return f"{self.name} {seconds:.2f} s;"

    def state(self) -> str:
        """Compact the state and tell of it."""
        path = Places.of(self.pipeline.pipeline).state
        self.pipeline.maintain()
        table = DeltaTable(path)
        rows = table.to_pyarrow_table(columns=[KIND, NODE_LEVEL])
        tuples = len(rows.filter((pc.field(KIND) == WAITING) | (pc.field(NODE_LEVEL) == 0)))
        self.rows_a_tuple = len(rows) / tuples
        size = sum(sizes_of(table).values())
        return f"{self.name}: state {len(rows):,} rows of {tuples:,} tuples, {size:,} bytes, {size / tuples:.0f} a tuple"


def _by_count(folder: Path, trigger: str, length: int, keys: int) -> Kind:
    name = f"the last {length:,}, {trigger}"
    window = {"name": "last", "type": "sliding", "evict": {"count": length}, "trigger": TRIGGERS[trigger]}
    pipeline = _growing(folder / f"last_{length}_{trigger.replace(' ', '_')}", window, keys)
    return Kind(name, trigger, length, pipeline, keys * (length + length // 10), Result(name), [])


def _by_time(folder: Path, span: str, keys: int) -> Kind:
    name = f"the last {span}, every minute"
    window = {"name": "last", "type": "sliding", "evict": {"time": span}, "trigger": TRIGGERS["every minute"]}
    pipeline = _growing(folder / f"span_{SPANS[span]}", window, keys)
    return Kind(name, "by time", SPANS[span], pipeline, keys * (SPANS[span] + SPANS[span] // 10), Result(name), [])


def _growing(folder: Path, window: dict[str, Any], keys: int) -> Growing:
    """A pipeline over an event a second and key, in order."""
    return Growing(folder, [window], AGGREGATES, keys=keys, rows_per_minute=60 * keys, disorder="0 minutes")


def _figures(kinds: list[Kind], rows: int) -> list[Figure]:
    found = []
    for group in dict.fromkeys(kind.group for kind in kinds):
        first, *longer = [kind for kind in kinds if kind.group == group]
        found += [Figure(f"{kind.name} / {first.name}: time", ratios(first.result, kind.result), most=MAX_RATIO) for kind in longer]
    for kind in kinds:
        beyond = [restored - rows / kind.pipeline.keys for restored in kind.restored]
        most = round(2 * math.log2(kind.length) + 2, 1)
        found.append(Figure(f"{kind.name}: rows restored a key beyond the new", beyond, most=most, unit="rows"))
        found.append(Figure(f"{kind.name}: state rows a tuple", [kind.rows_a_tuple], most=2, unit="rows"))
    return found


if __name__ == "__main__":
    main()
