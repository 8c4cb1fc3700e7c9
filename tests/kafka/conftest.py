"""Fixtures: one broker for the module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.brokers import Broker, running


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("kafka")) as started:
        yield started
