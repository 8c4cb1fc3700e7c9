"""The JVM that a run starts, by the command that Spark's own launcher prints, and the session over it, which needs no network."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from windowmill.jobs.spark import daemon, launch, spark_settings
from windowmill.jobs.spark.jars import find_java, jar_paths
from windowmill.jobs.spark.session import spark_session
from windowmill.jobs.spark.spark_settings import session_conf
from windowmill.windowing.errors import MachineError

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


def test_a_cluster_and_spark_that_is_configured_are_left_to_pyspark(settings, monkeypatch) -> None:
    assert launch._is_plain(settings)
    for master in ("spark://cluster:7077", "local-cluster[2,1,1024]", "yarn"):
        assert not launch._is_plain(settings | {"spark.master": master})
    for variable, value in {"SPARK_HOME": "/opt/spark", "SPARK_CONF_DIR": "/etc/spark", "PYSPARK_SUBMIT_ARGS": "pyspark-shell"}.items():
        with monkeypatch.context() as patched:
            patched.setenv(variable, value)
            assert not launch._is_plain(settings)


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


@pytest.mark.parametrize("taken", [Path.touch, lambda base: base.symlink_to("elsewhere")], ids=["a file", "a link"])
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


def launched(**variables: str) -> subprocess.CompletedProcess[str]:
    """``RUN`` in a process of its own. An empty address of a server is none: Spark's launcher would take it for one."""
    return subprocess.run([sys.executable, "-c", RUN], env=os.environ | variables, capture_output=True, text=True, check=False)


@pytest.mark.spark
@pytest.mark.classic
def test_a_session_uses_the_jvm_that_was_begun_and_nothing_is_left_of_it(settings: dict[str, str]) -> None:
    done = launched(SPARK_REMOTE="")
    assert done.returncode == 0, done.stderr
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
    # Its errors are not captured: to wait for them would be to wait for the JVM.
    environment = os.environ | {"SPARK_REMOTE": ""}
    done = subprocess.run([sys.executable, "-c", RUN, "kill"], env=environment, stdout=subprocess.PIPE, text=True, check=False)
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
    done = launched(JAVA_HOME=str(tmp_path))
    assert "no memory" in done.stderr
    assert "MachineError: Spark did not start, its own message is above" in done.stderr


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return spark_session("tests")


@pytest.fixture
def launch_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that a launch sets, put back afterwards."""
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "before")
    monkeypatch.delenv("WINDOWMILL_DRIVER_MEMORY", raising=False)


def test_launches_run_this_python_and_take_or_ship_the_jars(launch_environment) -> None:
    jars, executors = [str(path) for path in jar_paths()], "spark.executor.defaultJavaOptions"
    cluster, brief = (spark_settings.launch_conf("spark://cluster:7077", brief=brief) for brief in (False, True))
    assert os.environ["PYSPARK_PYTHON"] == "before", "workers of a cluster keep their Python"
    assert (cluster["spark.jars"].split(","), "spark.driver.extraClassPath" in cluster) == (jars, False)
    # Executors of a brief launch have one compiler, and the collector of their deployment.
    assert "-XX:TieredStopAtLevel=1" in brief[executors]
    assert "GC" not in brief[executors]
    assert executors not in cluster
    local = spark_settings.launch_conf("local[2]")
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert Path(os.environ["JAVA_HOME"], "bin", "java").exists()
    assert (local["spark.driver.extraClassPath"].split(":"), "spark.jars" in local) == (jars, False)
    assert local["spark.driver.memory"] == "4g"


def test_missing_jars_stop_a_launch_in_one_line(launch_environment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WINDOWMILL_JARS", str(tmp_path))
    with pytest.raises(MachineError, match="run `make setup`") as caught:
        spark_settings.launch_conf("local[2]")
    assert "\n" not in str(caught.value)


@pytest.mark.spark
def test_writes_and_reads_delta_once_per_transaction(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    for _ in range(2):
        spark.range(100).write.format("delta").mode("append").option("txnAppId", "a").option("txnVersion", "1").save(path)
    assert spark.read.format("delta").load(path).count() == 100


@pytest.mark.spark
@pytest.mark.classic
def test_workers_run_this_python(spark: SparkSession) -> None:
    assert spark.sparkContext.parallelize([0], 1).map(lambda _: sys.prefix).collect() == [sys.prefix]


@pytest.mark.spark
def test_session_is_utc_and_strict(spark: SparkSession) -> None:
    assert spark.sql("SELECT CAST(timestamp'2013-01-01 00:00:00' AS LONG)").collect()[0][0] == 1356998400
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"


@pytest.mark.spark
@pytest.mark.classic
def test_running_session_is_used_again_and_takes_settings(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    again = spark_session(conf={"spark.sql.shuffle.partitions": "3"})
    try:
        assert again.sparkContext is spark.sparkContext
        assert again.conf.get("spark.sql.shuffle.partitions") == "3"
        assert again.conf.get("spark.sql.session.timeZone") == "UTC"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
