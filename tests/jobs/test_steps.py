"""The steps of a batch over tables, what a failure leaves, what the record tells, also of late rows; turns and rulings. No Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from tests.checkpoints.records import NOW, commit, plan
from tests.spark.harness import BASE, MINUTE, Bench, differences, missed_in, quiet
from tests.specs import SECONDS, TENS, a_spec
from windowmill.checkpoints import failpoints
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.protocol import lease
from windowmill.jobs.batch import loop, steps
from windowmill.jobs.batch.progress import late_missed, missed_windows
from windowmill.jobs.cli import main
from windowmill.jobs.commands import maintenance_command
from windowmill.jobs.commands.state import state_of
from windowmill.jobs.layouts.output import check_balance
from windowmill.jobs.report import write_report
from windowmill.jobs.schedulers import tasks
from windowmill.windowing.counts import Counts, WindowRows
from windowmill.windowing.errors import (
    LeaseTakenError,
    LedgerError,
    LocalComputeError,
    SinkRefusedError,
    StateMissingError,
    WindowmillError,
)
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

SLOTS = {"name": "slots", "type": "tumbling", "size": "10 minutes"}
SPEC: dict[str, Any] = {
    "windows": [SLOTS],
    "aggregates": {"n": {"count": "*"}, "total": {"sum": "i"}},
    "time": {"column": "t", "disorder": "0 minutes"},
}


pytestmark = pytest.mark.local


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, dict(SPEC))


def row(minute: float | None, key: str = "a") -> dict[str, Any]:
    at = None if minute is None else BASE + int(minute * MINUTE)
    return {"k": key, "site": 1, "t": at, "v": 1.0, "i": 1, "label": "x", "id": "e"}


def data_files(folder: str) -> set[str]:
    return {path.name for path in Path(folder).glob("part-*.parquet")}


def named(folder: str) -> set[str]:
    return {Path(uri).name for uri in DeltaTable(folder).file_uris()}


@pytest.mark.parametrize("step", ["compute.check_balance", "finishing.validate_files"])
def test_a_batch_that_fails_before_its_record_leaves_no_files(bench, monkeypatch, step):
    """While it is computed, and while its results are validated."""
    bench.land([row(1), row(None), row(25)])

    def broken(*_: object, **__: object) -> None:
        assert data_files(bench.sink), "the results have been written"
        raise RuntimeError("the step is broken")

    monkeypatch.setattr(f"windowmill.jobs.batch.{step}", broken)
    with pytest.raises(RuntimeError, match="the step is broken"):
        bench.run()
    places = Places.of(bench.pipeline)
    assert [data_files(folder) for folder in (bench.sink, places.state, places.quarantine)] == [set(), set(), set()]
    assert Ledger.open(bench.pipeline).count == 0


def test_the_record_tells_what_was_read_and_which_files_were_written(bench):
    bench.land([row(1), row(12), row(None), row(25)])
    [done] = bench.run()
    outcome, counts, places = done.outcome, done.outcome.counts, Places.of(bench.pipeline)
    assert (outcome.seen, outcome.emitted, outcome.verdict) == (BASE + 25 * MINUTE, BASE + 25 * MINUTE, "passed")
    assert (counts.rows_read, counts.rows_applied, counts.rows_late, counts.quarantined) == (4, 3, 0, {"null_time": 1})
    assert counts.windows == {"slots": WindowRows(2, BASE + 10 * MINUTE, BASE + 20 * MINUTE)}
    assert counts.rows_published == 2
    changes = Ledger.open(bench.pipeline).changes_of(Ledger.open(bench.pipeline).batches()[0])
    folders = {"sink": bench.sink, "state": places.state, "quarantine": places.quarantine, "quality": places.quality}
    assert changes.keys() == folders.keys()
    for role, folder in folders.items():
        assert {file.path for file in changes[role].adds} == named(folder) == data_files(folder)
        assert all(done.plan.attempt in name for name in named(folder)), "names tell the attempt"


def test_a_batch_without_results_publishes_none(bench):
    bench.land([row(1)])
    [first] = bench.run()
    version = DeltaTable(bench.sink).version()  # the first batch makes the sink
    bench.land([row(2)])
    [second] = bench.run()
    assert (first.outcome.counts.rows_published, second.outcome.counts.rows_published) == (0, 0)
    assert (DeltaTable(bench.sink).version(), data_files(bench.sink)) == (version, set())
    assert len(named(Places.of(bench.pipeline).state)) == 2


@pytest.mark.covers("P8")
def test_a_backfill_of_a_running_pipeline_sets_no_rows_aside_again(bench):
    rows = [row(1), row(None), row(12), row(25), row(47)]
    bench.land(rows)
    bench.run()
    places, before = Places.of(bench.pipeline), bench.rows()
    quarantined, state = data_files(places.quarantine), DeltaTable(places.state).version()
    done = loop.backfill(bench.pipeline, quiet(), begin=BASE, end=BASE + 20 * MINUTE)
    assert (done.outcome.counts.rows_read, done.outcome.counts.rows_quarantined) == (5, 1)
    assert (data_files(places.quarantine), DeltaTable(places.state).version()) == (quarantined, state)
    assert bench.rows() == before


def test_a_backfill_rewrites_only_files_with_rows_of_its_range(bench):
    for minutes in ([1, 12, 25], [33, 47], [58, 71]):
        bench.land([row(minute) for minute in minutes])
        bench.run()
    before, files = bench.rows(), named(bench.sink)
    assert len(files) == 3
    done = loop.backfill(bench.pipeline, quiet(), begin=BASE + 10 * MINUTE, end=BASE + 30 * MINUTE)
    changes = Ledger.open(bench.pipeline).changes_of(Ledger.open(bench.pipeline).batches()[-1])["sink"]
    # The first file keeps the window that ends after 10 minutes, and the second the one after 40.
    assert (len(changes.removes), [file.rows for file in changes.kept], sum(file.rows for file in changes.adds)) == (2, [2], 2)
    assert len(files & named(bench.sink)) == 1
    assert done.outcome.counts.rows_published == 2
    assert differences(bench.rows(), before) == []


def appended_only(sink: str) -> None:
    DeltaTable(sink).alter.set_table_properties({"delta.appendOnly": "true"})


def constrained(sink: str) -> None:
    DeltaTable(sink).alter.add_constraint({"few": "n < 9"})


def retyped(sink: str) -> None:
    """As an ALTER TABLE … ALTER COLUMN … TYPE under type widening does to the log."""
    table = DeltaTable(sink)
    schema = table.schema().to_json().replace('"name":"n","type":"long"', '"name":"n","type":"decimal(20,0)"')
    metadata = {"id": str(table.metadata().id), "format": {"provider": "parquet", "options": {}}, "schemaString": schema}
    action = {"metaData": metadata | {"partitionColumns": [], "configuration": {}}}
    Path(sink, "_delta_log", f"{table.version() + 1:020d}.json").write_text(json.dumps(action))


@pytest.mark.parametrize(
    ("alter", "error", "told"),
    [
        (constrained, LocalComputeError, r"sink \S+: has constraints, so only Spark can write it; compute is local, .*: set it to auto"),
        (retyped, SinkRefusedError, r"sink \S+: its column n is now of type decimal\(20,0\), the results have long; change it back"),
        (appended_only, SinkRefusedError, r"sink \S+: is append-only, so rows that it has cannot be replaced; unset its property"),
    ],
)
def test_a_sink_that_does_not_take_the_rows_is_refused_before_the_record(bench, alter, error, told):
    bench.land([row(1), row(12), row(25)])
    bench.run()
    before, files = bench.rows(), data_files(bench.sink)
    alter(bench.sink)
    bench.land([row(47)])
    replaces = alter is appended_only
    act = partial(loop.backfill, bench.pipeline, quiet(), begin=BASE, end=BASE + 20 * MINUTE) if replaces else bench.run
    with pytest.raises(error, match=told):
        act()
    assert (Ledger.open(bench.pipeline).count, data_files(bench.sink)) == (1, files)
    if replaces:
        assert bench.rows() == before


@pytest.mark.covers("P8")
@pytest.mark.parametrize("at", ["record.begin", "batch.before"])
def test_what_a_crash_before_the_record_leaves_is_no_part_of_a_table(bench, monkeypatch, at):
    class Killed(BaseException):
        pass

    def die(point: str) -> None:
        if point == at:
            raise Killed

    bench.land([row(1), row(12)])
    monkeypatch.setattr(failpoints, "reach", die)
    monkeypatch.setattr(steps, "reach", die)
    monkeypatch.setattr("windowmill.checkpoints.ledger.reach", die)
    with monkeypatch.context() as patch:
        patch.setattr(steps._Steps, "release", lambda self: None)  # a killed process releases nothing
        with pytest.raises(Killed):
            bench.run()
    monkeypatch.undo()
    left = data_files(bench.sink)
    assert len(left) == 1
    [done] = bench.run()
    assert (done.plan.batch, done.outcome.counts.rows_published, len(bench.rows())) == (0, 1, 1)
    assert left.isdisjoint(named(bench.sink))


@pytest.mark.parametrize(
    ("at", "told"),
    [("held", "batch 0 is held"), ("recorded", "the next run makes the commits of batch 0"), ("abandoned", "the first run makes it")],
)
def test_the_state_command_before_the_first_commit(bench, monkeypatch, at, told):
    bench.land([row(1), row(12)])
    if at == "recorded":
        monkeypatch.setattr(steps._Steps, "publish", lambda *_: (_ for _ in ()).throw(WindowmillError("killed")))
    else:
        bench.changes["expectations"] = [{"type": "expect_table_row_count_to_equal", "value": -1, "severity": "critical"}]
    with pytest.raises(WindowmillError):
        bench.run()
    if at == "abandoned":
        loop.abandon(bench.pipeline, quiet())
    answer = state_of(bench.pipeline, [], 20)
    assert (answer.data["state"], told in str(answer.text)) == (None, True)
    if at == "recorded":
        shutil.rmtree(Places.of(bench.pipeline).state)
        with pytest.raises(StateMissingError, match="there is no table, but committed batches have written to it"):
            state_of(bench.pipeline, [], 20)


@pytest.mark.parametrize(
    ("applied", "quarantined", "filtered", "logged", "is_balanced"),
    [
        (9, 1, 0, 10, True),
        (10, 0, 0, None, True),
        (7, 1, 2, 10, True),
        (10, 0, 2, 10, False),
        (9, 0, 0, 10, False),
        (9, 2, 0, 10, False),
        (10, 0, 0, 11, False),
    ],
)
def test_rows_that_do_not_balance_are_refused(applied, quarantined, filtered, logged, is_balanced):
    """Of a batch of ten rows that the source's log tells to be ``logged``."""
    files = [SimpleNamespace(rows=logged, is_counted=True)]
    pipeline = Bench(Path("/nowhere"), dict(SPEC)).pipeline
    batch: Any = SimpleNamespace(plan=plan(3), reading=SimpleNamespace(files=files), pipeline=pipeline)
    told = nullcontext() if is_balanced else pytest.raises(WindowmillError, match="they must balance, so nothing was published")
    with told:
        check_balance(batch, Counts(rows_read=10, rows_applied=applied, filtered=filtered, quarantined={"null_time": quarantined}))


