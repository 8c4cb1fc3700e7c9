"""Conditions are Spark SQL over one row, with the same answer at every run."""

from __future__ import annotations

import pytest

from windowmill.jobs.conditions.checks import condition_problem
from windowmill.jobs.conditions.functions import CHANGING, LAMBDAS, MAKING_ROWS, OF_MANY_ROWS, OF_ONE_ROW


@pytest.mark.parametrize(
    "text",
    [
        "v > 1", "a = 'x' and b is not null", "t.v > 1", "v between 1 and 3", "v in (1, 2)", "not flag", "flag", "true", "`a b` > 1",
        "case when v > 1 then true else false end", "exists(arr, x -> x > 1)", "v rlike '^a'", "try_cast(v as int) > 1", "v % 2 = 0",
        "date_sub(d, 1) > '2020-01-01'", "coalesce(v, 0) > 1", "array_contains(a, 1)", "month(t) = 2", "v <=> 1", "m['x'] > 1",
        "t >= timestamp '2013-01-01'", "size(filter(a, x -> x > 1)) > 0", "if(v > 1, true, false)", "unix_timestamp(t) > 1",
        "s = 'now()'", "hash(k) % 10 = 0", "greatest(a, b) > 1", "s ilike 'a%'", "v > 1 -- as agreed", "user = 'x'",
        "aggregate(a, 0, (acc, x) -> acc + x) > 1", "get_json_object(j, '$.a') = '1'", "v >\n  1", "string(s) = 'now'", "s like 'now'",
        "lower(s) in ('now', 'today')", "m['now'] = 1", "array_contains(tags, 'today')", "s = 'now or never'", "split(s, 'now')[0] = ''",
        "if(b, 'now', 'later') = string(s)", "s like any ('a', 'b')", "s like all ('now', 'a')", "transform(a, (x, i) -> x + i)[0] = 1",
        "named_struct('a', 1).a = v", "s = 'a' collate UTF8_LCASE", "v > 1L", "v = 1.5BD", "s::int > 1", "cast(v as decimal(10, 2)) > 1",
        "cast(s as varchar(3)) = 'a'", "array_sort(a)[0] = 1", "a[0] = 1", "extract(hour from t) = 1", "s || 'x' = 'ax'",
        "(v = 1) = (w = 2)",
        "v > 12345678901234567890123456789012345678", "json = 'x'", "trim(both 'x' from s) = 'a'", "timestampdiff(hour, t, u) > 1",
        "t + interval 1 day > u", "v > (w) and (a or b)", "`_id` = 1", "_id = 1",
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
        *((text, "is another instant at each run") for text in (
            "at > 'now'", "cast('now' as timestamp) < at", "timestamp 'today' < at", "d > 'today'", "d = ' YesterDay '", "'tomorrow' >= d",
            "at > '\tnow\n'", "at > 'now Europe/Paris'", "at > 'today UTC'", "date 'today' = d", "timestamp_ntz 'now' > at",
            "hour('now') = 1",
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
        *((text, "behind a dot") for text in ("session.f(s)", "builtin.lower(s) = 'a'", "a.b.c.f(s) > 1", "s.upper() = 'A'")),
        *((f"{name}(i) is null", "needs many rows") for name in (
            "theta_sketch_agg", "kll_sketch_agg_bigint", "tuple_union_agg_double", "approx_top_k", "percentile_cont",
            "schema_of_variant_agg",
            "vector_sum", "measure", "bitmap_and_agg", "all",
        )),
        *((f"{name}(i) is null", "several rows of one") for name in ("range", "variant_explode", "collations", "table_changes")),
        *((f"{name}(i) is null", "no function of Spark SQL over one row") for name in (
            "read_text", "read_csv", "list_contains", "strftime", "isfinite", "len_of", "iff", "my_function", "try",
            "from_avro", "identifier", "to_time",
        )),
        ("iff(v > 1, true, false)", "did you mean if()?"),
        ("aes_encrypt(s, k) = x", "another answer at each run"),
        *((text, "a lambda") for text in (
            "x -> x > 1", "j -> 'a' = 1", "abs(x -> x) > 1", "exists(a, (x, y) -> x > 1)", "exists(a, 1)", "transform(a) is null",
        )),
        *((text, "reads one row") for text in (
            "lower(distinct s) = 'a'", "lower(s) filter (where true) = 'a'", "lower(s order by s) = 'a'",
        )),
        *((text, "is no Spark SQL") for text in (
            "s similar to 'a'", "s glob 'a*'", "v between symmetric 3 and 1", "t at time zone 'UTC' > u", "v isnull", "v notnull",
            "v > 0x10",
            "s = n'x'", "a[1:2] is null",
        )),
        *((text, "is no operator") for text in ("s ~~ 'a'", "j ->> 'a' = '1'", "struct_pack(a := 1) is null")),
        *((text, "is no type") for text in (
            "cast(v as uuid) = 'a'", "cast(v as text) = 'a'", "v::hugeint > 1", "cast(v as datetime) > t", "cast(v as bool)",
        )),
        ("cast(v as timestamp with time zone) > t", "instant's type is timestamp"),
        ("cast(v as int[]) is null", "array<int>"), ("[1, 2][0] = 1", "array(1, 2)"), ("map{'a': 1} is null", "not in braces"),
        ("v in ()", "IN takes a list"), ("v in array(1)", "IN takes a list"), ("struct(*) is null", "name the columns"),
        ("mask(s, upperChar => 'Q') = 'a'", "by its place"), ("json 'x' = v", "stands before a text"), ("v > 1;", "without a semicolon"),
        ("v = 1234567890123456789012345678901234567890", "more digits"), ("v = 0." + "0" * 38 + "1", "more digits"),
        ("v is null is null", "two comparisons stand side by side"), ("a = b < c", "two comparisons stand side by side"),
        *((text, "a value stands") for text in ("v + 1", "s || 'a'", "cast(v as int)", "-v", "v & 1")),
    ],
)  # fmt: skip
def test_anything_else_is_refused(text, problem):
    assert problem in (condition_problem(text) or "")


#: Conditions in the words of many dialects, over the columns of ``_ROW``; what is taken of them must be known to Spark.
_WRITTEN = """
v ** 2 > 1
v // 2 = 1
list[1:2] = x
{'a': 1} is null
s ~ 'a'
s !~ 'a'
s similar to 'a'
s glob 'a*'
[1,2][1] = 1
a @> b
a <@ b
a && b
v isnull
v notnull
v between symmetric 3 and 1
s ~~ 'a'
s ^@ 'a'
v is distinct from 1
v is not distinct from 1
s:x = 1
s::int > 1
t at time zone 'UTC' > t
position('a' in s) > 0
extract(hour from t) = 1
substring(s from 1 for 2) = 'a'
overlay(s placing 'a' from 1) = 'b'
trim(both 'x' from s) = 'a'
s like any ('a', 'b')
s like all ('a')
s ilike any ('a')
s not like any ('a')
v = any(array(1))
v > all(array(1))
v in (values 1)
exists (values 1)
v in (table t)
(values (1)) = v
v in (from t)
lower(distinct s) = 'a'
lower(s order by s) = 'a'
lower(s) filter (where true) = 'a'
sum(v) filter (where true) > 1
mask(s, upperChar => 'Q') = 'a'
lambda x: x > 1
exists(a, lambda x: x > 1)
x -> x > 1
abs(x -> x) > 1
exists(a, (x, y, z) -> x > 1)
filter(a, (x, i) -> x > i) is null
transform(a) is null
exists(a, 1)
hash(*) > 1
struct(*) is null
count(*) > 1
t.* is null
s collate UTF8_LCASE = 'a'
s = 'a' collate UTF8_LCASE
interval '1' day > i
t + interval 1 day > t
t - interval '1' hour > t
v = 1 and
v == 1
v <> 1
v != 1
v ^= 1
v !< 1
not v = 1
! v
!(v = 1)
v is true
v is not false
v is unknown
v is json
s = "a"
s = `a`
s = e'\n'
s = r'\n'
s = x'00'
b'1' = s
v > 1_000
v > 0x10
v > 1e3
v > 1.5D
v > 1.5BD
v > 1L
v > 1S
v > 1Y
v > 1F
v > .5
v > 5.
- v > 1
+ v > 1
~ v > 1
v & 1 = 1
v | 1 = 1
v ^ 1 = 1
v << 1 > 1
v >> 1 > 1
v >>> 1 > 1
v div 2 > 1
v mod 2 = 1
v % 2 = 1
a.b.c = 1
a[0] = 1
m['x'] = 1
a[0].b = 1
a[-1] = 1
(a, b) = (1, 2)
(a, b) in ((1, 2))
row(1, 2) = x
struct(1, 2) = x
named_struct('a', 1) = x
array(1, 2) = a
map('a', 1) = m
cast(v as struct<a: int>) is null
cast(v as array<int>) is null
cast(v as map<string,int>) is null
cast(v as decimal(10,2)) > 1
cast(v as decimal) > 1
cast(v as numeric) > 1
cast(v as dec(3)) > 1
cast(v as varchar(3)) = 'a'
cast(v as char(3)) = 'a'
cast(v as text) = 'a'
cast(v as string) = 'a'
cast(v as uuid) = 'a'
cast(v as hugeint) > 1
cast(v as int8) > 1
cast(v as uint) > 1
cast(v as int64) > 1
cast(v as integer) > 1
cast(v as long) > 1
cast(v as short) > 1
cast(v as byte) > 1
cast(v as real) > 1
cast(v as float) > 1
cast(v as float8) > 1
cast(v as double precision) > 1
cast(v as bool)
cast(v as boolean)
cast(v as binary) is null
cast(v as blob) is null
cast(v as bytea) is null
cast(v as json) is null
cast(v as variant) is null
cast(v as time) is null
cast(v as datetime) is null
cast(v as timestamptz) is null
cast(v as timestamp with time zone) is null
cast(v as timestamp without time zone) is null
cast(v as timestamp_ltz) is null
cast(v as timestamp_ntz) is null
cast(v as interval) is null
cast(v as interval day to second) is null
cast(v as interval day) is null
cast(v as int[]) is null
cast(v as void) is null
cast(v as geometry) is null
cast(v as nothing) is null
cast(v as bigint unsigned) > 1
cast(v as date) > d
cast(v as time(3)) is null
convert(v, int) > 1
int(v) > 1
date(t) = d
timestamp(s) > t
string(v) = 'a'
decimal(v) > 1
v::int > 1
v::varchar(3) = 'a'
date '2020-01-01' > d
timestamp '2020-01-01' > t
timestamp_ntz '2020-01-01' > t
timestamp_ltz '2020-01-01' > t
time '10:00' > t
datetime '2020-01-01' > t
case v when 1 then true else false end
case when v = 1 then true end
case else true end
if(v, 1)
if(v > 1, true, false, 3)
iff(v > 1, true, false)
nvl2(v, 1, 2) = 1
decode(v, 1, 'a') = 'a'
coalesce() = 1
coalesce(v) = 1
try(v) > 1
columns(*) > 1
unnest(a) = 1
s like 'a' escape '!'
s not rlike 'a'
s regexp 'a'
s not regexp 'a'
regexp(s, 'a')
regexp_matches(s, 'a')
s rlike any ('a')
rlike(s, 'a')
ilike(s, 'a')
like(s, 'a')
v in ()
v in (1)
v in 1
v in array(1)
v not in (1)
v between 1 and 2 and v = 3
v is null is null
v isnotnull
isnull(v)
isnotnull(v)
a = b = c
a < b < c
v > 1 -- x
/* c */ v > 1
/*+ hint */ v > 1
v > 1 /* open
v > 1;
v > $1
v > ${x}
v > :x
v > {{ x }}
s = 'a' 'b'
s = 'a'"b"
s = 'it''s'
s = 'it\'s'
s || 'a' = 'b'
a || b = c
s concat 'a' = 'b'
v, w
v as x
v x
prior v = 1
v over ()
lead(v) = 1
lower(s).x = 1
f(s)(1) = 1
session.f(s)
builtin.lower(s) = 'a'
system.builtin.lower(s) = 'a'
a.b.c.d(s)
`lower`(s) = 'a'
`a b`.c = 1
"a" = 1
lower (s) = 'a'
current_date() > d
theta_sketch_agg(v) is null
read_text('x') = 'a'
read_csv('x') is null
read_files('x') is null
range(3) = a
sequence(1, 3) = a
generate_series(1, 2) = a
list_contains(a, 1)
list_filter(a, x -> x > 1) is null
len(s) = 1
length(s) = 1
char_length(s) = 1
strlen(s) = 1
array_length(a) = 1
cardinality(a) = 1
size(a) = 1
epoch(t) > 1
epoch_ms(t) > 1
strftime(t, 'x') = 'a'
strptime(s, 'x') > t
to_char(v, '9') = '1'
date_part('hour', t) = 1
datepart('hour', t) = 1
date_trunc('day', t) = t
trunc(d, 'MM') = d
timestampadd(hour, 1, t) > t
timestampdiff(hour, t, t) > 1
dateadd(day, 1, d) > d
date_add(d, 1) > d
datediff(day, d, d) > 1
datediff(d, d) > 1
date_diff('day', d, d) > 1
starts_with(s, 'a')
startswith(s, 'a')
ends_with(s, 'a')
prefix(s, 'a')
string_split(s, 'a') is null
split(s, 'a')[0] = 'a'
split_part(s, 'a', 1) = 'a'
instr(s, 'a') > 0
locate('a', s) > 0
strpos(s, 'a') > 0
charindex('a', s) > 0
left(s, 1) = 'a'
right(s, 1) = 'a'
lpad(s, 1, 'a') = 'a'
repeat(s, 2) = 'aa'
reverse(s) = 'a'
md5(s) = 'a'
sha2(s, 256) = 'a'
crc32(v) = 1
xxhash64(v) = 1
hash(v) % 10 = 0
pow(v, 2) > 1
power(v, 2) > 1
sqrt(v) > 1
ln(v) > 1
log(v) > 1
log(2, v) > 1
log10(v) > 1
log2(v) > 1
round(v, 1) > 1
bround(v) > 1
ceil(v) > 1
ceiling(v) > 1
floor(v) > 1
sign(v) > 1
signum(v) > 1
greatest(v, 1) > 1
least(v, 1) > 1
isnan(v)
isinf(v)
isfinite(v)
nanvl(v, 1) > 1
raise_error('x')
assert_true(v) is null
typeof(v) = 'int'
getbit(v, 1) = 1
bit_count(v) > 1
json_extract(s, 'a') = 1
get_json_object(s, '$.a') = '1'
from_json(s, 'a int').a = 1
s -> 'a' = 1
s ->> 'a' = '1'
s #> 'a' = 1
json_tuple(s, 'a') = 1
schema_of_json('{}') = 'a'
to_json(struct(v)) = 'a'
element_at(a, 1) = 1
try_element_at(a, 1) = 1
array_contains(a, 1)
arrays_overlap(a, a)
aggregate(a, 0, (x, y) -> x + y) > 1
reduce(a, 0, (x, y) -> x + y) > 1
aggregate(a, 0, (x, y) -> x + y, z -> z) > 1
transform(a, x -> x + 1)[0] = 1
forall(a, x -> x > 1)
map_filter(m, (k, v) -> v > 1) is null
zip_with(a, a, (x, y) -> x + y)[0] = 1
array_sort(a, (x, y) -> 1)[0] = 1
exists(a, x -> exists(a, y -> x > y))
transform(a, x -> sum(x)) is null
exists(a, x -> x > rand())
_metadata.file_path = 'a'
_metadata.row_index > 1
_METADATA.file_name = 'a'
`_metadata`.file_size > 1
_metadata is null
_metadata['file_path'] = 'a'
_file = 1
_row = 1
_version = 1
_reason is null
_event_time > 1
window.start > t
identifier('v') > 1
identifier('low' || 'er')(s) = 'a'
try_cast(v as int) > 1
safe_cast(v as int) > 1
grouping__id > 1
v > (select 1)
v > (1)
((v > 1))
v > (1, 2)
map{'a': 1} is null
struct_pack(a := 1) is null
a[1:2] is null
v.lower() = 'a'
s.upper() = 'A'
v > all (select 1)
unique (select 1)
v overlaps w
(a, b) overlaps (c, d)
s is of type
match_recognize
v > 1 limit 1
v > 1 order by v
v > 1 group by v
v > 1 union select 1
distinct v > 1
v > distinct 1
all v > 1
v > date_sub('2020-01-01', 1)
v > 1 qualify true
v > next value for x
v > array[1]
v > 1 for update
s = u&'x'
s = n'x'
cast(v as int format 'x') > 1
nullifzero(v) = 1
zeroifnull(v) = 1
when(v > 1, 1) = 1
between(v, 1, 2)
time_bucket(interval 1 hour, t) > t
is_valid_utf8(s)
st_srid(v) = 1
from_avro(v, 'x') is null
vector_sum(a) is null
measure(v) > 1
to_varchar(v, '9') = '1'
luhn_check(s)
url_decode(s) = 'a'
parse_url(s, 'HOST') = 'a'
xpath(s, 'a') is null
dayname(d) = 'Mon'
make_date(2020, 1, 1) > d
python_worker_logs() is null
table_changes('t', 1) is null
collations() is null
variant_explode(v) is null
""".strip().splitlines()
_ROW = """
select 1 v, 2 w, 'x' s, array(1) a, map('x', 1) m, timestamp'2020-01-01' t, date'2020-01-01' d, true b, interval '2' day i, 1 c,
       struct(1 lower) x, struct(1 c) `a b`
"""


@pytest.mark.spark
@pytest.mark.classic
def test_what_is_taken_is_known_to_spark(spark):
    from pyspark.errors import AnalysisException, ParseException

    taken, row = [text for text in _WRITTEN if condition_problem(text) is None], spark.sql(_ROW)
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
    of_times = {name for name in found if name.startswith("time_") or name in ("time", "make_time", "to_time", "try_to_time")} - {
        "time_bucket"
    }
    words = {name for name in found if name.isidentifier()} - unloaded - of_times
    assert words - CHANGING - OF_MANY_ROWS - MAKING_ROWS == OF_ONE_ROW
    assert {name for name, group in found.items() if group in ("agg_funcs", "window_funcs") or name.endswith("_agg")} <= OF_MANY_ROWS
    assert {name for name, group in found.items() if group == "generator_funcs"} <= MAKING_ROWS
    assert not OF_ONE_ROW & (CHANGING | OF_MANY_ROWS | MAKING_ROWS)
    assert LAMBDAS.keys() == {name for name, group in found.items() if group == "lambda_funcs"}


def test_nothing_is_written_on_the_way(capfd):
    for text in ("drop table x", "set x = 1", "alter session set x", "call f()", "show tables", "analyze table t compute statistics"):
        assert condition_problem(text)
    assert capfd.readouterr() == ("", "")
