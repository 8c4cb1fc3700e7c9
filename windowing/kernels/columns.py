"""Between stored partial columns (Arrow) and the kernels' arenas (numpy), and from arenas to result columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windowing.errors import AggregateOverflowError
from windowing.kernels.combine import AT, KEY, ROW, TIE, Floats, Ints
from windowing.kernels.layout import Layout, Result


def key_offsets(table: pa.Table, keys: Sequence[str]) -> Ints:
    """Where each key's rows begin in a table sorted by ``keys``; shape (n_keys + 1,). Nulls equal nulls, NaN equals NaN."""
    rows = table.num_rows
    if not rows:
        return np.zeros(1, np.int64)
    changes = np.zeros(rows, np.bool_)
    changes[0] = True
    for name in keys:
        codes = table.column(name).combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
        changes[1:] |= codes[1:] != codes[:-1]
    return np.append(np.flatnonzero(changes), rows).astype(np.int64)


def arenas(layout: Layout, table: pa.Table) -> tuple[Ints, Floats]:
    """The partials of ``table``'s rows, of shapes (n_rows, n_ints) and (n_rows, n_floats); table columns as ``layout.fields``."""
    n_ints, n_floats = layout.widths()
    ints, floats = np.zeros((table.num_rows, n_ints), np.int64), np.zeros((table.num_rows, n_floats), np.float64)
    for index, (_, i, f) in enumerate(layout.program()):
        fields = {role: table.column(stored.name).combine_chunks() for role, stored in layout.fields_of(index).items()}
        match layout.atoms[index].kind:
            case "rows" | "count" | "sum_int":
                ints[:, i] = _int64(fields[""])
            case "sum_float":
                floats[:, f], floats[:, f + 1] = _float64(fields["sum"]), _float64(fields["error"])
            case "moments":
                ints[:, i] = _int64(fields["n"])
                for column, role in enumerate(("anchor", "mean", "m2")):
                    floats[:, f + column] = _float64(fields[role])
            case _:
                decisive = fields.get(
                    "by", fields.get("at") if len(layout.atoms[index].columns) == 1 and "at" in fields else fields["value"]
                )
                ints[:, i + KEY] = order_key(decisive)
                if "at" in fields:
                    ints[:, i + AT] = _int64(fields["at"])
                    ranks = _ranks([column for role, column in fields.items() if role.startswith("tie")])
                    # `last`: of equal times the later one wins, not the earlier one as among equal values of arg_max.
                    ints[:, i + TIE] = -ranks if "by" not in fields and layout.atoms[index].kind == "greatest" else ranks
                # A null in the deciding column: no row counted here.
                ints[:, i + ROW] = np.where(_valid(decisive), np.arange(table.num_rows), -1)
    return ints, floats


def order_key(column: pa.Array) -> Ints:
    """Integers in the order of the column's values: NaN is the greatest, −0.0 equals 0.0; other types by rank within ``column``."""
    kind = column.type
    if pa.types.is_floating(kind):
        bits = (_float64(column) + 0.0).view(np.int64)
        keys = bits ^ ((bits >> 63) & np.int64(0x7FFF_FFFF_FFFF_FFFF))
        return np.where(np.isnan(_float64(column)), np.iinfo(np.int64).max, keys)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return _int64(column)
    if pa.types.is_timestamp(kind):
        return _int64(column.cast(pa.int64()))
    return np.asarray(pc.rank(column, sort_keys="ascending", tiebreaker="dense").to_numpy(), np.int64)


def _ranks(columns: list[pa.Array]) -> Ints | int:
    if not columns:
        return 0
    if len(columns) == 1:
        return order_key(columns[0])
    keys = np.stack([order_key(column) for column in columns], axis=1)
    order = np.lexsort(keys.T[::-1])
    changed = np.any(keys[order[1:]] != keys[order[:-1]], axis=1)
    ranks = np.zeros(len(keys), np.int64)
    ranks[order[1:]] = np.cumsum(changed)
    return ranks


def lower(layout: Layout, ints: Ints, floats: Floats, table: pa.Table, overflow: bool) -> dict[str, pa.Array]:
    """Result columns of the partials (``ints``, ``floats``), by name, in the spec's order.

    Parameters
    ----------
    table
        The rows that the partials' ROW columns point into.

    Raises
    ------
    AggregateOverflowError
        If ``overflow``: an integer sum of these windows left 64 bits.
    """
    if overflow:
        raise AggregateOverflowError("an integer sum left the range of a 64-bit integer; cast the column to double in a view of the source")
    return {result.name: _lower(result, layout, ints, floats, table) for result in layout.results}


def _lower(result: Result, layout: Layout, ints: Ints, floats: Floats, table: pa.Table) -> pa.Array:
    program = layout.program()
    (_, i, f) = program[result.atoms[0]]
    match result.function:
        case "count":
            return pa.array(ints[:, i])
        case "sum" | "mean":
            n, (_, j, g) = ints[:, i], program[result.atoms[1]]
            exact = layout.atoms[result.atoms[1]].kind == "sum_int"
            total = ints[:, j] if exact else floats[:, g] + floats[:, g + 1]
            if result.function == "mean":
                total = total / np.maximum(n, 1)
            return pa.array(total, mask=n == 0)
        case "var_samp" | "var_pop" | "stddev_samp" | "stddev_pop":
            freedom = 1 if result.function.endswith("samp") else 0
            n = ints[:, i]
            with np.errstate(invalid="ignore"):
                variance = floats[:, f + 2] / np.maximum(n - freedom, 1)
                spread = np.sqrt(variance) if result.function.startswith("stddev") else variance
            return pa.array(spread, mask=n <= freedom)
        case "range":
            least, greatest = (_taken(layout, atom, ints, program, table) for atom in result.atoms)
            return pc.subtract_checked(greatest, least)
        case _:
            return _taken(layout, result.atoms[0], ints, program, table)


def _taken(layout: Layout, atom: int, ints: Ints, program: Ints, table: pa.Table) -> pa.Array:
    rows = ints[:, program[atom, 1] + ROW]
    column = table.column(layout.fields_of(atom)["value"].name).combine_chunks()
    return column.take(pa.array(rows, mask=rows < 0))


def _int64(column: pa.Array) -> Ints:
    return np.asarray(pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False), np.int64)


def _float64(column: pa.Array) -> Floats:
    return np.asarray(pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False), np.float64)


def _valid(column: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)
