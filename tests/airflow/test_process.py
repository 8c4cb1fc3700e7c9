"""A command as a child process: its messages, exit codes and death. The command is a small script in place of windowmill.jobs.cli."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from windowmill.dags import commands
from windowmill.dags.commands import CommandProcess, CommandResult, JobFailedError, JobHeldError, JobRefusedError, summary_of

pytestmark = pytest.mark.dag

REPOSITORY = Path(__file__).resolve().parents[2]


def test_messages_come_line_by_line_and_the_summary_last(command):
    command("""
        print("first", file=sys.stderr)
        print("chatter")
        print("second: 100 % done", file=sys.stderr)
        print(json.dumps({"argv": sys.argv[1:]}))
    """)
    lines: list[str] = []
    finished = CommandProcess(["run", "a b; {{ ds }} $(id)", "--json"]).run(lines.append)
    assert lines == ["first", "second: 100 % done"]
    assert summary_of("run", finished) == {"argv": ["run", "a b; {{ ds }} $(id)", "--json"]}


@pytest.mark.parametrize(("code", "error"), [(1, JobFailedError), (2, JobRefusedError), (3, JobHeldError), (7, JobFailedError)])
def test_exit_codes(command, code, error):
    command(f"""
        print("windowmill: the reason", file=sys.stderr)
        sys.exit({code})
    """)
    with pytest.raises(error, match=r"run: .*the reason"):
        summary_of("run", CommandProcess(["run"]).run(lambda line: None))


def test_no_summary_is_a_failure():
    with pytest.raises(JobFailedError, match="expected its summary as JSON"):
        summary_of("run", CommandResult(0, "done!", ""))


def test_death_by_signal_is_told(command):
    command("os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(JobFailedError, match="killed by SIGKILL"):
        summary_of("run", CommandProcess(["run"]).run(lambda line: None))


def test_stop_ends_the_child_by_sigterm(command):
    command("""
        print(os.getpid(), file=sys.stderr, flush=True)
        time.sleep(60)
    """)
    code, pid = _stopped()
    assert code == -signal.SIGTERM
    assert not psutil.pid_exists(pid)


def test_stop_kills_a_child_that_ignores_sigterm_with_all_it_has_started(command, monkeypatch):
    monkeypatch.setattr(commands, "GRACE_SECONDS", 0.3)
    command("""
        import subprocess
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        jvm = subprocess.Popen(["sleep", "60"])
        print(jvm.pid, file=sys.stderr, flush=True)
        time.sleep(60)
    """)
    begun = time.monotonic()
    code, grandchild = _stopped()
    assert code == -signal.SIGKILL
    assert time.monotonic() - begun < 20
    assert _ends(grandchild)


def test_a_job_stopped_before_its_start_does_not_run_on(command):
    command("time.sleep(60)")
    job = CommandProcess(["run"])
    job.stop()
    assert job.run(lambda line: None).code == -signal.SIGTERM


def test_the_child_dies_with_a_parent_killed_by_sigkill(command, tmp_path):
    command("""
        print(os.getpid(), file=sys.stderr, flush=True)
        time.sleep(60)
    """)
    script = """
        from windowmill.dags import commands
        commands.COMMAND = "pretended_command"
        commands.CommandProcess(["run"]).run(lambda line: print(line, flush=True))
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY / 'src'}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    assert _ends(child)


def _stopped() -> tuple[int, int]:
    """Start a job whose first message is a process id, stop it then; its exit code and that id."""
    job, pids = CommandProcess(["run"]), []

    def log(line: str) -> None:
        pids.append(int(line))
        threading.Thread(target=job.stop).start()

    return job.run(log).code, pids[0]


def _ends(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False
