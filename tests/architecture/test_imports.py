"""The folder tree is the architecture: imports point one way, and light modules stay light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.architecture.measures import PACKAGES, PYSPARK, ROOT, Product, dotted, reached_from
from windowmill.windowing.settings import SETTINGS

OURS = set(PACKAGES)
PRODUCT = Product.here()
ENGINES = {"pyspark", "delta", "deltalake", "great_expectations", "airflow", "duckdb", "pandas", "confluent_kafka"}
WATCHED = OURS | ENGINES
ALLOWED = {
    "windowing": set(),
    "checkpoints": {"windowing", "deltalake"},
    "expectations": {"windowing", "great_expectations", "deltalake", "pyspark", "pandas"},
    "jobs": {"windowing", "checkpoints", "expectations", "deltalake", "delta", "pyspark", "duckdb", "confluent_kafka"},
    # Jobs and the ledger are for tasks; that parsing a DAG file loads neither is tested with the DAGs.
    "dags": {"windowing", "airflow", "checkpoints", "jobs"},
}
#: Folders and modules of jobs that call PySpark, and modules that only hand on its sessions and frames.
SPARK_FOLDERS = {"spark", "verify"}
SPARK_MODULES = {
    "batch/spark_committer.py",
    "dataframe.py",
    *(f"schedulers/{name}.py" for name in ("exchange", "file_rows", "tasks")),
    *(f"sources/{name}.py" for name in ("columns", "lookups", "spark_files")),
}
HANDING_ON = {
    *(f"batch/{name}.py" for name in ("compute", "counted_rows", "steps", "task", "validating")),
    "commands/try_spark.py",
    "sink_views.py",
    "warm_up.py",
    *(f"sources/{name}.py" for name in ("base", "delta_log", "folder", "kafka", "table_rows")),
}


def modules_of(*packages: str) -> list[str]:
    """Modules of packages, by their paths."""
    return [name for name in PRODUCT.texts if name.startswith(tuple(f"{package}/" for package in packages))]


EVERY = modules_of(*PACKAGES)


def imported(name: str) -> set[str]:
    """Modules that one imports anywhere, except for types alone."""
    return PRODUCT.imported(name, types=False)


def packages_in(name: str) -> set[str]:
    """Packages that a module imports; those of ours without ``windowmill`` before them."""
    return {each.removeprefix("windowmill.").partition(".")[0] for each in imported(name)}


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_point_one_way(package):
    assert modules_of(package), f"no files under {package}/: has the folder moved?"
    for name in modules_of(package):
        stray = packages_in(name) & (WATCHED | {"windowmill"}) - ALLOWED[package] - {package}
        assert not stray, f"{name} imports {sorted(stray)}"


def test_every_place_is_opened_by_one_module():
    """Elsewhere a table in object storage would be opened without its credentials (decision 28)."""
    opening = re.compile(r"(?<![\w.`])DeltaTable\(|is_deltatable|DeltaStorageHandler|FileSystem\.from_uri|DeltaTable\.create\(")
    assert [name for name in modules_of("checkpoints", "jobs", "dags") if opening.search(PRODUCT.texts[name])] == ["checkpoints/stores.py"]


def test_spark_is_known_in_few_modules():
    """Neither parts nor the local scheduler name a class of Spark, also not for types alone."""
    handed = re.compile(r"^\s*from windowmill\.jobs\.spark\.access import (?:\([^)]*|[^\n]*)\b(?:DataFrame|SparkSession)\b", re.MULTILINE)
    assert [name for name in modules_of("windowing", "checkpoints", "dags") if PYSPARK.search(PRODUCT.texts[name])] == []
    assert all(modules_of(f"jobs/{folder}") for folder in SPARK_FOLDERS)
    own = {name.removeprefix("jobs/"): PRODUCT.texts[name] for name in modules_of("jobs") if not SPARK_FOLDERS & set(name.split("/"))}
    assert {name for name, text in own.items() if PYSPARK.search(text)} == SPARK_MODULES
    assert {name for name, text in own.items() if handed.search(text)} - SPARK_MODULES == HANDING_ON


HEAVY = {"numba", "pandas", "pyspark", "great_expectations", "airflow"}


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("windowmill.windowing.specfile", {"numpy", "pyarrow", "deltalake"} | HEAVY),
        ("windowmill.plugins", {*(f"windowmill.{name}" for name in OURS - {"windowing"}), "numpy", "pyarrow", "deltalake"} | HEAVY),
        ("windowmill.jobs.cli", {"typer", "rich", "pydantic", "yaml", "numpy", "pyarrow", "deltalake"} | HEAVY),
        ("windowmill.jobs.commands.terminal", {"deltalake"} | HEAVY),
        # Every run of pytest loads the plugin, also those that have nothing to do with pipelines.
        ("windowmill.testing", {*(f"windowmill.{name}" for name in OURS), "numpy", "pyarrow", "pydantic", "hypothesis", "yaml"} | HEAVY),
        # What only tasks use.
        (
            "windowmill.jobs.batch.steps",
            {
                *("numba", "duckdb", "sqlglot", "great_expectations", "airflow", "windowmill.jobs.batch.compute"),
                *(f"windowmill.jobs.layouts.{name}" for name in ("slices", "positions", "sessions", "live_rows")),
            },
        ),
        ("windowmill.jobs.batch.loop", HEAVY),
        ("windowmill.jobs.commands.summaries", HEAVY),
    ],
)
def test_light_modules_load_nothing_heavy(module, heavy):
    code = f"import {module}, sys; print(*sorted(set(sys.modules) & {heavy!r}))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60)
    assert out.stdout.split() == []


@pytest.mark.parametrize("package", sorted(OURS))
def test_a_checkouts_folder_is_not_importable_by_a_second_name(package):
    done = subprocess.run([sys.executable, "-c", f"import {package}"], capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)
    assert f"ImportError: import windowmill.{package};" in done.stderr


def test_a_window_is_asked_and_its_type_is_not_looked_at():
    """Only the package of the types imports one, and the modules that find by its type what computes it; all other code calls methods."""
    package = "windowmill.windowing.windows"
    shared = {f"{package}.{name}" for name in ("base",)}
    tables = {"windowmill.windowing.slicing.slicers", "windowmill.windowing.reference"}
    types = set(map(dotted, modules_of("windowing/windows"))) - shared - {package}
    assert f"{package}.types" in types
    for name in EVERY:
        if not dotted(name).startswith(package) and dotted(name) not in tables:
            assert not imported(name) & types, name


@pytest.mark.thorough
def test_what_users_import():
    names = {"Pipeline", "aggregate", "as_of", "build_dag", "create_views", "latest", "load_pipeline", "spark_session"}
    code = f"from windowmill import *; print({', '.join(sorted(names))})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    import windowmill

    assert set(windowmill.__all__) == names <= set(dir(windowmill))
    with pytest.raises(AttributeError, match="has no attribute 'agregate'"):
        windowmill.agregate  # noqa: B018


@pytest.mark.covers("X1")
@pytest.mark.parametrize("package", sorted(OURS))
def test_stored_bytes_are_never_executed(package):
    """Nothing of ours unpickles, evaluates or executes: state, specs and records are data."""
    assert modules_of(package), f"no files under {package}/: has the folder moved?"
    for name in modules_of(package):
        assert not packages_in(name) & {"pickle", "cloudpickle", "marshal", "shelve", "dill"}, name
        assert not {call.func.id for call in calls(name) if isinstance(call.func, ast.Name)} & {"eval", "exec"}, name


def calls(name: str) -> list[ast.Call]:
    return [node for node in ast.walk(PRODUCT.trees[name]) if isinstance(node, ast.Call)]


def test_spark_gets_arrow_tables_without_empty_chunks():
    """Spark drops rows after an empty chunk; see ``without_empty_chunks``."""
    made_in = "jobs/spark/access.py"  # `frame_of` removes them
    every = [
        (name, call)
        for name in EVERY
        for call in calls(name)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "createDataFrame"
    ]
    assert made_in in {name for name, _ in every}
    for call in [call for name, call in every if name != made_in]:
        assert ast.unparse(call.args[0]).startswith("without_empty_chunks("), ast.unparse(call)


def test_runs_import_no_engine_that_they_do_not_compute_with():
    """Not the reference, at any depth, also not within functions."""
    reached = reached_from(["jobs/batch/loop.py", "jobs/dataframe.py"], PRODUCT.imports(types=False))
    assert "windowing/kernels/two_stacks.py" in reached
    assert [name for name in sorted(reached) if name.startswith("windowing/reference")] == []


def test_no_modules_and_no_folders_of_jobs_import_each_other_in_a_circle():
    """Imports within functions count; those for types alone do not."""
    imports = PRODUCT.imports(types=False)
    _check_circles(imports)
    folders = defaultdict(set)
    for name, others in imports.items():
        if name.startswith("jobs/") and name.count("/") > 1:
            folders[name.split("/")[1]] |= {other.split("/")[1] for other in others if other.startswith("jobs/") and other.count("/") > 1}
    assert {"batch", "layouts", "spark"} <= set(folders)
    _check_circles({name: others - {name} for name, others in folders.items()})


def _check_circles(imports: Mapping[str, set[str]]) -> None:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as err:
        pytest.fail(" imports ".join(reversed(err.args[1])))


def test_variables_of_the_environment_are_settings():
    """So that the reference lists them, and ``windowmill doctor`` knows their names."""
    internal = {"WINDOWMILL_FAILPOINT", "WINDOWMILL_FAILPOINT_RESUME", "WINDOWMILL_DAEMON"}
    texts = "\n".join(PRODUCT.texts[name] for name in EVERY)
    assert set(re.findall(r"WINDOWMILL_[A-Z_]+", texts)) - internal == {setting.name for setting in SETTINGS}
    read = {name for name in EVERY if re.search(r"environ[^\n]*\"WINDOWMILL_", PRODUCT.texts[name])}
    assert read <= {"checkpoints/failpoints.py"}
