"""Partials as bytes: what comes back, what cannot be stored, and damage."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter, OrderedDict, defaultdict
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowmill.windowing.algebra import identical
from windowmill.windowing.columnar.objects import decode, encode
from windowmill.windowing.errors import SpecError, StateCorruptError

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.decimals(),
    st.dates(),
    st.datetimes(timezones=st.just(dt.UTC)),
    st.datetimes(),
    st.times(),
    st.timedeltas(),
)
HASHABLE = st.one_of(st.integers(), st.text(), st.tuples(st.text(), st.integers()))
VALUES = st.recursive(
    st.one_of(SCALARS, st.frozensets(HASHABLE), st.lists(st.floats()).map(tuple)),
    lambda inner: st.one_of(st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(st.text(), inner), st.sets(HASHABLE)),
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Decimal):
        return type(b) is Decimal and str(a) == str(b)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    return identical(a, b)


@given(st.lists(VALUES).map(tuple))
def test_partials_come_back_with_their_types(partial):
    assert same(decode(encode(partial, "a")), partial)


def test_equal_sets_give_equal_bytes():
    one, other = frozenset(range(1_000)), frozenset(range(999, -1, -1))
    assert encode((one,), "a") == encode((other,), "a")


def test_subclasses_are_stored_as_the_values_they_are():
    assert decode(encode((np.int64(7), np.float64(0.5), np.bool_(True)), "a")) == (7, 0.5, True)


class Total(NamedTuple):
    n: int


@pytest.mark.parametrize(
    ("value", "held"),
    [
        (object(), "object"),
        (print, "builtin_function_or_method"),
        ({1: object()}, "object"),
        ([np.zeros(2)], "ndarray"),
        (Counter("ab"), "Counter"),
        (defaultdict(int, a=1), "defaultdict"),
        (OrderedDict(a=1), "OrderedDict"),
        (Total(1), "Total"),
    ],
)
def test_what_is_no_plain_data_is_refused_with_the_name_of_the_aggregate(value, held):
    with pytest.raises(SpecError, match=rf"aggregate odd: its partial cannot be stored \(it holds {held}\)"):
        encode((value,), "odd")


def test_a_partial_that_holds_itself_is_refused():
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(SpecError, match="cannot be stored"):
        encode((endless,), "odd")


@given(st.data())
def test_damaged_bytes_are_an_error(data):
    stored = encode((1, "text", (0.5, math.inf), frozenset({"a", "b"}), [1]), "a")
    place = data.draw(st.integers(0, len(stored) - 1))
    change = data.draw(st.integers(1, 255))
    damaged = bytearray(stored)
    damaged[place] ^= change
    with pytest.raises(StateCorruptError):
        decode(bytes(damaged))


@given(st.integers(0, 60))
def test_bytes_that_were_cut_are_an_error(length):
    stored = encode((1, "text", (0.5, 1.5), 2**70), "a")
    with pytest.raises(StateCorruptError):
        decode(stored[: min(length, len(stored) - 1)])


@given(st.frozensets(st.one_of(st.integers(0, 300), st.integers(-300, 70_000), st.integers(0, 1 << 64))))
def test_whole_numbers_of_a_set_stand_in_the_order_of_their_own_bytes(numbers):
    """All releases store equal sets as equal bytes, of whatever numbers they are."""
    own = sorted(encode((number,), "a")[12 + 1 :] for number in numbers)
    assert encode((numbers,), "a").endswith(b"".join(own))
    assert decode(encode((numbers,), "a")) == (numbers,)
