"""Parses conditions, and checks that they have the same result on every engine and at every retry: Spark SQL over one row.

So a condition must name no instant by the clock: Spark replaces 'now', 'today', 'tomorrow', 'yesterday' and 'epoch' where a constant
becomes a date or an instant, by a cast that is written or by one that it adds. Without the types of the columns it is not known whether ``x
= 'today'`` compares dates or texts, so one side must be a text on its face.

Every call is parsed as a call by the name that was written, whatever it is called in other dialects.
"""

from __future__ import annotations

import logging
import re
import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import sqlglot
from sqlglot import Token, exp
from sqlglot.dialects.dialect import Dialect

from windowmill.windowing.columnar.added_columns import TAKEN
from windowmill.windowing.errors import SpecError, first_line

#: Calls that have a syntax of their own.
_OWN_SYNTAX = ("CAST", "TRY_CAST", "EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "POSITION")


@cache
def dialect(name: str) -> Any:
    """Sqlglot's dialect ``name`` for texts of Spark: since 4.0 a doubled quote within a text is one quote."""
    base: Any = Dialect.get_or_raise(name)
    tokenizer = type("Tokenizer", (base.tokenizer_class,), {"STRING_ESCAPES": ["\\", "'", '"']})
    # sqlglot parses this function as AT TIME ZONE, which Spark does not have.
    own = {"FUNCTIONS": {name: function for name, function in base.parser_class.FUNCTIONS.items() if name != "FROM_UTC_TIMESTAMP"}}
    # sqlglot registers dialects by the names of their classes.
    return type(f"Quoted{name}", (type(base),), {"Tokenizer": tokenizer, "Parser": type("Parser", (base.parser_class,), own)})


@cache
def _dialect() -> Any:
    # sqlglot's Databricks dialect distinguishes cast from try_cast; its Spark dialect parses both as try_cast.
    base = dialect("databricks")
    parser = base.parser_class
    own = {
        "FUNCTIONS": {},
        "NO_PAREN_FUNCTIONS": {},
        "NO_PAREN_FUNCTION_PARSERS": {name: parser.NO_PAREN_FUNCTION_PARSERS[name] for name in ("ANY", "CASE", "IF")},
        "FUNCTION_PARSERS": {name: parser.FUNCTION_PARSERS[name] for name in _OWN_SYNTAX},
    }
    return type("Conditions", (base,), {"Parser": type("Parser", (parser,), own)})


@lru_cache(1_000)
def parsed(condition: str, named: str | None = None) -> exp.Expr:
    """The tree of an expression, by one of sqlglot's own dialects if one is named; raises ``SpecError`` if it is no Spark SQL."""
    return _parse(condition, dialect(named) if named else _dialect())


@lru_cache(1_000)
def columns_of(condition: str) -> frozenset[str]:
    """Names of the columns that ``condition`` reads; of a field in a column that of the column."""
    found = _parse(condition, dialect("spark")).find_all(exp.Column)
    return frozenset(column.parts[0].name for column in found if not _is_parameter(column))


def _is_parameter(column: exp.Column) -> bool:
    """Whether ``column`` is a parameter of a lambda in other case, which Spark ignores."""
    name, lambda_ = column.parts[0].name.lower(), column.find_ancestor(exp.Lambda)
    while lambda_ is not None:
        if any(parameter.name.lower() == name for parameter in lambda_.expressions):
            return True
        lambda_ = lambda_.find_ancestor(exp.Lambda)
    return False


def _parse(condition: str, own: Any) -> exp.Expr:
    try:
        return sqlglot.parse_one(condition, read=own)
    except (sqlglot.errors.SqlglotError, RecursionError) as err:
        raise SpecError(f"condition {condition!r}: not a Spark SQL condition ({first_line(err)}); correct it in the spec") from err


_LONGEST = 10_000
_STRAY_LAMBDA = "a lambda (x -> …) is given where no function takes one; take it out"
#: Columns that Spark adds to rows: the path and size of their file, which OPTIMIZE changes, and the grouping of an aggregation.
_HIDDEN = {"_metadata", "grouping__id"}
#: Spark also takes a zone behind the word, and trims control characters.
_BY_CLOCK = re.compile(
    r"[\x00-\x20\x7f]*(epoch|now|today|tomorrow|yesterday)[ \t]*"
    r"(?:[A-Z]{1,3}|[A-Za-z_]+/[A-Za-z_/+-]+|(?:UTC|GMT|UT)?[+-][0-9:]+)?[\x00-\x20\x7f]*",
    re.IGNORECASE,
)


def condition_problem(text: str) -> str | None:
    """Why ``text`` is not a condition over one row, and the remedy; null if it is one."""
    if not text.strip():
        return "got a blank; expected a Spark SQL condition, or leave the field out"
    if len(text) > _LONGEST:
        return f"{len(text)} characters; expected at most {_LONGEST}"
    if not text.replace("\n", "").replace("\t", "").replace("\r", "").isprintable():
        return "holds a character that cannot be printed; take it out"
    got = f"got {text[:120]!r}"
    tree = _parsed(text)
    if isinstance(tree, str):
        return f"{got}; {tree}"
    problem = _form_problem(tree) or parts_problem(tree, text)
    return None if problem is None else f"{got}; {problem}"


def name_problem(name: str) -> str | None:
    """Why no column that a step makes can have this name, and the remedy; null if one can."""
    return f"the name {name!r} is taken by windowmill; choose another one" if name.lower() in TAKEN else None


def expression_problem(text: str, known: Collection[str] | None = None) -> str | None:
    """Why ``text`` is not an expression over one row, or names other columns than the ``known`` ones, and the remedy; null if it is one."""
    tree = _parsed(text)
    problem = tree if isinstance(tree, str) else parts_problem(tree, text)
    if problem is None and known is not None:
        stray = min(columns_of(text) - {name for name in columns_of(text) if name.lower() in map(str.lower, known)}, default=None)
        problem = None if stray is None else f"{stray!r} is no key and no aggregate before it; known are {', '.join(known)}"
    return None if problem is None else f"got {text[:120]!r}; {problem}"


def parts_problem(tree: exp.Expr, text: str) -> str | None:
    """Why a part of the condition ``text`` means nothing in Spark, or not the same at each run; null if none. ``tree`` is its tree."""
    tokens = sqlglot.tokenize(text, read=dialect("spark"))
    problem = next((problem for node in tree.walk() if (problem := _node_problem(node)) is not None), None)
    problem = problem or next(_written_problems(text, tokens), None)
    if problem is not None:
        return problem
    # sqlglot reads an arrow that begins no lambda as a step into JSON, as other dialects write it.
    arrows = sum(token.token_type.name == "ARROW" for token in tokens)
    return None if arrows == len(list(tree.find_all(exp.Lambda))) else _STRAY_LAMBDA


def _parsed(text: str) -> exp.Expr | str:
    """The parse tree of ``text``, or the problem with it."""
    # sqlglot warns on standard error about texts that it takes for commands, which are refused below anyway.
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    try:
        statements = [statement for statement in sqlglot.parse(text, read=dialect("spark")) if statement is not None]
    except sqlglot.errors.TokenError:
        return "not a Spark SQL condition (a quote is not closed, or a character is none of SQL's); correct it"
    except sqlglot.errors.SqlglotError as err:
        return f"not a Spark SQL condition ({_first(err)}); correct it"
    except RecursionError:
        return "its parts lie too deep within one another; write it flat"
    if not statements:
        return "nothing but a comment; expected a Spark SQL condition"
    return statements[0] if len(statements) == 1 else "expected one condition, without a semicolon"


def _first(err: Exception) -> str:
    # "Required keyword" names classes of sqlglot. Later lines quote parts of the text, which may come from the environment.
    line = str(err).splitlines()[0].rstrip(".")[:200]
    position = re.search(r"Line (\d+), Col: (\d+)", line)
    what = "something is missing" if line.startswith("Required keyword") else line.partition(". Line")[0]
    return f"{what} near line {position[1]}, character {position[2]}" if position else what


def _form_problem(tree: exp.Expr) -> str | None:
    if isinstance(tree, exp.Query):
        return "a condition reads one row; it has no SELECT"
    if isinstance(tree, exp.Alias):
        return "not a Spark SQL condition (two names stand side by side); correct it"
    if not isinstance(tree, exp.Condition) or isinstance(tree, exp.Star):
        return "a statement or a list is no condition"
    if isinstance(tree, exp.Literal | exp.Interval | exp.Null | exp.Neg | exp.Lambda) or _is_value(tree):
        return "a value is no condition; compare it with something"
    return None


def _is_value(node: exp.Expr) -> bool:
    """Whether ``node`` is no truth on its face."""
    if isinstance(node, exp.Cast):
        return bool(node.to.this != exp.DataType.Type.BOOLEAN)
    arithmetic = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.IntDiv, exp.DPipe)
    bits = (exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot, exp.BitwiseLeftShift, exp.BitwiseRightShift)
    return isinstance(node, (*arithmetic, *bits))


