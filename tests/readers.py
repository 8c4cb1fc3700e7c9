"""Who reads the rows of a small batch."""

from __future__ import annotations

import pytest


def use_spark_for_small_batches(patch: pytest.MonkeyPatch) -> None:
    """Runs over few rows in plain files use Spark from their beginning, as those over other rows do."""
    for module in ("spark_use", "steps"):
        patch.setattr(f"windowmill.jobs.batch.{module}.rows_without_spark", lambda *_: None)
