"""Tables that a spec names by a catalog: looked up once, read and written without Spark's catalog afterwards, a new sink registered."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from windowmill.jobs.cli import main

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(spark, tmp_path):
    """A database with the table ``orders``."""
    spark.sql(f"CREATE DATABASE lake LOCATION '{tmp_path}/lake'")
    land(tmp_path, 1, 2, 3)
    spark.sql(f"CREATE TABLE lake.orders USING delta LOCATION '{tmp_path}/orders'")
    yield tmp_path
    spark.sql("DROP DATABASE lake CASCADE")


def land(folder: Path, *hours: int) -> None:
    rows = {"shop": ["a"] * len(hours), "at": [datetime(2024, 1, 1, hour, tzinfo=UTC) for hour in hours]}
    write_deltalake(str(folder / "orders"), pa.table(rows), mode="append")


def spec(folder: Path, **changes: Any) -> str:
    fields = {
        "pipeline": "counts",
        "source": {"table": "lake.orders"},
        "keys": ["shop"],
        "time": {"column": "at"},
        "windows": [{"name": "hourly", "type": "tumbling", "size": "1 hour"}],
        "aggregates": {"n": {"count": "*"}},
        "sink": {"table": "lake.counts"},
        "checkpoints": {"path": str(folder / "checkpoints")},
    }
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(fields | changes))
    return str(path)


def test_tables_are_looked_up_once_and_a_new_sink_is_registered(spark, lake, capsys, monkeypatch):
    path = spec(lake)
    for command in ("validate", "explain"):
        assert main([command, path]) == 0
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    assert main(["run", path]) == 2
    assert "only Spark's catalog knows where its tables lie, and compute is local" in capsys.readouterr().err
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "auto")
    assert main(["run", path]) == 0
    told = capsys.readouterr().err
    assert "source.table: lake.orders lies at" in told
    assert "sink.table: lake.counts is registered in the catalog" in told
    assert spark.table("lake.counts").count() == 2
    land(lake, 4)
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    assert main(["run", path]) == 0, "the locations are recorded"
    assert main(["report", path, "--json"]) == 0
    assert main(["maintain", path]) == 0
    capsys.readouterr()
    assert main(["status", path, "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["rows_read"], status["versions_waiting"], status["next_run_error"]) == (4, 0, None)
    assert DeltaTable(str(lake / "lake" / "counts")).to_pyarrow_table().num_rows == spark.table("lake.counts").count() == 3


def test_a_table_that_is_looked_up_may_be_one_of_the_catalog(spark, lake, capsys):
    write_deltalake(lake / "shops", pa.table({"name": ["a"], "town": ["Rye"]}))
    spark.sql(f"CREATE TABLE lake.shops USING delta LOCATION '{lake}/shops'")
    steps = [{"lookup": {"table": "lake.shops", "on": {"shop": "name"}, "columns": ["town"]}}]
    path = spec(lake, steps=steps, keys=["town"])
    assert main(["explain", path]) == 0
    assert main(["run", path]) == 0
    assert "steps.0.lookup.table: lake.shops lies at" in capsys.readouterr().err
    assert {row.town for row in spark.table("lake.counts").collect()} == {"Rye"}
    land(lake, 4)
    assert main(["run", path]) == 0
    assert main(["restate", path, "--lookup", "shops"]) == 0
    assert main(["plan", path]) == 0, "nothing has changed"


@pytest.mark.parametrize(
    ("source", "code", "told"),
    [
        ("lake.none", 1, "source.table: the catalog has no table 'lake.none'; create it, or correct the name"),
        ("lake.view", 2, "table lake.view: is a view, which has no location to read; name the Delta table under it"),
        ("lake.files", 2, "table lake.files: is a parquet table; only Delta tables are taken by name"),
    ],
)
def test_what_is_no_delta_table_is_refused(spark, lake, capsys, source, code, told):
    spark.sql("CREATE VIEW lake.view AS SELECT 1 AS at")
    spark.sql("CREATE TABLE lake.files (at TIMESTAMP) USING parquet")
    assert main(["run", spec(lake, source={"table": source})]) == code
    assert told in capsys.readouterr().err
    assert not (lake / "checkpoints" / "catalog-tables.json").exists()


def test_a_sink_that_is_there_is_taken_where_it_lies(spark, lake, capsys, monkeypatch):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "auto")
    path = spec(lake, sink={"path": str(lake / "out")})
    assert main(["run", path]) == 0
    spark.sql(f"CREATE TABLE lake.there USING delta LOCATION '{lake}/out'")
    land(lake, 5)
    assert main(["run", spec(lake, sink={"table": "lake.there"})]) == 0
    assert "registered" not in capsys.readouterr().err
    assert spark.table("lake.there").count() == 3
