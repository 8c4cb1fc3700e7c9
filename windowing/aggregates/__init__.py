"""The algebra of the aggregates whose partials are Python objects, a module per family; the catalogue's declarations name it.

A user's aggregate is any object with ``lift``, ``combine`` and ``lower``, found by name::

    class LongestName:                          # spec: {use: "shop.aggregates:LongestName", args: [name]}
        def lift(self, name): return name
        def combine(self, older, newer): return newer if len(newer) > len(older) else older
        def lower(self, partial): return partial

Optional are ``deduct(total, oldest)`` (only if exact), ``identity``, and the properties ``commutative`` and ``idempotent``. With a
``deduct`` windows whose oldest rows leave keep a running total: it takes out of ``total`` what this begins with. Partials
are plain data (null, booleans, numbers, strings, bytes, lists, tuples), since they are stored. A row with a null argument is
skipped, and a window without rows gives null.
``windowmill.testing.check_aggregate("shop.aggregates:LongestName", rows)`` tries the laws.
"""

# ruff: noqa: ARG001 - every lift and every builder has the same arguments, whether or not it needs the position or the types
from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from windowmill.windowing.algebra import VALUE_TYPES, Aggregate, Args, Field, Position
from windowmill.windowing.catalogue import AggregateSpec, Declaration
from windowmill.windowing.errors import PluginError, SpecError, no_column
from windowmill.windowing.registry import resolve


def aggregate_for(spec: AggregateSpec, types: Sequence[str]) -> Aggregate[Any]:
    """The aggregate that ``spec`` asks for over columns of the given types.

    Parameters
    ----------
    spec
        As read from the pipeline.
    types
        One of ``VALUE_TYPES`` for each of ``spec.columns``: ``int64`` for any whole number, ``any`` for what is not listed.

    Raises
    ------
    SpecError
        If the function cannot take columns of these types.
    PluginError
        If it has a recipe and no algebra.

    Examples
    --------
    >>> listed = aggregate_for(AggregateSpec(function="collect", columns=("delay",)), ["int64"])
    >>> listed.lower(listed.of([(3,), (None,), (7,)]))
    [3, 7]
    """
    if len(types) != len(spec.columns) or not set(types) <= set(VALUE_TYPES):
        raise SpecError(
            f"{spec.function}: got types {list(types)} for columns {list(spec.columns)}; expected one of {', '.join(VALUE_TYPES)} for each"
        )
    algebra = spec.declaration.algebra
    if algebra is None:
        raise PluginError(f"the aggregate {spec.function!r} has no algebra: kernels compute it by its recipe")
    build: Callable[..., Aggregate[Any]] = resolve(algebra)
    return build(spec, tuple(types))


def argument_types(spec: AggregateSpec, types: Mapping[str, pa.DataType], where: str) -> list[pa.DataType]:
    """Types of the function's columns, of all the source's ``types``; ``where`` is its place in the spec.

    Raises ``SpecError`` if a column does not exist, or does not hold what the function needs.
    """
    missing = next((column for column in spec.columns if column not in types), None)
    if missing is not None:
        raise SpecError(f"{where}: {no_column('the source', missing, types)}")
    kinds = [types[column] for column in spec.columns]
    for place, (column, kind) in enumerate(zip(spec.columns, kinds, strict=True)):
        expected = _expected(spec.declaration, place, kind)
        if expected is not None:
            raise SpecError(
                f"{where}: {spec.function} of column {column!r} of type {kind}; expected {expected}: name another column, or have the "
                "source's writer add one that holds them"
            )
    return kinds


def _expected(declared: Declaration, place: int, kind: pa.DataType) -> str | None:
    """What the argument at ``place`` must hold, for messages; null if columns of type ``kind`` do."""
    if declared.orders and place == 0 and pa.types.is_nested(kind):
        return "values that have an order"
    if declared.takes is None or pa.types.is_null(kind):
        return None
    types, expected = _TAKEN[declared.takes]
    if value_type(kind) in types or (declared.takes == "text" and pa.types.is_date(kind)):
        return None
    if declared.instants:
        return None if pa.types.is_timestamp(kind) else "numbers, booleans or instants"
    return expected


#: For each of what aggregates take, the types of columns that hold it, as :func:`value_type` names them, and its wording in messages.
_TAKEN = {
    "number": (("bool", "int64", "float64", "decimal"), "numbers or booleans"),
    "boolean": (("bool",), "booleans"),
    "text": (("bool", "int64", "float64", "decimal", "string"), "texts, numbers, booleans or dates"),
}