def _node_problem(node: exp.Expr) -> str | None:
    if isinstance(node, exp.Query | exp.Subquery | exp.Values | exp.Table):
        return "a condition reads one row; it has no subquery"
    if isinstance(node, exp.Placeholder | exp.Parameter | exp.SessionParameter):
        return "a parameter is never given a value; write the value, or ${NAME} for the environment's"
    if isinstance(node, exp.Window):
        return "a window function (OVER) needs other rows; a condition reads one row"
    if isinstance(node, exp.Filter | exp.WithinGroup | exp.Distinct | exp.Order | exp.IgnoreNulls | exp.RespectNulls):
        return "FILTER, DISTINCT, ORDER BY and the like choose among many rows; a condition reads one row"
    if isinstance(node, exp.Star):
        return "* means columns that depend on the engine; name the columns"
    if isinstance(node, exp.Column):
        return _column_problem(node)
    return _function_problem(node) or _lambda_problem(node) or _operand_problem(node) or _spelling_problem(node) or clock_problem(node)


def _column_problem(node: exp.Column) -> str | None:
    name = node.parts[0].name.lower()
    if name in _HIDDEN:
        return f"{name} is a hidden column, whose values are not the source's; a condition reads the source's own columns"
    if name.startswith("_") and name in TAKEN:
        return f"the column {name!r} is windowmill's own; a condition reads the source's columns"
    return None


