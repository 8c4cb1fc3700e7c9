"""Corrections of the source beside a first run over all of it: ``python -m benchmarks.corrections --events 10000000 --days 90``.

In the middle of the history 100 rows of ten keys are updated and 100 deleted. Each pipeline restates that, and one that has never run
takes the corrected source in one batch: what both show must be equal, then and after runs over another day. All on one warm session.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from benchmarks import measurement
from benchmarks.history import AGGREGATES, DAY_MINUTES, WINDOWS, difference, in_order
from benchmarks.measurement import Figure, Measurement
from benchmarks.pipelines import MINUTE_US, START_US, Growing, quiet
from benchmarks.processes import timed
from benchmarks.race import Result
from benchmarks.spark_ways import session
from windowmill import latest
from windowmill.jobs.batch import loop
from windowmill.windowing.spec import Pipeline

KINDS: dict[str, list[dict[str, Any]]] = {
    "grids": [window for window in WINDOWS if window["type"] in ("tumbling", "hopping")],
    "sessions": [window for window in WINDOWS if window["type"] == "session"],
    "the last 50 rows": [window for window in WINDOWS if window["type"] == "sliding"],
}
#: Rows that are updated, rows that are deleted, and the number of their keys.
N_CORRECTED, N_KEYS = 100, 10
_INSTANT = pa.timestamp("us", "UTC")


def main(arguments: list[str] | None = None) -> Measurement:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000, help="events in all (default %(default)s)")
    parser.add_argument("--days", type=int, default=90, help="days, each of which lands as one version (default %(default)s)")
    parser.add_argument("--keys", type=int, default=1_000, help="keys (default %(default)s)")
    parser.add_argument("--only", default="", help="kinds of windows whose name holds this text")
    given = measurement.place(parser).parse_args(arguments)
    per_minute = max(1, given.events // (given.days * DAY_MINUTES))
    events = per_minute * given.days * DAY_MINUTES
    workload = f"{2 * N_CORRECTED} ({N_KEYS} keys) of {events:,} events of {given.keys:,} keys over {given.days} days"
    measured = Measurement("corrections", "corrections of the source", workload)
    given.folder.mkdir(parents=True, exist_ok=True)
    session()  # one that will live long; the first run would start one for a small batch
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        _measure(Path(scratch).absolute(), given, per_minute, measured)
    measured.finish(measurement.terminal(), given.results)
    return measured


def _measure(folder: Path, given: argparse.Namespace, per_minute: int, measured: Measurement) -> None:
    say = measurement.terminal().print
    growing = Growing(folder / "source", WINDOWS, AGGREGATES, keys=given.keys, rows_per_minute=per_minute)
    for _ in range(given.days):
        growing.land(per_minute * DAY_MINUTES)
    kinds = {name: windows for name, windows in KINDS.items() if given.only in name}
    running = {name: _pipeline(folder, growing, f"running {n}", windows) for n, (name, windows) in enumerate(kinds.items())}
    for name, pipeline in running.items():
        _, took, used = timed(partial(loop.run, pipeline, quiet()))
        say(f"  {name}: {took:.1f} s, {used:.1f} s of processor time for the first run")
    _correct(growing)
    corrected = {name: _pipeline(folder, growing, f"corrected {n}", windows) for n, (name, windows) in enumerate(kinds.items())}
    results = {name: (Result(f"{name}: restatement"), Result(f"{name}: first run")) for name in kinds}
    for name, (restated, first) in results.items():
        [done], took, used = timed(partial(loop.restate, running[name], quiet()))
        restated.take(0, took, used)
        assert done.restated is not None
        measured.notes.append(f"{name}: {done.restated.describe()}")
        _, took, used = timed(partial(loop.run, corrected[name], quiet()))
        first.take(0, took, used)
        for result in (restated, first):
            say(f"  {result.label}: {result.seconds[0]:.1f} s, {result.cpu_seconds[0]:.1f} s of processor time")
        measured.notes.append(f"{name}: processor time {first.cpu_seconds[0] / restated.cpu_seconds[0]:.3g} ×")
        measured.notes.append(f"{name}: {_compared(running[name], corrected[name])}")
    growing.land(per_minute * DAY_MINUTES)
    for name in kinds:
        for pipeline in (running[name], corrected[name]):
            loop.run(pipeline, quiet())
        measured.notes.append(f"{name}, a day later: {_compared(running[name], corrected[name])}")
    measured.take([result for pair in results.values() for result in pair])
    measured.figures += [Figure.faster(ours, first, least=20) for ours, first in results.values()]


def _pipeline(folder: Path, growing: Growing, name: str, windows: list[dict[str, Any]]) -> Pipeline:
    own = Growing(folder / name.replace(" ", "_"), windows, AGGREGATES, keys=growing.keys, rows_per_minute=growing.rows_per_minute)
    return own.pipeline.model_copy(update={"source": growing.pipeline.source})


def _correct(growing: Growing) -> None:
    """Update rows of the first keys in the middle, and delete as many that follow these."""
    middle = START_US + growing.rows // 2 * MINUTE_US // growing.rows_per_minute
    later = (ds.field("k") < N_KEYS) & (ds.field("t") >= ds.scalar(pa.scalar(middle, _INSTANT)))
    few = DeltaTable(growing.source).to_pyarrow_dataset().to_table(["t"], later)
    times = sorted(few.column("t").cast(pa.int64()).to_pylist())[: 2 * N_CORRECTED + 1]
    first, second, end = (f"arrow_cast({times[n * N_CORRECTED]}, 'Timestamp(Microsecond, Some(\"UTC\"))')" for n in range(3))
    updated = DeltaTable(growing.source).update(updates={"v": "v + 1"}, predicate=f"k < {N_KEYS} AND t >= {first} AND t < {second}")
    deleted = DeltaTable(growing.source).delete(f"k < {N_KEYS} AND t >= {second} AND t < {end}")
    assert (updated["num_updated_rows"], deleted["num_deleted_rows"]) == (N_CORRECTED, N_CORRECTED)


def _compared(one: Pipeline, other: Pipeline) -> str:
    tables = [in_order(_shown(pipeline)) for pipeline in (one, other)]
    return difference(*tables) or f"the same {len(tables[0]):,} windows as of a first run over the corrected source"


def _shown(pipeline: Pipeline) -> pa.Table:
    rows = latest(session(), pipeline).toArrow()
    return rows.drop_columns(["batch", "revision"])


if __name__ == "__main__":
    main()
