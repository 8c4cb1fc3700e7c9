"""``windowmill validate``: the whole spec is checked, the rules for its rows too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from windowmill.jobs.cli import main

RULE = {"type": "expect_column_values_to_be_between", "column": "n", "max_value": 3}


def validated(folder: Path, rule: dict[str, Any]) -> tuple[int, Path]:
    spec = {"pipeline": "p", "time": {"column": "t"}, "windows": [{"name": "w", "type": "tumbling", "size": "1 hour"}]}
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(spec | {"aggregates": {"n": {"count": "*"}}, "expectations": [rule]}))
    return main(["validate", str(path)]), path


def test_windows_that_no_run_would_work_on_are_refused(tmp_path, capsys):
    hopping = {"name": "w", "type": "hopping", "size": "10000 days", "hop": "1 us"}
    spec = {"pipeline": "p", "time": {"column": "t"}, "windows": [hopping], "aggregates": {"n": {"count": "*"}}}
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    assert main(["validate", str(path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"windowmill: {path}:5: windows.0: each event would be in")
    assert told.count("\n") == 1


def test_a_spec_with_rules_is_valid(tmp_path, capsys):
    code, path = validated(tmp_path, RULE)
    assert code == 0
    assert f"{path}: pipeline p is valid" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "line", "problem"),
    [
        ({"type": "expect_column_values_to_be_betwen"}, 7, "expectations.0.type: got 'expect_column_values_to_be_betwen'; did you mean"),
        ({"column": "nn"}, 5, "expectations.0.column: got 'nn'"),
    ],
)
def test_a_rule_that_no_run_could_check_is_refused(tmp_path, capsys, changed, line, problem):
    code, path = validated(tmp_path, RULE | changed)
    assert code == 2
    assert f"{path}:{line}: {problem}" in capsys.readouterr().err


BASE = {
    "pipeline": "p",
    "keys": ["k"],
    "time": {"column": "t"},
    "windows": [{"name": "w", "type": "tumbling", "size": "1 hour"}],
    "aggregates": {"n": {"count": "*"}, "mean": {"mean": "v"}},
}


def landed(folder: Path, times: list[str | None], **spec: Any) -> Path:
    """A spec beside a table of texts for times."""
    rows = {"k": ["a", None, "b", "b"] * len(times), "t": times * 4, "v": [1.0, 2.0, None, float("nan")] * len(times)}
    write_deltalake(str(folder / "in"), pa.table({name: pa.array(cells) for name, cells in rows.items()}))
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(BASE | {"source": {"path": str(folder / "in")}, "sink": {"path": str(folder / "out")}} | spec))
    return path


def test_rows_of_the_source_are_read_as_a_run_reads_them(tmp_path, capsys):
    path = landed(tmp_path, ["2024-01-01T00:00:00Z"] * 99 + ["1/31/2024"])
    assert main(["validate", str(path), "--source", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["rows"]
    assert (found["rows"], found["usable"], found["reasons"], found["examples"]) == (400, 396, {"bad_time": 4}, ["'1/31/2024'"])
    assert found["readable"] == {"t": 396, "k": 300, "v": 300}
    assert main(["validate", str(path), "--source"]) == 0
    told = capsys.readouterr().out
    assert "400 rows of the source read; readable: t in 396, k in 300, v in 300; not usable: 4 bad_time (such as '1/31/2024')" in told


@pytest.mark.parametrize(("where", "rows"), [("v = 1", 12), ("k = 'b'", 8), ("true", 0)])
def test_rows_that_the_table_no_longer_holds_are_not_read(tmp_path, capsys, where, rows):
    path = landed(tmp_path, ["2024-01-01T00:00:00Z"] * 2)
    table = DeltaTable(str(tmp_path / "in"))
    write_deltalake(table, table.to_pyarrow_table(), mode="append")
    table.delete(where)
    assert main(["validate", str(path), "--source", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"]["rows"] == table.to_pyarrow_table().num_rows == rows


@pytest.mark.parametrize(
    ("times", "changes", "told"),
    [
        (
            ["2024-01-01", "2024-01-01", "31.1.2024"],
            {},
            "33.3 % of 12 rows that were read cannot be used, more than 10 % (quarantine.hold)",
        ),
        (["2024-01-01", None], {}, "4 null_time; null_time: fill t in the source"),
        (["2024-01-01", "9999-12-31"], {}, "such as '9999-12-31'"),
        (["2024-01-01", "2999-12-31"], {}, "4 future_time"),
    ],
)
def test_a_spec_whose_times_cannot_be_read_is_not_valid(tmp_path, capsys, times, changes, told):
    path = landed(tmp_path, times, **changes)
    assert main(["validate", str(path)]) == 0
    assert main(["validate", str(path), "--source"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"windowmill: {path}:")
    assert ": time.column: " in error
    assert told in error
    assert error.count("\n") == 1


def test_a_pipeline_that_loses_rows_knowingly_is_valid(tmp_path, capsys):
    path = landed(tmp_path, ["2024-01-01", "x"], quarantine={"warn": "never", "hold": "never"})
    assert main(["validate", str(path), "--source"]) == 0
    assert "8 rows of the source read; readable: t in 4, k in 6, v in 6; not usable: 4 bad_time" in capsys.readouterr().out


def test_many_specs_and_folders(tmp_path, capsys):
    for name, text in {"a.yaml": BASE, "b.yaml": BASE | {"keys": "k"}, "c.yml": BASE | {"emit": "later"}}.items():
        (tmp_path / name).write_text(yaml.safe_dump(text))
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
    assert [(Path(each["spec"]).name, each["status"]) for each in specs] == [
        ("a.yaml", "valid"),
        ("b.yaml", "invalid"),
        ("c.yml", "invalid"),
    ]
    assert told.err.count("\n") == 2
    assert specs[2]["problems"] == [told.err.splitlines()[1]]
    (tmp_path / "empty").mkdir()
    assert main(["validate", str(tmp_path / "empty")]) == 2
    assert "the folder holds no *.yaml or *.yml file" in capsys.readouterr().err
    assert main(["validate", str(tmp_path / "none.yaml"), good]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("format_", ["csv", "json"])
def test_lines_of_files_that_cannot_be_read_are_shown(tmp_path, capsys, format_):
    (tmp_path / "in").mkdir()
    rows = [{"k": "a", "t": "2024-01-01 00:00:00", "v": 1}] * 8 + [{"k": "a", "t": "1/31/2024", "v": 1}, {"k": "b", "t": "", "v": "x"}]
    csv = "".join(f"{','.join(map(str, row.values()))}\n" for row in rows)
    (tmp_path / "in" / f"0.{format_}").write_text(csv if format_ == "csv" else "".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "spec.yaml"
    source = {"path": str(tmp_path / "in"), "format": format_, "options": {"schema": "k STRING, t TIMESTAMP, v BIGINT"}}
    path.write_text(yaml.safe_dump(BASE | {"source": source, "sink": {"path": str(tmp_path / "out")}}))
    assert main(["validate", str(path), "--source"]) == 2
    told = capsys.readouterr().err
    assert "20 % of 10 rows that were read cannot be used" in told
    assert f'0.{format_}, line 9: t: got "1/31/2024"; expected TIMESTAMP' in told
    assert "source.options.timestampFormat" in told


def test_conditions_that_only_spark_evaluates_are_named(tmp_path, capsys):
    wheres = {"a": "xxhash64(k) % 10 = 0", "b": "k rlike 'a[b[c]]'", "c": "u - t < interval 1 hour and l[0] = 1", "d": "upper(k) = 'A'"}
    aggregates = {name: {"count": "*", "where": where} for name, where in wheres.items()}
    spec = {"pipeline": "p", "time": {"column": "t"}, "windows": [{"name": "w", "type": "tumbling", "size": "1 hour"}]}
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec | {"aggregates": aggregates}))
    for command in ("validate", "explain"):
        assert main([command, str(path), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)["only_by_spark"]
        assert list(told) == ["aggregates.a.where", "aggregates.b.where"]
        assert told["aggregates.a.where"] == "only Spark evaluates xxhash64(); `compute: local` and `windowmill try` refuse it"
        assert main([command, str(path)]) == 0
        assert "only Spark evaluates xxhash64()" in capsys.readouterr().out
    table = pa.table({"t": pa.array([0], pa.timestamp("us", "UTC")), "u": ["x"], "k": [1.5], "l": pa.array([[1]])})
    write_deltalake(str(tmp_path / "source"), table)
    path.write_text(yaml.safe_dump(spec | {"source": {"path": str(tmp_path / "source")}, "aggregates": aggregates}))
    assert main(["validate", str(path), "--source", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["only_by_spark"]
    assert {where: "of double" in why for where, why in told.items()} == {
        "aggregates.a.where": False,
        "aggregates.b.where": False,
        "aggregates.c.where": False,
        "aggregates.d.where": True,
    }
