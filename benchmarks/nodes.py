"""What a batch restores for one window end of week-long windows every minute: ``python -m benchmarks.nodes``.

A state of keys with an event in each minute of a week, every slice and node full, is written as runs of half a day each would have left
it. Then the windows that end one minute later are computed from it on a warm Spark session, by turns from nodes and from slices alone.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import functions as F

from benchmarks import measurement
from benchmarks.measurement import Figure, Measurement
from benchmarks.pipelines import MINUTE_US, START_US, Growing
from benchmarks.race import Result
from benchmarks.spark_ways import session
from checkpoints.state import SliceTable, state_schema
from jobs import stages
from windowing.columnar.output import result_schema
from windowing.columnar.slices import BATCH, LEVEL, SLICE, SliceStage, WindowStage
from windowing.hopping import Grids
from windowing.kernels.layout import Layout
from windowing.nodes import Nodes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MINUTES, BATCH_MINUTES = 10_080, 720
WEEK = {"name": "week", "type": "hopping", "size": f"{MINUTES} minutes", "hop": "1 minute"}
AGGREGATES = {"n": {"count": "*"}, "whole": {"sum": "i"}, "top": {"max": "i"}}
TYPES = {"k": pa.int64(), "t": pa.timestamp("us", "UTC"), "i": pa.int64()}


def main(arguments: list[str] | None = None) -> Measurement:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10_000, help="keys (default %(default)s)")
    parser.add_argument("--repetitions", type=int, default=3, help="counted rounds (default %(default)s)")
    given = measurement.place(parser).parse_args(arguments)
    console = measurement.terminal()
    workload = f"{given.keys:,} keys of {MINUTES:,} slices each; windows of a week every minute, one window end"
    measured = Measurement("nodes", "rows and seconds to restore long windows", workload)
    console.print(workload)
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        state = WeekOfState(Path(scratch).absolute(), given.keys)
        slices, nodes = state.write()
        console.print(f"state: {slices:,} slices, {nodes:,} nodes")
        ways = {"from nodes": state.from_nodes, "from slices": state.from_slices}
        rows = {label: way().count() / given.keys for label, way in ways.items()}
        results = {label: Result(label) for label in ways}
        found = {}
        for round_ in range(-1, given.repetitions):
            for label, way in ways.items():
                begun = time.perf_counter()
                found[label] = state.windows(way())
                seconds = time.perf_counter() - begun
                console.print(f"  {'warm-up' if round_ < 0 else f'round {round_ + 1}'}: {label}: {seconds:.2f} s")
                if round_ >= 0:
                    results[label].seconds.append(seconds)
                    results[label].rounds.append(round_)
    measured.take(list(results.values()))
    measured.figures = [
        Figure("rows restored a key", [rows["from nodes"]], most=2 * math.log2(MINUTES), unit="rows"),
        Figure.faster(results["from nodes"], results["from slices"]),
    ]
    same = "same windows" if found["from nodes"] == found["from slices"] else "OTHER WINDOWS"
    measured.notes.append(f"from slices {rows['from slices']:,.0f} rows a key; {same}: {found['from nodes']}")
    measured.finish(console, given.results)
    return measured


class WeekOfState:
    """A state below ``folder`` from which the window that ends at ``through`` is next."""

    def __init__(self, folder: Path, keys: int) -> None:
        pipeline = Growing(folder, [WEEK], AGGREGATES, keys=keys, rows_per_minute=keys).pipeline
        self.keys, self.path = keys, str(folder / "state")
        self.grids, self.layout = Grids.of(pipeline), Layout.of(pipeline, TYPES)
        nodes = Nodes.of(self.grids.grids)
        assert nodes is not None
        self.nodes = nodes
        self.schema = state_schema({"k": TYPES["k"]}, self.layout, nodes=True)
        self.after = START_US + MINUTES * MINUTE_US
        self.through = self.after + MINUTE_US
        stage = SliceStage(("k",), (), self.layout, self.grids.edges, self._batches, self.schema)
        self.stage = WindowStage(stage, self.grids.named, self.after, self.through, None, result_schema(pipeline, TYPES))

    @property
    def _batches(self) -> int:
        return -(-(MINUTES + 1) // BATCH_MINUTES)

    def write(self) -> tuple[int, int]:
        """Write it; how many slices and nodes it has. The last slice has begun, but windows were emitted only through its start."""
        rng = np.random.default_rng(7)
        values = rng.integers(0, 1_000, (self.keys, MINUTES + 1), dtype=np.int32)
        first, slices, nodes = self.nodes.number(START_US), 0, 0
        for batch in range(self._batches):
            low, high = batch * BATCH_MINUTES, min((batch + 1) * BATCH_MINUTES, MINUTES + 1)
            parts = [self._rows(0, np.arange(low, high), values[:, low:high], values[:, low:high], batch)]
            slices += parts[0].num_rows
            for level in range(1, self.nodes.top + 1):
                length = 1 << level
                ends = np.arange(low, min(high, MINUTES + 1))
                begins = ends[(first + ends) % length == 0] - length
                begins = begins[begins >= 0]
                if len(begins):
                    within = np.stack([values[:, begin : begin + length] for begin in begins.tolist()], axis=1)
                    parts.append(self._rows(level, begins, within.sum(axis=2, dtype=np.int64), within.max(axis=2), batch))
                    nodes += parts[-1].num_rows
            write_deltalake(self.path, pa.concat_tables(parts).sort_by([("k", "ascending"), (SLICE, "ascending")]), mode="append")
        return slices, nodes

    def _rows(self, level: int, minutes: np.ndarray, sums: np.ndarray, greatest: np.ndarray, batch: int) -> pa.Table:
        n = self.keys * len(minutes)
        atoms = {"rows": np.full(n, 1 << level), "count": np.full(n, 1 << level), "sum_int": sums.ravel(), "greatest": greatest.ravel()}
        columns: dict[str, pa.Array] = {field.name: pa.array(atoms[self.layout.atoms[field.atom].kind]) for field in self.layout.fields}
        columns |= {"k": pa.array(np.repeat(np.arange(self.keys), len(minutes)))}
        columns |= {
            SLICE: pa.array(START_US + np.tile(minutes, self.keys) * MINUTE_US),
            LEVEL: pa.repeat(level, n),
            BATCH: pa.repeat(batch, n),
        }
        return pa.table(
            [columns[f.name].cast(f.type) if f.name in columns else pa.nulls(n, f.type) for f in self.schema], schema=self.schema
        )

    def from_nodes(self) -> DataFrame:
        wanted = self.nodes.selection(self.after, self.through)
        assert wanted is not None
        restored = SliceTable(session(), self.path, self.schema).restore_nodes(wanted, before_batch=self._batches)
        assert restored is not None
        return restored

    def from_slices(self) -> DataFrame:
        first = self.grids.first_slice_after(self.after)
        table = SliceTable(session(), self.path, self.schema)
        restored = table.restore(before_batch=self._batches, first_slice=first, last_slice=self.through)
        assert restored is not None
        return restored.where(F.col(LEVEL) == 0)

    def windows(self, restored: DataFrame) -> dict[str, int]:
        """The windows, summed up."""
        rows = stages.windows(stages.pack(restored, self.stage.slices), self.stage, 2)
        totals = {"windows": F.count("*"), "n": F.sum("n"), "whole": F.sum("whole"), "top": F.sum("top")}
        [found] = rows.agg(*(total.alias(name) for name, total in totals.items())).collect()
        return {name: int(found[name]) for name in totals}


if __name__ == "__main__":
    main()
