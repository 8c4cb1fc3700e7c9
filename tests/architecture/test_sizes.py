"""A module is one story: how long it may be, and its functions, and how many parameters they take."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("windowing", "checkpoints", "expectations", "jobs", "dags")
LONGEST_MODULE, LONGEST_FUNCTION, MAX_PARAMETERS = 400, 60, 15


def modules(package: str) -> dict[str, str]:
    """Text of each module of the package, by path."""
    found = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted((ROOT / package).rglob("*.py"))}
    assert found, f"no files under {package}/: has the folder moved?"
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_are_short(package):
    lines = {name: len(text.splitlines()) for name, text in modules(package).items()}
    assert {name: count for name, count in lines.items() if count > LONGEST_MODULE} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_functions_are_short_and_take_few_parameters(package):
    long, many = {}, {}
    for name, text in modules(package).items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                long[f"{name}::{node.name}"] = node.end_lineno - node.lineno + 1
                many[f"{name}::{node.name}"] = len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs])
    assert {name: count for name, count in long.items() if count > LONGEST_FUNCTION} == {}
    assert {name: count for name, count in many.items() if count > MAX_PARAMETERS} == {}
