"""What ``validate`` finds beyond the spec's own form: the user's functions, the schedule, the columns of the source."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from tests.specs import a_spec
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch.planning import next_run
from windowmill.jobs.cli import main
from windowmill.jobs.runnables import runnable_of
from windowmill.jobs.spec_checks import problems_of, refuse_first, rule_problems
from windowmill.windowing.errors import SpecError, UnsupportedError
from windowmill.windowing.specfile import parse_pipeline

SPEC: dict[str, Any] = a_spec("/data", keys=["k"])
BETWEEN: dict[str, Any] = {"type": "expect_column_values_to_be_between", "column": "n", "min_value": 1}
SESSION = {"name": "visits", "type": "session", "gap": "5 minutes"}
MODULE = """
class Good:
    def lift(self, a): return a
    def combine(self, older, newer): return newer
    def lower(self, partial): return partial
class Breaks(Good):
    def __init__(self): raise RuntimeError("not today")
def windows(state, columns): return state, 0, []
number = 7
"""


@pytest.fixture
def own(tmp_path, monkeypatch) -> str:
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def problems(**changes: Any) -> list[str]:
    return [f"{field}: {told}" for field, told in problems_of(parse_pipeline(SPEC | changes))]


def window(kind: str, **fields: Any) -> dict[str, Any]:
    """The field of a spec with one window."""
    return {"windows": [{"name": "w", "type": kind, **fields}]}


def check(found: list[str], problem: str | None, begin: str = "") -> None:
    """What was ``found`` is this problem, told with a line that has this ``begin``; or nothing."""
    assert len(found) == (problem is not None)
    assert problem is None or (found[0].startswith(begin) and problem in found[0] and "\n" not in found[0])


QUERIES = {
    "SELECT * FROM {batch} WHERE n > 1e6 AND window_end <= now()": None,
    "with a as (select k, count(*) c from {batch} group by k having c > 1) select * from a": None,
    "select * from (select *, row_number() over (partition by k order by window_end) r from {batch}) t where r > 1": None,
    "select * from {batch} where k not in (select code from delta.`/data/codes`) and k rlike '^a{{2}}'": None,
    "select * from {batch} where k in ('java_method(1)', 'reflect')": None,
    "select * from {batch} lateral view explode(array(1)) t as a": None,
    "SELECT 1": "expected SQL over {batch}",
    "select * from {batch.__class__}": "without other braces",
    "select * from {batch} where java_method('java.lang.System', 'exit', 7) is null": "calls Java",
    "select * from {batch} where JAVA_METHOD /* */ ('a') is null": "calls Java",
    "select `reflect`('a') from {batch}": "calls Java",
    "select system.builtin.try_reflect('a') from {batch}": "calls Java",
    "select * from {batch} where filter(array(1), x -> reflect('a') = 1) is null": "calls Java",
    "select * from {batch} where exists (select java_method('a'))": "calls Java",
    "select * from {batch} where k = r'\\' and java_method('a') = 'b' and '' = ''": "calls Java",
    "select identifier('java_method')('a') from {batch}": "can be checked",
    "select * from {batch} -- \\\n where k = ' \n or java_method('a') is null --'": "ends with a backslash",
    "select transform(k) using 'cat' from {batch}": "starts a program",
    "select * from {batch}; drop table t": "expected one SELECT",
    "insert into t select * from {batch}": "expected one SELECT",
    "from {batch} insert into t select *": "expected one SELECT",
    "set x = {batch}": "expected one SELECT",
    "select own_function(k) from {batch}": "is no function of Spark SQL",
    "select * from {batch} where": "can be checked",
}


@pytest.mark.parametrize(("query", "problem"), QUERIES.items())
def test_a_query_of_a_rule_reads_by_functions_of_spark_alone(query, problem, capfd):
    found = problems(expectations=[{"type": "unexpected_rows_expectation", "unexpected_rows_query": query}])
    check(found, problem, "expectations.0.unexpected_rows_query: got ")
    assert capfd.readouterr() == ("", "")


def passing(condition: str) -> dict[str, str]:
    return {"type": "pass_through", "pass_through_filter": condition}


IS_NULL = {"type": "nullity", "column": {"name": "k"}, "is_null": True}


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("n > 3 AND k = 'reflect'", None),
        ('col("n") > 3', None),
        ("java_method('java.lang.System', 'exit', 7) is null", "java_method()"),
        ("exists (select 1)", "it has no subquery"),
        ("n > 1 -- \\\n or k = '", "ends with a backslash"),
        (passing("reflect('a') is null"), "reflect()"),
        ({"type": "or", "conditions": [IS_NULL, {"type": "and", "conditions": [passing("try_reflect('a') = ''")]}]}, "try_reflect()"),
    ],
)
def test_a_row_condition_of_a_rule_is_a_condition(condition, problem):
    rule = {"type": "expect_column_values_to_not_be_null", "column": "n", "row_condition": condition}
    check(problems(expectations=[rule]), problem, "expectations.0.row_condition: ")
    with nullcontext() if problem is None else pytest.raises(SpecError, match="row_condition"):
        pipeline = parse_pipeline(SPEC | {"expectations": [rule]})
        refuse_first(pipeline, rule_problems(pipeline))


@pytest.mark.parametrize(
    ("use", "args", "problem"),
    [
        ("{own}:Good", ["v"], None),
        ("{own}:Good", ["v", "w"], ""),
        ("{own}:Good", [], ""),
        ("{own}:Breaks", ["v"], "cannot be instantiated (RuntimeError: not today)"),
        ("{own}:windows", ["v"], "has no function lift()"),
        ("{own}:nothing", ["v"], "cannot be imported (AttributeError"),
        ("no_such:Good", ["v"], "cannot be imported (ModuleNotFoundError"),
        ("{own}:windows", None, None),
        ("{own}:number", None, "is int; expected a function of (state, columns)"),
        ("{own}:nothing", None, "cannot be imported (AttributeError"),
        ("no_such:windows", None, "cannot be imported (ModuleNotFoundError"),
    ],
)
def test_a_users_aggregate_or_window_function_is_looked_for(own, use, args, problem):
    name = use.format(own=own)
    if args is None:
        check(problems(**window("custom", function=name)), problem, "windows.0.function: got ")
    else:
        check(problems(aggregates={"x": {"use": name, "args": args}}), problem, "aggregates.x.use: ")


@pytest.mark.parametrize(
    "body", ["1 / 0", "raise SystemExit(3)", "import no_such_module", "def f(:", "raise RuntimeError('a\\nb')", "exit()"]
)
def test_a_module_that_fails_is_one_line(tmp_path, monkeypatch, body):
    name = f"fails_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    check(problems(aggregates={"x": {"use": f"{name}:A", "args": ["v"]}}), "cannot be imported (")


@pytest.mark.parametrize("schedule", ["@daily", "*/30 * * * *", "0 6 * * mon-fri", "15 2,14 1 * *", {"asset": "flights"}, None])
def test_a_schedule_is_taken(schedule):
    assert problems(schedule=schedule) == []


@pytest.mark.parametrize(
    "changes", [{"source": {"path": "/in", "format": "avro"}}, {"sink": {"table": "a.b"}}, {"checkpoints": {"table": "a.b"}}]
)
def test_validate_refuses_what_runs_refuse(changes):
    [found] = problems(**changes)
    with pytest.raises(UnsupportedError, match=f"pipeline p: {found.partition(':')[0]}: "):
        runnable_of(parse_pipeline(SPEC | changes))


def spec_file(folder: Path, **fields: Any) -> str:
    path = folder / "p.yaml"
    path.write_text(yaml.safe_dump(SPEC | fields))
    return str(path)


def test_without_source_and_sink_a_spec_serves_try(tmp_path, capsys):
    assert main(["validate", spec_file(tmp_path, source=None, sink=None)]) == 0
    assert "without source and sink it serves `windowmill try` only" in capsys.readouterr().out


@pytest.fixture
def table(tmp_path) -> str:
    path = str(tmp_path / "in")
    kinds = {"k": pa.string(), "t": pa.timestamp("us", "UTC"), "v": pa.float64(), "s": pa.string(), "i": pa.int64()}
    write_deltalake(path, pa.table({name: pa.array([], kind) for name, kind in kinds.items()}))
    return path


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"aggregates": {"x": {"sum": "v", "where": "V > 1"}}}, None),
        ({"keys": ["kk"]}, "keys.0: the source has no column 'kk'"),
        ({"time": {"column": "v"}}, "time.column: 'v' is double; expected a timestamp"),
        ({"time": {"column": "i"}}, "time.column: 'i' is bigint; say what it counts with time.unit"),
        ({"aggregates": {"x": {"sum": "w"}}}, "has no column 'w'"),
        ({"aggregates": {"x": {"sum": "s"}}}, "aggregates.x: sum of column 's'"),
        ({"aggregates": {"x": {"sum": "v", "where": "w > 1"}}}, "aggregates.x.where: the source has no column 'w'"),
        ({"aggregates": {"x": {"collect": "w"}}}, "'w'"),
        ({"aggregates": {"x": {"sum": "vv"}}}, "p.yaml:2: aggregates.x: the source has no column 'vv'; did you mean 'v'? Its columns are"),
        ({"keys": ["tt"]}, "p.yaml:5: keys.0: the source has no column 'tt'; did you mean 't'?"),
        (window("tumbling", evict={"punctuation": "w > 1"}), "windows.0.evict.punctuation: the source has no"),
        (window("sliding", evict={"delta": {"column": "w", "by": 1}}), "windows.0.evict.delta.column"),
    ],
)
def test_a_spec_is_compared_with_its_source(tmp_path, table, capsys, changes, problem):
    code = main(["validate", spec_file(tmp_path, **{"source": {"path": table}} | changes), "--source"])
    told = capsys.readouterr()
    assert (code == 0) == (problem is None), told.err
    assert problem is None or (problem in told.err and len(told.err.splitlines()) == 1)


def test_a_source_that_is_not_there_is_named(tmp_path, capsys):
    path = spec_file(tmp_path, source={"path": str(tmp_path / "none")})
    assert main(["validate", path]) == 0
    assert main(["validate", path, "--source"]) == 1
    assert "there is no Delta table" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"source": {"filter": "rand() < 0.5"}}, r"source.filter: got 'rand\(\) < 0.5'; rand\(\) gives another answer"),
        ({"strict": True, "windows": [SESSION | {"max_size": "1 hour"}], "emit": "revise"}, "strict: the state would keep raw rows"),
    ],
    ids=["another answer to a retry", "raw rows"],
)
def test_no_plan_is_recorded_for_what_no_batch_may_do(tmp_path, table, changes, told):
    places = {"source": {"path": table} | changes.get("source", {}), "sink": {"path": str(tmp_path / "out")}}
    pipeline = parse_pipeline(SPEC | changes | places)
    with pytest.raises(SpecError, match=told):
        next_run(runnable_of(pipeline), Ledger.open(pipeline))
    assert not (tmp_path / "out.windowmill").exists()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"expectations": [BETWEEN | {"type": "expect_column_values_to_be_betwen"}]}, "expectations.0.type: got"),
        ({"expectations": [BETWEEN | {"column": "x"}]}, "expectations.0.column: got 'x'"),
        ({"aggregates": {"x": {"use": "no_such:Own", "args": ["v"]}}}, "aggregates.x.use: got 'no_such:Own'"),
        (window("custom", function="no_such:f"), "windows.0.function: got 'no_such:f'"),
    ],
)
def test_a_run_refuses_what_no_retry_can_mend_before_any_work(tmp_path, capsys, changes, told):
    path = runnable_file(tmp_path, **changes)
    assert main(["run", path]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"pipeline p: {told}" in line
    assert not (tmp_path / "out").exists()


def runnable_file(folder: Path, **changes: Any) -> str:
    """A spec over a source of two rows."""
    write_deltalake(str(folder / "in"), pa.table({"k": ["a", "a"], "t": pa.array([0, 10**10], pa.timestamp("us", "UTC")), "v": [1, 2]}))
    places = {name: {"path": str(folder / where)} for name, where in (("source", "in"), ("sink", "out"))}
    return spec_file(folder, **places, compute="local", **changes)


def test_a_held_batch_is_not_validated_by_a_rule_that_does_not_exist(tmp_path, capsys):
    path = runnable_file(tmp_path, expectations=[BETWEEN | {"min_value": 5, "severity": "critical"}])
    assert main(["run", path]) == 3
    spec = Path(path)
    spec.write_text(spec.read_text().replace(BETWEEN["type"], "expect_nothing"))
    capsys.readouterr()
    assert main(["run", path]) == 2
    assert "expectations.0.type: got 'expect_nothing'" in capsys.readouterr().err


def test_checking_a_spec_loads_neither_spark_nor_airflow_and_reading_it_no_parser(tmp_path):
    path = spec_file(tmp_path, schedule="0 6 * * *", aggregates={"n": {"count": "*", "where": "v > 1"}})
    code = (
        "import sys; from windowmill.windowing.specfile import load_pipeline; load_pipeline(sys.argv[1]);"
        "early = {'sqlglot', 'croniter', 'pyarrow', 'numba', 'great_expectations', 'deltalake'} & set(sys.modules);"
        "from windowmill.jobs.cli import main; assert main(['validate', sys.argv[1]]) == 0;"
        "print(sorted(early), sorted({'pyspark', 'airflow', 'great_expectations', 'numba', 'deltalake'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert ran.stdout.splitlines()[-1] == "[] []"


def test_a_strict_spec_that_would_keep_raw_rows_is_refused_with_the_window_that_does():
    assert problems(strict=True) == []
    assert problems(windows=[SESSION]) == problems(strict=True, windows=[SESSION]) == []
    assert problems(strict=True, windows=[*SPEC["windows"], SESSION]) == []
    cut = [*SPEC["windows"], SESSION | {"max_size": "1 hour"}]
    assert problems(strict=True, windows=cut) == []
    [problem] = problems(strict=True, windows=cut, emit="revise")
    assert problem.startswith("strict: the state would keep raw rows (windows.1.max_size with emit: revise: a late row")
