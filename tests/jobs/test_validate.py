"""``windowmill validate``: the whole spec is checked, the rules for its rows too; examples, the guide and the JSON schema agree."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from tests.jobs.test_secrets import FULL
from tests.specs import a_spec
from windowmill.jobs.cli import main
from windowmill.windowing.catalogue import DECLARED
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

FIELDS: dict[str, Any] = {"keys": ["k"], "aggregates": {"n": {"count": "*"}, "mean": {"mean": "v"}}}
RULE = {"type": "expect_column_values_to_be_between", "column": "n", "max_value": 3}


def written(folder: Path, spec: dict[str, Any]) -> str:
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    return str(folder / "spec.yaml")


def test_windows_that_no_run_would_work_on_are_refused(tmp_path, capsys):
    path = written(tmp_path, a_spec(windows=[{"name": "w", "type": "hopping", "size": "10000 days", "hop": "1 us"}]))
    assert main(["validate", path]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"windowmill: {path}:8: windows.0: each event would be in")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("changed", "line", "problem"),
    [
        ({}, None, "pipeline p is valid"),
        ({"type": "expect_column_values_to_be_betwen"}, 7, "expectations.0.type: got 'expect_column_values_to_be_betwen'; did you mean"),
        ({"column": "nn"}, 5, "expectations.0.column: got 'nn'"),
    ],
)
def test_rules_are_checked(tmp_path, capsys, changed, line, problem):
    path = written(tmp_path, a_spec(expectations=[RULE | changed]))
    assert main(["validate", path]) == (0 if line is None else 2)
    told = capsys.readouterr()
    assert (f"{path}: {problem}" in told.out) if line is None else (f"{path}:{line}: {problem}" in told.err)


def landed(folder: Path, times: list[str | None], **spec: Any) -> str:
    """A spec beside a table of texts for times."""
    rows = {"k": ["a", None, "b", "b"] * len(times), "t": times * 4, "v": [1.0, 2.0, None, float("nan")] * len(times)}
    write_deltalake(str(folder / "source"), pa.table({name: pa.array(cells) for name, cells in rows.items()}))
    return written(folder, a_spec(folder, **FIELDS, **spec))


def test_rows_of_the_source_are_read_as_a_run_reads_them(tmp_path, capsys):
    path = landed(tmp_path, ["2024-01-01T00:00:00Z"] * 99 + ["1/31/2024"])
    assert main(["validate", path, "--source", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["rows"]
    assert (found["rows"], found["usable"], found["reasons"], found["examples"]) == (400, 396, {"bad_time": 4}, ["'1/31/2024'"])
    assert found["readable"] == {"t": 396, "k": 300, "v": 300}
    assert main(["validate", path, "--source"]) == 0
    told = capsys.readouterr().out
    assert "400 rows of the source read; readable: t in 396, k in 300, v in 300; not usable: 4 bad_time (such as '1/31/2024')" in told


@pytest.mark.parametrize(("where", "rows"), [("v = 1", 12), ("k = 'b'", 8), ("true", 0)])
def test_rows_that_the_table_no_longer_holds_are_not_read(tmp_path, capsys, where, rows):
    path = landed(tmp_path, ["2024-01-01T00:00:00Z"] * 2)
    table = DeltaTable(str(tmp_path / "source"))
    write_deltalake(table, table.to_pyarrow_table(), mode="append")
    table.delete(where)
    assert main(["validate", path, "--source", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"]["rows"] == table.to_pyarrow_table().num_rows == rows


@pytest.mark.parametrize(
    ("times", "told"),
    [
        (["2024-01-01", "2024-01-01", "31.1.2024"], "33.3 % of 12 rows that were read cannot be used, more than 10 % (quarantine.hold)"),
        (["2024-01-01", None], "4 null_time; null_time: fill t in the source"),
        (["2024-01-01", "9999-12-31"], "such as '9999-12-31'"),
        (["2024-01-01", "2999-12-31"], "4 future_time"),
    ],
)
def test_a_spec_whose_times_cannot_be_read_is_not_valid(tmp_path, capsys, times, told):
    path = landed(tmp_path, times)
    assert main(["validate", path]) == 0
    assert main(["validate", path, "--source"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"windowmill: {path}:")
    assert all(text in error for text in (": time.column: ", told))
    assert error.count("\n") == 1


def test_a_pipeline_that_loses_rows_knowingly_is_valid(tmp_path, capsys):
    path = landed(tmp_path, ["2024-01-01", "x"], quarantine={"warn": "never", "hold": "never"})
    assert main(["validate", path, "--source"]) == 0
    assert "8 rows of the source read; readable: t in 4, k in 6, v in 6; not usable: 4 bad_time" in capsys.readouterr().out


def test_columns_that_no_row_has_tell_no_duplicates(tmp_path, capsys):
    path = landed(tmp_path, ["2024-01-01"], dedup={"by": ["k.id"]})
    assert main(["validate", path, "--source"]) == 0
    assert "4 rows of the source read; readable: t in 4, k in 3, k.id in 0, v in 3" in capsys.readouterr().out


def test_many_specs_and_folders(tmp_path, capsys):
    for name, changes in {"a.yaml": {}, "b.yaml": {"keys": "k"}, "c.yml": {"emit": "later"}}.items():
        (tmp_path / name).write_text(yaml.safe_dump(a_spec(**changes)))
    (tmp_path / "notes.txt").write_text("no spec")
    good, bad = str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")
    assert main(["validate", good, good]) == 0
    assert main(["validate", good, bad]) == 2
    told = capsys.readouterr()
    assert "a.yaml: pipeline p is valid" in told.out
    assert "2 specs: 1 not valid" in told.out
    assert told.err.startswith(f"windowmill: {bad}:")
    assert main(["validate", str(tmp_path), "--json"]) == 2
    told = capsys.readouterr()
    specs = json.loads(told.out)["specs"]
    found = {Path(each["spec"]).name: each["status"] for each in specs}
    assert found == {"a.yaml": "valid", "b.yaml": "invalid", "c.yml": "invalid"}
    assert told.err.count("\n") == 2
    assert specs[2]["problems"] == [told.err.splitlines()[1]]
    (tmp_path / "empty").mkdir()
    assert main(["validate", str(tmp_path / "empty")]) == 2
    assert "the folder holds no *.yaml or *.yml file" in capsys.readouterr().err
    assert main(["validate", str(tmp_path / "none.yaml"), good]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("format_", ["csv", "json"])
def test_lines_of_files_that_cannot_be_read_are_shown(tmp_path, capsys, format_):
    (tmp_path / "source").mkdir()
    rows = [{"k": "a", "t": "2024-01-01 00:00:00", "v": 1}] * 8 + [{"k": "a", "t": "1/31/2024", "v": 1}, {"k": "b", "t": "", "v": "x"}]
    csv = "".join(f"{','.join(map(str, row.values()))}\n" for row in rows)
    (tmp_path / "source" / f"0.{format_}").write_text(csv if format_ == "csv" else "".join(json.dumps(row) + "\n" for row in rows))
    source = {"path": str(tmp_path / "source"), "format": format_, "options": {"schema": "k STRING, t TIMESTAMP, v BIGINT"}}
    path = written(tmp_path, a_spec(tmp_path, **FIELDS, source=source))
    assert main(["validate", path, "--source"]) == 2
    told = capsys.readouterr().err
    assert "20 % of 10 rows that were read cannot be used" in told
    assert f'0.{format_}, line 9: t: got "1/31/2024"; expected TIMESTAMP' in told
    assert "source.options.timestampFormat" in told


def test_conditions_that_only_spark_evaluates_are_named(tmp_path, capsys):
    wheres = {"a": "xxhash64(k) % 10 = 0", "b": "k rlike 'a[b[c]]'", "c": "u - t < interval 1 hour and l[0] = 1", "d": "upper(k) = 'A'"}
    aggregates = {name: {"count": "*", "where": where} for name, where in wheres.items()}
    path = written(tmp_path, a_spec(aggregates=aggregates))
    for command in ("validate", "explain"):
        assert main([command, path, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)["only_by_spark"]
        assert list(told) == ["aggregates.a.where", "aggregates.b.where"]
        assert told["aggregates.a.where"] == "only Spark evaluates xxhash64(); `compute: local` and `windowmill try` refuse it"
        assert main([command, path]) == 0
        assert "only Spark evaluates xxhash64()" in capsys.readouterr().out
    table = pa.table({"t": pa.array([0], pa.timestamp("us", "UTC")), "u": ["x"], "k": [1.5], "l": pa.array([[1]])})
    write_deltalake(str(tmp_path / "source"), table)
    written(tmp_path, a_spec(source={"path": str(tmp_path / "source")}, aggregates=aggregates))
    assert main(["validate", path, "--source", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["only_by_spark"]
    assert {where: "of double" in why for where, why in told.items()} == {f"aggregates.{name}.where": name == "d" for name in "abcd"}


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*.yaml")), ids=lambda path: path.name)
def test_an_example_is_valid(monkeypatch, path):
    monkeypatch.setenv("WAREHOUSE", "/data")
    assert main(["validate", str(path)]) == 0


def test_the_parts_of_the_guide_make_a_valid_pipeline(tmp_path):
    guide = (ROOT / "docs" / "writing-a-pipeline.md").read_text()
    parts = re.findall(r"^```yaml\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    assert len(parts) >= 3
    spec = a_spec("/data")
    for part in parts:
        spec |= yaml.safe_load(part)
    assert main(["validate", written(tmp_path, spec)]) == 0


def test_the_json_schema_takes_what_is_valid_and_says_what_is_not():
    schema = Pipeline.model_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(FULL)
    assert parse_pipeline(FULL)
    assert schema["$defs"]["Time"]["properties"]["max_future_skew"]["default"] == "1 day"
    assert all(name in str(schema) for name in DECLARED)
    for right in ({"median": "v"}, {"quantile": {"column": "v", "q": 0.9}}, {"quantile": {"column": "v", "q": 0.9, "exact": True}}):
        assert validator.is_valid(FULL | {"aggregates": {"x": right}})
    several = {"aggregates": {"x": {"mean": "v", "sum": "v"}}}
    for wrong in (
        several,
        {"aggregates": {"x": {"meen": "v"}}},
        {"aggregates": {"x": {"where": "v > 1"}}},
        {"aggregates": {"x": {"quantile": {"column": "v", "exact": True}}}},
        {"aggregates": {"x": {"quantile": {"column": "v", "q": 0.9, "exact": "yes"}}}},
        {"keyz": []},
        {"emit": "twice"},
        {"pipeline": "P"},
        {"windows": []},
        {"aggregates": {}},
        {"sink": 7},
    ):
        assert not validator.is_valid(FULL | wrong)
    assert not validator.is_valid({name: value for name, value in FULL.items() if name != "time"})
