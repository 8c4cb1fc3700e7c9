"""Airflow as the tests see it: a home of its own, no examples, no database."""

from __future__ import annotations

import io
import os
import tempfile
import textwrap
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path

# Airflow reads its settings when it is imported, so this stands before any test module's imports.
_HOME = tempfile.mkdtemp(prefix="windowmill-airflow-")
os.environ.update(
    {
        "AIRFLOW_HOME": _HOME,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_HOME}/airflow.db",
    }
)

import pyarrow as pa  # noqa: E402
import pytest  # noqa: E402
from deltalake import write_deltalake  # noqa: E402

from tests.airflow.specs import written  # noqa: E402


@pytest.fixture
def write_spec(tmp_path: Path):
    """Writes a small pipeline's spec, with texts in it replaced, and returns its path."""

    def write(name: str = "delays", folder: Path | None = None, **replaced: str) -> Path:
        return written(tmp_path, name, folder, **replaced)

    return write


@pytest.fixture
def land(tmp_path):
    """Appends a row to the source."""

    def land(rows: int = 1) -> None:
        times = pa.array([datetime(2024, 1, 1, tzinfo=UTC)] * rows, pa.timestamp("us", "UTC"))
        write_deltalake(
            str(tmp_path / "events"), pa.table({"origin": pa.array(["JFK"] * rows, pa.string()), "departed_at": times}), mode="append"
        )

    return land


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Puts a script in the place of the windowmill command."""

    from windowmill.dags import commands

    def put(body: str) -> None:
        (tmp_path / "pretended_command.py").write_text("import json, os, signal, sys, time\n" + textwrap.dedent(body))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(commands, "COMMAND", "pretended_command")

    return put


@pytest.fixture
def commands_here(monkeypatch):
    """Lets tasks run their commands in this process; in processes of their own they are in test_operators.py and test_process.py."""

    from windowmill.dags.commands import CommandProcess, CommandResult, _forward, _last_line
    from windowmill.jobs.cli import main

    def run(self, log) -> CommandResult:
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as own, redirect_stdout(out), redirect_stderr(err):
            for name, value in self._environment.items():
                own.setenv(name, value)
            code = main(list(self.arguments))
        err.seek(0)
        return CommandResult(code, _last_line(out), _forward(err, log))

    monkeypatch.setattr(CommandProcess, "run", run)
