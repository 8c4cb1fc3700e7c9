"""Values of an expression over rows, with the rows on which its evaluation fails; Spark's types in Arrow; and functions by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_

from windowmill.windowing.errors import SpecError

if TYPE_CHECKING:
    from sqlglot import exp

NULL, BOOL, TEXT, BINARY, DATE = pa.null(), pa.bool_(), pa.string(), pa.binary(), pa.date32()
BYTE, SHORT, INT, LONG, FLOAT, DOUBLE = pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()
#: An instant; a time without a zone, which is one of UTC; an interval of days and time; one of months.
INSTANT, LOCAL_TIME = pa.timestamp("us", "UTC"), pa.timestamp("us")
INTERVAL, MONTHS = pa.duration("us"), pa.month_day_nano_interval()
#: Numbers from the narrowest to the widest, and the digits of the decimal that holds all integers of a type.
_WIDTHS = (BYTE, SHORT, INT, LONG, FLOAT, DOUBLE)
_DIGITS = {BYTE: 3, SHORT: 5, INT: 10, LONG: 20}
#: Digits of Spark's greatest decimal, and digits behind the point that a result keeps at least.
MAX_DIGITS, _LEAST_SCALE = 38, 6
_NAMES = {
    NULL: "void", BOOL: "boolean", TEXT: "string", BYTE: "tinyint", SHORT: "smallint", INT: "int", LONG: "bigint", FLOAT: "float",
    DOUBLE: "double", DATE: "date", INSTANT: "timestamp", LOCAL_TIME: "timestamp_ntz", INTERVAL: "interval day to second",
    MONTHS: "interval year to month", BINARY: "binary",
}  # fmt: skip
Mask = npt.NDArray[np.bool_]
#: What a function over arrays gives: values, and where it fails if it can.
Computed: TypeAlias = "pa.Array | tuple[pa.Array, Mask | None]"


def name_of(kind: pa.DataType) -> str:
    """Spark's name of a type.

    >>> name_of(pa.list_(pa.decimal128(10, 2)))
    'array<decimal(10,2)>'
    """
    if is_.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if is_.is_map(kind):
        return f"map<{name_of(kind.key_type)},{name_of(kind.item_type)}>"
    if is_.is_list(kind):
        return f"array<{name_of(kind.value_type)}>"
    if is_.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{name_of(field.type)}' for field in kind)}>"
    return _NAMES.get(kind, str(kind))


def check_storable(kind: pa.DataType, text: str, where: str) -> None:
    """Raise ``SpecError`` if no table can hold values of ``kind``, the type of the expression ``text`` in the field ``where``."""
    if is_.is_null(kind) or is_.is_duration(kind) or is_.is_interval(kind):
        raise SpecError(f"{where}: got {text!r}, which is {name_of(kind)}; expected a value that a table can hold")


def is_whole(kind: pa.DataType) -> bool:
    """Whether ``kind`` is one of Spark's integers."""
    return kind in _DIGITS


def is_number(kind: pa.DataType) -> bool:
    """Whether ``kind`` is one of Spark's numbers."""
    return kind in _WIDTHS or is_.is_decimal(kind)


def is_time(kind: pa.DataType) -> bool:
    """Whether ``kind`` is a date, an instant or a time without a zone."""
    return kind in (DATE, INSTANT, LOCAL_TIME)


def decimal_of(kind: pa.DataType) -> pa.DataType:
    """The decimal that holds all values of ``kind``, an integer or a decimal."""
    return pa.decimal128(_DIGITS[kind], 0) if kind in _DIGITS else kind


def adjusted(digits: int, scale: int) -> pa.DataType:
    """The type of a decimal result that needs these digits: beyond 38 in all it loses some behind the point, down to six."""
    if digits > MAX_DIGITS:
        scale = max(MAX_DIGITS - (digits - scale), min(scale, _LEAST_SCALE))
    return pa.decimal128(min(digits, MAX_DIGITS), scale)


