"""The folder tree is the architecture: imports point one way, and light modules stay light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from windowmill.windowing.settings import SETTINGS

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
OURS = {"windowing", "checkpoints", "expectations", "jobs", "dags"}
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
SPARK_FOLDERS = {"spark", "conditions", "verify"}
SPARK_MODULES = {
    "batch/spark_committer.py",
    "dataframe.py",
    "views.py",
    *(f"schedulers/{name}.py" for name in ("exchange", "file_rows", "tasks")),
    *(f"sources/{name}.py" for name in ("columns", "spark_files")),
}
HANDING_ON = {
    *(f"batch/{name}.py" for name in ("compute", "counted_rows", "steps", "task", "validating")),
    "commands/try_spark.py",
    *(f"sources/{name}.py" for name in ("base", "delta_log", "folder", "kafka", "table_rows")),
    "warm/warm_up.py",
}


def files_of(package: str) -> list[Path]:
    """Python files of ``windowmill.<package>``."""
    return sorted((ROOT / package).rglob("*.py"))


def every_file() -> list[Path]:
    return [path for package in OURS for path in files_of(package)]


def imported(path: Path) -> set[str]:
    """Packages that the file imports anywhere, except for types alone; those of ours without ``windowmill`` before them."""
    names = {name.removeprefix("windowmill.") for name in _imported_modules(path)}
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_point_one_way(package):
    files = files_of(package)
    assert files, f"no files under {package}/: has the folder moved?"
    for path in files:
        stray = imported(path) & (WATCHED | {"windowmill"}) - ALLOWED[package] - {package}
        assert not stray, f"{path.relative_to(ROOT)} imports {sorted(stray)}"


def test_every_place_is_opened_by_one_module():
    """Elsewhere a table in object storage would be opened without its credentials (decision 28)."""
    opening = re.compile(r"(?<![\w.`])DeltaTable\(|is_deltatable|DeltaStorageHandler|FileSystem\.from_uri|DeltaTable\.create\(")
    files = [path for package in ("checkpoints", "jobs", "dags") for path in files_of(package)]
    found = {str(path.relative_to(ROOT)) for path in files if opening.search(path.read_text())}
    assert found == {"checkpoints/stores.py"}


def test_spark_is_known_in_few_modules():
    """Neither parts nor the local scheduler name a class of Spark, also not for types alone."""
    known = re.compile(r"^\s*(?:from|import) pyspark", re.MULTILINE)
    handed = re.compile(r"^\s*from windowmill\.jobs\.spark\.access import (?:\([^)]*|[^\n]*)\b(?:DataFrame|SparkSession)\b", re.MULTILINE)
    for package in ("windowing", "checkpoints", "dags"):
        assert [path for path in files_of(package) if known.search(path.read_text())] == []
    jobs = {path.relative_to(ROOT / "jobs"): path.read_text() for path in files_of("jobs")}
    assert all((ROOT / "jobs" / folder).is_dir() for folder in SPARK_FOLDERS)
    own = {str(path): text for path, text in jobs.items() if not SPARK_FOLDERS & set(map(str, path.parents))}
    assert {path for path, text in own.items() if known.search(text)} == SPARK_MODULES
    assert {path for path, text in own.items() if handed.search(text)} - SPARK_MODULES == HANDING_ON


HEAVY = {"numba", "pandas", "pyspark", "great_expectations", "airflow"}


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("windowmill.windowing.specfile", {"numpy", "pyarrow", "deltalake"} | HEAVY),
        ("windowmill.plugins", {*(f"windowmill.{name}" for name in OURS - {"windowing"}), "numpy", "pyarrow", "deltalake"} | HEAVY),
        ("windowmill.jobs.cli", {"typer", "rich", "pydantic", "yaml", "numpy", "pyarrow", "deltalake"} | HEAVY),
        ("windowmill.jobs.commands.app", {"deltalake"} | HEAVY),
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
    shared = {f"{package}.{name}" for name in ("base", "registry", "rules", "plugged")}
    tables = {"windowmill.windowing.slicing.slicers", "windowmill.windowing.reference"}
    types = {_name(path) for path in files_of("windowing/windows")} - shared - {package}
    assert f"{package}.types" in types
    for path in every_file():
        if not _name(path).startswith(package) and _name(path) not in tables:
            stray = _imported_modules(path) & types
            assert not stray, f"{path.relative_to(ROOT)} imports {sorted(stray)}"


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
    for path in files_of(package):
        assert not imported(path) & {"pickle", "cloudpickle", "marshal", "shelve", "dill"}, path
        called = {node.func.id for node in ast.walk(_tree(path)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        assert not called & {"eval", "exec"}, path


def test_spark_gets_arrow_tables_without_empty_chunks():
    """Spark drops rows after an empty chunk; see ``without_empty_chunks``."""
    calls = [node for path in every_file() for node in ast.walk(_tree(path)) if isinstance(node, ast.Call)]
    calls = [node for node in calls if isinstance(node.func, ast.Attribute) and node.func.attr == "createDataFrame"]
    assert calls
    for call in calls:
        assert ast.unparse(call.args[0]).startswith("without_empty_chunks("), ast.unparse(call)


def test_no_modules_import_each_other_in_a_circle():
    """Imports within functions count; those for types alone do not."""
    modules = {_name(path): path for path in every_file()}
    _check_circles({name: _imported_modules(path) & set(modules) - {name} for name, path in modules.items()})


def test_runs_import_no_engine_that_they_do_not_compute_with():
    """Not the reference, at any depth, also not within functions."""
    modules = {_name(path): path for path in every_file()}
    reached, ahead = set(), ["windowmill.jobs.batch.loop", "windowmill.jobs.dataframe"]
    while ahead:
        name = ahead.pop()
        if name not in reached:
            reached.add(name)
            ahead += _imported_modules(modules[name]) & set(modules)
    assert "windowmill.windowing.kernels.two_stacks" in reached
    assert [name for name in sorted(reached) if name.startswith("windowmill.windowing.reference")] == []


def test_no_folders_of_jobs_import_each_other_in_a_circle():
    folders = {path.name: path for path in (ROOT / "jobs").iterdir() if (path / "__init__.py").is_file()}
    assert {"batch", "layouts", "spark"} <= set(folders)
    used = {name: {module for path in folder.rglob("*.py") for module in _imported_modules(path)} for name, folder in folders.items()}
    first = {name: {module.removeprefix("windowmill.jobs.").partition(".")[0] for module in modules} for name, modules in used.items()}
    _check_circles({name: others & set(folders) - {name} for name, others in first.items()})


def _check_circles(imports: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as err:
        pytest.fail(" imports ".join(reversed(err.args[1])))


def _name(path: Path) -> str:
    return ".".join(["windowmill", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def _imported_modules(path: Path) -> frozenset[str]:
    """Modules that the file imports, by full name; ``from package import module`` is the module's import, and not its package's."""
    found: set[str] = set()
    for node in _nodes(_tree(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = SRC.joinpath(*node.module.split("."), alias.name)
                found.add(f"{node.module}.{alias.name}" if inner.with_suffix(".py").exists() or inner.is_dir() else node.module)
    return frozenset(found)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below ``node`` that run, and not only for types."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _nodes(child)


def test_variables_of_the_environment_are_settings():
    """So that the reference lists them, and ``windowmill doctor`` knows their names."""
    internal = {"WINDOWMILL_FAILPOINT", "WINDOWMILL_FAILPOINT_RESUME", "WINDOWMILL_DAEMON"}
    texts = "\n".join(path.read_text() for path in every_file())
    assert set(re.findall(r"WINDOWMILL_[A-Z_]+", texts)) - internal == {setting.name for setting in SETTINGS}
    read = [str(path) for path in every_file() if re.search(r"environ[^\n]*\"WINDOWMILL_", path.read_text())]
    assert [path for path in read if not path.endswith("checkpoints/failpoints.py")] == []
