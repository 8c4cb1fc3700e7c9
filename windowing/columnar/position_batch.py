"""Applies a batch's new tuples to the state of windows over positions: complete windows become results, changes new rows of the state."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from windowmill.windowing.columnar.added_columns import LATE, NUMBER_OF
from windowmill.windowing.columnar.advanced import Advanced
from windowmill.windowing.columnar.checksums import verify_once
from windowmill.windowing.columnar.position_delta_reads import sequence_nodes
from windowmill.windowing.columnar.position_deltas import DeltaSequence
from windowmill.windowing.columnar.position_fronts import FrontSequence
from windowmill.windowing.columnar.position_reads import StoredSequence, nodes_of, tuples_of
from windowmill.windowing.columnar.position_sequence import PositionSequence
from windowmill.windowing.columnar.positions import PositionStage
from windowmill.windowing.columnar.rows import keys_of, reordered
from windowmill.windowing.kernels.columns import int64_of


def advance(stage: PositionStage, rows: pa.Table, stored: pa.Table) -> Advanced:
    """Apply new ``rows`` to the ``stored`` state of some keys; O(n log n) in both.

    Parameters
    ----------
    rows
        All new rows of these keys, with the columns of ``stage.state.rows``.
    stored
        Of these keys all ``key`` rows, all waiting tuples, and at least the nodes that :mod:`windowmill.windowing.columnar.position_reads`
        selects; columns as ``stage.state.schema``.
    """
    verify_once(stage.check, stored)
    rows = reordered(rows, np.argsort(rows.column(NUMBER_OF).to_numpy(), kind="stable"))
    keys, codes, n_keys = keys_of([stored, rows], stage.keys)
    results, parts, refused = [], [], []
    for name in stage.state.sequences:
        known = StoredSequence.of(name, stored, codes[: len(stored)], n_keys)
        tuples = tuples_of(stage, known, rows, codes[len(stored) :])
        sequence: PositionSequence
        if name in stage.state.deltas:
            sequence = DeltaSequence(stage, name, keys, known, sequence_nodes(name, stored, codes[: len(stored)], known), tuples)
        else:
            sequence = FrontSequence(stage, name, keys, known, nodes_of(name, stored, codes[: len(stored)]), tuples)
        results += list(sequence.results())
        parts += sequence.changes() if stage.keep else []
        refused.append(sequence.refused)
    numbers = int64_of(rows.column(NUMBER_OF).combine_chunks())
    return Advanced.of(results, parts if stage.keep else None, refused, numbers, rows.column(LATE).combine_chunks())
