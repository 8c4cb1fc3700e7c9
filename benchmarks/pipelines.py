"""Real pipelines over generated events: a Delta source that grows, and runs on the warm session of this process."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from rich.console import Console

from benchmarks.processes import timed
from benchmarks.race import Result
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.state.reading import rows_of
from windowmill.jobs.batch import loop
from windowmill.jobs.batch.progress import CommittedBatch, Progress
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.windowing.columnar.added_columns import BATCH, SLICE
from windowmill.windowing.grids import Grids, Nodes
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

MINUTE_US = 60_000_000
START_US = 1_700_000_040_000_000
#: Rounds that are not counted.
WARM_ROUNDS = 2
#: Allowed lateness of a pipeline with late rows.
LATENESS_MINUTES = 120
#: Most rows of one landed version; a history lands in many, as it would have.
VERSION_ROWS = 500_000


class Growing:
    """A pipeline below ``folder`` over events (k, t, v, code, level) that follow each other evenly: v uniform in [0, 1), 20 codes.

    A key's level rises by about one an event, and varies by ``spread``.

    The share ``late`` of them comes up to ``LATENESS_MINUTES`` late, and brings revisions. They last up to ``lasting`` minutes, if given.
    """

    def __init__(
        self,
        folder: Path,
        windows: Sequence[dict[str, Any]],
        aggregates: dict[str, Any],
        *,
        keys: int,
        rows_per_minute: int,
        late: float = 0.0,
        spread: float = 0.0,
        lasting: int = 0,
        disorder: str = "1 minute",
    ) -> None:
        self.folder, self.rng, self.rows = folder, np.random.default_rng(7), 0
        self.keys, self.rows_per_minute, self.late, self.spread = keys, rows_per_minute, late, spread
        self.levels, self.lasting, self.lengths = np.random.default_rng(8), lasting, np.random.default_rng(9)
        time = {"column": "t", "disorder": disorder} | ({"end": "e"} if lasting else {})
        self.pipeline: Pipeline = parse_pipeline(
            {
                "pipeline": folder.name,
                "source": {"path": self.source},
                "keys": ["k"],
                "time": time | {"lateness": f"{LATENESS_MINUTES} minutes"} if late else time,
                "emit": "revise" if late else "final",
                "windows": list(windows),
                "aggregates": aggregates,
                "sink": {"path": self.sink},
            }
        )

    @property
    def source(self) -> str:
        return str(self.folder / "source")

    @property
    def sink(self) -> str:
        return str(self.folder / "sink")

    @property
    def now_us(self) -> int:
        """Event time of the next event."""
        return START_US + self.rows * MINUTE_US // self.rows_per_minute

    def land(self, rows: int) -> None:
        """Append ``rows`` events that follow those before, in one version."""
        t = START_US + (self.rows + np.arange(rows)) * MINUTE_US // self.rows_per_minute
        if self.late:
            delays = self.rng.integers(1, LATENESS_MINUTES, rows) * MINUTE_US
            t -= np.where(self.rng.random(rows) < self.late, delays, 0)
        events = {"k": self.rng.integers(0, self.keys, rows), "t": pa.array(t, pa.timestamp("us", "UTC")), "v": self.rng.random(rows)}
        events["code"] = self.rng.integers(0, 20, rows)
        events["level"] = (self.rows + np.arange(rows)) / self.keys + self.spread * self.levels.random(rows)
        if self.lasting:
            events["e"] = pa.array(t + self.lengths.integers(0, self.lasting * MINUTE_US, rows), pa.timestamp("us", "UTC"))
        write_deltalake(self.source, pa.table(events), mode="append")
        self.rows += rows

    def land_history(self, rows: int) -> None:
        """Land a history in versions, take it in one batch as a new user would, and compact the state."""
        versions = max(20, -(-rows // VERSION_ROWS))
        for version in range(versions):
            self.land((version + 1) * rows // versions - version * rows // versions)
        loop.backfill(self.pipeline, quiet(), begin=START_US - 1, end=self.now_us)
        self.maintain()

    def maintain(self) -> None:
        """Compact the tables."""
        maintain(self.pipeline, quiet())

    def run(self) -> tuple[float, CommittedBatch, int]:
        """One run: seconds, what it did, Spark-side commits."""
        tables = [self.sink, Places.of(self.pipeline).state]
        before = [DeltaTable(path).version() for path in tables]
        begun = time.perf_counter()
        [done] = loop.run(self.pipeline, quiet())
        seconds = time.perf_counter() - begun
        return seconds, done, sum(DeltaTable(path).version() - version for path, version in zip(tables, before, strict=True))

    @property
    def state(self) -> str:
        """Rows and bytes of its state table."""
        files = DeltaTable(Places.of(self.pipeline).state).get_add_actions(flatten=True)
        rows, size = (sum(files[name].to_pylist()) for name in ("num_records", "size_bytes"))
        return f"state {rows:,} rows, {size:,} bytes"

    def restored_rows(self, done: CommittedBatch) -> int:
        """State rows that the run ``done`` read: earlier batches' slices, or nodes, of the windows that it completed."""
        assert done.plan.emitted is not None
        assert done.outcome.emitted is not None
        grids = Grids.of(self.pipeline)
        nodes = Nodes.of(grids.grids)
        condition = f"{SLICE} >= {grids.first_slice_after(done.plan.emitted)} AND {SLICE} < {done.outcome.emitted}"
        if nodes is not None:
            wanted = nodes.selection(done.plan.emitted, done.outcome.emitted)
            condition = "false" if wanted is None else rows_of(wanted).sql
        query = QueryBuilder().register("state", DeltaTable(Places.of(self.pipeline).state))
        counted = query.execute(f"SELECT count(*) AS n FROM state WHERE {BATCH} < {done.plan.batch} AND ({condition})").read_all()
        return int(pa.table(counted).column("n")[0].as_py())


def take_turns(pipelines: Mapping[str, Growing], rows: int, repetitions: int, say: Callable[[str], None]) -> dict[str, Result]:
    """Runs over ``rows`` new rows of one pipeline after the other, round by round; the first ``WARM_ROUNDS`` are not counted."""
    results = {name: Result(name) for name in pipelines}
    for round_ in range(-WARM_ROUNDS, repetitions):
        taken = []
        for name, pipeline in pipelines.items():
            pipeline.land(rows)
            (seconds, _, _), _, cpu = timed(pipeline.run)
            taken.append(f"{name} {seconds:.2f} s, {cpu:.2f} s of processor time")
            if round_ >= 0:
                results[name].take(round_, seconds, cpu)
        say(f"  {'warm-up' if round_ < 0 else f'round {round_ + 1}'}: {'; '.join(taken)}")
    return results


def quiet() -> Progress:
    """Progress that nobody sees."""
    return Progress(Console(file=io.StringIO()))
