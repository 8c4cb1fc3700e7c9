"""Tables of a Hive metastore by name: every command, and what becomes of tables that are renamed, dropped, or no tables."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.catalog.metastores import Answered, Player

#: They start a metastore, and Spark in a process of its own.
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1_200)]

_NUMBERS = itertools.count()
COLUMNS = "shop STRING, order_id BIGINT, ordered_at TIMESTAMP, amount DOUBLE"


class Lake:
    """A database of its own in the metastore, and a pipeline over its table ``orders``."""

    def __init__(self, hive: Player, folder: Path) -> None:
        self.hive, self.folder, self.name = hive, folder, f"lake{next(_NUMBERS)}"
        hive.sql(f"CREATE DATABASE {self.name} LOCATION '{folder}/{self.name}'", f"CREATE TABLE {self.name}.orders ({COLUMNS}) USING delta")
        self.land(0, 100)

    def land(self, begin: int, end: int, table: str = "orders") -> None:
        """Orders ``begin`` to ``end``, one every ten minutes of three shops in turn."""
        at = "timestamp_seconds(1704067200 + 600 * id)"
        self.hive.sql(
            f"INSERT INTO {self.name}.{table} SELECT concat('s', id % 3), id, {at}, CAST(id AS DOUBLE) FROM range({begin}, {end}, 1, 1)"
        )

    def spec(self, source: str = "orders", sink: str = "order_counts", **changes: Any) -> str:
        fields = {
            "pipeline": "order_counts",
            "source": {"table": f"{self.name}.{source}"},
            "keys": ["shop"],
            "time": {"column": "ordered_at", "tie_break": ["order_id"]},
            "windows": [{"name": "hourly", "type": "tumbling", "size": "1 hour"}],
            "aggregates": {"orders": {"count": "*"}, "total": {"sum": "amount"}},
            "sink": {"table": f"{self.name}.{sink}"},
            "checkpoints": {"path": str(self.folder / "checkpoints")},
        }
        path = self.folder / "spec.yaml"
        path.write_text(yaml.safe_dump(fields | changes))
        return str(path)

    def done(self, *words: str, compute: str = "auto") -> Answered:
        told = self.hive.command(*words, compute=compute)
        assert told.code == 0, told.err
        return told

    def refused(self, *words: str, code: int = 2, compute: str = "auto") -> str:
        """The one line with which a command ends."""
        told = self.hive.command(*words, compute=compute)
        assert told.code == code, told.err
        return told.err.splitlines()[-1]

    def totals(self, table: str = "order_counts") -> list[list[Any]]:
        """Number of rows and sum over the published windows, as other readers of the catalog see them."""
        return self.hive.sql(f"SELECT count(*), sum(orders), sum(total) FROM {self.name}.{table}")


@pytest.fixture
def lake(hive, tmp_path) -> Lake:
    return Lake(hive, tmp_path)


@pytest.fixture(scope="module")
def odd_tables(hive, tmp_path_factory) -> Lake:
    """A database with a view and a table that is not of Delta, too."""
    lake = Lake(hive, tmp_path_factory.mktemp("odd"))
    hive.sql(
        f"CREATE VIEW {lake.name}.seen AS SELECT * FROM {lake.name}.orders", f"CREATE TABLE {lake.name}.files ({COLUMNS}) USING parquet"
    )
    return lake


def test_every_command_takes_tables_by_name(lake, tmp_path):
    path = lake.spec()
    assert lake.hive.sql("SET spark.sql.catalogImplementation") == [["spark.sql.catalogImplementation", "hive"]]
    for command in ("validate", "explain"):
        lake.done(command, path)
    assert "is not recorded yet" in lake.refused("validate", path, "--source")
    status = lake.done("status", path, "--json").data
    assert (status["status"], status["next_run_error"]) == ("never run", None), "the run looks the tables up"
    told = lake.done("run", path).err
    assert f"source.table: {lake.name}.orders lies at {tmp_path}/{lake.name}/orders" in told
    assert f"sink.table: {lake.name}.order_counts is registered in the catalog" in told
    assert lake.totals() == [[48, 96, 4_560.0]]
    lake.done("validate", path, "--source")
    lake.land(100, 130)
    assert lake.done("status", path, "--json", compute="local").data["versions_waiting"] == 1
    assert lake.done("run", path, "--json", compute="local").data["batches"][0]["rows_read"] == 30, "which needs no catalog"
    assert lake.totals() == [[63, 126, 7_875.0]]
    assert lake.done("verify", path, "--json").data["differing"] == 0
    range_ = ("--from", "2024-01-01T00:00", "--to", "2024-01-01T12:00")
    assert lake.done("backfill", path, *range_, "--json").data["batches"][0]["rows_published"] == 36
    assert lake.totals() == [[63, 126, 7_875.0]]
    lake.done("restate", path, *range_)
    lake.done("plan", path)
    for words in (["history"], ["quality"], ["state"], ["report"], ["cost"], ["suggest"], ["maintain"], ["savepoint", "list"]):
        lake.done(words[0], path, *words[1:], compute="local")
    report = (tmp_path / "checkpoints" / "report.html").read_text()
    assert f"{lake.name}.order_counts" in report
    assert "63" in report
    statements = lake.done("views", path, "--schema", lake.name).out.split(";\n")
    lake.hive.sql(*(statement for statement in statements if statement.strip()))
    assert lake.totals("order_counts_latest") == [[63, 126, 7_875.0]], "beside the sink, which has the name of the view of all rows"


def test_spark_computes_over_tables_by_name(lake):
    path = lake.spec()
    assert lake.done("run", path, "--json", compute="spark").data["batches"][0]["compute"]["engine"] == "spark"
    lake.land(100, 130)
    lake.done("run", path, compute="spark")
    assert lake.totals() == [[63, 126, 7_875.0]]


def test_init_names_the_table_and_a_sink_in_its_database(lake, tmp_path):
    written = str(tmp_path / "written.yaml")
    told = lake.done("init", "--table", f"{lake.name}.orders", "--out", written, "--json").data
    assert told["source"] == {"table": f"{lake.name}.orders"}
    assert told["sink"] == {"table": f"{lake.name}.orders_windows"}
    assert told["checkpoints"] == {"path": f"{tmp_path}/{lake.name}/orders_windows.windowmill"}
    assert (told["keys"], told["time"]["column"], told["time"]["tie_break"]) == (["shop"], "ordered_at", ["order_id"])
    for step in told["next"]:
        lake.done(*step.split()[1:])
    assert lake.hive.sql(f"SELECT count(DISTINCT window) FROM {lake.name}.orders_windows") == [[2]]
    told = lake.done("init", "--table", f"{lake.name}.orders", "--sink", f"{tmp_path}/out", "--out", written, "--force", "--json").data
    assert "checkpoints" not in told
    assert lake.refused("init", "--table", f"{lake.name}.none", code=1).endswith("create it, or correct the name")
    assert "leave one of them out" in lake.refused("init", "--table", f"{lake.name}.orders", "--source", "/data")


def test_a_partitioned_table_with_capitals_in_its_name(lake):
    lake.hive.sql(
        f"CREATE TABLE {lake.name}.`Orders_By_Shop` ({COLUMNS}) USING delta PARTITIONED BY (shop)",
    )
    lake.land(0, 100, "Orders_By_Shop")
    lake.done("run", lake.spec(source="Orders_By_Shop", sink="Order_Counts"))
    assert lake.totals("order_counts") == [[48, 96, 4_560.0]]
    lake.land(100, 130, "orders_by_shop")
    lake.done("run", lake.spec(source="Orders_By_Shop", sink="Order_Counts"))
    assert lake.totals("order_counts") == [[63, 126, 7_875.0]]


def test_a_table_is_named_with_its_catalog(lake):
    path = lake.spec(source="orders", sink="order_counts")
    text = Path(path).read_text().replace(f"table: {lake.name}.", f"table: spark_catalog.{lake.name}.")
    Path(path).write_text(text)
    lake.done("run", path)
    assert lake.totals() == [[48, 96, 4_560.0]]


def test_a_renamed_table_goes_on_under_its_new_name(lake):
    lake.done("run", lake.spec())
    lake.hive.sql(f"ALTER TABLE {lake.name}.orders RENAME TO {lake.name}.orders_of_shops")
    assert "the catalog has no table" in lake.refused("run", lake.spec(), code=1)
    lake.land(100, 130, "orders_of_shops")
    lake.done("run", lake.spec(source="orders_of_shops"))
    assert lake.totals() == [[63, 126, 7_875.0]]


def test_a_table_that_was_moved_is_looked_up_again(lake, tmp_path):
    path = lake.spec(source="moving")
    lake.hive.sql(f"CREATE TABLE {lake.name}.moving USING delta LOCATION '{tmp_path}/here' AS SELECT * FROM {lake.name}.orders")
    lake.done("run", path)
    (tmp_path / "here").rename(tmp_path / "there")
    lake.hive.sql(f"DROP TABLE {lake.name}.moving", f"CREATE TABLE {lake.name}.moving USING delta LOCATION '{tmp_path}/there'")
    assert f"moving lies at {tmp_path}/there" in lake.done("run", path).err
    lake.land(100, 130, "moving")
    lake.done("run", path)
    assert lake.totals() == [[63, 126, 7_875.0]]


def test_a_table_that_was_made_anew_is_refused(lake):
    path = lake.spec()
    lake.done("run", path)
    lake.hive.sql(f"DROP TABLE {lake.name}.orders", f"CREATE TABLE {lake.name}.orders ({COLUMNS}) USING delta")
    lake.land(0, 130)
    assert "this is another table" in lake.refused("run", path)
    assert lake.totals() == [[48, 96, 4_560.0]]


@pytest.mark.parametrize(
    ("source", "sink", "code", "told"),
    [
        ("none", "counts", 1, "none'; create it, or correct the name"),
        ("seen", "counts", 2, "is a view, which has no location to read; name the Delta table under it"),
        ("files", "counts", 2, "is a parquet table; only Delta tables are taken by name"),
        ("orders", "odd-name", 2, "Spark's session catalog takes only names of letters, digits and _; rename 'odd-name'"),
        ("orders", "größe", 2, "Spark's session catalog takes only names of letters, digits and _; rename 'größe'"),
        ("or ders", "counts", 2, "source.table: got "),
        ("odd-name", "counts", 1, "odd-name'; create it, or correct the name"),
    ],
)
def test_what_cannot_be_taken_by_name_is_told_before_any_work(odd_tables, source, sink, code, told):
    assert told in odd_tables.refused("run", odd_tables.spec(source=source, sink=sink), code=code)
    assert not (odd_tables.folder / "checkpoints" / "ledger").exists()


def test_a_catalog_or_database_that_is_not_there(odd_tables):
    lake = odd_tables
    path = Path(lake.spec())
    assert "only Spark's catalog knows where its tables lie" in lake.refused("run", str(path), compute="local")
    text = path.read_text()
    path.write_text(text.replace(f"table: {lake.name}.orders", "table: elsewhere.lake.orders"))
    assert "of a catalog that Spark's settings name" in lake.refused("run", str(path), code=1)
    path.write_text(text.replace(f"table: {lake.name}.order_counts", "table: nowhere.counts"))
    assert "its database cannot be found" in lake.refused("run", str(path), code=1)
