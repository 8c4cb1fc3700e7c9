"""Lifts rows into the kernels' arenas, one partial per row or per run of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from windowmill.windowing.aggregates.values import INT64_MAX, INT64_MIN, WIDE
from windowmill.windowing.kernels.columns import float64_of, int64_of, limbs_of, order_key, valid_of
from windowmill.windowing.kernels.combine import CARRY_UNIT, PICKED, TIMES, Bools, Floats, Ints
from windowmill.windowing.kernels.layout import Atom, Layout
from windowmill.windowing.kernels.slices import combine_runs

_SPLITTER = 2.0**27 + 1.0
#: A number greater than every decimal.
_BEYOND = Decimal(10) ** 39
#: Columns of rows in slices where events are weighed by time: how long the event lasts in the slice, null where it is not weighed; and
#: whether it counts in aggregates that do not weigh it.
WEIGHT, WHOLE = "_ weight", "_ whole"


def condition_column(condition: str) -> str:
    """Name of the boolean column of the rows for which ``condition`` holds."""
    return f"_ where {condition}"


def lift(layout: Layout, table: pa.Table) -> tuple[Ints, Floats]:
    """Lift each row of ``table``, which is sorted by key and (time, tie_break, arrival); returns arenas as :func:`.arenas` does."""
    n_ints, n_floats = layout.widths()
    ints, floats = np.zeros((table.num_rows, n_ints), np.int64), np.zeros((table.num_rows, n_floats), np.float64)
    for atom, (_, i, f, width, _) in zip(layout.atoms, layout.program(), strict=True):
        _lift(atom, table, ints[:, i : i + width], floats[:, f:])
    return ints, floats


def lift_runs(layout: Layout, table: pa.Table, bounds: Ints) -> tuple[Ints, Floats]:
    """As :func:`lift`, with the rows ``bounds[r]:bounds[r + 1]`` combined into one partial per run.

    Works atom by atom, so that the lifted array has the columns of one atom only.
    """
    n, (n_ints, n_floats) = len(bounds) - 1, layout.widths()
    if n == table.num_rows:
        return lift(layout, table)
    ints, floats = np.empty((n, n_ints), np.int64), np.empty((n, n_floats), np.float64)
    for atom, (operation, i, f, width, n_parts) in zip(layout.atoms, layout.program(), strict=True):
        if atom.kind in ("rows", "count"):
            counted = _counted(atom, [table.column(name).combine_chunks() for name in atom.columns], table)
            ints[:, i] = np.diff(bounds) if counted.all() else np.add.reduceat(counted, bounds[:-1], dtype=np.int64)
            continue
        own = np.zeros((table.num_rows, width), np.int64), np.zeros((table.num_rows, n_parts), np.float64)
        _lift(atom, table, *own)
        alone = np.array([[operation, 0, 0, width, n_parts]], np.int64)
        ints[:, i : i + width], floats[:, f : f + n_parts] = combine_runs(alone, bounds[:-1], bounds[1:], *own)
    return ints, floats


def _counted(atom: Atom, columns: list[pa.Array], table: pa.Table) -> Bools:
    """Mask of the rows that the atom counts: no deciding value is null, and the condition holds."""
    counted = np.ones(table.num_rows, np.bool_)
    # ``arg_min`` and ``arg_max`` may return a null value.
    for column in columns[:1] if atom.ordered else columns:
        if column.null_count:
            counted &= valid_of(column)
    if atom.where is not None:
        counted &= valid_of(table.column(condition_column(atom.where)).combine_chunks())
        counted &= int64_of(table.column(condition_column(atom.where)).combine_chunks()) != 0
    if atom.clipped:
        counted &= valid_of(table.column(WEIGHT).combine_chunks())
    elif WHOLE in table.column_names:
        counted &= int64_of(table.column(WHOLE).combine_chunks()) != 0
    return counted


def _lift(atom: Atom, table: pa.Table, ints: Ints, floats: Floats) -> None:
    """Fill one atom's columns in zeroed arenas."""
    columns = [table.column(name).combine_chunks() for name in atom.columns]
    counted = _counted(atom, columns, table)
    match atom.kind:
        case "rows" | "count":
            ints[:, 0] = counted
        case "sum_int":
            ints[:, 0] = _masked(int64_of(columns[0]), counted, 0)
            ints[:, 1] = ints[:, 0] >> 63
        case "sum_decimal":
            ints[:, :2] = np.where(counted[:, None], limbs_of(columns[0]), 0)
            ints[:, 2] = ints[:, 1] >> 63
        case "sum_float":
            _lift_sum(_masked(float64_of(columns[0]), counted, 0.0), ints, floats)
        case "sum_weight":
            _lift_sum(_masked(float64_of(columns[1]), counted, 0.0), ints, floats)
        case "sum_product":
            _lift_product([_masked(float64_of(column), counted, 0.0) for column in columns], ints, floats)
        case "lasting":
            _lift_sum(_masked(float64_of(table.column(WEIGHT).combine_chunks()), counted, 0.0), ints, floats)
        case "area":
            columns.append(table.column(WEIGHT).combine_chunks())
            _lift_product([_masked(float64_of(column), counted, 0.0) for column in columns], ints, floats)
        case "moments" | "moments4":
            value = _masked(float64_of(columns[0]), counted, 0.0)
            ints[:, 0], floats[:, 0] = counted, value
            # 0, or NaN for an infinity or NaN: their spread is not a number from the start.
            with np.errstate(invalid="ignore"):
                floats[:, 2 : 3 if atom.kind == "moments" else 5] = (value - value)[:, None]
        case "comoments":
            x, y = (_masked(float64_of(column), counted, 0.0) for column in columns)
            with np.errstate(invalid="ignore"):
                zero_x, zero_y = x - x, y - y
            ints[:, 0], floats[:, 0], floats[:, 2] = counted, x, y
            floats[:, 4], floats[:, 5], floats[:, 6] = zero_x, zero_x + zero_y, zero_y
        case "product" | "magnitude":
            _lift_factor(atom.kind == "magnitude", _masked(float64_of(columns[0]), counted, 1.0), counted, ints, floats)
        case "histogram":
            _lift_bins(atom.edges, columns[0], counted, ints)
        case "count_least" | "count_greatest":
            ints[:, 0], ints[:, TIMES] = _masked(order_key(columns[0]), counted, 0), counted
        case _:
            rows = np.arange(len(counted), dtype=np.int64)
            ints[:, 0] = rows if atom.place_decides else order_key(columns[0])
            ints[:, PICKED] = _masked(rows, counted, -1)


