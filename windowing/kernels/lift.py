"""From columns (Arrow) to the kernels' arenas (numpy): rows lifted, stored partials as they are, and partials as columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.algebra import INT64_MAX, INT64_MIN, WIDE
from windowmill.windowing.kernels.combine import AT, CARRY_UNIT, KEY, PICKED, ROW, TIE, TIMES, Bools, Floats, Ints
from windowmill.windowing.kernels.layout import HIGH, NUMBERS, Atom, Layout
from windowmill.windowing.kernels.recipes import CLIPPED, integer_of
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
    """Lift each row of ``table``, which is sorted by key and (time, tie_break, arrival); returns arenas as :func:`arenas` does."""
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
    if atom.kind in CLIPPED:
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


#: Roles of an atom's int and float columns, by its kind.
_ROLES = {
    kind: tuple([role for role, held in columns if held == stored_as] for stored_as in (pa.int64(), pa.float64()))
    for kind, columns in NUMBERS.items()
}
#: The number of unscaled decimals of 38 digits from 0 on, and a second limb of some of fewer digits.
_DECIMALS, _FEW = 10**38, 10**37 >> 64


def arenas(layout: Layout, table: pa.Table) -> tuple[Ints, Floats]:
    """The partials of ``table``'s rows, of shapes (n_rows, n_ints) and (n_rows, n_floats); table columns as ``layout.fields``."""
    n_ints, n_floats = layout.widths()
    ints, floats = np.zeros((table.num_rows, n_ints), np.int64), np.zeros((table.num_rows, n_floats), np.float64)
    for index, (_, i, f, width, _) in enumerate(layout.program()):
        atom = layout.atoms[index]
        fields = {role: table.column(stored.name).combine_chunks() for role, stored in layout.fields_of[index].items()}
        match atom.kind:
            case kind if kind in NUMBERS:
                whole, fractional = _ROLES[kind]
                for column, role in enumerate(whole):
                    ints[:, i + column] = int64_of(fields[role])
                for column, role in enumerate(fractional):
                    floats[:, f + column] = float64_of(fields[role])
            case "sum_int":
                low, high = int64_of(fields[""]), fields[HIGH]
                ints[:, i], ints[:, i + 1] = low, low >> 63
                if high.null_count < len(high):
                    ints[:, i + 1] = np.where(valid_of(high), int64_of(high), low >> 63)
            case "sum_decimal":
                ints[:, i : i + 2] = limbs_of(fields[""])
                ints[:, i + 2] = ints[:, i + 1] >> 63
                for row in np.flatnonzero(valid_of(fields[HIGH])):
                    ints[row, i : i + 3] = _limbs(integer_of(ints[row, i : i + 3].tolist()) + fields[HIGH][row].as_py() * _DECIMALS)
            case "histogram":
                ints[:, i : i + width] = int64_of(fields[""].flatten()).reshape(-1, width)
            case "count_least" | "count_greatest":
                ints[:, i], ints[:, i + TIMES] = order_key(fields["value"]), int64_of(fields["times"])
            case _:
                decisive = fields.get("by", fields.get("at") if atom.place_decides else fields["value"])
                ints[:, i + KEY] = order_key(decisive)
                if "at" in fields:
                    ints[:, i + AT] = int64_of(fields["at"])
                    # Partials of one slice stand in the order of their arrival, which settles what tie_break leaves open.
                    ranks = dense_ranks([column for role, column in fields.items() if role.startswith("tie")]) * table.num_rows
                    ranks = ranks + np.arange(table.num_rows)
                    # `last`: of equal times the later one wins, not the earlier one as among equal values of arg_max.
                    ints[:, i + TIE] = -ranks if atom.place_decides and atom.kind == "greatest" else ranks
                # A null in the deciding column: no row counted here.
                ints[:, i + ROW] = np.where(valid_of(decisive), np.arange(table.num_rows), -1)
    return ints, floats


def stored(
    layout: Layout, ints: Ints, floats: Floats, table: pa.Table, *, time: str | None = None, ties: Sequence[str] = ()
) -> dict[str, pa.Array]:
    """The partials (``ints``, ``floats``) as the columns ``layout.fields``: what :func:`arenas` reads.

    ``ints``, ``floats``: arenas of ``layout`` where ``table`` holds stored partials, of ``layout.lifting`` where it holds rows.
    ``table``: what the partials point into.
    ``time``, ``ties``: columns of ``table`` where it holds rows.
    """
    of_rows = time is not None
    program = (layout.lifting if of_rows else layout).program()
    found: dict[str, pa.Array] = {}
    for index, (_, i, f, width, _) in enumerate(program):
        atom, fields = layout.atoms[index], layout.fields_of[index]
        match atom.kind:
            case kind if kind in NUMBERS:
                whole, fractional = _ROLES[kind]
                found |= {fields[role].name: pa.array(ints[:, i + column]) for column, role in enumerate(whole)}
                found |= {fields[role].name: pa.array(floats[:, f + column]) for column, role in enumerate(fractional)}
            case "sum_int":
                low, high = ints[:, i], ints[:, i + 1]
                wide = high != low >> 63
                found[fields[""].name] = pa.array(low)
                found[fields[HIGH].name] = pa.array(high, mask=~wide) if wide.any() else pa.nulls(len(low), pa.int64())
            case "sum_decimal":
                low, high = _parted(ints[:, i : i + 3])
                # The inverse of limbs_of: what _parted leaves in the low limbs has no more digits than the type.
                limbs = pa.py_buffer(np.ascontiguousarray(low))
                found[fields[""].name] = pa.Array.from_buffers(fields[""].type, len(low), [None, limbs])
                found[fields[HIGH].name] = high
            case "histogram":
                bins = pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(ints[:, i : i + width]).reshape(-1)), int(width))
                found[fields[""].name] = bins.cast(fields[""].type)
            case "count_least" | "count_greatest":
                times = ints[:, i + TIMES]
                source = table.column(atom.columns[0] if of_rows else fields["value"].name).combine_chunks()
                found[fields["value"].name] = value_of_key(ints[:, i], times == 0, source)
                found[fields["times"].name] = pa.array(times)
            case _:
                rows = ints[:, i + (PICKED if of_rows else ROW)]
                places = pa.array(rows, mask=rows < 0)
                sources = {"by": atom.columns[0], "value": atom.columns[-1], "at": time, **{f"tie{n}": tie for n, tie in enumerate(ties)}}
                for role, field in fields.items():
                    column = table.column(sources[role] if of_rows else field.name).combine_chunks()
                    found[field.name] = column.take(places).cast(field.type)
    return found


