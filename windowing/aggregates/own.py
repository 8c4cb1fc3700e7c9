"""A user's aggregate: any object with ``lift``, ``combine`` and ``lower``, found by name.

::

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
from typing import Any

from windowmill.windowing.algebra import Aggregate, Args, Field, Position
from windowmill.windowing.catalogue import AggregateSpec
from windowmill.windowing.errors import SpecError

Own = tuple[int, Any]


def load(use: str, arguments: int | None = None) -> Aggregate[Own]:
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
    return adapt(_find(use), use, arguments)


def adapt(found: Any, use: str, arguments: int | None = None) -> Aggregate[Own]:
    """The aggregate that the object or class ``found`` is; ``use`` is what messages call it. Else as :func:`load`."""
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


def build(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Own]:
    """The aggregate of ``{use: "module:name", args: […]}``."""
    assert spec.use is not None
    return load(spec.use, len(spec.columns))
