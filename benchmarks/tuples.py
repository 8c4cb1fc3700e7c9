"""Windows over a key's last 1,024 tuples, every tuple triggering: ``python -m benchmarks.tuples``.

Max and standard deviation, against Spark's ``rowsBetween`` with and without segment trees, and window frames of DuckDB and DataFusion.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks import measurement
from benchmarks.events import Events
from benchmarks.measurement import Figure, Measurement
from benchmarks.race import Entry, Race
from benchmarks.rows import compare

OURS, SPARK, TREES = "windowmill", "Spark rowsBetween", "Spark rowsBetween by segment trees"
#: Label -> engine, way.
WAYS = {
    OURS: ("benchmarks.spark_ways", "windowmill tuples"),
    TREES: ("benchmarks.spark_ways", "spark tuples by trees"),
    SPARK: ("benchmarks.spark_ways", "spark tuples"),
    "DuckDB window frames": ("benchmarks.peer_ways", "duckdb tuples"),
    "DataFusion window frames": ("benchmarks.peer_ways", "datafusion tuples"),
}


def main(arguments: list[str] | None = None) -> Measurement:
    parser = measurement.options(__doc__, rows=5_000_000, keys=1_000)
    parser.add_argument("--count", type=int, default=1_024, help="tuples of a window (default %(default)s)")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="WAY", help=f"of {', '.join(WAYS)}")
    given = parser.parse_args(arguments)
    console = measurement.terminal()
    workload = Events(given.rows, given.keys)
    measured = Measurement("tuples", f"max and stddev of each key's last {given.count:,} tuples, at every tuple", workload.describe())
    console.print(measured.workload)
    task = {"events": str(workload.land(given.folder.absolute() / "events")), "count": given.count}
    entries = [Entry(label, engine, way, task) for label, (engine, way) in WAYS.items() if label in given.ways]
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        with Race(entries, Path(scratch), limit=given.limit, budget=given.budget, warm=given.warm, say=console.print) as race:
            race.compete(given.repetitions)
        measured.take(list(race.results.values()))
        finished = [entry.label for entry in entries if race.rows_of(entry.label).exists() and not race.results[entry.label].error]
        for label in finished[1:]:
            found = compare(race.rows_of(finished[0]), race.rows_of(label), key=("k", "trigger"), exact=("top",), floats=("sd",))
            measured.notes.append(f"{label} against {finished[0]}: {'same rows' if found.same else 'OTHER ROWS'}: {found.describe()}")
    for label, result in race.results.items():
        if label != OURS and OURS in race.results:
            measured.figures.append(Figure.faster(race.results[OURS], result, least=20 if label == SPARK else None))
    measured.finish(console, given.results)
    return measured


if __name__ == "__main__":
    main()
