"""What all commands have in common: ``--json``, ``--debug``, and errors of one line."""

from __future__ import annotations

import errno
import inspect
import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import jsonschema
import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from windowmill.checkpoints.places import Places
from windowmill.jobs.cli import main
from windowmill.jobs.commands import COMMANDS, command_of, summary_of
from windowmill.jobs.sources import plain_files
from windowmill.windowing.errors import SpecError
from windowmill.windowing.specfile import load_pipeline

WINDOWS = [{"name": "w", "type": "tumbling", "size": 10}]


@pytest.fixture
def spec(tmp_path: Path) -> str:
    fields = {"pipeline": "p", "time": {"column": "t", "unit": "none"}, "windows": WINDOWS, "aggregates": {"n": {"count": "*"}}}
    path = tmp_path / "[x].yaml"
    path.write_text(yaml.safe_dump(fields | {"sink": {"path": str(tmp_path / "sink")}}))
    return str(path)


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


@pytest.mark.parametrize("name", COMMANDS.built_in())
def test_every_command_takes_json(name, capsys):
    assert main([name, "--help"]) == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS.built_in())
def test_the_list_of_commands_has_the_first_paragraph_of_each_ones_help(name):
    assert summary_of(name) == " ".join((inspect.getdoc(command_of(name)) or "").partition("\n\n")[0].split())


def test_what_the_encoding_of_the_locale_lacks_is_written_as_its_code(spec):
    fields = yaml.safe_load(Path(spec).read_text())
    Path(spec).write_text(yaml.safe_dump(fields | {"keys": ["größe→"]}), encoding="utf-8")
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


