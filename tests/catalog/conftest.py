"""Fixtures: one metastore, and one Spark that asks it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.catalog import metastores


@pytest.fixture(scope="package")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[metastores.Player]:
    with metastores.hive(tmp_path_factory.mktemp("hive")) as playing:
        yield playing
