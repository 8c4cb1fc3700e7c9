"""Where two writers could make the same version of a table, nothing is written."""

from __future__ import annotations

import pytest

from windowmill.checkpoints.commit_stores import check_commit_store
from windowmill.windowing.errors import MachineError


@pytest.mark.parametrize("path", ["/tables/t", "tables/t", "file:///tables/t", "gs://b/t", "abfss://c@a.dfs.core.windows.net/t"])
def test_stores_that_keep_writers_apart(path):
    check_commit_store(path)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "S3A"])
def test_s3_is_refused(scheme, monkeypatch):
    # delta-rs ignores the lock table.
    monkeypatch.setenv("AWS_S3_LOCKING_PROVIDER", "dynamodb")
    with pytest.raises(MachineError, match=r"://\*\*\*@b/t: on S3 Spark may overwrite what delta-rs has committed") as refused:
        check_commit_store(f"{scheme}://key:SECRET@b/t")
    assert "SECRET" not in str(refused.value)


def test_an_unknown_store_is_refused():
    with pytest.raises(MachineError, match=r"oss:// is not known to keep two writers apart"):
        check_commit_store("oss://b/t")


def test_a_run_onto_such_a_store_ends_before_anything_is_read():
    from windowmill.jobs.spec_checks import runnable_of
    from windowmill.windowing.specfile import parse_pipeline

    spec = {"pipeline": "delays", "source": {"path": "/tables/flights"}, "time": {"column": "t"}, "sink": {"path": "s3://b/delays"}}
    window = {"name": "hour", "type": "tumbling", "size": "1 hour"}
    with pytest.raises(MachineError, match="s3://b/delays: on S3 Spark may overwrite"):
        runnable_of(parse_pipeline(spec | {"windows": [window], "aggregates": {"n": {"count": "*"}}}))