def _function_problem(node: exp.Expr) -> str | None:
    names = _names(node)
    if not names:
        return None
    if names == {"all"}:
        return "all() needs many rows; a condition reads one row"
    if type(node).__name__.startswith("Current"):
        return next(function_problems({min(names & CHANGING, default="current_timestamp")}))
    if isinstance(node, exp.UDTF):
        return f"{min(names)}() makes several rows of one; a condition says yes or no"
    if isinstance(node, exp.AggFunc):
        return f"{min(names)}() needs many rows; a condition reads one row"
    # A node may have names of other dialects in addition to Spark's own; the words that were written are checked elsewhere.
    return next(function_problems(names), None) if names & (CHANGING | MAKING_ROWS | OF_MANY_ROWS) else None


def _lambda_problem(node: exp.Expr) -> str | None:
    takes = next((LAMBDAS[name] for name in sorted(_names(node)) if name in LAMBDAS), ())
    given = [child for child in node.iter_expressions() if isinstance(child, exp.Lambda)]
    if isinstance(node.this, exp.Query | exp.Values):
        return None  # EXISTS (SELECT …), which is refused as a subquery
    if not given and (not takes or "array_sort" in _names(node)):
        return None
    if not takes or isinstance(node, exp.Lambda):
        return _STRAY_LAMBDA
    if not given or len(given) > len(takes):
        return f"{min(_names(node) & LAMBDAS.keys())}() takes a lambda such as x -> x > 1; give it one"
    for lambda_, counts in zip(given, takes, strict=False):
        if len(lambda_.expressions) not in counts:
            name, wanted = min(_names(node) & LAMBDAS.keys()), " or ".join(map(str, sorted(counts)))
            return f"a lambda of {name}() has {len(lambda_.expressions)} parameters; expected {wanted}"
    return None


