"""The queries of the Nexmark benchmark: a pipeline each, and what Spark SQL makes of its rows.

A pipeline's rows are windows. What a query says beyond them (the auction with the most bids, the name of a day) is plain SQL over the view
``windows``: :meth:`Query.answer` brings the two together.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from windowmill.windowing.specfile import load_pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from windowmill.windowing.spec import Pipeline

FOLDER = Path(__file__).parent
RANKS = ("total_bids", "rank1_bids", "rank2_bids", "rank3_bids")
DISTINCT = tuple(f"{rank}_{what}" for what in ("bidders", "auctions") for rank in ("total", "rank1", "rank2", "rank3"))
DAY = "date_format(window_start, 'yyyy-MM-dd') AS day"


@dataclass(frozen=True)
class Query:
    """A query of the benchmark.

    Attributes
    ----------
    name
        Of the query, and of its pipeline's file.
    title
        What Nexmark calls it.
    sql
        The answer's columns from the view ``windows``, the rows of the pipeline.
    key
        Columns that are unique in the answer.
    values
        The other columns of the answer, all exact: integers, texts and instants.
    changes
        SQL of the answer as a changelog, of which the row with the greatest ``trigger`` counts for each key; null if no row of the answer
        replaces another.
    """

    name: str
    title: str
    sql: str
    key: tuple[str, ...]
    values: tuple[str, ...]
    changes: str | None = None

    def pipeline(self, warehouse: str | Path) -> Pipeline:
        """The pipeline, with source and sink below ``warehouse``."""
        return load_pipeline(FOLDER / f"{self.name}.yaml", {"WAREHOUSE": str(warehouse)})

    def answer(self, windows: DataFrame) -> DataFrame:
        """The query's answer from the rows of its pipeline."""
        return windows.sparkSession.sql(self.sql, windows=windows)

    def changelog(self, windows: DataFrame) -> DataFrame:
        """The query's answer as a stream of rows: by ``changes``, where a row may replace another."""
        return windows.sparkSession.sql(self.changes or self.sql, windows=windows)


def _listed(columns: tuple[str, ...]) -> str:
    return ", ".join(columns)


QUERIES = {
    query.name: query
    for query in (
        Query(
            "q5",
            "hot items",
            """SELECT window_end, auction, num
            FROM (SELECT *, max(num) OVER (PARTITION BY window_end) AS most FROM {windows}) WHERE num = most""",
            ("window_end", "auction"),
            ("num",),
        ),
        Query(
            "q7",
            "highest bid",
            "SELECT window_end, auction, bidder, price, bid_at, extra FROM {windows}",
            ("window_end",),
            ("auction", "bidder", "price", "bid_at", "extra"),
        ),
        Query(
            "q11",
            "user sessions",
            "SELECT bidder, window_start, window_end, bid_count FROM {windows}",
            ("bidder", "window_start"),
            ("window_end", "bid_count"),
        ),
        Query(
            "q15",
            "bidding statistics",
            f"SELECT {DAY}, {_listed(RANKS)}, {_listed(DISTINCT)} FROM {{windows}}",
            ("day",),
            RANKS + DISTINCT,
        ),
        Query(
            "q16",
            "channel statistics",
            f"SELECT channel, {DAY}, date_format(last_bid, 'HH:mm') AS minute, {_listed(RANKS)}, {_listed(DISTINCT)} FROM {{windows}}",
            ("channel", "day"),
            ("minute", *RANKS, *DISTINCT),
        ),
        Query(
            "q17",
            "auction statistics",
            f"""SELECT auction, {DAY}, {_listed(RANKS)}, min_price, max_price, sum_price DIV total_bids AS avg_price, sum_price
            FROM {{windows}}""",
            ("auction", "day"),
            (*RANKS, "min_price", "max_price", "avg_price", "sum_price"),
        ),
        Query(
            "q18",
            "last bid",
            """SELECT bidder, auction, last.* EXCEPT (trigger)
            FROM (SELECT bidder, auction, max(struct(trigger, bid_at, price, channel, url, extra)) AS last FROM {windows}
                  GROUP BY bidder, auction)""",
            ("bidder", "auction"),
            ("bid_at", "price", "channel", "url", "extra"),
            "SELECT bidder, auction, trigger, bid_at, price, channel, url, extra FROM {windows}",
        ),
    )
}
