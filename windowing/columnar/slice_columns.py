"""What distinguishes the slices of a key, as arrays: place, marks, and order of arrival."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.columnar.added_columns import ARRIVAL, CLOSED, ORDER, REACHED, REACHING
from windowmill.windowing.kernels.columns import int64_of, valid_of
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.watermark import BEFORE

#: ``ARRIVAL`` of a row that brings no revisions.
IN_TIME = -1


def places_of(starts: Ints, reaching: Ints) -> Ints:
    """Numbers in the order of ``starts``, and of ``reaching`` among equal ones; no start lies beyond the axis."""
    return starts * 2 + reaching


def reaching_of(table: pa.Table) -> Ints:
    """``REACHING`` of each row, 0 where events are points; int64, shape (n_rows,)."""
    return int64_of(table.column(REACHING).combine_chunks()) if REACHING in table.column_names else np.zeros(table.num_rows, np.int64)


def closed_of(table: pa.Table) -> Ints:
    """``CLOSED`` of each row, ``BEFORE`` for null; int64, shape (n_rows,)."""
    if CLOSED not in table.column_names:
        return np.full(table.num_rows, BEFORE, np.int64)
    return np.array(pc.fill_null(table.column(CLOSED).combine_chunks(), int(BEFORE)).to_numpy(zero_copy_only=False), np.int64)


def arrivals_of(table: pa.Table) -> Ints:
    """``ARRIVAL`` of each row, ``IN_TIME`` for null; int64, shape (n_rows,)."""
    if ARRIVAL not in table.column_names:
        return np.full(table.num_rows, IN_TIME, np.int64)
    return np.array(pc.fill_null(table.column(ARRIVAL).combine_chunks(), IN_TIME).to_numpy(zero_copy_only=False), np.int64)


def orders_of(table: pa.Table) -> Ints:
    """``ORDER`` of each row, 0 where it makes no difference; int64, shape (n_rows,)."""
    return int64_of(table.column(ORDER).combine_chunks()) if ORDER in table.column_names else np.zeros(table.num_rows, np.int64)


def reached_of(table: pa.Table, starts: Ints) -> Ints:
    """``REACHED`` of each row, where that is null its start, of ``starts``; int64, shape (n_rows,)."""
    if REACHED not in table.column_names:
        return starts
    reached = table.column(REACHED).combine_chunks()
    return np.where(valid_of(reached), int64_of(pc.fill_null(reached, 0)), starts)


def nulled(values: Ints, null: int) -> pa.Array:
    """The inverse of :func:`closed_of` and :func:`arrivals_of`: ``values`` with null in the place of ``null``."""
    return pa.array(values, mask=values == null)