def _operand_problem(node: exp.Expr) -> str | None:
    """Whether a comparison has a comparison as its operand without parentheses, where Spark's order of evaluation is another."""
    comparisons = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ)
    predicates = (*comparisons, exp.Is, exp.In, exp.Between, exp.Like, exp.ILike)
    if not isinstance(node, predicates):
        return None
    if any(isinstance(operand, (*predicates, exp.Not, exp.And, exp.Or)) for operand in node.iter_expressions()):
        return "two comparisons stand side by side; put one of them in parentheses"
    return None


def _spelling_problem(node: exp.Expr) -> str | None:
    """What sqlglot knows from other dialects."""
    foreign = (exp.SimilarTo, exp.Glob, exp.JSON, exp.AtTimeZone, exp.Slice, exp.Overlaps, exp.JSONBExtract, exp.National)
    if isinstance(node, foreign) or (isinstance(node, exp.Between) and node.args.get("symmetric")):
        return f"{node.key.upper()} is no Spark SQL; use one of Spark's own functions"
    if isinstance(node, exp.If) and isinstance(node.this.unnest(), exp.Null):
        return "null is no condition; write false"
    if isinstance(node, exp.In) and not node.expressions and not node.args.get("query"):
        return "IN takes a list of values in parentheses, such as v in (1, 2)"
    if isinstance(node, exp.Cast) and node.args.get("format"):
        return "a cast has no FORMAT in Spark SQL; use to_timestamp, to_date or to_number"
    if isinstance(node, exp.DataType) and node.this in exp.DataType.UNSIGNED_INTEGER_TYPES:
        return "Spark SQL has no unsigned types; cast to bigint or decimal(20, 0)"
    return None


def _names(node: exp.Expr) -> set[str]:
    """The names of the function ``node`` in lower case; empty if it is not a function."""
    if isinstance(node, exp.Anonymous):
        return {str(node.this).lower()}
    if isinstance(node, exp.Any | exp.All):
        return set() if isinstance(node.parent, exp.Like | exp.ILike) else {"any"}
    # sqlglot also represents operators such as AND as functions.
    if isinstance(node, exp.Func) and not isinstance(node, exp.Connector | exp.Cast | exp.Case | exp.If):
        return {name.lower() for name in node.sql_names()}
    return set()


def clock_problem(node: exp.Expr) -> str | None:
    """Why the constant ``node`` may be an instant by the clock, and the remedy; null if it is not, or if it is no whole constant."""
    if not is_text(node) or not _is_constant(node) or _in_constant(node) or _as_text(node):
        return None
    text = _value(node)
    if text is None:
        return "a text that is computed from constants may be an instant by the clock; write it as one text"
    found = _BY_CLOCK.fullmatch(text)
    if found is None:
        return None
    if found[1].lower() == "epoch":
        return f"{text!r} names an instant only in constants; write '1970-01-01', or for a text string(…) = {text!r}"
    return (
        f"{text!r} is another instant at each run; conditions must hold of the same rows when a run is repeated; "
        f"write the instant itself, or for a text string(…) = {text!r}"
    )


def _value(node: exp.Expr) -> str | None:
    """The text of a constant; null if it is not plain to see."""
    if isinstance(node, exp.Literal):
        return str(node.this)
    if isinstance(node, exp.Paren | exp.Collate) or (isinstance(node, exp.Cast) and is_text(node.this)):
        return _value(node.this)
    if isinstance(node, exp.Concat | exp.DPipe):
        parts = [_value(part) for part in (node.expressions or (node.this, node.expression))]
        return None if None in parts else "".join(filter(None, parts))
    return None


