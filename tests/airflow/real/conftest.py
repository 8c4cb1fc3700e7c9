"""Fixtures: one Airflow for the package, and one browser."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from examples.flights.local_airflow import REPOSITORY
from tests.airflow.real.airflows import RealAirflow
from tests.browser.chromium import chromium

#: Who asks where a test names nobody; who may answer questions; and who may only look.
USERS = {"root": "admin", "ada": "user", "vera": "viewer"}
#: Each spec says who computes. Spark is to cost little.
ENVIRONMENT = {
    "PYTHONPATH": f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY}",
    "WINDOWMILL_COMPUTE": "",
    "WINDOWMILL_DRIVER_MEMORY": "1g",
    "WINDOWMILL_MASTER": "local[1]",
}


@pytest.fixture(scope="package")
def real_airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealAirflow]:
    with RealAirflow.running(tmp_path_factory.mktemp("real") / "airflow", ENVIRONMENT, USERS) as airflow:
        yield airflow
    assert airflow.processes() == []


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser
