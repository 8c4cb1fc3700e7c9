"""The batches of a pipeline in this process, one after another, beside the oracle."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import Schema, write_deltalake

from tests.jobs.drawn import MINUTE, SOURCE, Row
from tests.strategies import ROW_BY_ROW, Arrival, arriving, between_commits
from tests.windowing.test_slices import same
from windowmill.checkpoints.state.readers import DeltaState, MemoryState, State
from windowmill.checkpoints.state.tables import joint_schema
from windowmill.jobs.batch.job import parts_of
from windowmill.jobs.commands.try_command import MemoryBatch, MemoryWriter
from windowmill.jobs.layouts.base import Part
from windowmill.jobs.layouts.input import Emission, Input
from windowmill.jobs.layouts.lateness import seen_after
from windowmill.jobs.schedulers.local import NewRows, compute_parts, load
from windowmill.jobs.sources.columns import Columns
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.added_columns import BATCH, FILE, REASON, ROW, SLICE, TIME, UNTIL_OF
from windowmill.windowing.columnar.hashes import RowCheck, with_buckets
from windowmill.windowing.columnar.known_spans import last_of
from windowmill.windowing.grids import Nodes
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.layouts import divide
from windowmill.windowing.reference import Record, evaluate
from windowmill.windowing.spec import Pipeline


class Files(NamedTuple):
    """The files that commits have added, of at most two rows: for each row its file and its index in it, and each file's commit."""

    file: list[int]
    row: list[int]
    commits: tuple[int, ...]

    @classmethod
    def of(cls, commits: Sequence[int]) -> Files:
        """Those of rows with these ``commits``."""
        placed = [(commit, place) for _, rows in groupby(commits) for place, commit in enumerate(rows)]
        begins = [place % 2 == 0 for _, place in placed]
        of_files = tuple(commit for (commit, _), first in zip(placed, begins, strict=True) if first)
        return cls([file - 1 for file in accumulate(begins)], [place % 2 for _, place in placed], of_files)

    def refused(self, table: pa.Table, first: int) -> list[tuple[int, str]]:
        """Number and reason of each row of ``table`` that has one; ``first`` numbers the rows of these files."""
        places = {held: place for place, held in enumerate(zip(self.file, self.row, strict=True), first)}
        return [(places[row[FILE], row[ROW]], row[REASON]) for row in table.select([FILE, ROW, REASON]).to_pylist() if row[REASON]]


def arrived(rows: list[Row], files: Files | None = None, source: pa.Schema = SOURCE) -> pa.Table:
    """The ``rows`` of these ``files``; each row is in a file of its own unless given."""
    files = Files.of(range(len(rows))) if files is None else files
    whole = pa.Table.from_pylist(rows, schema=source)
    added = {
        TIME: whole["t"].cast(pa.int64()),
        FILE: pa.array(files.file, pa.int32()),
        ROW: pa.array(files.row, pa.int64()),
        REASON: pa.nulls(len(rows), pa.string()),
        condition_column("i > 3"): pa.array([(row.get("i") or 0) > 3 for row in rows], pa.bool_()),
    }
    if rows and "e" in rows[0]:
        added[UNTIL_OF] = pa.array([row["e"] for row in rows], pa.int64())
    for name, column in added.items():
        whole = whole.append_column(name, column)
    return whole


