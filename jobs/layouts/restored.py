"""Counts the rows of state that a batch restores, by kind."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.columnar.added_columns import KIND, LEVEL, SLICE
from windowmill.windowing.columnar.positions import NODE, SEQUENCE

#: Number of rows by kind: slices and nodes over them, nodes of FlatFAT trees (leaves included), and what else the state holds.
Restored = Mapping[str, int]
SLICES, SLICE_NODES, FLATFAT, OTHERS = "slices", "slice_nodes", "flatfat_nodes", "others"


def restored_kinds(stored: pa.Table | None) -> Restored:
    """The rows of one part that this process, or a task, has restored, by kind; without kinds that it has none of."""
    if stored is None or not stored.num_rows:
        return {}
    if SEQUENCE in stored.column_names and KIND in stored.column_names:  # a key may have the name of the one
        special, name = pc.equal(stored.column(KIND), NODE), FLATFAT
    elif SLICE in stored.column_names and LEVEL in stored.column_names:
        special, name = pc.greater(stored.column(LEVEL), 0), SLICE_NODES
    else:
        return {SLICES if SLICE in stored.column_names else OTHERS: stored.num_rows}
    n = pc.sum(special).as_py() or 0
    counts = {name: n, OTHERS if name == FLATFAT else SLICES: stored.num_rows - n}
    return {kind: rows for kind, rows in counts.items() if rows}
