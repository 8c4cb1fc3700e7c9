"""Who reads the rows of a small batch, and who computes it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

from windowmill.jobs.layouts import limits
from windowmill.jobs.sources.plain_rows import PlainRows

#: Whether Spark gets every case of a test, as by `make cases`, where by `make test` it gets some.
EVERY_CASE = os.environ.get("WINDOWMILL_CASES") == "all"
Test = TypeVar("Test", bound=Callable[..., object])


def use_spark_for_small_batches(patch: pytest.MonkeyPatch) -> None:
    """Spark reads the rows of small batches from plain files, as it reads other rows."""
    patch.setattr(PlainRows, "of", classmethod(lambda *_: None))


def compute_by_many_tasks(patch: pytest.MonkeyPatch) -> None:
    """Many tasks of Spark compute batches that one task would compute, and restore their state."""
    patch.setattr(limits, "MAX_ROWS", 0)
    patch.setattr(limits, "MAX_STATE_ROWS", -1)


def by_each_scheduler(name: str, cases: Iterable[str], *, by_tasks: Iterable[str]) -> Callable[[Test], Test]:
    """Have a test try the ``cases`` in this process, and those of ``by_tasks`` by many tasks of Spark besides."""
    cases = list(cases)
    tried = [
        *((case, "this process") for case in cases),
        *(pytest.param(case, "many tasks", marks=pytest.mark.spark) for case in (cases if EVERY_CASE else by_tasks)),
    ]

    def decorated(test: Test) -> Test:
        parametrized = pytest.mark.parametrize((name, "each_scheduler"), tried, indirect=["each_scheduler"])(test)
        return pytest.mark.usefixtures("each_scheduler")(parametrized)

    return decorated
