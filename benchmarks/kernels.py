"""What the kernels take per tuple, for windows of n tuples that fire at every tuple: ``make bench-kernels``.

Times the kernels alone, partials of a batch in and partials of its windows out: two stacks over a count window, FlatFAT where the oldest
leaves and where any tuple leaves, and recomputation, which is the two stacks' kernel told that no two windows overlap. None deducts.
Then the whole engine, from Arrow columns to result rows. With ``--cpp`` a built ``benchmark_driver`` of IBM/sliding-window-aggregators is
run in turn with them. Every figure is the best of some rounds, with the median, in processor time, which a busy machine changes less than
seconds.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import platform
import resource
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rich.console import Console
from rich.progress import track
from rich.table import Table

from windowmill.jobs.commands import try_command
from windowmill.jobs.commands.try_command import KernelEngine
from windowmill.windowing.columnar.objects import StoredObjects
from windowmill.windowing.columnar.position_batch import PartialColumns, combine_totals
from windowmill.windowing.kernels.flatfat import WHOLE, Items, Stretches, window_changes
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.lift import lift
from windowmill.windowing.kernels.two_stacks import fifo_ranges
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

Ints = npt.NDArray[np.int64]

AGGREGATES = {"max": {"max": "v"}, "stddev": {"stddev_samp": "v"}}
SIZES = (4, 8, 16, 64, 256, 1024, 4096, 16_384, 65_536)
#: Keys beside one, and the longest of their windows: beyond, live tuples alone would fill the memory.
MANY, LONGEST_OF_MANY = 10_000, 256
#: Windows at which the whole engine is timed, and C++.
COMPARED = (16, 1024, 65_536)
#: Combines that a run of recomputation may take.
MAX_RECOMPUTED = 4_000_000
#: Of the C++ library: the window, and ours that does the same.
CPP = {"two_stacks": "two stacks", "daba": "two stacks", "reactive": "FlatFAT, oldest leaves", "recalc": "recompute"}
CPP_ITERATIONS = {"two_stacks": 2_000_000, "daba": 2_000_000, "reactive": 300_000, "recalc": 30_000}


@dataclass(frozen=True)
class Batch:
    """Keys whose windows hold n tuples, and the next tuples of each: a window a new tuple."""

    n: int
    keys: int
    new: int

    @property
    def starts(self) -> Ints:
        """Where each key's tuples begin."""
        return np.arange(self.keys + 1) * (self.n + self.new)

    @property
    def hi(self) -> Ints:
        return (self.starts[:-1, None] + self.n + 1 + np.arange(self.new)).reshape(-1)

    @property
    def offsets(self) -> Ints:
        return np.arange(self.keys + 1) * self.new

    @property
    def tuples(self) -> int:
        return self.keys * self.new


def pipeline(evict: dict[str, Any]) -> Pipeline:
    """Windows that fire at every tuple."""
    return parse_pipeline(
        {
            "pipeline": "bench",
            "time": {"column": "t", "unit": "none"},
            "windows": [{"name": "w", "type": "sliding", "evict": evict, "trigger": {"count": 1}}],
            "aggregates": AGGREGATES,
        }
    )


def arenas(aggregate: str, rows: int) -> tuple[Layout, Ints, npt.NDArray[np.float64]]:
    """Layout and lifted partials of ``rows`` tuples."""
    table = pa.table({"v": np.random.default_rng(7).random(rows)})
    layout = Layout.over_rows({aggregate: pipeline({"count": 1}).aggregates[aggregate]}, {"v": pa.float64()}, "bench")
    return layout, *lift(layout, table)


def two_stacks(batch: Batch, aggregate: str, *, alone: bool = False) -> Callable[[], object]:
    given, out = _memory(aggregate, batch)
    hi, sequence = batch.hi, np.arange(batch.starts[-1])
    offsets = np.arange(batch.tuples + 1) if alone else batch.offsets
    middles = np.full(len(offsets) - 1, -1)
    return lambda: fifo_ranges(*given, sequence, offsets, hi - batch.n, hi, middles, *out)


