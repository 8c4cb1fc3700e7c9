"""Who reads the rows of a small batch, and who computes it."""

from __future__ import annotations

import pytest

from windowmill.jobs.sources.plain_rows import PlainRows
from windowmill.jobs.ways import limits


def use_spark_for_small_batches(patch: pytest.MonkeyPatch) -> None:
    """Spark reads the rows of small batches from plain files, as it reads other rows."""
    patch.setattr(PlainRows, "of", classmethod(lambda *_: None))


def compute_by_many_tasks(patch: pytest.MonkeyPatch) -> None:
    """Many tasks of Spark compute batches that one task would compute, and restore their state."""
    patch.setattr(limits, "MAX_ROWS", 0)
    patch.setattr(limits, "MAX_STATE_ROWS", -1)
