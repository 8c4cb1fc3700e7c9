"""Checks a condition as it is written: sqlglot parses more than Spark does, and its tree no longer has the words that were used.

Lists Spark's functions by what they need: one row, the clock or the machine, many rows. A test compares with Spark's own registry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlglot import Token

#: Words before a parenthesis that are no function there.
_WORDS = frozenset(
    """
    all and any as between both case cast distinct div else end escape exists extract from in interval ilike is leading like not on or
    overlay placing position regexp rlike some substr substring then timestampadd timestampdiff trailing trim try_cast values when
    """.split()  # noqa: SIM905 - quotes and commas would double the length
)
#: Words before a text that are no type or prefix there; sqlglot would read ``json 'x'`` as a cast.
_BEFORE_TEXT = _WORDS | {"date", "timestamp", "timestamp_ltz", "timestamp_ntz", "r", "x", "collate"}
#: Types of Spark's casts.
_TYPES = frozenset(
    """
    array bigint binary boolean byte char character date dec decimal double float int integer interval long map numeric real short smallint
    string struct timestamp timestamp_ltz timestamp_ntz tinyint varchar variant void
    """.split()  # noqa: SIM905
)
_OPERATORS = frozenset("= == <> != < <= > >= <=> + - * / % ~ & | ^ || << >> >>> -> ( ) [ ] , . :: ! : ;".split())  # noqa: SIM905
#: Functions that take a unit as a word, and the units.
_OF_UNITS = frozenset({"date_add", "date_diff", "dateadd", "datediff", "timestampadd", "timestampdiff"})
_UNITS = frozenset({"microsecond", "millisecond", "second", "minute", "hour", "day", "dayofyear", "week", "month", "quarter", "year"})
_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
#: Digits of Spark's greatest decimal.
_MAX_DIGITS = 38
#: Functions whose result differs between calls, sessions or machines: a retry would choose other rows.
CHANGING = frozenset(
    """
    aes_encrypt curdate current_catalog current_database current_date current_path current_schema current_time current_timestamp
    current_timezone current_user getdate input_file_block_length input_file_block_start input_file_name java_method localtime
    localtimestamp monotonically_increasing_id now rand randn random randstr reflect session_user shuffle spark_partition_id
    try_reflect uniform user uuid version
    """.split()  # noqa: SIM905 - quotes and commas would triple the length
)
#: Functions of many rows, as aggregates or over windows.
OF_MANY_ROWS = frozenset(
    """
    any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine array_agg avg
    bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg bitmap_or_agg bool_and bool_or collect_list collect_set corr count
    count_if count_min_sketch covar_pop covar_samp cume_dist dense_rank every first first_value grouping grouping_id
    histogram_numeric hll_sketch_agg hll_union_agg kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float
    kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float kurtosis lag last last_value lead listagg max max_by mean
    measure median min min_by mode nth_value ntile percent_rank percentile percentile_approx percentile_cont percentile_disc rank
    regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy row_number schema_of_variant_agg
    session_window skewness some std stddev stddev_pop stddev_samp string_agg sum theta_intersection_agg theta_sketch_agg
    theta_union_agg try_avg try_sum tuple_intersection_agg_double tuple_intersection_agg_integer tuple_sketch_agg_double
    tuple_sketch_agg_integer tuple_union_agg_double tuple_union_agg_integer var_pop var_samp variance vector_avg vector_sum window
    window_time
    """.split()  # noqa: SIM905
)
#: Functions that make rows.
MAKING_ROWS = frozenset(
    """
    collations explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer python_worker_logs range
    sql_keywords stack table_changes table_changes_by_path unnest variant_explode variant_explode_outer
    """.split()  # noqa: SIM905
)
#: Functions of one row with the same result at every call. Those that need a module or a setting that runs do not load are left out.
OF_ONE_ROW = frozenset(
    """
    abs acos acosh add_months aes_decrypt aggregate and approx_top_k_estimate array array_append array_compact array_contains
    array_distinct array_except array_insert array_intersect array_join array_max array_min array_position array_prepend
    array_remove array_repeat array_size array_sort array_union arrays_overlap arrays_zip ascii asin asinh assert_true atan atan2
    atanh base64 between bigint bin binary bit_count bit_get bit_length bitmap_bit_position bitmap_bucket_number bitmap_count
    boolean bround btrim cardinality cast cbrt ceil ceiling char char_length character_length chr coalesce collate collation concat
    concat_ws contains conv convert_timezone cos cosh cot crc32 csc date date_add date_diff date_format date_from_unix_date
    date_part date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear decimal decode degrees div
    double e element_at elt encode endswith equal_null exists exp expm1 extract factorial filter find_in_set flatten float floor
    forall format_number format_string from_csv from_json from_unixtime from_utc_timestamp from_xml get get_json_object getbit
    greatest hash hex hll_sketch_estimate hll_union hour hypot if ifnull ilike in initcap instr int is_valid_utf8 is_valid_variant
    is_variant_null isnan isnotnull isnull json_array_length json_object_keys kll_sketch_get_n_bigint kll_sketch_get_n_double
    kll_sketch_get_n_float kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double kll_sketch_get_quantile_float
    kll_sketch_get_rank_bigint kll_sketch_get_rank_double kll_sketch_get_rank_float kll_sketch_merge_bigint kll_sketch_merge_double
    kll_sketch_merge_float kll_sketch_to_string_bigint kll_sketch_to_string_double kll_sketch_to_string_float last_day lcase least
    left len length levenshtein like ln locate log log10 log1p log2 lower lpad ltrim luhn_check make_date make_dt_interval
    make_interval make_timestamp make_timestamp_ltz make_timestamp_ntz make_valid_utf8 make_ym_interval map map_concat
    map_contains_key map_entries map_filter map_from_arrays map_from_entries map_keys map_values map_zip_with mask md5 minute mod
    month monthname months_between named_struct nanvl negative next_day not nullif nullifzero nvl nvl2 octet_length or overlay
    parse_json parse_url pi pmod position positive pow power printf quarter quote radians raise_error reduce regexp regexp_count
    regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr repeat replace reverse right rint rlike
    round rpad rtrim schema_of_csv schema_of_json schema_of_variant schema_of_xml sec second sentences sequence sha sha1 sha2
    shiftleft shiftright shiftrightunsigned sign signum sin sinh size slice smallint sort_array soundex space split split_part sqrt
    st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid st_srid startswith str_to_map string struct substr substring
    substring_index tan tanh theta_difference theta_intersection theta_sketch_estimate theta_union time_bucket timestamp
    timestamp_micros timestamp_millis timestamp_seconds tinyint to_binary to_char to_csv to_date to_json to_number to_timestamp
    to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_utc_timestamp to_varchar to_variant_object to_xml transform
    transform_keys transform_values translate trim trunc try_add try_aes_decrypt try_divide try_element_at try_make_interval
    try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz try_mod try_multiply try_parse_json try_parse_url try_subtract
    try_to_binary try_to_date try_to_number try_to_timestamp try_url_decode try_validate_utf8 try_variant_get
    tuple_difference_double tuple_difference_integer tuple_difference_theta_double tuple_difference_theta_integer
    tuple_intersection_double tuple_intersection_integer tuple_intersection_theta_double tuple_intersection_theta_integer
    tuple_sketch_estimate_double tuple_sketch_estimate_integer tuple_sketch_summary_double tuple_sketch_summary_integer
    tuple_sketch_theta_double tuple_sketch_theta_integer tuple_union_double tuple_union_integer tuple_union_theta_double
    tuple_union_theta_integer typeof ucase unbase64 unhex unix_date unix_micros unix_millis unix_seconds unix_timestamp upper
    url_decode url_encode validate_utf8 variant_get vector_cosine_similarity vector_inner_product vector_l2_distance vector_norm
    vector_normalize weekday weekofyear when width_bucket xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long
    xpath_number xpath_short xpath_string xxhash64 year zeroifnull zip_with
    """.split()  # noqa: SIM905
)
#: Functions that take a lambda, and how many parameters each of their lambdas may have, by place.
LAMBDAS: dict[str, tuple[frozenset[int], ...]] = {
    **dict.fromkeys(("exists", "forall"), (frozenset({1}),)),
    **dict.fromkeys(("transform", "filter"), (frozenset({1, 2}),)),
    **dict.fromkeys(("aggregate", "reduce"), (frozenset({2}), frozenset({1}))),
    **dict.fromkeys(("array_sort", "map_filter", "transform_keys", "transform_values", "zip_with"), (frozenset({2}),)),
    "map_zip_with": (frozenset({3}),),
}


def written_problem(text: str, tokens: Sequence[Token]) -> str | None:
    """Why Spark would not take a condition ``text`` of these ``tokens``, and the remedy; null if nothing speaks against it."""
    return next(_problems(text, tokens), None)


def _problems(text: str, tokens: Sequence[Token]) -> Iterator[str]:
    between = zip([0, *(token.end + 1 for token in tokens)], [*(token.start for token in tokens), len(text)], strict=True)
    if any("/*+" in text[begin:end] for begin, end in between):
        yield "a hint (/*+ … */) belongs to a query; take it out"
    for number, token in enumerate(tokens):
        kind, after = token.token_type.name, tokens[number + 1] if number + 1 < len(tokens) else None
        before = tokens[number - 1] if number else None
        if kind == "SEMICOLON":
            yield "expected one condition, without a semicolon"
        elif kind == "NUMBER":
            yield from _number_problems(token)
        elif kind == "L_BRACKET" and (before is None or not _ends_a_value(before)):
            yield "a list is written array(1, 2) in Spark SQL, not in brackets"
        elif kind == "L_BRACKET" and after is not None and after.token_type.name == "R_BRACKET":
            yield "empty brackets stand for nothing in Spark SQL; a list's type is written array<int>"
        elif kind == "L_BRACE":
            yield "a struct or map is written named_struct('a', 1) or map('a', 1) in Spark SQL, not in braces"
        elif kind in ("ISNULL", "NOTNULL") and (after is None or after.token_type.name != "L_PAREN"):
            yield f"{token.text} behind a value is no Spark SQL; write is null or is not null"
        elif kind == "FARROW":
            yield "an argument is given by name; give it by its place"
        elif kind == "WITH":
            yield "WITH is no part of a Spark SQL condition; an instant's type is timestamp"
        elif kind in ("HEX_STRING", "BIT_STRING") and token.text and not _is_quoted(token):
            yield "a number in hexadecimal or binary is no Spark SQL; write it in decimal"
        elif kind != "STRING" and not _is_word(token) and not token.text[:1].isalnum() and _is_foreign(token):
            yield f"{token.text} is no operator of Spark SQL; use one of its functions"
    for number, (token, after) in enumerate(pairwise(tokens)):
        if token.token_type.name in ("ALIAS", "DCOLON"):
            yield from _type_problems(after)
        if not _is_word(token):
            continue
        if after.token_type.name == "L_PAREN":
            yield from _call_problems(number, tokens)
        if after.token_type.name == "STRING" and token.text.lower() not in _BEFORE_TEXT:
            yield f"Spark SQL does not know {token.text} before a text; cast the text, or take the word out"


def _is_word(token: Token) -> bool:
    return token.text[:1].isalpha() or token.text[:1] == "_" if token.token_type.name != "STRING" else False


def _is_foreign(token: Token) -> bool:
    quoted = token.token_type.name in (
        "IDENTIFIER",
        "RAW_STRING",
        "HEX_STRING",
        "BIT_STRING",
        "NATIONAL_STRING",
        "UNICODE_STRING",
        "BYTE_STRING",
    )
    return not quoted and token.text not in _OPERATORS


def _is_quoted(token: Token) -> bool:
    """Whether a HEX_STRING is written x'…', which is longer than 0x…."""
    return token.end - token.start + 1 == len(token.text) + 3


def _ends_a_value(token: Token) -> bool:
    return token.token_type.name in ("R_PAREN", "R_BRACKET", "STRING", "IDENTIFIER") or (
        _is_word(token) and token.text.lower() not in _WORDS
    )


def _number_problems(token: Token) -> Iterator[str]:
    if not _NUMBER.fullmatch(token.text):
        yield f"{token.text} is no number of Spark SQL; write its digits alone"
    elif "e" not in token.text.lower():
        whole, _, rest = token.text.partition(".")
        if max(len((whole + rest).lstrip("0")), len(rest)) > _MAX_DIGITS:
            yield f"{token.text[:12]}… has more digits than a decimal of Spark SQL, which are {_MAX_DIGITS}; shorten it"


def _type_problems(token: Token) -> Iterator[str]:
    # What follows a number, as in 1L, is a type by sqlglot's own naming.
    if token.text.lower() not in _TYPES and token.text not in ("BD", "D", "F", "L", "S", "Y"):
        yield f"{token.text[:40]!r} is no type that Spark SQL casts to; the types are {', '.join(sorted(_TYPES))}"


def _call_problems(number: int, tokens: Sequence[Token]) -> Iterator[str]:
    token, before = tokens[number], tokens[number - 1] if number else None
    name, first = token.text.lower(), tokens[number + 2] if number + 2 < len(tokens) else None
    if name in _OF_UNITS and first is not None and first.token_type.name == "STRING" and first.text.lower() in _UNITS:
        yield f"the unit of {name}() is written without quotes in Spark SQL: {name}({first.text}, …)"
    if before is not None and before.token_type.name == "DOT":
        yield f"{token.text[:60]}() follows a dot; conditions call Spark's own functions, by their bare name"
    if before is not None and before.token_type.name in ("ALIAS", "DCOLON", "LT", "COLON") and name in _TYPES:
        return
    yield from function_problems({name} if name not in _WORDS else set())


def function_problems(names: set[str]) -> Iterator[str]:
    """What speaks against a function of one of these ``names``, in lower case."""
    if not names:
        return
    name = min(names)[:60]
    if names & CHANGING:
        yield f"{min(names & CHANGING)}() gives another answer at each run; conditions must hold of the same rows when a run is repeated"
    elif names & MAKING_ROWS:
        yield f"{name}() makes several rows of one; a condition says yes or no"
    elif names & OF_MANY_ROWS:
        yield f"{name}() needs many rows; a condition reads one row"
    elif not names & OF_ONE_ROW:
        from difflib import get_close_matches

        near = get_close_matches(name, OF_ONE_ROW, n=1, cutoff=0.8)
        yield f"{name}() is no function of Spark SQL over one row" + (
            f"; did you mean {near[0]}()?" if near else "; use one of Spark's own"
        )
