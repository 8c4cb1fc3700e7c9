"""Planning over tables on disk, without Spark: what a plan pins, and what is refused before anything is recorded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from tests.checkpoints.records import NOW, commit
from tests.specs import SECONDS, TENS, TICKS, a_spec
from windowmill.checkpoints.batches import LastWrite, Outcome, Plan
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.own_tables import OwnTable
from windowmill.checkpoints.places import Places
from windowmill.jobs.batch.planning import Acceptance, next_backfill, next_run
from windowmill.jobs.runnables import runnable_of
from windowmill.jobs.sources.reading import moves_on
from windowmill.windowing import errors
from windowmill.windowing.axis import to_us
from windowmill.windowing.specfile import parse_pipeline

DAY = timedelta(days=1)
VOUCHED = {"watermark": "data_interval_end"}
MODULE = """
class Half:
    result = "double"
    def lift(self, v): return v
    def combine(self, a, b): return a + b
    def lower(self, total): return total / 2


HALF = Half()
"""


class Bench:
    """A source and the ledger of a pipeline over it, whose batches are committed without having been carried out."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder, self.changes = folder, changes
        #: The last plan, which :meth:`commit` records.
        self.last: Plan | None = None

    @property
    def pipeline(self) -> Any:
        fields = {"source": {"path": str(self.folder / "source"), "changes": "ignore"}, "aggregates": {"low": {"min": "v"}}}
        return parse_pipeline(a_spec(self.folder, time=SECONDS, windows=[TENS], **fields) | self.changes)

    def land(self, *values: int, kind: pa.DataType | None = None, **options: Any) -> None:
        rows = pa.table({"t": pa.array(values, pa.int64()), "v": pa.array(values, pa.int64()).cast(kind or pa.int64())})
        write_deltalake(str(self.folder / "source"), rows, **{"mode": "append"} | options)

    def ledger(self) -> Ledger:
        return Ledger.open(self.pipeline)

    def plan(self, **options: Any) -> Plan | None:
        self.last = next_run(runnable_of(self.pipeline), self.ledger(), **options)
        return self.last

    def backfill(self) -> Plan:
        return next_backfill(runnable_of(self.pipeline), self.ledger(), begin=0, end=20)

    def take(self, step: str) -> None:
        """Plan a backfill, or a run."""
        self.backfill() if step == "backfill" else self.plan()

    def rows_of(self, role: str, batch: int, **options: Any) -> Path:
        """A table with a row of this batch at the place of ``role``."""
        path = self.folder / "sink" if role == "sink" else Path(getattr(Places.of(self.pipeline), role))
        path.mkdir(parents=True, exist_ok=True)
        write_deltalake(path, pa.table({"batch": [batch]}), **options)
        return path

    def commit(self, written: Mapping[str, LastWrite] | None = None, **outcome: Any) -> None:
        """Record the last plan; ``written`` are the last writes to the tables."""
        assert self.last is not None
        ledger = self.ledger()
        for role, last in (written or {}).items():
            ledger.note(role, last)
        ledger.record(self.last, commit(**outcome), {}, NOW)


@pytest.fixture
def bench(tmp_path) -> Bench:
    """A batch has been committed through version 0 of the source; version 1 is new."""
    made = Bench(tmp_path)
    made.land(1, 2)
    made.plan()
    made.commit()
    made.land(3, 4)
    return made


def test_a_plan_is_made_anew_until_one_is_recorded(bench):
    first = bench.plan()
    assert (first.batch, first.from_version, first.to_version) == (1, 0, 1)
    bench.land(5)
    again = bench.plan()
    assert (again.batch, again.from_version, again.to_version) == (1, 0, 2)
    assert again.attempt != first.attempt
    assert [batch.number for batch in bench.ledger().batches()] == [0]


