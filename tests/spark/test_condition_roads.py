"""Generated conditions over rows of every type: DuckDB, windowmill's SQL in Spark and Spark itself say the same of every row."""

from __future__ import annotations

import os

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from tests.spark.both_roads import FAILS, by_duckdb, by_our_sql, by_spark
from tests.spark.generated_conditions import ROWS, Grammar
from windowmill.jobs.conditions.checks import condition_problem
from windowmill.jobs.spark.access import access_to

pytestmark = [pytest.mark.spark, pytest.mark.classic]

COUNT, SEED = int(os.environ.get("WINDOWMILL_CONDITIONS", "200")), int(os.environ.get("WINDOWMILL_CONDITIONS_SEED", "1"))
#: What led to a difference once.
FOUND = [
    *("cast(s as double) = 5", "isnan(cast(s as double))", "isnan(try_cast(s as double))", "cast(s as double) is not null", "s > 1.5D"),
    *("i = cast(9007199254740993.0 as bigint)", "f = 9007199254740993.0", "i = 9007199254740993.0", "try_cast(1e30 as bigint) is null"),
    *("cast(null as bigint) = i", "i > cast(-2.5 as int)", "f < 123456789012345678901234567890.5", "cast(- -1.5 as bigint) = 1"),
    *("hour(t) < 4", "hour(m) < 4", "year(t) = 2024", "t > '2024-03-10'", "m >= '2024-03-10 02:30'", "t = m", "dayofweek(m) = 1"),
    *("try_cast('x' as int) is null", "quarter(t) = 1 and minute(m) > 0", "dayofyear(t) > 60"),
]
#: What Spark alone evaluates, or refuses.
NOT_HERE = [
    *(
        "iff(i > 0, true, false)",
        "f > 1234567890123456789012345678901234567890.5",
        "i > 1234567890123456789012345678901234567890",
        "t > 'now'",
    ),
    *("case when null then b else o end", "if(null, b, o)", "b = i is null = o", "i = j < k", "o = b between o and b"),
]


@pytest.fixture(scope="module")
def frame(spark):
    return spark.createDataFrame(ROWS, from_arrow_schema(ROWS.schema, prefer_timestamp_ntz=True))


@pytest.fixture(scope="module")
def answers(spark, frame):
    """What each road says of the conditions that DuckDB evaluates."""
    drawn = [text for text in Grammar(SEED).conditions(COUNT) if condition_problem(text) is None]
    here = by_duckdb([*FOUND, *drawn], ROWS)
    assert len(here) > 0.4 * len(drawn)
    assert here.keys() >= set(FOUND)
    # Code of so many different expressions takes longer to compile than to interpret.
    with access_to(spark).interpreting():
        return here, by_our_sql(list(here), ROWS, frame), by_spark(spark, list(here), frame)


def test_duckdb_and_our_sql_agree_on_every_row(answers):
    here, ours, _ = answers
    differing = {text: _differing(here[text], ours[text]) for text in here if here[text] != ours[text]}
    assert differing == {}


def test_spark_itself_takes_them_and_agrees_where_none_fails(answers):
    here, _, sparks = answers
    differing = {}
    for text, theirs in sparks.items():
        if isinstance(theirs, str):
            differing[text] = theirs
            continue
        # Integers of 32 bits overflow sooner in Spark, and it may find null before it looks at an operand that fails.
        pairs = [(one, other) for one, other in zip(here[text], theirs, strict=True) if FAILS not in (one, other)]
        if any(one != other for one, other in pairs) and "try_cast" not in text:
            differing[text] = _differing(here[text], theirs)
    assert differing == {}


@pytest.mark.parametrize("text", NOT_HERE)
def test_what_is_left_to_spark(text):
    assert by_duckdb([text], ROWS) == {}


def _differing(one, other):
    if isinstance(one, str) or isinstance(other, str):
        return one, other
    return [(row, *pair) for row, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]][:3]
