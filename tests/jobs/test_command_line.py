"""What all commands have in common: ``--json``, ``--debug``, and errors of one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from windowmill.jobs.cli import main
from windowmill.jobs.commands import COMMANDS
from windowmill.windowing.errors import SpecError

WINDOWS = [{"name": "w", "type": "tumbling", "size": 10}]


@pytest.fixture
def spec(tmp_path: Path) -> str:
    fields = {"pipeline": "p", "time": {"column": "t", "unit": "none"}, "windows": WINDOWS, "aggregates": {"n": {"count": "*"}}}
    path = tmp_path / "[x].yaml"
    path.write_text(yaml.safe_dump(fields | {"sink": {"path": str(tmp_path / "sink")}}))
    return str(path)


@pytest.mark.parametrize("name", COMMANDS.built_in())
def test_every_command_takes_json(name, capsys):
    assert main([name, "--help"]) == 0
    assert "--json" in capsys.readouterr().out


def test_validate_tells_what_it_found(spec, capsys):
    assert main(["validate", spec]) == 0
    assert capsys.readouterr().out.startswith(f"{spec}: pipeline p is valid: 1 windows, 1 aggregates; without source")
    assert main(["validate", spec, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"pipeline": "p", "status": "valid", "windows": ["w"], "aggregates": ["n"], "missing": ["source"]}


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
