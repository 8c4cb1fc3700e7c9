"""What Airflow sees when it parses the DAG files: DAGs, import errors, and nothing heavy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from airflow.dag_processing.dagbag import DagBag
from deltalake import write_deltalake

from windowmill.dags.folders import spec_files
from windowmill.windowing.errors import SpecError

# Airflow reads .airflowignore by a name that its own dependency has deprecated.
pytestmark = [pytest.mark.dag, pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")]

REPOSITORY = Path(__file__).resolve().parents[2]
DAGS, EXAMPLE = REPOSITORY / "dags", REPOSITORY / "examples" / "flights"


@pytest.fixture
def specs(tmp_path, monkeypatch) -> Path:
    """The configured folder of specs, empty."""
    folder = tmp_path / "specs"
    folder.mkdir()
    monkeypatch.setenv("WINDOWMILL_PIPELINES", str(folder))
    for name in ("WINDOWMILL_SPARK_CONN_ID", "WINDOWMILL_SPARK_CONNECT_CONN_ID", "WINDOWMILL_NEW_VERSIONS"):
        monkeypatch.delenv(name, raising=False)
    return folder


def parsed() -> tuple[list[str], dict[str, str]]:
    bag = DagBag(DAGS)
    return sorted(bag.dag_ids), {Path(file).name: error for file, error in bag.import_errors.items()}


def dags_of(*pipelines: str) -> list[str]:
    """The ids of the DAGs of ``pipelines``."""
    return [f"{name}{suffix}" for name in pipelines for suffix in ("", "__backfill", "__maintenance")]


def test_each_spec_gives_its_dag_its_backfill_and_its_maintenance(specs, write_spec):
    write_spec("first", specs)
    write_spec("second", specs)
    assert parsed() == (dags_of("first", "second"), {})


def test_a_spark_connect_server_for_all_pipelines(specs, write_spec, monkeypatch):
    write_spec("first", specs)
    monkeypatch.setenv("WINDOWMILL_SPARK_CONNECT_CONN_ID", "warm")
    bag = DagBag(DAGS)
    assert bag.dags["first"].get_task("micro_batch").connect_conn_id == "warm"
    assert bag.dags["first__backfill"].get_task("backfill").connect_conn_id == "warm"
    monkeypatch.setenv("WINDOWMILL_SPARK_CONN_ID", "cluster")
    [problem] = DagBag(DAGS).import_errors.values()
    assert "conn_id and connect_conn_id are both given; name a Spark master or a Spark Connect server" in problem


def test_new_versions_for_all_pipelines_that_a_clock_starts(specs, write_spec, monkeypatch):
    write_spec("by_clock", specs)
    write_spec("by_asset", specs, **{'"*/30 * * * *"': "{asset: raw}"})
    write_spec("by_interval", specs, **{"lateness: 1 hour": "watermark: data_interval_end"})
    monkeypatch.setenv("WINDOWMILL_NEW_VERSIONS", "wait")
    assert {dag_id: "wait_for_source" in dag.task_ids for dag_id, dag in DagBag(DAGS).dags.items() if "__" not in dag_id} == {
        "by_clock": True,
        "by_asset": False,
        "by_interval": False,
    }
    for word in ("poll", "watch"):
        monkeypatch.setenv("WINDOWMILL_NEW_VERSIONS", word)
        [problem] = DagBag(DAGS).import_errors.values()
        assert f"by_clock.yaml: new_versions: got '{word}'; expected 'wait'" in problem


def test_the_default_folder_is_beside_the_one_of_dag_files(tmp_path, monkeypatch):
    monkeypatch.delenv("WINDOWMILL_PIPELINES", raising=False)
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(tmp_path / "dags"))
    assert spec_files() == []
    (tmp_path / "pipelines").mkdir()
    spec = tmp_path / "pipelines" / "a.yaml"
    spec.touch()
    spec.with_name("b.yaml").symlink_to(spec)
    assert spec_files() == [spec]


def test_several_folders(specs, write_spec, tmp_path, monkeypatch):
    write_spec("first", specs)
    write_spec("third", tmp_path / "more")
    (specs / "first.yaml").with_name("second.yml").write_text((specs / "first.yaml").read_text())
    monkeypatch.setenv("WINDOWMILL_PIPELINES", f"{specs}{os.pathsep}{tmp_path / 'more'}")
    assert [path.name for path in spec_files()] == ["first.yaml", "second.yml", "third.yaml"]


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("size: 1 hour", "sise: 1 hour", "windows.0.sise: unknown field; did you mean 'size'?"),
        ("*/30 * * * *", "61 * * * *", "schedule: got '61 * * * *'"),
        ("keys: [origin]", "keys: [window]", "keys: 'window' is taken"),
    ],
)
def test_a_broken_spec_is_an_import_error_and_leaves_the_others_alone(specs, write_spec, old, new, field):
    write_spec("good", specs)
    broken = write_spec("broken", specs, **{old: new})
    ids, errors = parsed()
    assert ids == dags_of("good")
    # An error of pipelines.py itself would take the good DAGs off the schedule.
    assert list(errors) == ["broken_pipelines.py"]
    assert str(broken) in errors["broken_pipelines.py"]
    assert field in errors["broken_pipelines.py"]


@pytest.mark.parametrize("wanted", [None, "good"])
def test_a_pipe_in_the_place_of_a_spec_does_not_stop_the_parser(specs, write_spec, wanted, monkeypatch):
    write_spec("good", specs)
    os.mkfifo(specs / "a_pipe.yaml")
    if wanted:
        monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", wanted)
    ids, errors = parsed()
    assert ids == dags_of("good")
    assert wanted or "a_pipe.yaml': cannot be read (not a regular file)" in errors["broken_pipelines.py"]


def test_all_broken_specs_are_named_at_once(specs, write_spec):
    for name in ("one", "two"):
        write_spec(name, specs, **{"size: 1 hour": "size: soon"})
    _, errors = parsed()
    assert all(f"{name}.yaml:6: windows.0.size: got 'soon'" in errors["broken_pipelines.py"] for name in ("one", "two"))


def test_an_id_used_twice_is_refused(specs, write_spec):
    first = write_spec("delays", specs)
    (specs / "later.yaml").write_text(first.read_text())
    ids, errors = parsed()
    assert ids == dags_of("delays")
    assert f"later.yaml: pipeline: 'delays' is also the id in {first}" in errors["broken_pipelines.py"]


OWN_DAGS = """
from windowmill.dags.factory import build_dag
from windowmill.dags.backfill import build_backfill_dag
from windowmill.dags.maintenance import build_maintenance_dag
SPEC = {spec!r}
for build in (build_dag, build_backfill_dag, build_maintenance_dag):
    build(SPEC)
