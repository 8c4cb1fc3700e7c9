"""The rules of a pipeline, those of its spec and those that every pipeline has, and their static checks.

Great Expectations takes seconds to import, so rules are checked against the JSON schemas in its package.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyarrow import types

from windowmill.expectations.rule import OF_PAST, QUARANTINED_RATE, Origin, Rule, Severity, past_problems, rate_problems
from windowmill.windowing.errors import MachineError
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.windows.base import Window

if TYPE_CHECKING:
    import pyarrow as pa


#: Type of the rule about the names of all columns.
COLUMNS = "expect_table_columns_to_match_ordered_list"
#: Arguments that name one column each.
_COLUMN_ARGUMENTS = ("column", "column_A", "column_B")
#: Arguments that the gate sets on every rule, or that have no meaning for a batch in memory.
_NOT_ARGUMENTS = {"batch_id", "catch_exceptions", "id", "meta", "metadata", "rendered_content", "result_format", "severity", "windows"}
#: Types that no batch can be judged by, and why.
_IMPOSSIBLE = {
    **dict.fromkeys(
        ("expect_query_results_to_match_comparison", "expect_table_row_count_to_equal_other_table"),
        "which compares with a second data source; a batch has none, use unexpected_rows_expectation",
    ),
    **{
        f"expect_column_values_to_{'not_' if negated else ''}match_like_pattern{listed}": "which only databases evaluate; use "
        f"expect_column_values_to_{'not_' if negated else ''}match_regex{listed}"
        for negated in (False, True)
        for listed in ("", "_list")
    },
    "expect_column_values_to_be_dateutil_parseable": "which Spark does not evaluate, and large batches are judged by Spark; use "
    "expect_column_values_to_match_strftime_format",
}
#: Types that say nothing without an argument which their schema does not require.
_NEEDED = {
    "expect_table_columns_to_match_ordered_list": ("column_list",),
    "expect_table_columns_to_match_set": ("column_set",),
    "expect_column_values_to_be_in_type_list": ("type_list",),
    "expect_column_kl_divergence_to_be_less_than": ("partition_object", "threshold"),
}
#: Arguments common to the types without a schema; their other arguments are checked when a rule is built.
_COMMON_ARGUMENTS = {"column", "condition_parser", "description", "mostly", "notes", "row_condition"}
#: Great Expectations' own condition syntax, which every engine supports; any other text is Spark SQL.
_CONDITION = re.compile(
    r"""\s*col\("(?P<column>[^"]+)"\)\s*
    (?: \.not[nN]ull\(\)
      | (?P<operator>==|!=|<=|>=|<|>)\s*(?: (?P<number>[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?) | (?P<quote>["'])(?P<text>.*)(?P=quote) )
    )\s*""",
    re.VERBOSE,
)
#: Great Expectations evaluates this type by SQL made of the columns' names.
_SUM_OF_COLUMNS = "expect_multicolumn_sum_to_equal"
#: This type has its bounds in ``quantile_ranges``.
_QUANTILES = "expect_column_quantile_values_to_be_between"


def sink_columns(pipeline: Pipeline) -> tuple[str, ...]:
    """Columns of the pipeline's result table, in order."""
    return (*pipeline.keys, "window", "window_start", "window_end", "trigger", "revision", *pipeline.aggregates, "batch")


def identity_columns(pipeline: Pipeline) -> tuple[str, ...]:
    columns = [*pipeline.keys, "window", "window_end"]
    if any(window.ends_can_coincide for window in pipeline.windows):
        columns.insert(-1, "window_start")
    if any(window.numbers_triggers for window in pipeline.windows):
        columns.append("trigger")
    if pipeline.emit == "revise":
        columns.append("revision")
    return tuple(columns)


def rules(pipeline: Pipeline, columns: Sequence[str] | None = None) -> tuple[Rule, ...]:
    """The suite of a pipeline; ``columns`` are those of its result, by default :func:`sink_columns`."""
    written: list[tuple[Origin, str, dict[str, Any], Severity]] = [
        ("spec", expectation.type, _with_condition(expectation.arguments), expectation.severity) for expectation in pipeline.expectations
    ]
    always = _always(pipeline, list(columns or sink_columns(pipeline)))
    written += [("always", name, arguments, "critical") for name, arguments in always]
    limits: tuple[tuple[Severity, float | None], ...] = (("critical", pipeline.quarantine.hold), ("warning", pipeline.quarantine.warn))
    written += [("always", QUARANTINED_RATE, {"max_value": most}, severity) for severity, most in limits if most is not None]
    found = []
    for index, (origin, name, arguments, severity) in enumerate(written):
        about = ", ".join(str(column) for _, column in _columns(name, arguments)) or None
        found.append(Rule(index=index, origin=origin, type=name, column=about, arguments=arguments, severity=severity))
    return tuple(found)


def is_sql(rule: Rule) -> bool:
    """Whether the rule is SQL text, which may also read other tables, or the clock."""
    condition = rule.arguments.get("row_condition")
    return (isinstance(condition, Mapping) and condition.get("type") == "pass_through") or rule.type == "unexpected_rows_expectation"


def needs_spark(rule: Rule) -> bool:
    """Whether only Spark can evaluate the rule: SQL text, or types by their Spark names."""
    return is_sql(rule) or rule.type in {
        "expect_column_type_to_be",
        "expect_column_values_to_be_of_type",
        "expect_column_values_to_be_in_type_list",
    }


def windows_of(rule: Rule) -> frozenset[str] | None:
    """The windows whose rows the condition of ``rule`` names; null if it has no condition, or one about something else."""
    condition = rule.arguments.get("row_condition")
    if not isinstance(condition, Mapping) or condition.get("type") != "comparison" or condition.get("column") != {"name": "window"}:
        return None
    names = {"IN": condition.get("parameter"), "==": [condition.get("parameter")]}.get(condition.get("operator", ""))
    return frozenset(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def check_rules(pipeline: Pipeline, columns: Sequence[str]) -> list[str]:
    """Problems of the spec's rules over a result with the ``columns``, one line each: field path, value, known alternatives."""
    problems: list[str] = []
    for rule in rules(pipeline, columns):
        if rule.origin == "spec":
            where = f"expectations.{rule.index}"
            written = pipeline.expectations[rule.index].arguments
            found = past_problems(rule.type, written, pipeline) if rule.type in OF_PAST else _problems(rule, written, columns)
            problems += [f"{where}{f'.{field}' if field else ''}: {problem}" for field, problem in found]
    return problems


def _always(pipeline: Pipeline, columns: list[str]) -> Iterable[tuple[str, dict[str, Any]]]:
    yield COLUMNS, {"column_list": columns}
    yield "expect_compound_columns_to_be_unique", {"column_list": list(identity_columns(pipeline))}
    policies = [window for window in pipeline.windows if window.numbers_triggers]
    # A policy window that fires on its first tuple starts and ends at that tuple's time; an empty one has no start.
    for windows, or_equal in (([w for w in pipeline.windows if w not in policies], False), (policies, True)):
        if windows:
            pair = {"column_A": "window_end", "column_B": "window_start", "or_equal": or_equal, "ignore_row_if": "either_value_is_missing"}
            yield "expect_column_pair_values_a_to_be_greater_than_b", pair | _only(windows, pipeline)
    for name, aggregate in pipeline.aggregates.items():
        if aggregate.function == "count" and not aggregate.columns:
            filled = [w for w in pipeline.windows if w not in policies and w.empty == "skip" and aggregate.where is None]
            for windows, least in ((filled, 1), ([w for w in pipeline.windows if w not in filled], 0)):
                if windows:
                    yield "expect_column_values_to_be_between", {"column": name, "min_value": least} | _only(windows, pipeline)


def _only(windows: Sequence[Window], pipeline: Pipeline) -> dict[str, Any]:
    """A row condition for the rows of ``windows``; empty if these are all windows."""
    if len(windows) == len(pipeline.windows):
        return {}
    names = [window.name for window in windows]
    return {"row_condition": {"type": "comparison", "column": {"name": "window"}, "operator": "IN", "parameter": names}}


def _with_condition(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments with a parsed condition; Great Expectations has deprecated condition text and its ``condition_parser``."""
    condition = arguments.get("row_condition")
    if not isinstance(condition, str):
        return arguments
    match = _CONDITION.fullmatch(condition)
    column = {"name": match["column"]} if match else None
    if match is None:
        parsed: dict[str, Any] = {"type": "pass_through", "pass_through_filter": condition}
    elif match["operator"] is None:
        parsed = {"type": "nullity", "column": column, "is_null": False}
    else:
        value = match["text"] if match["number"] is None else json.loads(match["number"].lstrip("+"))
        parsed = {"type": "comparison", "column": column, "operator": match["operator"], "parameter": value}
    return {name: value for name, value in arguments.items() if name != "condition_parser"} | {"row_condition": parsed}


def _columns(rule_type: str, arguments: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The columns that a rule is about, each with its field."""
    listed = () if rule_type.startswith("expect_table_") else arguments.get("column_list")
    named = [(name, arguments[name]) for name in _COLUMN_ARGUMENTS if name in arguments]
    return [*named, *((f"column_list.{index}", name) for index, name in enumerate(listed if isinstance(listed, list) else ()))]


def _problems(rule: Rule, written: Mapping[str, Any], columns: Sequence[str]) -> Iterable[tuple[str, str]]:
    if rule.type == QUARANTINED_RATE:
        yield from rate_problems(written)
        return
    known = _known_types()
    if rule.type not in known:
        every = [*known, QUARANTINED_RATE, *OF_PAST]
        yield "type", f"got {rule.type!r}; {_near(rule.type, every, 'see the list of expectations of Great Expectations')}"
        return
    if rule.type in _IMPOSSIBLE:
        yield "type", f"got {rule.type!r}, {_IMPOSSIBLE[rule.type]}"
        return
    schema = _schema(known[rule.type])
    arguments = (set(schema["properties"]) if schema else _COMMON_ARGUMENTS | set(written)) - _NOT_ARGUMENTS
    for name, value in written.items():
        if name not in arguments:
            own = ", ".join(sorted(arguments - (_COMMON_ARGUMENTS - {"column"}))) or "none"
            yield name, f"unknown argument of {rule.type}; {_near(name, arguments, f'its own are {own}')}"
        elif isinstance(value, Mapping) and "$PARAMETER" in value:
            yield name, f"got the parameter {value['$PARAMETER']!r} of a suite, to which a batch gives no value; write the value itself"
        elif schema and (expected := _expected(schema, name, value)):
            others = "; compare other values by unexpected_rows_expectation" if name == "value_set" else ""
            yield name, f"got {value!r}; expected {expected}{others}"
    for name in (*(schema.get("required", ()) if schema else ("column",)), *_NEEDED.get(rule.type, ())):
        if name not in written:
            yield name, f"missing; {rule.type} needs it"
    if arguments.issuperset(written):  # otherwise a bound that seems to be missing may be misspelt
        yield from argument_problems(rule.type, written)
    yield from _unknown_columns(written, columns)
    yield from _condition_problems(written, columns)
    if rule.type == _SUM_OF_COLUMNS:
        for field, name in _columns(rule.type, written):
            if "`" in str(name):
                yield field, f"got {name!r}; {rule.type} makes SQL of it, which holds no backtick; rename the column"


def _unknown_columns(written: Mapping[str, Any], columns: Sequence[str]) -> Iterable[tuple[str, str]]:
    # Rules of any type: the columns of a rule about the table are checked, too.
    for field, column in _columns("", written):
        if isinstance(column, str) and column not in columns:
            yield field, f"got {column!r}, which is not a column of the result; {_near_column(column, columns)}"


def _condition_problems(written: Mapping[str, Any], columns: Sequence[str]) -> Iterable[tuple[str, str]]:
    form = 'col("window") == "hourly", or a Spark SQL condition'
    if written.get("condition_parser") not in (None, "great_expectations", "spark"):
        yield "condition_parser", f"got {written['condition_parser']!r}; leave it out and write row_condition as {form}"
    condition = written.get("row_condition")
    if not isinstance(condition, str):
        return
    match = _CONDITION.fullmatch(condition)
    if match is None and condition.lstrip().startswith("col("):
        yield "row_condition", f"got {condition!r}; expected {form}"
    elif match and match["column"] not in columns:
        lacking = f"{match['column']!r} is not a column of the result; {_near_column(match['column'], columns)}"
        yield "row_condition", f"got {condition!r}; {lacking}"


def _near(name: str, known: Iterable[str], otherwise: str) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def _near_column(column: str, columns: Sequence[str]) -> str:
    return _near(column, columns, f"known are {', '.join(columns)}")


def _schema_folder() -> Path:
    package = importlib.util.find_spec("great_expectations")
    if package is None or package.origin is None:
        raise MachineError("great_expectations is not installed; install windowmill with its dependencies")
    return Path(package.origin).parent / "expectations" / "core" / "schemas"


@functools.cache
def _known_types() -> dict[str, str | None]:
    """Schema file of each expectation by snake_case name; ``None`` for those without one."""
    index = json.loads((_schema_folder() / "index.json").read_bytes())
    return {name: entry["schema_file"] for name, entry in index["expectations"].items()} | dict.fromkeys(index["documented_absent"])


@functools.cache
def _schema(file: str | None) -> dict[str, Any] | None:
    return json.loads((_schema_folder() / file).read_bytes()) if file else None


def _expected(schema: Mapping[str, Any], name: str, value: Any) -> str | None:
    """Describe the values that the schema allows for an argument; ``None`` if ``value`` is one of them."""
    import jsonschema

    # Great Expectations requires `mostly` to be a multiple of 0.01, which 0.07 is not in floating point.
    wanted = {key: part for key, part in schema["properties"][name].items() if key != "multipleOf"}
    checker = jsonschema.FormatChecker(())
    for form, read in (("date", date.fromisoformat), ("date-time", datetime.fromisoformat)):
        checker.checks(form, ValueError)(lambda text, read=read: not isinstance(text, str) or bool(read(text)))
    validator = jsonschema.Draft7Validator({"definitions": schema.get("definitions", {}), **wanted}, format_checker=checker)
    if validator.is_valid(json.loads(json.dumps(value, default=lambda part: part.isoformat() if isinstance(part, date) else str(part)))):
        return None
    forms = [_form(part) for part in wanted.get("anyOf", [wanted])]
    # An object is a run-time parameter of a Great Expectations checkpoint, which a gate does not have.
    return " or ".join(dict.fromkeys(str(form) for form in forms if form not in (None, "object"))) or "another value"


def _form(part: Mapping[str, Any]) -> str | None:
    """What a part of a JSON schema allows, in words; null if it does not say.

    >>> _form({"oneOf": [{"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}}, {"type": "number", "minimum": 0}]})
    'a list of 1 or more non-empty strings or number'
    """
    if "oneOf" in part:
        forms = [_form(each) for each in part["oneOf"]]
        return None if None in forms else " or ".join(map(str, forms))
    items = part.get("items")
    if isinstance(items, Mapping) and "type" in items:
        least = f"{part['minItems']} or more " if "minItems" in part else ""
        return f"a list of {least}{'non-empty ' if items.get('minLength') else ''}{items['type']}s"
    limits = f" from {part['minimum']:g} to {part['maximum']:g}" if {"minimum", "maximum"} <= set(part) else ""
    return f"{part.get('format') or part['type']}{limits}" if "type" in part else None


def argument_problems(rule_type: str, written: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Problems of the arguments ``written`` for a rule of ``rule_type``, as pairs (argument, problem and remedy)."""
    for name in ("regex", "regex_list"):
        patterns = written.get(name)
        for index, pattern in enumerate(patterns if isinstance(patterns, list) else [patterns]):
            problem = _pattern_problem(pattern) if isinstance(pattern, str) else None
            if problem:
                yield (f"{name}.{index}" if isinstance(patterns, list) else name), problem
    if isinstance(partition := written.get("partition_object"), Mapping):
        yield from _partition_problems(partition)
    yield from _bound_problems(written.get("min_value"), written.get("max_value"), "min_value")
    ranges = written.get("quantile_ranges")
    listed = ranges.get("value_ranges") if isinstance(ranges, Mapping) else None
    for index, pair in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(pair, list) and len(pair) == 2:
            low, high = pair
            yield from _bound_problems(low, high, f"quantile_ranges.value_ranges.{index}")
    bounded = rule_type.endswith("_to_be_between") and rule_type != _QUANTILES
    if bounded and written.get("min_value") is None and written.get("max_value") is None:
        yield "min_value", f"missing, and so is max_value; {rule_type} needs one of them"


def _partition_problems(partition: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Problems at which Great Expectations would stop: shares that are no distribution over the values, or over the spans between bins."""
    shares, tails = partition.get("weights"), partition.get("tail_weights", [])
    over = next((name for name in ("values", "bins") if isinstance(partition.get(name), list)), None)
    numbers: list[Any] = [*shares, *tails] if isinstance(shares, list) and isinstance(tails, list) else [None]
    if over is None or not all(isinstance(share, int | float) for share in numbers):
        yield "partition_object", f"got {partition!r}; expected a list of values or bins, and weights, the share of each"
        return
    n_spans = len(partition[over]) - (over == "bins")
    if len(numbers) - len(tails) != n_spans or len(tails) not in (0, 2) or not math.isclose(math.fsum(numbers), 1, rel_tol=1e-5):
        spans = over if over == "values" else "spans between bins"
        yield "partition_object.weights", f"got {shares!r}; expected a share for each of the {spans}, 1 together"
    elif over == "bins" and any(low >= high for low, high in itertools.pairwise(partition["bins"])):
        yield "partition_object.bins", f"got {partition['bins']!r}; expected numbers that ascend"


def _pattern_problem(pattern: str) -> str | None:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as err:
        return f"got {pattern[:120]!r}; not a regular expression ({err}); correct it"
    return None


def _bound_problems(low: Any, high: Any, field: str) -> Iterable[tuple[str, str]]:
    for bound in (low, high):
        if isinstance(bound, float) and math.isnan(bound):
            yield field, "got .nan; nothing is greater or less than it, give a number"
            return
    if low is None or high is None:
        return
    numbers = isinstance(low, int | float) and isinstance(high, int | float)
    if not numbers and not (isinstance(low, str) and isinstance(high, str)) and not (isinstance(low, date) and type(low) is type(high)):
        if isinstance(low, str | int | float) and isinstance(high, str | int | float):
            yield field, f"got {low!r} and {high!r}; expected two numbers, or two instants"
        return
    try:
        wrong = low > high
    except TypeError:  # an instant with a zone and one without
        yield field, f"got {low!r} and {high!r}; give both a time zone, or neither"
        return
    if wrong:
        yield field, f"got {low!r}, which is greater than {high!r}; no value lies between them"


Kind = Literal["numbers", "dates", "instants", "texts", "booleans", "binary values", "lists or structs"]

_NUMBERS: tuple[Kind, ...] = ("numbers",)
_ORDERED: tuple[Kind, ...] = ("numbers", "dates", "instants")
_HASHED: tuple[Kind, ...] = (*_ORDERED, "texts", "booleans", "binary values")
#: The kinds of values that a rule of each type takes; others take all.
_TAKEN: dict[str, tuple[Kind, ...]] = {
    **{f"expect_column_{name}_to_be_between": _NUMBERS for name in ("mean", "median", "sum", "stdev", "quantile_values")},
    "expect_column_value_z_scores_to_be_less_than": _NUMBERS,
    "expect_column_values_to_not_be_outliers": _NUMBERS,
    "expect_multicolumn_sum_to_equal": _NUMBERS,
    **{f"expect_column_{name}_to_be_between": _ORDERED for name in ("values", "max", "min")},
    **{f"expect_column_values_to_be_{name}creasing": _ORDERED for name in ("in", "de")},
    "expect_column_values_to_match_strftime_format": ("texts",),
    **{f"expect_column_{name}_to_be_between": _HASHED for name in ("unique_value_count", "proportion_of_unique_values")},
    "expect_column_kl_divergence_to_be_less_than": _HASHED,
    "expect_compound_columns_to_be_unique": _HASHED,
    "expect_select_column_values_to_be_unique_within_record": _HASHED,
}
#: Rules that compare values of a row.
_COMPARING = (
    "expect_column_pair_values_to_be_equal",
    "expect_column_pair_values_a_to_be_greater_than_b",
    "expect_multicolumn_values_to_be_equal",
    "expect_select_column_values_to_be_unique_within_record",
)
_INSTEAD = "use unexpected_rows_expectation"


def type_problems(pipeline: Pipeline, schema: pa.Schema) -> Iterable[tuple[str, str]]:
    """Rules of the spec over columns of types that they do not take, as pairs (field, problem and remedy).

    ``schema`` is that of the result's rows. Rules must be valid except for types (:func:`check_rules`).
    """
    kinds = {field.name: _kind_of(field.type) for field in schema}
    for rule in rules(pipeline):
        if rule.origin == "spec":
            for name, problem in _type_problems(rule, kinds):
                yield f"expectations.{rule.index}.{name}", problem


def _type_problems(rule: Rule, kinds: Mapping[str, Kind]) -> Iterable[tuple[str, str]]:
    taken = _TAKEN.get(rule.type)
    columns = [(field, name) for field, name in _columns(rule.type, rule.arguments) if name in kinds]
    for field, name in columns:
        if taken is not None and kinds[name] not in taken:
            yield field, f"got {name!r}, which holds {kinds[name]}; {rule.type} takes {' or '.join(taken)} alone, {_INSTEAD}"
            return
    if rule.type in _COMPARING:
        first = kinds[columns[0][1]] if columns else None
        for field, name in columns:
            if kinds[name] != first:
                yield field, f"got {name!r}, which holds {kinds[name]}; {rule.type} compares them with {first}, {_INSTEAD}"
                return
    if taken is _ORDERED and columns:
        kind = kinds[columns[0][1]]
        for bound in ("min_value", "max_value"):
            value = rule.arguments.get(bound)
            if value is not None and isinstance(value, str | date) == (kind == "numbers"):
                yield bound, f"got {value!r}, but {columns[0][1]!r} holds {kind}; give {'a number' if kind == 'numbers' else 'an instant'}"
                return


def _kind_of(kind: pa.DataType) -> Kind:
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "numbers"
    if types.is_date(kind):
        return "dates"
    if types.is_timestamp(kind):
        return "instants"
    if types.is_boolean(kind):
        return "booleans"
    if types.is_nested(kind):
        return "lists or structs"
    return "binary values" if types.is_binary(kind) or types.is_fixed_size_binary(kind) or types.is_large_binary(kind) else "texts"
