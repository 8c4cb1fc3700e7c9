"""A Spark Connect server with our jars and settings on this machine, kept warm: behind ``windowmill serve``.

The server is a process of its own, in a session (group) of its own with its Python workers, and listens on this machine alone. Its clients
show a token, since whoever may send plans may run code as its user.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

from windowmill.jobs.spark.jars import pyspark_folder
from windowmill.jobs.spark.launch import tie_to_parent
from windowmill.jobs.spark.spark_settings import CONNECT_MODE, DELTA_CONF, RELEASE, RUNTIME_CONF, SERVER, TOKEN, launch_conf
from windowmill.windowing.errors import MachineError
from windowmill.windowing.settings import MASTER

WARMING = "windowmill.jobs.warm_up"
START_SECONDS, WARM_SECONDS, STOP_SECONDS = 120.0, 600.0, 10.0
LOOK_SECONDS, MEMORY_SECONDS = 0.5, 10.0
#: Seconds for which the kernel still lists a connection that has been closed (TIME_WAIT).
CLOSED_SECONDS = 60.0
_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_LISTENING = "0A"  # of the states in /proc/net/tcp
_ESTABLISHED = "01"


@dataclass(frozen=True)
class ServerLimits:
    """When a server ends, and when it is restarted, which waits for a moment without clients; 0 is no limit."""

    idle_seconds: float = 0.0
    age_seconds: float = 0.0
    memory_bytes: int = 0


class Server:
    """A server on ``port`` of this machine; ``say`` receives a line about what happens to it."""

    def __init__(self, port: int, limits: ServerLimits, say: Callable[[str], None]) -> None:
        self.port = port or _free_port()
        self.token = os.environ.get(TOKEN) or secrets.token_hex(16)
        self._limits, self._say = limits, say
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = False

    @property
    def address(self) -> str:
        # PySpark sends a token without TLS to this name alone.
        return f"sc://localhost:{self.port}/;token={self.token}"

    @property
    def pid(self) -> int:
        """Process id of the server, which is also that of its session and group."""
        return self._process.pid if self._process else 0

    def keep(self, ready: Callable[[Server], None]) -> str:
        """Start the server, warm it up, call ``ready``, and keep it until it is to end; why it ended."""
        with tempfile.TemporaryDirectory(prefix="windowmill-serve-") as scratch:
            try:
                self._start(Path(scratch))
                if not self._ending:
                    ready(self)
                return self._watch(Path(scratch))
            finally:
                self._stop()

    def end(self) -> None:
        """Have :meth:`keep` end, from a signal's handler."""
        self._ending = True

    def _start(self, scratch: Path) -> None:
        if _answers(self.port):
            raise MachineError(f"port {self.port} is in use; stop what listens there, or choose another one by --port")
        for left in scratch.iterdir():  # by a server that has died
            shutil.rmtree(left, ignore_errors=True)
        log = scratch / "server.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                _command(self.port, scratch),
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment({TOKEN: self.token}),
                start_new_session=True,
                preexec_fn=tie_to_parent(os.getpid()),  # noqa: PLW1509 - one call of prctl, which needs no lock
            )
        begun = time.monotonic()
        while not _answers(self.port):
            if self._process.poll() is not None or time.monotonic() - begun > START_SECONDS:
                self._stop()
                raise MachineError(
                    f"the Spark Connect server did not start ({_first_error(log)}); `windowmill doctor` examines this machine"
                )
            if self._ending:
                return
            time.sleep(LOOK_SECONDS)
        self._warm_up(scratch)

    def _warm_up(self, scratch: Path) -> None:
        """Send the jobs of a few runs of small batches, so that the JVM has loaded and compiled what these need."""
        child = subprocess.Popen(
            [sys.executable, "-m", WARMING],
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=_environment({SERVER: self.address}),
            preexec_fn=tie_to_parent(os.getpid()),  # noqa: PLW1509
        )
        begun = time.monotonic()
        while child.poll() is None and not self._ending and time.monotonic() - begun < WARM_SECONDS:
            time.sleep(LOOK_SECONDS)
        is_over = child.poll() is not None
        if not is_over:
            child.kill()
        _, output = child.communicate()
        if child.returncode and not self._ending:
            message = "no message" if is_over else f"not warm after {WARM_SECONDS:.0f} s"
            last = (output.decode(errors="replace").strip().splitlines() or [message])[-1]
            raise MachineError(f"the Spark Connect server does not compute ({last}); `windowmill doctor` examines this machine")

    def _watch(self, scratch: Path) -> str:
        begun = used = looked = time.monotonic()
        most_bytes = self._most_bytes()
        while not self._ending:
            time.sleep(LOOK_SECONDS)
            now, why = time.monotonic(), None
            # Just after a start, the recent connections include those of the warm-up, which are no use by a client.
            used = now if clients(self.port, recent=now - begun > CLOSED_SECONDS) else used
            if self._process is not None and self._process.poll() is not None:
                why = f"has died (exit code {self._process.returncode})"
            elif self._limits.idle_seconds and now - used > self._limits.idle_seconds:
                return f"no client for {self._limits.idle_seconds:.0f} s"
            elif not clients(self.port):
                why = self._worn(now - begun, most_bytes if now - looked > MEMORY_SECONDS else 0)
                looked = now if now - looked > MEMORY_SECONDS else looked
            if why:
                self._say(f"the server {why}; it is restarted")
                self._stop()
                self._start(scratch)
                begun = time.monotonic()
                most_bytes = self._most_bytes()
                self._say(f"the server is ready again (process {self.pid})")
        return "asked to stop"

    def _most_bytes(self) -> int:
        """The memory limit of a server that has just become ready; 0 for none."""
        # One that it exceeds already counts as none: a new server would exceed it too, and be restarted for ever.
        most, held = self._limits.memory_bytes, memory_bytes(self.pid)
        if most and held > most:
            taken, limit = f"{held / 2**30:.1f} GiB", f"{most / 2**30:.0f} GiB"
            self._say(f"the server takes {taken} once it is warm, so its limit of {limit} is ignored; raise it")
            return 0
        return most

    def _worn(self, age: float, most_bytes: int) -> str | None:
        """Why the server should be restarted; ``None`` while it is within its limits. ``most_bytes`` 0 is no limit of memory."""
        if self._limits.age_seconds and age > self._limits.age_seconds:
            return f"has run for {age:.0f} s"
        if most_bytes and (held := memory_bytes(self.pid)) > most_bytes:
            return f"takes {held / 2**30:.1f} GiB"
        return None

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        # Workers lead groups of their own, and end when the JVM closes their input.
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def clients(port: int, *, recent: bool = False) -> int:
    """Number of connections to ``port`` of this machine; with ``recent`` also those that were closed within the last minute."""
    wanted, found = f":{port:04X}", 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                local, remote, state = line.split()[1:4]
                if local.endswith(wanted) or (recent and remote.endswith(wanted)):
                    found += state != _LISTENING if recent else state == _ESTABLISHED
    return found


