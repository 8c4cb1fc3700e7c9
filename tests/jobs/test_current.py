"""The table of current rows: the newest window of each key, whatever batches, people and crashes do."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from tests import latest
from tests.checkpoints.records import plan
from tests.faults.dying import DiedError, arm
from tests.faults.world import UNMET
from tests.jobs.days import HALF, HOURLY, LAST_2, VISIT, Days
from tests.spark.harness import quiet
from tests.specs import a_spec
from windowmill.checkpoints import current, failpoints
from windowmill.checkpoints.batches import Changes, LastWrite
from windowmill.checkpoints.committer import DeltaRsCommitter, Publication
from windowmill.checkpoints.current import CurrentView
from windowmill.checkpoints.data_files import write_files
from windowmill.checkpoints.delta_tables import files_of
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import loop, purging
from windowmill.jobs.batch import maintenance_batches as savepoints
from windowmill.jobs.cli import main
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.windowing.axis import AXIS_END, Duration
from windowmill.windowing.errors import ForeignWriteError, HeldError, SinkError, SinkRefusedError, SpecError, UnsupportedError

pytestmark = pytest.mark.local
SMALL = {"ROWS_PER_FILE": 3, "ROWS_AT_ONCE": 48, "ROWS_SORTED": 20, "SEARCHED_AT_ONCE": 2}
Row = dict[str, Any]
SCHEMA = pa.schema(
    [
        *[("k", pa.string()), ("site", pa.int64()), ("window", pa.string()), ("window_start", pa.int64()), ("window_end", pa.int64())],
        *[("trigger", pa.int64()), ("revision", pa.int64()), ("n", pa.int64()), ("batch", pa.int64()), ("retracted", pa.bool_())],
    ]
)
#: Windows of the rows that are made up, each with whether it forgets idle keys.
WINDOWS = {"grid": False, "policy": False, "idle": True}


class Sink:
    """A sink whose rows are made up, and its current table."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng, self.path, self.current = random.Random(seed), str(folder / "sink"), str(folder / "current")
        self.rows: list[Row] = []
        self.n = 0
        self.keys = self.rng.choice([("k",), ("site",), ("k", "site"), ()])
        pipeline = SimpleNamespace(keys=self.keys, windows=[SimpleNamespace(name=n, restarts_triggers=r) for n, r in WINDOWS.items()])
        self.runnable: Any = SimpleNamespace(sink_path=self.path, current_path=self.current, pipeline=pipeline)

    def identity(self, row: Row) -> tuple[Any, ...]:
        bounds = (row["window_start"], row["window_end"])
        if row["trigger"] is not None:
            bounds = (row["trigger"], row["window_end"] if WINDOWS[row["window"]] else None)
        return (*(row[name] for name in self.keys), row["window"], bounds)

    def row(self) -> Row:
        rng, name, end = self.rng, self.rng.choice(list(WINDOWS)), self.rng.randint(1, 12)
        # Without key columns there is one key.
        key = (
            {"k": rng.choice(["a", "b", "ü", "c" * 40, None]), "site": rng.choice([1, 2, 7, None])} if self.keys else {"k": "a", "site": 1}
        )
        start = rng.choice([end - 3, end - 3, end - 1])
        trigger = None if name == "grid" else rng.randint(0, 6)
        start = None if trigger is not None and rng.random() < 0.2 else start
        return {**key, "window": name, "window_start": start, "window_end": end, "trigger": trigger, "revision": 0, "retracted": False}

    def new(self, within: tuple[int, int] = (0, AXIS_END), *, count: int) -> list[Row]:
        """Rows of windows that end in a range, each with a revision above those that the sink has of the window."""
        made = dict[Any, Row]()
        for _ in range(count):
            row = self.row()
            old = [each for each in self.rows if self.identity(each) == self.identity(row)]
            if self.rng.random() < 0.4 and self.rows:
                row = {**self.rng.choice(self.rows), "retracted": self.rng.random() < 0.6}
                old = [each for each in self.rows if self.identity(each) == self.identity(row)]
            if within[0] < row["window_end"] <= within[1]:
                row["revision"] = max((each["revision"] + 1 for each in old), default=0)
                made[self.identity(row)] = {**row, "n": self.rng.randint(0, 99), "batch": self.n}
        return list(made.values())

    def write(self, rows: list[Row]) -> tuple[Any, ...]:
        parts = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
        tables = [pa.Table.from_pylist(part, schema=SCHEMA) for part in parts if part]
        return tuple(
            file for number, t in enumerate(tables) for file in write_files(self.path, SCHEMA, [t], batch=self.n, attempt="a", task=number)
        )

    def step(self) -> None:
        """A batch that adds rows, or replaces those of a range of window ends."""
        rng, removes, replaces, windows = self.rng, list[str](), None, None
        staying = list[Row]()
        if self.rows and rng.random() < 0.3:
            begin, end = replaces = tuple(sorted(rng.sample(range(14), 2)))
            windows = rng.choice([None, ("grid",), ("policy", "idle")])
            is_gone = lambda row: begin < row["window_end"] <= end and (windows is None or row["window"] in windows)  # noqa: E731
            for name in (str(file["path"]) for file in files_of(DeltaTable(self.path))):
                own = pq.read_table(f"{self.path}/{name}", schema=SCHEMA).to_pylist()
                if any(map(is_gone, own)):  # as a backfill does: the other rows of such a file move to another one
                    removes.append(name)
                    staying += [row for row in own if not is_gone(row)]
            self.rows = [row for row in self.rows if not is_gone(row)]
        added = self.new(replaces or (0, AXIS_END), count=rng.choice([0, 1, 3, 20]))
        added = [row for row in added if windows is None or row["window"] in windows]
        half = rng.randint(0, len(added))
        adds, kept = self.write(added[:half]), self.write(added[half:] + staying)
        changes = Changes.of(SCHEMA, adds, kept=kept, removes=removes, replaces=replaces, windows=windows)
        self.rows += added
        self.publish(changes)

    def publish(self, changes: Changes) -> None:
        written = {role: LastWrite(self.n - 1, "id", 0, "d") for role in ("sink", "current")} if self.n else {}
        ledger: Any = SimpleNamespace(written=lambda: written)
        planned = plan(self.n, f"{self.n:012x}")
        found = current.changes_of(self.runnable, ledger, planned, changes)
        DeltaRsCommitter().commit(self.path, Publication("sink", "app", self.n, changes))
        whole = found.replaces is not None
        note = {"attempt": "a"}
        remade = lambda place, table: current.MadeOfSink.of(place, table, sink=self.path, view=CurrentView.of(self.runnable.pipeline))  # noqa: E731
        if self.n and self.rng.random() < 0.2:
            DeltaTable(self.current).optimize.compact()
        DeltaRsCommitter().commit(self.current, Publication("current", "app", self.n, found, note, replaces_all=whole, rewrites=remade))
        self.n += 1

    def check(self) -> None:
        shown = sorted(map(repr, DeltaTable(self.current).to_pyarrow_table().cast(SCHEMA).to_pylist()))
        wanted = [{name: row[name] for name in SCHEMA.names} for row in latest.current(WINDOWS, self.keys, self.rows)]
        assert shown == sorted(map(repr, wanted))


