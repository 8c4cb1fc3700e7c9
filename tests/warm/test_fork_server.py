"""A command in a child of the fork server is what it would be in a process of its own; and what becomes of either when the other dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from windowmill.checkpoints.places import Places
from windowmill.checkpoints.writers import lease
from windowmill.jobs.commands.doctor import check_fork_server
from windowmill.jobs.warm import client, protocol
from windowmill.jobs.warm.fork_server import ForkServer
from windowmill.jobs.warm.keeper import Keeper
from windowmill.windowing.specfile import load_pipeline

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Served:
    """A fork server, what it has said, and commands that find it."""

    def __init__(self) -> None:
        self.port, self.told = free_port(), list[str]()
        self.keeper = Keeper(self.port, self.own_environment(), self.told.append)
        self.keeper.start()
        self.keeper.wait(120)
        assert self.keeper.is_ready, self.told

    def own_environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}

    def environment(self, **more: str) -> dict[str, str]:
        return os.environ | {"SPARK_REMOTE": f"sc://localhost:{self.port}/;token=x", "EVENTS": "events"} | more

    def start(self, *arguments: str, cwd: Path, **more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "windowmill.jobs.cli", *arguments]
        environment = self.environment(**more)
        return subprocess.Popen(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *arguments: str, cwd: Path, **more: str) -> tuple[int, str, str]:
        with self.start(*arguments, cwd=cwd, **more) as process:
            output, messages = process.communicate(timeout=120)
            return process.returncode, output, messages

    def children(self) -> list[int]:
        listed = Path(f"/proc/{self.keeper.pid}/task/{self.keeper.pid}/children").read_text()
        return [int(child) for child in listed.split()]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    # A shell lets processes in its background ignore Ctrl-C, and so would the commands of the tests.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    server = Served()
    yield server
    server.keeper.stop()
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, served: Served) -> Path:
    """The folder of a pipeline that has read all that its source holds: its runs start no Spark."""
    folder = tmp_path_factory.mktemp("quiet")
    write_deltalake(str(folder / "events"), pa.table({"at": pa.array([1], pa.int64()), "v": pa.array([0.5], pa.float64())}))
    spec = {
        "pipeline": "quiet",
        "source": {"path": "${EVENTS}"},
        "time": {"column": "at", "unit": "s"},
        "windows": [{"name": "w", "type": "tumbling", "size": 10}],
        "aggregates": {"n": {"count": "*"}},
        "sink": {"path": "windows"},
    }
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    code, _, messages = served.run("run", "spec.yaml", cwd=folder, WINDOWMILL_COMPUTE="spark")
    assert code == 0, messages
    assert "this process starts Spark of its own" in messages  # in the child: no Spark Connect server is on that port
    return folder


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < seconds
        time.sleep(0.05)


def waits_for_the_lease(process: subprocess.Popen[str]) -> None:
    """Read messages until the command says that it waits."""
    assert process.stderr is not None
    line = ""
    while "wait" not in line:
        line = process.stderr.readline()
        assert line, "the command has ended"


def leased(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[None]:
    """The lease of the pipeline, for which its run waits."""
    monkeypatch.setenv("EVENTS", "events")
    monkeypatch.chdir(folder)
    return lease(Places.of(load_pipeline(folder / "spec.yaml")).root, wait_seconds=1, on_wait=lambda _: None)


def holder(folder: Path) -> int:
    """The process that held the pipeline's lease last."""
    return int((folder / "windows.windowmill" / ".lease").read_text().removeprefix("process "))


def test_a_command_has_the_folder_variables_streams_and_exit_code_of_its_client(served, folder):
    with served.start("run", "spec.yaml", "--json", cwd=folder) as process:
        output, messages = process.communicate(timeout=120)
    assert (process.returncode, messages) == (0, "")
    assert json.loads(output)["status"] == "nothing new"
    assert holder(folder) not in (process.pid, served.keeper.pid)
    code, output, messages = served.run("run", "spec.yaml", cwd=folder, EVENTS="elsewhere")
    assert (code, output) == (1, "")
    assert "elsewhere" in messages
    code, output, messages = served.run("run", "nowhere.yaml", cwd=folder)
    assert (code, output) == (2, "")
    assert messages.startswith("windowmill: ")