"""


def own_file(folder: Path, spec: Path, **changed: str) -> tuple[Path, list[str], dict[str, str]]:
    """A DAG file of the user's over ``spec``, and what Airflow finds in it."""
    path = folder / "own" / "orders_dag.py"  # of airflow and dag
    path.parent.mkdir(exist_ok=True)
    text = OWN_DAGS.format(spec=str(spec))
    for old, new in changed.items():
        text = text.replace(old, new)
    path.write_text("# airflow dag\n" + text)
    bag = DagBag(path.parent)
    return path, sorted(bag.dag_ids), dict(bag.import_errors)


def test_a_spec_that_says_own_is_left_alone_by_the_files_that_ship(specs, write_spec, tmp_path):
    write_spec("other", specs)
    spec = write_spec("delays", specs, **{"source:": "airflow: own\nsource:"})
    assert parsed() == (dags_of("other"), {})
    _, ids, errors = own_file(tmp_path, spec)
    assert (ids, errors) == (dags_of("delays"), {})


@pytest.mark.parametrize("where", ["same", "elsewhere", "renamed", "own id"])
def test_a_dag_that_two_files_build_is_an_import_error_that_names_both(specs, write_spec, tmp_path, where, monkeypatch):
    spec = write_spec("delays", specs)
    used = spec if where in ("same", "own id") else write_spec("delays" if where == "elsewhere" else "arrivals", tmp_path / "mine")
    path, ids, errors = own_file(tmp_path, used, **({"build(SPEC)": "build(SPEC, dag_id=build.__name__)"} if where == "own id" else {}))
    if where in ("renamed", "own id"):
        assert (len(ids), errors) == (3, {})
        return
    assert ids == []
    [error] = errors.values()
    said = (
        f"the DAG delays is built twice: by {path}, and by {DAGS / 'pipelines.py'} from {spec}; write `airflow: own` into {spec}, or take"
    )
    assert said in error.replace("src/windowmill/", "")
    assert parsed() == (dags_of("delays"), {})
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "delays")
    assert own_file(tmp_path, used)[2] == {}, "a task that starts does not look"


def test_a_clash_with_a_pipeline_named_like_another_ones_dag_is_found(specs, write_spec, tmp_path):
    spec = write_spec("delays__backfill", specs)
    for used, build in ((spec, "build_dag"), (write_spec("delays", tmp_path / "mine"), "build_backfill_dag")):
        _, ids, errors = own_file(tmp_path, used, **{"(build_dag, build_backfill_dag, build_maintenance_dag)": f"({build},)"})
        assert ids == []
        assert f"the DAG delays__backfill is built twice: by {tmp_path}" in next(iter(errors.values()))


@pytest.mark.parametrize("written", ['"${DELAYS}"', '"de\\x6cays"', ">-\n  delays"])
def test_a_pipeline_whose_name_only_reading_tells_is_found_by_its_tasks_and_in_clashes(specs, write_spec, tmp_path, monkeypatch, written):
    monkeypatch.setenv("DELAYS", "delays")
    spec = write_spec("delays", specs, **{"/delays": "/sink", "pipeline: delays": f"pipeline: {written}"})
    assert parsed() == (dags_of("delays"), {})
    [error] = own_file(tmp_path, spec)[2].values()
    assert "the DAG delays is built twice" in error
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "delays")
    assert parsed() == (dags_of("delays"), {})