def recompute(batch: Batch, aggregate: str) -> Callable[[], object]:
    return two_stacks(batch, aggregate, alone=True)


def flatfat(batch: Batch, aggregate: str, *, oldest: bool) -> Callable[[], object]:
    layout, ints, floats = arenas(aggregate, int(batch.starts[-1]))
    objects, keys = StoredObjects(()), np.arange(batch.keys)
    partials = PartialColumns(ints, floats, objects.none(len(ints)))
    leaves = np.arange(batch.new) if oldest else _any_leave(batch)
    removed = (batch.starts[:-1, None] + leaves).reshape(-1)
    items = Items(batch.starts, np.tile(np.arange(batch.n + batch.new), batch.keys))
    # Behind the windows of each key comes what it holds at the end.
    of_totals, none = np.repeat(keys, batch.new + 1), np.zeros(len(ints), np.bool_)
    fixed = batch.starts, np.repeat(keys, batch.new), batch.hi, np.arange(1, batch.tuples + 1), removed, none
    whole = np.zeros(len(of_totals), np.int64), np.full(len(of_totals), WHOLE)
    return lambda: combine_totals(layout, objects, partials, items, Stretches(of_totals, *whole, *window_changes(*fixed)))


def _any_leave(batch: Batch) -> Ints:
    """For each new tuple one of the window that leaves, wherever it stands."""
    inside, leaves = np.arange(batch.n), np.empty(batch.new, np.int64)
    for step, rank in enumerate(np.random.default_rng(7).integers(0, batch.n, batch.new).tolist()):
        leaves[step], inside[rank] = inside[rank], batch.n + step
    return leaves


def _memory(aggregate: str, batch: Batch) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    layout, ints, floats = arenas(aggregate, int(batch.starts[-1]))
    out = np.empty((batch.tuples, ints.shape[1]), np.int64), np.empty((batch.tuples, floats.shape[1]))
    return (layout.program(), ints, floats), out


KERNELS: dict[str, Callable[[Batch, str], Callable[[], object]]] = {
    "two stacks": two_stacks,
    "FlatFAT, oldest leaves": lambda batch, aggregate: flatfat(batch, aggregate, oldest=True),
    "FlatFAT, any leaves": lambda batch, aggregate: flatfat(batch, aggregate, oldest=False),
    "recompute": recompute,
}


