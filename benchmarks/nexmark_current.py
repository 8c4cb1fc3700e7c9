"""Pipelines of the Nexmark queries that take one more minute of bids at a time, in a process whose Spark session is warm.

``python -m benchmarks.nexmark_current`` compares the processor time of such runs by ``compute: spark`` with that by ``local``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from benchmarks import measurement
from benchmarks.measurement import Figure, Measurement
from benchmarks.pipelines import WARM_ROUNDS, quiet
from benchmarks.processes import timed
from benchmarks.race import Result
from benchmarks.spark_ways import session
from examples.nexmark.bids import BIDS, CYCLE, Bids, land
from examples.nexmark.queries import FOLDER, QUERIES
from windowmill.jobs.batch import loop
from windowmill.windowing.specfile import load_pipeline


@dataclass(frozen=True)
class Run:
    """How a query is kept current: the query, and what a run shows of it."""

    query: str
    remark: str


#: Name of the pipeline's file -> the run.
RUNS = {
    "q5": Run("q5", "shows the counts of 30 windows, and appends the auctions with the most bids to a second table"),
    "q7": Run("q7", "shows 6 windows"),
    "q11": Run("q11", "shows the sessions that have ended"),
    "q15": Run("q15", "keeps partials; the day is shown when it has ended"),
    "q15_by_minute": Run("q15", "shows the day so far"),
    "q16": Run("q16", "keeps partials; the day is shown when it has ended"),
    "q16_by_minute": Run("q16", "shows the day so far of each channel"),
    "q17": Run("q17", "keeps partials; the day is shown when it has ended"),
    "q18": Run("q18", "shows each bid as the last one of its bidder and auction"),
}


def take_runs(
    names: Sequence[str], bids: Bids, given: argparse.Namespace, warehouse: Path, say: Callable[[str], None]
) -> dict[str, Result]:
    """Seconds and processor time of ``given.rounds`` runs of each pipeline, in turn, each over one more minute of ``bids``."""
    session()  # one that will live long; the first run would start one for a small batch
    minute, results = bids.rate * 60, {name: Result(f"{name}: windowmill") for name in names}
    for number in range(given.history):
        land(bids, number * minute, (number + 1) * minute, warehouse / "bids")
    for round_ in range(-1 - WARM_ROUNDS, given.rounds):
        if round_ >= -WARM_ROUNDS:  # the first takes the history
            begin = (given.history + round_ + WARM_ROUNDS) * minute
            land(bids, begin, begin + minute, warehouse / "bids")
        taken = []
        for name, result in results.items():
            seconds, cpu = keep_current(name, warehouse)
            taken.append(f"{name} {seconds:.2f} s, {cpu:.2f} s of processor time")
            if round_ >= 0:
                result.take(round_, seconds, cpu)
        say(f"  {'warm-up' if round_ < 0 else f'round {round_ + 1}'}: {'; '.join(taken)}")
    return results


def keep_current(name: str, warehouse: Path) -> tuple[float, float]:
    """Run a pipeline over whatever is new; seconds and processor time."""
    pipeline = load_pipeline(FOLDER / f"{name}.yaml", {"WAREHOUSE": str(warehouse)})

    def run() -> None:
        for done in loop.run(pipeline, quiet()):
            if name == "q5":
                windows = DeltaTable(str(warehouse / name)).to_pyarrow_dataset().to_table(filter=pc.field("batch") == done.plan.batch)
                with duckdb.connect() as connection:  # a Spark job for this SQL would cost more than the run
                    connection.register("windows", windows)
                    hot_items = connection.sql(QUERIES[name].sql.format(windows="windows")).to_arrow_table()
                write_deltalake(warehouse / "hot_items", hot_items, mode="append")

    _, seconds, cpu = timed(run)
    return seconds, cpu


def main(arguments: list[str] | None = None) -> Measurement:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=10_000, help="events a second of event time (default %(default)s)")
    parser.add_argument(
        "--history", type=int, default=1, help="minutes of events before the runs; `local` takes one at most (default %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=2, help="counted runs over one more minute (default %(default)s)")
    given = measurement.place(parser).parse_args(arguments)
    console, bids, taken = measurement.terminal(), Bids(given.rate), dict[str, dict[str, Result]]()
    folder = given.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    measured = Measurement(
        "nexmark_current", "Nexmark: one more minute, by `spark` and by `local`", f"{given.rate * 60 * BIDS // CYCLE:,} bids a minute"
    )
    for compute in ("spark", "local"):
        os.environ["WINDOWMILL_COMPUTE"] = compute
        with tempfile.TemporaryDirectory(dir=folder) as warehouse:
            taken[compute] = take_runs(list(RUNS), bids, given, Path(warehouse), console.print)
    for compute, results in taken.items():
        for name, result in results.items():
            result.label = f"{name}: {compute}"
    measured.take([result for results in taken.values() for result in results.values()])
    measured.figures = [
        Figure(
            f"{name}: spark / local, processor time",
            [ours / theirs for ours, theirs in zip(taken["spark"][name].cpu_seconds, taken["local"][name].cpu_seconds, strict=True)],
            most=2.5,
        )
        for name in RUNS
    ]
    measured.finish(console, given.results)
    return measured


if __name__ == "__main__":
    main()
