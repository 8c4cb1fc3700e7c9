"""The tables of docs/algorithms.md: formulas are those of ``explain``, and counts are counted again."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import mean

import pytest

from tests.windowing.test_engines import counts
from windowmill.windowing.textbook import ENGINES, engine_cost

TEXT = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()


def table(heading: str) -> list[list[str]]:
    """Cells of the rows of the table whose first column is headed ``heading``."""
    [rows] = re.findall(rf"^\| {re.escape(heading)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows.splitlines()]


COUNTED = table("n, m")


def test_the_page_has_every_engine_with_a_section_of_its_own():
    assert [row[0] for row in table("engine")] == list(ENGINES)
    headings = re.findall(r"^### (.*)$", TEXT.split("\n## Engines")[1].split("\n## ")[0], re.MULTILINE)
    assert len(headings) == len(ENGINES)
    assert all("```" in section for section in TEXT.split("\n## Engines")[1].split("\n## ")[0].split("\n### ")[1:])


@pytest.mark.parametrize("name", ENGINES)
def test_formulas_are_those_of_explain(name: str):
    [row] = [row for row in table("engine") if row[0] == name]
    assert row[1] == engine_cost(name, None, None).formula
    assert ("an exact inverse" in row[4]) == bool(ENGINES[name].needs)
    assert row[5] in ("anything", "the oldest")


@pytest.mark.parametrize("place", range(len(ENGINES)), ids=list(ENGINES))
@pytest.mark.parametrize("row", COUNTED, ids=[row[0] for row in COUNTED])
def test_counts_are_what_is_counted(row: list[str], place: int):
    n, m = map(int, row[0].split(", "))
    found = counts(list(ENGINES)[place], n, m)
    match = re.fullmatch(r"([\d.]+)(?: \((\d+)\))?", row[1 + place])
    assert match
    assert mean(found) == pytest.approx(float(match[1]), abs=0.06)
    assert max(found) == int(match[2] or match[1])
