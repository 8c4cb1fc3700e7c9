"""Conditions are Spark SQL over one row, with the same answer at every run.

They have the same truth over Arrow tables and from Spark on every row of odd values, and fail on the same rows.
"""

from __future__ import annotations

import datetime
import math
import os
import random
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.jobs.condition_cases import REFUSED, ROW, TAKEN, WRITTEN
from tests.jobs.practice import PRACTICE
from tests.jobs.practice import ROWS as PRACTICE_ROWS
from tests.spark.generated_conditions import FUNCTIONS as EACH_FUNCTION
from tests.spark.generated_conditions import ROWS as GENERATED
from windowmill.jobs.conditions.casts import EXACT
from windowmill.jobs.conditions.checks import (
    CHANGING,
    LAMBDAS,
    MAKING_ROWS,
    OF_MANY_ROWS,
    OF_ONE_ROW,
    columns_of,
    condition_problem,
    parsed,
)
from windowmill.jobs.conditions.evaluated import FUNCTIONS
from windowmill.jobs.conditions.evaluator import Evaluator, step_value
from windowmill.jobs.conditions.truths import Conditions, evaluate
from windowmill.windowing.errors import SpecError, UnsupportedError

UTC = datetime.UTC
_TEXTS = ["5", " 5 ", "+5", "-7", "x", "", None, "1.5", "1e2", "NaN", "inf", "abc", "a_c", "A%", "é", str(2**63), str(2**31), "0"]
_FLOATS = [0.0, -0.0, 1.5, -1.5, 2.5, -2.5, None, math.nan, math.inf, -math.inf, 1e300, 9.3e18, -9.3e18, 0.1, 3.0, 1e-9, 2147483647.5, 5.0]
_DAYS = [None, *(datetime.datetime(2024, 3, day, day, 59, tzinfo=UTC) for day in range(1, 18))]
ROWS = pa.table(
    {
        "s": _TEXTS,
        "i": pa.array([0, 1, -1, 2, -2, 3, None, 7, -7, 2**31, -(2**31), 2**63 - 1, -(2**63), 10, 100, 5, 5, 5], pa.int64()),
        "j": pa.array([0, -1, 1, 3, None, 0, 2, 2, 2, 2, -1, 1, -1, 3, 7, 0, 5, 4], pa.int64()),
        "f": _FLOATS,
        "b": [True, False, None] * 6,
        "t": pa.array(_DAYS, pa.timestamp("us", "UTC")),
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
    *("cast(i as smallint) = 5", "cast('7' as int) = 7", "s = '5' and cast(s as int) = 5"),
    *("b and cast(s as int) > 0", "b or cast(s as int) > 0"),
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
#: What only Spark evaluates, or refuses, with a part of what is said of it.
OUTSIDE = [
    *((text, "not a Spark SQL condition") for text in ("i >", "i > 1 )", "(((")),
    *((text, "pattern") for text in (
        *(f"s rlike '{pattern}'" for pattern in ("a[b[c]]", "x{2}{3}", "\\\\G", "a++", "(?=a)", "(?<y>a)", "\\\\p{Upper}", "[a&&b]")),
        "s like 'a\\\\c'", "s regexp '(a)\\\\1'",
    )),
    *((f"{name}({given}) is null", f"{name}()") for name, given in (
        ("xxhash64", "s"), ("ln", "f"), ("exp", "f"), ("hash", "s, i"), ("md5", "s"), ("exists", "split(s, ','), x -> x > s"),
        ("from_utc_timestamp", "t, 'Europe/Paris'"), ("shiftleft", "i, 2"), ("decode", "s, 'x', 1"), ("next_day", "t, 'mon'"),
    )),
    *((f"t + interval {written} > t", "write a whole number of one unit") for written in ("'1 day 2 hours'", "'1.5' second")),
    ("cast(f as string) = '1'", "a cast to string of double"),
    ("cast(f as decimal(38, 10)) > 1", "write a decimal of at most 15 digits"),
    ("power(f, 3) > 1", "write a product"),
    ("s + s > 1", "write a cast to a number"),
    *((f"extract({part} from t) > 1", "extract() of") for part in ("weekday", "dayofyear", "weekofyear", "days")),
    ("s like u", "column 'u'"),
    ("s like ('x', 'y')", "('x', 'y')"),
    ("s like s", "no constant text"),
    ("i = b", "write a cast of one of them"),
    ("i > 12345678901234567890", "a comparison of bigint with 12345678901234567890"),
    ("s", "a condition that is a value of string"),
    ("i + 1", "a condition that is a value of bigint"),
    ("x.y > 1", "column 'x'"),
    ("s.y > 1", "field 'y' of string"),
    ("t + 1 > t", "a sum or difference (+) of timestamp and int"),
    *((f"{call} > 1", "arguments") for call in ("nvl(i)", "ifnull(i, j, i)")),
    ("date_add(t, 3000000000) > t", "a number of days"),
    ("case when null then b else b end", "write false"),
    *((text, "arithmetic (/) of a decimal and CAST(3 AS") for text in ("2.5 / 3L > i", "cast(3 as int) / 2.5 > i", "2.5 / (-3S) > i")),
    ("session.f(s)", "follows a dot"),
    ("date_format(t, 'w') = '1'", "write parts such as yyyy"),
    ("array(i, j)[0] > 1", "ARRAY"),
    *((f"concat_ws({given}) = ''", "concat_ws()") for given in ("split(s, 'x'), s", "'-', split(s, 'x')")),
]  # fmt: skip


@pytest.mark.parametrize(("condition", "why"), OUTSIDE, ids=[text[:40] for text, _ in OUTSIDE])
def test_what_is_outside_is_refused_in_one_line(condition, why):
    with pytest.raises((UnsupportedError, SpecError)) as refused:
        evaluate([condition], ROWS)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


def test_conditions_as_people_write_them_are_inside():
    found = Conditions.of(PRACTICE, dict(zip(PRACTICE_ROWS.schema.names, PRACTICE_ROWS.schema.types, strict=True)))
    assert len(PRACTICE) >= 200
    assert len(found.outside) <= 0.05 * len(PRACTICE), found.outside


def test_every_function_is_one_of_one_row_and_on_the_page():
    assert FUNCTIONS.keys() - {"timestampadd", "timestampdiff"} <= OF_ONE_ROW
    page = (Path(__file__).parents[2] / "docs" / "semantics.md").read_text()
    listed = page.partition("- these functions:\n\n")[2].partition("\n\n")[0]
    assert re.findall(r"`(\w+)`", listed) == sorted(FUNCTIONS)


def test_it_is_known_beforehand_what_may_fail():
    """Over no rows, an expression has failures if it has some over rows."""
    columns = {name: GENERATED.column(name).combine_chunks() for name in GENERATED.column_names}
    empty = {name: column.slice(0, 0) for name, column in columns.items()}
    for text in EACH_FUNCTION:
        found = Evaluator(columns, GENERATED.num_rows).value(parsed(text))
        beforehand = Evaluator(empty, 0).value(parsed(text))
        assert beforehand.kind == found.kind, text
        assert found.failed is None or not found.failed.any() or beforehand.failed is not None, text


_NO_TEXT = pa.array([b"a\xff", b"\xed\xa0\x80", b"5", None]).cast(pa.string(), safe=False)
#: Columns, and for each condition whether it holds (h), fails (f) or neither (-) on each row, as a regular expression.
JUDGED: dict[str, tuple[Any, dict[str, str]]] = {
    "bytes that are no text": ({"s": _NO_TEXT}, {
        **dict.fromkeys(("contains(s, 'a')", "length(s) > 1", "substr(s, 1, 1) = 'a'", "upper(trim(s)) like 'A%'"), "h..."),
        **dict.fromkeys(("s rlike '^a.$'", "split(s, 'x')[0] > ''"), "h..."), "cast(s as int) = 5": "ffh-",
    }),
    "words for numbers": (
        {"s": ["+nan", "-nan", "nan", "+inf", "-Infinity", " NaN ", "1d", "infd"]}, {"cast(s as double) is not null": "ffhhhhhf"},
    ),
    "long numbers": ({"i": [2**53, 2**53 + 1, 0]}, {"i = cast(9007199254740993.0 as bigint)": "-h-"}),
    "fewer digits than the format": (
        {"s": [f"2024-01-02 03:04:05.{digits}" for digits in ("5", "05", "123", "1234", "")]},
        {"to_timestamp(s, 'yyyy-MM-dd HH:mm:ss.SSS') > '2024-01-02 03:04:05.1'": "h-hff"},
    ),
    "letters of either case": (
        {"s": ["2024-01-02T03", "2024-01-02t03", "2024-01-02 03"]}, {"hour(try_to_timestamp(s, \"yyyy-MM-dd'T'HH\")) = 3": "hh-"},
    ),
    "overflow at the width of the type": (
        {"b": pa.array([100], pa.int8()), "i": pa.array([2**31 - 1], pa.int32()), "l": [2**63 - 1]},
        dict.fromkeys(("b * 1 > 0", "i + 1L > 0", "-b < 0"), "h")
        | dict.fromkeys(("b + b > 0", "i + 1 > 0", "l + 1 > 0", "cast(l as int) > 0", "i * i > 0"), "f"),
    ),
    "failures that are not reached": (ROWS, {"s = '5' and cast(s as int) = 5": "h[^f]*", "cast(s as int) > 4": "hhh-ff-f{10}-"}),
}  # fmt: skip


@pytest.mark.parametrize("case", JUDGED)
def test_a_condition_holds_and_fails_as_on_spark(case):
    rows, wanted = JUDGED[case]
    for text, truth in evaluate([*wanted], pa.table(rows)).items():
        judged = zip(truth.holds.to_pylist(), truth.failed.to_pylist(), strict=True)
        found = "".join("f" if failed else "h" if holds else "-" for holds, failed in judged)
        assert re.fullmatch(wanted[text], found), (text, found)


def test_single_precision_is_not_computed_in_double():
    found = evaluate(["g * g > 1e39", "g + g = 0.2", "g * 3 > 0.3D"], ODD_ROWS)
    assert [truth.holds.to_pylist().count(True) for truth in found.values()] == [3, 0, 7]


@pytest.mark.parametrize("digits", [6, 20, 38])
def test_quotients_of_decimals_are_rounded_as_by_long_division(digits):
    rng = random.Random(digits)
    for _ in range(150):
        one, other = (pa.decimal128(total := rng.randint(1, digits), rng.randint(0, min(total, 8))) for _ in range(2))
        pairs = [tuple(_decimal_of(rng, kind) for kind in (one, other)) for _ in range(20)]
        pairs += [(a, Decimal(rng.choice([1, 3, 8])).scaleb(-other.scale)) for a, _ in pairs]  # ties, and periods
        columns = {"a": pa.array([a for a, _ in pairs], one), "b": pa.array([b for _, b in pairs], other)}
        found = step_value("a / b", columns, len(pairs), is_filter=False)
        failed = [False] * len(pairs) if found.failed is None else found.failed.tolist()
        for (a, b), value, fails in zip(pairs, found.array.to_pylist(), failed, strict=True):
            assert value == _quotient(a, b, found.kind)
            assert fails == (a is not None and b is not None and value is None)


def _decimal_of(rng: random.Random, kind: pa.DataType) -> Decimal | None:
    size = 10 ** rng.randint(0, kind.precision)
    return rng.choice([None, Decimal(0), *[Decimal(rng.randrange(-size + 1, size)).scaleb(-kind.scale, EXACT)] * 8])


def _quotient(a: Decimal | None, b: Decimal | None, kind: pa.DataType) -> Decimal | None:
    """Rounded half up to 38 digits behind the point, and then to those of ``kind``, by whole numbers; null where it has too many digits."""
    if a is None or not b:
        return None
    shift = 38 - a.as_tuple().exponent * -1 + b.as_tuple().exponent * -1
    top, bottom = abs(int(a.scaleb(-a.as_tuple().exponent, EXACT))), abs(int(b.scaleb(-b.as_tuple().exponent, EXACT)))
    top, bottom = (top * 10**shift, bottom) if shift >= 0 else (top, bottom * 10**-shift)
    places = (2 * top + bottom) // (2 * bottom)
    unit = 10 ** (38 - kind.scale)
    places = (2 * places + unit) // (2 * unit)
    if places >= 10**kind.precision:
        return None
    return Decimal(places if (a < 0) == (b < 0) else -places).scaleb(-kind.scale, EXACT)


def test_instants_are_those_of_utc_in_every_zone_of_the_machine():
    code = """
import pyarrow as pa
from windowmill.jobs.conditions.truths import evaluate
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


@pytest.mark.spark
@pytest.mark.parametrize(("conditions", "rows"), [(COMMON, ROWS), (ODD, ODD_ROWS)], ids=["common", "odd"])
def test_spark_agrees_on_every_row(spark, conditions, rows):
    """What Spark makes of the condition where it has the rows: by itself, or in tasks of Python."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema

    from windowmill.jobs.sources.spark_files import judged

    types = dict(zip(rows.schema.names, rows.schema.types, strict=True))
    numbered = rows.append_column("n", pa.array(range(rows.num_rows)))
    frame = spark.createDataFrame(numbered, from_arrow_schema(numbered.schema, prefer_timestamp_ntz=True)).coalesce(1)
    columns = []
    for n, condition in enumerate(conditions):
        holds, failed = judged(condition, types)
        columns += [F.coalesce(holds, F.lit(False)).alias(f"h{n}"), (F.lit(False) if failed is None else failed).alias(f"f{n}")]
    found = frame.select("n", *columns).toArrow().sort_by("n")
    ours = evaluate(conditions, rows)
    differing = []
    for n, condition in enumerate(conditions):
        mine = list(zip(ours[condition].holds.to_pylist(), ours[condition].failed.to_pylist(), strict=True))
        theirs = list(zip(found[f"h{n}"].to_pylist(), found[f"f{n}"].to_pylist(), strict=True))
        differing += [(condition, row, one, other) for row, (one, other) in enumerate(zip(mine, theirs, strict=True)) if one != other]
    assert differing == [], differing


@pytest.mark.parametrize(
    ("condition", "columns"),
    [
        ("address.city = 'x' and v.a.b > w", {"address", "v", "w"}),
        ("exists(items, X -> x.price > v and exists(X.parts, y -> Y > x.price))", {"items", "v"}),
    ],
    ids=["fields", "parameters of lambdas"],
)
def test_a_condition_reads_the_columns_that_hold_its_fields(condition, columns):
    assert columns_of(condition) == columns


# -- What is a condition


@pytest.mark.parametrize("text", TAKEN)
def test_a_condition_over_a_row_is_taken(text):
    assert condition_problem(text) is None


@pytest.mark.parametrize(("text", "problem"), REFUSED)
def test_anything_else_is_refused(text, problem):
    assert problem in (condition_problem(text) or "")


@pytest.mark.spark
@pytest.mark.classic
def test_what_is_taken_is_known_to_spark(spark):
    from pyspark.errors import AnalysisException, ParseException

    taken, row = [text for text in WRITTEN if condition_problem(text) is None], spark.sql(ROW)
    assert len(taken) > 150
    unknown = []
    for text in taken:
        try:
            row.where(text)
        except ParseException as err:
            unknown.append((text, str(err)[:80]))
        except AnalysisException as err:
            # That a type or a column does not fit is not known without the columns.
            fits = ("DATATYPE_MISMATCH", "UNRESOLVED_COLUMN", "FIELD", "WRONG_NUM_ARGS", "INVALID_EXTRACT")
            if not (err.getCondition() or "").startswith(fits):
                unknown.append((text, str(err)[:80]))
    assert unknown == []


@pytest.mark.spark
@pytest.mark.classic
def test_functions_are_those_of_sparks_registry(spark):
    registry = spark._jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()
    found, names = {}, registry.listFunction().iterator()
    while names.hasNext():
        name = names.next()
        found[name.funcName()] = registry.lookupFunction(name).get().getGroup()
    unloaded = {"from_avro", "to_avro", "schema_of_avro", "from_protobuf", "to_protobuf"}
    of_times = {name for name in found if name.startswith("time_") or name in ("time", "make_time", "to_time", "try_to_time")}
    words = {name for name in found if name.isidentifier()} - unloaded - (of_times - {"time_bucket"})
    assert words - CHANGING - OF_MANY_ROWS - MAKING_ROWS == OF_ONE_ROW
    assert {name for name, group in found.items() if group in ("agg_funcs", "window_funcs") or name.endswith("_agg")} <= OF_MANY_ROWS
    assert {name for name, group in found.items() if group == "generator_funcs"} <= MAKING_ROWS
    assert not OF_ONE_ROW & (CHANGING | OF_MANY_ROWS | MAKING_ROWS)
    assert LAMBDAS.keys() == {name for name, group in found.items() if group == "lambda_funcs"}


def test_nothing_is_written_on_the_way(capfd):
    for text in ("drop table x", "set x = 1", "alter session set x", "call f()", "show tables", "analyze table t compute statistics"):
        assert condition_problem(text)
    assert capfd.readouterr() == ("", "")
