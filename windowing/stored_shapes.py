"""What ``windowmill explain`` says of stored windows, made of slices or over positions: how time is cut, and what the state holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from windowmill.windowing.axis import Grid, WindowGrid, all_hopping
from windowmill.windowing.columnar.added_columns import BATCH, KIND, LEVEL
from windowmill.windowing.columnar.position_nodes import ABOVE, FIRST, POSITION
from windowmill.windowing.columnar.positions import SEQUENCE, PositionState
from windowmill.windowing.costs import Cost, Shape, count_slices, live_positions_cost, positions_cost
from windowmill.windowing.durations import Duration
from windowmill.windowing.grids import Grids
from windowmill.windowing.nodes import Nodes
from windowmill.windowing.slicing.calendar_grid import CalendarGrid
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.windows.base import Window, kept_before

#: What late rows cost where the kernel for fixed grids and numbers combines slices, and elsewhere.
_LATE, _LATE_SLICES = "a key with late rows is recomputed in their batch", "slices of late rows are combined one by one"
#: What late rows cost where they bring revisions.
_LATE_REVISIONS = "a window that late rows revise is combined once a batch; they are added one by one"
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


def slice_shape(pipeline: Pipeline, grids: Grids, nodes: Nodes | None, window: Window, objects: str) -> Shape:
    """The shape of ``window`` over the slices of ``pipeline``, all of whose windows are on ``grids``.

    ``nodes`` are those over the slices, null if there are none; ``objects`` says which partials have no known size, to follow the state.
    """
    hopping = all_hopping(grids.grids)
    if hopping is None:
        return _uneven_slices(pipeline, grids, window, objects)
    return _even_slices(pipeline, grids, nodes, window, hopping, objects)


def _even_slices(pipeline: Pipeline, grids: Grids, nodes: Nodes | None, window: Window, hopping: Sequence[Grid], objects: str) -> Shape:
    """Slices of windows that all have fixed lengths and distances."""
    time, edges = pipeline.time, grids.edges
    grid = hopping[[name for name, _ in grids.named].index(window.name)]
    n, m = count_slices(edges, grid)
    first = hopping[0]
    panes = math.gcd(*(length for other in hopping for length in (other.size, other.hop, other.origin - first.origin)))
    wider = f"; panes of {_span(pipeline, panes)} would be {grid.size // panes:,} a window"
    shared = "all windows share them" if len(hopping) > 1 else "one a hop"
    if math.isclose(m * panes, grid.hop):
        slicing, why = "panes", f"all edges are {_span(pipeline, panes)} apart; {shared}"
    elif len(hopping) == 1:
        slicing, why = "pairs", f"windows begin and end at different places of a hop, so a hop has two edges{wider}"
    else:
        slicing, why = "shared edges", f"cut where any window begins or ends; {shared}{wider}"
    # As many nodes as slices: half as many on each level as on that below.
    above = ", and nodes over them: for one window end a batch reads at most 2·log2 n rows a key" if nodes else ""
    kept = max(other.size for other in hopping) + time.disorder.elapsed() + time.lateness.elapsed()
    return Shape(
        slicing,
        why,
        f"{n:,} slices",
        f"{m:.3g} a hop",
        n,
        min(m, n),
        alone=grid.hop >= grid.size,
        late=_LATE_REVISIONS if pipeline.emit == "revise" else _LATE_SLICES if objects or grids.lasting else _LATE,
        state=f"slices of the last {_span(pipeline, kept)} (longest window, disorder, lateness), a row for each batch that touched one"
        + above
        + objects,
        state_rows=(math.ceil(m / grid.hop * kept) + 1) * (2 if nodes else 1) + _starts(grids, kept),
    )


def _uneven_slices(pipeline: Pipeline, grids: Grids, window: Window, objects: str) -> Shape:
    """Slices where some windows follow a calendar, or grow."""
    time, edges, by_name = pipeline.time, grids.edges, dict(grids.named)
    n, m = count_slices(edges, by_name[window.name])
    if len(grids.grids) > 1:
        slicing, why = "shared edges", "cut where any window begins or ends; all windows share them"
    elif edges.listed:
        slicing, why = "calendar edges", f"cut where a window begins or ends on the calendar of {window.zone or 'UTC'}"
    else:
        slicing, why = "panes", f"all edges are {_span(pipeline, edges.sequences[0][0])} apart; one a {window.hop_field}"
    size, longest = max(
        ((other.spacing().size or Duration(), other.name) for other in pipeline.windows),
        key=lambda given: given[0].longest,
    )
    most, delay = by_name[longest].longest, time.disorder.elapsed() + time.lateness.elapsed()
    return Shape(
        slicing,
        why,
        f"{n:,} slices",
        f"{m:.3g} a {window.hop_field}",
        n,
        min(m, n),
        alone=window.shape(pipeline).alone,
        late=_LATE_REVISIONS if pipeline.emit == "revise" else _LATE_SLICES,
        state=f"slices of the last {size} (longest window){kept_before(pipeline)}, a row for each batch that touched one" + objects,
        state_rows=math.ceil(count_slices(edges, by_name[longest])[0] * (most + delay) / most) + 1 + _starts(grids, size.longest + delay),
    )


def lasting_costs(pipeline: Pipeline, grids: Grids, *, clips: bool) -> tuple[str, str]:
    """What a batch reads and adds of events that last, to follow what it reads and adds of slices.

    ``clips`` is whether an aggregate weighs events by time.
    """
    every = list(dict.fromkeys(_distance(pipeline, grid) for grid in grids.grids))
    adds = f"; a row for each start of a window (every {' and every '.join(every)}) that new events last across"
    if clips:
        adds += ", and for each other slice that they overlap, as aggregates weigh them by time"
    return "; where these windows begin, the rows of events that reach into them from before", adds


def _distance(pipeline: Pipeline, grid: WindowGrid) -> str:
    """How far apart windows of ``grid`` begin."""
    return str(grid.hop) if isinstance(grid, CalendarGrid) else _span(pipeline, _period(grid))


def _starts(grids: Grids, ticks: int) -> int:
    """Upper bound on how many instants of a span windows begin at into which events can reach; 0 where events are points."""
    if not grids.lasting:
        return 0
    return sum(ticks // (grid.hop.shortest if isinstance(grid, CalendarGrid) else _period(grid)) + 1 for grid in grids.grids)


def _period(grid: WindowGrid) -> int:
    assert grid.start_sequence is not None
    period, _ = grid.start_sequence
    return period


def _span(pipeline: Pipeline, ticks: int) -> str:
    return str(Duration(ticks=ticks, plain=pipeline.time.integer_axis))


def position_shape(pipeline: Pipeline, state: PositionState, window: Window, objects: str) -> Shape:
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
