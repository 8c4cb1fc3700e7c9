"""Whether a first batch of many keys over a long history fits into the machine, and is right: ``python -m benchmarks.many_keys``.

The source is a Delta table of versions that follow each other in time, one file each, so that no two files overlap. ``windowmill run``,
a process of its own with the default heap, takes them in one batch. DuckDB computes the same windows from the same files, and every row is
compared. The peak is that of all processes together, shared pages counted once. Spark's temporary files are counted in bytes.

``--workers`` instead times the run on one executor and one core of this machine, and on two of each, in turn: an executor of one core is a
thread of its JVM and a Python worker beside it, which else would take two.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyspark
import yaml
from deltalake import DeltaTable, write_deltalake

from benchmarks import measurement
from benchmarks.events import MINUTE_US, SCHEMA
from benchmarks.measurement import Figure, Measurement
from benchmarks.processes import MemoryWatch, cpu_seconds, session_processes
from benchmarks.race import Result

#: First event: a whole hour.
START_US = 1_700_002_800_000_000
HOUR_US = 60 * MINUTE_US
ROWS_PER_FILE = 1_000_000
#: Between two looks at the processor time and the files of a run.
LOOK_SECONDS = 0.5
#: Memory of an executor's JVM, where there are workers.
EXECUTOR_MIB = 1024
#: Greatest difference of means and deviations, of values below 1: both sides round.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class History:
    """Rows (k, ts, v) in order of time, spread evenly over ``hours``: keys and values uniform."""

    rows: int
    keys: int
    hours: int
    seed: int = 7

    def describe(self) -> str:
        files = -(-self.rows // ROWS_PER_FILE)
        return f"{self.rows:,} events over {self.hours} hours, {self.keys:,} keys, {files} files that follow each other in time"

    def land(self, folder: Path) -> Path:
        """Write a Delta table below ``folder`` unless it is there, a version for each file; its folder."""
        path = folder / f"{self.rows}-rows-{self.keys}-keys-{self.hours}-hours"
        if (path / "complete").exists():
            return path
        for table in self._files():
            write_deltalake(path, table, mode="append")
        (path / "complete").touch()
        return path

    def _files(self) -> Iterator[pa.Table]:
        rng = np.random.default_rng(self.seed)
        for begin in range(0, self.rows, ROWS_PER_FILE):
            n = min(ROWS_PER_FILE, self.rows - begin)
            # In floats: the product of a row number and a length in microseconds does not fit 64 bits.
            ts = START_US + ((begin + np.arange(n)) * (self.hours * HOUR_US / self.rows)).astype(np.int64)
            columns = {"k": rng.integers(0, self.keys, n), "ts": pa.array(ts, pa.timestamp("us", "UTC")), "v": rng.random(n)}
            yield pa.table(columns, schema=SCHEMA)


@dataclass
class Run:
    """What a run used."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    at_peak: Mapping[str, int]
    scratch_bytes: int


def spec_of(source: Path, folder: Path) -> Path:
    """The file of a pipeline over ``source`` whose tables are below ``folder``."""
    spec = {
        "pipeline": "many_keys",
        "source": {"path": str(source)},
        "keys": ["k"],
        "time": {"column": "ts", "disorder": "1 minute"},
        "windows": [{"name": "hourly", "type": "tumbling", "size": "1 hour"}],
        "aggregates": {"n": {"count": "*"}, "mean_v": {"mean": "v"}, "max_v": {"max": "v"}, "stddev_v": {"stddev_samp": "v"}},
        "sink": {"path": str(folder / "sink")},
        "expectations": [
            {"type": "expect_column_values_to_be_between", "column": "max_v", "min_value": 0, "max_value": 1, "severity": "critical"}
        ],
    }
    folder.mkdir(parents=True)
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def run(spec: Path, more: Mapping[str, str], cores: int | None = None) -> Run:
    """``windowmill run`` as a process of its own, whose temporary files are in a folder of their own; on so many ``cores``, or all."""
    scratch = spec.parent / "scratch"
    scratch.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"} | {"TMPDIR": str(scratch), **more}
    command = [sys.executable, "-m", "windowmill.jobs.cli", "run", str(spec)]
    chosen = sorted(os.sched_getaffinity(0))[:cores]
    begun, used, written = time.perf_counter(), 0.0, 0
    pinned = partial(os.sched_setaffinity, 0, chosen)  # holds for everything that the command starts
    with (
        subprocess.Popen(command, env=environment, start_new_session=True, preexec_fn=pinned) as process,  # noqa: PLW1509 - one system call
        MemoryWatch(process.pid) as watch,
    ):
        while process.poll() is None:
            with suppress(OSError):
                used = max(used, cpu_seconds(process.pid))
            written = max(written, bytes_below(scratch))
            time.sleep(LOOK_SECONDS)
        seconds = time.perf_counter() - begun
        # Of a cluster, the JVMs end after the command, and write until they do.
        while session_processes(process.pid):
            time.sleep(LOOK_SECONDS)
    if process.returncode:
        raise AssertionError(f"the run ended with {process.returncode}")
    return Run(seconds, used, watch.peak_bytes, watch.at_peak, written)


