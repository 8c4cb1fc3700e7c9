"""The Spark session: what it is made of, and that it works without a network."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from windowmill.jobs.spark import spark_settings
from windowmill.jobs.spark.jars import jar_paths
from windowmill.jobs.spark.session import spark_session
from windowmill.windowing.errors import MachineError


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return spark_session("tests")


@pytest.fixture
def launch_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that a launch sets, put back afterwards."""
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "before")
    monkeypatch.delenv("WINDOWMILL_DRIVER_MEMORY", raising=False)


@pytest.mark.usefixtures("launch_environment")
def test_local_launch_runs_workers_with_this_python_and_jars_on_the_class_path() -> None:
    conf = spark_settings.launch_conf("local[2]")
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert Path(os.environ["JAVA_HOME"], "bin", "java").exists()
    assert conf["spark.driver.extraClassPath"].split(":") == [str(path) for path in jar_paths()]
    assert conf["spark.driver.memory"] == "4g"
    assert "spark.jars" not in conf


@pytest.mark.usefixtures("launch_environment")
def test_cluster_launch_ships_the_jars_and_keeps_the_python_of_its_workers() -> None:
    conf = spark_settings.launch_conf("spark://cluster:7077")
    assert os.environ["PYSPARK_PYTHON"] == "before"
    assert conf["spark.jars"].split(",") == [str(path) for path in jar_paths()]
    assert "spark.driver.extraClassPath" not in conf


@pytest.mark.usefixtures("launch_environment")
def test_executors_of_a_brief_launch_have_one_compiler_and_the_collector_of_their_deployment() -> None:
    name = "spark.executor.defaultJavaOptions"
    options = spark_settings.launch_conf("spark://cluster:7077", brief=True)[name]
    assert "-XX:TieredStopAtLevel=1" in options
    assert "GC" not in options
    assert name not in spark_settings.launch_conf("spark://cluster:7077")


@pytest.mark.usefixtures("launch_environment")
def test_missing_jars_stop_a_launch_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