@pytest.mark.parametrize("seed", range(24))
def test_after_each_batch_the_table_has_the_newest_row_of_the_latest_view(tmp_path, monkeypatch, seed):
    for name, few in SMALL.items():
        monkeypatch.setattr(current, name, few if seed % 2 else 4 * few)
    sink = Sink(tmp_path, seed)
    for _ in range(12):
        sink.step()
        sink.check()


def days(folder: Path, *windows: dict[str, Any], **fields: Any) -> Days:
    sink = {"path": str(folder / "sink"), "current": str(folder / "current")}
    return Days(folder, *windows, **{"sink": sink, "compute": "local", **fields})


def shown(days: Days, rows: str = "current") -> list[str]:
    place = days.spec["sink"]["path" if rows == "sink" else "current"]
    return sorted(map(repr, DeltaTable(place).to_pyarrow_table().to_pylist())) if DeltaTable.is_deltatable(place) else []


def check(days: Days) -> list[str]:
    """The current table is the newest of the latest view, by brute force; returns its rows."""
    rows = DeltaTable(days.spec["sink"]["path"]).to_pyarrow_table()
    windows = dict.fromkeys(rows["window"].unique().to_pylist(), False)
    wanted = latest.current(windows, days.spec["keys"], rows.to_pylist())
    found = DeltaTable(days.spec["sink"]["current"]).to_pyarrow_table()
    assert found.column_names == rows.column_names
    assert found.schema.types == rows.schema.types
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, wanted))
    return shown(days)


FIRST = [(1, "a", "08:05", 4), (2, "b", "08:10", 5), (3, "a", "09:20", 6), (4, "b", "10:01", 7)]
SECOND = [(5, "a", "10:40", 1), (6, "c", "11:15", 2), (7, "b", "12:30", 3)]


