"""Conditions are Spark SQL over one row, with the same answer at every run."""

from __future__ import annotations

import pytest

from windowmill.jobs.conditions.checks import condition_problem


@pytest.mark.parametrize(
    "text",
    [
        "v > 1", "a = 'x' and b is not null", "t.v > 1", "v between 1 and 3", "v in (1, 2)", "not flag", "flag", "true", "`a b` > 1",
        "case when v > 1 then true else false end", "exists(arr, x -> x > 1)", "v rlike '^a'", "try_cast(v as int) > 1", "v % 2 = 0",
        "date_sub(d, 1) > '2020-01-01'", "coalesce(v, 0) > 1", "array_contains(a, 1)", "month(t) = 2", "v <=> 1", "m['x'] > 1",
        "t >= timestamp '2013-01-01'", "size(filter(a, x -> x > 1)) > 0", "if(v > 1, true, false)", "unix_timestamp(t) > 1",
        "s = 'now()'", "hash(k) % 10 = 0", "greatest(a, b) > 1", "s ilike 'a%'", "v > 1 -- as agreed", "user = 'x'",
        "aggregate(a, 0, (acc, x) -> acc + x) > 1", "get_json_object(j, '$.a') = '1'", "v >\n  1",
    ],
)  # fmt: skip
def test_a_condition_over_a_row_is_taken(text):
    assert condition_problem(text) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "got a blank"),
        (" \n", "got a blank"),
        ("-- nothing", "nothing but a comment"),
        ("v >", "something is missing near line 1, character 3"),
        ("v between 1 and", "something is missing"),
        ("a b", "two names stand side by side"),
        ("v as w", "two names stand side by side"),
        ("'open", "not a Spark SQL condition"),
        ("v > 1)", "not a Spark SQL condition"),
        ("v, w", "not a Spark SQL condition"),
        ("a; b", "without a semicolon"),
        ("1", "a value stands"),
        ("-1", "a value stands"),
        ("null", "a value stands"),
        ("*", "a statement or a list stands"),
        ("(v, w)", "a statement or a list stands"),
        ("drop table x", "a statement or a list stands"),
        ("set x = 1", "a statement or a list stands"),
        ("insert into t values (1)", "a statement or a list stands"),
        ("v > 1\0", "cannot be printed"),
        ("v > 1 or " * 2_000 + "true", "at most 10000"),
        ("(" * 3_000 + "v" + ")" * 3_000 + " > 1", "too deep"),
        (":x > 1", "a parameter is never given"),
        ("? > 1", "a parameter is never given"),
        ("@x > 1", "a parameter is never given"),
        *((text, "has no") for text in ("select 1", "with x as (select 1) select * from x", "v > 1 union select 2")),
        *((text, "subquery") for text in ("v in (select 1)", "exists(select 1)", "(select max(v) from t) > v")),
        *((f"{name}(v) > 1", "needs many rows") for name in (
            "sum", "avg", "count", "min", "max", "first", "last", "stddev", "percentile", "approx_count_distinct", "count_if", "mode",
            "collect_list", "any_value", "bool_and", "every", "some", "any", "lag", "lead", "ntile", "try_sum", "max_by", "regr_count",
            "listagg", "bit_and", "kurtosis",
        )),
        *((f"{name}() > 1", "needs many rows") for name in ("row_number", "rank", "dense_rank", "cume_dist", "percent_rank")),
        ("stack(1, v)", "several rows of one"),
        ("sum(v) over () > 1", "a window function"),
        ("row_number() over (order by v) = 1", "a window function"),
        *((f"{name}(a)", "several rows of one") for name in ("explode", "posexplode", "inline", "explode_outer")),
        *((f"{name}() = v", "another answer at each run") for name in (
            "rand", "randn", "random", "uuid", "now", "current_timestamp", "current_date", "curdate", "localtimestamp", "current_user",
            "session_user", "user", "current_database", "current_catalog", "current_timezone", "monotonically_increasing_id",
            "input_file_name", "spark_partition_id", "version", "unix_timestamp", "RAND", "Now", "reflect", "java_method",
        )),
        ("current_timestamp > t", "another answer at each run"),
        ("current_date > d", "another answer at each run"),
        ("shuffle(a)[0] = 1", "another answer at each run"),
        ("v > 1 and (w < 2 or rand() < 0.5)", "another answer at each run"),
        ("case when uuid() is null then true end", "another answer at each run"),
    ],
)  # fmt: skip
def test_anything_else_is_refused(text, problem):
    assert problem in (condition_problem(text) or "")


def test_nothing_is_written_on_the_way(capfd):
    for text in ("drop table x", "set x = 1", "alter session set x", "call f()", "show tables", "analyze table t compute statistics"):
        assert condition_problem(text)
    assert capfd.readouterr() == ("", "")
