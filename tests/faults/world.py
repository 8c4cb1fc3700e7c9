"""A pipeline, its source, and what must be in its tables by the reference engine, whatever has been done to it."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from tests.spark.harness import LASTING, MINUTE, SCHEMA, Bench, Row, differences, events, expected, lasting, place, quiet
from windowmill.checkpoints.batches import BackfillPlan, Batch, Plan
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import loop
from windowmill.jobs.batch.progress import Ruling
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.jobs.sources.reading import History
from windowmill.windowing import errors
from windowmill.windowing.reference import Evaluation

#: A rule that no batch passes.
UNMET = [{"type": "expect_table_row_count_to_equal", "value": -1, "severity": "critical"}]
Place = tuple[Any, ...]


@dataclass
class World:
    """What outlives runs, the rows of each version of the source, and what the batches of the ledger must have made of them."""

    bench: Bench
    #: Rows by the version of the source that brought them, and the files that hold them.
    landed: dict[int, list[Row]] = field(default_factory=dict)
    files: dict[int, list[str]] = field(default_factory=dict)
    #: Event time at which the next rows begin.
    minutes: float = 0.0
    columns_added: int = 0
    #: Number of the batches that :meth:`follow` has taken up.
    followed: int = 0
    #: The rows that the sink must have, and how often each reason must be in quarantine.
    shown: list[Row] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    #: The version through which rows of the state count in event-time order, none of them late; −1 if all count as they arrived.
    settled: int = -1
    #: The same of the last backfill that counted rows in this order and replaced the state by theirs; null if none did.
    replaced: int | None = None
    _expected: dict[tuple[int, int], Evaluation] = field(default_factory=dict)

    def copied_to(self, folder: Path) -> World:
        """The same pipeline with a copy of all tables."""
        bench = Bench(Path(shutil.copytree(self.bench.folder, folder)), dict(self.bench.changes))
        own = {name: value.copy() for name, value in vars(self).items() if isinstance(value, dict | list)}
        return replace(self, bench=bench, **own)

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

    def expected_through(self, version: int, settled: int) -> Evaluation:
        """What the reference engine says of the rows through ``version``, if those through ``settled`` count in event-time order."""
        if (version, settled) not in self._expected:
            # Rows of one commit are not late to each other.
            commits = [max(landed, settled) for landed in sorted(self.landed) if landed <= version for _ in self.landed[landed]]
            self._expected[version, settled] = expected(self.bench.pipeline, self.rows_through(version), commits=commits)
        return self._expected[version, settled]

    # What happens to the source

    def land(self, rows: list[Row]) -> None:
        """Append a version; rows may be none."""
        exists = DeltaTable.is_deltatable(self.bench.source)
        before, held = (self.source.version(), self._files()) if exists else (-1, set[str]())
        table = pa.Table.from_pylist(rows, schema=LASTING if self.bench.pipeline.time.end else SCHEMA)
        write_deltalake(self.bench.source, table, mode="append", schema_mode="merge")
        version = self.source.version()
        assert version == before + 1, "an append is one version"
        self.landed[version], self.files[version] = rows, sorted(self._files() - held)

    def _files(self) -> set[str]:
        return {Path(file).name for file in self.source.file_uris()}

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
        self.source.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)

    def clean_log(self, through: int) -> None:
        """Checkpoint the source's log and remove its entries up to version ``through``."""
        table = self.source
        table.create_checkpoint()
        for version in range(min(through + 1, table.version())):
            self._entry(version).unlink(missing_ok=True)

    def _entry(self, version: int, kind: str = "json") -> Path:
        return Path(self.bench.source, "_delta_log", f"{version:020d}.{kind}")

    def arrival_is_known(self, through: int) -> bool:
        """Whether all log entries through this version, and all files that it and earlier versions appended, are there."""
        appended = [Path(self.bench.source, file) for version, files in self.files.items() if version <= through for file in files]
        return self.log_is_whole(through) and all(file.exists() for file in appended)

    def log_is_whole(self, through: int) -> bool:
        return all(self._entry(version).exists() for version in range(through + 1))

    def is_told(self, version: int) -> bool:
        """Whether the log tells which rows the table held at ``version``, from its beginning or a checkpoint on."""
        begun = max((each for each in range(version + 1) if self._entry(each, "checkpoint.parquet").exists()), default=-1)
        return all(self._entry(each).exists() for each in range(begun + 1, version + 1))

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

    def backfill(self, begin_share: int, end_share: int, history: History = "current") -> None:
        """Recompute a range of windows, given in hundredths of the window ends in the sink; it may be refused only where it has to be."""
        self.follow()
        ends = sorted({row["window_end"] for row in self.shown})
        if not ends:
            return
        begin, end = sorted(ends[share * (len(ends) - 1) // 100] for share in (begin_share, end_share))
        begin, before = begin - MINUTE, self.ledger.count
        reasons, refused = self._refusals(begin, end, history), None
        try:
            loop.backfill(self.bench.pipeline, quiet(), begin=begin, end=end, history=history)
        except errors.RefusedError as err:
            refused = err
        if refused is not None:
            assert type(refused) in reasons, f"refused by {type(refused).__name__}: {refused}, not as {reasons}"
        self.check_tables()
        newest = self.ledger.newest
        if self.ledger.count == before or newest is None:
            return  # refused, or it has published one of the same range, which a run that died had recorded
        assert not reasons, f"not refused as {reasons}"
        found, choices = self._settled_by(newest.plan), self._choices(history)
        assert len(self.rows_through(found)) in choices, f"rows through {found} are settled, not {choices}"

    def _choices(self, history: History) -> set[int]:
        """The numbers of rows that may count in event-time order, of those that a backfill reads."""
        last = self.ledger.last_commit
        assert last is not None
        if history == "log":
            return {0}
        known, every = self.arrival_is_known(last.to_version), len(self.rows_through(last.to_version))
        before = 0 if self.replaced is None else len(self.rows_through(self.replaced))
        if history == "event_time":
            return {every}
        if known:
            return {before}
        # Where only files are gone, those that came since the state was replaced may still be there.
        return {every, before} if self.replaced is not None and self.log_is_whole(last.to_version) else {every}

    @staticmethod
    def _settled_by(plan: Plan) -> int:
        """The version through which rows of a batch count in event-time order."""
        return -1 if plan.snapshot is None else min(plan.snapshot, plan.to_version)

    def _refusals(self, begin: int, end: int, history: History) -> list[type[errors.RefusedError]]:
        """By what errors a backfill of the windows that end in (``begin``, ``end``] may be refused, and has to be by one of them."""
        last = self.ledger.last_commit
        assert last is not None
        through, known = last.to_version, self.arrival_is_known(last.to_version)
        others = self.replaced is not None or history == "event_time" or (history == "current" and not known)
        refusals: list[type[errors.RefusedError]] = []
        moving = {window.name for window in self.bench.pipeline.windows if not window.on_grid}
        if others and any(row["window"] in moving and not begin < row["window_end"] <= end for row in self.shown):
            refusals.append(errors.UnsupportedError)
        if history == "log" and not known:
            refusals.append(errors.ArrivalUnknownError)
        # The first unread version with rows: the table can be read as it is now, but not without these rows.
        unread = min((version for version, rows in self.landed.items() if version > through and rows), default=None)
        if history != "log" and others and unread is not None and not any(map(self.is_told, range(through, unread))):
            refusals.append(errors.OutOfTurnError)
        return refusals

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
        runs = [batch for batch in batches if batch.plan.advances]
        ranges = [(batch.from_version, batch.to_version) for batch in runs]
        assert ranges == [*zip([-1, *(to for _, to in ranges)], [to for _, to in ranges], strict=False)], f"ranges do not tile: {ranges}"
        for batch in batches:
            versions = range(batch.plan.reads_from + 1, batch.to_version + 1)
            rows = sum(len(self.landed.get(version, ())) for version in versions)
            counts = batch.counts
            assert counts.rows_read == rows == counts.rows_applied + counts.rows_quarantined, f"batch {batch.number}: {counts}, not {rows}"
        self.check_tables()

    def check_tables(self) -> None:
        """Sink and quarantine hold what the batches must have made of them."""
        self.follow()
        wanted = sorted(self.shown, key=lambda row: place(self.bench.pipeline, row))
        assert (found := differences(self.bench.rows(), wanted)) == [], found[:6]
        assert Counter(row["reason"] for row in self.bench.quarantine()) == self.reasons

    def follow(self) -> None:
        """Take up the batches that the ledger has got: their rows by the reference engine, over the rows that the plans say were read."""
        ended = [*takewhile(lambda batch: batch.status != "held", self.ledger.batches()[self.followed :])]
        self.followed += len(ended)
        committed = [batch for batch in ended if batch.status == "committed"]
        # Runs that follow each other are taken up at once: results do not depend on how the input is cut into batches.
        for _, together in groupby(committed, key=lambda batch: None if batch.plan.advances and _is_shown(batch) else batch.number):
            batches = list(together)
            plan = batches[0].plan
            if isinstance(plan, BackfillPlan):
                self._follow_backfill(plan)
            else:
                self._follow_runs(plan.from_version, batches[-1].to_version, are_shown=_is_shown(batches[0]))

    def _follow_runs(self, after: int, through: int, *, are_shown: bool) -> None:
        before, now = (self.expected_through(version, self.settled) for version in (after, through))
        self.reasons += Counter(reason for _, reason in now.quarantined) - Counter(reason for _, reason in before.quarantined)
        if not are_shown:
            return
        known = {place(self.bench.pipeline, row) for row in before.rows}
        fresh = [row for row in now.rows if place(self.bench.pipeline, row) not in known]
        # The revisions of a window go on above those that a backfill has published of it.
        newest, first = dict[Place, int](), dict[Place, int]()
        for row in self.shown:
            newest[self._window(row)] = max(row["revision"], newest.get(self._window(row), -1))
        for row in fresh:
            first[self._window(row)] = min(row["revision"], first.get(self._window(row), row["revision"]))
        raised = {window: max(0, newest.get(window, -1) + 1 - revision) for window, revision in first.items()}
        self.shown += [row | {"revision": row["revision"] + raised[self._window(row)]} for row in fresh]

    def _follow_backfill(self, plan: BackfillPlan) -> None:
        settled = self._settled_by(plan)
        begin, end = plan.replaced or plan.range
        again = self.expected_through(plan.to_version, settled).rows
        self.shown = [row for row in self.shown if not begin < row["window_end"] <= end]
        self.shown += [row for row in again if begin < row["window_end"] <= end]
        if plan.replaces_state:
            self.settled, self.replaced = settled, self.replaced if plan.snapshot is None else settled

    def _window(self, row: Row) -> Place:
        """What the revisions of a window have in common."""
        return tuple(row[name] for name in (*self.bench.pipeline.keys, "window", "window_start", "window_end", "trigger"))


def _is_shown(batch: Batch) -> bool:
    return batch.verdict != "discarded"


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
    "backfill_as_arrived": lambda world: world.backfill(0, 100, "log"),
}