def order_key(column: pa.Array) -> Ints:
    """Integers in the order of the column's values: NaN is the greatest, −0.0 equals 0.0; other types by rank within ``column``."""
    kind = column.type
    if pa.types.is_floating(kind):
        bits = (float64_of(column) + 0.0).view(np.int64)
        keys = bits ^ ((bits >> 63) & np.int64(0x7FFF_FFFF_FFFF_FFFF))
        return np.where(np.isnan(float64_of(column)), np.iinfo(np.int64).max, keys)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return int64_of(column)
    if pa.types.is_timestamp(kind):
        return int64_of(column.cast(pa.int64()))
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.int64)
    return np.asarray(pc.rank(column, sort_keys="ascending", tiebreaker="dense").to_numpy(), np.int64)


def value_of_key(keys: Ints, missing: Bools, column: pa.Array) -> pa.Array:
    """The values of ``column`` whose :func:`order_key` within it are ``keys``; null where ``missing``."""
    kind = column.type
    if pa.types.is_floating(kind):
        values = np.where(
            keys == np.iinfo(np.int64).max, np.nan, (keys ^ ((keys >> 63) & np.int64(0x7FFF_FFFF_FFFF_FFFF))).view(np.float64)
        )
        return pa.array(values, mask=missing).cast(kind)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_timestamp(kind):
        return pa.array(keys, mask=missing).cast(kind)
    ranked = column.drop_null().unique().sort()
    return ranked.take(pa.array(keys - 1, mask=missing))


def dense_ranks(columns: list[pa.Array]) -> Ints | int:
    """Place of each row among the different rows in order, from 0."""
    if not columns:
        return 0
    # Nulls come first.
    keys = np.stack([part for column in columns for part in (valid_of(column).astype(np.int64), order_key(column))], axis=1)
    order = np.lexsort(keys.T[::-1])
    changed = np.any(keys[order[1:]] != keys[order[:-1]], axis=1)
    ranks = np.zeros(len(keys), np.int64)
    ranks[order[1:]] = np.cumsum(changed)
    return ranks


def int64_of(column: pa.Array) -> Ints:
    """The values as integers, nulls as 0. Like its neighbours a copy: numba would compile a kernel anew for a read-only view."""
    whole = column.cast(pa.int64())
    # Arrow would copy a column without nulls, too.
    return np.array((pc.fill_null(whole, 0) if whole.null_count else whole).to_numpy(zero_copy_only=False), np.int64)


def float64_of(column: pa.Array) -> Floats:
    """The values as floats, nulls as 0.0; integers and decimals that no float is equal to become the nearest."""
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.string())  # Arrow's own cast is off by a last bit in up to a third of all values
    floats = column.cast(pa.float64(), safe=False)
    return np.array((pc.fill_null(floats, 0.0) if floats.null_count else floats).to_numpy(zero_copy_only=False), np.float64)


def valid_of(column: pa.Array) -> Bools:
    return np.array(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def limbs_of(column: pa.Array) -> Ints:
    """The unscaled 128-bit integers of decimals, shape (n, 2): low limb, high limb; nulls as 0."""
    values = np.frombuffer(column.buffers()[1], np.int64, count=2 * (column.offset + len(column))).reshape(-1, 2)[column.offset :]
    return np.where(valid_of(column)[:, None], values, 0)


def _limbs(whole: int) -> Ints:
    """The inverse of :func:`.integer_of`, for three limbs."""
    return np.frombuffer(whole.to_bytes(24, "little", signed=True), "<i8")


def _parted(limbs: Ints) -> tuple[Ints, pa.Array]:
    """Sums of decimals, shape (n, 3), as two limbs of at most 38 digits, and how many times 10**38 to add; null if none are."""
    low = limbs[:, :2].copy()
    # Less than 10**37 / 2**64 in the second limb, and its sign alone in the third: fewer than 38 digits.
    great = np.flatnonzero((limbs[:, 2] != low[:, 1] >> 63) | (low[:, 1] > _FEW) | (low[:, 1] < -_FEW))
    times: list[int | None] = [None] * len(limbs)
    for row in great.tolist():
        whole = integer_of(limbs[row].tolist())
        if abs(whole) >= _DECIMALS:
            times[row], rest = divmod(whole, _DECIMALS)
            low[row] = _limbs(rest)[:2]
    return low, pa.array(times, pa.int64())
