"""Hopping windows against every peer: ``python -m benchmarks.hopping``.

Count, mean, max and standard deviation of 60 minutes every minute, over generated events. Reading Parquet is in every time, writing is
in none: rows go to ``noop``, to ``blackhole``, or into sums. All rows are compared with those of Spark's own windows.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks import measurement
from benchmarks.events import MINUTE_US, Events, Flights
from benchmarks.measurement import Figure, Measurement
from benchmarks.race import Entry, Race, ratios
from benchmarks.rows import compare
from benchmarks.spark_files import DELTA, PARQUET, landed

OURS, STAGES, SPARK, US = "windowmill", "Spark in two stages", "Spark window()", "us.parquet"
#: How the events are stored -> what the report says of it.
FORMS = {
    PARQUET: "in Parquet as Spark writes it (INT96; Flink: milliseconds)",
    DELTA: "in a Delta table that Spark wrote (Flink: milliseconds in Parquet)",
    US: "in Parquet with instants in microseconds, which Spark does not write unless told to (Flink: milliseconds)",
}
#: Label -> engine, way, whether its standard deviation is the textbook's, and what is to be reached: at least, at most.
WAYS = {
    OURS: ("benchmarks.spark_ways", "windowmill hopping", False, None, None),
    STAGES: ("benchmarks.spark_ways", "spark stages", True, 5, None),
    SPARK: ("benchmarks.spark_ways", "spark hopping", False, 35, None),
    "Structured Streaming": ("benchmarks.spark_ways", "structured streaming hopping", False, None, None),
    "Flink streaming": ("benchmarks.flink_ways", "flink streaming", True, 10, None),
    "Flink batch": ("benchmarks.flink_ways", "flink batch", True, 10, None),
    "DuckDB in two stages": ("benchmarks.peer_ways", "duckdb hopping", True, None, 1.2),
    "chDB in two stages": ("benchmarks.peer_ways", "chdb hopping", False, None, None),
    "polars in two stages": ("benchmarks.peer_ways", "polars stages", True, None, None),
    "polars group_by_dynamic": ("benchmarks.peer_ways", "polars hopping", False, None, None),
}


def main(arguments: list[str] | None = None) -> Measurement:
    parser = measurement.options(__doc__, rows=5_000_000, keys=1_000)
    parser.add_argument("--size", type=int, default=60, help="minutes of a window (default %(default)s)")
    parser.add_argument("--hop", type=int, default=1, help="minutes between windows (default %(default)s)")
    parser.add_argument("--minutes", type=int, default=1440, help="span of the events (default %(default)s)")
    parser.add_argument("--zipf", type=float, default=0.0, help="exponent of the keys' sizes; 0: all alike (default %(default)s)")
    parser.add_argument("--form", choices=FORMS, default=PARQUET, help=f"of {', '.join(FORMS)} (default %(default)s)")
    parser.add_argument("--flights", action="store_true", help="the flights of the example in place of generated events")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="WAY", help=f"of {', '.join(WAYS)}")
    given = parser.parse_args(arguments)
    console = measurement.terminal()
    workload: Events | Flights = Flights() if given.flights else Events(given.rows, given.keys, given.minutes, zipf=given.zipf)
    sizes = f"{given.size} minutes every {given.hop}" if given.hop > 1 else f"{given.size} minutes every minute"
    form = US if given.flights else given.form
    described = f"{workload.describe()}, {FORMS[form]}; {sizes}"
    measured = Measurement("hopping", "count, mean, max and stddev of windows", described)
    console.print(measured.workload)
    events = workload.land(given.folder.absolute() / "events")
    if form != US:
        landed(events, form)
    task = {"events": str(events), "form": form, "size_us": given.size * MINUTE_US, "hop_us": given.hop * MINUTE_US}
    entries = [Entry(label, engine, way, task, textbook) for label, (engine, way, textbook, _, _) in WAYS.items() if label in given.ways]
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        with Race(entries, Path(scratch), limit=given.limit, budget=given.budget, warm=given.warm, say=console.print) as race:
            race.compete(given.repetitions)
        measured.take(list(race.results.values()))
        measured.notes += agreements(race)
    # What is to be reached is said of these events and windows; other ones show how ratios change.
    aimed = workload == Events(5_000_000, 1_000) and (given.size, given.hop) == (60, 1)
    if OURS in race.results:
        ours = race.results[OURS]
        for label, result in race.results.items():
            _, _, _, least, most = WAYS[label]
            if most is not None:  # this peer is faster
                measured.figures.append(Figure(f"{OURS} / {label}", ratios(result, ours), most=most if aimed else None))
            elif label != OURS:
                measured.figures.append(Figure.faster(ours, result, least=least if aimed else None))
    measured.finish(console, given.results)
    return measured


def agreements(race: Race) -> list[str]:
    """Each way's rows against Spark's own, or the first way's where Spark did not finish."""
    finished = [entry for entry in race.entries if race.rows_of(entry.label).exists() and not race.results[entry.label].error]
    reference = next((entry for entry in finished if entry.label == SPARK), finished[0] if finished else None)
    notes = []
    for entry in finished:
        if reference is not None and entry is not reference:
            paths = race.rows_of(reference.label), race.rows_of(entry.label)
            found = compare(*paths, key=("k", "window_end"), exact=("n", "top"), floats=("mean", "sd"), textbook=entry.textbook)
            verdict = "same rows" if found.same else "OTHER ROWS"
            notes.append(f"{entry.label} against {reference.label}: {verdict}: {found.describe()}")
    return notes


if __name__ == "__main__":
    main()