def test_runs_corrections_backfills_and_changed_specs_keep_it(tmp_path):
    pipeline = days(tmp_path, HOURLY, VISIT, LAST_2, emit="final").append(*FIRST).run()
    assert len(check(pipeline)) == 6
    pipeline.append(*SECOND).run()
    before = check(pipeline)
    pipeline.delete("id = 5 or id = 7").run()
    after = check(pipeline)
    assert after != before
    pipeline.backfill()
    check(pipeline)
    pipeline.apply(HOURLY, HALF, VISIT)
    assert any("'half'" in row for row in check(pipeline))
    assert any("'last_2'" in row for row in check(pipeline))
    savepoints.create(pipeline.pipeline, quiet(), "here")
    saved = check(pipeline)
    pipeline.append((8, "a", "13:05", 2), (9, "d", "16:05", 2)).run()
    assert check(pipeline) != saved
    savepoints.restore(pipeline.pipeline, quiet(), "here")
    assert check(pipeline) == saved
    pipeline.run()
    check(pipeline)
    pipeline.delete("k = 'b'")
    purging.purge(pipeline.pipeline, quiet(), [{"k": "b"}])
    assert not any("'k': 'b'" in row for row in check(pipeline))
    rows, files = check(pipeline), DeltaTable(pipeline.spec["sink"]["current"]).file_uris()
    maintain(pipeline.pipeline, quiet(), now=True, fold=Duration(ticks=1))
    assert check(pipeline) == rows
    assert DeltaTable(pipeline.spec["sink"]["current"]).file_uris() == files
    pipeline.append((10, "a", "18:00", 2)).run()
    check(pipeline)


def test_wider_columns_of_the_source_and_new_ones_of_the_spec_are_columns_of_the_table(tmp_path):
    pipeline = days(tmp_path, HOURLY).append(*FIRST).run()
    pipeline.spec["aggregates"] = {**pipeline.spec["aggregates"], "low": {"min": "v"}}
    pipeline.apply(HOURLY)
    assert any("'low': 6" in row for row in check(pipeline))
    pipeline.append(*SECOND).run()
    check(pipeline)


def test_a_batch_rewrites_only_files_that_hold_its_keys(tmp_path, monkeypatch):
    monkeypatch.setattr(current, "ROWS_PER_FILE", 4)
    rows = [(number, f"key{number:03d}", "08:05", number) for number in range(40)]
    pipeline = days(tmp_path, HOURLY).append(*rows, (900, "zz", "09:30", 1)).run()
    before = set(DeltaTable(pipeline.spec["sink"]["current"]).file_uris())
    pipeline.append((901, "key017", "09:40", 5), (902, "key0171", "09:41", 5), (903, "zz", "11:00", 5)).run()
    check(pipeline)
    after = set(DeltaTable(pipeline.spec["sink"]["current"]).file_uris())
    assert len(before) == 10
    assert len(before - after) == 2  # that of key017 and key0171, and the last one, which gets zz


PLACES = [f"{write}.{moment}" for write in ("batch", "sink", "current", "state") for moment in ("before", "lost", "after")]


@pytest.mark.covers("P1")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", ["run", "backfill", "fold"])
def test_wherever_a_batch_dies_the_next_command_makes_the_same_table(tmp_path, place, command):
    pipeline = days(tmp_path, HOURLY, VISIT, emit="revise", time={"disorder": "1 hour", "lateness": "5 hours"}).append(*FIRST).run()
    pipeline.append((8, "a", "08:30", 4), *SECOND)
    doing: Callable[[], object] = pipeline.run
    if command != "run":
        pipeline.run()
        doing = pipeline.backfill if command == "backfill" else lambda: maintain(pipeline.pipeline, quiet(), fold=Duration(ticks=1))
    arm(place)
    with suppress(DiedError):
        doing()
    failpoints.disarm()
    pipeline.append((20, "d", "16:00", 1)).run()
    check(pipeline)
    commits = [str(commit.get("userMetadata")) for commit in DeltaTable(pipeline.spec["sink"]["current"]).history()]
    numbers = [json.loads(each)["batch"] for each in commits if '"batch"' in each]
    assert sorted(numbers) == sorted(set(numbers))


@pytest.mark.covers("P6")
@pytest.mark.parametrize("change", ["optimize", "remove"])
def test_files_that_others_move_between_record_and_commit_are_made_again(tmp_path, monkeypatch, change):
    monkeypatch.setattr(current, "ROWS_PER_FILE", 2)
    pipeline = days(tmp_path, HOURLY).append(*FIRST, (30, "e", "08:30", 1), (31, "f", "08:30", 1)).run()
    place = pipeline.spec["sink"]["current"]
    pipeline.append(*SECOND)
    failpoints.arm("current.before", lambda: DeltaTable(place).optimize.compact() if change == "optimize" else shutil.rmtree(place))
    with suppress(SinkError):
        pipeline.run()
    failpoints.disarm()
    pipeline.run()
    check(pipeline)
    pipeline.append((40, "a", "14:00", 1)).run()
    check(pipeline)


