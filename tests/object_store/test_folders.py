"""Folders of files in a bucket: read as on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.jobs.test_folders import FORMATS, Row, written
from windowmill.checkpoints.stores import store_of
from windowmill.jobs.cli import main

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("format_", FORMATS)
def test_each_file_of_a_bucket_is_read_once(bucket, tmp_path, capsys, monkeypatch, format_):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    source = f"{bucket}/in"

    def land(name: str, *rows: Row) -> None:
        path = tmp_path / f"{Path(name).name}.{format_}"
        written(path, rows)
        with store_of(source).open_output_stream(f"{name}.{format_}", buffer_size=1 << 16) as file:
            file.write(path.read_bytes())

    def run() -> list[int]:
        assert main(["run", str(spec), "--json"]) == 0
        return [batch["rows_read"] for batch in json.loads(capsys.readouterr().out)["batches"]]

    fields: dict[str, Any] = {
        "pipeline": "visits",
        "source": {"path": source, "format": format_, **({"options": {"header": True}} if format_ == "csv" else {})},
        "keys": ["site"],
        "time": {"column": "t"},
        "windows": [{"name": "hourly", "type": "tumbling", "size": "1 hour"}],
        "aggregates": {"n": {"count": "*"}},
        "sink": {"path": f"{bucket}/out"},
    }
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump(fields))
    land("site=1/a", ("a", 10, 1), ("a", 70, 2))
    land("site=1/_b", ("a", 10, 1))
    assert run() == [2]
    assert run() == []
    land("site=2/0", ("a", 130, 3), ("a", 80, 3))
    assert run() == [2]
    assert run() == []
    assert main(["init", "--source", source, "--out", str(tmp_path / "proposed.yaml"), "--sink", f"{bucket}/proposed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"]["format"] == format_
    land("site=1/a", ("a", 10, 1))
    assert main(["run", str(spec)]) == 2
    assert f"site=1/a.{format_}: changed) changed or removed rows" in capsys.readouterr().err