class Run:
    """The batches of a pipeline, each computed as a small one is, over what maintenance leaves of a state in memory, or a state table.

    Parameters
    ----------
    path
        The state table's; in memory, state is written to a file and read back.
    nodes
        Whether the state in memory holds nodes, also over few slices.
    vouched
        Whether an orchestrator vouches for intervals.
    """

    def __init__(
        self, pipeline: Pipeline, path: str | None = None, *, nodes: bool = False, vouched: bool = False, source: pa.Schema | None = None
    ) -> None:
        if source is None:
            source = SOURCE if pipeline.time.unit is None else SOURCE.set(SOURCE.get_field_index("t"), pa.field("t", pa.int64()))
        lasting = [pa.field("e", pa.timestamp("us", "UTC"))] if pipeline.time.end == "e" else []
        types = Columns.of(Schema.from_arrow(pa.schema([*source, *lasting])).to_json()).arrow
        check = RowCheck(path or "state")
        self.base: dict[str, Any] = {"pipeline": pipeline, "types": types, "builds_state": True, "check": check, "is_limited": True}
        self.pipeline, self.path, self.nodes, self.vouched, self.source = pipeline, path, nodes, vouched, source
        self.divided = divide(pipeline, types)
        self.memory = MemoryState()
        self.memory.holds_nodes = nodes
        self.batch = self.late = self.read = 0
        self.seen: int | None = None
        self.emitted: int | None = None
        self.restored: list[pa.Table] = []
        self.kinds: Mapping[str, int] = {}
        self.missed: Counter[str] = Counter()
        self.rows: list[Row] = []
        self.refused: list[tuple[int, str]] = []
        self.commits: list[int] = []

    @property
    def _stored(self) -> State:
        return self.memory if self.path is None else DeltaState(self.path, RowCheck(self.path))

    def parts(self, batch: Input) -> list[Part]:
        with patch.object(Nodes, "of", partial(Nodes.of, many=2) if self.nodes else Nodes.of):
            return parts_of(batch, self._stored)

    def step(self, rows: list[Row] | None, first: int = 0, commits: Sequence[int] | None = None, *, vouched: int | None = None) -> None:
        """One batch; ``first`` numbers its rows, each of which is a commit unless ``commits`` are given. None: all windows are complete.

        If an orchestrator vouches for intervals, the watermark after the batch is ``vouched``.
        """
        files = Files.of(arriving(self.commits, len(rows or []), commits))
        by_file = (self._after,) * len(files.commits) if self.vouched else None
        progress = {"batch": self.batch, "seen": self.seen, "emitted": self.emitted, "closed_by_file": by_file, "commits": files.commits}
        ended = rows is None
        batch = Input(**self.base | {"builds_state": not ended, "ended": ended}, **progress)
        new = None if rows is None else NewRows(arrived(rows, files, self.source))
        emission = self._emission(batch, new, vouched)
        parts = self.parts(batch)
        done, self.restored = self._compute(batch, parts, new, emission)
        self.kinds = done.counts.state_restored
        self.seen, self.read = emission.seen, sum(self.kinds.values())
        refused = [] if done.judged is None else files.refused(done.judged.table, first)
        assert done.counts.rows_applied + len(refused) == len(rows or [])
        self.refused, self.late = self.refused + refused, self.late + done.counts.rows_late
        self.missed += Counter(done.counts.late_missed)
        self.rows += shown(done)
        if done.state:
            self._keep(done.state, parts)
        self._drop_old(emission.through)
        self.batch, self.emitted = self.batch + 1, emission.through

    def backfill(self, rows: list[Row], begin: int, end: int) -> MemoryBatch:
        """What a backfill of the window ends in (``begin``, ``end``] makes of all ``rows``."""
        batch = Input(**self.base | {"builds_state": False, "recomputes_range": True})
        return self._compute(batch, self.parts(batch), NewRows(arrived(rows, source=self.source)), Emission(None, end, begin, end))[0]

    def _compute(self, batch: Input, parts: list[Part], new: NewRows | None, emission: Emission) -> tuple[MemoryBatch, list[pa.Table]]:
        """The output of the batch, and the rows that each part has restored."""
        loaded, writer = [load(part, new, emission, self._stored) for part in parts], MemoryWriter()
        counts, judged = compute_parts(new, parts, loaded, batch, writer)
        restored = [each.stored for each in loaded if each.stored is not None]
        return MemoryBatch.of(batch, writer, judged, counts), restored

    def load(self, rows: list[Row], emission: Emission | None = None) -> None:
        """Load a batch of ``rows``; raises ``TooLargeError`` if this process leaves it to Spark."""
        batch = Input(**self.base, batch=self.batch, seen=self.seen, emitted=self.emitted)
        new = NewRows(arrived(rows, source=self.source))
        for part in self.parts(batch):
            load(part, new, emission or self._emission(batch, new, None), self._stored)

    def change_state(self, change: Callable[[pa.Table], pa.Table]) -> None:
        """Have the state in memory hold what ``change`` makes of the rows of each part."""
        for tables in self.memory._tables.values():
            tables[:] = [change(pa.concat_tables(tables))]

    @property
    def state(self) -> pa.Table:
        """All rows of the state in memory."""
        assert self.memory.rows is not None
        return self.memory.rows

    @property
    def spans(self) -> tuple[str, ...]:
        return () if self.divided.slices is None else tuple(map(last_of, self.divided.slices.grids.known))

    @property
    def _after(self) -> int:
        return AXIS_BEGIN if self.emitted is None else self.emitted

    def _emission(self, batch: Input, new: NewRows | None, vouched: int | None) -> Emission:
        seen = self.seen if new is None else seen_after(new.table, self.seen)
        if vouched is None:
            return batch.emission(seen)
        through = max(self._after, batch.rule.closed(vouched))
        return Emission(seen, through, self._after, through, batch.rule.watermark_of(through), batch.rule.watermark_of(self.emitted))

    def _keep(self, tables: Sequence[pa.Table], parts: Sequence[Part]) -> None:
        if self.path is None:
            for rows in tables:
                file = io.BytesIO()
                pq.write_table(rows, file)
                read = pq.read_table(file)
                RowCheck("state").verify(read)
                self.memory.append(read)
            return
        schema = joint_schema(self.pipeline, [part.schema for part in parts])
        tables = [with_buckets(rows, self.pipeline.keys) for rows in tables] if self.pipeline.keys else tables
        write_deltalake(self.path, pa.concat_tables([schema.empty_table(), *tables], promote_options="default"), mode="append")

    def _drop_old(self, through: int) -> None:
        """Drop slices that no window needs and, after some batches only, spans that later ones have superseded."""
        if self.divided.slices is None:
            return
        first = self.divided.slices.grids.first_slice_after(through)
        for names, tables in self.memory._tables.items():
            if SLICE in names:
                rows = pa.concat_tables(tables)
                rows = rows.filter(pc.or_kleene(pc.is_null(rows[SLICE]), pc.greater_equal(rows[SLICE], first)))
                if self.batch % 2:
                    told = list(zip(rows["k"].to_pylist(), rows[BATCH].to_pylist(), pc.is_null(rows[SLICE]).to_pylist(), strict=True))
                    latest = {key: batch for key, batch, is_span in told if is_span}
                    rows = rows.filter(pa.array([not is_span or latest[key] == batch for key, batch, is_span in told], pa.bool_()))
                tables[:] = [rows]


