"""What a batch of windows that evict by a delta reads: nodes that lose nothing, and the parts of those that may lose something."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windowmill.windowing.columnar.delta_nodes import greatest_values, least_values, live_nodes, make_up, may_leave, places_of
from windowmill.windowing.columnar.positions import HEAD, NEXT, PositionStage
from windowmill.windowing.columnar.slices import TIME
from windowmill.windowing.kernels import policy_rules as kernel
from windowmill.windowing.kernels.columns import int64_of
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.slicing.policy_settings import holds_integers, joined_values, values_at, values_of

if TYPE_CHECKING:
    from windowmill.windowing.columnar.position_reads import Known
    from windowmill.windowing.windows.policy_rules import Delta


def arriving_values(stage: PositionStage, rows: pa.Table, codes: Ints, n_keys: int) -> Mapping[str, kernel.Values]:
    """By sequence, the greatest value of each key's new ``rows`` in the column of the sequence's delta; shapes (n_keys,)."""
    return {name: greatest_values(values_of(_delta(stage, name), rows, np.arange(len(rows))), codes, n_keys) for name in stage.state.deltas}


def needed_nodes(stage: PositionStage, name: str, stored: pa.Table, codes: Ints, known: Known, arriving: kernel.Values) -> Ints:
    """Indices of the ``stored`` nodes of the sequence ``name`` that a batch needs.

    Parameters
    ----------
    codes
        Key index of each row.
    arriving
        The greatest value of each key's new rows; shapes (n_keys,).
    """
    delta, n_keys = _delta(stage, name), len(known.entry)
    waits = np.flatnonzero(int64_of(known.waiting.column(TIME).combine_chunks()) < stage.clock.watermark)
    waiting = pa.table({delta.column: known.waiting.column(stage.state.live[delta.column])})
    ready = values_of(delta, waiting, waits)
    both = joined_values((arriving, ready))
    greatest = greatest_values(both, np.append(np.arange(n_keys), known.waiting_keys[waits]), n_keys)
    rows = live_nodes(name, stored, codes, known.scalar(HEAD))
    nodes, key = stored.take(pa.array(rows)), codes[rows]
    integers = holds_integers(delta, waiting)
    settings, least = stage.settings[stage.state.sequences[name][0]], least_values(nodes, integers=integers)
    leaves = may_leave(settings, values_at(greatest, key), least, integers=integers)
    return rows[make_up(places_of(nodes, key), leaves, known.scalar(NEXT)[key])]


def sequence_nodes(name: str, stored: pa.Table, codes: Ints, known: Known) -> tuple[pa.Table, Ints]:
    """The restored nodes of the sequence ``name`` that have live tuples, and their key indices."""
    rows = live_nodes(name, stored, codes, known.scalar(HEAD))
    return stored.take(pa.array(rows)), codes[rows]


def _delta(stage: PositionStage, name: str) -> Delta:
    """The delta by which the windows of the sequence ``name`` evict."""
    delta = stage.settings[stage.state.sequences[name][0]].evict.delta
    assert delta is not None
    return delta
