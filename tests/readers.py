"""Who reads the rows of a small batch."""

from __future__ import annotations

import pytest

from windowmill.jobs.sources.plain_rows import PlainRows


def use_spark_for_small_batches(patch: pytest.MonkeyPatch) -> None:
    """Spark reads the rows of small batches from plain files, as it reads other rows."""
    patch.setattr(PlainRows, "of", classmethod(lambda *_: None))