def shown(done: MemoryBatch) -> list[Row]:
    """The result rows, with the bounds of windows as integers."""
    rows: list[Row] = []
    for table in done.results:
        bounds = [table[name].cast(pa.int64()).to_pylist() for name in ("window_start", "window_end")]
        told = zip(table.drop_columns(["batch"]).to_pylist(), *bounds, strict=True)
        rows += [row | {"window_start": start, "window_end": end} for row, start, end in told]
    return rows


def place(row: Row) -> tuple[Any, ...]:
    """What tells result rows apart."""
    cells = (row[name] for name in ("k", "window", "window_end", "trigger", "revision", "window_start"))
    return tuple((cell is not None, cell) for cell in cells)


def in_minutes(run: Run, *columns: str, key: str = "a") -> list[tuple[Any, ...]]:
    """Start of each window of ``key`` in minutes, and its values in these columns."""
    return sorted((row["window_start"] // MINUTE, *(row[name] for name in columns)) for row in run.rows if row["k"] == key)


def compare(run: Run, rows: list[Row], *, final: bool = False) -> None:
    """The result rows, their revisions and the refusals of ``run`` are those of the oracle."""
    records = [Record(row, frozenset(["i > 3"] if (row["i"] or 0) > 3 else [])) for row in rows]
    wanted = evaluate(run.pipeline, records, commits=run.commits, final=final)
    assert (run.refused, run.missed) == (wanted.quarantined, wanted.missed)
    found, expected = sorted(run.rows, key=place), sorted(wanted.rows, key=place)
    assert [place(row) for row in found] == [place(row) for row in expected]
    for got, want in zip(found, expected, strict=True):
        wrong = {name: (got[name], value) for name, value in want.items() if not same(got[name], value)}
        assert not wrong, (place(want), wrong)


def feed(
    run: Run, rows: list[Row], cuts: Sequence[int], arrival: Arrival = ROW_BY_ROW, between: Callable[[Run], None] = lambda _: None
) -> Run:
    """Have ``run`` take ``rows``, cut at ``cuts``; ``between`` is called after each batch."""
    commits = arrival.commits(len(rows))
    for first, last in pairwise(sorted({0, *between_commits([cut for cut in cuts if cut < len(rows)], commits), len(rows)})):
        run.step(rows[first:last], first, commits[first:last])
        between(run)
    return run


def check(
    pipeline: Pipeline,
    rows: list[Row],
    cuts: Sequence[int] = (),
    *,
    final: bool = False,
    arrival: Arrival = ROW_BY_ROW,
    path: str | None = None,
    nodes: bool = False,
    between: Callable[[Run], None] = lambda _: None,
) -> Run:
    """The run of ``rows``, cut at ``cuts``, which has been compared with the oracle; ``between`` is called after each batch."""
    run = feed(Run(pipeline, path, nodes=nodes), rows, cuts, arrival, between)
    if final:
        run.step(None)
    compare(run, rows, final=final)
    return run


def run_vouched(pipeline: Pipeline, rows: list[Row], ends: list[int], arrival: Arrival) -> tuple[Run, list[tuple[float, int]]]:
    """A run of three batches, each of which vouches for as many minutes past its rows as ``ends`` says.

    Also the watermark that each row found, which is that after the batch before, and the number of its commit.
    """
    run, watermarks = Run(pipeline, vouched=True), list[float]()
    commits, third = arrival.commits(len(rows)), -(-len(rows) // 3)
    thirds = pairwise(sorted({0, *between_commits(range(third, len(rows), third), commits), len(rows)}))
    for end, (first, last) in zip(ends, thirds, strict=False):
        watermarks += [float("-inf") if run.emitted is None else run.emitted + pipeline.time.lateness.elapsed()] * (last - first)
        run.step(rows[first:last], first, commits[first:last], vouched=max(row["t"] for row in rows[:last]) + end * MINUTE)
    return run, list(zip(watermarks, run.commits, strict=True))
