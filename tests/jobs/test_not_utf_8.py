"""Texts of a source that are not UTF-8, as Spark makes them of bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from tests.specs import a_spec
from windowmill.jobs.cli import main

ROWS = {"k": [b"a", b"b"], "t": [b"2024-01-01T00:00:10Z", b"2024-01-01T00:00:20Z"], "x": [b"1", b"2"]}


def spoiled(folder: Path, column: str) -> str:
    """The spec of a pipeline whose source's second row has such a text in ``column``."""
    cells = {name: pa.array(values) for name, values in (ROWS | {column: [ROWS[column][0], b"\xff\xfe"]}).items()}
    rows = pa.table({name: pa.Array.from_buffers(pa.string(), 2, cell.buffers()) for name, cell in cells.items()})
    write_deltalake(str(folder / "source"), pa.table({name: ["?", "?"] for name in ROWS}))
    [file] = DeltaTable(str(folder / "source")).file_uris()
    pq.write_table(rows, file)
    log = folder / "source" / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"] |= {"size": Path(file).stat().st_size, "stats": json.dumps({"numRecords": 2})}
    log.write_text("\n".join(map(json.dumps, actions)))
    fields: dict[str, Any] = {"keys": ["k"], "time": {"column": "t"}, "windows": [{"name": "w", "type": "tumbling", "size": "1 minute"}]}
    fields |= {"aggregates": {"n": {"count": "*"}, "x": {"max": "x"}}, "quarantine": {"hold": 0.9}, "compute": "local"}
    spec = folder / "p.yaml"
    spec.write_text(yaml.safe_dump(a_spec(folder, **fields)))
    return str(spec)


def test_such_a_time_is_quarantined(tmp_path):
    assert main(["run", spoiled(tmp_path, "t")]) == 0
    [row] = DeltaTable(str(tmp_path / "sink.windowmill" / "quarantine")).to_pyarrow_table().to_pylist()
    assert (row["reason"], json.loads(row["row"])) == ("bad_time", {"k": "b", "t": "\ufffd\ufffd", "x": "2"})


@pytest.mark.parametrize("column", ["k", "x"])
def test_such_a_key_or_value_is_refused_before_anything_is_written(tmp_path, capsys, column):
    assert main(["run", spoiled(tmp_path, column)]) == 2
    assert "holds a text that is not UTF-8" in capsys.readouterr().err
    assert not DeltaTable.is_deltatable(str(tmp_path / "sink"))