def test_a_spec_that_two_folders_or_links_lead_to_is_one(specs, write_spec, tmp_path, monkeypatch):
    spec = write_spec("delays", specs)
    (specs / "linked.yaml").symlink_to(spec)
    (tmp_path / "more").symlink_to(specs)
    monkeypatch.setenv("WINDOWMILL_PIPELINES", os.pathsep.join(map(str, [specs, specs, tmp_path / "more"])))
    assert spec_files() == [spec]
    assert parsed() == (dags_of("delays"), {})


def test_two_specs_do_not_build_one_dag(specs, write_spec):
    first = write_spec("delays", specs)
    second = write_spec("delays__backfill", specs)
    ids, errors = parsed()
    assert ids == dags_of("delays")
    assert (
        f"{second}: pipeline: the DAG delays__backfill is also built from {first}; rename one of the two" in errors["broken_pipelines.py"]
    )


def test_a_missing_folder_is_an_import_error(monkeypatch, tmp_path):
    monkeypatch.setenv("WINDOWMILL_PIPELINES", str(tmp_path / "nowhere"))
    ids, errors = parsed()
    assert ids == []
    assert "WINDOWMILL_PIPELINES" in errors["broken_pipelines.py"]
    with pytest.raises(SpecError, match="nowhere is not a folder"):
        spec_files()


def test_a_starting_task_reads_its_own_spec_only(specs, write_spec, monkeypatch):
    write_spec("wanted", specs)
    write_spec("other", specs)
    write_spec("broken", specs, **{"size: 1 hour": "sise: 1 hour"})
    for dag_id in dags_of("wanted"):
        monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", dag_id)
        assert parsed() == (dags_of("wanted"), {})


def test_a_task_whose_spec_has_broken_is_told_why(specs, write_spec, monkeypatch):
    write_spec("good", specs)
    write_spec("broken", specs, **{"size: 1 hour": "sise: 1 hour"})
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "broken")
    ids, errors = parsed()
    assert ids == []
    assert "windows.0.sise: unknown field" in errors["pipelines.py"]


def test_the_example(monkeypatch, tmp_path):
    monkeypatch.setenv("WAREHOUSE", str(tmp_path))
    bag = DagBag(EXAMPLE)
    assert bag.import_errors == {}
    assert sorted(bag.dag_ids) == ["flight_delays", "flight_delays__maintenance"]
    dag = bag.dags["flight_delays"]
    assert dag.catchup
    assert dag.get_task("land").downstream_task_ids == {"micro_batch"}


def test_the_example_without_a_warehouse_says_what_to_set(monkeypatch):
    monkeypatch.delenv("WAREHOUSE", raising=False)
    (error,) = DagBag(EXAMPLE).import_errors.values()
    assert "source.path: the environment variable WAREHOUSE is not set" in error


def test_parsing_imports_nothing_heavy(specs, write_spec):
    """Whether runs are commands of the worker or are sent to a cluster."""
    for number in range(10):
        write_spec(f"pipeline_{number}", specs)
    script = """
import json, os, runpy, sys
import airflow.sdk
dags = []
for conn_id in ("", "spark_cluster"):
    os.environ["WINDOWMILL_SPARK_CONN_ID"] = conn_id
    dags.append(runpy.run_path(sys.argv[1])["built"].dags)
tasks = [type(parsed["pipeline_0"].get_task("micro_batch")).__name__ for parsed in dags]
print(json.dumps({"modules": list(sys.modules), "dags": [len(parsed) for parsed in dags], "tasks": tasks}))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(DAGS / "pipelines.py")], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["dags"] == [30, 30]
    assert seen["tasks"] == ["MicroBatchOperator", "SubmittedBatchOperator"]
    heavy = {"pyspark", "delta", "great_expectations", "numba", "numpy", "pandas", "pyarrow", "deltalake", "matplotlib"}
    assert not heavy & {name.partition(".")[0] for name in seen["modules"]}


def test_processes_that_fork_may_load_windowmill_first(write_spec, tmp_path):
    """What a child does with what its parent has loaded: here as a task does it."""
    script = """
import os, sys
from pathlib import Path
import windowmill.dags.preload
threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
# A child of fork lacks its parent's threads. jemalloc and numpy's OpenBLAS know that and start theirs again.
assert not [name for name in threads if name not in ("jemalloc_bg_thd", Path("/proc/self/comm").read_text().strip())]
heavy = {"pyspark", "great_expectations", "numba", "pandas", "duckdb"}
assert not heavy & {name.partition(".")[0] for name in sys.modules}
child = os.fork()
if not child:
    from windowmill.jobs.report import write_report
    from windowmill.windowing.specfile import load_pipeline
    write_report(load_pipeline(sys.argv[1]))
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    write_deltalake(
        str(tmp_path / "delays"), pa.table({"origin": ["JFK"], "window": ["hourly"], "window_end": [datetime(2024, 1, 1, tzinfo=UTC)]})
    )
    subprocess.run([sys.executable, "-c", script, str(write_spec())], cwd=REPOSITORY, check=True, timeout=120)
    assert "delays" in (tmp_path / "delays.windowmill" / "report.html").read_text()