def test_the_future_begins_where_the_plan_was_made_however_late_it_is_carried_out(monkeypatch):
    seen = []

    class EnoughError(Exception):
        pass

    def read_rows(*_: object, now_us: int) -> None:
        seen.append(now_us)
        raise EnoughError

    monkeypatch.setattr(tasks, "read_rows", read_rows)
    batch: Any = SimpleNamespace(plan=plan(0, now_us=77), runnable=None, source=None, reading=None)
    spark: Any = None
    with pytest.raises(EnoughError):
        tasks.read(batch, spark)
    assert seen == [77]


@pytest.fixture
def pipeline(tmp_path, monkeypatch) -> Pipeline:
    monkeypatch.setattr(loop, "LEASE_WAIT_SECONDS", 0)
    monkeypatch.setattr(maintenance_command, "LEASE_WAIT_SECONDS", 0)
    write_deltalake(str(tmp_path / "source"), pa.table({"t": [1]}))
    return parse_pipeline(a_spec(tmp_path, time=SECONDS, windows=[TENS]))


@pytest.fixture
def taken(pipeline) -> Iterator[Path]:
    """The pipeline's folder, which another run holds."""
    root = Places.of(pipeline).root
    with lease(root, wait_seconds=0, on_wait=print):
        yield Path(root)


