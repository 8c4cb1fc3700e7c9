"""What ``windowmill explain`` says of windows over positions: what the state holds of a key, what a batch reads and adds, what it combines.

See :mod:`windowmill.windowing.columnar.positions` for the state.
"""

from __future__ import annotations

from dataclasses import replace

from windowmill.windowing.columnar.added_columns import BATCH, KIND, LEVEL
from windowmill.windowing.columnar.position_nodes import ABOVE, FIRST, POSITION
from windowmill.windowing.columnar.positions import SEQUENCE, PositionState
from windowmill.windowing.costs import Cost, Shape, live_positions_cost, positions_cost
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.windows.base import Window

#: Columns of a stored node beside keys and partials.
NODE_COLUMNS = (KIND, SEQUENCE, BATCH, LEVEL, POSITION, FIRST, ABOVE)
READS = (
    "of the keys that new rows touch and of those that the watermark makes due: the policies' scalars, the tuples that wait, the leaves "
    "that may leave a window in this batch, and at most 2·log2 n nodes for the rest of each window; where a delta evicts, the nodes over "
    "the tuples, and the 16 leaves below each that may lose one; nothing of other keys"
)
ADDS = (
    "a leaf for each applied tuple and the nodes that it completes, about two rows a tuple; a row for each tuple that begins to wait, and "
    "one for each key that changes; where a delta evicts, a row for each tuple that leaves and for each node above it, a few; "
    "what windows have left behind goes when the table has doubled"
)
WHY = "the state holds its nodes over positions of tuples: a batch reads few of them, whatever the length of the window"


def shape_of(pipeline: Pipeline, state: PositionState, window: Window, objects: str) -> Shape:
    """The shape of ``window`` over stored positions; ``objects`` says which partials have no known size, to follow the state."""
    shape = window.shape(pipeline)
    index = pipeline.windows.index(window)
    shared = next([pipeline.windows[other] for other in windows] for windows in state.sequences.values() if index in windows)
    lengths = [other.shape(pipeline).state_rows for other in shared]
    known = [length for length in lengths if length is not None]
    held = shape.leaves
    if len(pipeline.windows) > 1:
        named = ", ".join(other.name for other in shared)
        held = f"the tuples that {named} {'hold' if len(shared) > 1 else 'holds'}"
    nodes = "at most as many nodes" if shape.in_order else "nodes"
    kept = f"partials of {held}, and {nodes} over them; tuples that wait for the watermark, and the policies' scalars"
    return replace(
        shape,
        slicing="positions",
        why="tuples of a key are numbered as they are applied, and a window is a stretch of them",
        state=kept + objects,
        state_rows=2 * max(known) if len(known) == len(lengths) else None,
    )


def cost_of(window: Window, shape: Shape) -> Cost:
    """Combines per window of ``window``, which has this shape."""
    policies = window.policies()
    trigger = policies.trigger
    if trigger is not None and policies.evict.delta is not None:
        return live_positions_cost(shape.n, trigger.count)
    tuples = shape.n if trigger is None else trigger.count
    return positions_cost(shape.n, tuples, flushed=trigger is None)