def batches(tuples: int) -> Iterator[tuple[str, Batch]]:
    """What is timed: kernels by name, and their batch."""
    for n, keys, name in itertools.product(SIZES, (1, MANY), KERNELS):
        new = max(1, (min(tuples, MAX_RECOMPUTED // n) if name == "recompute" else tuples) // keys)
        if keys == 1 or (n <= LONGEST_OF_MANY and name != "recompute"):
            yield name, Batch(n, keys, new)


def engine(n: int, delta: bool, tuples: int) -> float:
    """Processor seconds of the whole engine over one batch of one key: order, policies, both aggregates, result rows."""
    rng, t = np.random.default_rng(7), np.arange(tuples)
    rows = pa.table({"t": t, "v": rng.random(tuples), "at": t + rng.integers(0, max(1, n // 8), tuples)})
    begun = time.process_time()
    running = KernelEngine(pipeline({"delta": {"column": "at", "by": n}} if delta else {"count": n}), math.inf)
    running.feed(try_command.TryBatch(rows, {}, t))
    running.finish(final=True)
    return time.process_time() - begun


def cpp(binary: Path, window: str, aggregate: str, n: int) -> float:
    """Nanoseconds a tuple, those that fill the window among them."""
    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([binary, window, aggregate, str(n), str(n + CPP_ITERATIONS[window])], capture_output=True, check=True)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime) / (n + CPP_ITERATIONS[window]) * 1e9


Taken = dict[tuple[str, str, int, int], list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpp", type=Path, help="benchmark_driver of IBM/sliding-window-aggregators, built elsewhere")
    parser.add_argument("--tuples", type=int, default=100_000, help="new tuples a run (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (default %(default)s)")
    options = parser.parse_args()
    console = Console()
    if options.cpp is None:
        console.print("no --cpp: the C++ windows are not run")
    taken: Taken = defaultdict(list)
    for name, batch in track(list(batches(options.tuples)), "kernels", console=console):
        for aggregate in AGGREGATES:
            run = KERNELS[name](batch, aggregate)
            run()  # compiles, or loads what is compiled
            for _ in range(options.rounds):
                begun = time.process_time()
                run()
                taken[name, aggregate, batch.n, batch.keys].append((time.process_time() - begun) / batch.tuples * 1e9)
            if options.cpp is not None and batch.keys == 1 and batch.n in COMPARED and (batch.n < COMPARED[-1] or name != "recompute"):
                for window in (window for window, ours in CPP.items() if ours == name):
                    taken[window, aggregate, batch.n, 1] += [cpp(options.cpp, window, aggregate, batch.n) for _ in range(options.rounds)]
    for n, delta, _ in track(list(itertools.product(COMPARED, (False, True), range(options.rounds))), "engine", console=console):
        taken["delta" if delta else "count", "both", n, 1].append(engine(n, delta, options.tuples) / options.tuples * 1e9)
    console.print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; ns a tuple, best (median)"
    )
    for keys in (1, MANY):
        _by_size(console, taken, keys)
    _engines(console, taken)
    _break_even(console, taken)
    if options.cpp is not None:
        _beside_cpp(console, taken)


def _cell(times: list[float] | None) -> str:
    return f"{min(times):.0f} ({statistics.median(times):.0f})" if times else ""


def _by_size(console: Console, taken: Taken, keys: int) -> None:
    for aggregate in AGGREGATES:
        names = [name for name in KERNELS if (name, aggregate, SIZES[0], keys) in taken]
        table = Table("n", *names, title=f"{aggregate}, {keys:,} key{'s' * (keys > 1)}", title_justify="left")
        for n in SIZES:
            cells = [_cell(taken.get((name, aggregate, n, keys))) for name in names]
            if any(cells):
                table.add_row(f"{n:,}", *cells)
        console.print(table)


def _engines(console: Console, taken: Taken) -> None:
    table = Table("n", "evict by count", "evict by delta", title="whole engine, max and stddev, 1 key", title_justify="left")
    for n in sorted({n for name, _, n, _ in taken if name == "delta"}):
        table.add_row(f"{n:,}", *(_cell(taken[how, "both", n, 1]) for how in ("count", "delta")))
    console.print(table)


def _break_even(console: Console, taken: Taken) -> None:
    for (name, _), aggregate in itertools.product(list(KERNELS.items())[:-1], AGGREGATES):
        ratios = {n: min(taken["recompute", aggregate, n, 1]) / min(taken[name, aggregate, n, 1]) for n in SIZES}
        faster = next((n for n, ratio in ratios.items() if ratio > 1), "never")
        times = ", ".join(f"{ratio:.3g} at {n:,}" for n, ratio in ratios.items())
        console.print(f"{name}, {aggregate}: faster than recompute from n = {faster}; recompute / it: {times}")


def _beside_cpp(console: Console, taken: Taken) -> None:
    table = Table("C++", "n", "aggregate", "ns", "kernel", "ns", "kernel / C++", title="beside C++", title_justify="left")
    for (window, ours), n, aggregate in itertools.product(CPP.items(), SIZES, AGGREGATES):
        theirs, mine = taken.get((window, aggregate, n, 1)), taken.get((ours, aggregate, n, 1))
        if theirs and mine:
            table.add_row(window, f"{n:,}", aggregate, _cell(theirs), ours, _cell(mine), f"{min(mine) / min(theirs):.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
