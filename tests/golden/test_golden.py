"""Tables of every released format are read, and gone on from, by this code: the rows are those of the reference."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.golden.make import HERE, KEPT, Golden, rows_of
from tests.spark.harness import differences, expected, place
from windowmill.checkpoints.records import FORMAT as RECORD_FORMAT
from windowmill.windowing.specfile import parse_pipeline

CURRENT = f"format-{RECORD_FORMAT}"
FOLDERS = sorted((HERE / CURRENT).iterdir())


def landed(source: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """The rows of ``source`` in the order of arrival, instants of the time column as integers, and the version of each."""
    rows: list[dict[str, Any]] = []
    commits: list[int] = []
    for version in sorted((source / "_delta_log").glob("*.json")):
        for action in map(json.loads, version.read_text().splitlines()):
            if "add" in action:
                table = pq.read_table(source / action["add"]["path"])
                for name in {"t", "e"} & set(table.column_names):
                    table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.int64()))
                rows += table.to_pylist()
                commits += [int(version.stem)] * table.num_rows
    return rows, commits


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """``row`` with the fields of its structs as cells, so that floats among them are compared as floats."""
    cells = {name: value for name, value in row.items() if not isinstance(value, dict)}
    return cells | {f"{name}.{field}": cell for name, value in row.items() if isinstance(value, dict) for field, cell in value.items()}


def published(golden: Golden) -> list[dict[str, Any]]:
    """The versions of windows in the sink, as the reference has them."""
    table = DeltaTable(golden.folder / "sink").to_pyarrow_table()
    for name in ("window_start", "window_end"):
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(pa.int64()))
    pipeline = parse_pipeline(golden.spec())
    found = [flat(row) for row in table.drop_columns(["batch"]).to_pylist()]
    return sorted(versions(found), key=lambda row: str(place(pipeline, row)))


def versions(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """``rows`` without those that retract windows, which sinks of the released formats do not have of the batches before."""
    return [{name: value for name, value in row.items() if name != "retracted"} for row in rows if not row.get("retracted")]


def test_every_case_is_there():
    kept = {folder.name.removeprefix("format-"): {case.name for case in folder.iterdir()} for folder in HERE.glob("format-*")}
    assert kept == {format_: set(cases) for format_, cases in KEPT.items()}


@pytest.mark.covers("V2")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_go_on_from_tables_of_a_released_format(tmp_path, folder):
    golden = Golden(Path(shutil.copytree(folder, tmp_path / "tables")))
    if folder.name == "held":
        golden.run(ruling="release")
    for seed in (2, 3):
        golden.land(rows_of(seed, 100, first=300))
        golden.run()
    pipeline = parse_pipeline(golden.spec())
    rows, commits = landed(golden.folder / "source")
    want = expected(pipeline, rows, commits=commits)
    wanted = sorted(versions([flat(row) for row in want.rows]), key=lambda row: str(place(pipeline, row)))
    assert len(wanted) > 10
    assert differences(published(golden), wanted) == []
    quarantined = DeltaTable(golden.folder / "sink.windowmill" / "quarantine").to_pyarrow_table()
    assert quarantined.num_rows == len(want.quarantined)
