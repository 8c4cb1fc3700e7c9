"""``windowmill serve`` for the example's Airflow: started, found again and stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from examples.flights.detached import Detached, send_signal, wait_for_ends

#: Starting and warming up take about a minute on two cores.
START_SECONDS = 600
STOP_SECONDS = 30
CONNECTION = "warm_spark"


class ServerError(RuntimeError):
    """The server does not start; one line for the user."""


@dataclass(frozen=True, slots=True)
class LocalServer(Detached):
    """A running ``windowmill serve``."""

    address: str

    @classmethod
    def start(cls, folder: Path) -> LocalServer:
        """Start one whose files are in ``folder``, detached; returns when it is warm.

        Raises
        ------
        ServerError
            If it ends or takes longer than ``START_SECONDS``.
        """
        folder.mkdir(parents=True, exist_ok=True)
        told, log = folder / "address.json", folder / "serve.log"
        with told.open("wb") as output, log.open("wb") as messages:
            process = subprocess.Popen(
                [sys.executable, "-m", "windowmill.jobs.cli", "serve", "--port", "0", "--json"],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=messages,
                start_new_session=True,
            )
        created, deadline = psutil.Process(process.pid).create_time(), time.monotonic() + START_SECONDS
        while not (line := told.read_text()).endswith("\n"):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise ServerError(f"windowmill serve did not start; its messages are in {log}")
            time.sleep(0.2)
        return cls(str(folder), process.pid, created, json.loads(line)["address"]).record()

    def environment(self) -> dict[str, str]:
        """Variables by which Airflow has a connection to the server, and ``pipelines.py`` and the example's DAG use it."""
        parts = urlsplit(self.address)
        token = parts.path.removeprefix("/;token=")
        connection = {"conn_type": "spark_connect", "host": parts.hostname, "port": parts.port, "password": token}
        return {f"AIRFLOW_CONN_{CONNECTION.upper()}": json.dumps(connection), "WINDOWMILL_SPARK_CONNECT_CONN_ID": CONNECTION}

    def stop(self) -> None:
        """End it with Spark."""
        process = self.process()
        if process is not None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                send_signal(process, number)
                wait_for_ends([process], STOP_SECONDS)
        self.forget()