def _wider_decimal(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    scale = max(one.scale, other.scale)
    digits = max(one.precision - one.scale, other.precision - other.scale) + scale
    return pa.decimal128(min(digits, MAX_DIGITS), max(0, scale - max(0, digits - MAX_DIGITS)))


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The common type of two different types, neither of which is text or null."""
    if is_number(one) and is_number(other):
        if one in _WIDTHS and other in _WIDTHS:
            widest = max(one, other, key=_WIDTHS.index)
            # Single precision does not hold all integers.
            return DOUBLE if widest == FLOAT else widest
        if one in (FLOAT, DOUBLE) or other in (FLOAT, DOUBLE):
            return DOUBLE
        return _wider_decimal(decimal_of(one), decimal_of(other))
    if is_time(one) and is_time(other):
        return INSTANT if INSTANT in (one, other) else LOCAL_TIME
    return None


def common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type to which Spark casts two types to compare them, or to choose between their values; null if it refuses them."""
    if other in (one, NULL):
        return one
    if one == NULL:
        return other
    if TEXT not in (one, other):
        return _wider(one, other)
    typed = other if one == TEXT else one
    if is_whole(typed):
        return LONG
    if is_number(typed):
        return DOUBLE
    return typed if typed in (BOOL, BINARY) or is_time(typed) else None


def common_of(kinds: Iterable[pa.DataType]) -> pa.DataType | None:
    """:func:`common` of any number of types."""
    return reduce(lambda one, other: None if one is None else common(one, other), kinds, NULL)


class OutsideError(Exception):
    """An expression is not evaluated here as Spark does it; the message names the part, and what to write instead if there is something.

    ``by_type`` says whether that is for the types of its operands.
    """

    def __init__(self, what: str, *, by_type: bool = False) -> None:
        super().__init__(what)
        self.by_type = by_type


class NoValueError(Exception):
    """A constant has no value of the type that its place asks for; the message says which."""


@dataclass(frozen=True, slots=True)
class Value:
    """A part of an expression over n rows.

    ``array``: its values, shape (n,), in one of Spark's types; null where the evaluation fails.
    ``failed``: where the evaluation fails, shape (n,); null if it cannot.
    ``literal``: the constant, if it is written as one: a text, a number, true or false.
    ``unit``: of an interval that is written out, its unit.
    """

    array: pa.Array
    failed: Mask | None = None
    literal: Any = None
    unit: str | None = None

    @property
    def kind(self) -> pa.DataType:
        """The type of its values, which is one of Spark's."""
        return self.array.type

    @property
    def valid(self) -> Mask:
        """Where it is not null, shape (n,)."""
        return mask_of(self.array.is_valid())


def mask_of(truth: pa.Array) -> Mask:
    """A boolean array without nulls as one of numpy."""
    return np.asarray(truth.to_numpy(zero_copy_only=False), np.bool_)


def _in_numbers(kind: pa.DataType) -> pa.DataType:
    """The type of the days or microseconds of dates, instants and intervals; any other type itself."""
    return INT if kind == DATE else LONG if is_.is_timestamp(kind) or is_.is_duration(kind) else kind


def numbers_of(array: pa.Array) -> npt.NDArray[Any]:
    """Values as numpy's, with zero in the place of null; of dates, instants and intervals their days or microseconds."""
    array = array.cast(BYTE) if array.type == BOOL else array.view(_in_numbers(array.type))
    known = pc.fill_null(array, 0) if array.null_count else array
    return np.asarray(known.to_numpy(zero_copy_only=False))


def array_of(numbers: npt.NDArray[Any], kind: pa.DataType, null: Mask | None = None) -> pa.Array:
    """``numbers`` as an array of ``kind``, which may be of times, with null where ``null`` is."""
    return pa.array(np.asarray(numbers, _in_numbers(kind).to_pandas_dtype()), mask=null).view(kind)


def without(array: pa.Array, rows: Mask | None) -> pa.Array:
    """``array`` with null in these rows."""
    if rows is None or not rows.any():
        return array
    if pa.types.is_nested(array.type) or array.type == pa.month_day_nano_interval():
        return array.take(pa.array(np.arange(len(array)), mask=rows))
    return pc.if_else(pa.array(rows), pa.scalar(None, array.type), array)


def either(*failed: Mask | None) -> Mask | None:
    """Where any of these fails."""
    found: Mask | None = None
    for each in failed:
        if each is not None:
            found = each if found is None else found | each
    return found


def at(failed: Mask | None, rows: Mask) -> Mask | None:
    """``failed`` among ``rows`` only."""
    return None if failed is None else failed & rows


def in_order(values: Sequence[Value], n: int) -> tuple[Mask, Mask | None]:
    """Masks: all ``values`` are known; an evaluated one fails. After a null Spark evaluates no further operand."""
    known, failed = np.ones(n, np.bool_), None
    for value in values:
        failed = either(failed, at(value.failed, known))
        if value.array.null_count:
            known &= value.valid
    return known, failed


def applied(function: Callable[..., Computed], values: Sequence[Value], order: Iterable[int] | None = None) -> Value:
    """``function`` of the arrays of ``values``; null where one is null, and evaluated in the order of these indices.

    Over no rows, ``failed`` is null only if no row could fail.
    """
    n = len(values[0].array)
    known, failed = in_order(values if order is None else [values[index] for index in order], n)
    found = function(*(value.array for value in values))
    array, own = found if isinstance(found, tuple) else (found, None)
    own = at(np.zeros(0, np.bool_) if isinstance(found, tuple) and not n else own, known)
    return Value(without(array, ~known if own is None else own | ~known), either(failed, own))


def repeated(constant: Any, kind: pa.DataType, n: int) -> pa.Array:
    """A constant for n rows."""
    if constant is None or not n:  # a scalar has pyarrow import pandas, which types alone do not need
        return pa.nulls(n, kind)
    return pa.repeat(pa.scalar(constant, kind), n)


def chosen(conditions: Sequence[Mask], values: Sequence[Value], kind: pa.DataType) -> Value:
    """Each row's value from the first of ``values`` whose condition holds of it; null where none does."""
    n = len(conditions[0])
    index = np.full(n, -1)
    failed: Mask | None = None
    for number in range(len(values) - 1, -1, -1):
        index[conditions[number]] = number
    for number, value in enumerate(values):
        failed = either(failed, at(value.failed, index == number))
    if not n:
        return Value(pa.nulls(0, kind), failed)
    every = pa.concat_arrays([value.array for value in values])
    places = index * n + np.arange(n)
    return Value(every.take(pa.array(places, mask=index < 0)), failed)


def by_value(array: pa.Array, function: Callable[[Any], Any], kind: pa.DataType) -> tuple[pa.Array, Mask | None]:
    """``function`` of each different value in Python; a row fails where it raises ``ValueError``. It takes and gives times as numbers."""
    coded = array.view(_in_numbers(array.type)).dictionary_encode()
    found: list[Any] = []
    bad: list[bool] = []
    for each in coded.dictionary.to_pylist():
        try:
            value, wrong = function(each), False
        except ValueError:
            value, wrong = None, True
        found.append(value)
        bad.append(wrong)
    taken = pa.array(found, _in_numbers(kind)).view(kind).take(coded.indices)
    if not any(bad):
        return taken, None
    return taken, mask_of(pc.fill_null(pa.array(bad).take(coded.indices), False))


def by_rows(function: Callable[..., Any], kind: pa.DataType, *arrays: pa.Array) -> tuple[pa.Array, Mask | None]:
    """``function`` of each row's values in Python, none of which is null; a row fails where it raises ``ValueError``."""
    failed = np.zeros(len(arrays[0]), np.bool_)
    found: list[Any] = []
    for number, values in enumerate(zip(*(array.to_pylist() for array in arrays), strict=True)):
        try:
            found.append(None if None in values else function(*values))
        except ValueError:
            found.append(None)
            failed[number] = True
    return pa.array(found, kind), failed if failed.any() else None


def outside(what: str, *kinds: pa.DataType, instead: str | None = None) -> OutsideError:
    """The error for a part of an expression, over operands of these types, that only Spark evaluates."""
    of = f" of {' and '.join(dict.fromkeys(map(name_of, kinds)))}" if kinds else ""
    return OutsideError(f"{what}{of}" + (f" (write {instead})" if instead else ""), by_type=bool(kinds))


#: Arguments of a node that its rule handles.
_ARGUMENTS = frozenset(
    {"this", "expression", "expressions", "to", "ifs", "default", "true", "false", "low", "high", "is_string", "table", "db", "catalog"}
)
#: Further ones, by the key of the node's type.
_MORE_ARGUMENTS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("trycast", "dpipe"), frozenset({"safe"})),
    "interval": frozenset({"unit"}),
    "trim": frozenset({"position"}),
    "substring": frozenset({"start", "length"}),
    "strposition": frozenset({"substr", "position"}),
    **dict.fromkeys(("like", "ilike"), frozenset({"negate"})),
}

