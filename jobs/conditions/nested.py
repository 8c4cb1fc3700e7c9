"""Fields of structs, items of arrays and maps, and functions of arrays and maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.conditions import evaluated
from windowmill.jobs.conditions.casts import cast, holds
from windowmill.jobs.conditions.evaluated import (
    INT,
    NULL,
    Computed,
    Mask,
    Value,
    applied,
    is_whole,
    mask_of,
    numbers_of,
    outside,
)
from windowmill.jobs.conditions.functions import Call, calls
from windowmill.jobs.conditions.numbers import compared


def field_of(value: Value, name: str) -> Value:
    """The field ``name`` of a struct, in any case."""
    if not pa.types.is_struct(value.kind):
        raise outside(f"field {name!r}", value.kind)
    found = [index for index, field in enumerate(value.kind) if field.name.lower() == name.lower()]
    if len(found) != 1:
        raise outside(f"field {name!r}", value.kind)
    return Value(pc.struct_field(value.array, found[0]), value.failed)


def item_of(value: Value, index: Value) -> Value:
    """``value[index]``: an item of an array from 0 on, which must be there, or what a map has for a key."""
    if pa.types.is_map(value.kind):
        return _of_key(value, index)
    return _of_place(value, index, lambda places, _: places, strict=True, brackets=True)


def _first_equal(lists: pa.Array, items: pa.Array, wanted: pa.Array) -> tuple[npt.NDArray[Any], Mask]:
    """Of each list the first place whose item equals the ``wanted`` one, −1 if none does; and whether a comparison in it is null.

    ``items`` are the values of the lists, or the keys of maps.
    """
    places, rows = _places(lists)
    equal = compared("=", Value(items.take(pa.array(places))), Value(wanted.take(pa.array(rows)))).array
    first, unknown, found = np.full(len(lists), -1), np.zeros(len(lists), np.bool_), holds(equal)
    # In reverse, so that the first of equal ones is written last.
    first[rows[found][::-1]] = (places - lists.offsets.to_numpy()[rows])[found][::-1]
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


def _places(lists: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """For each item of arrays or maps its place among all values of the child, and its row."""
    starts = lists.offsets.to_numpy()[:-1].astype(np.int64)
    lengths = _lengths(lists)
    rows = np.repeat(np.arange(len(lists)), lengths)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(starts, lengths) + within, rows


def _lengths(lists: pa.Array) -> npt.NDArray[Any]:
    offsets = lists.offsets.to_numpy().astype(np.int64)
    return np.where(mask_of(lists.is_valid()), offsets[1:] - offsets[:-1], 0)


Place = Callable[[npt.NDArray[Any], npt.NDArray[Any]], npt.NDArray[Any]]


def _of_place(value: Value, index: Value, place: Place, *, strict: bool, zero_fails: bool = False, brackets: bool = False) -> Value:
    if not pa.types.is_list(value.kind) or not (is_whole(index.kind) or index.kind == NULL):
        raise outside("an item", value.kind, index.kind)

    def found(lists: pa.Array, numbers: pa.Array) -> Computed:
        # Behind brackets Spark takes the low 32 bits of an index.
        lengths, given = _lengths(lists), numbers_of(numbers).astype(np.int32).astype(np.int64)
        places = place(given, lengths)
        missing = (places < 0) | (places >= lengths)
        items = lists.values.take(pa.array(lists.offsets.to_numpy()[:-1] + np.where(missing, 0, places), mask=missing))
        bad = missing if strict else np.zeros(len(lists), np.bool_)
        return items, bad | (given == 0) if zero_fails else bad

    return applied(found, [value, index if brackets and index.kind != NULL else cast(index, INT)])


def _from_one(given: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.where(given > 0, given - 1, np.where(given < 0, lengths + given, -1))


@calls("element_at", "try_element_at")
def _element_at(call: Call) -> Value:
    value, index = call.values(2, 2)
    if pa.types.is_map(value.kind):
        return _of_key(value, index)
    return _of_place(value, index, _from_one, strict=call.name == "element_at", zero_fails=True)


@calls("get")
def _get(call: Call) -> Value:
    value, index = call.values(2, 2)
    return _of_place(value, index, lambda places, _: places, strict=False)


@calls("size", "cardinality", "array_size")
def _size(call: Call) -> Value:
    [value] = call.values(1, 1)
    if not (pa.types.is_list(value.kind) or (pa.types.is_map(value.kind) and call.name != "array_size")):
        raise call.refused(value)
    return applied(lambda lists: pa.array(_lengths(lists).astype(np.int32)), [value])


def _check_wanted(call: Call, value: Value, wanted: Value) -> None:
    """Refuse to look for ``wanted`` in ``value`` unless this is an array of items that compare with it."""
    item = value.kind.value_type if pa.types.is_list(value.kind) else NULL
    if NULL in (item, wanted.kind) or (item != wanted.kind and not (evaluated.is_number(item) and evaluated.is_number(wanted.kind))):
        raise call.refused(value, wanted)


@calls("array_contains")
def _contains(call: Call) -> Value:
    value, wanted = call.values(2, 2)
    _check_wanted(call, value, wanted)

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
