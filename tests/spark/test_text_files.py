"""Text files as Spark's own readers find them, and as a pipeline does by Spark and in this process."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.jobs.test_folders import Pipe
from tests.jobs.test_text_balance import found_in
from tests.jobs.text_balance import SYNTAXES, drawn
from windowmill.jobs.layouts import limits

pytestmark = pytest.mark.spark
#: Files of each set of options.
FILES = 12


def test_rows_are_those_of_sparks_reader(spark, tmp_path):
    for syntax in range(1, SYNTAXES, 5):
        (folder := tmp_path / str(syntax)).mkdir()
        found: list[Any] = []
        every = (drawn(syntax + SYNTAXES * number) for number in range(FILES))
        files = [file for file in every if file.format == "csv" or b"[{" not in file.plain[:5]]  # Spark reads an array in one line alone
        for number, file in enumerate(files):
            (folder / f"{number}.txt").write_bytes(file.plain)
            found += found_in(file, tmp_path / "file")[0]
        options = files[0].options
        if files[0].format == "csv":
            reader = spark.read.schema("k STRING, v STRING").options(**options | {"escape": options["escape"] or options["quote"]})
            theirs = Counter(row.k for row in reader.csv(str(folder)).collect())
            ours = Counter(k or None for k, _, reason in found if reason != "bad_row")
        else:
            theirs = Counter((row.k, row.v) for row in spark.read.schema("k STRING, v BIGINT").json(str(folder)).collect())
            # Spark takes 30.0 for no whole number.
            ours = Counter((k, v) for k, v, reason in found if reason is None and v != 30)
        assert theirs.total() == len(found), options
        assert not ours - theirs, options


@pytest.mark.parametrize("by_many_tasks", [False, True], ids=["one task", "many tasks"])
@pytest.mark.parametrize("format_", ["csv", "json"])
def test_spark_quarantines_what_this_process_quarantines(spark, tmp_path, capsys, monkeypatch, format_, by_many_tasks):
    if format_ == "csv":
        lines = [
            "k,t,v",
            'a,2024-01-01,"1"',
            '"5 inch,1',
            "a,2024-01-01,2.5",
            "a,soon,3",
            "a,,4",
            "a,2024-01-01,30.0",
            "a,2024-01-01 03:00,0",
        ]
    else:
        rows = [{"k": "a", "t": "2024-01-01", "v": v} for v in (1, 2.5, 30.0, "x")]
        rows += [{"k": "\ud83d"}, {"t": "soon", "v": 3}, {"v": 4}, {"k": "a", "t": "2024-01-01 03:00", "v": 0}]
        lines = [*map(json.dumps, rows), "[" * 50_000, "oops"]
    data = "\n".join(lines).encode() + b"\n\xff\n"
    tables = []
    for compute in ("local", "spark"):
        pipe = Pipe(tmp_path / compute, format_)
        options = {"schema": "k STRING, t TIMESTAMP, v BIGINT"} | ({"header": True} if format_ == "csv" else {})
        pipe.write(options=options, filter="v < 100")
        (pipe.inputs / "a").write_bytes(data)
        monkeypatch.setenv("WINDOWMILL_COMPUTE", compute)
        if by_many_tasks and compute == "spark":
            monkeypatch.setattr(limits, "MAX_ROWS", 0)
        read = pipe.run(capsys)
        refused = DeltaTable(f"{pipe.spec['sink']['path']}.windowmill/quarantine").to_pyarrow_table().to_pylist()
        told = sorted((row["reason"], row["detail"].rpartition("/")[2], row["row"]) for row in refused)
        tables.append((read, pipe.results(), told))
    assert tables[0] == tables[1]
    assert {reason for reason, *_ in tables[0][2]} >= {"cannot_cast", "bad_time", "bad_row"}