def _masked(values: Any, counted: Bools, otherwise: float) -> Any:
    """``values`` of the rows that count, ``otherwise`` of the others; not copied if all rows count."""
    return values if counted.all() else np.where(counted, values, otherwise)


def _lift_sum(value: Floats, ints: Ints, floats: Floats) -> None:
    """Each value as a compensated sum, into zeros; -0.0 as 0.0, which it becomes as soon as another value is added."""
    floats[:, 0] = value + 0.0
    large = np.flatnonzero((np.abs(value) >= CARRY_UNIT) & np.isfinite(value))
    ints[large, 0] = np.sign(value[large]).astype(np.int64)
    floats[large, 0] -= np.copysign(CARRY_UNIT, value[large])


def _lift_product(factors: list[Floats], ints: Ints, floats: Floats) -> None:
    x, y = factors
    with np.errstate(all="ignore"):
        _lift_sum(x * y, ints, floats)
        error = _product_error(x, y, x * y)
        floats[:, 1] += np.where(np.isfinite(error), error, 0.0)


def _product_error(x: Floats, y: Floats, product: Floats) -> Floats:
    """The rounding error of ``x * y`` (Dekker); not finite if a factor's halves overflow."""
    split = _SPLITTER * x
    top_x = split - (split - x)
    rest_x = x - top_x
    split = _SPLITTER * y
    top_y = split - (split - y)
    rest_y = y - top_y
    return ((top_x * top_y - product) + top_x * rest_y + rest_x * top_y) + rest_x * rest_y


def _lift_factor(magnitude: bool, value: Floats, counted: Bools, ints: Ints, floats: Floats) -> None:
    """Each value as a scaled product; a negative factor makes a geometric mean undefined, as a NaN does."""
    zero = value == 0.0
    high, exponent = np.frexp(np.where(zero, 1.0, np.where(magnitude & (value < 0.0), np.nan, value)))
    ints[:, 0], ints[:, 1], ints[:, 2] = counted, zero & counted, np.where(counted, exponent, 0)
    floats[:, 0] = np.where(counted, high, 0.0)


def _lift_bins(edges: Sequence[float], column: pa.Array, counted: Bools, ints: Ints) -> None:
    """Exact: whole numbers and decimals are compared with the edges as the spec writes them."""
    bins = len(edges) - 1
    if pa.types.is_floating(column.type):
        value, bounds = float64_of(column), np.array(edges, np.float64)
        place = np.searchsorted(bounds, value, side="right")
        place[value == bounds[-1]] = bins
    else:
        unscaled, scale = _unscaled(column)
        exact = [min(max(Decimal(str(edge)), -_BEYOND), _BEYOND).scaleb(scale, WIDE) for edge in edges]
        reached = [*map(math.ceil, exact[:-1]), math.floor(exact[-1]) + 1]
        if unscaled.dtype == np.int64:
            reached = [max(bound, INT64_MIN) for bound in reached if bound <= INT64_MAX]
        place = np.searchsorted(np.array(reached, unscaled.dtype), unscaled, side="right")
    rows = np.flatnonzero(counted & (place > 0) & (place <= bins))
    ints[rows, place[rows] - 1] = 1


def _unscaled(column: pa.Array) -> tuple[Any, int]:
    """Whole numbers, or decimals without their point, and the number of digits behind it; int64, or objects where 64 bits are too few."""
    if not pa.types.is_decimal(column.type):
        return int64_of(column), 0
    low, high = limbs_of(column).T
    if (high == low >> 63).all():
        return low, column.type.scale
    wide = [(upper << 64) + (lower & 0xFFFF_FFFF_FFFF_FFFF) for lower, upper in zip(low.tolist(), high.tolist(), strict=True)]
    return np.array(wide, np.object_), column.type.scale
