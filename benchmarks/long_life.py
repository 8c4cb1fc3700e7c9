"""What a long life costs: ``python -m benchmarks.long_life``.

Two pipelines with the same spec, one with 100 batches behind it and one with 100,000. A run that finds nothing new and ``status`` are
timed as whole processes, the two pipelines in turn; opening the ledger, planning, and a batch's two records in this process.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import pyarrow as pa
import yaml
from deltalake import DeltaTable, write_deltalake
from pydantic import TypeAdapter

from benchmarks import measurement
from benchmarks.measurement import Figure, Measurement
from benchmarks.race import Result, ratios
from windowmill.checkpoints.batches import Outcome, RunPlan
from windowmill.checkpoints.ledger import BATCH, CHANGES, OUTCOME, PLAN, TOTALS, Ledger, stored
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.records import FAN, FORMAT, LAST_LEVEL, DeltaRecords, LedgerRecord, packed, sealed
from windowmill.jobs.batch import planning
from windowmill.jobs.runnables import runnable_of
from windowmill.windowing.counts import Counts, Totals, WindowRows
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import load_pipeline

START, EVERY = datetime(2025, 1, 1, tzinfo=UTC), timedelta(minutes=5)
#: Columns of the source, so that a plan holds a schema of a few kilobytes.
COLUMNS = 40
#: Newest batches that are appended one by one, as runs do.
APPENDED = 50
#: Seconds, and seconds of processor time.
Taken = tuple[float, float]


class Life:
    """A pipeline in ``folder`` that has committed ``batches`` batches and has nothing new to read."""

    def __init__(self, folder: Path, batches: int) -> None:
        folder.mkdir(parents=True)
        self.spec = folder / "pipeline.yaml"
        source, sink = folder / "source", folder / "sink"
        columns: dict[str, pa.Array] = {f"column_{n}": pa.array([1.0]) for n in range(COLUMNS)}
        write_deltalake(source, pa.table({"t": pa.array([START], pa.timestamp("us", "UTC")), **columns}))
        write_deltalake(sink, pa.table({"batch": pa.array([0], pa.int64())}))
        spec = {
            "pipeline": "long_life",
            "source": {"path": str(source)},
            "sink": {"path": str(sink)},
            "time": {"column": "t"},
            "windows": [{"name": "w", "type": "hopping", "size": "1 hour", "hop": "5 minutes"}],
            "aggregates": {"n": {"count": "*"}, "mean": {"mean": "column_0"}},
        }
        self.spec.write_text(yaml.safe_dump(spec))
        self.pipeline: Pipeline = load_pipeline(self.spec)
        self.ledger = Places.of(self.pipeline).ledger
        self._table = DeltaTable(source)
        self._records = self._told()
        self._fill(batches)

    def _told(self) -> Iterator[LedgerRecord]:
        """Records without end, as runs would have written them."""
        totals, number = Totals(), 0
        meaning, schema, source = self.pipeline.meaning_hash(), self._table.schema().to_json(), str(self._table.metadata().id)
        while True:
            at = START + number * EVERY
            seen, before = (int(instant.timestamp()) * 1_000_000 for instant in (at, at - EVERY))
            plan = RunPlan(
                batch=number, attempt=f"{number:012x}", generation="bench", source_id=source, from_version=-1 if number == 0 else 0,
                to_version=0, now_us=seen, meaning=meaning, source_schema=schema,
                seen=before if number else None, emitted=before if number else None, windowmill="0", pipeline="long_life",
            )  # fmt: skip
            timings = dict.fromkeys(("start", "survey", "restore", "apply", "validate", "record", "publish"), 0.123)
            outcome = Outcome(
                seen, seen, "passed", Counts(rows_read=1_000, rows_applied=1_000, windows={"w": WindowRows(12, seen, seen)}), timings
            )
            totals = plan.totals_after(totals, outcome.published_counts)
            body = {PLAN: stored(plan), CHANGES: {}, OUTCOME: asdict(outcome), TOTALS: asdict(totals)}
            yield LedgerRecord(FORMAT, BATCH, number, plan.attempt, at, json.dumps(body))
            number += 1

    def _fill(self, batches: int) -> None:
        store, count = DeltaRecords(self.ledger), 0
        while batches - count - APPENDED >= FAN * FAN:
            records = list(islice(self._records, FAN * FAN))
            store.load()
            store.add_files([packed([sealed(record, count + n) for n, record in enumerate(records)], LAST_LEVEL)])
            count += len(records)
        store.load()
        for record in islice(self._records, batches - count):
            store.append(record)
            store.load()

    def append(self) -> Taken:
        """What one more batch's record takes."""
        ledger, record = Ledger.open(self.pipeline), next(self._records)
        body = json.loads(record.body)
        del body[PLAN]["action"]
        plan, outcome = RunPlan(**body[PLAN]), TypeAdapter(Outcome).validate_python(body[OUTCOME])
        begun = time.perf_counter(), time.process_time()
        ledger.record(plan, outcome, {}, record.at)
        return time.perf_counter() - begun[0], time.process_time() - begun[1]


