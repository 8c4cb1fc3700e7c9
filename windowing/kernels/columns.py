"""From columns (Arrow) to the kernels' arenas (numpy): stored partials as they are, rows lifted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowing.kernels.combine import AT, KEY, ROW, TIE, Bools, Floats, Ints
from windowing.kernels.layout import Layout
from windowing.kernels.lower import lower


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
    for index, (_, i, f, *_) in enumerate(layout.program()):
        fields = {role: table.column(stored.name).combine_chunks() for role, stored in layout.fields_of(index).items()}
        match layout.atoms[index].kind:
            case "rows" | "count":
                ints[:, i] = int64_of(fields[""])
            case "sum_int":
                ints[:, i] = int64_of(fields[""])
                ints[:, i + 1] = ints[:, i] >> 63
            case "sum_float":
                floats[:, f], floats[:, f + 1] = float64_of(fields["sum"]), float64_of(fields["error"])
            case "moments":
                ints[:, i] = int64_of(fields["n"])
                for column, role in enumerate(("anchor", "mean", "m2")):
                    floats[:, f + column] = float64_of(fields[role])
            case _:
                decisive = fields.get(
                    "by", fields.get("at") if len(layout.atoms[index].columns) == 1 and "at" in fields else fields["value"]
                )
                ints[:, i + KEY] = order_key(decisive)
                if "at" in fields:
                    ints[:, i + AT] = int64_of(fields["at"])
                    ranks = dense_ranks([column for role, column in fields.items() if role.startswith("tie")])
                    # `last`: of equal times the later one wins, not the earlier one as among equal values of arg_max.
                    ints[:, i + TIE] = -ranks if "by" not in fields and layout.atoms[index].kind == "greatest" else ranks
                # A null in the deciding column: no row counted here.
                ints[:, i + ROW] = np.where(valid_of(decisive), np.arange(table.num_rows), -1)
    return ints, floats


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
    return np.asarray(pc.rank(column, sort_keys="ascending", tiebreaker="dense").to_numpy(), np.int64)


def dense_ranks(columns: list[pa.Array]) -> Ints | int:
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


def int64_of(column: pa.Array) -> Ints:
    """The values as integers, nulls as 0. Like its neighbours a copy: numba would compile a kernel anew for a read-only view."""
    return np.array(pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False), np.int64)


def float64_of(column: pa.Array) -> Floats:
    return np.array(pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False), np.float64)


def valid_of(column: pa.Array) -> Bools:
    return np.array(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)


__all__ = ["arenas", "dense_ranks", "float64_of", "int64_of", "key_offsets", "lower", "order_key", "valid_of"]
