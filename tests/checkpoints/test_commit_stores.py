"""Where two writers could make the same version of a table, nothing is written."""

from __future__ import annotations

import pytest

from windowmill.checkpoints.commit_stores import check_commit_store, check_log_store
from windowmill.windowing.errors import MachineError

LOCKED = {"AWS_S3_LOCKING_PROVIDER": "dynamodb"}


@pytest.mark.parametrize("path", ["/tables/t", "tables/t", "file:///tables/t", "gs://b/t", "abfss://c@a.dfs.core.windows.net/t"])
def test_stores_that_keep_writers_apart(path):
    check_commit_store(path, {})
    check_log_store(path, {}.get)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "S3A"])
@pytest.mark.parametrize("environment", [{}, {"AWS_S3_LOCKING_PROVIDER": "none"}, LOCKED | {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}])
def test_s3_without_a_lock_table_is_refused(scheme, environment):
    with pytest.raises(MachineError, match=r"://\*\*\*@b/t: S3 .* set AWS_S3_LOCKING_PROVIDER=dynamodb") as refused:
        check_commit_store(f"{scheme}://key:SECRET@b/t", environment)
    assert "SECRET" not in str(refused.value)


def test_s3_with_a_lock_table_that_spark_sees_too():
    check_commit_store("s3a://b/t", LOCKED)
    with pytest.raises(MachineError, match=r"set spark\.delta\.logStore\.s3a\.impl="):
        check_log_store("s3a://b/t", {}.get)
    with pytest.raises(MachineError):
        check_log_store("s3a://b/t", {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3SingleDriverLogStore"}.get)
    check_log_store("s3a://b/t", {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3DynamoDBLogStore"}.get)


def test_an_unknown_store_is_refused():
    with pytest.raises(MachineError, match=r"oss:// is not known to keep two writers apart"):
        check_commit_store("oss://b/t", {})


def test_a_run_onto_such_a_store_ends_before_anything_is_read(monkeypatch):
    from windowmill.jobs.spec_checks import check_runnable
    from windowmill.windowing.specfile import parse_pipeline

    for name in LOCKED:
        monkeypatch.delenv(name, raising=False)
    spec = {"pipeline": "delays", "source": {"path": "/tables/flights"}, "time": {"column": "t"}, "sink": {"path": "s3://b/delays"}}
    window = {"name": "hour", "type": "tumbling", "size": "1 hour"}
    with pytest.raises(MachineError, match="s3://b/delays: S3 does not keep two writers apart"):
        check_runnable(parse_pipeline(spec | {"windows": [window], "aggregates": {"n": {"count": "*"}}}))
