"""What a command says whose task fails in a Python worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

SPEC = """\
pipeline: p
time: {column: t, unit: none}
windows: [{name: w, type: tumbling, size: 10}]
aggregates: {b: {use: "broken:Broken", args: [x]}}
"""
MODULE = """\
class Broken:
    def lift(self, x): return x
    def combine(self, a, b): raise RuntimeError("no such day")
    def lower(self, x): return x
"""


def test_an_error_in_a_users_function_is_one_line(tmp_path: Path):
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "broken.py").write_text(MODULE)
    (tmp_path / "rows.jsonl").write_text('{"t": 1, "x": 1}\n{"t": 2, "x": 2}\n')
    command = [sys.executable, "-m", "windowmill.jobs.cli", "try", "spec.yaml", "--input", "rows.jsonl", "--engine", "spark"]
    path = os.pathsep.join([str(Path(__file__).parents[2] / "src"), str(tmp_path)])
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout) == (1, "")
    [told] = done.stderr.splitlines()
    assert told.startswith("windowmill: RuntimeError: no such day (broken.py:3 in combine); run again")
