"""Starts the JVM of a session while this process still imports what the session needs, and keeps the connections to it.

PySpark starts the JVM by ``bin/spark-submit``: a shell, a Python that looks for Spark, and a JVM that prints the command of the next one,
all before the JVM that runs Spark. Where only windowmill configures Spark, that last command is known. It is run at once, and PySpark
connects to its JVM as under ``spark-submit``. Where the environment configures Spark too, PySpark starts the JVM as usual.

Such a JVM has a folder of its own for temporary files. It is killed when this process ends: all that it would still do is to delete them.

A command that has succeeded kills the JVM that it started, and one whose JVM has died learns it from its next call. PySpark and Py4J would
take the end of a connection for an error and print a traceback (:func:`silence_accumulators`, :func:`stoppable_collection`).
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from windowmill.jobs.spark.daemon import WAITING
from windowmill.jobs.spark.jars import pyspark_folder
from windowmill.jobs.spark.spark_settings import SERVER, WORKER_MEMORY, session_conf
from windowmill.windowing.errors import MachineError

_PR_SET_PDEATHSIG = 1
#: How long the end of a command waits for the JVM to answer that it has let go of an object.
MAX_SECONDS = 1.0
#: Variables of Spark that :func:`command` respects, or that concern no JVM of ours.
_KNOWN = {"SPARK_LOCAL_IP", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_CONNECT_MODE_ENABLED", SERVER}
#: Further variables by which Spark's scripts are configured.
_CONFIGURED = {"HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_SUBMIT_ARGS"}
#: Settings for which the launcher's command has parts that :func:`command` does not write.
_OTHERS = {"spark.driver.extraLibraryPath", "spark.driver.defaultExtraClassPath", "spark.local.dir", "spark.eventLog.enabled"}
_PACKAGES = (
    "java.lang java.lang.invoke java.lang.reflect java.io java.net java.nio java.util java.util.concurrent java.util.concurrent.atomic "
    "jdk.internal.ref sun.nio.ch sun.nio.cs sun.security.action sun.util.calendar"
)
#: What Spark 4.2's launcher opens to Spark (``JavaModuleOptions``), but for ``--add-modules=jdk.incubator.vector``. Java warns of that
#: module at each start, and only the linear algebra of MLlib, which no job uses, would be faster by it.
_MODULES = [
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _PACKAGES.split()),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Dderby.connection.requireAuthentication=false",
]
#: Interval at which :func:`attach` looks for the port of the JVM.
LOOK_SECONDS = 0.01


def tie_to_parent(parent: int) -> Callable[[], None] | None:
    """A function for the child to run first: has the kernel kill it when ``parent`` dies, even by SIGKILL (Linux only).

    Otherwise, after a worker restarts, its Spark application would run at the same time as the retry of its task.
    """
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)  # loaded before the fork: the child should only call it

    def tie() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died between fork and prctl
            os._exit(1)

    return tie


@dataclass(slots=True)
class _Begun:
    """A JVM that was started with ``settings``, and the daemon of Python workers that waits for it."""

    settings: Mapping[str, str]
    process: subprocess.Popen[bytes]
    daemon: subprocess.Popen[bytes]
    #: For temporary files, and a lock that is held while they are needed.
    folder: Path
    lock: int
    #: Ends the calls of this process to the JVM.
    disconnect: Callable[[], None] | None = None

    @property
    def gateway_file(self) -> Path:
        """File into which the JVM writes its port and secret once it listens."""
        return self.folder / "gateway"

    def end(self) -> None:
        if self.disconnect is not None:
            self.disconnect()
        for process in (self.process, self.daemon):
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self.lock)


#: The JVM of this process, if one was started here.
_begun: list[_Begun] = []


def begin(*, brief: bool) -> None:
    """Start the JVM of the session that a run will ask for; ``brief`` as for :func:`.spark_session`.

    Does nothing if the run will use a server or a JVM that exists, or if the environment configures Spark.
    """
    if _begun or _connected() or os.environ.get(SERVER) or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    settings, home = session_conf(None, {}, brief=brief), _spark_home()
    if home is None or not _is_plain(settings):
        return
    try:
        folder, lock = _scratch()
    except OSError:  # as where another user has taken the folder's name
        return
    environment = {name: value for name, value in os.environ.items() if name != SERVER} | {
        "SPARK_HOME": str(home),
        "SPARK_CONNECT_MODE": "0",
        "PYTHONHASHSEED": "0",  # Python workers must agree on hashes
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(folder / "gateway"),
        WAITING: str(folder / "daemon"),
    }
    process = subprocess.Popen(
        command(settings, home, Path(os.environ["JAVA_HOME"]), [f"-Djava.io.tmpdir={folder}"]),
        stdin=subprocess.PIPE,  # the JVM ends when this process dies, which closes the pipe
        env=environment,
        # As in PySpark, this process decides what an interrupt ends.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # noqa: PLW1509 - one system call, which needs no lock
    )
    daemon = subprocess.Popen(
        [sys.executable, "-m", settings["spark.python.daemon.module"], "wait", environment[WAITING]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=environment | {name.removeprefix("spark.executorEnv."): value for name, value in WORKER_MEMORY.items()},
        preexec_fn=tie_to_parent(os.getpid()),  # noqa: PLW1509 - two system calls, which need no lock
        process_group=0,  # an interrupt does not reach it
    )
    _begun.append(_Begun(settings, process, daemon, folder, lock))
    atexit.register(_end)


def attach(settings: Mapping[str, str]) -> None:
    """Have PySpark use the JVM that :func:`begin` has started with ``settings``, if there is one."""
    if not _begun or _connected():
        return
    if _begun[0].settings != settings:
        _begun.pop().end()
        return
    begun = _begun[0]
    while not begun.gateway_file.is_file():
        if begun.process.poll() is not None:
            _begun.pop().end()
            raise MachineError("Spark did not start, its own message is above; `windowmill doctor` examines this machine")
        time.sleep(LOOK_SECONDS)
    _connect(begun)


def _connect(begun: _Begun) -> None:
    """Have PySpark's next context use the JVM, as it does under ``spark-submit``."""
    from pyspark import SparkContext, java_gateway, serializers

    gateways: Any = java_gateway
    read: Any = serializers
    with begun.gateway_file.open("rb") as file:
        address = {"PYSPARK_GATEWAY_PORT": str(read.read_int(file)), "PYSPARK_GATEWAY_SECRET": read.UTF8Deserializer().loads(file)}
    os.environ |= address
    try:
        gateway = gateways.launch_gateway()
    finally:
        for name in address:
            del os.environ[name]
    gateway.proc = begun.process
    begun.disconnect = stoppable_collection(gateway)
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - PySpark has no public function that gives builders a gateway


