"""Fixtures that every kind of test shares: one Spark session a run, fresh folders, hypothesis profiles."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("dev", max_examples=25, deadline=None)
settings.register_profile("ci", max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fuzz", max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    """The one Spark session of the test run, with the product's own settings."""
    from jobs.session import spark_session

    session = spark_session("windowmill tests", master="local[2]", brief=True)
    yield session
    session.stop()
