"""Which files a verification reads, and which windows were closed to the rows of each, by the statistics of a Delta table. No JVM."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.spark.harness import MINUTE, SCHEMA, Bench, cut, events
from windowmill.checkpoints.batches import effective_batches
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.sources.base import open_source
from windowmill.jobs.verify.source_rows import SourceFiles

VERSIONS = 12


pytestmark = pytest.mark.local


def landed(folder: Path, rows: list[dict[str, Any]]) -> tuple[Bench, list[list[int]]]:
    """A pipeline that has read ``rows`` in several versions, and the event times of each file."""
    bench, parts = Bench(folder), cut(rows, 5, VERSIONS)
    for part in parts:
        bench.land(part)
    bench.run()
    return bench, [[row["t"] for row in part if row["t"] is not None] for part in parts]


def files_of(bench: Bench) -> SourceFiles:
    plans = [batch.plan for batch in effective_batches(Ledger.open(bench.pipeline).batches())]
    return SourceFiles.of(bench.pipeline, open_source(bench.pipeline), plans)


def in_order(found: SourceFiles, times: list[list[int]]) -> list[list[int]]:
    """``times`` in the order of the files."""
    return [times[commit] for commit in found.commits if commit is not None]


def windows_over(times: list[list[int]], seed: int, count: int) -> list[tuple[int, int]]:
    rng, every = random.Random(seed), sorted(time for of_file in times for time in of_file)
    begins = [rng.choice(every) - rng.randint(0, 3 * MINUTE) for _ in range(count)]
    return [(begin, begin + rng.choice([1, 3 * MINUTE, 47 * MINUTE])) for begin in begins]


def test_statistics_tell_what_was_closed_to_the_rows_in_question(tmp_path):
    bench, times = landed(tmp_path, events(41, 1_500))
    found = files_of(bench)
    times = in_order(found, times)
    behind = bench.pipeline.time.disorder.elapsed() + bench.pipeline.time.lateness.elapsed()
    told = counted = 0
    for window in windows_over(times, 1, 200):
        closed = found.closed_by_statistics([window], every_row_counts=True)
        cautious = found.closed_by_statistics([window], every_row_counts=False)
        assert cautious is None or set(cautious) == {None}
        told += closed is not None
        for n, of_file in enumerate(times):
            earlier = [max(other) for other, commit in zip(times, found.commits, strict=True) if commit < found.commits[n]]
            is_closed = bool(earlier) and max(earlier) - behind >= window[1]
            if closed is not None and any(window[0] <= time < window[1] for time in of_file):
                assert (closed[n] is not None and closed[n] >= window[1]) == is_closed
                counted += is_closed
                assert cautious is None or not is_closed
    assert told > 190, "an instant in the log lacks its microseconds, which seldom matters"
    assert counted > 0


def test_only_files_with_rows_in_a_window_are_read(tmp_path):
    bench, times = landed(tmp_path, events(42, 1_500))
    found = files_of(bench)
    times = in_order(found, times)
    read = 0
    for windows in (windows_over(times, seed, 2) for seed in range(50)):
        chosen = found.overlapping(windows)
        read += len(chosen)
        needed = [n for n, of_file in enumerate(times) if any(begin <= time < end for time in of_file for begin, end in windows)]
        assert set(needed) <= set(chosen)
    assert read < 50 * VERSIONS / 2
    assert found.overlapping([]) == []


def test_files_without_statistics_are_read_and_tell_nothing(tmp_path):
    bench, times = landed(tmp_path, [row | {"v": 1.0} for row in events(43, 300)])
    bench.append(pa.Table.from_pylist([{"k": "a", "t": None}], schema=SCHEMA))
    bench.run()
    found = files_of(bench)
    assert len(found.overlapping([(max(map(max, times)) + MINUTE, max(map(max, times)) + 2 * MINUTE)])) == 1
    assert found.closed_by_statistics([], every_row_counts=True) is None


def test_files_that_no_batch_has_read_and_rewritten_ones_are_told(tmp_path):
    bench, _ = landed(tmp_path, events(44, 300))
    bench.land(events(45, 10))
    found = files_of(bench)
    assert (len(found.present), len(found.files), found.order_known) == (VERSIONS + 1, VERSIONS, True)
    bench.run()
    DeltaTable(bench.source).optimize.compact()
    found = files_of(bench)
    assert (len(found.files), found.order_known) == (1, False)
    assert found.closed_by_statistics([(0, 1)], every_row_counts=True) == [None]
