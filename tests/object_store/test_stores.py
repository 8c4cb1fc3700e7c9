"""Credentials, addresses and errors of object storage; stores that let two writers create the same version are refused."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.fs as pa_fs
import pytest

from tests.object_store.servers import ACCESS, BUCKET, SECRET, careless
from windowmill.checkpoints import protocol, stores
from windowmill.checkpoints.protocol import MARK, check_conditional_writes, check_scheme
from windowmill.jobs.commands import doctor
from windowmill.jobs.runnables import runnable_of
from windowmill.windowing.errors import MachineError, SpecError, UnsupportedError, first_line
from windowmill.windowing.specfile import parse_pipeline

#: They need the S3 server that `make test` builds.
pytestmark = pytest.mark.thorough

ROWS = pa.table({"n": [1, 2, 3]})
SPEC = {
    "pipeline": "delays",
    "source": {"path": f"s3://{BUCKET}/flights"},
    "time": {"column": "t"},
    "windows": [{"name": "hour", "type": "tumbling", "size": "1 hour"}],
    "aggregates": {"n": {"count": "*"}},
    "sink": {"path": f"s3://{BUCKET}/delays"},
}


def test_tables_and_files_of_a_bucket(bucket):
    place = f"{bucket}/table"
    assert not stores.is_table(place)
    stores.write_table(place, ROWS, mode="append")
    assert stores.is_table(place.replace("s3://", "s3a://"))
    assert stores.table_at(place.replace("s3://", "s3a://")).version() == 0
    files = stores.store_of(place)
    with files.open_output_stream("notes/a.json") as stream:
        stream.write(b"{}")
    store, path = stores.filesystem_of(f"{place}/notes/a.json")
    with store.open_input_stream(path) as stream:
        assert stream.read() == b"{}"
    assert [info.base_name for info in files.get_file_info(pa_fs.FileSelector("notes"))] == ["a.json"]
    with pytest.raises(FileNotFoundError):
        files.open_input_file("notes/b.json")


def test_credentials_of_a_profile(bucket, tmp_path, monkeypatch):
    place = f"{bucket}/table"
    stores.write_table(place, ROWS, mode="append")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    file.write_text(f"[landing]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_PROFILE", "landing")
    assert stores.table_at(place).version() == 0


def test_credentials_that_a_spec_names(server, monkeypatch):
    for name, value in server.variables.items():
        monkeypatch.setenv(f"OTHER_{name}", value)
    options = {name.lower(): f"${{OTHER_{name}}}" for name in server.variables}
    spec = SPEC | {"sink": SPEC["sink"] | {"storage_options": options}}
    pipeline = parse_pipeline(spec)
    stores.use_options_of(pipeline)
    stores.write_table(f"s3://{BUCKET}/delays", ROWS, mode="append")
    stores.write_table(f"s3a://{BUCKET}/delays.windowmill/held", ROWS, mode="append")
    assert stores.table_at(f"s3://{BUCKET}/delays").version() == 0
    assert stores.options_of(f"s3://{BUCKET}/flights") == {"AWS_FORCE_CREDENTIAL_LOAD": "true"}
    assert SECRET not in pipeline.model_dump_json() + repr(pipeline)
    monkeypatch.delenv("OTHER_AWS_SECRET_ACCESS_KEY")
    with pytest.raises(SpecError, match=r"sink.storage_options.aws_secret_access_key: the environment variable OTHER_.* is not set"):
        stores.use_options_of(pipeline)


@pytest.mark.parametrize("literal", [SECRET, 1234567, f"${{KEY}}{SECRET}", ""])
def test_a_literal_secret_is_refused_and_not_told(literal):
    spec = SPEC | {"sink": SPEC["sink"] | {"storage_options": {"aws_secret_access_key": literal}}}
    with pytest.raises(SpecError, match=r"sink.storage_options.aws_secret_access_key: expected the name of an environment var") as refused:
        parse_pipeline(spec)
    assert str(literal) not in str(refused.value) or not literal


def test_options_reach_tasks(bucket, server, monkeypatch):
    place = f"{bucket}/table"
    stores.write_table(place, ROWS, mode="append")
    sent = {place: stores.options_of(place)}
    for name in server.variables:
        monkeypatch.delenv(name)
    stores.use_options(sent)
    assert stores.table_at(place).version() == 0


def test_errors_are_told_in_one_line(bucket, monkeypatch):
    said = []
    for variable, value, expected in (
        ("AWS_SECRET_ACCESS_KEY", "wrong", r"403 Forbidden: SignatureDoesNotMatch: .*\); check its address, credentials and permissions"),
        ("AWS_ALLOW_HTTP", "false", r"URL scheme is not allowed\); set AWS_ALLOW_HTTP=true"),
    ):
        with monkeypatch.context() as patched:
            patched.setenv(variable, value)
            with pytest.raises(MachineError, match=expected) as refused:
                check_conditional_writes(bucket, [bucket], said.append)
        assert "\n" not in str(refused.value)
        assert SECRET not in str(refused.value)
    with pytest.raises(OSError, match="NoSuchBucket") as missing:
        stores.table_at("s3://nowhere/table")
    assert first_line(missing.value).endswith("404 Not Found: NoSuchBucket: The specified bucket does not exist.")


def test_a_store_that_keeps_writers_apart_is_tested_once(bucket, server, monkeypatch):
    said = []
    check_conditional_writes(f"{bucket}/sink.windowmill", [f"{bucket}/sink", f"{bucket}/sink.windowmill"], said.append)
    assert said == [f"s3://{BUCKET} at {server.url}: testing whether it keeps two writers apart"]
    left = [path.relative_to(server.folder / BUCKET) for path in (server.folder / BUCKET / bucket.rpartition("/")[2]).rglob("*.json*")]
    assert [path.name for path in left] == [MARK], "the test leaves nothing else behind"
    # By another process: it reads what this one found out.
    monkeypatch.setattr(protocol, "_PASSED", set())
    monkeypatch.setattr(protocol, "_race", lambda place: pytest.fail(f"raced again at {place}"))
    check_conditional_writes(f"{bucket}/sink.windowmill", [f"{bucket}/sink"], said.append)
    # A copy of the tables on another server is tested there.
    with stores.store_of(f"{bucket}/sink.windowmill").open_output_stream(MARK) as stream:
        stream.write(json.dumps([f"s3://{BUCKET} at http://elsewhere"]).encode())
    monkeypatch.setattr(protocol, "_PASSED", set())
    raced = []
    monkeypatch.setattr(protocol, "_race", raced.append)
    check_conditional_writes(f"{bucket}/sink.windowmill", [f"{bucket}/sink"], said.append)
    assert raced == [f"{bucket}/sink"]


@pytest.mark.parametrize("care", ["none", "looks first"])
def test_a_store_that_lets_two_writers_win_is_refused(care, tmp_path, monkeypatch):
    with careless(tmp_path, care) as server:
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(MachineError, match=r"the store let \d writers create one version of a table, so a batch could be lost"):
            check_conditional_writes(f"s3://{BUCKET}/sink.windowmill", [f"s3://{BUCKET}/sink"], lambda _: None)
        assert not protocol._PASSED
        assert not stores.store_of(f"s3://{BUCKET}/sink.windowmill").get_file_info([MARK])[0].is_file


def test_two_writers_that_win_are_refused_whichever_of_them_the_store_keeps(monkeypatch):
    monkeypatch.setattr(protocol, "_writer", lambda *_: "a")
    with pytest.raises(MachineError, match="the store let 2 writers create one version of a table"):
        protocol._check("s3://b/t", "probe", 0, ["a", "b"])


def test_an_unknown_scheme_is_refused():
    for known in ("/tables/t", "tables/t", "file:///tables/t", "s3://b/t", "s3a://b/t", "gs://b/t", "abfss://c@a.example/t"):
        check_scheme(known)
    with pytest.raises(MachineError, match=r"^oss://\*\*\*@b/t: oss:// is not known to keep two writers apart") as refused:
        check_scheme("oss://key:SECRET@b/t")
    assert "SECRET" not in str(refused.value)


def test_the_doctor_tries_a_warehouse_in_a_bucket(bucket, monkeypatch):
    monkeypatch.setenv("WAREHOUSE", f"{bucket}/warehouse")
    check = doctor.check_warehouse(None)
    assert check == doctor.Check("Warehouse", True, f"{bucket}/warehouse can be written, and keeps two writers apart")
    monkeypatch.setattr(protocol, "_PASSED", set())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    check = doctor.check_warehouse(None)
    assert check.ok is False
    assert check.advice.startswith("check its address, credentials and permissions")


@pytest.mark.parametrize("name", ["a b", "a%41", "é", "a#b"])
def test_paths_that_libraries_escape_differently_are_refused(name):
    with pytest.raises(SpecError, match=r"sink.path: got .*; holds '.', which Delta's libraries escape differently in object storage"):
        parse_pipeline(SPEC | {"sink": {"path": f"s3://{BUCKET}/{name}/t"}})


def test_names_that_only_spark_stores_are_refused(bucket):
    pipeline = parse_pipeline(SPEC | {"keys": ["tail number"]})
    with pytest.raises(UnsupportedError, match=r"keys: 'tail number': Delta stores this name by column mapping, which only Spark writes"):
        runnable_of(pipeline)