def test_the_version_is_told(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"windowmill {version('windowmill')}\n"


def test_the_schema_of_a_spec_is_printed_or_written(spec, tmp_path, capsys):
    assert main(["schema", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    jsonschema.validate(yaml.safe_load(Path(spec).read_text()), printed)
    with pytest.raises(jsonschema.ValidationError, match="windws"):
        jsonschema.validate(yaml.safe_load(Path(spec).read_text()) | {"windws": []}, printed)
    path = tmp_path / "windowmill.schema.json"
    assert main(["schema", "--out", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"schema": str(path)}
    assert json.loads(path.read_text()) == printed
    assert main(["schema", "--out", str(tmp_path / "none" / "schema.json")]) == 2
    assert "cannot be written (No such file or directory); name a file" in capsys.readouterr().err


def test_a_word_that_is_no_choice_is_told_without_the_parsers_own_words(spec, capsys):
    assert main(["savepoint", spec, "frob"]) == 2
    assert capsys.readouterr().err.startswith("windowmill: Invalid value for 'create|list|restore|drop': 'frob' is not one of 'create'")


def test_validate_tells_what_it_found(spec, capsys):
    assert main(["validate", spec]) == 0
    assert capsys.readouterr().out.startswith(f"{spec}: pipeline p is valid: 1 window, 1 aggregate; without source")
    assert main(["validate", spec, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"pipeline": "p", "status": "valid", "windows": ["w"], "aggregates": ["n"], "missing": ["source"]}


def test_verify_refuses_an_empty_range_before_it_starts_spark(spec, capsys):
    assert main(["verify", spec, "--from", "9", "--to", "3"]) == 2
    assert capsys.readouterr().err == "windowmill: --from 9 is not before --to 3; windows that end in (from, to] are verified\n"


def test_report_takes_a_spec_or_a_folder(spec, tmp_path, capsys):
    for arguments in ([], [spec, "--all", str(tmp_path)]):
        assert main(["report", *arguments]) == 2
        assert "expected a SPEC, or --all FOLDER" in capsys.readouterr().err
    assert main(["report", "--all", spec]) == 2
    assert f"{spec} is not a folder" in capsys.readouterr().err


def test_overview_of_a_folder(specs, tmp_path, capsys):
    """A pipeline that cannot be read is a row that says why, before those that have passed."""
    Path(tmp_path / "[x].yaml").unlink()
    assert main(["run", specs[0]]) == 0
    capsys.readouterr()
    page = tmp_path / "pages" / "all.html"
    assert main(["report", specs[0], "--json"]) == 0
    capsys.readouterr()
    assert main(["report", "--all", str(tmp_path), "--out", str(page), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["report"] == str(page)
    rows = {row["name"]: row for row in answer["pipelines"]}
    assert list(rows) == ["b", "c", "a"]
    assert {name: row["verdict"] for name, row in rows.items()} == {"a": "passed", "b": "cannot be read", "c": "never run"}
    assert "windows" in rows["b"]["error"]
    assert (rows["a"]["rows_read"], rows["a"]["computed"], rows["a"]["event"]) == (3, "local", "25")
    assert rows["a"]["href"] == "../a.windowmill/report.html"
    assert rows["c"]["href"] == ""
    html = page.read_text()
    assert 'href="../a.windowmill/report.html"' in html
    assert not re.search(r"https?:|//[a-z]|url\(|@import", html)
    assert main(["report", "--all", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/overview.html: 3 pipelines (1 cannot be read, 1 never run, 1 passed)\n"


def test_the_overview_has_a_row_for_each_pipeline_with_what_comes_next(specs, tmp_path, capsys):
    Path(tmp_path / "[x].yaml").unlink()
    fields = yaml.safe_load(Path(specs[0]).read_text())
    assert main(["run", specs[0]]) == 0
    for name, changes in (("a_copy", {}), ("0_old", {"windows": [WINDOWS[0] | {"size": 20}]})):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(fields | changes))
    (tmp_path / "elsewhere.yaml").write_text(yaml.safe_dump(fields | {"sink": {"path": str(tmp_path / "other_sink")}}))
    never = [{"type": "expect_column_values_to_be_between", "column": "n", "max_value": 0, "severity": "critical"}]
    Path(specs[2]).write_text(yaml.safe_dump(yaml.safe_load(Path(specs[2]).read_text()) | {"expectations": never}))
    assert main(["run", specs[2]]) == 3
    Path(specs[1]).unlink()
    capsys.readouterr()

    def rows() -> list[tuple[str, str, list[str], list[str]]]:
        assert main(["report", "--all", str(tmp_path), "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)["pipelines"]
        return [(row["name"], Path(row["spec"]).stem, [Path(other).stem for other in row["others"]], row["next"]) for row in answer]

    held = [f"windowmill release {specs[2]}", f"windowmill discard {specs[2]}"]
    assert rows() == [("c", "c", [], held), ("a", "elsewhere", [], []), ("a", "a", ["0_old", "a_copy"], [])]
    for gone in (specs[0], tmp_path / "a_copy.yaml"):
        Path(gone).unlink()
    assert rows()[2] == ("a", "0_old", [], [f"windowmill plan {tmp_path / '0_old.yaml'}"])
    page = (tmp_path / "overview.html").read_text()
    assert f"<code>{held[0]}</code> or <code>{held[1]}</code>" in page
    Path(specs[2]).write_text(Path(specs[2]).read_text().replace("size: 10", "size: 20"))
    assert rows()[0] == ("c", "c", [], [f"windowmill abandon {specs[2]}"])
    assert main(rows()[0][3][0].split()[1:]) == 0, "what it proposes is not refused"


@pytest.mark.parametrize(
    "change", [{"keys": ["t"]}, {"aggregates": {"other": {"max": "t"}}}, {"windows": [{"name": "w", "type": "session", "gap": 5}]}]
)
def test_what_a_changed_spec_reads_is_read_as_it_was_computed(specs, capsys, change):
    assert main(["run", specs[0]]) == 0
    Path(specs[0]).write_text(yaml.safe_dump(yaml.safe_load(Path(specs[0]).read_text()) | change))
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
    never = [{"type": "expect_column_values_to_be_between", "column": "n", "max_value": 0, "severity": "critical"}]
    Path(specs[0]).write_text(yaml.safe_dump(yaml.safe_load(Path(specs[0]).read_text()) | {"expectations": never}))
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


def test_report_tells_where_its_page_is(spec, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["report", spec, "--out", str(page), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"pipeline": "p", "report": str(page)}
    assert page.stat().st_size > 0


def test_try_prints_json_lines_with_and_without_json(spec, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"t": 1}\n{"t": 12}\n{"t": 3}\n')
    assert main(["try", spec, "--input", str(rows)]) == 0
    plain = capsys.readouterr()
    assert main(["try", spec, "--input", str(rows), "--json"]) == 0
    assert capsys.readouterr() == plain
    assert [json.loads(line)["n"] for line in plain.out.splitlines()] == [1, 1]


@pytest.mark.parametrize("arguments", [["--debug", "validate", "none.yaml"], ["validate", "none.yaml", "--debug"]])
def test_debug_stands_before_or_behind_the_command(arguments):
    with pytest.raises(SpecError, match=r"'none\.yaml': cannot be read"):
        main(arguments)


def test_nothing_to_do_is_answered_by_the_help_alone(capsys):
    assert main([]) == 2
    told = capsys.readouterr()
    assert "Usage: windowmill" in told.out + told.err
    assert "windowmill: ;" not in told.err


def test_wrong_usage_is_one_line(capsys):
    assert main(["validate"]) == 2
    assert capsys.readouterr().err == "windowmill: Missing argument 'SPEC'; see `windowmill --help`\n"


def test_run_advances_many_pipelines_and_an_error_of_one_stops_no_other(specs, tmp_path, capsys):
    assert main(["run", *specs, "--json"]) == 2
    told = capsys.readouterr()
    answers = [json.loads(line) for line in told.out.splitlines()]
    assert [(answer["pipeline"], answer["batches"][0]["rows_published"]) for answer in answers] == [("a", 2), ("c", 2)]
    assert DeltaTable(str(tmp_path / "c")).count() == 2
    assert told.err.endswith(f"windowmill: 1 of 3 pipelines failed: {specs[1]} (exit code 2)\n")
    assert main(["run", specs[0], specs[2]]) == 0
    assert capsys.readouterr().out == "a: nothing new\nc: nothing new\n"


def test_a_run_whose_batch_is_held_tells_so_in_json(specs, capsys):
    spec = Path(specs[0])
    spec.write_text(f"{spec.read_text()}expectations: [{{type: expect_column_values_to_be_between, column: window_end, max_value: 25}}]\n")
    source = DeltaTable(str(spec.parent / "source"))
    assert main(["run", str(spec), "--json"]) == 0
    capsys.readouterr()
    write_deltalake(source.table_uri, pa.table({"t": [99]}), mode="append")
    assert main(["run", str(spec), "--json"]) == 3
    assert json.loads(capsys.readouterr().out) == {"pipeline": "a", "status": "held", "batches": []}


def test_quality_tells_the_rows_that_a_verification_found_differing(specs, capsys):
    assert main(["run", specs[0]]) == 0
    table = DeltaTable(Places.of(load_pipeline(specs[0])).quality)
    found = {"origin": "verify", "outcome": "failed", "unexpected": 1, "examples": json.dumps(["n: 2 instead of 3"]), "values": None}
    row = table.to_pyarrow_table().slice(0, 1).to_pylist()[0] | found
    write_deltalake(table, pa.Table.from_pylist([row], schema=pa.schema(table.schema().to_arrow())), mode="append")
    capsys.readouterr()
    assert main(["quality", specs[0]]) == 0
    assert "n: 2 instead of 3" in capsys.readouterr().out


def test_cost_counts_what_batches_use_and_what_a_month_of_them_takes(specs, capsys):
    spec = Path(specs[0])
    spec.write_text(f"{spec.read_text()}schedule: '@daily'\n")
    source = DeltaTable(str(spec.parent / "source"))
    for t in (35, 45, 55):
        assert main(["run", str(spec), "--json"]) == 0
        write_deltalake(source.table_uri, pa.table({"t": [t]}), mode="append")
    capsys.readouterr()
    assert main(["cost", str(spec), "--price-per-hour", "3600", "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)
    month, batches = cost["month"], cost["batches"]
    assert month["runs"] == pytest.approx(365 / 12, abs=0.01)
    assert month["basis"] == "schedule @daily"
    assert month["seconds"] == month["price"] == pytest.approx(sum(b["seconds"] for b in batches[1:]) / 2 * 365 / 12, abs=0.1)
    sizes = pa.table(DeltaTable(source.table_uri).get_add_actions(flatten=True))["size_bytes"].to_pylist()
    assert sum(b["bytes_read"] for b in batches) < sum(sizes), "the last version has not been read"
    assert all(b["bytes_read"] in sizes and b["processor_seconds"] >= 0 for b in batches)
    state = DeltaTable(str(spec.parent / "a.windowmill" / "state"))
    assert batches[-1]["state_bytes"] == sum(pa.table(state.get_add_actions(flatten=True))["size_bytes"].to_pylist())
    assert main(["cost", str(spec)]) == 0
    assert "a month: 30 runs (schedule @daily) take " in capsys.readouterr().out
    assert main(["history", str(spec), "--json"]) == 0
    assert [b["state_bytes"] for b in json.loads(capsys.readouterr().out)] == [b["state_bytes"] for b in batches]
