"""A secret that a spec names never comes out: not in messages, not in what is written."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from tests.checkpoints.records import plan
from tests.matrices import crossed
from tests.specs import a_spec
from windowmill.checkpoints.batches import Outcome
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.cli import main
from windowmill.jobs.report import write_report
from windowmill.jobs.spark import launch
from windowmill.windowing.errors import MachineError, SourceError, SpecError
from windowmill.windowing.specfile import load_pipeline, parse_pipeline

CANARY = "CaNaRy-7f3a'x"
FULL: dict[str, Any] = {
    "pipeline": "p",
    "renamed_from": "q",
    "compute": "auto",
    "apply": "auto",
    "source": {"path": "/data/in", "format": "delta", "options": {"maxFilesPerTrigger": "5"}, "filter": "v > 1"},
    "steps": [{"columns": {"w": "v + 1"}}, {"filter": "w > 3"}],
    "dedup": {"by": ["id"], "within": "1 hour"},
    "keys": ["k"],
    "time": {
        "column": "t", "unit": None, "tie_break": ["id"], "disorder": "5 minutes", "lateness": "1 hour",
        "max_future_skew": "1 day", "watermark": "max_event_time",
    },
    "windows": [
        {"name": "a", "type": "hopping", "size": "1 hour", "hop": "5 minutes", "origin": "2013-01-01", "timezone": "UTC", "empty": "skip"},
        {"name": "b", "type": "sliding", "evict": {"delta": {"column": "v", "by": 2}}, "trigger": {"count": 5}, "partial": True},
        {"name": "c", "type": "tumbling", "evict": {"punctuation": "v > 1"}, "idle_after": "1 day"},
        {"name": "d", "type": "custom", "function": "tests.spark.test_mixed:noted"},
        {"name": "e", "type": "session", "gap": "1 hour", "max_size": "1 day"},
    ],
    "aggregates": {
        "n": {"count": "*", "where": "v > 2"},
        "worst": {"arg_max": ["v", "id"]},
        "top": {"top_k": {"column": "v", "k": 3}},
        "bins": {"histogram": {"column": "v", "edges": [0, 1]}},
        "own": {"use": "tests.jobs.test_secrets:Own", "args": ["v"]},
    },
    "emit": "final",
    "strict": False,
    "sink": {"path": "/data/out", "current": "/data/now"},
    "checkpoints": {"path": "/data/cp"},
    "expectations": [{"type": "expect_column_values_to_be_between", "column": "n", "min_value": 1, "max_value": 3, "severity": "warning"}],
    "quarantine": {"warn": "2 %", "hold": 0.25},
    "savepoints": {"every": "7 days", "keep": 4},
    "fold_revisions": "30 days",
    "schedule": "@daily",
    "airflow": {
        "catchup": False, "start_date": "2024-01-01", "retries": 2, "owner": "data", "tags": ["delays"],
        "on_failure": "tests.jobs.test_secrets:Own", "on_warning": "tests.jobs.test_secrets:Own",
    },
}  # fmt: skip

#: The same over interval events, which windows with policies do not take.
OVER_INTERVALS: dict[str, Any] = FULL | {
    "time": FULL["time"] | {"end": "u"},
    "windows": [window for window in FULL["windows"] if "evict" not in window],
}

#: The same over topics, whose client has secrets by names of variables.
OVER_TOPICS: dict[str, Any] = FULL | {
    "source": {
        "format": "kafka",
        "options": {
            "kafka.bootstrap.servers": "broker:9092", "subscribe": "readings",
            "schema": "k STRING, t TIMESTAMP, u TIMESTAMP, v DOUBLE, id BIGINT",
            "kafka.security.protocol": "SASL_SSL", "kafka.sasl.username": "reader", "kafka.sasl.password": "${SECRET}",
            "kafka.ssl.key.password": "${SECRET}", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "1000",
        },
        "changes": "ignore",
    },
}  # fmt: skip


class Own:
    """An aggregate of a user's."""

    def lift(self, value: Any) -> Any:
        return value

    def combine(self, older: Any, newer: Any) -> Any:
        return newer if older is None else older

    def lower(self, partial: Any) -> Any:
        return partial


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values, and of all mappings and lists."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for name, item in below for place in places(item, (*path, name)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    if isinstance(value, dict):
        return {name: changed(item, path[1:], new) if name == path[0] else item for name, item in value.items()}
    return [changed(item, path[1:], new) if place == path[0] else item for place, item in enumerate(value)]


#: A full spec, and the path of a part of it.
PARTS = [pytest.param(FULL, path, id=".".join(map(str, path))) for path in places(FULL)[1:]]
PARTS += [pytest.param(OVER_INTERVALS, ("time", "end"), id="intervals.time.end")]
PARTS += [
    pytest.param(OVER_TOPICS, path, id="topics." + ".".join(map(str, path))) for path in places(OVER_TOPICS)[1:] if path[0] == "source"
]


