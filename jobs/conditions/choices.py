"""Functions that choose among values, of which they evaluate no more than they need."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc

from windowmill.jobs.conditions.casts import cast, cast_to_common, holds
from windowmill.jobs.conditions.evaluated import NULL, OutsideError, Value, at, chosen, either, outside, without
from windowmill.jobs.conditions.functions import Call, calls, of_values
from windowmill.jobs.conditions.numbers import compared, same


def choice(tests: Sequence[Value], values: Sequence[Value]) -> Value:
    """The first of ``values`` whose test holds; the last, for which there is no test, where none does."""
    values = cast_to_common(*values, what="a choice")
    open_, failed = np.ones(len(values[0].array), np.bool_), None
    reached = []
    for test in tests:
        failed = either(failed, at(test.failed, open_))
        own = open_ & holds(test.array)
        reached.append(own)
        open_ = open_ & ~own if test.failed is None else open_ & ~own & ~test.failed
    found = chosen([*reached, open_], values, values[0].kind)
    return Value(found.array, either(failed, found.failed))


def is_null(value: Value) -> Value:
    """Whether a value is null; where it fails, so does the answer."""
    return Value(without(pc.is_null(value.array), value.failed), value.failed)


@calls("coalesce", "nvl", "ifnull")
def _coalesce(call: Call) -> Value:
    values = cast_to_common(*(call.values(1) if call.name == "coalesce" else call.values(2, 2)), what=call.name)
    open_, conditions = np.ones(call.own.n, np.bool_), []
    for value in values:
        conditions.append(open_ & (value.valid if value.failed is None else value.valid | value.failed))
        open_ = open_ & ~conditions[-1]
    return chosen(conditions, values, values[0].kind)


@calls("nullif")
def _null_if(call: Call) -> Value:
    left, right = call.values(2, 2)
    equal = compared("=", left, right)
    return choice([equal], [cast(call.own.constant(None, NULL), left.kind), left])


def _is_not_null(value: Value) -> Value:
    found = is_null(value)
    return Value(pc.invert(found.array), found.failed)


of_values("nvl2", 3, lambda value, given, missing: choice([is_null(value)], [missing, given]))
of_values("isnull", 1, is_null)
of_values("isnotnull", 1, _is_not_null)
of_values("equal_null", 2, same)


@calls("if")
def _if(call: Call) -> Value:
    if len(call.nodes) != 3:
        raise OutsideError("if() of other than three arguments")
    return choice([call.own.truth(call.nodes[0])], [call.own.value(node) for node in call.nodes[1:]])


@calls("decode")
def _decode(call: Call) -> Value:
    value, *given = call.values(3)
    if len(given) % 2 == 0:
        raise outside("decode() without a default", instead="a default as its last argument")
    return choice([same(value, each) for each in given[:-1:2]], [*given[1::2], given[-1]])
