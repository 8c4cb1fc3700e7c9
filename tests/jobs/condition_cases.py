"""Conditions that a spec may hold, and those that are refused, with what the message says."""

from __future__ import annotations

from pathlib import Path

#: Conditions over one row.
TAKEN = [
    "v > 1", "a = 'x' and b is not null", "t.v > 1", "v between 1 and 3", "v in (1, 2)", "not flag", "flag", "true", "`a b` > 1",
    "case when v > 1 then true else false end", "exists(arr, x -> x > 1)", "v rlike '^a'", "try_cast(v as int) > 1", "v % 2 = 0",
    "date_sub(d, 1) > '2020-01-01'", "coalesce(v, 0) > 1", "array_contains(a, 1)", "month(t) = 2", "v <=> 1", "m['x'] > 1",
    "t >= timestamp '2013-01-01'", "size(filter(a, x -> x > 1)) > 0", "if(v > 1, true, false)", "unix_timestamp(t) > 1",
    "s = 'now()'", "hash(k) % 10 = 0", "greatest(a, b) > 1", "s ilike 'a%'", "v > 1 -- as agreed", "user = 'x'",
    "aggregate(a, 0, (acc, x) -> acc + x) > 1", "get_json_object(j, '$.a') = '1'", "v >\n  1", "string(s) = 'now'", "s like 'now'",
    "lower(s) in ('now', 'today')", "m['now'] = 1", "array_contains(tags, 'today')", "s = 'now or never'", "split(s, 'now')[0] = ''",
    "if(b, 'now', 'later') = string(s)", "s like any ('a', 'b')", "s like all ('now', 'a')", "transform(a, (x, i) -> x + i)[0] = 1",
    "named_struct('a', 1).a = v", "s = 'a' collate UTF8_LCASE", "v > 1L", "v = 1.5BD", "s::int > 1", "cast(v as decimal(10, 2)) > 1",
    "cast(s as varchar(3)) = 'a'", "array_sort(a)[0] = 1", "a[0] = 1", "extract(hour from t) = 1", "s || 'x' = 'ax'", "(v = 1) = (w = 2)",
    "v > 12345678901234567890123456789012345678", "json = 'x'", "trim(both 'x' from s) = 'a'", "timestampdiff(hour, t, u) > 1",
    "t + interval 1 day > u", "v > (w) and (a or b)", "`_id` = 1", "_id = 1", "from_utc_timestamp(t, 'Europe/Paris') > u", "s = 'it''s'",
]  # fmt: skip
#: Anything else, with a part of its message.
REFUSED = [
    ("", "got a blank"), (" \n", "got a blank"),
    ("-- nothing", "nothing but a comment"),
    ("v >", "something is missing near line 1, character 3"),
    ("v between 1 and", "something is missing"),
    *((text, "two names stand side by side") for text in ("a b", "v as w")),
    *((text, "not a Spark SQL condition") for text in ("'open", "v > 1)", "v, w")),
    ("a; b", "without a semicolon"),
    *((text, "a value is no condition") for text in ("1", "-1", "null", "v + 1", "s || 'a'", "cast(v as int)", "-v", "v & 1")),
    *((text, "a statement or a list is no condition") for text in (
        "*", "(v, w)", "drop table x", "set x = 1", "insert into t values (1)",
    )),
    ("v > 1\0", "cannot be printed"),
    ("v > 1 or " * 2_000 + "true", "at most 10000"),
    ("(" * 3_000 + "v" + ")" * 3_000 + " > 1", "too deep"),
    *((text, "a parameter is never given") for text in (":x > 1", "? > 1", "@x > 1")),
    *((text, "has no") for text in ("select 1", "with x as (select 1) select * from x", "v > 1 union select 2")),
    *((text, "subquery") for text in ("v in (select 1)", "exists(select 1)", "(select max(v) from t) > v")),
    *((f"{name}(v) > 1", "needs many rows") for name in (
        "sum", "avg", "count", "min", "max", "first", "last", "stddev", "percentile", "approx_count_distinct", "count_if", "mode",
        "collect_list", "any_value", "bool_and", "every", "some", "any", "lag", "lead", "ntile", "try_sum", "max_by", "regr_count",
        "listagg", "bit_and", "kurtosis",
    )),
    *((f"{name}() > 1", "needs many rows") for name in ("row_number", "rank", "dense_rank", "cume_dist", "percent_rank")),
    ("stack(1, v)", "several rows of one"),
    *((text, "a window function") for text in ("sum(v) over () > 1", "row_number() over (order by v) = 1")),
    *((f"{name}(a)", "several rows of one") for name in ("explode", "posexplode", "inline", "explode_outer")),
    *((f"{name}() = v", "another answer at each run") for name in (
        "rand", "randn", "random", "uuid", "now", "current_timestamp", "current_date", "curdate", "localtimestamp", "current_user",
        "session_user", "user", "current_database", "current_catalog", "current_timezone", "monotonically_increasing_id",
        "input_file_name", "spark_partition_id", "version", "unix_timestamp", "RAND", "Now", "reflect", "java_method",
    )),
    *((text, "another answer at each run") for text in (
        "current_timestamp > t", "current_date > d", "shuffle(a)[0] = 1", "v > 1 and (w < 2 or rand() < 0.5)",
        "case when uuid() is null then true end", "aes_encrypt(s, k) = x",
    )),
    *((text, "is another instant at each run") for text in (
        "at > 'now'", "cast('now' as timestamp) < at", "timestamp 'today' < at", "d > 'today'", "d = ' YesterDay '", "'tomorrow' >= d",
        "at > '\tnow\n'", "at > 'now Europe/Paris'", "at > 'today UTC'", "date 'today' = d", "timestamp_ntz 'now' > at", "hour('now') = 1",
        "try_cast('now' as date) = d", "to_date('today') = d", "date_add('today', 1) > d", "at between 'yesterday' and '2030-01-01'",
        "at in ('2030-01-01', 'now')", "coalesce(at, 'now') > u", "at > ('now')", "(at, 1) > ('now', 1)", "'now'::timestamp > at",
        "at > 'no' || 'w'", "at > concat('no', 'w')", "at > 'no' 'w'", "at > cast('now' as string)", "s = 'now'",
    )),
    ("at > 'Epoch'", "names an instant only in constants"),
    ("at > lower('NOW')", "computed from constants may be an instant by the clock"),
    *((f"{name}.{field} = v", "hidden column") for name in ("_metadata", "_METADATA", "`_metadata`") for field in ("file_path", "x.y")),
    ("_metadata is null", "hidden column"), ("_metadata['file_path'] = 'a'", "hidden column"), ("grouping__id > 1", "hidden column"),
    *((f"{name} is null", "windowmill's own") for name in ("_file", "_ROW", "_version", "_time")),
    *((text, "subquery") for text in ("s in (values 1)", "exists (values 1)", "v = (values (1))", "s in (from t)")),
    *((text, "follows a dot") for text in ("session.f(s)", "builtin.lower(s) = 'a'", "a.b.c.f(s) > 1", "s.upper() = 'A'")),
    *((f"{name}(i) is null", "needs many rows") for name in (
        "theta_sketch_agg", "kll_sketch_agg_bigint", "tuple_union_agg_double", "approx_top_k", "percentile_cont",
        "schema_of_variant_agg", "vector_sum", "measure", "bitmap_and_agg", "all",
    )),
    *((f"{name}(i) is null", "several rows of one") for name in ("range", "variant_explode", "collations", "table_changes")),
    *((f"{name}(i) is null", "no function of Spark SQL over one row") for name in (
        "read_text", "read_csv", "list_contains", "strftime", "isfinite", "len_of", "iff", "my_function", "try",
        "from_avro", "identifier", "to_time",
    )),
    ("iff(v > 1, true, false)", "did you mean if()?"),
    *((text, "a lambda") for text in (
        "x -> x > 1", "j -> 'a' = 1", "abs(x -> x) > 1", "exists(a, (x, y) -> x > 1)", "exists(a, 1)", "transform(a) is null",
    )),
    *((text, "reads one row") for text in (
        "lower(distinct s) = 'a'", "lower(s) filter (where true) = 'a'", "lower(s order by s) = 'a'",
    )),
    *((text, "is no Spark SQL") for text in (
        "s similar to 'a'", "s glob 'a*'", "v between symmetric 3 and 1", "t at time zone 'UTC' > u", "v isnull", "v notnull",
        "v > 0x10", "s = n'x'", "a[1:2] is null",
    )),
    *((text, "is no operator") for text in ("s ~~ 'a'", "j ->> 'a' = '1'", "struct_pack(a := 1) is null")),
    *((text, "is no type") for text in (
        "cast(v as uuid) = 'a'", "cast(v as text) = 'a'", "v::hugeint > 1", "cast(v as datetime) > t", "cast(v as bool)",
    )),
    ("cast(v as timestamp with time zone) > t", "instant's type is timestamp"),
    ("cast(v as int[]) is null", "array<int>"), ("[1, 2][0] = 1", "array(1, 2)"), ("map{'a': 1} is null", "not in braces"),
    ("v in ()", "IN takes a list"), ("v in array(1)", "IN takes a list"), ("struct(*) is null", "name the columns"),
    ("mask(s, upperChar => 'Q') = 'a'", "by its place"), ("json 'x' = v", "json before a text"), ("v > 1;", "without a semicolon"),
    ("v = 1234567890123456789012345678901234567890", "more digits"), ("v = 0." + "0" * 38 + "1", "more digits"),
    ("v is null is null", "two comparisons stand side by side"), ("a = b < c", "two comparisons stand side by side"),
]  # fmt: skip
#: Conditions in the words of many dialects, one a line, over the columns of ``ROW``; what is taken of them must be known to Spark.
WRITTEN = Path(__file__).with_name("conditions.txt").read_text().splitlines()
ROW = """
select 1 v, 2 w, 'x' s, array(1) a, map('x', 1) m, timestamp'2020-01-01' t, date'2020-01-01' d, true b, interval '2' day i, 1 c,
       struct(1 lower) x, struct(1 c) `a b`
"""