COMMANDS: dict[str, Callable[[Pipeline], Any]] = {
    "run": lambda pipeline: loop.run(pipeline, quiet()),
    "backfill": lambda pipeline: loop.backfill(pipeline, quiet(), begin=0, end=10),
    "release": lambda pipeline: loop.run(pipeline, quiet(), ruling="release"),
    "abandon": lambda pipeline: loop.abandon(pipeline, quiet()),
    "maintain": lambda pipeline: maintenance_command.maintain(pipeline, quiet()),
}


@pytest.mark.covers("P7")
@pytest.mark.parametrize("command", COMMANDS)
def test_whatever_writes_waits_for_the_run_that_is_under_way(pipeline, taken, monkeypatch, command):
    monkeypatch.setattr(loop.Turn, "execute", lambda *_: pytest.fail("it did not wait"))
    with pytest.raises(LeaseTakenError, match="another run is under way"):
        COMMANDS[command](pipeline)


@pytest.mark.covers("P7")
def test_a_lease_cannot_be_taken_by_removing_its_file(pipeline, taken):
    (taken / ".lease").unlink()
    with pytest.raises(LeaseTakenError), lease(str(taken), wait_seconds=0, on_wait=print):
        pass


def recorded(pipeline: Pipeline, verdict: str) -> Ledger:
    """The ledger with one batch that has no files."""
    ledger = Ledger.open(pipeline)
    ledger.record(plan(0, pipeline="p", meaning=pipeline.meaning_hash()), commit(verdict=verdict), {}, NOW)
    return ledger


