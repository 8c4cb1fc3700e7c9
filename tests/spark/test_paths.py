"""Tables in folders with odd names, named by path, by URI or through a link: read by this process and by Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.spark.harness import SCHEMA, Bench, differences, events, expected, quiet
from windowmill.checkpoints.places import readable_path
from windowmill.jobs.batch import loop
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.windowing.errors import SpecError

PLAIN = {"windows": [{"name": "w", "type": "tumbling", "size": "10 minutes"}], "aggregates": {"n": {"count": "*"}, "total": {"sum": "v"}}}


def _over(bench: Bench, odd: str) -> None:
    """Two runs, a backfill and maintenance, compared with the reference; the source is partitioned by an odd text, too."""
    rows = events(81, 150)
    for n in range(3):
        part = [dict(row, label=odd) for row in rows[50 * n : 50 * (n + 1)]]
        write_deltalake(bench.source, pa.Table.from_pylist(part, schema=SCHEMA), mode="append", partition_by=["label"])
        if n:
            bench.run()
    ends = sorted(row["window_end"] for row in bench.rows())
    loop.backfill(bench.pipeline, quiet(), begin=ends[0] - 1, end=ends[-1])
    maintain(bench.pipeline, quiet())
    assert differences(bench.rows(), expected(bench.pipeline, rows, commits=[n // 50 for n in range(150)]).rows) == []


@pytest.mark.usefixtures("either_reader")
@pytest.mark.parametrize("by_uri", [False, True], ids=["path", "URI"])
def test_odd_names_of_folders(tmp_path, by_uri):
    odd = "50% h#h ü+é=b;c&d"
    bench = Bench(tmp_path / odd, dict(PLAIN))
    bench.folder.mkdir()
    if by_uri:
        bench.changes |= {name: {"path": Path(getattr(bench, name)).as_uri()} for name in ("source", "sink")}
    _over(bench, odd)


@pytest.mark.usefixtures("either_reader")
def test_a_link_to_a_source_whose_folder_looks_escaped(tmp_path):
    """delta-rs would read the table at the name that the escape stands for."""
    odd = "%41 a%20b"
    bench, landed = Bench(tmp_path, dict(PLAIN)), tmp_path / "landed"
    real = tmp_path / odd / "table"
    real.mkdir(parents=True)
    other = tmp_path / unquote(odd) / "table"
    other.mkdir(parents=True)
    write_deltalake(other, pa.Table.from_pylist(events(82, 10), schema=SCHEMA))
    Path(bench.source).symlink_to(real)
    rows = events(81, 150)
    for n in range(3):
        write_deltalake(landed, pa.Table.from_pylist(rows[50 * n : 50 * (n + 1)], schema=SCHEMA), mode="append")
        shutil.copytree(landed, real, dirs_exist_ok=True)
        if n:
            bench.run()
    ends = sorted(row["window_end"] for row in bench.rows())
    loop.backfill(bench.pipeline, quiet(), begin=ends[0] - 1, end=ends[-1])
    assert differences(bench.rows(), expected(bench.pipeline, rows, commits=[n // 50 for n in range(150)]).rows) == []


@pytest.mark.parametrize("table", ["sink", "checkpoints"])
def test_a_link_to_a_sink_whose_folder_looks_escaped_is_refused(tmp_path, table):
    bench = Bench(tmp_path, PLAIN | {"checkpoints": {"path": str(tmp_path / "checkpoints")}})
    bench.land(events(81, 50))
    (tmp_path / "%41" / "table").mkdir(parents=True)
    (tmp_path / table).symlink_to(tmp_path / "%41" / "table")
    with pytest.raises(SpecError, match=rf"pipeline bench: {table}.path: \S+ leads to \S+/%41/table, which holds '%41'; writers"):
        bench.run()
    assert list((tmp_path / "%41" / "table").iterdir()) == []


def test_only_paths_with_escapes_have_a_stand_in(tmp_path):
    assert readable_path(str(tmp_path)) == str(tmp_path)
    assert readable_path("s3://bucket/a%20b") == "s3://bucket/a%20b"
    assert readable_path(str(tmp_path / "%41")) == readable_path(str(tmp_path / "%41")) != str(tmp_path / "%41")
