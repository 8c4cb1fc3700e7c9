"""The JVM that a run starts: by the command that Spark's own launcher prints, and only where nothing else configures Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from windowmill.jobs.spark import daemon, launch
from windowmill.jobs.spark.java import find_java
from windowmill.jobs.spark.spark_settings import session_conf

RUN = """
import sys
from windowmill.jobs.spark import launch
from windowmill.jobs.spark.session import spark_session
launch.begin(brief=True)
[begun] = launch._begun
print(begun.process.pid, begun.folder)
spark = spark_session("launched", brief=True)
assert spark.sparkContext._gateway.proc is begun.process
assert spark.sparkContext.appName == "launched"
print(spark.range(1000).groupBy().sum().collect()[0][0])
print(len(list(begun.folder.iterdir())))


def told(_):
    import os

    import pyarrow as pa

    names = "PYTHONHASHSEED", "MALLOC_MMAP_THRESHOLD_", "SPARK_REUSE_WORKER"
    environment = " ".join(os.environ[name] for name in names)
    yield pa.record_batch({"parent": [os.getppid()], "environment": [environment]})


[(parent, environment)] = spark.range(0, 1, 1, 1).mapInArrow(told, "parent long, environment string").collect()
print(begun.daemon.pid, parent, environment)
if "kill" in sys.argv:
    import os
    import signal

    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name in [name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_"))]:
        monkeypatch.delenv(name)
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # a launch sets them
    return session_conf("local[2]", {}, brief=True)


def test_the_command_is_that_of_sparks_launcher_without_the_module_that_java_warns_of(settings: dict[str, str]) -> None:
    home, java = launch._spark_home(), find_java().home
    assert home is not None
    conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    spark_submit = ["org.apache.spark.deploy.SparkSubmit", *conf, "pyspark-shell"]
    printed = subprocess.run(
        [f"{java}/bin/java", "-cp", f"{home}/jars/*", "org.apache.spark.launcher.Main", *spark_submit],
        env={"SPARK_HOME": str(home), "JAVA_HOME": str(java), "SPARK_SCALA_VERSION": "2.13"},
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = printed.stdout.strip("\n").lstrip("\0\n").rstrip("\0").split("\0")
    theirs.remove("--add-modules=jdk.incubator.vector")
    ours = launch.command(settings, home, java, [])
    begin = ours.index(spark_submit[0])
    assert ours[:begin] == theirs[: theirs.index(spark_submit[0])]
    # The launcher orders the settings anew.
    assert sorted(ours[begin:]) == sorted(theirs[theirs.index(spark_submit[0]) :])


@pytest.mark.parametrize(
    ("variable", "value"), [("SPARK_HOME", "/opt/spark"), ("SPARK_CONF_DIR", "/etc/spark"), ("PYSPARK_SUBMIT_ARGS", "pyspark-shell")]
)
def test_spark_that_is_configured_is_left_to_pyspark(settings, monkeypatch, variable, value) -> None:
    assert launch._is_plain(settings)
    monkeypatch.setenv(variable, value)
    assert not launch._is_plain(settings)


def test_a_cluster_is_left_to_pyspark(settings: dict[str, str]) -> None:
    for master in ("spark://cluster:7077", "local-cluster[2,1,1024]", "yarn"):
        assert not launch._is_plain(settings | {"spark.master": master})


def test_folders_of_dead_processes_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(launch.tempfile, "gettempdir", lambda: str(tmp_path))
    first, lock = launch._scratch()
    (first / "kept").touch()
    second, _ = launch._scratch()
    assert (first / "kept").exists()
    os.close(lock)  # as the kernel does when a process dies
    launch._scratch()
    assert not first.exists()
    assert second.exists()


def _linked(base: Path) -> None:
    base.symlink_to("elsewhere")


@pytest.mark.parametrize("taken", [Path.touch, _linked], ids=["a file", "a link"])
def test_what_another_has_put_in_the_folders_place_is_left_alone(settings, monkeypatch, tmp_path, taken) -> None:
    (tmp_path / "elsewhere" / "kept").mkdir(parents=True)
    taken(tmp_path / f"windowmill-jvm-{os.getuid()}")
    monkeypatch.setattr(launch.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(launch, "_connected", lambda: False)
    launch.begin(brief=True)  # PySpark starts the JVM later
    assert not launch._begun
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["kept"]


def test_the_folder_of_another_user_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(launch.tempfile, "gettempdir", lambda: str(tmp_path))
    _, lock = launch._scratch()
    os.close(lock)
    [base] = tmp_path.iterdir()
    before, user = list(base.iterdir()), os.getuid()
    base.rename(tmp_path / f"windowmill-jvm-{user + 1}")
    monkeypatch.setattr(launch.os, "getuid", lambda: user + 1)
    with pytest.raises(PermissionError):
        launch._scratch()
    assert [path.name for path in (tmp_path / f"windowmill-jvm-{user + 1}").iterdir()] == [path.name for path in before]


@pytest.mark.spark
@pytest.mark.classic
def test_a_session_uses_the_jvm_that_was_begun_and_nothing_is_left_of_it(settings: dict[str, str]) -> None:
    # An empty address is none: Spark's launcher would take it for one.
    done = subprocess.run([sys.executable, "-c", RUN], env=os.environ | {"SPARK_REMOTE": ""}, capture_output=True, text=True, check=True)
    begun, total, files, worker = done.stdout.splitlines()
    pid, folder = begun.split(" ", 1)
    waiting, parent, environment = worker.split(" ", 2)
    assert total == str(sum(range(1000)))
    assert int(files) > 1
    assert parent == waiting  # workers are forks of the daemon that was started beside the JVM
    assert environment == f"0 {32 << 20} 1"
    assert not Path("/proc", pid).exists()
    assert not Path("/proc", waiting).exists()
    assert not Path(folder).exists()


@pytest.mark.spark
@pytest.mark.classic
def test_the_jvm_and_the_daemon_end_with_a_process_that_is_killed(settings: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN, "kill"], env=os.environ | {"SPARK_REMOTE": ""}, stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL
    begun, _, _, worker = done.stdout.splitlines()
    pids, until = [begun.split(" ")[0], worker.split(" ")[0]], time.monotonic() + 60
    while any(Path("/proc", pid).exists() for pid in pids) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(Path("/proc", pid).exists() for pid in pids)


def test_without_a_daemon_that_waits_the_process_goes_on_alone(tmp_path: Path) -> None:
    assert not daemon._handed_over(str(tmp_path / "daemon"))


@pytest.mark.spark
@pytest.mark.classic
def test_a_jvm_that_does_not_start_is_one_line(settings: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'no memory' >&2\nexit 1\n")
    program.chmod(0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="17.0.15"\n')
    done = subprocess.run(
        [sys.executable, "-c", RUN], env=os.environ | {"JAVA_HOME": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert "no memory" in done.stderr
    assert "MachineError: Spark did not start, its own message is above" in done.stderr