@pytest.mark.covers("Q1")
@pytest.mark.parametrize(
    ("verdict", "first", "second"),
    [("passed", None, "release"), ("passed", None, "discard"), ("held", "release", "discard"), ("held", "discard", "release")],
)
def test_only_a_batch_that_is_held_is_ruled_on_and_once(pipeline, verdict, first, second):
    recorded(pipeline, verdict)
    if first is not None:
        [done] = loop.run(pipeline, quiet(), ruling=first)
        assert done.outcome.verdict == {"release": "released", "discard": "discarded"}[first]
    with pytest.raises(LedgerError, match=f"no batch is held, so there is nothing to {second}"):
        loop.run(pipeline, quiet(), ruling=second)
    assert Ledger.open(pipeline).count == 1


def test_a_ruling_is_on_one_batch(pipeline, monkeypatch):
    """What comes after a held batch has not been looked at by whoever ruled."""
    recorded(pipeline, "held")
    monkeypatch.setattr(loop.Turn, "execute", lambda *_: pytest.fail("another batch"))
    assert [done.plan.batch for done in loop.run(pipeline, quiet(), ruling="release")] == [0]


#: A window of each way, and two of one way.
WINDOWS: list[dict[str, Any]] = [
    {"name": "last_10", "type": "hopping", "size": "10 minutes", "hop": "5 minutes"},
    {"name": "days", "type": "tumbling", "size": "1 day"},
    {"name": "gaps", "type": "hopping", "size": "5 minutes", "hop": "30 minutes"},
    {"name": "visits", "type": "session", "gap": "3 minutes"},
    {"name": "newest", "type": "sliding", "evict": {"count": 2}, "trigger": {"count": 1}},
    {"name": "spans", "type": "snapshot"},
]
#: The third commit finds windows closed through minute 40.
COMMITS = [[0, 20], [40], [38, 21, 3, 41], [90]]
#: 38 lies in [30, 40) and [35, 45) of ``last_10``, of which the second is open. 38 and 21 lie between windows of ``gaps``. ``newest`` had
#: applied no tuple after 20.
MISSED = {"last_10": 3, "gaps": 1, "visits": 2, "newest": 1, "spans": 3}


