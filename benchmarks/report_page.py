"""How large a report is, and how long a browser takes to open it: ``python -m benchmarks.report_page``.

Reports on the results of 228 keys, and on 1,000,000 result rows of 1,000 keys, each of two windows and two aggregates. Chromium opens them
from the disk; a page is open once its first charts are drawn.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake
from playwright.sync_api import Browser, sync_playwright

from benchmarks import measurement
from benchmarks.measurement import Figure, Measurement
from benchmarks.race import Result
from windowmill.jobs.report import write_report
from windowmill.windowing.axis import to_us
from windowmill.windowing.spec import Pipeline

HOUR_US = 3_600_000_000
END_US = to_us(datetime(2026, 3, 1, tzinfo=UTC))
WINDOWS = ("hourly", "day")


@dataclass(frozen=True)
class Workload:
    """A number of keys and of result rows; a report on them is to have at most ``most_mb``."""

    keys: int
    rows: int
    most_mb: float

    @property
    def label(self) -> str:
        return f"{self.rows:,} rows of {self.keys:,} keys"


WORKLOADS = (Workload(228, 228 * 2 * 700, 2), Workload(1_000, 1_000_000, 5))


def published(folder: Path, key: np.ndarray, step: np.ndarray, flights: np.ndarray, delay: np.ndarray, **fields: object) -> Pipeline:
    """A pipeline with ``fields`` of its spec whose sink has a row for each of these, in each window; the last steps end at :data:`END_US`.

    Parameters
    ----------
    key, step
        Numbers of the keys, and of the hours of each of them, from 0 on.
    """
    spec = {
        "pipeline": "delays",
        "keys": ["origin"],
        "time": {"column": "departed_at"},
        "windows": [
            {"name": "hourly", "type": "tumbling", "size": "1 hour"},
            {"name": "day", "type": "hopping", "size": "1 day", "hop": "1 hour"},
        ],
        "aggregates": {"flights": {"count": "*"}, "mean_delay": {"mean": "delay"}},
        "sink": {"path": str(folder / "delays")},
    }
    ends = pa.array(END_US - (step.max() - step) * HOUR_US, pa.timestamp("us", "UTC"))
    columns = {
        "origin": pa.array([f"K{k:03}" for k in key]),
        "window_start": ends,
        "window_end": ends,
        "flights": flights,
        "mean_delay": delay,
    }
    columns |= {"trigger": pa.nulls(len(key), pa.int64()), "revision": pa.array(np.zeros(len(key), np.int32))}
    for window in WINDOWS:
        rows = columns | {"window": [window] * len(key), "batch": np.zeros(len(key), np.int64)}
        write_deltalake(folder / "delays", pa.table(rows), mode="append")
    return Pipeline.model_validate(spec | fields)


def _published(folder: Path, workload: Workload) -> Pipeline:
    """The rows of the workload: delays that wander, and flights by the hour of the day."""
    random, n = np.random.default_rng(7), workload.rows // (len(WINDOWS) * workload.keys)
    key, hour = np.divmod(np.arange(workload.keys * n), n)
    delay = np.cumsum(random.normal(0, 2, (workload.keys, n)), axis=1).ravel()
    flights = random.poisson(5 + (workload.keys - key) / 10 * (1 + np.sin(hour / 24 * 2 * np.pi)))
    return published(folder, key, hour, flights, delay)


def opened(browser: Browser, page: Path) -> float:
    """The seconds that the browser takes to open the page, in a tab of its own."""
    tab = browser.new_page(viewport={"width": 1024, "height": 900})
    begun = time.perf_counter()
    tab.goto(page.as_uri())
    tab.wait_for_selector(".overview canvas")
    taken = time.perf_counter() - begun
    tab.close()
    return taken


def main(arguments: Sequence[str] | None = None) -> Measurement:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=9, help="counted rounds (default %(default)s)")
    given = measurement.place(parser).parse_args(arguments)
    console = measurement.terminal()
    measured = Measurement("report_page", "the report", " and ".join(workload.label for workload in WORKLOADS))
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch, sync_playwright() as playwright:
        # The sandbox needs rights that containers often lack; the only pages opened are our own.
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for number, workload in enumerate(WORKLOADS):
            pipeline = _published(Path(scratch).absolute() / str(number), workload)
            begun, used = time.perf_counter(), time.process_time()
            page = Path(write_report(pipeline))
            written = Result(f"{workload.label}: writing the page")
            written.take(0, time.perf_counter() - begun, round(time.process_time() - used, 4))
            loads = [opened(browser, page) for _ in range(given.repetitions + 1)][1:]
            measured.take([written])
            size = Figure(f"{workload.label}: size", [page.stat().st_size / 1e6], most=workload.most_mb, unit="MB")
            measured.figures += [size, Figure(f"{workload.label}: opened", loads, most=2, unit="s")]
        measured.notes.append(f"opened by Chromium {browser.version}, until the first charts are drawn")
        browser.close()
    measured.finish(console, given.results)
    return measured


if __name__ == "__main__":
    main()