def bytes_below(folder: Path) -> int:
    """Size of all files below ``folder``, which others write and remove meanwhile."""
    found = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                found += Path(place, name).stat().st_size
    return found


def differing(history: History, source: Path, sink: Path) -> tuple[int, int]:
    """Rows in the sink, and rows that differ from DuckDB's, compared window by window: no more fits into memory.

    The last window must be missing: no event has passed its end.
    """
    ours, theirs = (DeltaTable(path).file_uris() for path in (sink, source))
    published = DeltaTable(sink).count()
    wrong, compared = 0, 0
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'; SET memory_limit = '4GB'; SET preserve_insertion_order = false")
        for hour in range(history.hours - 1):
            first, stop = START_US + hour * HOUR_US, START_US + (hour + 1) * HOUR_US
            rows, bad = connection.execute(
                f"""
                WITH theirs AS (
                    SELECT k, count(*) AS n, avg(v) AS mean_v, max(v) AS max_v, stddev_samp(v) AS stddev_v FROM read_parquet($theirs)
                    WHERE ts >= make_timestamptz({first}) AND ts < make_timestamptz({stop}) GROUP BY k
                ), ours AS (SELECT * FROM read_parquet($ours) WHERE window_end = make_timestamptz({stop}))
                SELECT count(ours.n), count(*) FILTER (NOT coalesce(
                    ours.n = theirs.n AND ours.max_v = theirs.max_v AND abs(ours.mean_v - theirs.mean_v) <= {TOLERANCE}
                    AND (ours.stddev_v IS NULL AND theirs.stddev_v IS NULL OR abs(ours.stddev_v - theirs.stddev_v) <= {TOLERANCE}), false))
                FROM ours FULL JOIN theirs USING (k)
                """,
                {"ours": ours, "theirs": theirs},
            ).fetchall()[0]
            compared, wrong = compared + rows, wrong + bad
    return published, wrong + published - compared


@contextmanager
def cluster(executors: int, scratch: Path) -> Iterator[dict[str, str]]:
    """The environment of a run on ``executors`` of one core each, processes of their own on this machine."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        # Workers write beside Spark's own files.
        for place in Path(pyspark.__file__).parent.iterdir():
            if place.name != "work":
                (Path(folder) / place.name).symlink_to(place)
        yield {"WINDOWMILL_MASTER": f"local-cluster[{executors},1,{EXECUTOR_MIB}]", "SPARK_HOME": folder, "SPARK_LOCAL_DIRS": folder}


def one_run(history: History, source: Path, scratch: Path, measured: Measurement) -> None:
    """Measure one run, and compare its rows with DuckDB's."""
    done = run(spec_of(source, scratch / "pipeline"), {})
    result = Result("windowmill run")
    result.take(0, done.seconds, done.cpu_seconds)
    published, wrong = differing(history, source, scratch / "pipeline" / "sink")
    measured.take([result])
    measured.figures = [
        Figure("peak of all processes", [done.peak_bytes / (1 << 30)], most=12, unit="GiB"),
        Figure("temporary files at most", [done.scratch_bytes / (1 << 30)], unit="GiB"),
        Figure("rows that differ from DuckDB's", [wrong], most=0, unit="rows"),
    ]
    measured.notes.append("at the peak: " + ", ".join(f"{name} {size / (1 << 30):.2f} GiB" for name, size in done.at_peak.items()))
    measured.notes.append(f"{published:,} rows published")


def with_workers(repetitions: int, source: Path, scratch: Path, measured: Measurement) -> None:
    """Time runs on one executor and on two, in turn."""
    results = {1: Result("one executor on one core"), 2: Result("two executors on two cores")}
    for round_ in range(repetitions):
        for executors, result in results.items():
            with cluster(executors, scratch) as environment, tempfile.TemporaryDirectory(dir=scratch) as folder:
                done = run(spec_of(source, Path(folder) / "pipeline"), environment, cores=executors)
            result.take(round_, done.seconds, done.cpu_seconds)
    measured.take(list(results.values()))
    measured.figures = [Figure.faster(results[2], results[1], least=1.5)]


def main(arguments: list[str] | None = None) -> Measurement:
    parser = measurement.place(argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter))
    parser.add_argument("--rows", type=int, default=200_000_000, help="events (default %(default)s)")
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys (default %(default)s)")
    parser.add_argument("--hours", type=int, default=24, help="hours of events (default %(default)s)")
    parser.add_argument("--workers", action="store_true", help="time one executor and core beside two")
    parser.add_argument("--repetitions", type=int, default=3, help="rounds of --workers (default %(default)s)")
    given = parser.parse_args(arguments)
    console = measurement.terminal()
    history = History(given.rows, given.keys, given.hours)
    way = "on one executor and on two" if given.workers else "as the first batch"
    measured = Measurement("many_keys", "tumbling windows of an hour", f"{history.describe()}; {way}")
    console.print(measured.workload)
    source = history.land(given.folder.absolute() / "events")
    with tempfile.TemporaryDirectory(dir=given.folder.absolute()) as scratch:
        if given.workers:
            with_workers(given.repetitions, source, Path(scratch), measured)
        else:
            one_run(history, source, Path(scratch), measured)
    measured.finish(console, given.results)
    return measured


if __name__ == "__main__":
    main()