def given(folder: Path, spec: dict[str, Any]) -> str:
    file = folder / "p.yaml"
    file.write_text(yaml.safe_dump(spec, sort_keys=False))
    return str(file)


def shown(capsys: pytest.CaptureFixture[str], command: list[str]) -> tuple[int, str]:
    """The exit code of a command, and all that it has printed."""
    code, printed = main(command), capsys.readouterr()
    return code, printed.out + printed.err


@pytest.mark.covers("X4")
@pytest.mark.parametrize(("spec", "path"), PARTS)
@pytest.mark.parametrize(
    "form", ["${SECRET}", "a ${SECRET} b", ["${SECRET}"], {"x": "${SECRET}"}], ids=["text", "within", "list", "mapping"]
)
def test_what_came_from_the_environment_is_not_told_wherever_it_stands(tmp_path, capsys, monkeypatch, spec, path, form):
    monkeypatch.setenv("SECRET", CANARY)
    code, told = shown(capsys, ["validate", given(tmp_path, changed(spec, path, form))])
    assert "CaNaRy" not in told
    # A client's secret is its variable alone, and the message does not repeat what stands around the variable.
    reasons = ("${SECRET}", "missing", "unknown", "expected", *(["name them as ${NAME}"] if spec is OVER_TOPICS else []))
    assert code == 0 or any(reason in told for reason in reasons)


@pytest.mark.covers("X4")
@pytest.mark.parametrize(
    ("spec", "path"),
    # Paths of tables are told; credentials in them are masked.
    [part for part in PARTS if part.values[1][-1] != "path"],
)
@pytest.mark.parametrize(
    ("form", "command"),
    crossed(
        ["${SECRET}", "a ${SECRET} b", "${SECRET}:Own", "v > ${SECRET}"],
        [["explain"], ["explain", "--json"], ["validate"], ["validate", "--json"]],
    ),
    ids=str,
)
def test_explain_and_validate_do_not_show_it_either(tmp_path, capsys, monkeypatch, spec, path, form, command):
    monkeypatch.setenv("SECRET", "hunter2hunter2")
    assert "hunter2" not in shown(capsys, [*command, given(tmp_path, changed(spec, path, form))])[1]


def no_spark(*, brief: bool) -> None:
    """Stands for the start of Spark, which these tests do without."""
    raise MachineError(f"Spark is not started (brief: {brief})")


