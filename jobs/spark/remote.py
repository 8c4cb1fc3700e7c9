"""Sessions of a Spark Connect server that is running: whether it answers, whether runs can use it, and which session they keep there."""

from __future__ import annotations

import importlib
import os
import socket
import uuid
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from windowmill.jobs.spark.access import ConnectAccess
from windowmill.jobs.spark.spark_settings import CONNECT_MODE, DELTA_EXTENSION, EXTENSIONS, RELEASE, SERVER, TOKEN
from windowmill.windowing.errors import MachineError, ServerGoneError, first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The longest that a connection, and then each of the two answers, may take.
CONNECT_SECONDS, ANSWER_SECONDS = 3.0, 20.0
#: Packages that runs import.
_PACKAGES = ("windowing", "checkpoints", "expectations", "jobs")
#: A request that is lost is sent again after 50, 200 and 800 ms. PySpark would try for ten minutes; a run rather starts Spark of its own.
RETRIES = 3


@dataclass(frozen=True)
class ServerFacts:
    """Spark's version, the extensions of its sessions, and windowmill's release; empty unless ``windowmill serve`` has started it."""

    version: str
    extensions: str
    release: str

    def problem(self) -> str | None:
        """Why runs cannot use it, and what to do; null if they can."""
        if self.version.split(".")[:2] != pyspark.__version__.split(".")[:2]:
            return f"runs Spark {self.version}, and this is pyspark {pyspark.__version__}; start one with `windowmill serve`"
        if DELTA_EXTENSION not in self.extensions:
            return "has no Delta; start it with `windowmill serve`, or with Delta's jars and spark.sql.extensions as docs/airflow.md says"
        if self.release not in ("", metadata.version("windowmill")):
            return f"runs windowmill {self.release}, and this is {metadata.version('windowmill')}; start it again"
        return None


def attach(address: str, conf: Mapping[str, str], *, code: str = "") -> SparkSession:
    """The kept session of the server at ``address``, with the settings ``conf``.

    Python workers belong to a session, are not ended with it (Spark's pull request 55131), and keep the modules that they have imported. So
    all clients share a session, and code that differs gets another one: ``code`` is a digest of the modules that are shipped to it.
    Raises ``ServerGoneError`` if the server does not answer, ``MachineError`` if runs cannot use it.
    """
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    place = _with_session(address, kept_session(code))
    try:
        server = examine(place)
    except _SessionClosedError:
        place = _with_session(address, str(uuid.uuid4()))
        server = examine(place)
    if problem := server.problem():
        raise MachineError(f"Spark Connect server {address} {problem}")
    warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")  # the error that follows says what is gone
    os.environ[CONNECT_MODE] = "1"
    connected = ConnectSession.builder.remote(place).create()
    connected.client.set_retry_policies([DefaultPolicy(max_retries=RETRIES)])
    session = cast("SparkSession", connected)
    ConnectAccess(session).apply(conf)
    return session


def detach() -> None:
    """Forget the session, without a request to its server."""
    session: Any = SparkSession.getActiveSession()
    if session is not None:
        session.release_session_on_close = False
        session.stop()
    os.environ.pop(CONNECT_MODE, None)


def examine(address: str) -> ServerFacts:
    """Ask the server at ``address``; raises ``ServerGoneError`` if it does not answer, ``MachineError`` for a wrong address or token."""
    import grpc

    messages, stubs = (importlib.import_module(f"pyspark.sql.connect.proto.{name}") for name in ("base_pb2", "base_pb2_grpc"))
    builder = _channel_of(address)
    host, _, port = builder.endpoint.rpartition(":")
    shown = f"Spark Connect server sc://{builder.endpoint}"
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as err:
        raise ServerGoneError(f"{shown} does not answer ({err.strerror or err})") from err
    user = builder.userId or os.environ.get("SPARK_USER") or os.environ.get("USER")
    who = {"session_id": builder.session_id or kept_session(), "user_context": messages.UserContext(user_id=user)}
    pairs = [messages.KeyValue(key=key, value="") for key in (EXTENSIONS, RELEASE)]
    operation = messages.ConfigRequest.Operation(get_with_default=messages.ConfigRequest.GetWithDefault(pairs=pairs))
    version = messages.AnalyzePlanRequest.SparkVersion()
    with builder.toChannel() as channel:
        stub, options = stubs.SparkConnectServiceStub(channel), {"timeout": ANSWER_SECONDS, "metadata": builder.metadata()}
        try:
            release = stub.AnalyzePlan(messages.AnalyzePlanRequest(**who, spark_version=version), **options).spark_version.version
            values = [pair.value for pair in stub.Config(messages.ConfigRequest(**who, operation=operation), **options).pairs]
        except grpc.RpcError as err:
            raise _refusal(shown, err) from err
    return ServerFacts(release, *values)


class _SessionClosedError(MachineError):
    """The server has ended the session, and takes its id no more."""


def _refusal(shown: str, err: Any) -> MachineError:
    import grpc

    code, details = err.code(), first_line(Exception(err.details()))
    if "SESSION_CLOSED" in details:
        return _SessionClosedError(f"{shown} has ended the session; connect again")
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return MachineError(f"{shown} refuses the token; put the one of the server into {TOKEN}, or ;token=… into the address")
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return ServerGoneError(f"{shown} does not answer ({details[:200]})")
    return MachineError(f"{shown} cannot be used ({code.name}: {details[:200]}); `windowmill doctor` examines it")


def _channel_of(address: str) -> Any:
    from pyspark.sql.connect.client import DefaultChannelBuilder

    try:
        builder = DefaultChannelBuilder(address)
        builder.session_id  # noqa: B018 - checks it
    except (PySparkException, ValueError) as err:
        raise MachineError(f"{SERVER}={address} is no address of a Spark Connect server; write it as sc://host:15002") from err
    return builder


def kept_session(code: str = "") -> str:
    """Id of the session that all clients with this code of windowmill, and the shipped code whose digest is ``code``, have in common."""
    root = Path(__file__).parents[2]
    newest_change = max(file.stat().st_mtime_ns for name in _PACKAGES for file in (root / name).resolve().rglob("*.py"))
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"windowmill {metadata.version('windowmill')} {newest_change} {code}"))


def _with_session(address: str, session: str) -> str:
    if ";session_id=" in address:
        return address
    return f"{address.rstrip('/;')}{'' if '/;' in address else '/'};session_id={session}"
