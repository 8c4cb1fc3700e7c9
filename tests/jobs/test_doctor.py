"""What ``windowmill doctor`` finds on good and bad machines."""

from __future__ import annotations

import json
import os
import socket
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from windowmill.jobs.cli import main
from windowmill.jobs.commands import doctor, terminal
from windowmill.jobs.commands.doctor import Check
from windowmill.jobs.spark import jars
from windowmill.windowing.errors import MachineError
from windowmill.windowing.settings import SETTINGS


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "WINDOWMILL_JARS", "WINDOWMILL_MASTER", "WINDOWMILL_DRIVER_MEMORY", "AIRFLOW__API__PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WAREHOUSE", str(tmp_path / "warehouse"))


def fake_java(home: Path, version: str) -> Path:
    """A Java that only states its version, as every Java does, on stderr."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


def one_java_only(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setattr(jars, "INSTALLED_UNDER", home.parent)
    monkeypatch.setenv("PATH", str(home.parent / "nothing-here"))


@pytest.mark.timeout(3)
def test_every_part_is_examined_within_three_seconds():
    names = [check.name for check in doctor.examine()]
    assert {"Java", "Delta jars", "Class archive", "Kernels", "Worker Python", "Warehouse", "Disk", "Airflow port", "Memory"} < set(names)


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("1.8.0_402", 8), ("25", 25), ("11.0.2", 11), ("21-ea", 21)])
def test_major_version_of_java(version, major):
    assert jars.Java(Path("/j"), version).major == major


def test_the_oldest_usable_java_is_taken_and_others_are_told(monkeypatch, tmp_path):
    one_java_only(monkeypatch, fake_java(tmp_path / "java-8", "1.8.0_402"))
    check = doctor.check_java()
    assert (check.ok, "1.8.0_402" in check.advice, "openjdk-17-jre-headless" in check.advice) == (False, True, True)
    for version in ("25.0.1", "11.0.2", "17.0.15"):
        fake_java(tmp_path / f"java-{version}", version)
    assert jars.find_java().version == "17.0.15"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    check = doctor.check_java()
    assert (check.ok, f"JAVA_HOME is {tmp_path / 'gone'}" in check.found) == ("warn", True)
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "b" / "java-21", "21.0.2")))
    assert jars.find_java().version == "21.0.2", "a usable JAVA_HOME wins"
    assert doctor.check_java().ok is True


def test_missing_and_truncated_jars_are_wrong_and_a_missing_class_archive_is_warned_of(monkeypatch, tmp_path):
    assert jars.damaged_jars(jars.jars_folder()) == []
    good = jars.jar_paths()
    monkeypatch.setenv("WINDOWMILL_JARS", str(tmp_path))
    assert doctor.check_jars().ok is False
    with pytest.raises(MachineError, match=r"Delta jars are not in .*; run `make setup`"):
        jars.jar_paths()
    for path in good:
        truncated = path.name == f"delta-storage-{jars.DELTA_VERSION}.jar"
        (tmp_path / path.name).write_bytes(path.read_bytes()[: -1 if truncated else None])
    check = doctor.check_jars()
    assert (check.ok, check.found.endswith(": delta-storage")) == (False, True)
    assert doctor.check_class_archive().ok == "warn"
    jars.class_archive().touch()
    assert doctor.check_class_archive().ok is True


def test_kernels_that_are_not_compiled_or_stale_are_told(monkeypatch, tmp_path):
    from windowmill.windowing.kernels.slices import hopping_windows

    monkeypatch.setattr(hopping_windows.dispatcher, "_cache", SimpleNamespace(cache_path=str(tmp_path)))
    assert doctor.check_kernels().ok == "warn"
    index = tmp_path / "slices.hopping_windows-20.py311.nbi"
    index.touch()
    assert doctor.check_kernels().ok is True
    os.utime(index, (0, 0))  # compiled from other code, long ago
    check = doctor.check_kernels()
    assert (check.ok, "older than their sources" in check.found) == (False, True)


def test_jars_fit_the_declared_delta_and_go_to_the_users_cache_where_the_environment_cannot_be_written(monkeypatch, tmp_path):
    assert metadata.version("delta-spark") == jars.DELTA_VERSION
    monkeypatch.setattr(jars.sys, "prefix", str(tmp_path / "python"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert jars.jars_folder() == tmp_path / "python" / "share" / "windowmill" / "jars"
    monkeypatch.setattr(jars.os, "access", lambda *_: False)
    assert jars.jars_folder() == tmp_path / "cache" / "windowmill" / "jars"


def test_worker_python(monkeypatch, tmp_path):
    monkeypatch.setenv("WINDOWMILL_MASTER", "spark://cluster:7077")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert doctor.check_worker_python().ok is True
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 3.9\n")
    other.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    check = doctor.check_worker_python()
    assert (check.ok, "is 3.9, the driver is 3.11" in check.found) == (False, True)
    monkeypatch.setenv("WINDOWMILL_MASTER", "local[2]")
    assert doctor.check_worker_python().ok == "warn"


def test_version_that_is_not_declared_is_wrong(monkeypatch):
    assert [check.ok for check in doctor.check_versions()] == [True]
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: ["pandas<2", "numba==0.1.*", "no-such-package", "pytest<1; extra == 'dev'"])
    wrong = doctor.check_versions()
    assert [(check.name, check.ok) for check in wrong] == [("pandas", False), ("numba", False), ("no-such-package", False)]
    assert wrong[0].found.endswith("needs <2")


def test_warehouse_under_a_file_is_wrong(monkeypatch, tmp_path):
    (tmp_path / "taken").write_text("")
    assert doctor.check_warehouse(tmp_path / "new" / "warehouse").ok is True
    assert doctor.check_warehouse(tmp_path).found == f"{tmp_path} (WAREHOUSE)"
    assert doctor.check_warehouse(tmp_path / "taken" / "warehouse").ok is False
    monkeypatch.delenv("WAREHOUSE")
    assert doctor.check_warehouse(tmp_path).found == f"{tmp_path} (the working directory's, as WAREHOUSE is not set)"
    monkeypatch.setenv("WAREHOUSE", "oss://bucket/warehouse")
    told = "oss://bucket/warehouse: oss:// is not known to keep two writers apart, so a batch could be lost or committed twice"
    assert doctor.check_warehouse(None).found == told


def test_little_room_and_a_busy_port_are_told(monkeypatch, tmp_path):
    assert doctor.check_disk(tmp_path / "warehouse").ok is True
    monkeypatch.setattr(doctor, "LOW_DISK_BYTES", 1 << 60)
    assert doctor.check_disk(tmp_path / "warehouse").ok == "warn"
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("AIRFLOW__API__PORT", str(server.getsockname()[1]))
        assert doctor.check_port().ok == "warn"
    assert doctor.check_port().ok is True


@pytest.mark.parametrize(("asked", "ok"), [("512m", True), ("4000g", "warn"), ("lots", False)])
def test_memory(monkeypatch, asked, ok):
    monkeypatch.setenv("WINDOWMILL_DRIVER_MEMORY", asked)
    assert doctor.check_memory().ok == ok


def examined(monkeypatch: pytest.MonkeyPatch, checks: list[Check], *options: str) -> int:
    monkeypatch.setattr(doctor, "examine", lambda: checks)
    return main(["doctor", *options])


def test_doctor_ends_with_one_only_if_something_is_wrong_and_fits_a_terminal(monkeypatch, capsys):
    fine, told, wrong = Check("A", True, "good"), Check("B", "warn", "odd", "look"), Check("C", False, "[bad]", "repair")
    assert examined(monkeypatch, [fine, told]) == 0
    assert "repair" not in capsys.readouterr().out
    assert examined(monkeypatch, [fine, told, wrong]) == 1
    assert capsys.readouterr().out.splitlines()[-3:] == ["WRONG C  [bad]", "         -> repair", "1 wrong, 1 to check, 1 fine"]
    assert examined(monkeypatch, [fine, wrong], "--json") == 1
    good = {"name": "A", "result": "ok", "found": "good", "advice": ""}
    bad = {"name": "C", "result": "wrong", "found": "[bad]", "advice": "repair"}
    assert json.loads(capsys.readouterr().out) == {"wrong": 1, "warned": 0, "checks": [good, bad]}
    monkeypatch.setattr(terminal.console, "width", 80)
    found = "missing in /srv/windowmill/jars: delta-spark_4.2_2.13, delta-storage, delta-kernel-api"
    long = Check("Delta jars", False, found, "run `make setup` (or, without the checkout, `windowmill setup`), and look again")
    assert examined(monkeypatch, [long]) == 1
    assert capsys.readouterr().out.splitlines()[:-1] == [
        "WRONG Delta jars  missing in /srv/windowmill/jars: delta-spark_4.2_2.13,",
        "                  delta-storage, delta-kernel-api",
        "                  -> run `make setup` (or, without the checkout, `windowmill",
        "                     setup`), and look again",
    ]


def test_airflow_is_an_extra_which_is_checked_where_it_is_installed(monkeypatch):
    installed = {"apache-airflow": "3.3.2", "pandas": "2.3.0"}

    def version(name: str) -> str:
        if name == "apache-airflow" and name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed.get(name, "1")

    monkeypatch.setattr(doctor, "metadata", SimpleNamespace(version=version, PackageNotFoundError=metadata.PackageNotFoundError))
    doctor.metadata.requires = lambda _: ["pandas<3", "apache-airflow>=3.3,<4; extra == 'airflow'", "pytest>=8; extra == 'dev'"]
    assert doctor.check_versions()[0].found.endswith("apache-airflow 3.3.2")
    installed["apache-airflow"] = "2.9.0"
    assert [(check.name, check.ok) for check in doctor.check_versions()] == [("apache-airflow", False)]
    del installed["apache-airflow"]
    assert doctor.check_versions()[0].found.endswith("no Airflow (pip install windowmill[airflow])")


def test_settings_are_listed_and_misspelt_ones_told(monkeypatch):
    for setting in SETTINGS:
        monkeypatch.delenv(setting.name, raising=False)
    assert doctor.check_settings() == []
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "auto")
    monkeypatch.setenv("WINDOWMILL_TESTS_OVER", "connect")  # read by tests, and like no setting
    assert [(check.ok, check.found) for check in doctor.check_settings()] == [(True, "WINDOWMILL_COMPUTE=auto")]
    monkeypatch.setenv("WINDOWMILL_PIPELINE", "/srv/pipelines")
    (check,) = doctor.check_settings()
    assert (check.ok, check.found, check.advice) == ("warn", "WINDOWMILL_PIPELINE: not read", "did you mean WINDOWMILL_PIPELINES?")
