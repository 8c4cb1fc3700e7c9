"""History in one job beside a run a day: ``python -m benchmarks.history --events 10000000 --days 90``.

Each day lands as one version, and a run of the pipeline takes it up. Then one backfill computes the whole range as the first batch of
another pipeline, and one recomputes it over the pipeline that has run; the three tables must be equal. These are on one warm session. The
runs over the last days, and another backfill, are processes of their own, as a schedule starts them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from deltalake import DeltaTable

from benchmarks import measurement
from benchmarks.measurement import Figure, Measurement
from benchmarks.pipelines import START_US, Growing, quiet
from benchmarks.processes import alone, timed
from benchmarks.race import Result
from benchmarks.spark_ways import session
from benchmarks.warm_runs import script
from windowmill.jobs.batch import loop
from windowmill.windowing.axis import from_us

WINDOWS: list[dict[str, Any]] = [
    {"name": "hourly", "type": "tumbling", "size": "1 hour"},
    {"name": "rolling_day", "type": "hopping", "size": "24 hours", "hop": "1 hour"},
    {"name": "visits", "type": "session", "gap": "4 minutes"},
    {"name": "last_50", "type": "sliding", "evict": {"count": 50}, "trigger": {"count": 10}},
]
AGGREGATES: dict[str, Any] = {"n": {"count": "*"}, "mean_v": {"mean": "v"}, "top": {"max": "v"}}
#: A set of values for each partial.
DISTINCT: dict[str, Any] = {"codes": {"count_distinct": "code"}}
DAY_MINUTES = 1_440
#: Greatest relative difference of equal means: the cut into batches decides in which order values are added.
TOLERANCE = 1e-12


def main(arguments: list[str] | None = None) -> Measurement:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000, help="events in all (default %(default)s)")
    parser.add_argument("--days", type=int, default=90, help="days, each of which lands as one version (default %(default)s)")
    parser.add_argument("--keys", type=int, default=100, help="keys (default %(default)s)")
    parser.add_argument("--repetitions", type=int, default=1, help="backfills of each sort (default %(default)s)")
    parser.add_argument("--processes", type=int, default=3, help="runs as processes of their own, over the last days (default %(default)s)")
    parser.add_argument("--distinct", action="store_true", help="count distinct values, too")
    parser.add_argument("--late", type=float, default=0.0, help="share of late rows, which bring revisions (default %(default)s)")
    given = measurement.place(parser).parse_args(arguments)
    per_minute = max(1, given.events // (given.days * DAY_MINUTES))
    events = per_minute * given.days * DAY_MINUTES
    what = f"{events:,} events of {given.keys} keys over {given.days} days"
    what += f"{', values counted' if given.distinct else ''}{f', {given.late:.1%} late' if given.late else ''}"
    measured = Measurement("history", "history in one job", what)
    given.folder.mkdir(parents=True, exist_ok=True)
    session()  # one that will live long; the first run would start one for a small batch
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        _measure(Path(scratch).absolute(), given, per_minute, measured)
    measured.finish(measurement.terminal(), given.results)
    return measured


def _measure(folder: Path, given: argparse.Namespace, per_minute: int, measured: Measurement) -> None:
    say = measurement.terminal().print
    of_all: dict[str, Any] = {"keys": given.keys, "rows_per_minute": per_minute, "late": given.late}
    aggregates = AGGREGATES | (DISTINCT if given.distinct else {})
    daily = Growing(folder / "daily", WINDOWS, aggregates, **of_all)
    names = (
        "a run a day",
        "one backfill, the first batch",
        "one backfill of what has run",
        "one run, a process",
        "one backfill, a process",
    )
    by_day, at_once, anew, cold, cold_backfill = map(Result, names)
    seconds = cpu = 0.0
    for day in range(given.days):
        daily.land(per_minute * DAY_MINUTES)
        if day < given.days - given.processes:
            _, took, used = timed(partial(loop.run, daily.pipeline, quiet()))
            seconds, cpu = seconds + took, cpu + used
        else:
            cold.take(day, *_alone(daily, "run"))
    n_warm = given.days - given.processes
    by_day.take(0, *(used * given.days / n_warm for used in (seconds, cpu)))
    say(f"  {n_warm} daily runs: {seconds:.1f} s, {cpu:.1f} s of processor time")
    emitted = daily.now_us
    for round_ in range(given.repetitions):
        other = Growing(folder / f"at_once_{round_}", WINDOWS, aggregates, **of_all)
        own = other.pipeline.model_copy(update={"source": daily.pipeline.source})
        before = _table(daily)
        for result, pipeline in ((at_once, own), (anew, daily.pipeline)):
            _, took, used = timed(partial(loop.backfill, pipeline, quiet(), begin=START_US - 1, end=emitted))
            result.take(round_, took, used)
            say(f"  {result.label}: {took:.1f} s, {used:.1f} s of processor time")
        bounds = ("--from", from_us(START_US - 1).isoformat(), "--to", from_us(emitted).isoformat())
        cold_backfill.take(round_, *_alone(daily, "backfill", *bounds))
        for name, table in (("as the first batch", _table(other)), ("of what has run", _table(daily))):
            measured.notes.append(f"one backfill {name}: {difference(before, table) or f'the same {len(before):,} rows'}")
    measured.take([by_day, at_once, anew, cold, cold_backfill])
    measured.figures += [Figure.faster(at_once, by_day), Figure.faster(anew, by_day)]
    every = Result(f"{given.days} runs, a process each")
    for round_, used in enumerate(cold_backfill.cpu_seconds):
        every.take(round_, *(statistics.median(each) * given.days for each in (cold.seconds, cold.cpu_seconds)))
        measured.notes.append(f"processor time of {every.label} / {cold_backfill.label}: {every.cpu_seconds[-1] / used:.3g} ×")
    measured.figures.append(Figure.faster(cold_backfill, every, least=10))


def _alone(pipeline: Growing, command: str, *options: str) -> tuple[float, float]:
    """Seconds and processor time of a command as a process of its own."""
    spec = pipeline.folder / "spec.yaml"
    spec.write_text(yaml.safe_dump(pipeline.pipeline.model_dump(mode="json", exclude_defaults=True, by_alias=True)))
    took, used, _ = alone([script(sys.executable), command, str(spec), *options], os.environ)
    return took, used


def _table(pipeline: Growing) -> pa.Table:
    return in_order(DeltaTable(pipeline.sink).to_pyarrow_table().drop_columns(["batch"]))


def in_order(rows: pa.Table) -> pa.Table:
    """Result ``rows`` in an order of their own."""
    names = ("window", "k", "window_end", "trigger", "window_start", "revision")
    return rows.sort_by([(name, "ascending") for name in names if name in rows.column_names])


def difference(one: pa.Table, other: pa.Table) -> str | None:
    """What differs between two sorted tables; null if nothing does."""
    if len(one) != len(other):
        return f"OTHER ROWS: {len(other):,} instead of {len(one):,}"
    for name in one.column_names:
        a, b = one.column(name).combine_chunks(), other.column(name).combine_chunks()
        if pa.types.is_floating(a.type):
            same = np.allclose(pc.fill_null(a, 0.0), pc.fill_null(b, 0.0), rtol=TOLERANCE, atol=0.0)
        else:
            same = a.equals(b)
        if not same:
            return f"OTHER ROWS: {name} differs"
    return None


if __name__ == "__main__":
    main()
