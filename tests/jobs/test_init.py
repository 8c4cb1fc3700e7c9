"""``windowmill init``: the spec that it writes runs as it is, and its disorder is that of the rows."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from windowmill.jobs.cli import main
from windowmill.jobs.commands.init_command import shown
from windowmill.windowing.kernels.compilation import Kernel

BEGIN = datetime(2024, 3, 1)  # noqa: DTZ001 - files hold it without a zone
#: The last as pandas writes instants, without a zone.
FORMATS = ("delta", "parquet", "csv", "json", "delta without zones")


def frames(commits: int = 5, rows: int = 200, behind: int = 45) -> list[pd.DataFrame]:
    """Readings of 20 sensors, 10 hours a commit, of which some come up to ``behind`` minutes after the next commit's first."""
    random = np.random.default_rng(7)
    found = []
    for commit in range(commits):
        minutes = random.integers(600 * commit - behind, 600 * commit + 600, rows)
        at = [BEGIN + timedelta(minutes=int(minute)) for minute in minutes]
        columns: dict[str, Any] = {"reading_id": range(commit * rows, (commit + 1) * rows), "measured_at": at}
        found.append(pd.DataFrame(columns | {"sensor": [f"s{n}" for n in random.integers(0, 20, rows)], "value": random.random(rows)}))
    return found


