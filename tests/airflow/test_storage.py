"""Credentials of object storage from an Airflow connection."""

from __future__ import annotations

import json
import os

import pytest

from windowmill.dags.operators import MicroBatchOperator, storage_environment, storage_variables
from windowmill.windowing.errors import SpecError

pytestmark = pytest.mark.dag


def connect(monkeypatch, **fields):
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(fields))


def test_variables_of_an_aws_connection(monkeypatch):
    extra = {"region_name": "eu-central-1", "endpoint_url": "http://127.0.0.1:7070", "profile_name": ""}
    connect(monkeypatch, conn_type="aws", login="AKID", password="a/secret+CANARY", extra=extra)
    assert storage_variables("lake") == {
        "AWS_ACCESS_KEY_ID": "AKID",
        "AWS_SECRET_ACCESS_KEY": "a/secret+CANARY",
        "AWS_REGION": "eu-central-1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:7070",
        "AWS_ALLOW_HTTP": "true",
    }


def test_a_connection_without_keys_leaves_them_to_the_machine(monkeypatch):
    connect(monkeypatch, conn_type="aws", extra={"region_name": "eu-central-1"})
    assert storage_variables("lake") == {"AWS_REGION": "eu-central-1"}
    assert storage_variables(None) == {}


def test_another_type_is_refused(monkeypatch):
    connect(monkeypatch, conn_type="http", host="x", password="CANARY")
    with pytest.raises(SpecError, match=r"the connection lake is of type 'http'; expected one of aws, google") as refused:
        storage_variables("lake")
    assert "CANARY" not in str(refused.value)


def test_the_environment_of_a_task_is_as_before_afterwards(monkeypatch):
    connect(monkeypatch, conn_type="aws", login="AKID", password="new")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "old")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with storage_environment("lake"):
        assert (os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]) == ("AKID", "new")
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == "old"
    assert "AWS_ACCESS_KEY_ID" not in os.environ


def test_the_command_of_a_task_gets_them(monkeypatch, tmp_path):
    connect(monkeypatch, conn_type="aws", login="AKID", password="CANARY")
    operator = MicroBatchOperator(task_id="micro_batch", spec=str(tmp_path / "p.yaml"), storage_conn_id="lake")
    assert operator.environment()["AWS_SECRET_ACCESS_KEY"] == "CANARY"
    assert "CANARY" not in repr(vars(operator))
