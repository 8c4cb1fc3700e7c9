"""The wheel in an environment of its own, outside the checkout, beside a project with ``dags`` and ``jobs`` packages of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from tests.specs import a_spec
from windowmill.jobs.spark.jars import jars_folder

ROOT = Path(__file__).parents[2]
SPEC = a_spec(
    pipeline="visits",
    source={"path": "visits"},
    keys=["site"],
    time={"column": "at"},
    aggregates={"n": {"count": "*"}, "spread": {"use": "jobs.spread:Spread", "args": ["pages"]}},
    sink={"path": "hourly"},
)
SPREAD = """
class Spread:
    def lift(self, value): return value, value
    def combine(self, older, newer): return min(older[0], newer[0]), max(older[1], newer[1])
    def lower(self, pair): return float(pair[1] - pair[0])
"""
AGGREGATE = """
from windowmill import aggregate, spark_session

spark = spark_session(master="local[1]", brief=True)
rows = spark.createDataFrame([("a", 0, 3), ("a", 60, 5), ("a", 3_700, 1)], "site string, at long, pages int")
spec = {"keys": ["site"], "time": {"column": "at", "unit": "s"}, "windows": [{"name": "h", "type": "tumbling", "size": 3_600}]}
result = aggregate(rows, {"pipeline": "p", **spec, "aggregates": {"total": {"sum": "pages"}}})
print(sorted(row.total for row in result.collect()))
"""


UNDER_AIRFLOW = """
import json

from airflow.plugins_manager import get_plugin_info
from airflow.providers_manager import ProvidersManager
from windowmill.dags import pipelines

plugins = [plugin["name"] for plugin in get_plugin_info()]
print(json.dumps({"dags": sorted(pipelines.built.dags), "providers": [*ProvidersManager().providers], "plugins": plugins}))
"""


def built(target: str, folder: Path) -> Path:
    build = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return next(path for path in folder.iterdir() if path.name.endswith((".whl", ".tar.gz")))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return built("wheel", tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    """An environment with the wheel. What it depends on comes from ours, which has windowmill as this checkout."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    purelib = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    (purelib / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # the .pth files there are not read
    install = [shutil.which("uv", path=str(Path(sys.executable).parent)), "pip", "install", "--quiet", "--no-deps", "--offline"]
    subprocess.run([*install, "--python", str(folder / "bin" / "python"), str(wheel)], check=True)
    _take_compiled_kernels(ROOT / "windowing", purelib / "windowmill" / "windowing")
    return folder


def _take_compiled_kernels(built: Path, installed: Path) -> None:
    """Numba knows compiled code by size and time of its source, so the installed sources get the times that they have here."""
    for file in (*built.rglob("*.py"), *built.rglob("__pycache__/*.nb[ic]")):
        target = installed / file.relative_to(built)
        target.parent.mkdir(exist_ok=True)
        shutil.copy2(file, target)


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A repository as data engineers have them, with a source and a spec."""
    folder = tmp_path_factory.mktemp("project")
    for package in ("dags", "jobs"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text("")
    (folder / "dags" / "mine.py").write_text("OWN = 1\n")
    (folder / "jobs" / "spread.py").write_text(SPREAD)
    (folder / "pipelines").mkdir()
    (folder / "pipelines" / "visits.yaml").write_text(yaml.safe_dump(SPEC))
    at = [datetime(2013, 1, 1, hour, tzinfo=UTC) for hour in (0, 0, 1, 5)]
    write_deltalake(folder / "visits", pa.table({"site": ["a"] * 4, "at": at, "pages": [1, 4, 2, 9]}))
    return folder


@pytest.fixture
def call(environment, project):
    """Run a program of the environment in the project; its standard output."""

    def called(program: str, *arguments: str) -> str:
        own = {"WINDOWMILL_JARS": str(jars_folder()), "PYTHONPATH": str(project), "WINDOWMILL_PIPELINES": str(project / "pipelines")}
        own |= {"AIRFLOW_HOME": str(project / "airflow"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
        command = [str(environment / "bin" / program), *arguments]
        done = subprocess.run(command, cwd=project, env=os.environ | own, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return called


def test_one_name_is_installed_and_found_and_what_is_the_users_stays_theirs(wheel, call, environment, project):
    names = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"windowmill"}
    assert call("python", "-c", "import windowmill.jobs.cli as cli; print(cli.__file__)").startswith(str(environment))
    assert call("python", "-c", "import dags.mine, jobs; print(jobs.__file__)").startswith(str(project))


def test_a_run_and_its_report(call, project):
    call("windowmill", "validate", "pipelines/visits.yaml")
    [batch] = json.loads(call("windowmill", "run", "pipelines/visits.yaml", "--json"))["batches"]
    assert batch["rows_read"] == 4
    rows = pa.table(DeltaTable(project / "hourly").to_pyarrow_table()).to_pylist()
    assert sorted((row["n"], row["spread"]) for row in rows) == [(1, "0.0"), (2, "3.0")]
    call("windowmill", "report", "pipelines/visits.yaml")
    assert "visits" in next((project / "hourly.windowmill").rglob("*.html")).read_text()


@pytest.mark.dag
def test_airflow_finds_the_dag_files_the_provider_and_the_plugin(call):
    found = json.loads(call("python", "-c", UNDER_AIRFLOW).splitlines()[-1])
    assert found["dags"] == ["visits", "visits__backfill", "visits__maintenance"]
    assert "windowmill" in found["providers"]
    assert "windowmill" in found["plugins"]


@pytest.mark.spark
def test_aggregate(call):
    assert call("python", "-c", AGGREGATE).split("\n")[-2] == "[1, 8]"


def test_the_package_works_from_a_zip(wheel, tmp_path):
    """As ``--py-files`` ships it to executors."""
    code = (
        "from windowmill import load_pipeline; from windowmill.jobs import json_lines; import windowmill.jobs.schedulers.file_rows; "
        "import windowmill.jobs.schedulers.tasks; print(json_lines.__file__)"
    )
    archive = shutil.copy(wheel, tmp_path / "windowmill.zip")
    own = os.environ | {"PYTHONPATH": str(archive)}
    done = subprocess.run([sys.executable, "-c", code], env=own, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(archive))


def test_the_source_distribution_holds_what_the_wheel_does(wheel, tmp_path):
    """Each folder behind its link in ``src``, from which a wheel is built where there is no checkout."""
    with tarfile.open(built("sdist", tmp_path)) as archive:
        packed = {name.partition("/src/")[2] for name in archive.getnames() if "/src/" in name}
    assert packed == {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