def land(folder: Path, format_: str, parts: list[pd.DataFrame], **options: Any) -> str:
    folder.mkdir(parents=True)
    for number, frame in enumerate(parts):
        if format_.startswith("delta"):
            zoned = frame if "without" in format_ else frame.assign(measured_at=frame["measured_at"].dt.tz_localize(UTC))
            write_deltalake(str(folder), zoned, mode="append")
        elif format_ == "parquet":
            frame.to_parquet(folder / f"{number}.parquet")
        elif format_ == "csv":
            frame.to_csv(folder / f"{number}.csv", index=False, **options)
        else:
            frame.to_json(folder / f"{number}.jsonl", orient="records", lines=True, **options)
    return str(folder)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["init", *arguments, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.parametrize("format_", FORMATS)
def test_the_spec_runs_as_it_is_and_loses_no_row(tmp_path, capsys, format_):
    source = land(tmp_path / "readings", format_, frames(), **({"sep": ";"} if format_ == "csv" else {}))
    answer = told(capsys, "--source", source)
    assert (answer["spec"], answer["pipeline"], answer["rows_examined"]) == ("readings_windows.yaml", "readings_windows", 1_000)
    assert answer["source"]["format"] == format_.split()[0]
    assert (answer["keys"], answer["time"]["column"], answer["time"]["tie_break"]) == (["sensor"], "measured_at", ["reading_id"])
    assert answer["time"]["disorder"] == "1 hour"
    assert [window["name"] for window in answer["windows"]] == ["hourly", "rolling_day"]
    assert list(answer["aggregates"]) == ["rows", "mean_value", "max_value"]
    for step in answer["next"]:
        assert main(step.split()[1:]) == 0, step
    capsys.readouterr()
    assert main(["status", answer["spec"], "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["rows_read"], status["rows_quarantined"]) == (1_000, 0)
    assert DeltaTable(answer["sink"]["path"]).to_pyarrow_table().num_rows > 100


def test_the_ends_of_names_say_the_format_in_any_case(tmp_path, capsys):
    source = Path(land(tmp_path / "readings", "csv", frames()))
    for file in sorted(source.glob("*.csv")):
        file.rename(file.with_suffix(".CSV"))
    assert told(capsys, "--source", str(source))["source"]["format"] == "csv"


@pytest.mark.parametrize("compiled", [True, False])
def test_the_first_run_tells_that_kernels_are_compiled(tmp_path, capsys, monkeypatch, compiled):
    answer = told(capsys, "--source", land(tmp_path / "readings", "delta", frames()))
    monkeypatch.setattr(Kernel, "is_compiled", compiled)
    assert main(["run", answer["spec"]]) == 0
    assert ("compiling kernels, once on this machine" in capsys.readouterr().err) is not compiled


def test_disorder_is_measured_where_rows_were_changed_and_where_the_log_has_lost_its_beginning(tmp_path, capsys):
    source = land(tmp_path / "readings", "delta", frames(commits=15))
    table = DeltaTable(source)
    measured = told(capsys, "--source", source)
    assert (measured["commits_examined"], measured["time"]["disorder"]) == (15, "1 hour")
    table.update(predicate="reading_id < 900", updates={"value": "value * 2"})
    changed = told(capsys, "--source", source, "--force")
    assert (changed["commits_examined"], changed["time"]["disorder"]) == (15, "1 hour")
    table.create_checkpoint()
    for version in range(6):
        (tmp_path / "readings" / "_delta_log" / f"{version:020}.json").unlink()
    shortened = told(capsys, "--source", source, "--force")
    assert (shortened["commits_examined"], shortened["time"]["disorder"]) == (9, "1 hour")


def test_duplicates_are_told_and_places_may_be_typed_with_dots(tmp_path, capsys, monkeypatch):
    parts = frames()
    source = land(tmp_path / "lake" / "readings", "delta", [*parts, parts[0].head(20)])
    (tmp_path / "pipelines").mkdir()
    monkeypatch.chdir(tmp_path / "pipelines")
    answer = told(capsys, "--source", "../lake/readings", "--sink", "../marts/readings")
    assert (answer["source"]["path"], answer["sink"]["path"]) == (source, str(tmp_path / "marts" / "readings"))
    assert main(["init", "--source", "../lake/readings", "--yes", "--force"]) == 0
    assert "# some rows come twice, with the same reading_id: of these only the first counts" in capsys.readouterr().out
    assert yaml.safe_load(Path("readings_windows.yaml").read_text())["dedup"] == {"by": ["reading_id"]}
    assert "tie_break" not in Path("readings_windows.yaml").read_text()


@pytest.mark.parametrize(("days", "schedule"), [(0.1, "*/15 * * * *"), (3, "@hourly"), (300, "@daily")])
def test_the_schedule_is_as_short_as_the_shortest_windows(tmp_path, capsys, days, schedule):
    at = pd.date_range("2024-01-01", periods=100, freq=pd.Timedelta(days=days / 100), tz=UTC)
    write_deltalake(str(tmp_path / "readings"), pd.DataFrame({"at": at, "sensor": ["a", "b"] * 50}))
    assert told(capsys, "--source", "readings")["schedule"] == schedule


def test_the_spec_is_tried_on_its_own_rows(tmp_path, capsys):
    source = land(tmp_path / "readings", "json", frames(1), date_format="iso")
    assert main(["try", told(capsys, "--source", source)["spec"], "--input", f"{source}/0.jsonl"]) == 0
    assert capsys.readouterr().out.count("\n") > 100


def test_a_terminal_is_asked_three_questions_at_most(tmp_path, capsys, monkeypatch):
    source = land(tmp_path / "readings", "parquet", frames(2))
    asked = []

    def answer(text: str, default: str, **_: Any) -> str:
        asked.append((text, default))
        return {0: source, 2: "sensor, reading_id"}.get(len(asked) - 1, default)

    monkeypatch.setattr("windowmill.jobs.commands.init_command.typer.prompt", answer)
    monkeypatch.setattr("windowmill.jobs.commands.init_command.sys.stdin.isatty", lambda: True, raising=False)
    assert main(["init"]) == 0
    assert [default for _, default in asked] == ["", "measured_at", "sensor"]
    assert yaml.safe_load(Path("readings_windows.yaml").read_text())["keys"] == ["sensor", "reading_id"]
    assert "Next:\n  windowmill explain readings_windows.yaml\n" in capsys.readouterr().out


def test_flags_say_what_is_not_asked_and_no_file_is_overwritten(tmp_path, capsys):
    source = land(tmp_path / "readings", "csv", frames(1))
    flags = ("--source", source, "--out", "mine.yaml", "--pipeline", "mine", "--sink", str(tmp_path / "there"), "--keys", "-")
    answer = told(capsys, *flags)
    assert (answer["pipeline"], answer["sink"], answer["keys"]) == ("mine", {"path": str(tmp_path / "there")}, [])
    assert "disorder" not in answer["time"], "one commit tells nothing"
    before = Path("mine.yaml").read_text()
    assert "# disorder: nothing to measure in one commit" in before
    assert main(["init", *flags]) == 2
    assert "mine.yaml: exists already; name another file with --out, or overwrite it with --force" in capsys.readouterr().err
    told(capsys, *flags, "--keys", "sensor", "--force")
    assert Path("mine.yaml").read_text() == before.replace("keys: []", "keys: [sensor]").replace(
        "none: one group of all rows", "one result row for each of these and each window"
    )


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        ((), 2, "--source: missing; give the path of a Delta table"),
        (("--source", "none"), 1, "there is no such folder"),
        (("--source", "empty"), 1, "is empty; write the first rows"),
        (
            ("--source", "mixed"),
            1,
            "holds files of several formats (csv, json); say which with --format, one of delta, parquet, csv, json, kafka",
        ),
        (("--source", "text"), 1, "holds files such as 'a.txt'; say which with --format"),
        (("--source", "mixed", "--format", "xml"), 2, "--format: got 'xml'; expected one of delta, "),
        (("--source", "mixed", "--format", "pipeline"), 2, "--format: got 'pipeline'; expected one of delta, parquet, csv, json, kafka"),
        (("--source", "timeless"), 2, "--time: no column of "),
        (("--source", "readings", "--time", "measured"), 2, "has no column 'measured'; did you mean 'measured_at'?"),
        (("--source", "readings", "--keys", "sensr"), 2, "--keys: the source "),
        (("--source", "readings", "--time", "value"), 2, "--time: 'value' is double; expected a timestamp"),
    ],
    ids=str,
)
def test_what_cannot_be_proposed_is_told_and_nothing_is_written(tmp_path, capsys, flags, code, message):
    land(tmp_path / "readings", "csv", frames(1))
    files = {"mixed": ("a.csv", "a.json"), "text": ("a.txt",), "timeless": ("a.csv",), "empty": ()}
    for folder, names in files.items():
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_text("k,v\na,1.5\nb,2.5\n")
    assert main(["init", *flags]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.glob("*.yaml"))


def test_columns_without_names_and_seconds_since_1970(tmp_path, capsys):
    (tmp_path / "clicks").mkdir()
    (tmp_path / "clicks" / "a.tsv").write_text("\n".join(f"{1_700_000_000 + 7 * n}\tpage{n % 4}\t{n}" for n in range(500)))
    answer = told(capsys, "--source", str(tmp_path / "clicks"))
    assert answer["source"]["options"] == {"sep": "\t"}
    assert (answer["time"], answer["keys"]) == ({"column": "_c0", "unit": "s", "axis": "instants"}, ["_c1"])
    assert answer["windows"][0] == {"name": "by_minute", "type": "tumbling", "size": "1 minute"}
    assert main(["run", answer["spec"]]) == 0


def test_numbers_since_1970_are_proposed_as_instants(tmp_path, capsys):
    """Of each unit, with and without a 0 for what is not known; a number that is no time stays one."""
    hours = [946_684_800 + 3_600 * n for n in range(200)]
    per_second = {"s": 1, "ms": 1_000, "us": 1_000_000}
    for name, values, unit in [
        *((f"in_{unit}", [each * ticks for each in hours], unit) for unit, ticks in per_second.items()),
        ("gaps", [0, None, *hours[:198]], "s"),
        ("counter", list(range(200)), "none"),
        ("half", [*range(100), *hours[:100]], "none"),
    ]:
        source = str(tmp_path / name)
        for part in (values[:100], values[100:]):
            write_deltalake(source, pa.table({"at": pa.array(part, pa.int64()), "k": ["a"] * len(part)}), mode="append")
        answer = told(capsys, "--source", source, "--time", "at", "--keys", "k")
        axis = {"unit": unit} if unit == "none" else {"unit": unit, "axis": "instants"}
        assert answer["time"] == {"column": "at", **axis}, name
        size = answer["windows"][0]["size"]
        assert isinstance(size, int) if unit == "none" else size in ("1 hour", "1 day"), (name, size)


def test_lengths_are_written_as_a_person_does():
    lengths = {86_400: "1 day", 129_600: "1 day 12 hours", 90: "1 minute 30 seconds"}
    assert [shown(seconds * 1_000_000) for seconds in lengths] == list(lengths.values())


@pytest.mark.local
@pytest.mark.parametrize("format_", ["delta", "json"])
def test_fields_of_structs_and_of_json_are_proposed_and_run(tmp_path, monkeypatch, format_):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    rows = [
        {"user": {"id": f"u{n % 5}"}, "at": f"2024-03-01T00:{n // 60:02}:{n % 60:02}Z", "item": {"price": n / 4, "tags": {"a": n}}}
        for n in range(300)
    ]
    source = tmp_path / "events"
    if format_ == "json":
        source.mkdir()
        (source / "a.json").write_text("\n".join(map(json.dumps, rows)))
    else:
        write_deltalake(source, pa.Table.from_pylist(rows))
    assert main(["init", "--source", str(source), "--out", str(tmp_path / "p.yaml")]) == 0
    spec = yaml.safe_load((tmp_path / "p.yaml").read_text())
    assert spec["keys"] == ["user.id"]
    assert ("steps" in spec) == (format_ == "json")
    assert any("price" in name for name in spec["aggregates"])
    assert main(["run", str(tmp_path / "p.yaml")]) == 0
    assert set(DeltaTable(spec["sink"]["path"]).to_pyarrow_table().column("user_id").to_pylist()) == {f"u{n}" for n in range(5)}