def is_text(node: exp.Expr) -> bool:
    """Whether ``node`` is a text whatever the types of the columns."""
    if isinstance(node, exp.Paren):
        return is_text(node.this)
    if isinstance(node, exp.Literal):
        return bool(node.is_string)
    if isinstance(node, exp.Cast):
        return node.to.this in exp.DataType.TEXT_TYPES
    if isinstance(node, exp.Case | exp.If | exp.Coalesce | exp.Nullif | exp.Greatest | exp.Least):
        branches = node.args.get("ifs") or [node]
        values = [branch.args.get("true") for branch in branches] + [node.args.get("default"), node.args.get("false")]
        values += [node.this if not isinstance(node, exp.Case | exp.If) else None, *node.expressions]
        given = [value for value in values if value is not None]
        return bool(given) and all(is_text(value) for value in given)
    return isinstance(node, _MAKING_TEXTS) or (isinstance(node, exp.Anonymous) and str(node.this).lower() in _NAMED)


#: Functions that take a text, or a value of any type as it is.
_TAKING_TEXTS = frozenset(
    """
    array_contains array_position array_remove ascii element_at find_in_set get_json_object hash instr length levenshtein locate
    map_contains_key position regexp_count regexp_instr regexp_split sha sha1 sha2 soundex split xxhash64
    """.split()  # noqa: SIM905 - quotes and commas would double the length
)
#: Functions of texts that sqlglot has no type for.
_NAMED = frozenset({"string", "format_string", "printf", "char", "elt", "btrim", "date_format", "url_decode", "url_encode", "mask"})


#: Sqlglot's classes of functions that give texts.
_MAKING_TEXTS = tuple(
    getattr(exp, name)
    for name in """
    Concat ConcatWs DPipe Lower Upper Trim Substring SubstringIndex Replace Initcap Left Right Pad Repeat Collate RegexpReplace
    RegexpExtract TimeToStr JSONExtractScalar Reverse Translate Overlay Chr SplitPart FormatNumber MD5 Hex
    """.split()  # noqa: SIM905
    if hasattr(exp, name)
)


def _is_constant(node: exp.Expr) -> bool:
    return node.find(exp.Column) is None


def _in_constant(node: exp.Expr) -> bool:
    """Whether ``node`` is part of a larger constant text: then only the larger one counts."""
    parent = node.parent
    while isinstance(parent, exp.Paren):
        parent = parent.parent
    return parent is not None and is_text(parent) and _is_constant(parent)


def _as_text(node: exp.Expr) -> bool:
    """Whether Spark leaves a text at ``node`` a text."""
    parent = node.parent
    while isinstance(parent, exp.Paren):
        node, parent = parent, parent.parent
    while isinstance(parent, exp.Any | exp.All | exp.Tuple):
        node, parent = parent, parent.parent
    if isinstance(parent, exp.Like | exp.ILike | exp.RegexpLike | exp.Bracket | exp.StartsWith | exp.EndsWith | exp.Contains | exp.Length):
        return True
    if isinstance(parent, exp.EQ | exp.NEQ | exp.LT | exp.LTE | exp.GT | exp.GTE | exp.NullSafeEQ | exp.NullSafeNEQ):
        other = parent.right if parent.left is node else parent.left
        return is_text(other)
    if isinstance(parent, exp.Between):
        return is_text(parent.this) and all(is_text(parent.args[name]) for name in ("low", "high"))
    if isinstance(parent, exp.In):
        return is_text(parent.this) and all(map(is_text, parent.expressions))
    if isinstance(parent, exp.Anonymous):
        return str(parent.this).lower() in _TAKING_TEXTS or is_text(parent)
    if isinstance(parent, exp.Func) and _TAKING_TEXTS & {name.lower() for name in parent.sql_names()}:
        return True
    return parent is not None and is_text(parent) and not isinstance(parent, exp.Cast)


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


def _written_problems(text: str, tokens: Sequence[Token]) -> Iterator[str]:
    """Why Spark would not take a condition ``text`` of these ``tokens``, and the remedy."""
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
    kind = token.token_type.name
    return kind != "IDENTIFIER" and not kind.endswith("_STRING") and token.text not in _OPERATORS


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
        near = get_close_matches(name, OF_ONE_ROW, n=1, cutoff=0.8)
        yield f"{name}() is no function of Spark SQL over one row" + (
            f"; did you mean {near[0]}()?" if near else "; use one of Spark's own"
        )


