"""The job, from a Delta table that Spark wrote into another one, cold and warm: ``python -m benchmarks.job``.

Count, mean, max and standard deviation of 60 minutes every minute over generated events, in a table that Spark wrote with its defaults
(INT96). Cold: ``windowmill backfill``, a PySpark script in two stages (slices, then frames over slices), one by ``window()``, and a script
of DuckDB and delta-rs in two stages, each a process of its own. Warm: the same in processes that have done it before. All rows are
compared. Then runs over few new rows: ``compute: spark`` and ``local``, each cold and on warm servers, beside Structured Streaming with
``availableNow`` over the same rows.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import job_windowmill, measurement
from benchmarks.events import MINUTE_US, Events
from benchmarks.job_runs import FewRows
from benchmarks.measurement import Figure, Measurement
from benchmarks.processes import alone
from benchmarks.race import Entry, Race, Result
from benchmarks.rows import compare
from benchmarks.spark_files import DELTA, landed

OURS, SPARK, NAIVE, DUCKDB = "windowmill", "PySpark script in two stages", "PySpark script by window()", "DuckDB + delta-rs"
#: Label -> module, way, and whether its standard deviation is the textbook's.
WAYS = {
    OURS: ("benchmarks.job_windowmill", "job", False),
    SPARK: ("benchmarks.job_spark", "job", True),
    NAIVE: ("benchmarks.job_spark", "naive job", False),
    DUCKDB: ("benchmarks.job_duckdb", "job", True),
}


def main(arguments: list[str] | None = None) -> Measurement:
    parser = measurement.options(__doc__, rows=5_000_000, keys=1_000)
    parser.add_argument("--minutes", type=int, default=1_440, help="span of the events (default %(default)s)")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="WAY", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--only", choices=("cold", "warm", "runs"), nargs="+", default=["cold", "warm", "runs"], help="parts to measure")
    parser.add_argument("--new-rows", type=int, default=1_000, help="new rows of a small run (default %(default)s)")
    given = parser.parse_args(arguments)
    console = measurement.terminal()
    events = Events(given.rows, given.keys, given.minutes)
    measured = Measurement("job", "the job: from Delta to Delta", f"{events.describe()}; 60 minutes every minute")
    console.print(measured.workload)
    source = landed(events.land(given.folder.absolute() / "events"), DELTA)
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        out = Path(scratch).absolute()
        task = {"source": str(source), "out": str(out), "size_us": 60 * MINUTE_US, "hop_us": MINUTE_US, "minutes": given.minutes}
        if "cold" in given.only:
            _cold(task, given, measured, console.print)
        if "warm" in given.only:
            _warm(task, given, measured, console.print)
        if "runs" in given.only:
            FewRows(out / "runs", given.new_rows, given.repetitions, console.print).measure(measured)
    measured.finish(console, given.results)
    return measured


def _cold(task: dict[str, Any], given: Namespace, measured: Measurement, say: Callable[[str], None]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"} | {"WINDOWMILL_COMPUTE": "spark"}
    results = {label: Result(f"{label}, cold") for label in given.ways}
    for round_ in range(given.repetitions):
        for label, result in results.items():
            shutil.rmtree(task["out"])
            Path(task["out"]).mkdir()
            module, way, _ = WAYS[label]
            own = job_windowmill.command(task) if label == OURS else [sys.executable, "-m", module, json.dumps(task | {"way": way})]
            seconds, used, _ = alone(own, environment)
            result.take(round_, seconds, used)
            say(f"  round {round_ + 1}: {result.label}: {seconds:.2f} s, {used:.2f} s of processor time")
    measured.take(list(results.values()))
    _compare_times(results, measured, least=8)


def _warm(task: dict[str, Any], given: Namespace, measured: Measurement, say: Callable[[str], None]) -> None:
    entries = [Entry(label, module, way, task, textbook) for label, (module, way, textbook) in WAYS.items() if label in given.ways]
    folder, environment = Path(task["out"]) / "race", {"WINDOWMILL_COMPUTE": "spark"}
    with Race(entries, folder, limit=given.limit, budget=given.budget, warm=given.warm, say=say, environment=environment) as race:
        race.compete(given.repetitions)
    measured.take(list(race.results.values()))
    _compare_times(race.results, measured, least=14)
    for entry in entries:
        if entry.label != OURS and OURS in race.results:
            paths = race.rows_of(OURS), race.rows_of(entry.label)
            found = compare(*paths, key=("k", "window_end"), exact=("n", "top"), floats=("mean", "sd"), textbook=entry.textbook)
            measured.notes.append(f"{entry.label} against {OURS}: {'same rows' if found.same else 'OTHER ROWS'}: {found.describe()}")


def _compare_times(results: dict[str, Result], measured: Measurement, *, least: float) -> None:
    """Add our ratios to those peers that took part; what is to be reached is said of the job of 5 million events."""
    ours = results.get(OURS)
    if ours is None:
        return
    for label, wanted in ((SPARK, None), (NAIVE, least)):
        if label in results:
            measured.figures.append(Figure.faster(ours, results[label], least=wanted))
    if DUCKDB in results:
        theirs = results[DUCKDB]
        pairs = [own / their for own, their in zip(ours.seconds, theirs.seconds, strict=False)]
        measured.figures.append(Figure(f"{ours.label} / {theirs.label}", pairs, most=3))


if __name__ == "__main__":
    main()
