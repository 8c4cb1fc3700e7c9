"""Evaluates Spark SQL expressions over Arrow tables: one recursive function over the tree, which gives values and where they fail.

Fields of structs and items of arrays and maps are read here; functions of other modules are known by their names.

A node or function without a rule here, or one of a type that its rule does not take, is outside: :class:`.OutsideError`. Whether it is
depends on the types of the columns alone, so an expression over no rows shows it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

import windowmill.jobs.conditions.numbers  # noqa: F401 - all of them register functions
from windowmill.jobs.conditions import evaluated, times
from windowmill.jobs.conditions.casts import cast, cast_to_common, holds, try_cast
from windowmill.jobs.conditions.checks import columns_of, parsed, parts_problem
from windowmill.jobs.conditions.evaluated import (
    BOOL,
    DOUBLE,
    FUNCTIONS,
    INT,
    INTERVAL,
    LONG,
    MAX_DIGITS,
    MONTHS,
    NULL,
    TEXT,
    Call,
    Computed,
    Evaluator,
    Mask,
    NoValueError,
    OutsideError,
    Value,
    applied,
    as_truth,
    at,
    calls,
    either,
    is_whole,
    mask_of,
    numbers_of,
    outside,
    rule,
    without,
)
from windowmill.jobs.conditions.numbers import CASTS, arithmetic, choice, compared, is_null, negative, same
from windowmill.jobs.conditions.text_functions import like, trimmed
from windowmill.windowing.errors import SpecError

#: Types of casts that sqlglot names otherwise than Spark.
_TYPES = {
    "TEXT": TEXT,
    "VARCHAR": TEXT,
    **dict.fromkeys(("TIMESTAMPTZ", "TIMESTAMPLTZ"), evaluated.INSTANT),
    "TIMESTAMPNTZ": evaluated.LOCAL_TIME,
}
_COMPARISONS: Mapping[type, str] = {exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
_ARITHMETIC: Mapping[type, str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%", exp.IntDiv: "div"}
_BITS: Mapping[type, Callable[..., pa.Array]] = {
    exp.BitwiseAnd: pc.bit_wise_and,
    exp.BitwiseOr: pc.bit_wise_or,
    exp.BitwiseXor: pc.bit_wise_xor,
}


@rule(exp.Literal, exp.RawString)
def _literal(own: Evaluator, node: exp.Literal) -> Value:
    text = str(node.this)
    if node.is_string or isinstance(node, exp.RawString):
        return own.constant(text, TEXT)
    if text.isdigit():
        whole = int(text)
        kind = INT if whole < 1 << 31 else LONG if whole < 1 << 63 else _decimal(len(str(whole)), 0)
        return own.constant(Decimal(whole) if pa.types.is_decimal(kind) else whole, kind)
    if "e" in text.lower():
        return own.constant(float(text), DOUBLE)
    value = Decimal(text)
    scale = len(text.partition(".")[2])
    return own.constant(value, _decimal(max(scale, len(value.as_tuple().digits)), scale))


def _decimal(precision: int, scale: int) -> pa.DataType:
    if precision > MAX_DIGITS:
        raise OutsideError(f"a number of {precision} digits")
    return pa.decimal128(precision, scale)


rule(exp.Null)(lambda own, _: own.constant(None, NULL))
rule(exp.Boolean)(lambda own, node: own.constant(bool(node.this), BOOL))
rule(exp.Paren)(lambda own, node: own.value(node.this))
rule(exp.Interval)(times.literal_interval)
rule(exp.Concat)(lambda own, node: own.constant("".join(part.name for part in node.expressions), TEXT))  # texts side by side


@rule(exp.Column, exp.Identifier)
def _column(own: Evaluator, node: exp.Column | exp.Identifier) -> Value:
    parts = [part.name for part in node.parts] if isinstance(node, exp.Column) else [node.name]
    same_case = [name for name in own.columns if name == parts[0]]
    names = same_case or [name for name in own.columns if name.lower() == parts[0].lower()]
    if len(names) != 1:
        raise outside(f"column {parts[0]!r}")
    found = Value(own.columns[names[0]])
    for name in parts[1:]:
        found = _field_of(own, found, name)
    return found


@rule(exp.Dot)
def _field(own: Evaluator, node: exp.Dot) -> Value:
    if not isinstance(node.expression, exp.Identifier):
        raise outside(node.sql("spark"))
    return _field_of(own, own.value(node.this), node.expression.name)


@rule(exp.Bracket)
def _item(own: Evaluator, node: exp.Bracket) -> Value:
    if len(node.expressions) != 1:
        raise outside(node.sql("spark"))
    value, index = own.value(node.this), own.value(node.expressions[0])
    if pa.types.is_struct(value.kind) and index.kind == TEXT and index.literal:
        return _field_of(own, value, index.literal)
    return _of_key(value, index) if pa.types.is_map(value.kind) else _of_place(value, index, "[")


@rule(exp.And, exp.Or)
def _connection(own: Evaluator, node: exp.Connector) -> Value:
    return _connected(own.truth(node.left), own.truth(node.right), conjunction=isinstance(node, exp.And))


def _connected(one: Value, other: Value, *, conjunction: bool) -> Value:
    """``one AND other``, or ``OR``; ``other`` is evaluated only where ``one`` does not decide."""
    decided = holds(pc.invert(one.array) if conjunction else one.array)
    failed = either(one.failed, at(other.failed, ~decided if one.failed is None else ~decided & ~one.failed))
    found = (pc.and_kleene if conjunction else pc.or_kleene)(one.array, other.array)
    return Value(without(found, failed), failed)


@rule(exp.Not)
def _negation(own: Evaluator, node: exp.Not) -> Value:
    value = own.truth(node.this)
    return Value(pc.invert(value.array), value.failed)


@rule(exp.Is)
def _test(own: Evaluator, node: exp.Is) -> Value:
    value = own.value(node.this)
    if isinstance(node.expression, exp.Null):
        return is_null(value)
    if isinstance(node.expression, exp.Boolean):
        return same(value, own.value(node.expression))
    raise outside(node.sql("spark"))


@rule(*_COMPARISONS)
def _compare(own: Evaluator, node: exp.Binary) -> Value:
    return compared(_COMPARISONS[type(node)], own.value(node.left), own.value(node.right))


@rule(exp.NullSafeEQ, exp.NullSafeNEQ)
def _compare_nulls(own: Evaluator, node: exp.Binary) -> Value:
    found = same(own.value(node.left), own.value(node.right))
    return found if isinstance(node, exp.NullSafeEQ) else Value(pc.invert(found.array), found.failed)


@rule(exp.Between)
def _between(own: Evaluator, node: exp.Between) -> Value:
    value, low, high = (own.value(node.args[name]) for name in ("this", "low", "high"))
    return _connected(compared(">=", value, low), compared("<=", value, high), conjunction=True)


@rule(exp.In)
def _membership(own: Evaluator, node: exp.In) -> Value:
    value, *items = cast_to_common(*(own.value(each) for each in (node.this, *node.expressions)), what="a list")
    if value.kind == NULL:
        return own.constant(None, BOOL)
    reached, found = value.valid, np.zeros(own.n, np.bool_)
    failed, unknown = value.failed, ~value.valid
    for item in items:
        equal = compared("=", Value(value.array), item)
        failed = either(failed, at(item.failed, reached))
        found |= reached & holds(equal.array)
        unknown |= reached & mask_of(equal.array.is_null())
        reached = reached & ~found
    return Value(pa.array(found, mask=(unknown & ~found) if failed is None else (unknown & ~found) | failed), failed)


@rule(exp.Cast, exp.TryCast)
def _cast(own: Evaluator, node: exp.Cast) -> Value:
    return (try_cast if isinstance(node, exp.TryCast) else cast)(own.value(node.this), _type_of(node.to))


def _type_of(node: exp.DataType) -> pa.DataType:
    limited = node.expressions
    name = str(node.this.value) if isinstance(node.this, exp.DataType.Type) else ""
    if name == "DECIMAL":
        digits = [int(each.name) for each in limited] if limited else [10]
        return pa.decimal128(digits[0], digits[1] if len(digits) > 1 else 0)
    found = _TYPES.get(name) or CASTS.get(name.lower())
    if found is None or limited:
        raise outside(f"a cast to {node.sql('spark')}")
    return found


def type_of_cast(text: str) -> pa.DataType | None:
    """The type of an expression that is a cast as a whole; null if it is none, or one to a type that is not known here."""
    tree = parsed(text).unnest()
    try:
        return _type_of(tree.to) if isinstance(tree, exp.Cast | exp.TryCast) else None
    except OutsideError:
        return None


@rule(*_ARITHMETIC)
def _arithmetic(own: Evaluator, node: exp.Binary) -> Value:
    left, right, sign = own.value(node.left), own.value(node.right), _ARITHMETIC[type(node)]
    if any(evaluated.is_time(value.kind) or value.kind in (INTERVAL, MONTHS) for value in (left, right)):
        return times.moved_by_interval(sign, left, right)
    for operand, value, opposite in ((node.left, left, right), (node.right, right, left)):
        number = operand.unnest()
        number = number.this if isinstance(number, exp.Neg) else number
        if isinstance(number, exp.Cast) and number.this.is_number and is_whole(value.kind) and pa.types.is_decimal(opposite.kind):
            # Spark takes the digits of a number with a suffix as they are, and of one that is cast those of the type; the tree is the same.
            raise outside(f"arithmetic ({sign}) of a decimal and {number.sql('spark')}", instead=str(number.this))
    return arithmetic(sign, left, right)


@rule(exp.Neg)
def _negative(own: Evaluator, node: exp.Neg) -> Value:
    if isinstance(node.this, exp.Literal) and not node.this.is_string and str(node.this.this).isdigit():
        # The least integer of a type is written with a sign.
        whole = -int(node.this.this)
        if whole in (-(1 << 31), -(1 << 63)):
            return own.constant(whole, INT if whole == -(1 << 31) else LONG)
    return negative(own.value(node.this))


@rule(exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot)
def _bits(own: Evaluator, node: Any) -> Value:
    if isinstance(node, exp.BitwiseNot):
        values, function = [own.value(node.this)], pc.bit_wise_not
    else:
        values, function = cast_to_common(own.value(node.left), own.value(node.right), what="bits"), _BITS[type(node)]
    if not is_whole(values[0].kind):
        raise outside("bits", values[0].kind)
    return applied(function, values)


@rule(exp.Like, exp.ILike, exp.Escape)
def _pattern(own: Evaluator, node: exp.Expr) -> Value:
    escape, inner = ("\\", node) if not isinstance(node, exp.Escape) else (node.expression.name, node.this)
    if not isinstance(inner, exp.Like | exp.ILike):
        raise outside(node.sql("spark"))
    found = like(own.value(inner.this), own.value(inner.expression), escape, ignore_case=isinstance(inner, exp.ILike))
    return Value(pc.invert(found.array), found.failed) if inner.args.get("negate") else found


@rule(exp.If, exp.Case)
def _choice(own: Evaluator, node: exp.If | exp.Case) -> Value:
    branches = node.args["ifs"] if isinstance(node, exp.Case) else [node]
    last = node.args.get("default" if isinstance(node, exp.Case) else "false")
    subject = own.value(node.this) if isinstance(node, exp.Case) and node.args.get("this") is not None else None
    given = [own.value(branch.this) for branch in branches]
    if any(value.kind == NULL for value in given):
        raise outside("null as the test of a choice", instead="false")
    tests = [as_truth(value) if subject is None else compared("=", subject, value) for value in given]
    otherwise = own.constant(None, NULL) if last is None else own.value(last)
    return choice(tests, [*(own.value(branch.args["true"]) for branch in branches), otherwise])


#: Function name and arguments of calls, and of other syntax that is a call.
_CALLS: Mapping[type, Callable[[Any], tuple[str, Sequence[exp.Expr | None]]]] = {
    exp.Anonymous: lambda node: (str(node.this).lower(), node.expressions),
    exp.DPipe: lambda node: ("concat", [node.left, node.right]),
    exp.RegexpLike: lambda node: ("rlike", [node.this, node.expression]),
    exp.Substring: lambda node: ("substring", [node.this, node.args.get("start"), node.args.get("length")]),
    exp.StrPosition: lambda node: ("position", [node.args["substr"], node.this, node.args.get("position")]),
    exp.Extract: lambda node: ("extract", [exp.Literal.string(node.this.name), node.expression]),
}


@rule(*_CALLS)
def _call(own: Evaluator, node: exp.Expr) -> Value:
    name, arguments = _CALLS[type(node)](node)
    if name not in FUNCTIONS:
        raise outside(f"{name}()")
    return FUNCTIONS[name](Call(own, name, [each for each in arguments if each is not None]))


@rule(exp.Trim)
def _trim(own: Evaluator, node: exp.Trim) -> Value:
    characters = own.value(node.expression) if node.args.get("expression") else None
    return trimmed(str(node.args.get("position") or "both").lower(), own.value(node.this), characters)


def _field_of(own: Evaluator, value: Value, name: str) -> Value:
    """The field ``name`` of a struct, in any case; of a text that holds a JSON object its member of the name, as a text."""
    if own.in_json and value.kind == TEXT and value.literal is None:
        return applied(lambda texts: evaluated.by_value(texts, partial(_member, name), TEXT), [value])
    found = (
        [index for index, field in enumerate(value.kind) if field.name.lower() == name.lower()] if pa.types.is_struct(value.kind) else []
    )
    if len(found) != 1:
        raise outside(f"field {name!r}", value.kind)
    return Value(pc.struct_field(value.array, found[0]), value.failed)


def _member(name: str, text: str) -> str | None:
    """The member ``name`` of a JSON object: a text as it is, numbers as they are written; null if there is none."""
    try:
        found = json.loads(text, parse_int=_Written, parse_float=_Written)
    except (ValueError, RecursionError):
        return None
    value = found.get(name) if isinstance(found, dict) else None
    if value is not None and not isinstance(value, str):
        value = json.dumps(json.loads(text)[name], separators=(",", ":"), ensure_ascii=False)
    return None if value is None or _HALF_PAIR.search(value) else value


class _Written(str):
    """A number of JSON as it is written."""


#: Half a surrogate pair, which JSON can write, and which is no character.
_HALF_PAIR = re.compile("[\ud800-\udfff]")


def _first_equal(lists: pa.Array, items: pa.Array, wanted: pa.Array) -> tuple[npt.NDArray[Any], Mask]:
    """For each list, the first index whose item equals the ``wanted`` one, −1 if none does; and whether a comparison is null.

    ``items`` are the values of the lists, or the keys of maps.
    """
    starts, lengths = lists.offsets.to_numpy()[:-1].astype(np.int64), _lengths(lists)
    rows = np.repeat(np.arange(len(lists)), lengths)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    equal = compared("=", Value(items.take(pa.array(starts[rows] + within))), Value(wanted.take(pa.array(rows)))).array
    first, unknown, found = np.full(len(lists), -1), np.zeros(len(lists), np.bool_), holds(equal)
    first[rows[found][::-1]] = within[found][::-1]  # in reverse, so that the first of equal ones is written last
    unknown[rows[mask_of(equal.is_null())]] = True
    return first, unknown


def _of_key(value: Value, key: Value) -> Value:
    own = cast(key, value.kind.key_type)
    if evaluated.common(key.kind, value.kind.key_type) != value.kind.key_type:
        raise outside("a map's item", value.kind, key.kind)

    def found(maps: pa.Array, keys: pa.Array) -> Computed:
        first, _ = _first_equal(maps, maps.keys, keys)
        return maps.items.take(pa.array(first + maps.offsets.to_numpy()[:-1], mask=first < 0))

    return applied(found, [value, own])


def _lengths(lists: pa.Array) -> npt.NDArray[Any]:
    offsets = lists.offsets.to_numpy().astype(np.int64)
    return np.where(mask_of(lists.is_valid()), offsets[1:] - offsets[:-1], 0)


def _of_place(value: Value, index: Value, name: str) -> Value:
    """An item of an array: by ``get`` and behind brackets (``[``) from 0 on, by ``element_at`` from 1 on, or backwards from the end."""
    if not pa.types.is_list(value.kind) or not (is_whole(index.kind) or index.kind == NULL):
        raise outside("an item", value.kind, index.kind)
    from_one, strict = name.endswith("element_at"), name in ("[", "element_at")

    def found(lists: pa.Array, numbers: pa.Array) -> Computed:
        # Behind brackets Spark takes the low 32 bits of an index.
        lengths, given = _lengths(lists), numbers_of(numbers).astype(np.int32).astype(np.int64)
        places = np.where(given > 0, given - 1, np.where(given < 0, lengths + given, -1)) if from_one else given
        missing = (places < 0) | (places >= lengths)
        items = lists.values.take(pa.array(lists.offsets.to_numpy()[:-1] + np.where(missing, 0, places), mask=missing))
        return items, missing & strict | (given == 0) & from_one

    return applied(found, [value, index if name == "[" and index.kind != NULL else cast(index, INT)])


@calls("element_at", "try_element_at", "get")
def _element_at(call: Call) -> Value:
    value, index = call.values(2, 2)
    return _of_key(value, index) if pa.types.is_map(value.kind) and call.name != "get" else _of_place(value, index, call.name)


@calls("size", "cardinality", "array_size")
def _size(call: Call) -> Value:
    [value] = call.values(1, 1)
    if not (pa.types.is_list(value.kind) or (pa.types.is_map(value.kind) and call.name != "array_size")):
        raise call.refused(value)
    return applied(lambda lists: pa.array(_lengths(lists).astype(np.int32)), [value])


@calls("array_contains")
def _contains(call: Call) -> Value:
    value, wanted = call.values(2, 2)
    item = value.kind.value_type if pa.types.is_list(value.kind) else NULL
    if NULL in (item, wanted.kind) or (item != wanted.kind and not (evaluated.is_number(item) and evaluated.is_number(wanted.kind))):
        raise call.refused(value, wanted)

    def found(lists: pa.Array, each: pa.Array) -> Computed:
        first, unknown = _first_equal(lists, lists.values, each)
        return pa.array(first >= 0, mask=unknown & (first < 0))

    return applied(found, [value, wanted])


@calls("map_contains_key")
def _contains_key(call: Call) -> Value:
    value, wanted = call.values(2, 2)
    if not pa.types.is_map(value.kind) or value.kind.key_type != wanted.kind:
        raise call.refused(value, wanted)

    return applied(lambda maps, each: pa.array(_first_equal(maps, maps.keys, each)[0] >= 0), [value, wanted])


def value_of(condition: str, columns: Mapping[str, pa.Array], n: int) -> Value:
    """A condition over ``n`` rows of ``columns``; raises ``OutsideError``, and ``SpecError`` for a constant that cannot be what it must."""
    return as_truth(expression_value(condition, columns, n, "condition"))


def step_value(text: str, columns: Mapping[str, pa.Array], n: int, *, is_filter: bool) -> Value:
    """An expression of a step over rows of the source; raises as :func:`value_of`. Fields of texts are those of JSON objects."""
    found = expression_value(text, columns, n, in_json=True)
    return as_truth(found) if is_filter else found


def expression_value(text: str, columns: Mapping[str, pa.Array], n: int, what: str = "expression", *, in_json: bool = False) -> Value:
    """An expression of any type over ``n`` rows of ``columns``; raises as :func:`value_of`, and says ``what`` it is."""
    try:
        return Evaluator({name: spark_array(array) for name, array in columns.items()}, n, in_json).value(parsed(text))
    except NoValueError as err:
        raise SpecError(f"{what} {text!r}: {err}; correct it in the spec") from err


def spark_array(array: pa.Array) -> pa.Array:
    """``array`` in the type that Spark's type has here: texts and lists with small offsets, times in microseconds."""
    kind = spark_kind(array.type)
    array = array if kind == array.type else array.cast(kind)
    if not pa.types.is_string(kind):
        return array
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:  # bytes that are no UTF-8, of which Java makes the same characters
        return pa.array([None if each is None else each.decode("utf-8", "replace") for each in array.cast(pa.binary()).to_pylist()], kind)
    return array


def spark_kind(kind: pa.DataType) -> pa.DataType:
    """The Arrow type that represents the Spark type of ``kind``."""
    if pa.types.is_dictionary(kind):
        return spark_kind(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if pa.types.is_large_list(kind):
        return pa.list_(kind.value_type)
    return kind


@lru_cache(1_000)
def _refusal(condition: str) -> str | None:
    return parts_problem(parsed(condition, "databricks"), condition)


@lru_cache(1_000)
def outside_whatever(condition: str, *, is_condition: bool = True) -> str | None:
    """Why only Spark evaluates a condition, or an expression, whatever the types of its columns; null if that is not known."""
    try:
        tree = parsed(condition)
        names = [f"{name}()" for call in tree.find_all(exp.Anonymous) if (name := str(call.this).lower()) not in FUNCTIONS]
        if names:
            return f"only Spark evaluates {', '.join(dict.fromkeys(names))}"
        found = Evaluator({name: pa.nulls(0) for name in columns_of(condition)}, 0).value(tree)
        if is_condition:
            as_truth(found)
    except OutsideError as err:
        return None if err.by_type else f"only Spark evaluates {err}"
    except (SpecError, NoValueError, RecursionError):
        pass
    return None


@lru_cache(1_000)
def outside_over(condition: str, types: tuple[tuple[str, pa.DataType], ...]) -> tuple[str | None, bool]:
    """Why only Spark evaluates ``condition`` over columns of these types, if so; and whether a row may exist on which it fails."""
    problem = _refusal(condition)
    if problem is not None:
        return problem, False
    try:
        empty = {name: pa.nulls(0, spark_kind(kind)) for name, kind in types}
        return None, value_of(condition, empty, 0).failed is not None
    except OutsideError as err:
        return f"only Spark evaluates {err}", False
    except RecursionError:
        return "its parts lie too deep within one another; write it flat", False
