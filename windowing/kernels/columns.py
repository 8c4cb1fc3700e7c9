"""From columns (Arrow) to the kernels' arenas (numpy): stored partials as they are, rows lifted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.kernels.combine import AT, KEY, PICKED, ROW, TIE, TIMES, Bools, Floats, Ints
from windowmill.windowing.kernels.layout import HIGH, NUMBERS, Layout
from windowmill.windowing.kernels.recipes import integer_of

#: The number of unscaled decimals of 38 digits from 0 on, and a second limb of some of fewer digits.
_DECIMALS, _FEW = 10**38, 10**37 >> 64


def arenas(layout: Layout, table: pa.Table) -> tuple[Ints, Floats]:
    """The partials of ``table``'s rows, of shapes (n_rows, n_ints) and (n_rows, n_floats); table columns as ``layout.fields``."""
    n_ints, n_floats = layout.widths()
    ints, floats = np.zeros((table.num_rows, n_ints), np.int64), np.zeros((table.num_rows, n_floats), np.float64)
    for index, (_, i, f, width, _) in enumerate(layout.program()):
        atom = layout.atoms[index]
        fields = {role: table.column(stored.name).combine_chunks() for role, stored in layout.fields_of(index).items()}
        match atom.kind:
            case kind if kind in NUMBERS:
                whole, fractional = _roles(kind)
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

    Parameters
    ----------
    ints, floats
        Arenas of ``layout`` where ``table`` holds stored partials, of ``layout.lifting`` where it holds rows.
    table
        What the partials point into.
    time, ties
        Columns of ``table`` where it holds rows.
    """
    of_rows = time is not None
    program = (layout.lifting if of_rows else layout).program()
    found: dict[str, pa.Array] = {}
    for index, (_, i, f, width, _) in enumerate(program):
        atom, fields = layout.atoms[index], layout.fields_of(index)
        match atom.kind:
            case kind if kind in NUMBERS:
                whole, fractional = _roles(kind)
                found |= {fields[role].name: pa.array(ints[:, i + column]) for column, role in enumerate(whole)}
                found |= {fields[role].name: pa.array(floats[:, f + column]) for column, role in enumerate(fractional)}
            case "sum_int":
                low, high = ints[:, i], ints[:, i + 1]
                wide = high != low >> 63
                found[fields[""].name] = pa.array(low)
                found[fields[HIGH].name] = pa.array(high, mask=~wide) if wide.any() else pa.nulls(len(low), pa.int64())
            case "sum_decimal":
                low, high = _parted(ints[:, i : i + 3])
                found[fields[""].name] = decimals_of(low, fields[""].type)
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


def _roles(kind: str) -> tuple[list[str], list[str]]:
    """Roles of an atom's int and float columns."""
    whole = [role for role, stored_as in NUMBERS[kind] if pa.types.is_integer(stored_as)]
    return whole, [role for role, _ in NUMBERS[kind][len(whole) :]]


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
    return np.array(_filled(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False), np.int64)


def float64_of(column: pa.Array) -> Floats:
    """The values as floats, nulls as 0.0; integers and decimals that no float is equal to become the nearest."""
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.string())  # Arrow's own cast is off by a last bit in up to a third of all values
    return np.array(_filled(column.cast(pa.float64(), safe=False), 0.0).to_numpy(zero_copy_only=False), np.float64)


def _filled(column: pa.Array, value: float) -> pa.Array:
    # Arrow would copy a column without nulls, too.
    return pc.fill_null(column, value) if column.null_count else column


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
    """Sums of decimals, shape (n, 3), as two limbs that 38 digits hold, and how many times 10**38 are to be added, null for none."""
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


def decimals_of(limbs: Ints, kind: pa.Decimal128Type) -> pa.Array:
    """The inverse of :func:`limbs_of`, of no more digits than ``kind`` has."""
    return pa.Array.from_buffers(kind, len(limbs), [None, pa.py_buffer(np.ascontiguousarray(limbs))])
