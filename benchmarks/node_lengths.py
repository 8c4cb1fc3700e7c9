"""From which length of windows on nodes pay: ``python -m benchmarks.node_lengths``.

For windows of several lengths every minute, full slices of each key are written as maintenance leaves them, with nodes and without.
Then one batch is worked in this process, as a run does it but without Spark: restore, windows, append. Told are the rows read and
written, and the processor time of this process, least of the rounds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.table import Table

from benchmarks import measurement
from benchmarks.nodes import FullState
from benchmarks.pipelines import MINUTE_US
from windowmill.checkpoints.state.reading import ReadLimit
from windowmill.jobs.layouts.slices import SliceMapReduce
from windowmill.windowing.columnar.added_columns import FILE, REASON, ROW, TIME
from windowmill.windowing.grids import Span

LENGTHS = (60, 128, 256, 600, 1_440, 10_080)
#: Above all that is read here.
NO_LIMIT = 1 << 40


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=500, help="keys (default %(default)s)")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="minutes of the windows (default %(default)s)")
    parser.add_argument("--batches", type=int, nargs="+", default=(1, 14), help="minutes of a batch (default %(default)s)")
    parser.add_argument("--repetitions", type=int, default=5, help="rounds (default %(default)s)")
    parser.add_argument("--folder", type=Path, default=measurement.FOLDER, help="for the states (default %(default)s)")
    given = parser.parse_args(arguments)
    console = measurement.terminal()
    given.folder.mkdir(parents=True, exist_ok=True)
    table = Table(title=f"one batch of {given.keys:,} keys, an event a minute: without nodes / with nodes", title_justify="left")
    for column in ("slices", "minutes of the batch", "rows read a key", "rows written a key", "processor ms", "×"):
        table.add_column(column, justify="right")
    for minutes in given.lengths:
        with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
            states = [
                FullState(Path(scratch, name).absolute(), given.keys, minutes, with_nodes=name == "nodes") for name in ("plain", "nodes")
            ]
            for state in states:
                console.print(f"  {minutes:,} slices: {'with' if state.levels else 'without'} nodes, {sum(1 for _ in state.write())} files")
            for batch in given.batches:
                least = [float("inf")] * 2
                read, written = [0, 0], [0, 0]
                for _ in range(1 + given.repetitions):
                    for way, state in enumerate(states):
                        begun = time.process_time()
                        read[way], written[way] = work(state, batch)
                        least[way] = min(least[way], time.process_time() - begun)
                cells = [" / ".join(f"{n / given.keys:,.1f}" for n in rows) for rows in (read, written)]
                milliseconds = " / ".join(f"{1_000 * seconds:.0f}" for seconds in least)
                table.add_row(f"{minutes:,}", str(batch), *cells, milliseconds, f"{least[1] / least[0]:.2f}")
    console.print(table)


def work(state: FullState, minutes: int) -> tuple[int, int]:
    """One batch of ``minutes``; rows read and written. What it appends is not read by the next, which is the same batch."""
    through = state.after + minutes * MINUTE_US
    rows = state.keys * minutes
    t = state.after + MINUTE_US + np.repeat(np.arange(minutes), state.keys) * MINUTE_US
    columns = {"k": np.tile(np.arange(state.keys), minutes), "i": np.arange(rows) % 1_000, TIME: t, FILE: np.zeros(rows, int)}
    judged = pa.table(columns | {ROW: np.arange(rows), REASON: pa.nulls(rows, pa.string())})
    first = state.grids.first_slice_after(state.after)
    wanted = Span(first, through) if state.levels is None else state.wanted(through)
    restored = state.restored(wanted, ReadLimit(NO_LIMIT, NO_LIMIT, NO_LIMIT))
    assert restored is not None
    stage = state.stage(through, keep=True)
    work = SliceMapReduce(stage, state.grids.grids, None)
    lifted = list(work.map([work.judged(judged)], None))
    new = pa.concat_tables([part.state for part in work.reduce(lifted, restored) if part.state is not None])
    state.remember(new)
    return restored.num_rows, new.num_rows


if __name__ == "__main__":
    main()
