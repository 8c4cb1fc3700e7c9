"""Conditions: the same truth from DuckDB and from Spark on every row of odd values, and the same rows on which they fail."""

from __future__ import annotations

import datetime
import math
import os
import subprocess
import sys

import pyarrow as pa
import pytest

from windowmill.jobs.conditions.duckdb import columns_of, evaluate, translated
from windowmill.windowing.errors import SpecError, UnsupportedError

UTC = datetime.UTC
ROWS = pa.table(
    {
        "s": [
            *("5", " 5 ", "+5", "-7", "x", "", None, "1.5", "1e2", "NaN", "inf", "abc", "a_c", "A%", "é", "9223372036854775808"),
            *("2147483648", "0"),
        ],
        "i": pa.array([0, 1, -1, 2, -2, 3, None, 7, -7, 2**31, -(2**31), 2**63 - 1, -(2**63), 10, 100, 5, 5, 5], pa.int64()),
        "j": pa.array([0, -1, 1, 3, None, 0, 2, 2, 2, 2, -1, 1, -1, 3, 7, 0, 5, 4], pa.int64()),
        "f": [
            *(0.0, -0.0, 1.5, -1.5, 2.5, -2.5, None, math.nan, math.inf, -math.inf, 1e300, 9.3e18, -9.3e18, 0.1, 3.0, 1e-9),
            *(2147483647.5, 5.0),
        ],
        "b": [True, False, None] * 6,
        "t": pa.array(
            [None, *(datetime.datetime(2024, 3, day, day, 59, tzinfo=UTC) for day in range(1, 18))],
            pa.timestamp("us", "UTC"),
        ),
    }
)
COMMON = [
    *("i > 2", "i = 5", "i == 5", "i <> 5", "i != 5", "i <=> j", "i <=> null", "i is null", "i is not null", "not b", "b", "b and i > 0"),
    *("b or i > 0", "not (b or i > 0)", "b = true", "b = false or b is null", "i between -2 and 5", "i not between -2 and 5"),
    *("i in (1, 2, null)", "i not in (1, 2)", "s in ('5', 'x')", "s in ('5', null)", "i > 1.5", "i = 1.0", "f > 1", "f > 1.5", "f = 0"),
    *("f = f", "f > i", "f < i", "isnan(f)", "f > 1e18", "f is null", "f in (1.5, 2.5)", "s > 'a'", "s < 'é'", "s = ''", "s >= 'A'"),
    *("i + j > 3", "i - j > 3", "i * j > 3", "i * i > 0", "i + 1 > 0", "-i > 0", "- f > 0", "abs(i) > 2", "abs(f) > 2", "f + i > 0"),
    *("f * 0.5 > 1", "i / j > 1", "i / 2 > 1", "f / i > 1", "1 / f > 0", "i % j = 1", "i % 3 = -1", "i % -1 = 0", "f % 2 > 0", "f % f = 0"),
    *("i div j > 1", "i div 2 = -3", "i div -1 > 0", "cast(s as int) > 4", "cast(s as bigint) > 4", "int(s) > 4", "s::int > 4", "s > 4"),
    *("s = 5", "cast(s as double) > 1", "s > 1.5D", "try_cast(s as int) > 4", "try_cast(s as double) is null", "cast(f as int) = 2"),
    *("cast(f as int) = -1", "cast(f as bigint) > 0", "try_cast(f as int) is null", "cast(i as int) > 0", "cast(i as double) > 0.5"),
    *(
        "cast(i as smallint) = 5",
        "cast('7' as int) = 7",
        "s = '5' and cast(s as int) = 5",
        "b and cast(s as int) > 0",
        "b or cast(s as int) > 0",
    ),
    *("case when s = 'x' then false else cast(s as int) > 4 end", "if(b, cast(s as int), 0) > 1", "coalesce(i, cast(s as int)) > 2"),
    *("coalesce(b, i > 0)", "coalesce(try_cast(s as int), -1) < 0", "nvl(i, 3) = 3", "ifnull(s, 'x') = 'x'", "nullif(i, 5) is null"),
    *("case when b then i when i > 0 then j else 1 end > 0", "length(s) = 1", "lower(substr('ABC', 1, 2)) = 'ab'", "trim(s) = '5'"),
    *("substr(s, 0, 1) = 'a'", "substr(s, 1, 1) = 'a'", "substring(s, 2) = 'bc'", "substr(s, 2, 9) = 'bc'", "substr(s, 9) = ''"),
    *("s like 'a%'", "s like '_'", "s like 'A'", "s not like '%c'", "if(s > 'a', '', 'b') rlike '^(a|b)+$'", "startswith(s, 'a')"),
    *("endswith(s, 'c')", "contains(s, '5')"),
    *("year(t) = 2024", "month(t) = 3", "day(t) > 5", "hour(t) > 5", "minute(t) = 59", "dayofweek(t) = 1", "dayofweek(t) > 4"),
    *("quarter(t) = 1",),
    *("dayofyear(t) = 70", "t > '2024-03-05'", "t > timestamp '2024-03-05 06:00:00'", "t = '2024-03-05T05:59:00Z'", "t is null", "true"),
    *("null",),
    *("ltrim(s) = '5 '", "rtrim(s) = ' 5'", "(i > 1) = (j > 1)", "f <=> f", "s <=> null", "i > -9223372036854775807", "i < 0 and j = 0"),
]
_ODD_INSTANTS = [0, -(1 << 61), 1 << 61, 1, 2**53, -(10**15), None, 5 * 10**15, 7, 8]
#: Spaces of other scripts, control characters around numbers, single precision, instants far away and without a zone.
ODD_ROWS = pa.table(
    {
        "s": ["5", "\u00a05", "5\u2003", "\t5", "5\n", "5\r\n", "5\u2028", "\x7f5\x01", "1e5\n", "5\u0085"],
        "i": pa.array([0, 1, 2, 2**63 - 1, 4, 5, None, -(2**63), 8, 9], pa.int64()),
        "q": pa.array([0, 1, 2, 2**31 - 1, 1, 5, None, -(2**31), 8, 9], pa.int32()),
        "g": pa.array([1e20, 0.1, 0.2, 0.3, 16777216.0, 3.4e38, None, math.nan, -0.0, 5e-40], pa.float32()),
        "f": [1e300, 0.1, 0.2, 1e-320, 1.5, 3.4e38, None, math.nan, 0.0, 5e-324],
        "t": pa.array(_ODD_INSTANTS, pa.int64()).cast(pa.timestamp("us", "UTC")),
        "m": pa.array([*_ODD_INSTANTS[:3], 2, *_ODD_INSTANTS[4:8], 2**63 - 1, -(2**63) + 1], pa.int64()).cast(pa.timestamp("us")),
        'odd "name': pa.array(range(10), pa.int16()),
    }
)
ODD = [
    *("trim(s) = '5'", "ltrim(s) = '5'", "rtrim(s) = '5'", "cast(s as int) = 5", "cast(s as double) > 1", "s > 4", "s in (5, 6)"),
    *("try_cast(s as int) is null", "try_cast(s as double) > 1", "i > 0.000000000000000001", "g * 3 > 0.3D", "g = 0.1", "g > '0.1'"),
    *("g * f > 0.01", "g - 0.1 = 0", "g + q = 16777217", "g = f", "abs(g) = 0.1D", "q - i > 0", '`odd "name` > 3'),
    *("hour(t) = 0", "year(t) > 1970", "t > '2024-01-01'", "t > m", "t <=> m", "quarter(m) = 1", "year(m) > 2020", "hour(m) > 3"),
    *("t is not null",),
]
NOT_COMMON = [
    "i > 0.0000000000000000001",
    *("s rlike 'a++'", "s rlike '(?i)A'", "s rlike 'x[0-9]$'", "hash(s) > 0", "weekday(t) = 1", "s ilike 'A'", "s like 'a\\\\_c'"),
    *("round(f) = 2", "substr(s, -2, 1) = 'b'", "rand() > 0.5"),
    *("i * 0.1 = 0.3", "cast(i as string) = '5'", "cast(s as boolean)", "s = true", "date(t) = '2024-03-05'", "t > 'now'"),
    *("greatest(i, j) > 1",),
    *("concat(s, 'x') = 'x'", "size(array(1)) = 1", "i & 1 = 1", "i in (select 1)", "sum(i) > 1", "exists(array(1), x -> x > 0)", "s"),
    *("i + 1",),
    *("current_timestamp() > t", "upper(s) = 'É'", "lower(s) = 'é'", "cast(s as date) = '2024-01-01'", "cast(f as float) > 1"),
    *("x.y > 1", "t + 1 > t"),
    *("iff(i > 0, true, false)", "f > 1234567890123456789012345678901234567890.5", "case when null then b else b end", "i = j < 3"),
    *("_metadata.file_path = 'x'", "s in (values 'x')", "session.f(s)", "read_text(s) = 'x'"),
]


