"""``windowmill validate``: the whole spec is checked, the rules for its rows too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from windowmill.jobs.cli import main

RULE = {"type": "expect_column_values_to_be_between", "column": "n", "max_value": 3}


def validated(folder: Path, rule: dict[str, Any]) -> tuple[int, Path]:
    spec = {"pipeline": "p", "time": {"column": "t"}, "windows": [{"name": "w", "type": "tumbling", "size": "1 hour"}]}
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(spec | {"aggregates": {"n": {"count": "*"}}, "expectations": [rule]}))
    return main(["validate", str(path)]), path


def test_windows_that_no_run_would_work_on_are_refused(tmp_path, capsys):
    hopping = {"name": "w", "type": "hopping", "size": "10000 days", "hop": "1 us"}
    spec = {"pipeline": "p", "time": {"column": "t"}, "windows": [hopping], "aggregates": {"n": {"count": "*"}}}
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    assert main(["validate", str(path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"windowmill: {path}:5: windows.0: each event would be in")
    assert told.count("\n") == 1


def test_a_spec_with_rules_is_valid(tmp_path, capsys):
    code, path = validated(tmp_path, RULE)
    assert code == 0
    assert f"{path}: pipeline p is valid" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "line", "problem"),
    [
        ({"type": "expect_column_values_to_be_betwen"}, 7, "expectations.0.type: got 'expect_column_values_to_be_betwen'; did you mean"),
        ({"column": "nn"}, 5, "expectations.0.column: got 'nn'"),
    ],
)
def test_a_rule_that_no_run_could_check_is_refused(tmp_path, capsys, changed, line, problem):
    code, path = validated(tmp_path, RULE | changed)
    assert code == 2
    assert f"{path}:{line}: {problem}" in capsys.readouterr().err