def test_a_child_imports_from_the_path_of_its_client(served, folder):
    (folder / "modules").mkdir()
    (folder / "modules" / "mine.py").write_text("raise ImportError('found it')")
    spec = yaml.safe_load((folder / "spec.yaml").read_text())
    spec["aggregates"]["own"] = {"use": "mine:Own"}
    spec["sink"]["path"] = "own"
    (folder / "own.yaml").write_text(yaml.safe_dump(spec))
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(folder / "modules")])
    _, _, messages = served.run("run", "own.yaml", cwd=folder, PYTHONPATH=path)
    assert "found it" in messages


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        (["validate", "spec.yaml"], "sc://localhost:15002"),
        (["run", "spec.yaml"], ""),
        (["run", "spec.yaml"], "sc://elsewhere:15002"),
        (["run", "spec.yaml"], "sc://localhost:port"),
        ([], "sc://localhost:15002"),
    ],
)
def test_other_commands_and_other_servers_are_left_to_the_process(arguments, address, monkeypatch):
    monkeypatch.setenv("SPARK_REMOTE", address)
    monkeypatch.setattr(protocol, "address_of", lambda port: pytest.fail(f"asks at {port}"))
    assert client.forked(arguments) is None


def test_without_a_fork_server_a_command_runs_in_its_own_process(folder):
    environment = os.environ | {"SPARK_REMOTE": f"sc://localhost:{free_port()}/;token=x", "EVENTS": "events"}
    command = [sys.executable, "-m", "windowmill.jobs.cli", "run", "spec.yaml"]
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        _, messages = process.communicate(timeout=120)
    assert (process.returncode, messages) == (0, "")
    assert holder(folder) == process.pid


