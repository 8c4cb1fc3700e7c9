"""The queries of Nexmark: by ``aggregate`` and by runs of their pipelines, against plain SQL over all bids in DuckDB."""

from __future__ import annotations

from datetime import timedelta

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as F

from examples.nexmark.bids import SCHEMA, Bids
from examples.nexmark.queries import FOLDER, QUERIES
from tests.spark.harness import quiet
from windowmill import aggregate
from windowmill.jobs.batch import loop
from windowmill.windowing.specfile import load_pipeline

pytestmark = pytest.mark.spark

#: A slow stream: no two bids of one millisecond, which one would be the last is then not open; 200 seconds, over midnight.
RATE, EVENTS = 100, 20_000
COUNTS = """count(*) total_bids, count_if(price < 10000) rank1_bids, count_if(price >= 10000 AND price < 1000000) rank2_bids,
    count_if(price >= 1000000) rank3_bids"""
DISTINCT = ", ".join(
    f"count(DISTINCT {what}){f' FILTER ({where})' if where else ''} {rank}_{what}s"
    for what in ("bidder", "auction")
    for rank, where in (
        ("total", ""),
        ("rank1", "price < 10000"),
        ("rank2", "price >= 10000 AND price < 1000000"),
        ("rank3", "price >= 1000000"),
    )
)
#: Plain SQL over the view ``bids`` with the column ``us``, its time in microseconds.
SQL = {
    "q5": """WITH ends AS (SELECT unnest(range((SELECT min(us) // 2000000 FROM bids) + 1, (SELECT max(us) // 2000000 FROM bids) + 6)) AS n),
        counts AS (SELECT n * 2000000 AS window_end, auction, count(*) AS num FROM ends JOIN bids
            ON us >= n * 2000000 - 10000000 AND us < n * 2000000 GROUP BY ALL)
        SELECT * FROM counts QUALIFY num = max(num) OVER (PARTITION BY window_end)""",
    "q7": """SELECT (us // 10000000 + 1) * 10000000 AS window_end, auction, bidder, price, us AS bid_at, extra FROM bids
        QUALIFY price = max(price) OVER (PARTITION BY us // 10000000)""",
    "q11": """WITH begun AS (SELECT *, us - lag(us, 1, -99000000) OVER w > 10000000 AS first FROM bids
            WINDOW w AS (PARTITION BY bidder ORDER BY us)),
        numbered AS (SELECT *, sum(first::int) OVER (PARTITION BY bidder ORDER BY us) AS session FROM begun)
        SELECT bidder, min(us) AS window_start, max(us) + 10000000 AS window_end, count(*) AS bid_count FROM numbered
        GROUP BY bidder, session""",
    "q15": f"SELECT strftime(make_timestamp(us), '%Y-%m-%d') AS day, {COUNTS}, {DISTINCT} FROM bids GROUP BY 1",
    "q16": f"""SELECT channel, strftime(make_timestamp(us), '%Y-%m-%d') AS day, max(strftime(make_timestamp(us), '%H:%M')) AS minute,
        {COUNTS}, {DISTINCT} FROM bids GROUP BY 1, 2""",
    "q17": f"""SELECT auction, strftime(make_timestamp(us), '%Y-%m-%d') AS day, {COUNTS}, min(price) AS min_price, max(price) AS max_price,
        sum(price) // count(*) AS avg_price, sum(price) AS sum_price FROM bids GROUP BY 1, 2""",
    "q18": """SELECT bidder, auction, us AS bid_at, price, channel, url, extra FROM bids
        QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY us DESC) = 1""",
}


@pytest.fixture(scope="module")
def bids():
    return pa.concat_tables(Bids(RATE).between(0, EVENTS)).combine_chunks()


def _wanted(bids, sql):
    events = bids.set_column(5, "us", bids.column("dateTime").cast(pa.int64()))
    with duckdb.connect() as connection:
        connection.register("bids", events)
        found = connection.execute(sql)
        names = [column[0] for column in found.description]
        return sorted(tuple(int(value) if not isinstance(value, str) else value for value in row) for row in found.fetchall()), names


def _rows(frame, names):
    table = frame.toArrow().select(names)
    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in table.columns]
    return sorted(zip(*(column.to_pylist() for column in columns), strict=True))


def _runs(name, bids, folder, versions):
    """Land the bids in so many versions with a run after each, and then one of long after, which completes every window before it."""
    pipeline = load_pipeline(FOLDER / f"{name}.yaml", {"WAREHOUSE": str(folder)})
    last = bids.slice(len(bids) - 1)
    instant = pa.array([last.column("dateTime")[0].as_py() + timedelta(days=3)], SCHEMA.field("dateTime").type)
    after = last.set_column(5, SCHEMA.field("dateTime"), instant)
    for number in range(versions):
        begin, end = (len(bids) * cut // versions for cut in (number, number + 1))
        write_deltalake(folder / "bids", bids.slice(begin, end - begin), mode="append")
        loop.run(pipeline, quiet())
    write_deltalake(folder / "bids", after, mode="append")
    loop.run(pipeline, quiet())
    return str(folder / name)


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_answers_are_those_of_plain_sql(spark, tmp_path, monkeypatch, bids, query):
    wanted, names = _wanted(bids, SQL[query.name])
    assert sorted(names) == sorted((*query.key, *query.values))
    assert wanted
    windows = aggregate(spark.createDataFrame(bids).repartition(3), query.pipeline(tmp_path))
    assert _rows(query.answer(windows), names) == wanted
    changes = query.changelog(windows)
    if query.changes is not None:
        assert changes.count() > len(wanted)
        last = F.max_by(F.struct(*query.values), "trigger").alias("last")
        changes = changes.groupBy(*query.key).agg(last).select(*query.key, "last.*")
    assert _rows(changes, names) == wanted
    for versions, compute in ((1, "spark"), (3, "local")):
        monkeypatch.setenv("WINDOWMILL_COMPUTE", compute)
        sink = _runs(query.name, bids, tmp_path / f"in {versions}", versions)
        assert _rows(query.answer(spark.read.format("delta").load(sink)), names) == wanted, f"{versions} batches"


def test_the_day_so_far_every_minute(tmp_path, bids):
    pipeline = load_pipeline(FOLDER / "q15_by_minute.yaml", {"WAREHOUSE": str(tmp_path)})
    for number in range(4):
        write_deltalake(tmp_path / "bids", bids.slice(number * len(bids) // 4, len(bids) // 4), mode="append")
        loop.run(pipeline, quiet())
    table = DeltaTable(str(tmp_path / "q15_by_minute")).to_pyarrow_table()
    start, end = (table.column(name).cast(pa.int64()).to_pylist() for name in ("window_start", "window_end"))
    columns = QUERIES["q15"].values
    found = dict(zip(zip(start, end, strict=True), zip(*(table.column(name).to_pylist() for name in columns), strict=True), strict=True))
    assert len(found) == 3
    for (first, stop), values in found.items():
        [wanted], _ = _wanted(bids, f"SELECT {COUNTS}, {DISTINCT} FROM bids WHERE us >= {first} AND us < {stop}")
        assert values == wanted