@pytest.mark.covers("X4")
@pytest.mark.parametrize(
    "command",
    [
        ["explain"], ["explain", "--json"], ["run"], ["backfill", "--from", "2024-01-01", "--to", "2024-01-02"], ["try", "--input", "rows"],
        ["status"], ["history"], ["quality"], ["state"], ["report"], ["maintain"], ["release"], ["abandon"],
    ],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize(
    "field",
    [
        {"aggregates": {"own": {"use": "${SECRET}:Own", "args": ["v"]}}},
        {"aggregates": {"n": {"count": "*", "where": "cast(name as int) > 1 or name = '${SECRET}'"}}},
        {"windows": [{"name": "w", "type": "custom", "function": "${SECRET}.windows:noted"}]},
        {"windows": [{"name": "w", "type": "tumbling", "evict": {"punctuation": "name = '${SECRET}'"}}]},
        {"windows": [{"name": "w", "type": "sliding", "evict": {"delta": {"column": "${SECRET}", "by": 1}}, "trigger": {"count": 1}}]},
        {"source": {"path": "source", "format": "${SECRET}"}},
        {"keys": ["${SECRET}"]},
    ],
    ids=["use", "where", "function", "punctuation", "delta", "format", "key"],
)  # fmt: skip
def test_no_command_tells_what_came_from_the_environment(tmp_path, capsys, monkeypatch, command, field):
    monkeypatch.setenv("SECRET", "hunter2hunter2")
    monkeypatch.setattr(launch, "begin", no_spark)
    monkeypatch.chdir(tmp_path)
    at = datetime(2024, 1, 1, tzinfo=UTC)
    write_deltalake("source", pa.table({"k": ["a"], "v": [1.0], "name": ["x"], "t": pa.array([at], pa.timestamp("us", "UTC"))}))
    Path("rows").write_text('{"k": "a", "v": 1, "name": "x", "t": "2024-01-01T00:00:00Z"}\n')
    places = {name: {"path": name} for name in ("source", "sink")}
    given(tmp_path, a_spec(**{**places, "keys": ["k"]} | field))
    assert "hunter2" not in shown(capsys, [command[0], "p.yaml", *command[1:]])[1]


@pytest.mark.parametrize("spec", [FULL, OVER_INTERVALS, OVER_TOPICS], ids=["table", "intervals", "topics"])
def test_the_full_spec_is_valid(tmp_path, monkeypatch, spec):
    monkeypatch.setenv("SECRET", CANARY)
    assert main(["validate", given(tmp_path, spec)]) == 0


def test_the_full_spec_has_every_field():
    assert set(parse_pipeline(FULL).model_fields_set) == set(type(parse_pipeline(FULL)).model_fields), "a field has no example here"


@pytest.mark.covers("X4")
@pytest.mark.parametrize("name", ["source", "sink", "checkpoints"])
@pytest.mark.parametrize("path", ["s3://key:CANARY@bucket/x", "https://CANARY@host/x", "https://host/x?sig=CANARY", "/data/token=CANARY/x"])
def test_credentials_are_refused_where_they_are_written_out(name, path):
    with pytest.raises(SpecError, match=f"{name}.path: holds credentials") as caught:
        parse_pipeline(FULL | {name: {"path": path}})
    assert "CANARY" not in str(caught.value)


@pytest.mark.covers("X4")
@pytest.mark.parametrize(
    "path", ["s3://key:${PART}@bucket/x", "s3://${USER_PART}:${PART}@bucket/x", "https://host/x?sig=${PART}", "${WHOLE}/x"]
)
def test_credentials_of_the_environment_are_masked(path):
    environment = {"PART": "CANARY", "USER_PART": "CANARY", "WHOLE": "s3://key:CANARY@bucket"}
    pipeline = parse_pipeline(FULL | {"sink": {"path": path}}, environment=environment)
    assert "CANARY" in pipeline.sink.path
    assert "CANARY" not in pipeline.sink.place
    assert "CANARY" not in str(SourceError(f"source {pipeline.sink.path}: cannot be read"))


@pytest.mark.covers("X4")
def test_what_a_pipeline_writes_and_says_holds_no_credentials(tmp_path, capsys):
    folder = tmp_path / "token=CANARY"
    spec = a_spec(keys=["k"], source={"path": "${PLACE}/in"}, sink={"path": str(tmp_path / "out")})
    pipeline = parse_pipeline(spec, environment={"PLACE": str(folder)})
    at = datetime(2024, 1, 1, tzinfo=UTC)
    write_deltalake(pipeline.source.path, pa.table({"k": ["a"], "t": pa.array([at], pa.timestamp("us", "UTC"))}))
    ledger = Ledger.open(pipeline)
    ledger.record(plan(0, meaning=pipeline.meaning_hash()), Outcome(seen=0, emitted=0, verdict="passed"), {}, at)
    page = tmp_path / "report.html"
    write_report(pipeline, out=str(page))
    assert "CANARY" not in page.read_text()
    log = sorted(Path(ledger.path).glob("_delta_log/*.json"))
    assert log
    assert all("CANARY" not in entry.read_text() for entry in log)
    file = given(tmp_path, spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PLACE", str(folder))
        for command in ("status", "history", "quality", "report", "state", "explain"):
            main([command, file])
        main(["validate", file, "--source"])
        main(["status", file, "--json"])
        (folder / "in" / "_delta_log" / "00000000000000000000.json").write_text("broken")
        main(["validate", file, "--source"])
        main(["run", file])
    captured = capsys.readouterr()
    assert "token=***" in captured.err
    assert "CANARY" not in captured.out + captured.err
    with pytest.raises(SpecError) as caught:
        load_pipeline(folder / "none.yaml")
    assert "CANARY" not in str(caught.value)


@pytest.mark.covers("X4")
@pytest.mark.parametrize("name", ["sink", "checkpoints"])
def test_no_table_is_made_where_its_location_is_a_credential(tmp_path, capsys, monkeypatch, name):
    monkeypatch.setenv("PLACE", str(tmp_path / "token=CANARY"))
    file = given(tmp_path, FULL | {name: {"path": "${PLACE}/x"}})
    for command in ("validate", "run"):
        code, told = shown(capsys, [command, file])
        assert (code, "CANARY" in told) == (2, False)
        assert f"{name}.path: holds credentials, which the table's history would keep" in told
    assert [path.name for path in tmp_path.iterdir()] == ["p.yaml"]


@pytest.mark.parametrize("command", ["validate", "explain", "run"])
@pytest.mark.parametrize("value", ["hunter2hunter2:Own", "hunter2hunter2.sums:Own"])
def test_pythons_own_words_about_a_module_do_not_tell_it(tmp_path, capsys, monkeypatch, command, value):
    monkeypatch.setenv("SECRET", value)
    monkeypatch.setattr(launch, "begin", no_spark)
    code, told = shown(capsys, [command, given(tmp_path, changed(FULL, ("aggregates", "own", "use"), "${SECRET}"))])
    assert (code != 0, "hunter2" in told) == (True, False)
