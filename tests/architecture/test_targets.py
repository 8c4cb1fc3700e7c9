"""What `make test` leaves out of a test, another target of the Makefile gives to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: By the variable that a target sets, what a test says that does more with it.
SAYING = {
    "HYPOTHESIS_PROFILE": r"^@given\(",
    "WINDOWMILL_AIRFLOW_FAULTS": "WINDOWMILL_AIRFLOW_FAULTS",
    "WINDOWMILL_CASES": r"EVERY_CASE|by_each_scheduler\(",
    "WINDOWMILL_FAULTS": r"WINDOWMILL_FAULTS|^from tests\.matrices import",
}


def folders_and_files(variable: str) -> list[str]:
    """What pytest is given wherever a recipe sets ``variable``."""
    lines = (ROOT / "Makefile").read_text().replace("\\\n", " ").splitlines()
    return [path for line in lines if f"{variable}=" in line for path in re.findall(r"tests/\S*", line)]


@pytest.mark.parametrize("variable", SAYING)
def test_every_case_of_a_test_is_tried_by_a_target(variable):
    tried = {path for given in folders_and_files(variable) for found in ROOT.glob(given) for path in [found, *found.rglob("test_*.py")]}
    tests = [path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
    asking = {path for path in tests if re.search(SAYING[variable], path.read_text(), re.MULTILINE)}
    assert asking, f"no test says {SAYING[variable]}"
    assert sorted(path.relative_to(ROOT).as_posix() for path in asking - tried) == []
