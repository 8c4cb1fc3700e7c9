"""A Spark Connect server of ``windowmill serve`` for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass
class Served:
    """A running ``windowmill serve``: its process, address, and the process id of Spark."""

    process: subprocess.Popen[str]
    address: str
    pid: int

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"SPARK_REMOTE": self.address}


@contextmanager
def serve() -> Iterator[Served]:
    """A server on a free port; it is killed at the end."""
    command = [sys.executable, "-m", "windowmill.jobs.cli", "serve", "--port", "0", "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        told = json.loads(line)
        yield Served(process, told["address"], told["pid"])
        if process.poll() is None:
            process.kill()