@pytest.mark.parametrize("ruling", ["release", "discard", "abandon"])
def test_a_held_batch_changes_it_when_it_is_released(tmp_path, ruling):
    pipeline = days(tmp_path, HOURLY).append(*FIRST).run()
    before = check(pipeline)
    pipeline.append(*SECOND)
    pipeline.spec["expectations"] = UNMET
    with pytest.raises(HeldError):
        pipeline.run()
    assert check(pipeline) == before
    if ruling == "abandon":
        loop.abandon(pipeline.pipeline, quiet())
    else:
        pipeline.run(ruling=ruling)
    assert (check(pipeline) == before) == (ruling != "release")
    del pipeline.spec["expectations"]
    pipeline.append((40, "a", "14:00", 1)).run()
    check(pipeline)


def test_it_may_come_later_go_and_move(tmp_path):
    pipeline = days(tmp_path, HOURLY).append(*FIRST)
    sink = pipeline.spec["sink"]
    pipeline.spec["sink"] = {"path": sink["path"]}
    pipeline.run().append(*SECOND)
    pipeline.spec["sink"] = sink
    pipeline.run()
    check(pipeline)
    pipeline.append((39, "b", "12:40", 1), (38, "c", "13:00", 1)).run()
    first = check(pipeline)
    pipeline.spec["sink"] = {"path": sink["path"]}
    pipeline.append((40, "a", "14:00", 1)).run()
    assert shown(Days(tmp_path, HOURLY, sink=sink)) == first
    pipeline.spec["sink"] = sink  # where the last hour of b is missing, which no later batch touches
    pipeline.append((41, "a", "16:00", 1)).run()
    check(pipeline)
    pipeline.spec["sink"] = {**sink, "current": str(tmp_path / "elsewhere")}
    pipeline.append((43, "a", "17:00", 1)).run()
    check(pipeline)
    pipeline.spec["sink"] = sink
    pipeline.run()
    pipeline.append((42, "b", "18:00", 1)).run()
    check(pipeline)


def test_a_table_that_is_gone_is_made_again_by_a_run_that_finds_nothing_new(tmp_path):
    pipeline = days(tmp_path, HOURLY).append(*FIRST).run()
    before = check(pipeline)
    shutil.rmtree(pipeline.spec["sink"]["current"])
    pipeline.run()
    assert check(pipeline) == before
    pipeline.append(*SECOND).run()
    check(pipeline)


def test_a_table_of_others_is_refused_and_so_are_rows_of_others_until_they_are_accepted(tmp_path):
    pipeline = days(tmp_path, HOURLY).append(*FIRST)
    place = pipeline.spec["sink"]["current"]
    write_deltalake(place, pa.table({"x": [1]}))
    with pytest.raises(SinkRefusedError, match=r"a table is there already .* choose another sink\.current"):
        pipeline.run()
    shutil.rmtree(place)
    pipeline.run()
    before = check(pipeline)
    DeltaTable(place).delete("k = 'a'")
    pipeline.append(*SECOND)
    with pytest.raises(ForeignWriteError, match=r"current .*was not written by this pipeline.*--accept-changes"):
        pipeline.run()
    assert pipeline.command("run", "--accept-changes") == 0
    assert check(pipeline) != before
    pipeline.spec["sink"] = {**pipeline.spec["sink"], "current": str(tmp_path / "foreign")}
    write_deltalake(str(tmp_path / "foreign"), pa.table({"x": [1]}))
    pipeline.append((40, "a", "14:00", 1))
    with pytest.raises((ForeignWriteError, SinkError), match="foreign"):
        pipeline.run()
    assert DeltaTable(str(tmp_path / "foreign")).to_pyarrow_table().to_pydict() == {"x": [1]}


def test_verify_names_a_row_that_differs(tmp_path, capsys):
    pipeline = days(tmp_path, LAST_2).append(*FIRST).run()
    assert pipeline.command("verify", "--json") == 0
    assert json.loads(capsys.readouterr().out)["current"]["differing"] == 0
    DeltaTable(pipeline.spec["sink"]["current"]).update(predicate="k = 'a'", updates={"total": "total + 1"})
    assert pipeline.command("verify", "--json") == 1
    found = json.loads(capsys.readouterr().out)["current"]
    assert (found["differing"], found["examples"]) == (1, [{"k": "a", "window": "last_2"}])
    assert pipeline.command("verify") == 1
    assert "has another row than the sink of 1 keys and windows, such as k=a" in capsys.readouterr().out.replace("\n", " ")


