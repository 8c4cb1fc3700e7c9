"""Which rows of a table of slices are wanted: for Spark and DataFusion in SQL, for rows in memory as an Arrow expression."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_

import pyarrow.compute as pc

from windowmill.windowing.columnar.slices import BATCH, CLOSED, LEVEL, SLICE
from windowmill.windowing.nodes import Selection


@dataclass(frozen=True)
class Condition:
    """A condition on rows, told twice."""

    sql: str
    expression: pc.Expression


def starting_in(first_slice: int, last_slice: int, *, before_batch: int) -> Condition:
    """Rows that start in [``first_slice``, ``last_slice``), of the batches before ``before_batch``."""
    start = pc.field(SLICE)
    return Condition(
        f"{BATCH} < {before_batch} AND {SLICE} >= {first_slice} AND {SLICE} < {last_slice}",
        (pc.field(BATCH) < before_batch) & (start >= first_slice) & (start < last_slice),
    )


def selected(wanted: Selection, *, before_batch: int) -> Condition:
    """The nodes and slices that are ``wanted``, of the batches before ``before_batch``."""
    start, level = pc.field(SLICE), pc.field(LEVEL)
    slices = [(start >= low) & (start < high) for low, high in wanted.slices]
    slices.append((pc.field(CLOSED) > wanted.late_after) & (start >= wanted.late_from))
    parts = [(level == 0) & reduce(or_, slices)]
    parts += [(level == number) & start.isin(list(starts)) for number, starts in wanted.nodes]
    return Condition(f"{BATCH} < {before_batch} AND ({condition_of(wanted)})", (pc.field(BATCH) < before_batch) & reduce(or_, parts))


def condition_of(wanted: Selection) -> str:
    """The rows that are ``wanted``, as a condition in SQL; Spark and DataFusion read it alike."""
    spans = [f"({SLICE} >= {low} AND {SLICE} < {high})" for low, high in wanted.slices]
    late = f"({CLOSED} > {wanted.late_after} AND {SLICE} >= {wanted.late_from})"
    slices = f"({LEVEL} = 0 AND ({' OR '.join([*spans, late])}))"
    nodes = [f"({LEVEL} = {level} AND {SLICE} IN ({', '.join(map(str, starts))}))" for level, starts in wanted.nodes]
    return " OR ".join([slices, *nodes])