def memory_bytes(session: int) -> int:
    """Memory of the processes of a session, a page that several share counted once: the kernel's "proportional set size"."""
    held = 0
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):  # it has ended meanwhile
            if os.getsid(process.pid) == session:
                held += process.memory_full_info().pss
    return held


def _command(port: int, scratch: Path) -> list[str]:
    settings = launch_conf(MASTER.given() or "local[*]") | DELTA_CONF | RUNTIME_CONF
    java = settings.get("spark.driver.defaultJavaOptions", "")
    settings |= {
        "spark.driver.defaultJavaOptions": f"{java} -Djava.io.tmpdir={scratch} -XX:+ExitOnOutOfMemoryError".strip(),
        "spark.local.dir": str(scratch),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        # Clients come back to the kept session, and an id of a session that has ended is never accepted again.
        "spark.connect.session.manager.defaultSessionTimeout": "-1",
        "spark.default.parallelism": str(os.cpu_count() or 2),  # clients cannot count the cores
        RELEASE: metadata.version("windowmill"),
    }
    conf = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    return [f"{pyspark_folder()}/bin/spark-submit", *conf, "--class", _CLASS, "spark-internal"]


def _environment(more: dict[str, str]) -> dict[str, str]:
    """The environment of a child, which is a client of the server that ``more`` names, if any, and of no other."""
    mine = {name: value for name, value in os.environ.items() if name not in (SERVER, CONNECT_MODE)}
    return mine | more


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _first_error(log: Path) -> str:
    """The first line of ``log`` that reports an error, else its first line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line or "Error" in line or "Exception" in line]
    return (errors or lines or ["no message"])[0][:300]
