"""The warm server of the example: found again, stopped, and told to Airflow."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil
import pytest
from airflow.models.connection import Connection

from examples.flights.local_server import CONNECTION, LocalServer

pytestmark = pytest.mark.dag


def test_a_server_is_found_again_and_stopped(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        server = LocalServer(str(tmp_path), process.pid, psutil.Process(process.pid).create_time(), "sc://localhost:15002/;token=t")
        server.record()
        assert LocalServer.running(tmp_path) == server
        server.stop()
        assert LocalServer.running(tmp_path) is None
        assert process.wait(1) == -signal.SIGTERM


def test_its_connection_is_one_of_spark_connect(tmp_path):
    environment = LocalServer(str(tmp_path), 1, 0.0, "sc://localhost:40123/;token=0a1b").environment()
    connection = Connection.from_json(environment[f"AIRFLOW_CONN_{CONNECTION.upper()}"])
    found = (connection.conn_type, connection.host, connection.port, connection.password)
    assert found == ("spark_connect", "localhost", 40123, "0a1b")
    assert environment["WINDOWMILL_SPARK_CONNECT_CONN_ID"] == CONNECTION
