"""Pipelines over the results of others: what commands say of a chain, and which specs are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable

from tests.jobs.chained import BASE, HOUR, Days, Level, Row, ran_once
from tests.spark.harness import quiet
from windowmill.checkpoints.batches import Outcome
from windowmill.checkpoints.places import Places
from windowmill.jobs.batch import loop, purging
from windowmill.jobs.cli import main
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.jobs.sources import chains
from windowmill.jobs.sources.unread import SourceWatch
from windowmill.windowing.errors import LedgerBehindError, NonAppendCommitError, PurgeError
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import load_pipeline, parse_pipeline

pytestmark = pytest.mark.local
UP: Row = {
    "pipeline": "up",
    "source": {"path": "/data/in"},
    "keys": ["shop"],
    "time": {"column": "t"},
    "windows": [{"name": "minute", "type": "tumbling", "size": "1 minute"}, {"name": "visit", "type": "session", "gap": "1 minute"}],
    "aggregates": {"n": {"count": "*"}},
    "sink": {"path": "/data/up", "current": "/now/up"},
}
DOWN: Row = {
    "pipeline": "down",
    "source": {"pipeline": "up.yaml", "window": "minute"},
    "keys": ["shop"],
    "windows": [{"name": "hour", "type": "tumbling", "size": "1 hour"}],
    "aggregates": {"n": {"sum": "n"}},
    "sink": {"path": "/data/down"},
}


@pytest.fixture
def days(tmp_path):
    return ran_once(tmp_path)


def answer(capsys: Any, *command: str) -> Any:
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_commands_name_the_batches_of_the_other_pipeline(days, capsys):
    days.land(5)
    days.minute.run()
    days.land(5)
    days.minute.run()
    waiting = answer(capsys, "status", str(days.hour.file))
    assert waiting["upstream"] == {"pipeline": "minute", "read_through": 0, "unread": 2}
    assert main(["status", str(days.hour.file)]) == 0
    assert "minute: read through batch 0, 2 published batches unread" in " ".join(capsys.readouterr().out.split())
    done = answer(capsys, "run", str(days.hour.file))
    assert [batch["upstream"] for batch in done["batches"]][-1]["batches"][1] == 2
    history = answer(capsys, "history", str(days.hour.file))
    named = [batch["upstream"] for batch in history]
    assert named[0] == {"pipeline": "minute", "batches": [0, 0]}
    assert {each["pipeline"] for each in named} == {"minute"}
    assert (named[1]["batches"][0], named[-1]["batches"][1]) == (1, 2)
    assert answer(capsys, "status", str(days.hour.file))["upstream"] == {"pipeline": "minute", "read_through": 2, "unread": 0}
    assert answer(capsys, "run", str(days.hour.file))["status"] == "nothing new"
    days.hour.write(aggregates=days.hour.spec["aggregates"] | {"most": {"max": "n"}})
    capsys.readouterr()
    assert main(["plan", str(days.hour.file), "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["upstream"]["pipeline"] == "minute"
    assert main(["apply", str(days.hour.file)]) == 0


def test_explain_draws_the_levels(days, capsys):
    found = answer(capsys, "explain", str(days.day.file))["chain"]
    assert found == [
        f"minute: minute of {days.folder}/events",
        "→ hour: hour of minute of minute",
        "→ day: day of hour of hour",
    ]


def test_maintenance_and_the_report_know_the_input(days, capsys):
    for _ in range(3):
        days.land(2)
        days.run()
    tidied = {row["table"]: row for row in answer(capsys, "maintain", str(days.hour.file), "--now")}
    assert tidied["input"]["files_after"] < tidied["input"]["files_before"]
    days.land(30)
    days.run()
    days.check()
    for command in ("report", "cost", "doctor", "state", "quality"):
        main([command, str(days.hour.file)] if command != "doctor" else [command])
        assert "Traceback" not in capsys.readouterr().err


def test_a_watch_looks_at_published_batches(days):
    watch = SourceWatch(days.hour.pipeline)
    assert watch.poll() is None
    days.land(1)
    days.minute.run()
    found = watch.poll()
    assert (found.version, found.planned, found.open) == (1, 0, False)
    days.hour.run()
    assert watch.poll() is None
    # A compaction brings no rows.
    version = DeltaTable(Places.of(days.hour.pipeline).input).version()
    maintain(days.hour.pipeline, quiet())
    assert DeltaTable(Places.of(days.hour.pipeline).input).version() > version
    assert watch.poll() is None


def test_a_watch_leaves_to_the_run_what_is_wrong_with_the_other_pipeline(days):
    watch = SourceWatch(days.hour.pipeline)
    older = forgotten(days, days.minute)
    assert watch.poll() is not None
    ledger = Places.of(days.minute.pipeline).ledger
    with pytest.raises(LedgerBehindError, match="batch 1 is committed, but the ledger of the pipeline minute is at batch 0") as raised:
        days.hour.run()
    assert "restore the newest copy" in str(raised.value)
    shutil.rmtree(ledger)
    older.rename(ledger)
    assert watch.poll() is not None
    assert days.hour.run()


def forgotten(days: Days, level: Level) -> Path:
    """Restores an older copy of the ledger after another batch; returns the place of the newest one."""
    ledger = Path(Places.of(level.pipeline).ledger)
    shutil.copytree(ledger, days.folder / "older")
    days.land(2)
    level.run()
    ledger.rename(days.folder / "newest")
    (days.folder / "older").rename(ledger)
    return days.folder / "newest"


def test_messages_name_the_other_pipeline_instead_of_the_input(days, capsys):
    with pytest.raises(
        PurgeError, match=r"source minute: its latest view still has \d+ rows of what is to be purged; .*: purge them there"
    ):
        purging.purge(days.hour.pipeline, quiet(), [{"shop": "b"}])
    days.land(30)
    days.run()
    message = r"source minute: version \d+ \(WRITE\) changed or removed rows; `windowmill backfill …` without --as-arrived"
    with pytest.raises(NonAppendCommitError, match=message):
        loop.backfill(days.hour.pipeline, quiet(), begin=BASE, end=BASE + HOUR, history="log")


def test_nothing_is_read_before_the_other_pipeline_has_published(tmp_path, capsys):
    days = Days(tmp_path, 2)
    days.land(2)
    assert days.hour.run() == []
    status = answer(capsys, "status", str(days.hour.file))
    assert status["next_run_error"] is None
    assert status["upstream"] == {"pipeline": "minute", "read_through": None, "unread": 0}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"source": {"pipeline": "no.yaml"}}, "source.pipeline: '{folder}/no.yaml': cannot be read"),
        ({"source": {"pipeline": "bad.yaml"}}, "source.pipeline: {folder}/bad.yaml:1: windows: missing"),
        ({"source": {"pipeline": "down.yaml"}}, "by which a pipeline would read its own results: down.yaml → down.yaml"),
        ({"source": {"pipeline": "round.yaml"}}, "by which a pipeline would read its own results: down.yaml → round.yaml → down.yaml"),
        ({"source": {"pipeline": "up.yaml"}}, "source.window: missing; the pipeline up has the windows minute, visit"),
        (
            {"source": {"pipeline": "up.yaml", "window": "hour"}},
            "source.window: got 'hour'; the windows of the pipeline up are minute, visit",
        ),
        ({"source": {"pipeline": "up.yaml", "windows": ["minute", "x"]}}, "source.windows: got 'x'; the windows of"),
        ({"source": {"pipeline": "up.yaml", "window": "minute", "windows": ["visit"]}}, "source.windows: got window, too"),
        ({"source": {"path": "/data/x", "window": "minute"}, "time": {"column": "t"}}, "source.window: got no pipeline"),
        *(
            ({"source": DOWN["source"] | {name: value}}, f"source.{name}: the results of another pipeline are read from its sink")
            for name, value in {
                "path": "/x",
                "table": "a.b",
                "format": "delta",
                "options": {},
                "filter": "n > 1",
                "changes": "ignore",
            }.items()
        ),
        *(
            ({"time": {name: value}}, f"time.{name}: how far the input is complete follows from what up has published")
            for name, value in {"disorder": "1 hour", "max_future_skew": "1 day", "watermark": "max_event_time"}.items()
        ),
        ({"time": {"column": "n"}}, "time.column: got 'n'; expected window_end or window_start"),
        ({"time": {"unit": "s"}}, "time.unit: got 's', but the results of the pipeline up have instants"),
        (
            {"time": {"column": "window_start"}, "source": {"pipeline": "up.yaml", "window": "visit"}},
            "time.column: got 'window_start', but a window of visit (session) may begin at any time",
        ),
        ({"steps": [{"columns": {"window_end": "window_start"}}]}, "steps.0.columns.window_end: the time of results says how far"),
        ({"keys": ["shap"]}, "keys.0: the sink of the pipeline up has no column 'shap'; did you mean 'shop'?"),
        ({"aggregates": {"m": {"max": "m"}}}, "aggregates.m: the sink of the pipeline up has no column 'm'"),
        ({"steps": [{"filter": "revision > 0"}]}, "steps.0.filter: the sink of the pipeline up has no column 'revision'"),
        ({"aggregates": {"n": {"sum": "n", "where": "m > 1"}}}, "aggregates.n.where: the sink of the pipeline up has no column 'm'"),
        (
            {"keys": ["window"]},
            "keys: 'window' is taken by a column of windowmill's own; copy it by a step, as in columns: {{of_window: window}}",
        ),
        ({"sink": {"path": "/data/up"}}, "sink.path: is that of the sink of up"),
        ({"sink": {"path": "/data/up.windowmill/state"}}, "sink.path: lies below the checkpoints of up"),
        ({"sink": {"path": "/data"}}, "sink.path: holds the source of up"),
        ({"sink": {"path": "/now/up"}}, "sink.path: is that of the sink.current of up"),
        # Another level, of the same name.
        ({"source": {"pipeline": "twin.yaml"}, "sink": {"path": "/data/up"}}, "sink.path: is that of the sink of up"),
        ({"source": {"pipeline": "twin.yaml"}, "sink": {"path": "/data/twin"}}, "sink.path: is that of the sink of up"),
        ({"source": {"path": "/data/in"}}, "time: missing; add this field"),
    ],
)
def test_a_chain_that_cannot_be_is_refused_in_a_line(tmp_path, capsys, fields, says):
    (tmp_path / "up.yaml").write_text(yaml.safe_dump(UP))
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump({name: value for name, value in UP.items() if name != "windows"}))
    (tmp_path / "round.yaml").write_text(yaml.safe_dump(DOWN | {"pipeline": "round", "source": {"pipeline": "down.yaml"}}))
    (tmp_path / "twin.yaml").write_text(yaml.safe_dump(DOWN | {"pipeline": "up", "sink": {"path": "/data/twin"}}))
    (tmp_path / "down.yaml").write_text(yaml.safe_dump(DOWN | fields))
    assert main(["validate", str(tmp_path / "down.yaml")]) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1
    assert says.format(folder=tmp_path) in told[0]


def test_a_window_is_a_key_by_a_step_that_copies_it(days):
    copies = {"steps": [{"columns": {"of_window": "window"}}], "keys": ["of_window"]}
    named = Level(days.folder, {**days.hour.spec, **copies, "pipeline": "named", "sink": {"path": str(days.folder / "named")}})
    named.run()
    rows = days.hour.shown()
    assert {(row["of_window"], row["window_end"]): row["n"] for row in named.shown()} == {
        ("minute", end): sum(row["n"] for row in rows if row["window_end"] == end) for end in {row["window_end"] for row in rows}
    }


def test_a_chain_in_python_is_that_of_the_file(tmp_path, monkeypatch):
    (tmp_path / "up.yaml").write_text(yaml.safe_dump(UP))
    (tmp_path / "down.yaml").write_text(yaml.safe_dump(DOWN))
    monkeypatch.chdir(tmp_path)
    read, made = load_pipeline(tmp_path / "down.yaml"), Pipeline(**DOWN)
    assert made.time == read.time
    assert made.meaning_hash() == read.meaning_hash()
    monkeypatch.chdir("/")  # a worker runs elsewhere
    again = parse_pipeline(made.given_fields())
    assert (again.meaning_hash(), again.upstream) == (read.meaning_hash(), read.upstream)
    assert "source" in again.meaning()
    assert "up.yaml" not in json.dumps(again.meaning())


@pytest.mark.parametrize("engine", ["kernel", "reference"])
def test_try_takes_rows_of_results(tmp_path, capsys, engine):
    (tmp_path / "up.yaml").write_text(yaml.safe_dump(UP))
    (tmp_path / "down.yaml").write_text(yaml.safe_dump(DOWN))
    ends = ["10:01", "10:59", "11:00", "10:30"]
    lines = [json.dumps({"shop": "a", "window": "minute", "window_end": f"2024-01-01T{end}:00Z", "n": n}) for n, end in enumerate(ends)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    assert main(["try", str(tmp_path / "down.yaml"), "--input", str(tmp_path / "rows.jsonl"), "--engine", engine]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["window_start"], row["n"]) for row in found] == [("2024-01-01T10:00:00Z", 4), ("2024-01-01T11:00:00Z", 2)]


@pytest.mark.parametrize(
    ("window", "column", "shown", "least"),
    [
        # The next end, or the least start of a window that ends later.
        ({"type": "tumbling", "size": 10}, "window_end", 40, 50),
        ({"type": "tumbling", "size": 10}, "window_start", 40, 40),
        ({"type": "tumbling", "size": 10}, "window_start", 45, 40),
        ({"type": "hopping", "size": 25, "hop": 10}, "window_end", 45, 55),
        ({"type": "hopping", "size": 25, "hop": 10}, "window_start", 45, 30),
        ({"type": "cumulative", "size": 30, "step": 10}, "window_end", 45, 50),
        ({"type": "cumulative", "size": 30, "step": 10}, "window_start", 45, 30),
        # A session that ends at the very instant may still come.
        ({"type": "session", "gap": 5}, "window_end", 45, 45),
    ],
)
def test_results_are_complete_before_the_next_one_may_come(tmp_path, window, column, shown, least):
    up = UP | {"windows": [{"name": "w", **window}], "time": {"column": "t", "unit": "none"}}
    (tmp_path / "up.yaml").write_text(yaml.safe_dump(up))
    down = DOWN | {"windows": [{"name": "by", "type": "tumbling", "size": 60}], "source": {"pipeline": str(tmp_path / "up.yaml")}}
    pipeline = parse_pipeline(down | {"time": {"column": column}})
    batch = SimpleNamespace(
        plan=SimpleNamespace(definition=pipeline.upstream.meaning()), outcome=Outcome(seen=shown, emitted=shown, verdict="passed")
    )
    assert chains.complete_from(pipeline, batch) == least
