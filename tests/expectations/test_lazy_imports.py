"""What Great Expectations defers is the module itself, and only Great Expectations gets it so."""

from __future__ import annotations

import subprocess
import sys

LOAD = """
import sys, types
from windowmill.expectations.gx import load
load()
assert "sqlalchemy" not in sys.modules
assert type(sys.modules["scipy.stats"]) is not types.ModuleType
"""


def _run(text: str) -> None:
    done = subprocess.run([sys.executable, "-c", LOAD + text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_deferred_module_executes_at_first_use() -> None:
    _run("import scipy.stats\nassert scipy.stats.norm.cdf(0) == 0.5")
    _run("import altair, jsonschema\nassert altair.Chart and jsonschema.validate({}, {}) is None")


def test_sqlalchemy_is_there_for_everyone_else() -> None:
    _run("import sqlalchemy\nassert sqlalchemy.select")
