"""Cases from the tests and documentation of others, through ``windowmill try --engine spark``: a sample, or all by ``make cases``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cases.test_cases import CASES, check, run
from tests.readers import EVERY_CASE

pytestmark = pytest.mark.spark

#: Every so manieth case is tried, so that all kinds are.
EVERY = 1 if EVERY_CASE else 29


@pytest.mark.parametrize("case", CASES[::EVERY], ids=lambda case: case["id"])
def test_gives_the_rows_of_the_case_and_of_the_kernels(spark: object, case: dict[str, Any], tmp_path: Path):
    rows, quarantined = run(case, tmp_path, "spark", None)
    check(case, rows)
    kernel_rows, kernel_quarantined = run(case, tmp_path, "kernel", None)
    assert quarantined == kernel_quarantined
    assert [{name: row[name] for name in PLACE if name in row} for row in rows] == [
        {name: row[name] for name in PLACE if name in row} for row in kernel_rows
    ]


PLACE = ("key", "window", "window_start", "window_end", "trigger", "revision")
