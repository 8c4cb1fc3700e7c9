"""What all commands have in common: ``--json``, ``--debug``, and errors of one line."""

from __future__ import annotations

import errno
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from tests.specs import TENS, TICKS, a_spec
from windowmill.checkpoints.places import Places
from windowmill.jobs.cli import main
from windowmill.jobs.commands import COMMANDS, command_of, summary_of
from windowmill.jobs.sources import plain_files
from windowmill.windowing.errors import SpecError
from windowmill.windowing.specfile import load_pipeline

WINDOWS = [TENS]
#: A rule that no batch passes.
NEVER = [{"type": "expect_column_values_to_be_between", "column": "n", "max_value": 0, "severity": "critical"}]


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "[x].yaml"
    path.write_text(yaml.safe_dump(a_spec(time=TICKS, windows=WINDOWS, sink={"path": str(tmp_path / "sink")})))
    return str(path)


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Calls a command that succeeds; what it says as JSON."""

    def answered(*arguments: str) -> Any:
        capsys.readouterr()
        assert main([*arguments, "--json"]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return answered


@pytest.fixture
def specs(spec: str, tmp_path: Path) -> list[str]:
    """Specs of three pipelines over one source; that of the second has no windows."""
    write_deltalake(str(tmp_path / "source"), pa.table({"t": [1, 12, 25]}))
    fields = yaml.safe_load(Path(spec).read_text()) | {"source": {"path": str(tmp_path / "source")}, "compute": "local"}
    paths = [tmp_path / f"{name}.yaml" for name in ("a", "b", "c")]
    for path in paths:
        own = {"pipeline": path.stem, "sink": {"path": str(tmp_path / path.stem)}, "windows": [] if path.stem == "b" else WINDOWS}
        path.write_text(yaml.safe_dump(fields | own))
    return [str(path) for path in paths]


def change(path: str | Path, **fields: Any) -> None:
    """Write these fields into a spec."""
    Path(path).write_text(yaml.safe_dump(yaml.safe_load(Path(path).read_text()) | fields), encoding="utf-8")


@pytest.mark.parametrize("name", COMMANDS.built_in)
def test_every_command_takes_json_and_is_listed_with_the_first_paragraph_of_its_help(name, capsys):
    assert main([name, "--help"]) == 0
    assert "--json" in capsys.readouterr().out
    assert summary_of(name) == " ".join((inspect.getdoc(command_of(name)) or "").partition("\n\n")[0].split())


def test_what_the_encoding_of_the_locale_lacks_is_written_as_its_code(spec):
    change(spec, keys=["größe→"])
    command = [sys.executable, "-c", "import sys; from windowmill.jobs.cli import command; sys.exit(command())", "explain", spec]
    latin = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "PYTHONIOENCODING": "iso-8859-1"}
    done = subprocess.run(command, capture_output=True, check=False, env=latin, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "größe\\u2192" in done.stdout.decode("iso-8859-1")


@pytest.mark.parametrize(("typed", "completed"), [("pl", ["plan"]), ("backfill --fr", ["--from"]), ("run --max", ["--max-batches"])])
def test_a_shell_completes_commands_and_options(typed, completed, capsys, monkeypatch):
    monkeypatch.setenv("_WINDOWMILL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"windowmill {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    with pytest.raises(SystemExit, match="0"):
        main([])
    assert capsys.readouterr().out.split() == completed


def test_without_a_command_the_version_or_the_help_alone_is_told(capsys):
    assert (main(["--version"]), capsys.readouterr().out) == (0, f"windowmill {version('windowmill')}\n")
    assert main([]) == 2
    told = capsys.readouterr()
    assert "Usage: windowmill" in told.out + told.err
    assert "windowmill: ;" not in told.err


def test_the_schema_of_a_spec_is_printed_or_written(spec, tmp_path, answer):
    printed = answer("schema")
    jsonschema.validate(yaml.safe_load(Path(spec).read_text()), printed)
    with pytest.raises(jsonschema.ValidationError, match="windws"):
        jsonschema.validate(yaml.safe_load(Path(spec).read_text()) | {"windws": []}, printed)
    path = tmp_path / "windowmill.schema.json"
    assert answer("schema", "--out", str(path)) == {"schema": str(path)}
    assert json.loads(path.read_text()) == printed


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("validate", "windowmill: Missing argument 'SPEC'; see `windowmill --help`\n"),
        ("savepoint SPEC frob", "windowmill: Invalid value for 'create|list|restore|drop': 'frob' is not one of 'create'"),
        ("verify SPEC --from 9 --to 3", "windowmill: --from 9 is not before --to 3; windows that end in (from, to] are verified\n"),
        ("report", "expected a SPEC, or --all FOLDER"),
        ("report SPEC --all /tmp", "expected a SPEC, or --all FOLDER"),
        ("report --all SPEC", "SPEC is not a folder"),
        ("schema --out /nonexistent/schema.json", "cannot be written (No such file or directory); name a file"),
    ],
)
def test_wrong_usage_is_told_in_one_line_without_the_parsers_own_words(spec, capsys, arguments, told):
    assert main([word.replace("SPEC", spec) for word in arguments.split()]) == 2
    err = capsys.readouterr().err
    assert told.replace("SPEC is", f"{spec} is") in err
    assert err.count("\n") == 1


def test_validate_report_and_try_tell_what_they_found(spec, tmp_path, capsys, answer):
    assert main(["validate", spec]) == 0
    assert capsys.readouterr().out.startswith(f"{spec}: pipeline p is valid: 1 window, 1 aggregate; without source")
    assert answer("validate", spec) == {"pipeline": "p", "status": "valid", "windows": ["w"], "aggregates": ["n"], "missing": ["source"]}
    page = tmp_path / "page.html"
    assert answer("report", spec, "--out", str(page)) == {"pipeline": "p", "report": str(page)}
    assert page.stat().st_size > 0
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"t": 1}\n{"t": 12}\n{"t": 3}\n')
    assert main(["try", spec, "--input", str(rows)]) == 0
    plain = capsys.readouterr()
    assert [json.loads(line)["n"] for line in plain.out.splitlines()] == [1, 1]
    assert (main(["try", spec, "--input", str(rows), "--json"]), capsys.readouterr()) == (0, plain)


def test_overview_of_a_folder(specs, tmp_path, capsys, answer):
    """A pipeline that cannot be read is a row that says why, before those that have passed."""
    Path(tmp_path / "[x].yaml").unlink()
    assert [main([command, specs[0]]) for command in ("run", "report")] == [0, 0]
    page = tmp_path / "pages" / "all.html"
    told = answer("report", "--all", str(tmp_path), "--out", str(page))
    assert told["report"] == str(page)
    rows = {row["name"]: row for row in told["pipelines"]}
    assert list(rows) == ["b", "c", "a"]
    assert {name: row["verdict"] for name, row in rows.items()} == {"a": "passed", "b": "cannot be read", "c": "never run"}
    assert "windows" in rows["b"]["error"]
    assert (rows["a"]["rows_read"], rows["a"]["computed"], rows["a"]["event"]) == (3, "local", "25")
    assert (rows["a"]["href"], rows["c"]["href"]) == ("../a.windowmill/report.html", "")
    html = page.read_text()
    assert 'href="../a.windowmill/report.html"' in html
    assert not re.search(r"https?:|//[a-z]|url\(|@import", html)
    assert main(["report", "--all", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/overview.html: 3 pipelines (1 cannot be read, 1 never run, 1 passed)\n"


def test_the_overview_has_a_row_for_each_pipeline_with_what_comes_next(specs, tmp_path, answer):
    Path(tmp_path / "[x].yaml").unlink()
    fields = yaml.safe_load(Path(specs[0]).read_text())
    assert main(["run", specs[0]]) == 0
    for name, changes in (("a_copy", {}), ("0_old", {"windows": [WINDOWS[0] | {"size": 20}]})):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(fields | changes))
    (tmp_path / "elsewhere.yaml").write_text(yaml.safe_dump(fields | {"sink": {"path": str(tmp_path / "other_sink")}}))
    change(specs[2], expectations=NEVER)
    assert main(["run", specs[2]]) == 3
    Path(specs[1]).unlink()

    def rows() -> list[tuple[str, str, list[str], list[str]]]:
        told = answer("report", "--all", str(tmp_path))["pipelines"]
        return [(row["name"], Path(row["spec"]).stem, [Path(other).stem for other in row["others"]], row["next"]) for row in told]

    held = [f"windowmill release {specs[2]}", f"windowmill discard {specs[2]}"]
    assert rows() == [("c", "c", [], held), ("a", "elsewhere", [], []), ("a", "a", ["0_old", "a_copy"], [])]
    for gone in (specs[0], tmp_path / "a_copy.yaml"):
        Path(gone).unlink()
    assert rows()[2] == ("a", "0_old", [], [f"windowmill plan {tmp_path / '0_old.yaml'}"])
    page = (tmp_path / "overview.html").read_text()
    assert f"<code>{held[0]}</code> or <code>{held[1]}</code>" in page
    change(specs[2], windows=[WINDOWS[0] | {"size": 20}])
    assert rows()[0] == ("c", "c", [], [f"windowmill abandon {specs[2]}"])
    assert main(rows()[0][3][0].split()[1:]) == 0, "what it proposes is not refused"


@pytest.mark.parametrize(
    "fields", [{"keys": ["t"]}, {"aggregates": {"other": {"max": "t"}}}, {"windows": [{"name": "w", "type": "session", "gap": 5}]}]
)
def test_what_a_changed_spec_reads_is_read_as_it_was_computed(specs, capsys, fields):
    assert main(["run", specs[0]]) == 0
    change(specs[0], **fields)
    for command in (["report"], ["suggest"], ["maintain"], ["maintain", "--fold-revisions", "1 hour"], ["quality"], ["status"]):
        assert main([command[0], specs[0], *command[1:]]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(("number", "advice"), [(errno.EIO, "run again; if it stays"), (errno.EACCES, "give the user of this run")])
def test_a_source_file_that_storage_does_not_give_is_no_matter_of_who_computes(specs, tmp_path, capsys, monkeypatch, number, advice):
    def failing(*_args: object, **_named: object) -> None:
        raise OSError(number, f"Failed to open local file. Detail: [errno {number}] {os.strerror(number)}")

    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    with monkeypatch.context() as broken:
        broken.setattr(plain_files.OpenFile, "__enter__", failing)
        assert main(["run", specs[0]]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"the source's rows cannot be read now ([Errno {number}]" in last
    assert advice in last
    assert main(["run", specs[0]]) == 0


@pytest.mark.parametrize("damage", ["data", "log"])
def test_a_damaged_quality_table_is_named_where_a_batch_is_held(specs, tmp_path, capsys, damage):
    change(specs[0], expectations=NEVER)
    assert main(["run", specs[0]]) == 3
    quality = tmp_path / "a.windowmill" / "quality"
    for file in quality.glob("*.parquet") if damage == "data" else (quality / "_delta_log").glob("*.json"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    for command in ("status", "quality", "run", "report"):
        capsys.readouterr()
        assert main([command, specs[0]]) == 1
        last = capsys.readouterr().err.splitlines()[-1]
        assert f"{quality}" in last
        assert "cannot be" in last
        assert "at ./" not in last


@pytest.mark.parametrize("arguments", [["--debug", "validate", "none.yaml"], ["validate", "none.yaml", "--debug"]])
def test_debug_stands_before_or_behind_the_command(arguments):
    with pytest.raises(SpecError, match=r"'none\.yaml': cannot be read"):
        main(arguments)


def test_run_advances_many_pipelines_and_an_error_of_one_stops_no_other(specs, tmp_path, capsys):
    assert main(["run", *specs, "--json"]) == 2
    told = capsys.readouterr()
    answers = [json.loads(line) for line in told.out.splitlines()]
    assert [(answer["pipeline"], answer["batches"][0]["rows_published"]) for answer in answers] == [("a", 2), ("c", 2)]
    assert DeltaTable(str(tmp_path / "c")).count() == 2
    assert told.err.endswith(f"windowmill: 1 of 3 pipelines failed: {specs[1]} (exit code 2)\n")
    assert main(["run", specs[0], specs[2]]) == 0
    assert capsys.readouterr().out == "a: nothing new\nc: nothing new\n"


def test_quality_tells_the_rows_that_a_verification_found_differing(specs, capsys):
    assert main(["run", specs[0]]) == 0
    table = DeltaTable(Places.of(load_pipeline(specs[0])).quality)
    found = {"origin": "verify", "outcome": "failed", "unexpected": 1, "examples": json.dumps(["n: 2 instead of 3"]), "values": None}
    row = table.to_pyarrow_table().slice(0, 1).to_pylist()[0] | found
    write_deltalake(table, pa.Table.from_pylist([row], schema=pa.schema(table.schema().to_arrow())), mode="append")
    capsys.readouterr()
    assert main(["quality", specs[0]]) == 0
    assert "n: 2 instead of 3" in capsys.readouterr().out


def test_cost_counts_what_batches_use_and_what_a_month_of_them_takes(specs, capsys, answer, monkeypatch):
    spec = Path(specs[0])
    # Another process computes batches of Spark, of which the processor time is not known; these are computed here.
    monkeypatch.setenv("WINDOWMILL_MASTER", "spark://host:7077")
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    change(spec, schedule="@daily")
    source = DeltaTable(str(spec.parent / "source"))
    for t in (35, 45, 55):
        assert main(["run", str(spec)]) == 0
        write_deltalake(source.table_uri, pa.table({"t": [t]}), mode="append")
    cost = answer("cost", str(spec), "--price-per-hour", "3600")
    month, batches = cost["month"], cost["batches"]
    assert (month["runs"], month["basis"]) == (pytest.approx(365 / 12, abs=0.01), "schedule @daily")
    assert month["seconds"] == month["price"] == pytest.approx(sum(b["seconds"] for b in batches[1:]) / 2 * 365 / 12, abs=0.1)
    sizes = pa.table(DeltaTable(source.table_uri).get_add_actions(flatten=True))["size_bytes"].to_pylist()
    assert sum(b["bytes_read"] for b in batches) < sum(sizes), "the last version has not been read"
    assert all(b["bytes_read"] in sizes and b["processor_seconds"] >= 0 for b in batches)
    state = DeltaTable(str(spec.parent / "a.windowmill" / "state"))
    assert batches[-1]["state_bytes"] == sum(pa.table(state.get_add_actions(flatten=True))["size_bytes"].to_pylist())
    assert main(["cost", str(spec)]) == 0
    assert "a month: 30 runs (schedule @daily) take " in capsys.readouterr().out
    assert [b["state_bytes"] for b in answer("history", str(spec))] == [b["state_bytes"] for b in batches]
