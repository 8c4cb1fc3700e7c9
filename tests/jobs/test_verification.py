"""``windowmill verify`` where no Spark is needed: windows of the reference engine, by rows that Arrow reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from windowmill.jobs.cli import main
from windowmill.jobs.verify import check, compare, plain
from windowmill.jobs.verify.source_rows import LocalReader
from windowmill.windowing.catalogue import DECLARED
from windowmill.windowing.specfile import parse_pipeline

HOUR = 3_600_000_000
WINDOWS = [
    {"name": "last", "type": "sliding", "evict": {"count": 5}, "trigger": {"count": 2}},
    {"name": "ticks", "type": "sliding", "evict": {"time": "3 hours"}, "trigger": {"time": "1 hour"}},
    {"name": "leaps", "type": "sliding", "evict": {"time": "2 hours"}, "trigger": {"delta": {"column": "v", "by": 30}}},
    {"name": "spans", "type": "snapshot"},
    {"name": "three", "type": "count", "count": 3},
    {"name": "visits", "type": "session", "gap": "1 hour", "max_size": "4 hours"},
]
AGGREGATES = {
    "n": {"count": "*"},
    "total": {"sum": "v"},
    "high": {"count": "*", "where": "v > 50"},
    "last_id": {"last": "id"},
}


SOURCES: dict[str, dict[str, Any]] = {
    "delta": {},
    "parquet": {"format": "parquet"},
    "csv": {"format": "csv", "options": {"header": "true"}},
}


def parts(seed: int, n_parts: int, n_rows: int) -> list[pa.Table]:
    """Rows of three keys, one of them null, some of them late."""
    rng, tables = np.random.default_rng(seed), []
    for part in range(n_parts):
        time = np.sort(rng.integers(part * 48 * HOUR, (part + 1) * 48 * HOUR, n_rows))
        time -= rng.integers(0, 12 * HOUR, n_rows) * (rng.random(n_rows) < 0.1)
        tables.append(
            pa.table(
                {
                    "id": pa.array(np.arange(part * n_rows, (part + 1) * n_rows)),
                    "k": pa.array([("a", "b", None)[key] for key in rng.integers(0, 3, n_rows)], pa.string()),
                    "t": pa.array(np.maximum(time, 0), pa.timestamp("us", "UTC")),
                    "v": pa.array(rng.integers(0, 100, n_rows)),
                }
            )
        )
    return tables


def deliver(source: Path, form: str, tables: list[pa.Table], spec: Path) -> None:
    """Each table as a version or a file of its own, and a run behind each."""
    for n, table in enumerate(tables):
        if form == "delta":
            write_deltalake(source, table, mode="append")
        else:
            source.mkdir(exist_ok=True)
            (pq.write_table if form == "parquet" else pa_csv.write_csv)(table, source / f"part-{n}.{form}")
        assert main(["run", str(spec)]) == 0


def write_spec(folder: Path, form: str, **changes: Any) -> Path:
    spec = {
        "pipeline": "verified",
        "source": {"path": str(folder / "source")} | SOURCES[form],
        "keys": ["k"],
        "time": {"column": "t", "tie_break": ["id"], "disorder": "2 hours", "lateness": "1 hour"},
        "windows": WINDOWS,
        "aggregates": AGGREGATES,
        "sink": {"path": str(folder / "sink")},
        "compute": "local",
        **changes,
    }
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    return folder / "spec.yaml"


def verified(spec: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    capsys.readouterr()
    code = main(["verify", str(spec), "--json", *options])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == (1 if found["differing"] else 0)
    return found


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("Spark is started")

    monkeypatch.setattr(check, "_started", refuse)


@pytest.mark.parametrize("form", ["delta", "parquet", "csv"])
def test_windows_without_sql_are_verified_without_spark(tmp_path, capsys, form):
    spec = write_spec(tmp_path, form)
    deliver(tmp_path / "source", form, parts(3, 3, 150), spec)
    found = verified(spec, capsys, "--sample", "5000", "--seed", "1")
    assert found["differing"] == 0, found["differences"][:2]
    assert found["not_compared"] == []
    assert found["recomputed_by"] == {"the reference engine": found["rows"]}
    assert found["rows"] > 300
    assert found["late_missed"], "late rows are left out of what is recomputed"
    few = [verified(spec, capsys, "--sample", "20", "--seed", "9") for _ in range(2)]
    assert few[0] == few[1]
    assert few[0]["rows"] == 20


def test_changed_and_deleted_rows_of_the_source_are_found(tmp_path, capsys):
    time = {"column": "t", "tie_break": ["id"], "disorder": "12 hours"}
    spec = write_spec(tmp_path, "delta", source={"path": str(tmp_path / "source"), "filter": "v < 90"}, time=time)
    deliver(tmp_path / "source", "delta", parts(3, 2, 150), spec)
    assert verified(spec, capsys, "--sample", "5000")["differing"] == 0
    DeltaTable(tmp_path / "source").update({"v": "v + 1"}, predicate="id = 150 AND v < 80")
    found = verified(spec, capsys, "--sample", "5000")
    assert 0 < found["differing"] < 60
    assert {each["column"] for row in found["differences"] for each in row["columns"]} <= {"total", "high", None}


@pytest.mark.parametrize(("form", "code"), [("delta", 2), ("parquet", 1)])
def test_a_file_that_is_gone_is_named_in_one_line(tmp_path, capsys, monkeypatch, form, code):
    spec = write_spec(tmp_path, form)
    deliver(tmp_path / "source", form, parts(3, 1, 60), spec)
    [file] = [file for file in (tmp_path / "source").iterdir() if file.suffix == ".parquet"]
    parts_of, gone = LocalReader._parts, []

    def without(*args: Any) -> Any:
        file.unlink(missing_ok=True)  # between the listing and the reading
        gone.append(file.name)
        return parts_of(*args)

    monkeypatch.setattr(LocalReader, "_parts", without)
    capsys.readouterr()
    assert main(["verify", str(spec)]) == code
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("windowmill: ")]
    assert len(said) == len(gone) == 1
    assert file.name in said[0]


def test_keys_with_few_rows_are_compared_where_others_have_too_many(tmp_path, capsys, monkeypatch):
    spec = write_spec(tmp_path, "delta")
    deliver(tmp_path / "source", "delta", parts(3, 2, 120), spec)
    monkeypatch.setattr("windowmill.jobs.verify.check.MAX_ROWS", 100)
    found = verified(spec, capsys, "--sample", "5000")
    assert found["differing"] == 0
    left_out = sum(each["rows"] for each in found["not_compared"] if "too many" in each["why"])
    assert left_out > 0
    assert found["rows"] > 0


def test_a_sample_has_the_rows_that_readers_see(tmp_path, capsys):
    windows = [WINDOWS[0], {"name": "visits", "type": "session", "gap": "2 hours"}]
    time = {"column": "t", "tie_break": ["id"], "lateness": "12 hours"}
    spec = write_spec(tmp_path, "delta", emit="revise", windows=windows, time=time)
    deliver(tmp_path / "source", "delta", parts(5, 3, 100), spec)
    pipeline = parse_pipeline(yaml.safe_load(spec.read_text()))
    rows = DeltaTable(tmp_path / "sink").to_pyarrow_table().to_pylist()
    assert any(row["revision"] for row in rows)

    def sampled(number: int, seed: int, ends: tuple[int | None, int | None] = (None, None)) -> set[Any]:
        found = compare.sample(str(tmp_path / "sink"), pipeline, number=number, seed=seed, ends=ends, through=2)
        assert found.keys.column("k").to_pylist() == [key for row in found.rows for key in row.key]
        return {(row.key, row.window, row.start, row.end, row.trigger, row.revision) for row in found.rows}

    newest: dict[Any, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["revision"]):
        bounds = (row["window_start"], row["window_end"]) if row["trigger"] is None else row["trigger"]
        newest[row["k"], row["window"], bounds] = row
    every = sampled(100_000, 1)
    assert len(every) == len([row for row in newest.values() if not row["retracted"]])
    assert every >= sampled(10, 1)
    assert len(sampled(10, 1)) == 10
    assert sampled(10, 1) == sampled(10, 1) != sampled(10, 2)
    some = sampled(100_000, -7, (20 * HOUR, 60 * HOUR))
    assert some == {row for row in every if 20 * HOUR < row[3] <= 60 * HOUR}
    assert sampled(3, 4, (20 * HOUR, 21 * HOUR)) <= some


def test_every_aggregate_has_a_form_of_its_own():
    assert set(DECLARED.built_in()) == set(plain.FORMS), "give the aggregate a form in jobs/verify/plain.py"


def test_texts_are_joined_as_concat_joins_them():
    from datetime import date
    from decimal import Decimal

    values = ["a", 7, 1e300, float("nan"), Decimal("0.00000000"), date(2024, 2, 29)]
    assert plain.joined(values) == "a71e+300nan0.000000002024-02-29"
