"""What a batch restores for one window end of week-long windows every minute: ``python -m benchmarks.nodes``.

A state of keys with an event in each minute of a week, every slice and node full, is written as runs and maintenance leave it. Then the
windows that end one minute later are computed from it: from nodes, and from slices alone. The latter is done once, and for some keys only,
which makes what it is compared by a lower bound.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from benchmarks import measurement
from benchmarks.measurement import Figure, Measurement
from benchmarks.pipelines import MINUTE_US, START_US, Growing
from benchmarks.processes import timed
from benchmarks.race import Result
from windowmill.checkpoints.delta_tables import files_of
from windowmill.checkpoints.state.compaction import SORTED_ROWS
from windowmill.checkpoints.state.readers import DeltaState
from windowmill.checkpoints.state.reading import ReadLimit, rows_of
from windowmill.checkpoints.state.tables import slice_schema
from windowmill.jobs.layouts import limits
from windowmill.jobs.layouts.slices import SliceMapReduce
from windowmill.windowing.columnar.added_columns import BATCH, LEVEL, SLICE
from windowmill.windowing.columnar.hashes import KeysOfShare, RowCheck, Share, with_checksums
from windowmill.windowing.columnar.results import result_schema
from windowmill.windowing.columnar.slices import NodeStage, SliceStage, WindowStage
from windowmill.windowing.grids import Grids, Nodes, Selection, Span
from windowmill.windowing.kernels.layout import Layout

WEEK = 10_080
AGGREGATES = {"n": {"count": "*"}, "whole": {"sum": "i"}, "top": {"max": "i"}}
TYPES = {"k": pa.int64(), "t": pa.timestamp("us", "UTC"), "i": pa.int64()}
NODES, SLICES = "from nodes", "from slices"


def main(arguments: list[str] | None = None) -> Measurement:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10_000, help="keys (default %(default)s)")
    parser.add_argument("--slice-keys", type=int, default=100, help="keys of which windows are made from slices (default %(default)s)")
    parser.add_argument("--repetitions", type=int, default=3, help="counted rounds, but of slices alone (default %(default)s)")
    given = measurement.place(parser).parse_args(arguments)
    console = measurement.terminal()
    workload = f"{given.keys:,} keys of {WEEK:,} slices each; windows of a week every minute, one window end"
    measured = Measurement("nodes", "rows and seconds to restore long windows", workload)
    console.print(workload)
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        state = FullState(Path(scratch).absolute(), given.keys, WEEK)
        for done in state.write():
            console.print(f"  written: {done:,} minutes of {WEEK:,}")
        files = DeltaTable(state.path).file_uris()
        size = sum(Path(file.removeprefix("file://")).stat().st_size for file in files)
        console.print(f"state: {state.slices:,} slices, {state.nodes:,} nodes; {len(files)} files, {size / (1 << 20):,.0f} MiB")
        some = KeysOfShare(Share(0, 1, max(1, given.keys // given.slice_keys)), ["k"])
        rows = {NODES: len(state.from_nodes()) / given.keys, SLICES: WEEK}
        searched = sum(map(rows_of(state.wanted(state.through)).may_hold, files_of(DeltaTable(state.path))))
        ways = {NODES: lambda: state.windows(state.from_nodes()), SLICES: lambda: state.windows(state.from_slices(some))}
        results = {label: Result(label) for label in ways}
        found = {}
        for round_ in range(-1, given.repetitions):
            for label, way in ways.items():
                if label == SLICES and round_ != 0:
                    continue
                found[label], seconds, cpu = timed(way)
                console.print(f"  {'warm-up' if round_ < 0 else f'round {round_ + 1}'}: {label}: {seconds:.2f} s")
                if round_ >= 0:
                    results[label].take(round_, seconds, cpu)
    measured.take(list(results.values()))
    measured.figures = [
        Figure("rows restored a key", [rows[NODES]], most=2 * math.log2(WEEK), unit="rows"),
        Figure("… for any window end of the next week at most", [max(state.rows_by_end())], most=2 * math.log2(WEEK), unit="rows"),
        Figure("rows from slices / from nodes", [rows[SLICES] / rows[NODES]]),
        Figure(
            f"{SLICES}, {len(found[SLICES]):,} keys / {NODES}, all keys: time",
            [s / t for s, t in zip(results[SLICES].seconds, results[NODES].seconds, strict=False)],
            at_least=len(found[SLICES]) < given.keys,
        ),
    ]
    same = some.rows(found[NODES]).equals(found[SLICES])
    measured.notes.append(
        f"{found[NODES].num_rows:,} windows from nodes, {found[SLICES].num_rows:,} from slices: "
        f"{'the same' if same else 'OTHER WINDOWS'}; the sum of all values in them is {pc.sum(found[NODES].column('whole')).as_py():,}"
    )
    measured.notes.append(
        f"state: {state.slices:,} slices and {state.nodes:,} nodes, {size / (1 << 20):,.0f} MiB in {len(files)} files; "
        f"nodes are looked up in {searched} of them, slices are read from all"
    )
    measured.finish(console, given.results)
    return measured


class FullState:
    """A state below ``folder``: an event of each key in every minute that the next window can hold, emitted through ``after``.

    The slice that begins at ``after`` is there. Windows have ``minutes`` and end every minute. ``nodes`` and ``slices`` are counted.
    """

    def __init__(self, folder: Path, keys: int, minutes: int, *, with_nodes: bool = True) -> None:
        window = {"name": "long", "type": "hopping", "size": f"{minutes} minutes", "hop": "1 minute"}
        pipeline = Growing(folder, [window], AGGREGATES, keys=keys, rows_per_minute=keys).pipeline
        self.keys, self.minutes, self.path = keys, minutes, str(folder / "state")
        self.grids, self.layout = Grids.of(pipeline), Layout.of(pipeline, TYPES)
        self.levels = Nodes.of(self.grids.grids, many=1) if with_nodes else None
        self._results = result_schema(pipeline, TYPES)
        self.schema = slice_schema({"k": TYPES["k"]}, self.layout, nodes=with_nodes)
        self.after = START_US + minutes * MINUTE_US
        # As many minutes as maintenance merges into a file.
        self._together = max(1, SORTED_ROWS // (keys * (2 if with_nodes else 1)))
        self.batches = -(-(minutes + 1) // self._together)
        self.slices = self.nodes = 0

    def stage(self, through: int, *, keep: bool = False) -> WindowStage:
        """The windows that end in (``after``, ``through``]; with ``keep`` also what the state gets."""
        slices = SliceStage(("k",), (), self.layout, self.grids.edges, self.batches, self.schema, RowCheck(self.path))
        keep_from = self.grids.first_slice_after(through) if keep else None
        nodes = NodeStage(self.levels, self.after, through, self.after, through) if keep and self.levels is not None else None
        return WindowStage(slices, self.grids.named, self.after, through, keep_from, self._results, nodes)

    def write(self) -> Iterator[int]:
        """Write it; gives the minutes written, file by file."""
        rng = np.random.default_rng(7)
        first = 0 if self.levels is None else self.levels.number(START_US)
        top = 0 if self.levels is None else self.levels.top
        # By level the sums and maxima of the last left child, which waits for the right one.
        left: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = {}
        waiting: list[list[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]] = [[] for _ in range(top + 1)]
        for minute in range(self.minutes + 1):
            sums = greatest = rng.integers(0, 1_000, self.keys)
            waiting[0].append((minute, sums, greatest))
            level, number = 0, first + minute
            # The last slice has begun, but windows were emitted only through its start.
            while level < top and minute < self.minutes and number >> level & 1 and level in left:
                sums, greatest = left[level][0] + sums, np.maximum(left[level][1], greatest)
                level += 1
                waiting[level].append((minute + 1 - (1 << level), sums, greatest))
            if not number >> level & 1:
                left[level] = sums, greatest
            if (minute + 1) % self._together == 0 or minute == self.minutes:
                parts = [self._rows(level, rows, minute // self._together) for level, rows in enumerate(waiting) if rows]
                write_deltalake(self.path, pa.concat_tables(parts), mode="append")
                self.slices += parts[0].num_rows
                self.nodes += sum(part.num_rows for part in parts[1:])
                waiting = [[] for _ in waiting]
                yield minute + 1

    def _rows(self, level: int, found: list[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]], batch: int) -> pa.Table:
        minutes, sums, greatest = zip(*sorted(found, key=lambda row: row[0]), strict=True)
        n = self.keys * len(found)
        atoms = {
            "rows": np.full(n, 1 << level),
            "count": np.full(n, 1 << level),
            "sum_int": np.concatenate(sums),
            "greatest": np.concatenate(greatest),
        }
        columns: dict[str, pa.Array] = {field.name: pa.array(atoms[self.layout.atoms[field.atom].kind]) for field in self.layout.fields}
        columns |= {"k": pa.array(np.tile(np.arange(self.keys), len(found)))}
        columns |= {
            SLICE: pa.array(START_US + np.repeat(np.array(minutes), self.keys) * MINUTE_US),
            LEVEL: pa.repeat(level, n),
            BATCH: pa.repeat(batch, n),
        }
        cells = [columns[f.name].cast(f.type) if f.name in columns else pa.nulls(n, f.type) for f in self.schema]
        return with_checksums(pa.table(cells, schema=self.schema))

    def restored(self, wanted: Span | Selection, limit: ReadLimit, only: KeysOfShare | None = None) -> pa.Table | None:
        """The wanted rows of the state, or those of some keys."""
        schema = self.stage(self.after).slices.stored_schema
        return DeltaState(self.path, RowCheck(self.path), only=only).partials(schema, wanted, before_batch=self.batches, limit=limit)

    @property
    def through(self) -> int:
        """The next window end."""
        return self.after + MINUTE_US

    def wanted(self, through: int) -> Selection:
        assert self.levels is not None
        wanted = self.levels.selection(self.after, through)
        assert wanted is not None
        return wanted

    def rows_by_end(self) -> list[int]:
        """Rows a key that the nodes and slices for each window end of the following span of a window are."""
        assert self.levels is not None
        found = []
        for end in range(self.after, self.after + self.minutes * MINUTE_US, MINUTE_US):
            wanted = self.levels.selection(end, end + MINUTE_US)
            assert wanted is not None
            slices = sum(self.levels.number(high - 1) + 1 - self.levels.number(low) for low, high in wanted.slices)
            found.append(slices + sum(len(starts) for _, starts in wanted.nodes))
        return found

    def from_nodes(self) -> pa.Table:
        """The nodes and slices for the next window end."""
        limit = limits.state_read(self.layout, limited=True)
        restored = self.restored(self.wanted(self.through), limit)
        if restored is None:
            raise SystemExit(f"{self.keys:,} keys are beyond what a run looks up in its own process; take fewer")
        return restored

    def from_slices(self, only: KeysOfShare) -> pa.Table:
        """The slices for the next window end, of some keys."""
        span, limit = Span(self.grids.first_slice_after(self.after), self.through), limits.state_read(None, limited=False)
        rows = self.restored(span, limit, only)
        assert rows is not None
        return rows.filter(pc.field(LEVEL) == 0)

    def remember(self, rows: pa.Table) -> None:
        """Append what a batch adds, as another attempt at it."""
        write_deltalake(self.path, rows, mode="append")

    def windows(self, restored: pa.Table) -> pa.Table:
        """The next windows, by key."""
        work = SliceMapReduce(self.stage(self.through), self.grids.grids, None)
        found = [table for part in work.reduce([], restored) for table in part.results]
        return pa.concat_tables(found).select(["k", "n", "whole", "top"]).sort_by("k").combine_chunks()


if __name__ == "__main__":
    main()
