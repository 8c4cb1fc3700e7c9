"""Which Spark Connect servers a run uses, and what is told of others."""

from __future__ import annotations

import socket
from concurrent import futures
from pathlib import Path

import grpc
import pyspark
import pytest
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType

from windowmill.jobs.commands.doctor import check_server
from windowmill.jobs.spark import connect_server, failures, remote, session
from windowmill.jobs.spark.access import Shipment, holds_text, plugins_zip, sql_type
from windowmill.jobs.spark.remote import ServerFacts, kept_session
from windowmill.jobs.spark.spark_settings import DELTA_EXTENSION, SERVER
from windowmill.windowing.errors import MachineError, ServerGoneError


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (ServerFacts("3.5.1", DELTA_EXTENSION, ""), f"runs Spark 3.5.1, and this is pyspark {pyspark.__version__}"),
        (ServerFacts(pyspark.__version__, "", ""), "has no Delta"),
        (ServerFacts(pyspark.__version__, DELTA_EXTENSION, "0.0.1"), "runs windowmill 0.0.1"),
        (ServerFacts(pyspark.__version__, f"other.Extension,{DELTA_EXTENSION}", ""), None),
    ],
)
def test_a_server_that_runs_cannot_use_is_told_with_what_to_do(found, told):
    problem = found.problem()
    assert problem is None if told is None else (problem is not None and problem.startswith(told) and "; " in problem)


@pytest.mark.parametrize("address", ["localhost:15002", "sc://", "sc://host:port", "sc://host/path", "sc://host/;session_id=1", "local[2]"])
def test_a_wrong_address_is_one_line(address):
    with pytest.raises(MachineError, match="is no address of a Spark Connect server; write it as sc://") as caught:
        remote.examine(address)
    assert type(caught.value) is MachineError


def test_a_server_that_does_not_answer_leaves_the_work_to_this_process(monkeypatch):
    told: list[str] = []
    monkeypatch.delenv(SERVER, raising=False)
    assert check_server() == [], "none is examined where none is named"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        silent_port = probe.getsockname()[1]
    monkeypatch.setenv(SERVER, f"sc://localhost:{silent_port}/;token=hidden")
    assert session._of_server({}, Shipment(), told.append) is None
    [line] = told
    assert line.startswith(f"Spark Connect server sc://localhost:{silent_port} does not answer (")
    assert line.endswith("; this process starts Spark of its own")
    [check] = check_server()
    assert (check.ok, "hidden" in check.found) == ("warn", False)


@pytest.mark.parametrize(
    ("code", "details", "kind", "told"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "no", MachineError, "refuses the token"),
        (grpc.StatusCode.UNIMPLEMENTED, "no such method", MachineError, "cannot be used \\(UNIMPLEMENTED: no such method\\)"),
        (grpc.StatusCode.UNAVAILABLE, "shutting down", ServerGoneError, "does not answer \\(shutting down\\)"),
    ],
)
def test_what_a_server_answers_instead(code, details, kind, told):
    class Refusing(grpc.GenericRpcHandler):
        def service(self, _):
            return grpc.unary_unary_rpc_method_handler(lambda _, context: context.abort(code, details))

    answering = grpc.server(futures.ThreadPoolExecutor(1), handlers=(Refusing(),))
    port = answering.add_insecure_port("localhost:0")
    answering.start()
    try:
        with pytest.raises(kind, match=told) as caught:
            remote.examine(f"sc://localhost:{port}")
        assert type(caught.value) is kind
    finally:
        answering.stop(None)


def test_all_clients_keep_one_session_for_the_same_code():
    assert kept_session() == kept_session("")
    assert len({kept_session(), kept_session("a"), kept_session("b")}) == 3
    assert remote._with_session("sc://host:1", "x") == "sc://host:1/;session_id=x"
    assert remote._with_session("sc://host:1/;token=t", "x") == "sc://host:1/;token=t;session_id=x"
    assert remote._with_session("sc://host:1/;session_id=y", "x") == "sc://host:1/;session_id=y"


def test_a_shipment_is_known_by_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "shipped_things"
    package.mkdir()
    (package / "__init__.py").write_text("A = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    shipment = Shipment(frozenset({"shipped_things.inner", "json"}), ("shipped_things",))
    [file] = shipment.files()
    assert (file.name, shipment.digest) == ("shipped_things.zip", Shipment(frozenset({"shipped_things"}), ("shipped_things",)).digest)
    assert shipment.digest != Shipment(frozenset({"shipped_things"})).digest
    assert plugins_zip(("a", "b")).read_bytes() == plugins_zip(("a", "b")).read_bytes()


@pytest.mark.parametrize(
    "said",
    [
        "<_MultiThreadedRendezvous of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n\tdetails = Connection refused",
        "[INVALID_HANDLE.SESSION_CHANGED] The handle is invalid",
        "[NO_ACTIVE_SESSION] No active Spark session found",
    ],
)
def test_an_error_of_a_lost_server_is_known(said):
    assert type(failures.typed(RuntimeError(said))) is ServerGoneError
    assert "the Spark Connect server has died or lost its session; run again" in failures.explain(RuntimeError(said))


def test_connections_to_a_port_are_counted_and_a_port_that_is_taken_is_told():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert connect_server.clients(port) == 0
        with socket.create_connection(("127.0.0.1", port)):
            assert connect_server.clients(port) == 1
        assert connect_server.clients(port, recent=True) >= 1
        taken = connect_server.Server(port, connect_server.ServerLimits(), print)
        with pytest.raises(MachineError, match="is in use; stop what listens there, or choose another one by --port"):
            taken.keep(lambda _: None)


def test_a_worn_server_is_started_anew_and_an_idle_one_ends(monkeypatch, tmp_path):
    told: list[str] = []
    kept = connect_server.Server(1, connect_server.ServerLimits(idle_seconds=1, memory_bytes=1 << 30), told.append)
    held = iter([1 << 29, 1 << 29, 3 << 29, 3 << 29])  # as it is ready, at two looks, and as it is ready anew: then there is no limit
    connected = iter([0, 0, 1, 1, 0, 0])
    monkeypatch.setattr(connect_server, "memory_bytes", lambda _: next(held))
    monkeypatch.setattr(connect_server, "clients", lambda *_, **__: next(connected, 0))
    monkeypatch.setattr(connect_server, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(connect_server, "MEMORY_SECONDS", 0.0)
    monkeypatch.setattr(kept, "_start", lambda _: told.append("start"))
    assert kept._watch(tmp_path) == "no client for 1 s"
    assert told == [
        "the server takes 1.5 GiB; it is restarted",
        "start",
        "the server takes 1.5 GiB once it is warm, so its limit of 1 GiB is ignored; raise it",
        "the server is ready again (process 0)",
    ]


def test_a_server_is_worn_by_age():
    kept = connect_server.Server(1, connect_server.ServerLimits(age_seconds=60), print)
    assert kept._worn(59, 0) is None
    assert kept._worn(61, 0) == "has run for 61 s"


def test_types_are_named_as_sql_does():
    inner = StructType([StructField("a.b", StringType()), StructField("n", LongType(), nullable=False)])
    assert sql_type(MapType(StringType(), ArrayType(inner))) == "MAP<string, ARRAY<STRUCT<`a.b`: string, `n`: bigint NOT NULL>>>"
    assert [holds_text(kind) for kind in (inner, ArrayType(LongType()), MapType(LongType(), StringType()))] == [True, False, True]
