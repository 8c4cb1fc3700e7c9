"""``aggregate`` in sessions of any time zone: the rows of a session in UTC, whenever they are evaluated."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema

from tests.conftest import OVER_CONNECT
from windowmill import aggregate
from windowmill.jobs.conditions.truths import outside_problem
from windowmill.jobs.sources.columns import Columns

pytestmark = pytest.mark.spark

ZONE = "spark.sql.session.timeZone"
#: Every 20 minutes of the days around the hour that New York skips, and around midnight in other zones.
_TIMES = [datetime(2024, 3, 9, 20, tzinfo=UTC) + timedelta(minutes=20 * n) for n in range(100)]
_US = [None, *(int(time.timestamp()) * 1_000_000 for time in _TIMES)]
_ROWS = pa.table(
    {
        "k": pa.array([n % 3 for n in range(101)], pa.int64()),
        "n": pa.array(range(101), pa.int64()),
        "at": pa.array(_US, pa.timestamp("us", "UTC")),
        "local": pa.array(_US, pa.timestamp("us")),
        # Both are 03:30 in New York, which skips an hour.
        "shift": pa.array([datetime(2024, 3, 10, 2 + n % 2, 30) for n in range(101)], pa.timestamp("us")),  # noqa: DTZ001
        "day": pa.array([None, *(time.date() for time in _TIMES)], pa.date32()),
        "text": pa.array([None, *(f"{time:%Y-%m-%d %H:%M}" for time in _TIMES)]),
        "zoned": pa.array([None, *(f"{time:%Y-%m-%dT%H:%M}Z" for time in _TIMES)]),
    }
)
_SLICES = [{"name": "w", "type": "hopping", "size": "2 hours", "hop": "1 hour"}]
#: Of all ways.
_WINDOWS = [
    *_SLICES,
    {"name": "sessions", "type": "session", "gap": "30 minutes"},
    {"name": "last", "type": "sliding", "evict": {"count": 5}, "trigger": {"count": 2}},
    {"name": "spans", "type": "snapshot"},
]
#: Conditions that windowmill translates, and such that only Spark evaluates.
_COMMON = [
    *("hour(at) < 4", "at >= '2024-03-10'", "hour(local) < 4", "local < '2024-03-10 02:30:00'", "day(at) = 10 and minute(at) = 40"),
    *("at = local",),
]
_SPARKS = [
    "date_format(at, 'EEE HH') < 'Sun 04'",
    "dayname(at) = 'Sun'",
    "make_timestamp(2024, 3, 10, 1, 30, 0) < at",
    "day > at and size(array(k)) = 1",
]


def _frame(spark):
    return spark.createDataFrame(_ROWS, from_arrow_schema(_ROWS.schema, prefer_timestamp_ntz=True)).coalesce(1)


def _spec(time="at", conditions=(), keys=("k",), values=("n",), windows=_WINDOWS):
    counts = {f"c{number}": {"count": "*", "where": condition} for number, condition in enumerate(conditions)}
    greatest = {f"max_{value}": {"max": value} for value in values}
    return {
        "pipeline": "p",
        "keys": list(keys),
        "time": {"column": time, "tie_break": ["n"]},
        "windows": windows,
        "aggregates": {"n": {"count": "*"}} | greatest | counts,
    }


def test_only_spark_evaluates_them():
    types = Columns.of_arrow(_ROWS.schema).in_conditions
    assert all(outside_problem(condition, types) for condition in _SPARKS)
    assert not any(outside_problem(condition, types) for condition in _COMMON)


def _rows(frame):
    return sorted(map(repr, frame.toArrow().to_pylist()))


@pytest.fixture
def zone(spark):
    before = spark.conf.get(ZONE)
    yield lambda name: spark.conf.set(ZONE, name)
    spark.conf.set(ZONE, before)


_SPECS = {
    **{time: _spec(time) for time in ("local", "text")},
    **{time: _spec(time, windows=_SLICES) for time in ("zoned", "day")},
    "conditions": _spec(conditions=_COMMON),
    "keys and values": _spec(keys=["day", "shift"], values=["local", "at"]),
}


@pytest.mark.parametrize("name", _SPECS)
def test_rows_are_those_of_utc(spark, zone, name):
    want = _rows(aggregate(_frame(spark), _SPECS[name]))
    assert len(want) > 2
    frame = _frame(spark)
    zone("America/New_York")
    result = aggregate(frame, _SPECS[name])
    assert spark.conf.get(ZONE) == "America/New_York"
    assert _rows(result) == want
    zone("Pacific/Apia")
    assert _rows(result) == want, "evaluated later, in another zone"


@pytest.mark.classic
@pytest.mark.parametrize("arrival", [None, "n"])
def test_conditions_that_only_spark_evaluates_take_utc(spark, zone, arrival):
    spec = _spec(conditions=_SPARKS)
    want = _rows(aggregate(_frame(spark), spec, arrival=arrival))
    frame = _frame(spark)
    zone("America/New_York")
    result = aggregate(frame, spec, arrival=arrival)
    assert result.sparkSession is spark
    assert spark.conf.get(ZONE) == "America/New_York"
    assert _rows(result) == want
    zone("Asia/Tokyo")
    assert _rows(result.union(result).distinct()) == want


@pytest.mark.skipif(not OVER_CONNECT, reason="a classic session analyzes the plan once")
def test_a_server_refuses_conditions_that_only_it_evaluates_in_another_zone(spark, zone):
    spec = _spec(conditions=_SPARKS, windows=_SLICES)
    want = _rows(aggregate(_frame(spark), spec))
    zone("America/New_York")
    result = aggregate(_frame(spark), spec)
    with pytest.raises(PySparkException, match=r"set spark\.sql\.session\.timeZone to UTC before the result"):
        result.collect()
    zone("UTC")
    assert _rows(result) == want


@pytest.mark.classic
def test_what_the_input_computes_keeps_the_zone_of_its_session(spark, zone):
    zone("America/New_York")
    frame = _frame(spark).selectExpr("hour(at) AS n", "k", "at", "local")
    result = aggregate(frame, _spec(conditions=_SPARKS[:1], windows=_SLICES))
    hours = {row.window_end: row.max_n for row in result.where("k = 1").collect()}
    zone("UTC")
    utc = {row.window_end: row.max_n for row in aggregate(frame, _spec(windows=_SLICES)).where("k = 1").collect()}
    assert hours == utc
    assert max(hours.values()) == 23
