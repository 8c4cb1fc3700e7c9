"""Whether a key that holds nearly everything fits into memory: ``python -m benchmarks.memory``.

The peak is that of the whole family of processes: driver, JVM and Python workers, shared pages counted once (the kernel's "proportional
set size"), looked at ten times a second.
"""

from __future__ import annotations

import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from benchmarks import measurement
from benchmarks.events import MINUTE_US, Events
from benchmarks.measurement import Figure, Measurement
from benchmarks.race import Entry, Race

SECONDS_BETWEEN = 0.1


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
        Watch(race.engine_of(entry).pid) as watch,
    ):
        race.compete(given.repetitions)
    measured.take(list(race.results.values()))
    measured.figures = [Figure("peak of all processes", [watch.peak_bytes / (1 << 30)], most=4, unit="GiB")]
    measured.notes.append("at the peak: " + ", ".join(f"{name} {size / (1 << 30):.2f} GiB" for name, size in watch.at_peak.items()))
    measured.finish(console, given.results)
    return measured


class Watch:
    """Looks at the memory of a session's processes until its context ends."""

    def __init__(self, session: int) -> None:
        self.peak_bytes = 0
        self.at_peak: dict[str, int] = {}
        self._session, self._done = session, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(SECONDS_BETWEEN):
            found: dict[str, int] = {}
            for process in session_processes(self._session):
                with suppress(OSError):  # it ended meanwhile
                    name = "JVM" if (process / "comm").read_text().startswith("java") else "Python"
                    found[name] = found.get(name, 0) + _resident(process)
            if sum(found.values()) > self.peak_bytes:
                self.peak_bytes, self.at_peak = sum(found.values()), found


def session_processes(session: int) -> list[Path]:
    """Folders in /proc of the processes of a session: Spark's workers leave their parent's process group, but not its session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            after_name = stat.read_text().rpartition(")")[2].split()
            if int(after_name[3]) == session:
                found.append(stat.parent)
    return found


def _resident(process: Path) -> int:
    """Bytes of memory, those of pages shared by n processes counted as a nth each."""
    line = next(line for line in (process / "smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
