"""Keeping windows current beside Spark's own ways: ``python -m benchmarks.keeping_current``.

Each kind of window is a pipeline and a rival that take the same batches in turn on one warm session, after the same history. Rivals are
Structured Streaming with ``AvailableNow`` (sessions; the last tuples of a key by ``transformWithState``) and Spark recomputing the windows
that the run completed (days by a calendar, p95). Runs restore, validate, publish, and remember; rivals write the rows to Delta.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import functions as F

from benchmarks import measurement
from benchmarks.measurement import Figure, Measurement
from benchmarks.pipelines import WARM_ROUNDS, Growing
from benchmarks.processes import timed
from benchmarks.race import Result
from benchmarks.rivals import RIVALS, Rival
from benchmarks.rows import compare
from benchmarks.spark_ways import session


def main(arguments: list[str] | None = None) -> Measurement:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--days", type=int, default=14, help="days of history (default %(default)s; 31 at least where windows are that long)"
    )
    parser.add_argument("--rows-per-minute", type=int, default=250, help="events a minute (default %(default)s)")
    parser.add_argument("--keys", type=int, default=100, help="keys (default %(default)s)")
    parser.add_argument("--repetitions", type=int, default=5, help="counted runs of each (default %(default)s)")
    parser.add_argument("--only", default="", help="rivals whose label holds this text")
    given = measurement.place(parser).parse_args(arguments)
    console = measurement.terminal()
    workload = f"{given.rows_per_minute} events of {given.keys} keys a minute, {given.days} days of history"
    measured = Measurement("keeping_current", "keeping windows current", workload)
    given.folder.mkdir(parents=True, exist_ok=True)
    session()  # one that will live long; the first run would start one for a small batch
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        for number, rival in enumerate(each for each in RIVALS if given.only in each.label):
            _compete(rival, Path(scratch).absolute() / f"kind_{number}", given, measured, console.print)
    measured.finish(console, given.results)
    return measured


def _compete(kind: type[Rival], folder: Path, given: argparse.Namespace, measured: Measurement, say: Callable[[str], None]) -> None:
    """Run the pipeline and its rival of one kind in turn, and take the results."""
    pipeline = Growing(folder, [kind.window], kind.aggregates, keys=given.keys, rows_per_minute=given.rows_per_minute)
    rival = kind(pipeline)
    say(f"{kind.label}: {given.days * 1_440 * given.rows_per_minute:,} rows of history")
    pipeline.land_history(given.days * 1_440 * given.rows_per_minute)
    rival.take(None)
    ours, theirs = Result(f"windowmill, {kind.label.partition(':')[0]}"), Result(kind.label)
    through: list[int] = []
    for round_ in range(-WARM_ROUNDS, given.repetitions):
        pipeline.land(kind.minutes * given.rows_per_minute)
        (_, done, _), seconds, cpu = timed(pipeline.run)
        assert done.outcome.emitted is not None
        through.append(done.outcome.emitted)
        _, their_seconds, their_cpu = timed(partial(rival.take, done))
        say(f"  {'warm-up' if round_ < 0 else f'round {round_ + 1}'}: windowmill {seconds:.2f} s, rival {their_seconds:.2f} s")
        if round_ >= 0:
            ours.take(round_, seconds, cpu)
            theirs.take(round_, their_seconds, their_cpu)
    measured.take([ours, theirs])
    measured.figures.append(Figure.faster(ours, theirs, least=kind.least))
    # The last run may have shown what its rival shows a run later.
    measured.notes.append(f"{kind.label}: {_agreement(rival, through[0], through[-2])}")


def _agreement(rival: Rival, after: int, through: int) -> str:
    """Compare the rows of the windows that end in (``after``, ``through``]."""
    ours = session().read.format("delta").load(rival.pipeline.sink).withColumn("window_end", F.unix_micros("window_end"))
    columns = ("k", "window_end", "n", "top", *rival.compared)
    paths = []
    for name, rows in (("ours", ours), ("theirs", rival.rows())):
        paths.append(rival.pipeline.folder / f"rows of {name}")
        within = rows.where((F.col("window_end") > after) & (F.col("window_end") <= through))
        within.select(*columns).write.parquet(str(paths[-1]))
    found = compare(*paths, key=("k", "window_end"), exact=("n", "top"), floats=rival.compared)
    return f"{'same rows' if found.same else 'OTHER ROWS'}: {found.describe()}"


if __name__ == "__main__":
    main()