def test_a_plan_goes_on_from_what_the_last_batch_left(bench):
    assert bench.ledger().batches()[0].plan.emitted is None
    planned, before = bench.plan(), bench.ledger().batches()[0]
    assert (planned.seen, planned.emitted) == (before.outcome.seen, before.outcome.emitted) == (10, 5)
    assert (planned.source_id, planned.meaning) == (before.plan.source_id, bench.pipeline.meaning_hash())


@pytest.mark.covers("S3")
def test_a_column_of_another_type_is_refused_by_the_next_batch(bench):
    bench.land(7, kind=pa.string(), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(errors.SourceSchemaError, match="column 'v' was bigint and is now string"):
        bench.plan()
    assert bench.ledger().count == 1


@pytest.mark.covers("S2")
def test_a_source_that_was_rolled_back_or_exchanged_is_refused(bench):
    copy = shutil.copytree(bench.folder / "source", bench.folder / "copy")
    (copy / "_delta_log" / f"{1:020d}.json").unlink()
    bench.plan()
    bench.commit()
    shutil.rmtree(bench.folder / "source")
    shutil.move(copy, bench.folder / "source")
    with pytest.raises(errors.SourceReplacedError, match="is at version 0, but version 1 has been read"):
        bench.plan()
    shutil.rmtree(bench.folder / "source")
    for value in range(3):
        bench.land(value)
    with pytest.raises(errors.SourceReplacedError, match="this is another table"):
        bench.plan()


@pytest.mark.covers("S2")
@pytest.mark.parametrize("step", ["run", "backfill", "nothing new"])
def test_a_copy_of_the_source_that_others_have_written_to_is_refused(bench, step):
    """It has the Delta id of the table that it was copied from."""
    source, copy = bench.folder / "source", bench.folder / "copy"
    (source / "_delta_log" / f"{1:020d}.json").unlink()
    shutil.copytree(source, copy)
    bench.land(3, 4)
    bench.plan()
    bench.commit()
    bench.changes["source"] = {"path": str(copy), "changes": "ignore"}
    for value in (3, 5)[: 1 if step == "nothing new" else 2]:
        write_deltalake(copy, pa.table({"t": [value], "v": [value]}), mode="append")
    with pytest.raises(errors.SourceReplacedError, match=r"its version 1 is another commit than the one that batch 1 read"):
        bench.take(step)


@pytest.mark.covers("S2")
def test_a_source_may_be_moved_and_its_log_cleaned_up(bench):
    bench.plan()
    bench.commit()
    moved = (bench.folder / "source").rename(bench.folder / "moved")
    bench.changes["source"] = {"path": str(moved), "changes": "ignore"}
    assert bench.plan() is None
    write_deltalake(moved, pa.table({"t": [9], "v": [9]}), mode="append")
    DeltaTable(moved).create_checkpoint()
    for version in (0, 1):
        (moved / "_delta_log" / f"{version:020d}.json").unlink()
    assert bench.plan().to_version == 2


@pytest.mark.parametrize("step", ["run", "backfill", "nothing new"])
def test_the_ledger_of_another_pipeline_is_refused(bench, step):
    """It may have the same meaning, source and sink, and would take turns."""
    if step != "run":
        bench.plan()
    if step == "nothing new":
        bench.commit()
    bench.changes["pipeline"] = "q"
    with pytest.raises(errors.SpecChangedError, match=r"pipeline q: the ledger \S+ is that of the pipeline 'p' \(last batch \d\); give"):
        bench.take(step)


def test_a_pipeline_may_be_renamed_once_for_all(bench):
    bench.changes |= {"pipeline": "q", "renamed_from": "p"}
    assert bench.plan().pipeline == "q"
    bench.commit()
    assert bench.plan() is None
    bench.land(5)
    bench.changes |= {"renamed_from": None}
    assert bench.plan() is not None
    bench.changes |= {"pipeline": "p"}
    with pytest.raises(errors.SpecChangedError, match="is that of the pipeline 'q'"):
        bench.plan()


@pytest.mark.parametrize("role", ["sink", "state"])
def test_a_run_with_nothing_new_notices_that_a_table_is_gone_or_another(tmp_path, role):
    bench = Bench(tmp_path)
    bench.land(1, 2)
    bench.plan()
    path = bench.rows_of(role, 0)
    table = OwnTable(role, str(path))
    bench.commit(written={role: LastWrite(0, table.table_version().table_id, 0, table.change_at(0).digest)})
    assert bench.plan() is None
    shutil.rmtree(path)
    with pytest.raises(errors.StateMissingError, match=rf"{role} \S+: there is no table, but batch 0 left version 0 of it; restore"):
        bench.plan()
    bench.rows_of(role, 0)
    with pytest.raises(errors.ForeignWriteError, match=rf"{role} \S+: this is another table"):
        bench.plan()


@pytest.mark.parametrize("step", ["run", "backfill"])
@pytest.mark.parametrize(("role", "kind"), [("sink", errors.SinkError), ("state", errors.StateError)])
def test_a_table_that_must_not_be_written_is_told_before_anything_is_planned(bench, monkeypatch, role, kind, step):
    place = bench.folder / "sink" if role == "sink" else Path(Places.of(bench.pipeline).state)
    place.mkdir(parents=True)
    # Root may write whatever the permissions say.
    monkeypatch.setattr(os, "access", lambda folder, _: Path(folder) != place)
    with pytest.raises(kind, match=rf"{role} {place}: the folder {place} is read-only for this process; give its user the permission"):
        bench.take(step)
    assert bench.ledger().count == 1


@pytest.mark.covers("D2")
@pytest.mark.parametrize("step", ["run", "backfill"])
def test_own_tables_are_verified_before_each_plan(tmp_path, step):
    bench = Bench(tmp_path)
    bench.land(1, 2)
    bench.plan()
    # The state is gone: it was never there.
    bench.commit(written={"state": LastWrite(0, "id", 0, None)})
    bench.land(3)
    with pytest.raises(errors.StateMissingError, match=r"state .*there is no table, but batch 0 left version 0"):
        bench.take(step)
    assert bench.ledger().count == 1


@pytest.mark.covers("D4")
@pytest.mark.parametrize(("role", "batch"), [("state", 1), ("quarantine", 1), ("quality", 1), ("sink", 1), ("state", 4)])
def test_a_plan_whose_number_has_landed_is_not_made(bench, role, batch):
    """Also where the table has been restored beside an older ledger."""
    app = bench.ledger().newest.plan.app_id(role)
    bench.rows_of(role, batch, commit_properties=CommitProperties(app_transactions=[Transaction(app, batch)]))
    with pytest.raises(errors.LedgerBehindError, match=f"{role} .*batch {batch} is committed already, but the ledger does not contain it"):
        bench.plan()
    assert bench.ledger().count == 1


def test_transactions_are_named_by_the_ledger_and_not_by_the_pipeline(bench, tmp_path):
    """A ledger made anew does not continue the transactions of another; a pipeline that is renamed does continue its own."""
    other = Bench(tmp_path / "other")
    other.land(1)
    new = other.ledger()
    assert len({new.generation for _ in range(2)}) == 1, "of a ledger without batches, too"
    mine, theirs = bench.plan(), other.plan()
    assert mine.app_id("sink") == bench.ledger().batches()[0].plan.app_id("sink")
    assert mine.app_id("sink") != theirs.app_id("sink")
    assert mine.app_id("sink") != mine.app_id("state")


@pytest.mark.covers("S9", "V6")
def test_only_the_last_part_of_a_backlog_is_vouched_for(tmp_path):
    bench = Bench(tmp_path, time=SECONDS | VOUCHED)
    bench.changes["source"] = {"path": str(tmp_path / "source"), "options": {"maxFilesPerTrigger": 1}}
    for value in range(3):
        bench.land(value)
    vouched = []
    for _ in range(3):
        vouched.append(bench.plan(interval_end=datetime(1970, 1, 1, 1, tzinfo=UTC)).interval_end)
        bench.commit()
    assert vouched == [None, None, 3_600 * 1_000_000]


@pytest.mark.parametrize(
    ("skew", "ahead"),
    [({}, DAY), ({"max_future_skew": "2 hours"}, timedelta(hours=2)), ({"max_future_skew": None}, DAY), ({"max_future_skew": 600}, DAY)],
    ids=["default", "2 hours", "no limit", "ticks"],
)
def test_nobody_vouches_for_the_time_to_come(tmp_path, skew, ahead):
    bench = Bench(tmp_path, time=SECONDS | VOUCHED | skew)
    bench.land(1)
    soon, later = (datetime.now(UTC) + ahead + timedelta(minutes=minutes) for minutes in (-5, 5))
    for end in (later, datetime(2042, 1, 1, tzinfo=UTC), datetime(9999, 12, 31)):  # noqa: DTZ001 - as the command gives it
        with pytest.raises(errors.SpecError, match=r"--data-interval-end: got .* ahead of the clock, so every row until then .* too late"):
            bench.plan(interval_end=end)
    assert bench.plan(interval_end=soon).interval_end == to_us(soon)
    assert Bench(tmp_path).plan(interval_end=later).interval_end is None


SESSION = {"name": "w", "type": "session", "gap": 3}


@pytest.mark.parametrize(
    ("changes", "vouched", "moves"),
    [
        ({}, 24, False),
        ({}, 25, True),  # closed through 20
        ({"emit": "revise"}, 19, False),
        ({"emit": "revise"}, 20, True),  # shown when the watermark passes it
        ({"windows": [SESSION]}, 15, False),
        ({"windows": [SESSION]}, 16, True),
    ],
    ids=str,
)
def test_a_later_interval_without_new_rows_moves_on_what_ends_by_then(changes, vouched, moves):
    outcome = Outcome(seen=None, emitted=10, verdict="passed")
    ledger: Any = SimpleNamespace(last_commit=SimpleNamespace(outcome=outcome))
    spec = a_spec(time=TICKS | VOUCHED | {"lateness": 5}, windows=[TENS | {"origin": 0}]) | changes
    assert moves_on(parse_pipeline(spec), ledger, vouched) is moves


@pytest.mark.covers("P8")
def test_a_backfill_reads_no_further_than_the_schedule_has_come(bench):
    planned = bench.backfill()
    # It emits nothing that the runs have not, by the watermark that they have come to.
    assert (planned.seen, planned.emitted) == (10, 5)
    assert (planned.from_version, planned.to_version, planned.builds_state, planned.range) == (-1, 0, False, (0, 20))


def test_a_backfill_waits_for_the_ruling_on_a_held_batch(bench):
    bench.plan()
    bench.commit(verdict="held")
    with pytest.raises(errors.LedgerError, match="batch 1 is held"):
        bench.backfill()


@pytest.mark.covers("V1")
@pytest.mark.parametrize("step", ["run", "backfill"])
def test_a_spec_of_another_meaning_is_refused(bench, step):
    bench.changes["aggregates"] = {"low": {"max": "v"}}
    with pytest.raises(errors.SpecChangedError):
        bench.take(step)


def test_an_edited_module_is_refused_unless_it_is_accepted(tmp_path, monkeypatch):
    module = tmp_path / "halves_of_plans.py"
    module.write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    bench = Bench(tmp_path, aggregates={"h": {"use": f"{module.stem}:HALF", "args": ["v"]}})
    bench.land(1)
    bench.plan()
    bench.commit()
    bench.land(2)
    module.write_text(MODULE + "# edited\n")
    with pytest.raises(errors.CodeChangedError, match=f"module {module.stem} is not the one that batch 0 ran"):
        bench.plan()
    assert bench.plan(accepted=Acceptance(code=True)) is not None
