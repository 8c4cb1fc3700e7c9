"""How a command ends whose batch needed Spark and Python workers: silently."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

# What is registered first is called last: threads have a second to print after the JVM has ended. Otherwise it is left to chance.
RUN = """
import atexit, sys, time
atexit.register(time.sleep, 1)
from windowmill.jobs.layouts import limits
limits.MAX_ROWS = 0  # Python workers lift the rows
from windowmill.jobs.cli import main
code = main(sys.argv[1:])
from pyspark.sql import SparkSession
java = SparkSession.getActiveSession()._jvm.java
for _ in range(2_000):
    java.lang.Object()  # no longer needed, of which the JVM is told while this process ends
sys.exit(code)
"""


@pytest.mark.spark
@pytest.mark.classic
def test_a_command_ends_without_a_traceback(tmp_path: Path) -> None:
    times = pa.array([datetime(2024, 1, 1, hour, tzinfo=UTC) for hour in range(24)], pa.timestamp("us", "UTC"))
    write_deltalake(tmp_path / "in", pa.table({"t": times, "k": ["a", "b"] * 12, "v": [1.5] * 24}))
    spec = {
        "pipeline": "p",
        "source": {"path": str(tmp_path / "in")},
        "sink": {"path": str(tmp_path / "out")},
        "keys": ["k"],
        "time": {"column": "t"},
        "windows": [{"name": "w", "type": "tumbling", "size": "1 hour"}],
        "aggregates": {"n": {"count": "*"}, "middle": {"median": "v"}},
    }
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(spec))
    done = subprocess.run(
        [sys.executable, "-c", RUN, "run", str(tmp_path / "p.yaml")],
        env={name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert "committed batch 0" in done.stdout