def command(life: Life, name: str) -> Taken:
    """What the command takes as a process of its own."""
    begun, used = time.perf_counter(), used_by_children()
    subprocess.run([sys.executable, "-m", "windowmill.jobs.cli", name, str(life.spec), "--json"], check=True, capture_output=True)
    return time.perf_counter() - begun, used_by_children() - used


def plan(life: Life) -> Taken:
    """What it takes to find that there is nothing to do, all modules being loaded."""
    runnable = runnable_of(life.pipeline)
    begun = time.perf_counter(), time.process_time()
    if planning.next_run(runnable, Ledger.open(life.pipeline)) is not None:
        raise AssertionError("there was something to do")
    return time.perf_counter() - begun[0], time.process_time() - begun[1]


def read_all(life: Life) -> Taken:
    """What reading and checking every record takes, as a backfill of a vouched pipeline does."""
    begun = time.perf_counter(), time.process_time()
    Ledger.open(life.pipeline).batches()
    return time.perf_counter() - begun[0], time.process_time() - begun[1]


def used_by_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(arguments: Sequence[str] | None = None) -> Measurement:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=100_000, help="batches of the long life (default %(default)s)")
    parser.add_argument("--repetitions", type=int, default=9, help="counted rounds (default %(default)s)")
    given = measurement.place(parser).parse_args(arguments)
    console = measurement.terminal()
    measured = Measurement("long_life", "runs and status after a long life", f"100 batches, and {given.batches:,} batches")
    given.folder.mkdir(parents=True, exist_ok=True)
    ways: dict[str, Callable[[Life], Taken]] = {
        "a run with nothing new": lambda life: command(life, "run"),
        "status": lambda life: command(life, "status"),
        "planning": plan,
        "a batch's records": Life.append,
    }
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        lives = {}
        for name, batches in (("short", 100), ("long", given.batches)):
            console.print(f"{name} life: {batches:,} batches")
            lives[name] = Life(Path(scratch).absolute() / name, batches)
        for way, take in ways.items():
            results = {name: Result(f"{way}, {name} life") for name in lives}
            # Records of a ledger are merged after every 16 batches: many rounds take their share of it.
            for round_ in range(-1, given.repetitions * (5 if take is Life.append else 1)):
                for name, life in lives.items():
                    seconds, used = take(life)
                    if round_ >= 0:
                        results[name].take(round_, seconds, round(used, 4))
            measured.take(list(results.values()))
            measured.figures.append(Figure(f"{way}: long life / short", ratios(results["short"], results["long"]), most=1.3))
            told = {
                name: [
                    f"{1_000 * of(taken):.0f} ms"
                    for taken in (result.seconds, result.cpu_seconds)
                    for of in (statistics.median, statistics.mean)
                ]
                for name, result in results.items()
            }
            for name, (median, mean, cpu_median, cpu_mean) in told.items():
                console.print(f"  {way}, {name} life: median {median}, mean {mean}; of processor time median {cpu_median}, mean {cpu_mean}")
        seconds, _ = read_all(lives["long"])
        measured.notes.append(f"reading and checking all records of the long life: {seconds:.1f} s")
        log = sum(file.stat().st_size for file in Path(lives["long"].ledger).rglob("*") if file.is_file())
        measured.notes.append(f"the long life's ledger: {log / 1e6:.1f} MB in {len(DeltaTable(lives['long'].ledger).file_uris())} files")
    measured.finish(console, given.results)
    return measured


if __name__ == "__main__":
    main()
