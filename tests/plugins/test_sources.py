"""A kind of source from outside: planned and read as Delta is, version by version."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable

from windowmill.jobs.cli import main
from windowmill.jobs.runnables import runnable_of
from windowmill.jobs.sources.base import open_source
from windowmill.jobs.sources.reading import Limits, VersionRange, next_versions, reading_of
from windowmill.jobs.user_code import module_digests
from windowmill.windowing.errors import SourceError
from windowmill.windowing.specfile import parse_pipeline

TOY = "tests.plugins.toys.source"


def described(folder: Path, **source: Any) -> dict[str, Any]:
    return {
        "pipeline": "visits",
        "source": {"path": str(folder / "in"), "format": "numbered_parquet", **source},
        "keys": ["page"],
        "time": {"column": "at", "unit": "s"},
        "windows": [{"name": "tens", "type": "tumbling", "size": 10}],
        "aggregates": {"n": {"count": "*"}, "total": {"sum": "seconds"}},
        "sink": {"path": str(folder / "out")},
    }


@pytest.fixture
def land(tmp_path):
    """Lands rows as the next file."""
    folder = tmp_path / "in"
    folder.mkdir()

    def land(*rows: tuple[str, int, int]) -> None:
        table = pa.table({name: list(column) for name, column in zip(("page", "at", "seconds"), zip(*rows, strict=True), strict=True)})
        pq.write_table(table, folder / f"{len(list(folder.iterdir()))}.parquet")

    return land


@pytest.fixture
def spec(tmp_path):
    def written(**source: Any) -> str:
        path = tmp_path / "spec.yaml"
        path.write_text(yaml.safe_dump(described(tmp_path, **source), sort_keys=False))
        return str(path)

    return written


def test_it_is_validated_and_explained_as_what_runs_do(plug, spec, land, capsys):
    plug(TOY)
    land(("a", 1, 5))
    assert main(["validate", spec(), "--source"]) == 0
    assert "its rows can be read by Spark only; none was read" in capsys.readouterr().out
    assert main(["explain", spec(options={"compression": "zstd"}), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["command"], told["refused"]) == ("run", [])
    assert main(["status", spec(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["versions_waiting"] == 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            {"format": "numbered"},
            "source.format: got 'numbered'; runs read Delta tables, write the data to one first, or name one of delta, ",
        ),
        (
            {"options": {"compresion": "zstd"}},
            "source.options.compresion: unknown; the options of a source of format numbered_parquet are ",
        ),
    ],
)
def test_what_no_kind_knows_is_refused_with_what_is_known(plug, spec, capsys, source, message):
    plug(TOY)
    assert main(["validate", spec(**source)]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.rstrip().endswith(("numbered_parquet", "compression"))


def test_without_the_plugin_the_kind_is_unknown(plug, spec, capsys):
    assert main(["validate", spec()]) == 2
    told = "source.format: got 'numbered_parquet'; runs read Delta tables, write the data to one first, or name one of delta, "
    told += "parquet, csv, json, kafka\n"
    assert capsys.readouterr().err.endswith(told)


def test_versions_are_planned_one_after_another(plug, tmp_path, land):
    plug(TOY)
    land(("a", 1, 5), ("b", 2, 5))
    land(("a", 12, 7))
    pipeline = parse_pipeline(described(tmp_path))
    source, runnable = open_source(pipeline), runnable_of(pipeline)
    assert next_versions(runnable, source, None, "log", limits=Limits(9, 1 << 20)) == VersionRange(-1, 1)
    assert next_versions(runnable, source, None, "log", limits=Limits(1, 1 << 20)) == VersionRange(-1, 0)
    assert [(file.path, file.rows) for file in reading_of(runnable, source, VersionRange(-1, 1)).files] == [
        ("0.parquet", 2),
        ("1.parquet", 1),
    ]
    assert list(module_digests(pipeline)) == [TOY]


def test_a_source_that_is_not_there_is_told(plug, tmp_path):
    plug(TOY)
    with pytest.raises(SourceError, match=r"there are no Parquet files; write 0\.parquet"):
        open_source(parse_pipeline(described(tmp_path)))


@pytest.mark.spark
@pytest.mark.classic  # it changes the workers' environment
def test_each_run_reads_what_is_new(plug, spark, monkeypatch, tmp_path, land, spec, capsys):
    plug(TOY, "tests.plugins.toys.aggregates")
    monkeypatch.delitem(spark.sparkContext.environment, "WINDOWMILL_PLUGINS", raising=False)
    land(("a", 1, 5), ("b", 2, 6), ("a", 11, 7))
    path = spec()
    spread = {"spread": {"coefficient_of_variation": "seconds"}}
    Path(path).write_text(yaml.safe_dump(described(tmp_path) | {"aggregates": described(tmp_path)["aggregates"] | spread}))

    def run() -> dict[str, Any]:
        assert main(["run", path, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert [batch["rows_read"] for batch in run()["batches"]] == [3]
    land(("a", 13, 8), ("b", 25, 9))
    land(("b", 31, 1))
    assert [batch["rows_read"] for batch in run()["batches"]] == [3], "the rows of the two files that are new"
    assert run()["status"] == "nothing new"
    found = {(row["page"], row["window_end"]): row for row in DeltaTable(str(tmp_path / "out")).to_pyarrow_table().to_pylist()}
    totals = {place: (row["n"], row["total"]) for place, row in found.items()}
    assert totals == {("a", 10): (1, 5), ("a", 20): (2, 15), ("b", 10): (1, 6), ("b", 30): (1, 9)}
    assert found["a", 20]["spread"] == pytest.approx(statistics.stdev([7, 8]) / 7.5), "its partial was restored from the state"