def value_types(spec: AggregateSpec, kinds: Sequence[pa.DataType]) -> tuple[str, ...]:
    """The catalogue's names for the types of the function's columns, as its algebra takes them: where numbers count, truth is 0 or 1."""
    names = tuple(map(value_type, kinds))
    return tuple("int64" if name == "bool" else name for name in names) if spec.declaration.takes == "number" else names


def value_type(kind: pa.DataType) -> str:
    """The catalogue's name for a column's type.

    >>> value_type(pa.int32()), value_type(pa.date32())
    ('int64', 'any')
    """
    named = {
        "bool": pa.types.is_boolean,
        "int64": pa.types.is_integer,
        "float64": pa.types.is_floating,
        "decimal": pa.types.is_decimal128,
        "string": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    }
    return next((name for name, holds in named.items() if holds(kind)), "any")


Own = tuple[int, Any]


def load_own(use: str, arguments: int | None = None) -> Aggregate[Own]:
    """The aggregate that ``use`` names.

    Parameters
    ----------
    use
        ``"module:name"``; a class is called without arguments to make the object.
    arguments
        How many columns it is given, if that is to be checked.

    Raises
    ------
    SpecError
        If the module or name is not found, or the object lacks a function or takes another number of arguments.
    """
    return adapt_own(_find(use), use, arguments)


def adapt_own(found: Any, use: str, arguments: int | None = None) -> Aggregate[Own]:
    """The aggregate that the object or class ``found`` is; ``use`` is what messages call it. Else as :func:`load_own`."""
    found = found() if isinstance(found, type) else found
    for function in ("lift", "combine", "lower"):
        if not callable(getattr(found, function, None)):
            raise SpecError(
                f"use: {use!r} has no function {function}(); an aggregate needs lift(*args), combine(older, newer) and lower(partial)"
            )
    if arguments is not None:
        try:
            inspect.signature(found.lift).bind(*range(arguments))
        except TypeError as err:
            raise SpecError(
                f"use: {use!r}: lift{inspect.signature(found.lift)} cannot take the {arguments} columns of args ({err})"
            ) from err
    deduct = getattr(found, "deduct", None)
    has_identity = hasattr(found, "identity")
    empty = found.identity() if has_identity and callable(found.identity) else getattr(found, "identity", None)
    identity: Own = (0, empty)

    def lift(args: Args, at: Position) -> Own:
        return identity if any(arg is None for arg in args) else (1, found.lift(*args))

    def combine(a: Own, b: Own) -> Own:
        if not has_identity and not (a[0] and b[0]):
            return a if a[0] else b
        return a[0] + b[0], found.combine(a[1], b[1])

    def lower(partial: Own) -> Any:
        return found.lower(partial[1]) if partial[0] else None

    def take_out(total: Own, oldest: Own) -> Own:
        n = total[0] - oldest[0]
        if not has_identity and not (n and oldest[0]):
            return total if n else identity
        return n, found.deduct(total[1], oldest[1])

    return Aggregate(
        use,
        kind=use,
        fields=(Field("n", "int64"), Field("state", "any")),
        identity=identity,
        lift=lift,
        combine=combine,
        lower=lower,
        deduct=take_out if callable(deduct) else None,
        commutative=_declared(use, found, "commutative"),
        idempotent=_declared(use, found, "idempotent"),
        fixed_size=_declared(use, found, "fixed_size"),
        exact=_declared(use, found, "exact", default=callable(deduct)),
        result=str(getattr(found, "result", "any")),
    )


def _find(use: str) -> Any:
    module_name, _, name = use.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as err:
        raise SpecError(
            f"use: {use!r}: module {module_name!r} cannot be imported ({err}); install it, or set PYTHONPATH to its folder"
        ) from err
    for part in name.split("."):
        if not hasattr(found, part):
            raise SpecError(f"use: {use!r}: module {module_name!r} has no {name!r}; expected an object with lift, combine and lower")
        found = getattr(found, part)
    return found


def _declared(use: str, found: Any, name: str, *, default: bool = False) -> bool:
    value = getattr(found, name, default)
    if not isinstance(value, bool):
        raise SpecError(f"use: {use!r}: {name} is of type {type(value).__name__}; expected True or False")
    return value


def build_own(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Own]:
    """The aggregate of ``{use: "module:name", args: […]}``."""
    assert spec.use is not None
    return load_own(spec.use, len(spec.columns))