def command(settings: Mapping[str, str], home: Path, java: Path, more: list[str]) -> list[str]:
    """The command that Spark's launcher would print for ``settings``, with ``more`` options of Java."""
    options = [settings.get(f"spark.driver.{kind}JavaOptions", "") for kind in ("default", "extra")]
    jars = home / "jars"
    class_path = [settings["spark.driver.extraClassPath"], f"{home}/conf", *map(str, jars.glob("slf4j-api-*.jar")), f"{jars}/*"]
    return [
        f"{java}/bin/java",
        "-cp",
        os.pathsep.join(class_path),
        f"-Xmx{settings['spark.driver.memory']}",
        *(part for text in options for part in shlex.split(text)),
        *_MODULES,
        *more,
        "org.apache.spark.deploy.SparkSubmit",
        *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
        "pyspark-shell",
    ]


def _is_plain(settings: Mapping[str, str]) -> bool:
    master = settings["spark.master"]
    environment = {name for name in os.environ if name.startswith("SPARK_")} - _KNOWN
    return master.partition("[")[0] == "local" and not environment and not _CONFIGURED & set(os.environ) and not _OTHERS & set(settings)


def _spark_home() -> Path | None:
    """Folder of the Spark inside PySpark's package; null if Spark's own search would find another one, or one with settings of its own."""
    home = pyspark_folder()
    others = Path("../bin/spark-submit"), home / "spark-distribution", home / "conf"
    return None if any(path.exists() for path in others) else home


def _connected() -> bool:
    """Whether PySpark has a JVM; it is not imported for the answer."""
    context: Any = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    return context is not None and context._gateway is not None  # noqa: SLF001


def _scratch() -> tuple[Path, int]:
    """A new folder for a JVM's temporary files, with a lock on it. Removes the folders of processes that were killed."""
    base = Path(tempfile.gettempdir()) / f"windowmill-jvm-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    # The lock on the base keeps others from taking the new folder for one of a dead process before it is locked itself.
    turn = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        # Others could change the files in a folder of theirs, or have it be a link.
        if os.fstat(turn).st_uid != os.getuid():
            raise PermissionError(f"{base} belongs to another user")
        fcntl.flock(turn, fcntl.LOCK_EX)
        for left in base.iterdir():
            with suppress(OSError):
                lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(left, ignore_errors=True)
                finally:
                    os.close(lock)
        folder = base / secrets.token_hex(6)
        folder.mkdir()
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return folder, lock
    finally:
        os.close(turn)


def _end() -> None:
    while _begun:
        _begun.pop().end()


def silence_accumulators() -> None:
    """Have PySpark's server of accumulators say nothing where the JVM ends its connection, which it keeps for as long as it lives."""
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context  # noqa: SLF001 - the server is nowhere else to be had
    server = getattr(context, "_accumulatorServer", None)
    if server is None:
        return
    report = server.handle_error

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            report(request, client_address)

    server.handle_error = handle_error


def stoppable_collection(gateway: Any) -> Callable[[], None]:
    """Give what stops the thread of Py4J that names to the JVM of ``gateway`` objects that are not needed any more."""
    client = gateway._gateway_client  # noqa: SLF001 - Py4J cannot stop the thread without waiting for a second
    collect, turn = client.garbage_collect_object, Lock()

    def garbage_collect_object(target_id: str, enqueue: bool = True) -> None:
        if enqueue:
            collect(target_id, enqueue)
        else:
            with turn:
                if client.is_connected:
                    collect(target_id, enqueue)

    def stop() -> None:
        held = turn.acquire(timeout=MAX_SECONDS)
        client.is_connected = False
        if held:
            turn.release()

    client.garbage_collect_object = garbage_collect_object
    return stop
