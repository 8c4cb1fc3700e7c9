"""Finds rules over columns of types that no engine of Great Expectations, or one alone, takes: they would hold every batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from typing import TYPE_CHECKING, Any, Literal

from windowmill.expectations.suites import rules

if TYPE_CHECKING:
    import pyarrow as pa

    from windowmill.expectations.rule import Rule
    from windowmill.windowing.spec import Pipeline

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

    ``schema`` is that of the result's rows. Rules must be right but for the types (:func:`windowmill.expectations.suites.check_rules`).
    """
    kinds = {field.name: _kind_of(field.type) for field in schema}
    for rule in rules(pipeline):
        if rule.origin == "spec":
            for name, problem in _problems(rule, kinds):
                yield f"expectations.{rule.index}.{name}", problem


def _problems(rule: Rule, kinds: Mapping[str, Kind]) -> Iterable[tuple[str, str]]:
    taken = _TAKEN.get(rule.type)
    columns = [(field, name) for field, name in _columns(rule) if name in kinds]
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


def _columns(rule: Rule) -> list[tuple[str, Any]]:
    """The columns that the rule is about, each with its field."""
    listed = rule.arguments.get("column_list")
    named = [(name, rule.arguments[name]) for name in ("column", "column_A", "column_B") if name in rule.arguments]
    of_table = rule.type.startswith("expect_table_") or not isinstance(listed, list)
    return named if of_table else [*named, *((f"column_list.{place}", name) for place, name in enumerate(listed or ()))]


def _kind_of(kind: pa.DataType) -> Kind:
    from pyarrow import types

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
