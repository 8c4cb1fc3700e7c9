"""The list of mutants stays true to the code: each can be applied, and its tests exist. ``make mutants`` tries them."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant
from tests.mutants.mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[2]


@cache
def functions_in(path: str) -> set[str]:
    """Names of the functions of a file of tests."""
    return {node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)}


def test_names_are_told_apart():
    assert len(MUTANTS) >= 50
    assert [name for name, times in Counter(mutant.name for mutant in MUTANTS).items() if times > 1] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_applied_and_its_tests_exist(mutant: Mutant):
    ast.parse(mutant.applied((ROOT / mutant.path).read_text()))
    assert mutant.tests
    for test in mutant.tests:
        path, _, name = test.partition("::")
        assert name.partition("[")[0] in functions_in(path), f"{test} is not there any more"
        assert mutant.spark == path.startswith(("tests/spark/", "tests/faults/")), "Spark is for `make mutants` to leave out"
