"""A pipeline that has published two batches, and where a ledger lies."""

from __future__ import annotations

import pytest

from tests.checkpoints.publishing import Pipeline


@pytest.fixture
def pipeline(tmp_path) -> Pipeline:
    made = Pipeline(tmp_path)
    for _ in range(2):
        made.run()
    return made


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "ledger")