def run_late(folder: Path, windows: list[dict[str, Any]]) -> Bench:
    """A run over each of the commits."""
    each = Bench(folder, {"windows": windows, "aggregates": {"n": {"count": "*"}}, "time": {"column": "t"}, "keys": ["k"]})
    for minutes in COMMITS:
        each.land([row(minute) for minute in minutes])
        each.run()
    return each


@pytest.fixture
def missing(tmp_path: Path) -> Bench:
    return run_late(tmp_path, WINDOWS)


def missed_by_batch(bench: Bench) -> list[dict[str, int]]:
    return [batch.counts.late_missed for batch in Ledger.open(bench.pipeline).batches()]


def test_each_window_counts_the_rows_that_it_was_closed_to(missing):
    assert missed_by_batch(missing) == [{}, {}, MISSED, {}]
    assert missing.expected([row(minute) for minutes in COMMITS for minute in minutes]).missed == MISSED


def test_rows_that_no_window_counts_have_missed_each_that_holds_them(tmp_path):
    bench = run_late(tmp_path, [window for window in WINDOWS if window["name"] != "days"])
    assert [each["reason"] for each in bench.quarantine()] == ["too_late"]
    assert missed_by_batch(bench)[2] == MISSED


def test_history_status_and_the_report_tell_what_late_rows_have_missed(missing, tmp_path, capsys):
    spec = tmp_path / "bench.yaml"
    spec.write_text(yaml.safe_dump(missing.spec))
    assert main(["history", str(spec), "--json"]) == 0
    assert [batch["late_missed"] for batch in json.loads(capsys.readouterr().out)] == [{}, {}, MISSED, {}]
    assert main(["status", str(spec)]) == 0
    assert "missed" not in capsys.readouterr().out
    missing.land([row(2)])
    assert main(["run", str(spec)]) == 0
    told = "1 missed a window of last_10, 1 of gaps, 1 of visits, 1 of newest, 1 of spans"
    assert f"1 rows read (1 late, 0 quarantined; {told})" in " ".join(capsys.readouterr().out.split())
    assert main(["status", str(spec)]) == 0
    assert told in " ".join(capsys.readouterr().out.split())
    page = Path(write_report(missing.pipeline)).read_text()
    assert "4 missed a window of last_10, 4 of spans, 3 of visits, 2 of gaps, 2 of newest" in page


def test_a_backfill_judges_rows_as_they_arrived_and_by_event_time_finds_none_late(missing):
    for history, missed in (("log", MISSED), ("event_time", {})):
        loop.backfill(missing.pipeline, quiet(), begin=BASE - 1, end=BASE + 100 * MINUTE, history=history)
        assert missed_by_batch(missing)[-1] == missed
    assert late_missed(Ledger.open(missing.pipeline).batches()) == MISSED, "rows that a backfill has read again count once"


def test_nothing_is_late_in_a_restatement(tmp_path):
    bench = run_late(tmp_path, [{"name": "slots", "type": "tumbling", "size": "10 minutes"}])
    assert missed_by_batch(bench)[2] == {"slots": 3}
    done = loop.restate(bench.pipeline, quiet(), late=True)
    assert missed_in(done) == {}
    assert {(each["window_end"] - BASE) // MINUTE: each["n"] for each in bench.rows()} == {10: 2, 30: 2, 40: 1, 50: 2}


def test_of_many_windows_those_that_most_rows_missed_are_named():
    assert missed_windows({f"w{number}": 1000 + number for number in range(7)}) == (
        "1,006 missed a window of w6, 1,005 of w5, 1,004 of w4, 1,003 of w3, 1,002 of w2 and others of 2 more"
    )
    assert missed_windows({}) == ""
