"""A Hive metastore for tests: in a JVM of its own, of jars that PySpark has, over a Derby database in memory; and a Spark that asks it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark

from windowmill.jobs.spark.jars import find_java

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Answered:
    """What a command has printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Player:
    """A process with one Spark session, whose catalog is the metastore; commands and SQL run there."""

    process: subprocess.Popen[str]

    def command(self, *words: str, compute: str = "auto") -> Answered:
        """Run ``windowmill`` with these words."""
        return Answered(**self._asked({"words": words, "compute": compute}))

    def sql(self, *statements: str) -> list[list[Any]]:
        """Run statements of SQL; the rows of the last one."""
        rows: list[list[Any]] = self._asked({"sql": statements})["rows"]
        return rows

    def page(self, path: Path, folder: Path) -> str:
        """A page of the docs with the real output of its commands, played in ``folder``."""
        return str(self._asked({"page": str(path), "folder": str(folder)})["text"])

    def _asked(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        assert line, f"the player has ended (exit code {self.process.wait()})"
        answer: dict[str, Any] = json.loads(line)
        assert "failed" not in answer, answer["failed"]
        return answer


@contextmanager
def hive(below: Path) -> Iterator[Player]:
    """Start a metastore, and a player that asks it."""
    with _metastore(below) as (port, process), player(below, hive_settings(port)) as playing:
        playing.sql("SET spark.app.name")  # Spark starts while the metastore does
        _wait_for(port, process)
        yield playing


@contextmanager
def _metastore(below: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Begin to start a metastore; its port, and its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    settings = {
        "hive.async.log.enabled": "false",  # it wants a jar that PySpark lacks
        "javax.jdo.option.ConnectionURL": "jdbc:derby:memory:metastore;create=true",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": str(below / "warehouse"),
    }
    java = [str(find_java().home / "bin" / "java"), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    java += [f"-Dderby.stream.error.file={below}/derby.log", "-cp", f"{Path(pyspark.__file__).parent}/jars/*"]
    command = [*java, "org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port)]
    command += [part for name, value in settings.items() for part in ("--hiveconf", f"{name}={value}")]
    process = subprocess.Popen(command, cwd=below, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield port, process
    finally:
        process.kill()
        process.wait()


@contextmanager
def player(below: Path, defaults: dict[str, str]) -> Iterator[Player]:
    """Start a player whose Spark has ``defaults`` in its ``spark-defaults.conf``, and nothing of them from windowmill."""
    conf = below / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in defaults.items()))
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"} | {"SPARK_CONF_DIR": str(conf)}
    with (below / "player.log").open("w") as log, subprocess.Popen(
        [sys.executable, "-m", "tests.catalog.player"], cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=log, text=True,
    ) as process:  # fmt: skip
        try:
            yield Player(process)
        finally:
            process.kill()


def hive_settings(port: int) -> dict[str, str]:
    """Spark's settings by which its session catalog is the metastore on ``port``."""
    return {"spark.sql.catalogImplementation": "hive", "spark.hadoop.hive.metastore.uris": f"thrift://127.0.0.1:{port}"}


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(f"the metastore does not listen (exit code {process.poll()})")