Rule = Callable[["Evaluator", Any], Value]
_RULES: dict[type, Rule] = {}


@dataclass(frozen=True)
class Evaluator:
    """An expression's columns, as Spark's types, and the number of rows.

    ``in_json``: whether a field may be one of the JSON object that a text holds, which Spark's own SQL does not read so.
    """

    columns: Mapping[str, pa.Array]
    n: int
    in_json: bool = False

    def value(self, node: exp.Expr) -> Value:
        """Evaluate a part of the expression; raises ``OutsideError`` if it has no rule here."""
        rule = _RULES.get(type(node))
        more = {name for name, value in node.args.items() if value not in (None, False, [])} - _ARGUMENTS
        if rule is None or more - _MORE_ARGUMENTS.get(node.key, frozenset()):
            raise outside(node.sql("spark"))
        return rule(self, node)

    def truth(self, node: exp.Expr) -> Value:
        """Evaluate a condition."""
        return as_truth(self.value(node))

    def constant(self, constant: Any, kind: pa.DataType, unit: str | None = None) -> Value:
        """A constant of ``kind``."""
        return Value(repeated(constant, kind, self.n), None, constant, unit)


def as_truth(found: Value) -> Value:
    """A value as the truth of a condition; raises ``OutsideError`` if it is none."""
    if found.kind not in (BOOL, NULL):
        raise outside("a condition that is a value", found.kind)
    return found if found.kind == BOOL else Value(pa.nulls(len(found.array), BOOL), found.failed)