@pytest.mark.parametrize("condition", NOT_COMMON)
def test_what_may_differ_is_refused_in_one_line(condition):
    with pytest.raises(UnsupportedError, match="use --engine spark") as refused:
        evaluate([condition], ROWS)
    assert "\n" not in str(refused.value)


def test_numbers_are_read_as_spark_reads_them():
    rows = pa.table({"s": ["+nan", "-nan", "nan", "+inf", "-Infinity", " NaN ", "1d", "infd"], "i": [2**53, 2**53 + 1, *range(6)]})
    number, whole = "cast(s as double) is not null", "i = cast(9007199254740993.0 as bigint)"
    found = evaluate([number, whole], rows)
    assert found[number].failed.to_pylist() == [True, True, False, False, False, False, False, True]
    assert found[whole].holds.to_pylist() == [False, True, *[False] * 6]


@pytest.mark.parametrize("condition", ["g * g > 1e41", "g - g = 0", "abs(g) + g > 0.3"])
def test_single_precision_is_not_computed_in_double(condition):
    with pytest.raises(UnsupportedError, match="single precision"):
        evaluate([condition], ODD_ROWS)


def test_instants_are_those_of_utc_in_every_zone_of_the_machine():
    code = """
import pyarrow as pa
from windowmill.jobs.conditions.duckdb import evaluate
rows = pa.table({"t": pa.array([0, 3_600_000_000], pa.timestamp("us", "UTC"))})
print(*(evaluate([condition], rows)[condition].holds.to_pylist() for condition in ("hour(t) = 0", "t >= '1970-01-01T01:00:00Z'")))
"""
    environment = {**os.environ, "TZ": "America/New_York"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout == "[True, False] [False, True]\n"


@pytest.mark.parametrize("condition", COMMON)
def test_a_condition_is_settled_for_every_row(condition):
    truth = evaluate([condition], ROWS)[condition]
    assert len(truth.holds) == len(truth.failed) == ROWS.num_rows
    assert not any(holds and failed for holds, failed in zip(truth.holds.to_pylist(), truth.failed.to_pylist(), strict=True))


@pytest.mark.parametrize("condition", ["i >", "i > 1 )", "((("])
def test_what_is_no_sql_is_an_error_of_the_spec(condition):
    with pytest.raises(SpecError, match="not a Spark SQL condition"):
        evaluate([condition], ROWS)


def test_a_failure_counts_only_where_it_is_reached():
    found = evaluate(["s = '5' and cast(s as int) = 5", "cast(s as int) > 4"], ROWS)
    assert not any(found["s = '5' and cast(s as int) = 5"].failed.to_pylist())
    rows = [text for text, failed in zip(ROWS["s"].to_pylist(), found["cast(s as int) > 4"].failed.to_pylist(), strict=True) if failed]
    assert rows == ["x", "", "1.5", "1e2", "NaN", "inf", "abc", "a_c", "A%", "é", "9223372036854775808", "2147483648"]


@pytest.mark.spark
@pytest.mark.parametrize(("conditions", "rows"), [(COMMON, ROWS), (ODD, ODD_ROWS)], ids=["common", "odd"])
def test_spark_agrees_on_every_row(spark, conditions, rows):
    """What translations give in Spark, what Spark makes of the condition itself where that does not fail, and what DuckDB gives."""
    from pyspark.sql import functions as F

    from windowmill.jobs.conditions.spark import failure, truth

    types = dict(zip(rows.schema.names, rows.schema.types, strict=True))
    frame = spark.createDataFrame(rows.append_column("n", pa.array(range(rows.num_rows)))).coalesce(1).cache()
    columns = []
    for n, condition in enumerate(conditions):
        failed = failure(condition, types)
        failed = F.lit(False) if failed is None else failed
        columns += [F.coalesce(truth(condition, types), F.lit(False)).alias(f"h{n}"), failed.alias(f"f{n}")]
    found = frame.select("n", *columns).orderBy("n").collect()
    ours = evaluate(conditions, rows)
    differing = []
    for n, condition in enumerate(conditions):
        mine = list(zip(ours[condition].holds.to_pylist(), ours[condition].failed.to_pylist(), strict=True))
        theirs = [(row[f"h{n}"], row[f"f{n}"]) for row in found]
        differing += [(condition, row, mine[row], theirs[row]) for row in range(rows.num_rows) if mine[row] != theirs[row]]
    assert differing == [], differing
    raw = []
    for n, condition in enumerate(conditions):
        if translated(condition, types, "spark")[0].failed is not None:
            # Spark itself fails where we say so: ask it only about the other rows.
            good = [row["n"] for row in found if not row[f"f{n}"]]
            kept = frame.where(F.col("n").isin(good)).localCheckpoint()
        else:
            kept = frame
        truths = {row.n: row.h for row in kept.select("n", F.coalesce(F.expr(condition), F.lit(False)).alias("h")).collect()}
        raw += [(condition, at, truths[at], found[at][f"h{n}"]) for at in truths if truths[at] != found[at][f"h{n}"]]
    assert raw == [], raw


def test_a_condition_on_a_field_reads_the_column_that_holds_it():
    assert columns_of("address.city = 'x' and v.a.b > w") == {"address", "v", "w"}


def test_parameters_of_lambdas_are_no_columns():
    assert columns_of("exists(items, X -> x.price > v and exists(X.parts, y -> Y > x.price))") == {"items", "v"}