def test_commands_name_it(tmp_path, capsys):
    pipeline = days(tmp_path, HOURLY).append(*FIRST).run()
    for command, key in (("status", "current"), ("explain", "current")):
        assert pipeline.command(command, "--json") == 0
        assert json.loads(capsys.readouterr().out)[key] == pipeline.spec["sink"]["current"]
        assert pipeline.command(command) == 0
        assert "current" in capsys.readouterr().out


def test_every_reader_of_delta_tables_reads_it(tmp_path):
    pipeline = days(tmp_path, HOURLY).append(*FIRST).run().append(*SECOND).run()
    place, columns = pipeline.spec["sink"]["current"], ["k", "window", "n", "total"]
    rows = sorted(DeltaTable(place).to_pyarrow_table(columns=columns).to_pylist(), key=repr)
    sql = pa.table(QueryBuilder().register("t", DeltaTable(place)).execute(f"SELECT {', '.join(columns)} FROM t").read_all())
    assert sorted(sql.to_pylist(), key=repr) == rows
    assert sorted(DeltaTable(place).to_pyarrow_dataset().to_table(columns=columns).to_pylist(), key=repr) == rows
    scanned = DeltaTable(place).to_pyarrow_dataset()
    found = duckdb.sql('SELECT k, "window", n, total FROM scanned').to_arrow_table()
    assert scanned.count_rows() == len(rows) == len(found)
    assert sorted(found.to_pylist(), key=repr) == rows


def test_the_oldest_and_newest_windows_are_found_in_few_files(tmp_path, monkeypatch):
    """Where the row shown is retracted, the sink is read from its newest files on, and no further than the answer."""
    pipeline = days(tmp_path, HOURLY)
    for hour in range(6, 20):
        pipeline.append((hour, "a", f"{hour:02d}:05", 1)).run()
    opened = list[Any]()
    read = current.rows_of
    monkeypatch.setattr(current, "rows_of", lambda place, paths, schema: opened.extend(paths) or read(place, paths, schema))
    pipeline.delete("id = 18").run()
    assert any("datetime.datetime(2024, 3, 29, 17, 0" in row for row in check(pipeline))
    assert 0 < len(set(opened) & {Path(file).name for file in DeltaTable(pipeline.spec["sink"]["path"]).file_uris()}) < 6


@pytest.mark.parametrize(
    ("current_path", "problem"),
    [
        ("sink", r"sink\.current: is that of sink"),
        ("sink/now", r"sink\.current: lies below sink"),
        ("source", r"sink\.current: is that of source"),
    ],
)
def test_its_folder_lies_apart(tmp_path, current_path, problem):
    with pytest.raises(SpecError, match=problem):
        _ = days(tmp_path, HOURLY, sink={"path": str(tmp_path / "sink"), "current": str(tmp_path / current_path)}).pipeline


def test_names_that_need_column_mapping_are_refused(tmp_path):
    pipeline = days(tmp_path, HOURLY, keys=["k", "odd key"]).append(*FIRST)
    with pytest.raises(UnsupportedError, match=r"sink\.current: 'odd key' \(keys\) is a name that Delta stores by column mapping"):
        pipeline.run()


def test_a_sink_that_only_spark_writes_is_refused(tmp_path):
    pipeline = days(tmp_path, HOURLY).append(*FIRST).run().append(*SECOND)
    DeltaTable(pipeline.spec["sink"]["path"]).alter.add_constraint({"few": "n < 100"})
    with pytest.raises(SinkRefusedError, match=r"has constraints, so its current rows cannot be kept; .*leave sink\.current out"):
        pipeline.run()


def test_credentials_are_not_written_into_its_history(tmp_path, capsys):
    spec = tmp_path / "p.json"
    spec.write_text(json.dumps(a_spec(tmp_path, sink={"path": str(tmp_path / "sink"), "current": "s3://me:secret@bucket/now"})))
    assert main(["validate", str(spec)]) == 2
    assert "sink.current: holds credentials" in capsys.readouterr().err.replace("\n", " ")


def test_a_run_without_it_calls_nothing_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(current, "changes_of", None)
    monkeypatch.setattr(current, "opened", None)
    pipeline = Days(tmp_path, HOURLY, compute="local").append(*FIRST).run()
    assert "current" not in Ledger.open(pipeline.pipeline).written()
