"""Fixtures: one S3 server for the module, and its bucket by the environment."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from tests.object_store.servers import BUCKET, Server, versitygw
from windowmill.checkpoints import protocol, stores

_NUMBERS = itertools.count()


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with versitygw(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of this machine or of another test counts."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(protocol, "_PASSED", set())
    monkeypatch.setattr(stores, "_OPTIONS", {})


@pytest.fixture
def bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder of its own in the server's bucket, whose credentials are in the environment."""
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{next(_NUMBERS)}"
