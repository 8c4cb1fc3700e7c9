"""What a run over few new rows costs by kind of window and aggregate: ``python -m benchmarks.cost``.

One pipeline a kind, each over the same history, takes batches of 1,000 new rows in turn on one warm Spark session. Each is compared,
round by round, with the run of fixed grids and numeric aggregates. ``--longer 10`` adds to each a pipeline whose history is ten times as
long, and compares the two.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import measurement
from benchmarks.measurement import Figure, Measurement
from benchmarks.pipelines import Growing, take_turns
from benchmarks.processes import timed
from benchmarks.race import ratios
from benchmarks.small_runs import AGGREGATES, KEYS, ROWS_PER_MINUTE, WINDOWS
from benchmarks.spark_ways import session

BASE = "fixed grids, numbers"
#: Greatest length of events that last: three starts of windows on average, as these are 5 minutes apart.
LASTING_MINUTES = 30


class Spread:
    """The difference of the extremes: an aggregate of a user's own."""

    commutative = True

    def lift(self, value: float) -> tuple[float, float]:
        return value, value

    def combine(self, older: tuple[float, float], newer: tuple[float, float]) -> tuple[float, float]:
        return min(older[0], newer[0]), max(older[1], newer[1])

    def lower(self, partial: tuple[float, float]) -> float:
        return partial[1] - partial[0]


def _days(**changes: Any) -> tuple[dict[str, Any], ...]:
    return ({"name": "day", "type": "tumbling", "size": "1 day", "timezone": "America/New_York"} | changes,)


def _sliding(evict: dict[str, Any], trigger: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    return ({"name": "last", "type": "sliding", "evict": evict, "trigger": trigger},)


#: What differs from the pipeline of fixed grids and numeric aggregates.
KINDS: dict[str, dict[str, Any]] = {
    BASE: {},
    "p95": {"aggregates": AGGREGATES | {"p95": {"quantile": {"column": "v", "q": 0.95}}}},
    "approx_distinct": {"aggregates": AGGREGATES | {"about": {"approx_distinct": "v"}}},
    "count_distinct of 20 values": {"aggregates": AGGREGATES | {"codes": {"count_distinct": "code"}}},
    "an aggregate of one's own": {"aggregates": AGGREGATES | {"own": {"use": "benchmarks.cost:Spread", "args": ["v"]}}},
    "days of New York": {"windows": _days()},
    "months": {"windows": _days(size="1 month")},
    "sessions": {"windows": ({"name": "visits", "type": "session", "gap": "5 minutes"},)},
    "sessions, revise": {"windows": ({"name": "visits", "type": "session", "gap": "5 minutes"},), "late": 0.01},
    "the last 5,000 rows, every 100": {"windows": _sliding({"count": 5_000}, {"count": 100})},
    "the last day, every hour, by policies": {"windows": _sliding({"time": "1 day"}, {"time": "1 hour"})},
    "up to a day, by hours": {"windows": ({"name": "so_far", "type": "cumulative", "size": "1 day", "step": "1 hour"},)},
    "revise": {"late": 0.01},
    "events that last": {"lasting": LASTING_MINUTES},
    "events that last, weighed by time": {
        "lasting": LASTING_MINUTES,
        "aggregates": AGGREGATES | {"over_time": {"time_weighted_mean": "v"}},
    },
    "events that last, revise": {"lasting": LASTING_MINUTES, "late": 0.01},
    "events that last, empty emit": {"lasting": LASTING_MINUTES, "windows": tuple(window | {"empty": "emit"} for window in WINDOWS)},
}


def main(arguments: list[str] | None = None) -> Measurement:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", type=int, default=1_000_000, help="rows before the first counted run (default %(default)s)")
    parser.add_argument("--longer", type=int, help="also time pipelines whose history is so many times as long")
    parser.add_argument("--rows", type=int, default=1_000, help="new rows a run (default %(default)s)")
    parser.add_argument("--repetitions", type=int, default=6, help="counted runs of each (default %(default)s)")
    parser.add_argument("--only", nargs="*", choices=KINDS, metavar="KIND", help="kinds beside the base (default all)")
    given = measurement.place(parser).parse_args(arguments)
    console = measurement.terminal()
    histories = {"": given.history} | ({f", {given.longer} times the history": given.longer * given.history} if given.longer else {})
    days = " and ".join(f"{rows / ROWS_PER_MINUTE / 1440:.0f}" for rows in histories.values())
    measured = Measurement("cost", "runs over few rows, by kind", f"{given.rows:,} new rows of {KEYS} keys after {days} days of history")
    given.folder.mkdir(parents=True, exist_ok=True)
    session()  # one that will live long; the first run would start one for a small batch
    kinds = {name: changes for name, changes in KINDS.items() if name == BASE or not given.only or name in given.only}
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        pipelines: dict[str, Growing] = {}
        for name, changes in kinds.items():
            spec = {"windows": WINDOWS, "aggregates": AGGREGATES} | changes
            for longer, rows in histories.items():
                folder = Path(scratch).absolute() / f"kind_{len(pipelines)}"
                pipeline = pipelines[name + longer] = Growing(folder, **spec, keys=KEYS, rows_per_minute=ROWS_PER_MINUTE)
                _, seconds, _ = timed(partial(pipeline.land_history, rows))
                console.print(f"{name}: {rows:,} rows of history in {seconds:.0f} s, {pipeline.state}")
        results = take_turns(pipelines, given.rows, given.repetitions, console.print)
        measured.notes += [f"{name}: {pipeline.state}" for name, pipeline in pipelines.items()]
    measured.take(list(results.values()))
    for longer in histories:
        base = results[BASE + longer]
        measured.figures += [
            Figure(f"{name}{longer} / {base.label}", ratios(base, results[name + longer]), most=2) for name in kinds if name != BASE
        ]
        measured.notes.append(f"{base.label}: {statistics.median(base.seconds):.2f} s a run")
        if longer:
            measured.figures += [
                Figure(f"{name}{longer} / {name}", ratios(results[name], results[name + longer]), most=1.2) for name in kinds
            ]
    measured.finish(console, given.results)
    return measured


if __name__ == "__main__":
    main()
