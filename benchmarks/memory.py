"""Whether a key that holds nearly everything fits into memory: ``python -m benchmarks.memory``.

The peak is that of all processes together: Python driver, JVM (driver and executor in one) and Python workers, shared pages counted once.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks import measurement
from benchmarks.events import MINUTE_US, Events
from benchmarks.measurement import Figure, Measurement
from benchmarks.processes import MemoryWatch
from benchmarks.race import Entry, Race


def main(arguments: list[str] | None = None) -> Measurement:
    parser = measurement.options(__doc__, rows=20_000_000, keys=1_000)
    parser.set_defaults(repetitions=2)
    parser.add_argument("--hot", type=float, default=0.9, help="share of the events of one key (default %(default)s)")
    parser.add_argument("--heap", default="2g", help="memory of the JVM's heap (default %(default)s)")
    given = parser.parse_args(arguments)
    console = measurement.terminal()
    workload = Events(given.rows, given.keys, hot=given.hot)
    measured = Measurement("memory", "windows of 60 minutes every minute", f"{workload.describe()}; heap of {given.heap}")
    console.print(measured.workload)
    task = {"events": str(workload.land(given.folder.absolute() / "events")), "size_us": 60 * MINUTE_US, "hop_us": MINUTE_US}
    entry = Entry("windowmill", "benchmarks.spark_ways", "windowmill hopping", task)
    with (
        tempfile.TemporaryDirectory(dir=given.folder) as scratch,
        Race(
            [entry],
            Path(scratch),
            limit=given.limit,
            budget=given.budget,
            say=console.print,
            environment={"WINDOWMILL_DRIVER_MEMORY": given.heap},
        ) as race,
        MemoryWatch(race.engine_of(entry).pid) as watch,
    ):
        race.compete(given.repetitions)
    measured.take(list(race.results.values()))
    measured.figures = [Figure("peak of all processes", [watch.peak_bytes / (1 << 30)], most=4, unit="GiB")]
    measured.notes.append("at the peak: " + ", ".join(f"{name} {size / (1 << 30):.2f} GiB" for name, size in watch.at_peak.items()))
    measured.finish(console, given.results)
    return measured


if __name__ == "__main__":
    main()
