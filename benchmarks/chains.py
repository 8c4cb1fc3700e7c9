"""What the second and the third level of a chain cost beside the first: ``python -m benchmarks.chains``.

Minutes of each shop and item, hours of each shop, days of all: each round lands an hour of events, of which a share comes up to two hours
late, and runs the levels one after the other. All revise. At the end the hours must be those of one pipeline over the events.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from benchmarks import measurement
from benchmarks.history import difference
from benchmarks.measurement import Figure, Measurement
from benchmarks.pipelines import MINUTE_US, WARM_ROUNDS, quiet
from benchmarks.processes import timed
from benchmarks.race import Result
from benchmarks.spark_ways import session
from windowmill import latest
from windowmill.jobs.batch import loop
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import load_pipeline

#: 2024-01-01T00:00Z.
_BEGIN_US = 1_704_067_200_000_000
_LATENESS_MINUTES = 120
_AGGREGATES = {"n": {"count": "*"}, "total": {"sum": "v"}, "least": {"min": "v"}, "most": {"max": "v"}}
_AGAIN = {"n": {"sum": "n"}, "total": {"sum": "total"}, "least": {"min": "least"}, "most": {"max": "most"}}


def main(arguments: list[str] | None = None) -> Measurement:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000, help="events of an hour (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="hours that are counted (default %(default)s)")
    parser.add_argument("--shops", type=int, default=20, help="shops, each with 20 items (default %(default)s)")
    parser.add_argument("--late", type=float, default=0.01, help="share of events that come late (default %(default)s)")
    given = measurement.place(parser).parse_args(arguments)
    workload = f"an hour of {given.rows:,} events of {given.shops} shops with 20 items each, {given.late:.0%} of them up to two hours late"
    measured = Measurement("chains", "pipelines over pipelines", workload)
    given.folder.mkdir(parents=True, exist_ok=True)
    session()  # one that will live long; the first run would start one for a small batch
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        _measure(Path(scratch).absolute(), given, measured)
    measured.finish(measurement.terminal(), given.results)
    return measured


def _measure(folder: Path, given: argparse.Namespace, measured: Measurement) -> None:
    say, rng = measurement.terminal().print, np.random.default_rng(7)
    levels, direct = _levels(folder), _pipeline(folder, "direct", "events", ["shop"], "1 hour", _AGGREGATES)
    results = {name: Result(name) for name in levels}
    above = Result("hours and days")
    for hour in range(-WARM_ROUNDS, given.rounds):
        _land(folder, rng, given, hour + WARM_ROUNDS)
        spent = dict[str, tuple[float, float]]()
        for name, pipeline in levels.items():
            _, took, used = timed(partial(loop.run, pipeline, quiet()))
            spent[name] = took, used
        say("  " + "; ".join(f"{name} {took:.2f} s, {used:.2f} s of processor time" for name, (took, used) in spent.items()))
        if hour >= 0:
            for name, result in results.items():
                result.take(hour, *spent[name])
            above.take(hour, *(sum(spent[name][place] for name in ("hours", "days")) for place in (0, 1)))
    loop.run(direct, quiet())
    measured.notes.append(f"hours: {_compared(levels['hours'], direct)}")
    measured.take([*results.values(), above])
    measured.figures.append(Figure.faster(above, results["minutes"], least=2))
    ratio = sum(results["minutes"].cpu_seconds) / sum(above.cpu_seconds)
    measured.notes.append(f"processor time of minutes / hours and days: {ratio:.3g} ×")


def _levels(folder: Path) -> dict[str, Pipeline]:
    minutes = _pipeline(folder, "minutes", "events", ["shop", "item"], "1 minute", _AGGREGATES)
    hours = _pipeline(folder, "hours", "minutes.json", ["shop"], "1 hour", _AGAIN)
    return {"minutes": minutes, "hours": hours, "days": _pipeline(folder, "days", "hours.json", [], "1 day", _AGAIN)}


def _pipeline(folder: Path, name: str, source: str, keys: list[str], size: str, aggregates: dict[str, Any]) -> Pipeline:
    over_events = source == "events"
    time: dict[str, Any] = {"column": "window_start", "lateness": "3 days"}
    if over_events:
        time = {"column": "t", "disorder": "1 minute", "lateness": f"{_LATENESS_MINUTES} minutes"}
    spec = {
        "pipeline": name,
        "source": {"path": str(folder / source)} if over_events else {"pipeline": source},
        "keys": keys,
        "time": time,
        "windows": [{"name": "w", "type": "tumbling", "size": size}],
        "aggregates": aggregates,
        "emit": "revise",
        "sink": {"path": str(folder / name)},
        "compute": "auto",
    }
    file = folder / f"{name}.json"
    file.write_text(json.dumps(spec))
    return load_pipeline(file)


def _land(folder: Path, rng: np.random.Generator, given: argparse.Namespace, hour: int) -> None:
    """Append an hour of events, a quarter a version."""
    for quarter in range(4):
        rows = given.rows // 4
        t = _BEGIN_US + (4 * hour + quarter) * 15 * MINUTE_US + np.sort(rng.integers(0, 15 * MINUTE_US, rows))
        delays = rng.integers(1, _LATENESS_MINUTES * MINUTE_US, rows)
        t -= np.where(rng.random(rows) < given.late, delays, 0)
        events = {"shop": rng.integers(0, given.shops, rows), "item": rng.integers(0, 20, rows), "v": rng.integers(0, 1_000, rows)}
        write_deltalake(str(folder / "events"), pa.table(events | {"t": pa.array(t, pa.timestamp("us", "UTC"))}), mode="append")


def _compared(one: Pipeline, other: Pipeline) -> str:
    order = [("shop", "ascending"), ("window_end", "ascending")]
    own, others = (latest(session(), each).drop("revision", "batch").toArrow().sort_by(order) for each in (one, other))
    return difference(own, others) or f"the same {len(own):,} windows as of one pipeline over the events"


if __name__ == "__main__":
    main()
