"""A pipeline, its source, and what must be in its tables by the reference engine, whatever has been done to it."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from tests.spark.harness import LASTING, MINUTE, SCHEMA, Bench, Row, differences, events, expected, lasting, place, quiet
from windowmill.checkpoints.batches import Batch
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import loop
from windowmill.jobs.batch.progress import Ruling
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.windowing import errors
from windowmill.windowing.reference import Evaluation

#: A rule that no batch passes.
UNMET = [{"type": "expect_table_row_count_to_equal", "value": -1, "severity": "critical"}]
Place = tuple[Any, ...]


@dataclass
class World:
    """What outlives runs, and the rows of each version of the source, which are all that the oracle needs to know."""

    bench: Bench
    #: Rows by the version of the source that brought them.
    landed: dict[int, list[Row]] = field(default_factory=dict)
    #: Event time at which the next rows begin.
    minutes: float = 0.0
    #: Whether files or log entries of versions that have been read are gone.
    history_gone: bool = False
    columns_added: int = 0

    def copied_to(self, folder: Path) -> World:
        """The same pipeline with a copy of all tables."""
        bench = Bench(Path(shutil.copytree(self.bench.folder, folder)), dict(self.bench.changes))
        return World(bench, dict(self.landed), self.minutes, self.history_gone, self.columns_added)

    @property
    def source(self) -> DeltaTable:
        return DeltaTable(self.bench.source)

    @property
    def ledger(self) -> Ledger:
        return Ledger.open(self.bench.pipeline)

    def held_batch(self) -> Batch | None:
        return self.ledger.held_batch

    def rows_through(self, version: int) -> list[Row]:
        """Rows in the order of their arrival."""
        return [row for landed in sorted(self.landed) if landed <= version for row in self.landed[landed]]

    def expected_through(self, version: int) -> Evaluation:
        """What the reference engine says of the rows through ``version``."""
        commits = [landed for landed in sorted(self.landed) if landed <= version for _ in self.landed[landed]]
        return expected(self.bench.pipeline, self.rows_through(version), commits=commits)

    # What happens to the source

    def land(self, rows: list[Row]) -> None:
        """Append a version; rows may be none."""
        before = self.source.version() if DeltaTable.is_deltatable(self.bench.source) else -1
        table = pa.Table.from_pylist(rows, schema=LASTING if self.bench.pipeline.time.end else SCHEMA)
        write_deltalake(self.bench.source, table, mode="append", schema_mode="merge")
        version = self.source.version()
        assert version == before + 1, "an append is one version"
        self.landed[version] = rows

    def new_rows(self, seed: int, count: int, *, late: float = 0.0) -> list[Row]:
        """Rows after those that have come, or up to ``late`` minutes before them; disorder, ties, nulls and NaN as in the harness."""
        rows = lasting(events(seed, count), seed) if self.bench.pipeline.time.end else events(seed, count)
        begin = max(0.0, self.minutes - late)
        number, by = len(self.landed), round(begin) * MINUTE
        moved = [
            row
            | {name: None if row[name] is None else row[name] + by for name in ("t", "e") if name in row}
            | {"id": f"{number:04d}{row['id']}"}
            for row in rows
        ]
        if not late:
            self.minutes += 1.2 * count
        return moved

    def optimize(self) -> None:
        """Merge the source's files, as its owner does."""
        self.source.optimize.compact()

    def vacuum(self) -> None:
        """Remove every file that the newest version of the source does not hold."""
        gone = self.source.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        self.history_gone = self.history_gone or bool(gone)

    def clean_log(self, through: int) -> None:
        """Checkpoint the source's log and remove its entries up to version ``through``."""
        table = self.source
        table.create_checkpoint()
        for version in range(min(through + 1, table.version())):
            entry = Path(self.bench.source, "_delta_log", f"{version:020d}.json")
            self.history_gone = self.history_gone or entry.exists()
            entry.unlink(missing_ok=True)

    def add_column(self) -> None:
        """A column that the pipeline does not use."""
        self.source.alter.add_columns([Field(f"extra_{self.columns_added}", PrimitiveType("string"))])
        self.columns_added += 1

    def set_property(self) -> None:
        self.source.alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 30 days"})

    # What people do with the pipeline

    def run(self, *, holding: bool = False) -> list[Any]:
        """Run until the source is drained; with a rule that no batch passes if ``holding``."""
        return self._with_rules(holding, self.bench.run)

    def rule(self, ruling: Ruling, *, holding: bool) -> None:
        """Release or discard the held batch."""
        self._with_rules(holding, lambda: self.bench.run(ruling=ruling))

    def _with_rules(self, holding: bool, run: Callable[[], list[Any]]) -> list[Any]:
        self.bench.changes["expectations"] = UNMET if holding else []
        try:
            return run()
        finally:
            self.bench.changes["expectations"] = []

    def abandon(self) -> None:
        """Drop the held batch."""
        loop.abandon(self.bench.pipeline, quiet())
        assert self.held_batch() is None

    def backfill(self, begin_share: int, end_share: int) -> bool:
        """Recompute a range of windows, given in hundredths of the window ends in the sink; whether its order of arrival is known."""
        ends = sorted({row["window_end"] for row in self.bench.rows()})
        if not ends:
            return False
        begin, end = sorted(ends[share * (len(ends) - 1) // 100] for share in (begin_share, end_share))
        try:
            loop.backfill(self.bench.pipeline, quiet(), begin=begin - MINUTE, end=end)
        except errors.ArrivalUnknownError:
            assert self.history_gone
            return False
        return True

    def maintain(self) -> None:
        maintain(self.bench.pipeline, quiet())

    def optimize_sink(self) -> None:
        """Readers of the sink may merge its files."""
        if DeltaTable.is_deltatable(self.bench.sink):
            DeltaTable(self.bench.sink).optimize.compact()

    # What must hold

    def check_drained(self) -> None:
        """The tables equal what the reference engine says, and the ledger accounts for every row."""
        ledger = self.ledger
        assert ledger.held_batch is None
        last = ledger.last_commit
        assert (last.to_version if last else -1) == self.source.version(), "the source was not drained"
        batches = [batch for batch in ledger.batches() if batch.status == "committed"]
        building = [batch for batch in batches if batch.plan.builds_state]
        ranges = [(batch.from_version, batch.to_version) for batch in building]
        assert ranges == [*zip([-1, *(to for _, to in ranges)], [to for _, to in ranges], strict=False)], f"ranges do not tile: {ranges}"
        for batch in building:
            rows = [row for version in range(batch.from_version + 1, batch.to_version + 1) for row in self.landed.get(version, [])]
            assert batch.counts.rows_read == len(rows) == batch.counts.rows_applied + batch.counts.rows_quarantined, f"batch {batch.number}"
        self._check_tables(batches)

    def _check_tables(self, batches: list[Batch]) -> None:
        pipeline = self.bench.pipeline
        want = self.expected_through(self.source.version())
        left_out = self._left_out(batches)
        rows = [row for row in want.rows if place(pipeline, row) not in left_out]
        found = self.bench.rows() if DeltaTable.is_deltatable(self.bench.sink) else []
        assert differences(found, rows) == []
        reasons = Counter(reason for _, reason in want.quarantined)
        assert Counter(row["reason"] for row in self.bench.quarantine()) == reasons

    def _left_out(self, batches: list[Batch]) -> set[Place]:
        """Rows of discarded batches; a later backfill of their windows publishes them."""
        pipeline, out = self.bench.pipeline, set[Place]()
        for batch in batches:
            if batch.plan.builds_state and batch.verdict == "discarded":
                before, after = (
                    {place(pipeline, row) for row in self.expected_through(version).rows}
                    for version in (batch.from_version, batch.to_version)
                )
                out |= after - before
            elif not batch.plan.builds_state and batch.verdict != "discarded":
                begin, end = batch.plan.range
                end = min(end, batch.plan.emitted if batch.plan.emitted is not None else begin)
                out = {row for row in out if not begin < _window_end(pipeline.keys, row) <= end}
        return out


def _window_end(keys: tuple[str, ...], row: Place) -> int:
    # A place is (known, value) of each key, then of the window's name and its end.
    return int(row[len(keys) + 1][1])


def shuffled(seed: int, rows: list[Row]) -> list[Row]:
    """``rows`` in any order."""
    return random.Random(seed).sample(rows, len(rows))


#: What may crash at a failpoint, by name.
OPERATIONS: Mapping[str, Callable[[World], object]] = {
    "run": lambda world: world.run(),
    "hold": lambda world: world.run(holding=True),
    "release": lambda world: world.rule("release", holding=True),
    "discard": lambda world: world.rule("discard", holding=True),
    "abandon": lambda world: world.abandon(),
    "backfill": lambda world: world.backfill(0, 100),
}