#: Functions of :data:`CHANGING` that a query may call: a rule may compare results with the time of its run.
_CLOCK = frozenset(
    {"curdate", "current_date", "current_time", "current_timestamp", "current_timezone", "getdate", "localtime", "localtimestamp", "now"}
)
_REFUSED = (CHANGING - _CLOCK) | {"identifier"}
_KNOWN = OF_ONE_ROW | OF_MANY_ROWS | MAKING_ROWS | _CLOCK
#: For Spark, unlike sqlglot, such a comment goes on in the next line.
_CONTINUED = re.compile(r"--[^\r\n]*\\\r?\n")
_NO_CONTINUATION = "a comment's line ends with a backslash; take it out"


def rule_sql_problems(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What speaks against the SQL among the ``arguments`` of a rule, as pairs (argument, problem and remedy)."""
    for text in _conditions_in(arguments.get("row_condition")):
        problem = _NO_CONTINUATION if _CONTINUED.search(text) else condition_problem(text)
        if problem is not None:
            yield "row_condition", problem
    query = arguments.get("unexpected_rows_query")
    if isinstance(query, str) and (problem := query_problem(query)) is not None:
        yield "unexpected_rows_query", f"got {query[:120]!r}; {problem}"


def _conditions_in(condition: object) -> Iterator[str]:
    """The SQL texts of a condition in the form of Great Expectations, which may combine several."""
    if isinstance(condition, Mapping):
        if isinstance(condition.get("pass_through_filter"), str):
            yield condition["pass_through_filter"]
        parts = condition.get("conditions")
        for part in parts if isinstance(parts, list) else ():
            yield from _conditions_in(part)


def query_problem(query: str) -> str | None:
    """Why ``query`` is not one SELECT over ``{batch}`` by functions of Spark SQL, and the remedy; null if it is one."""
    if len(query) > _LONGEST:
        return f"{len(query)} characters; expected at most {_LONGEST}"
    text = _over_batch(query)
    if text is None:
        return "expected SQL over {batch}, as in SELECT * FROM {batch} WHERE …, without other braces"
    if _CONTINUED.search(query):
        return _NO_CONTINUATION
    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns on standard error about statements, which are refused below
    try:
        spark = dialect("spark")
        trees, tokens = [tree for tree in sqlglot.parse(text, read=spark) if tree is not None], sqlglot.tokenize(text, read=spark)
    except (sqlglot.errors.SqlglotError, RecursionError, IndexError):
        return "not a query of Spark SQL that can be checked; correct it, or write it in a simpler form"
    if len(trees) != 1 or not isinstance(trees[0], sqlglot.exp.Query):
        return "expected one SELECT"
    for node in trees[0].walk():
        if isinstance(node, exp.QueryTransform):
            return "TRANSFORM … USING starts a program; a rule only reads"
        if isinstance(node, exp.DDL | exp.DML | exp.Command):
            return "expected one SELECT; a rule only reads"
        if isinstance(node, exp.Anonymous) and node.name.lower() not in _KNOWN | _REFUSED:
            return f"{node.name[:60]}() is no function of Spark SQL; use one of Spark's own"
    for token, after in pairwise(tokens):
        if after.token_type.name == "L_PAREN" and token.token_type.name != "STRING" and token.text.lower() in _REFUSED:
            return f"{token.text.lower()}() depends on more than the rows, or calls Java; a rule calls other functions of Spark SQL"
    return None


def _over_batch(query: str) -> str | None:
    """``query`` as Great Expectations fills it; null if braces hold something else than ``batch``, or nothing names it."""
    try:
        parts = list(string.Formatter().parse(query))
    except ValueError:
        return None
    named = [(name, form, conversion) for _, name, form, conversion in parts if name is not None]
    if not named or any(each != ("batch", "", None) for each in named):
        return None
    return "".join(f"{literal}{'' if name is None else '(batch)'}" for literal, name, *_ in parts)