def test_the_keeper_knows_when_a_command_ran(served, folder, monkeypatch):
    served.keeper.look()
    before = served.keeper.used
    served.keeper.look()
    assert served.keeper.used == before
    with leased(folder, monkeypatch):
        process = served.start("run", "spec.yaml", cwd=folder)
        waits_for_the_lease(process)
        for _ in range(2):  # it has begun, and it is running
            served.keeper.look()
            assert served.keeper.used > before
            before = served.keeper.used
    process.communicate(timeout=120)
    wait_for(lambda: served.keeper.look() or not served.keeper._running)
    last = served.keeper.used
    served.keeper.look()
    assert served.keeper.used == last > before


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_command_with_a_closed_stream_runs_in_its_own_process(served, folder, closed):
    words = [sys.executable, "-m", "windowmill.jobs.cli", "run", "spec.yaml"]
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *words]
    with subprocess.Popen(command, cwd=folder, env=served.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        _, messages = process.communicate(timeout=120)
    assert (process.returncode, messages) == (0, b"")
    assert holder(folder) == process.pid


def test_signals_that_a_client_ignores_do_not_reach_its_child(served, folder, monkeypatch):
    words = [sys.executable, "-m", "windowmill.jobs.cli", "run", "spec.yaml"]
    with (
        leased(folder, monkeypatch),
        subprocess.Popen(
            ["sh", "-c", 'trap "" HUP INT; exec "$@"', "sh", *words],
            cwd=folder,
            env=served.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        waits_for_the_lease(process)
        for ignored in (signal.SIGHUP, signal.SIGINT):
            process.send_signal(ignored)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM


def test_what_a_child_could_not_have_runs_in_its_own_process_and_says_why(served, folder):
    with served.start("run", "spec.yaml", cwd=folder, OMP_NUM_THREADS="3") as process:
        _, messages = process.communicate(timeout=120)
    assert process.returncode == 0
    assert messages == (
        "windowmill: the fork server does not take this command (it differs in variables); it runs in a process of its own\n"
    )
    assert holder(folder) == process.pid


def test_a_signal_reaches_the_child_and_its_end_the_client(served, folder, monkeypatch):
    with leased(folder, monkeypatch), served.start("run", "spec.yaml", cwd=folder) as process:
        waits_for_the_lease(process)
        [child] = served.children()
        process.send_signal(signal.SIGINT)
        _, messages = process.communicate(timeout=60)
        assert process.returncode == 130
        assert messages.endswith("windowmill: stopped; run again to continue\n")  # rich repeats a line in which it was interrupted
        wait_for(lambda: not served.children())
        assert not Path(f"/proc/{child}").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_client_ends_by_the_signal_that_ends_its_child(served, folder, monkeypatch, number):
    with leased(folder, monkeypatch), served.start("run", "spec.yaml", cwd=folder) as process:
        waits_for_the_lease(process)
        [child] = served.children()
        os.kill(child, number)
        assert process.wait(60) == -number


def test_a_child_ends_with_its_killed_client(served, folder, monkeypatch):
    with leased(folder, monkeypatch), served.start("run", "spec.yaml", cwd=folder) as process:
        waits_for_the_lease(process)
        assert len(served.children()) == 1
        process.kill()
        wait_for(lambda: not served.children())
    assert served.run("run", "spec.yaml", cwd=folder)[0] == 0


def test_several_commands_run_side_by_side(served, folder, monkeypatch):
    with leased(folder, monkeypatch), served.start("run", "spec.yaml", cwd=folder) as first:
        waits_for_the_lease(first)
        with served.start("run", "spec.yaml", cwd=folder) as second:
            waits_for_the_lease(second)
            assert len(served.children()) == 2
            second.kill()
            wait_for(lambda: len(served.children()) == 1)
            assert first.poll() is None
            first.kill()


def test_where_the_fork_server_dies_the_command_runs_again_in_its_own_process(folder, monkeypatch):
    served = Served()
    try:
        with leased(folder, monkeypatch):
            process = served.start("run", "spec.yaml", cwd=folder)
            waits_for_the_lease(process)
            os.kill(served.keeper.pid, signal.SIGKILL)
            waits_for_the_lease(process)  # now by itself
        with process:
            output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "nothing new" in output
        assert holder(folder) == process.pid
        wait_for(lambda: (served.keeper.look(), bool(served.told))[1])
        assert served.told == ["the fork server has died (exit code -9); it is started anew"]
        served.keeper.wait(120)
        assert served.run("run", "spec.yaml", cwd=folder)[0] == 0
        assert holder(folder) != process.pid
    finally:
        served.keeper.stop()


def test_a_fork_server_ends_when_the_code_has_changed(tmp_path, monkeypatch):
    port, now = free_port(), protocol.kind_of_process(os.environ)
    server = ForkServer(protocol.address_of(port), now | {"windowmill": "an older release"})
    ends: list[object] = []
    serving = threading.Thread(target=lambda: ends.append(server.serve()), daemon=True)
    serving.start()
    monkeypatch.setenv("SPARK_REMOTE", f"sc://localhost:{port}")
    assert client.forked(["run", "spec.yaml"]) is None
    serving.join(10)
    assert ends == [None]


def test_a_fork_server_that_cannot_fork_refuses_and_goes_on(monkeypatch, capsys):
    port, kind = free_port(), protocol.kind_of_process(os.environ)

    def fork() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("windowmill.jobs.warm.fork_server.os.fork", fork)
    server = ForkServer(protocol.address_of(port), kind)
    threading.Thread(target=server.serve, daemon=True).start()
    monkeypatch.setenv("SPARK_REMOTE", f"sc://localhost:{port}")
    for _ in range(2):
        assert client.forked(["run", "spec.yaml"]) is None
        assert "no child can be made: [Errno 11] Resource temporarily unavailable" in capsys.readouterr().err


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x02{}", b"\xff\xff\xff\xff"])
def test_a_client_that_is_none_harms_nobody(served, folder, sent):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(protocol.address_of(served.port))
        stranger.sendall(sent)
    assert served.run("run", "spec.yaml", cwd=folder)[0] == 0
    wait_for(lambda: len(list(Path(f"/proc/{served.keeper.pid}/fd").iterdir())) <= 12)


def test_a_client_sends_nothing_to_another_user(monkeypatch):
    port = free_port()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(protocol.address_of(port))
        listening.listen()
        monkeypatch.setattr(protocol, "is_own", lambda connection: False)
        monkeypatch.setenv("SPARK_REMOTE", f"sc://localhost:{port}")
        assert client.forked(["run", "spec.yaml"]) is None
        connection, _ = listening.accept()
        with connection:
            assert connection.recv(1) == b""


def test_a_client_sends_its_streams_only_to_a_server_that_answers(monkeypatch, capsys):
    port = free_port()
    monkeypatch.setattr(protocol, "ANSWER_SECONDS", 0.2)
    monkeypatch.setenv("SPARK_REMOTE", f"sc://localhost:{port}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(protocol.address_of(port))
        listening.listen()
        assert client.forked(["run", "spec.yaml"]) is None
        assert "(no answer)" in capsys.readouterr().err
        connection, _ = listening.accept()
        with connection:
            assert socket.recv_fds(connection, 1, 3)[:2] == (b"", [])


def test_doctor_tells_whether_commands_start_warm(served, monkeypatch):
    monkeypatch.setenv("SPARK_REMOTE", f"sc://localhost:{served.port}")
    [check] = check_fork_server()
    assert (check.ok, check.found) == (True, "commands start from a process that has imported what they need")
    monkeypatch.setenv("SPARK_REMOTE", f"sc://localhost:{free_port()}")
    [check] = check_fork_server()
    assert check.ok == "warn"
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere")
    assert check_fork_server() == []
