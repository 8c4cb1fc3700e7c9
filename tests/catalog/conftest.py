"""Fixtures: one metastore, and one Spark that asks it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.catalog.metastores import Player, hive_settings, metastore, player


@pytest.fixture(scope="package")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    below = tmp_path_factory.mktemp("hive")
    with metastore(below) as port, player(below, hive_settings(port)) as playing:
        yield playing
