"""The queries of Nexmark in Flink SQL, streaming: a bounded Parquet source, the watermark 4 seconds behind, a changelog to ``blackhole``.

Mini-batches of 2 seconds or 50,000 rows, and distinct counts split in two steps, are what Nexmark's own configuration asks for.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from pyflink.table import EnvironmentSettings, TableEnvironment

from benchmarks.flink_ways import SETTINGS

MINI_BATCHES = {
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
}
BIDS = """CREATE TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, `dateTime` TIMESTAMP(3), extra STRING,
    WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '4' SECOND)
    WITH ('connector' = 'filesystem', 'path' = 'file://{path}', 'format' = 'parquet', 'parquet.utc-timezone' = 'true')"""
LEVELS = {"rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000", "rank3": "price >= 1000000"}
DAY = "DATE_FORMAT(`dateTime`, 'yyyy-MM-dd')"


def _by_level(what: str, counted: str) -> str:
    """A count over all bids, and over those of each level of price."""
    total = f"COUNT({counted}) AS total_{what}"
    return ", ".join([total, *(f"COUNT({counted}) FILTER (WHERE {where}) AS {level}_{what}" for level, where in LEVELS.items())])


COUNTS = _by_level("bids", "*")
DISTINCT = f"{_by_level('bidders', 'DISTINCT bidder')}, {_by_level('auctions', 'DISTINCT auction')}"
HOPS = "TABLE(HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))"
TENS = "TABLE(TUMBLE(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))"
PER_AUCTION = f"SELECT auction, COUNT(*) AS num, window_start, window_end FROM {HOPS} GROUP BY auction, window_start, window_end"
QUERIES = {
    "q5": f"""SELECT a.window_end, a.auction, a.num FROM ({PER_AUCTION}) a
        JOIN (SELECT MAX(num) AS most, window_start, window_end FROM ({PER_AUCTION}) GROUP BY window_start, window_end) m
        ON a.window_start = m.window_start AND a.window_end = m.window_end AND a.num = m.most""",
    "q7": f"""SELECT b.window_end, b.auction, b.bidder, b.price, b.`dateTime` AS bid_at, b.extra FROM (SELECT * FROM {TENS}) b
        JOIN (SELECT MAX(price) AS top, window_start, window_end FROM {TENS} GROUP BY window_start, window_end) m
        ON b.window_start = m.window_start AND b.window_end = m.window_end AND b.price = m.top""",
    "q11": """SELECT bidder, window_start, window_end, COUNT(*) AS bid_count
        FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end""",
    "q15": f"SELECT {DAY} AS `day`, {COUNTS}, {DISTINCT} FROM bid GROUP BY {DAY}",
    "q16": f"""SELECT channel, {DAY} AS `day`, MAX(DATE_FORMAT(`dateTime`, 'HH:mm')) AS `minute`, {COUNTS}, {DISTINCT}
        FROM bid GROUP BY channel, {DAY}""",
    "q17": f"""SELECT auction, {DAY} AS `day`, {COUNTS}, MIN(price) AS min_price, MAX(price) AS max_price, AVG(price) AS avg_price,
        SUM(price) AS sum_price FROM bid GROUP BY auction, {DAY}""",
    "q18": """SELECT bidder, auction, `dateTime` AS bid_at, price, channel, url, extra
        FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY `dateTime` DESC) AS place FROM bid) WHERE place = 1""",
}
#: Queries whose rows change as bids come; the others give each row once.
CHANGING = ("q15", "q16", "q17", "q18")


class Query:
    """A query over the bids of the task."""

    def __init__(self, task: dict[str, Any], *, name: str) -> None:
        self._name = name
        self._tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
        for key, value in (SETTINGS | MINI_BATCHES).items():
            self._tables.get_config().set(key, value)
        self._tables.execute_sql(BIDS.format(path=task["bids"]))
        self._tables.execute_sql(f"CREATE TEMPORARY VIEW answer AS {QUERIES[name]}")

    def run(self) -> None:
        self._into("answer", "'connector' = 'blackhole'")

    def write(self, path: str) -> None:
        """The rows, those that change as a changelog with the column ``op``."""
        self._tables.execute_sql("CREATE TEMPORARY VIEW changes AS SELECT * FROM TO_CHANGELOG(input => TABLE answer)")
        source = "changes" if self._name in CHANGING else "answer"
        self._into(source, f"'connector' = 'filesystem', 'path' = 'file://{path}', 'format' = 'parquet', 'parquet.utc-timezone' = 'true'")

    def _into(self, source: str, options: str) -> None:
        schema = self._tables.from_path(source).get_schema()
        columns = zip(schema.get_field_names(), schema.get_field_data_types(), strict=True)
        declared = ", ".join(f"`{name}` {_declared(kind)}" for name, kind in columns)
        self._tables.execute_sql(f"CREATE TEMPORARY TABLE target ({declared}) WITH ({options})")
        try:
            self._tables.execute_sql(f"INSERT INTO target SELECT * FROM {source}").wait()
        finally:
            self._tables.execute_sql("DROP TEMPORARY TABLE target")


def _declared(kind: Any) -> str:
    """A column's type in SQL, which may be null; an instant without its role as event time."""
    text = str(kind.__class__.__name__)
    return {"BigIntType": "BIGINT", "VarCharType": "STRING", "TimestampType": "TIMESTAMP(3)"}[text]


WAYS = {f"flink {name}": partial(Query, name=name) for name in QUERIES}
