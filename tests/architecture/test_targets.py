"""What `make test` leaves out of a test, another target of the Makefile gives to it; every fault is injected by a test."""

from __future__ import annotations

import re
import runpy
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


def test_every_fault_that_the_page_names_is_injected_by_a_test_and_no_other():
    script = runpy.run_path(str(ROOT / "scripts/fault_ids.py"))
    faults, covered = script["faults"](), script["covered"]()
    assert len(faults) > 40, "the table of docs/reliability.md was not found"
    assert [fault for fault in faults if fault not in covered] == []
    assert sorted(set(covered) - set(faults)) == []
