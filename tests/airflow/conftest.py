"""Airflow as the tests see it: a home of its own, no examples, no database."""

from __future__ import annotations

import os
import tempfile
import textwrap
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

import pytest  # noqa: E402

SPEC = """\
pipeline: {name}
source: {{path: "{folder}/events"}}
keys: [origin]
time: {{column: departed_at, lateness: 1 hour}}
windows:
  - {{name: hourly, type: tumbling, size: 1 hour}}
aggregates:
  flights: {{count: "*"}}
sink: {{path: "{folder}/{name}"}}
schedule: "*/30 * * * *"
"""


@pytest.fixture
def write_spec(tmp_path: Path):
    """Writes a small pipeline's spec, with texts in it replaced, and returns its path."""

    def write(name: str = "delays", folder: Path | None = None, **replaced: str) -> Path:
        text = SPEC.format(name=name, folder=tmp_path)
        for old, new in replaced.items():
            assert old in text
            text = text.replace(old, new)
        path = (folder or tmp_path) / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Puts a script in the place of the windowmill command."""

    from windowmill.dags import commands

    def put(body: str) -> None:
        (tmp_path / "pretended_command.py").write_text("import json, os, signal, sys, time\n" + textwrap.dedent(body))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(commands, "COMMAND", "pretended_command")

    return put
