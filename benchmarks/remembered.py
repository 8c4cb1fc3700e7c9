"""What ``dedup`` costs: runs over 1,000 rows while 10 million ids are remembered, beside the same pipeline without ``dedup``.

Also: bytes of an id on disk, and how many rows of 10 million different ids are left out. ``WINDOWMILL_COMPUTE`` says who computes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.pipelines import quiet
from benchmarks.processes import timed
from windowmill.checkpoints.places import Places
from windowmill.jobs.batch import loop
from windowmill.windowing.specfile import parse_pipeline

START_US, DAY_US = 1_700_000_000_000_000, 86_400_000_000
#: Rows of a landed version, rows of a run, and counted runs.
VERSION_ROWS, ROWS, ROUNDS = 500_000, 1_000, 9
#: Share of rows that repeat an id.
COPIES = 0.05


def pipeline_of(folder: Path, name: str, **fields: Any) -> Any:
    return parse_pipeline(
        {
            "pipeline": name,
            "source": {"path": str(folder / "source"), "options": {"maxFilesPerTrigger": 1}},
            "keys": ["k"],
            "time": {"column": "t", "disorder": "1 day", "lateness": "1 day"},
            "windows": [{"name": "hourly", "type": "tumbling", "size": "1 hour"}],
            "aggregates": {"n": {"count": "*"}, "mean": {"mean": "v"}},
            "sink": {"path": str(folder / name)},
            "compute": os.environ.get("WINDOWMILL_COMPUTE", "local"),
        }
        | fields
    )


def events(numbers: np.ndarray, step_us: int) -> pa.Table:
    """The events of these ``numbers``, each with an id of its own, that follow each other by ``step_us``."""
    ids = pa.array(np.char.add("event-", (numbers * 2_654_435_761 % (1 << 48)).astype("U15")))
    times = pa.array(START_US + numbers * step_us, pa.timestamp("us", "UTC"))
    return pa.table({"id": ids, "k": numbers % 100, "t": times, "v": numbers / 7})


def main() -> int:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", type=int, default=10_000_000, help="remembered ids (default %(default)s)")
    n_ids = parser.parse_args().ids
    rng, step_us = np.random.default_rng(5), DAY_US // n_ids
    with TemporaryDirectory(prefix="windowmill-dedup-") as name:
        folder = Path(name)
        for begin in range(0, n_ids, VERSION_ROWS):
            write_deltalake(folder / "source", events(np.arange(begin, min(n_ids, begin + VERSION_ROWS)), step_us), mode="append")
        pipelines = [pipeline_of(folder, "without"), pipeline_of(folder, "dedup", dedup={"by": ["id"]})]
        for pipeline in pipelines:
            begun = time.perf_counter()
            done = loop.run(pipeline, quiet())
            read, copies = (sum(getattr(each.outcome.counts, count) for each in done) for count in ("rows_read", "duplicates"))
            took = time.perf_counter() - begun
            print(
                f"{pipeline.pipeline}: {read:,} rows of different ids in {len(done)} batches, {took:.1f} s, {copies} left out", flush=True
            )
        files = pa.table(DeltaTable(Places.of(pipelines[1]).seen).get_add_actions(flatten=True)).select(["size_bytes", "num_records"])
        size, entries = (sum(files.column(each).to_pylist()) for each in files.column_names)
        print(f"on disk: {size / entries:.1f} bytes an id, {entries:,} ids in {files.num_rows} files", flush=True)
        figures: dict[str, list[tuple[float, float]]] = {pipeline.pipeline: [] for pipeline in pipelines}
        for number in range(ROUNDS + 2):
            numbers = n_ids + number * ROWS + np.arange(ROWS)
            copied = rng.random(ROWS) < COPIES
            numbers[copied] = rng.integers(0, n_ids, int(copied.sum()))
            write_deltalake(folder / "source", events(numbers, step_us), mode="append")
            for pipeline in pipelines if number % 2 else pipelines[::-1]:
                [done_now], seconds, used = timed(partial(loop.run, pipeline, quiet()))
                if number >= 2:
                    figures[pipeline.pipeline].append((seconds, used))
                if pipeline.dedup is not None and done_now.outcome.counts.duplicates != copied.sum():
                    raise SystemExit(f"{done_now.outcome.counts.duplicates} of {copied.sum()} duplicates found")
        for place, what in enumerate(("seconds", "seconds of the processor")):
            without, dedup = (statistics.median(each[place] for each in own) for own in figures.values())
            print(f"a run over {ROWS:,} rows: {dedup:.2f} {what} with dedup, {without:.2f} without, ratio {dedup / without:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