def rule(*nodes: type) -> Callable[[Rule], Rule]:
    """Registers how nodes of these types are evaluated."""

    def register(own: Rule) -> Rule:
        _RULES.update(dict.fromkeys(nodes, own))
        return own

    return register


@dataclass(frozen=True)
class Call:
    """A function's call, by the ``name`` that is written, with the nodes of its arguments."""

    own: Evaluator
    name: str
    nodes: Sequence[exp.Expr]

    def values(self, least: int, most: int | None = None) -> list[Value]:
        """The arguments; raises ``OutsideError`` if their number is not among those that the function has here."""
        if len(self.nodes) < least or (most is not None and len(self.nodes) > most):
            raise outside(f"{self.name}() of {len(self.nodes)} arguments")
        return [self.own.value(node) for node in self.nodes]

    def refused(self, *values: Value) -> Exception:
        """The error for arguments of types that are outside."""
        return outside(f"{self.name}()", *(value.kind for value in values))


Function = Callable[[Call], Value]
FUNCTIONS: dict[str, Function] = {}
#: What makes an argument's value of one that a function is given: a cast that Spark adds.
Takes = Callable[[Value], Value]


def calls(*names: str) -> Callable[[Function], Function]:
    """Registers a function of calls, which evaluates its arguments itself."""

    def register(function: Function) -> Function:
        FUNCTIONS.update(dict.fromkeys(names, function))
        return function

    return register


def function(*names: str, takes: Sequence[Takes], least: int | None = None) -> Callable[[Callable[..., Computed]], Callable[..., Computed]]:
    """Registers a function of arrays, whose result is null where an argument is; the last arguments may be missing down to ``least``."""

    def register(own: Callable[..., Computed]) -> Callable[..., Computed]:
        def evaluated(call: Call) -> Value:
            given = call.values(len(takes) if least is None else least, len(takes))
            return applied(own, [take(value) for take, value in zip(takes, given, strict=False)])

        calls(*names)(evaluated)
        return own

    return register


def each_row(*names: str, of: Callable[..., Any], takes: Sequence[Takes], kind: pa.DataType = TEXT, least: int | None = None) -> None:
    """Registers a function ``of`` a row's values in Python, none of them null, which gives one of ``kind`` or raises ``ValueError``."""
    own = (lambda array: by_value(array, of, kind)) if len(takes) == 1 else partial(by_rows, of, kind)
    function(*names, takes=takes, least=least)(own)


def of_values(name: str, count: int, of: Callable[..., Value]) -> None:
    """Registers a function ``of`` so many values."""
    calls(name)(lambda call: of(*call.values(count, count)))
