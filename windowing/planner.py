"""What ``windowmill explain`` says: the layout of each window's state, its slices, its engine, and what a batch reads, adds and combines.

Works from the spec alone. Column types that are not known are assumed. Each figure is taken from the layout that runs the window.

A *leaf* is what an engine combines: the partial of a slice or, over positions, of a tuple; where rows are kept, a row. n is the number of
leaves of a window, m how many of them are new since the window before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pyarrow as pa

from windowmill.windowing.aggregates import aggregate_for, value_type
from windowmill.windowing.aggregates.order import mergeable
from windowmill.windowing.axis import ZERO, Duration
from windowmill.windowing.catalogue import AggregateSpec
from windowmill.windowing.columnar.added_columns import ABOVE, BATCH, FIRST, KIND, NODE_LEVEL, POSITION, SEQUENCE
from windowmill.windowing.columnar.keyed import StateLog
from windowmill.windowing.columnar.positions import PositionState
from windowmill.windowing.grids import MANY_SLICES, Nodes, count_slices
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.layouts import Positions, Rows, Sessions, Slices, StateLayout, divide, live_columns, why_rows
from windowmill.windowing.slicing.edges import CalendarGrid, Grid, WindowGrid, all_hopping
from windowmill.windowing.slicing.slicers import slicer_of
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.windows.base import Window

Command = Literal["run", "kernel"]

#: Bytes assumed for a cell whose type has no fixed size: keys, texts.
CELL_BYTES = 8
#: Why two stacks combine a window's leaves, and how many combines of :func:`windowmill.windowing.kernels.two_stacks.fifo_ranges` it takes.
_OLDEST = "what leaves is the oldest, and any associative aggregate will do"
_TWO_STACKS = "2m + 1 − (m² + 2m)/n; in a batch that completes w windows of a key, up to n/w more"


@dataclass(frozen=True, slots=True)
class Combines:
    """Combines for a result row: a formula in n and m, and its value where both are known."""

    formula: str
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """The leaves of a window, and what a key keeps of it between batches."""

    #: Name of the cut into leaves, and its reason.
    slicing: str
    why: str
    #: n and m in words.
    leaves: str
    new_leaves: str
    #: Where the spec determines them.
    n: float | None
    m: float | None
    #: Most rows of the state that a window is made of, where these are nodes; ``None`` where they are all of its leaves, or not known.
    nodes: int | None
    #: What a key keeps, in words, and in rows where the spec determines that.
    state: str
    state_rows: int | None = None


class Described(NamedTuple):
    """How a layout computes one of its windows."""

    shape: Shape
    #: What combines the leaves of a window, and the reason.
    engine: str
    why: str
    combines: Combines
    #: Which state a batch reads for all windows of the layout, and what it adds to it.
    reads: str
    adds: str
    #: Size of a row of the state as columns in memory, its key included.
    row_bytes: int


@dataclass(frozen=True, slots=True)
class Choice:
    """What computes one aggregate of one window."""

    aggregate: str
    engine: str
    why: str
    combines: Combines


@dataclass(frozen=True, slots=True)
class AggregatePlan:
    """One aggregate, for all windows."""

    name: str
    function: str
    columns: tuple[str, ...]
    #: The types that are assumed of its columns.
    assumed: tuple[str, ...]
    #: Columns of the state that hold its partials, some of them other aggregates' too; none where only rows are kept.
    partial: tuple[str, ...]
    #: How exact its result is; empty if it is within the rounding of its type.
    accuracy: str


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """One window of the spec: how it is cut, what computes it, and what a key keeps of it between batches."""

    name: str
    what: str
    #: The layout of its state.
    layout: StateLayout
    shape: Shape
    choices: tuple[Choice, ...]
    #: Size of one stored slice, session, node over positions or live row, its key included.
    leaf_bytes: int
    #: Size of ``shape.state_rows`` rows; ``None`` where their number depends on the data.
    state_bytes: int | None


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """How a pipeline is computed."""

    pipeline: str
    #: What is planned: ``run``, or, where the spec lacks what that needs, ``try`` with the engine of this name.
    command: Command
    #: The commands before it in this order, and why they do not.
    refused: tuple[tuple[Command, str], ...]
    #: The layouts of its windows.
    layouts: tuple[StateLayout, ...]
    #: The parts of the spec that need live rows, each with its reason.
    why: tuple[str, ...]
    #: Which state a batch reads, and what it adds to it; empty where no state is kept.
    reads: str
    adds: str
    aggregates: tuple[AggregatePlan, ...]
    windows: tuple[WindowPlan, ...]


def plan(pipeline: Pipeline, refusal: str | None = None) -> PipelinePlan:
    """The plan of ``pipeline``; ``refusal`` is why ``run`` does not compute it, if so.

    Raises ``SpecError`` if an aggregate cannot be computed from its columns, a key has the name of a column of the state, or a function of
    the user's cannot be loaded.
    """
    types = assumed_types(pipeline)
    parts = divide(pipeline, types)
    layouts = {window.name: part.name for part in parts.each for window in part.pipeline.windows}
    described = {window.name: _described(part, window, types) for part in parts.each for window in part.pipeline.windows}
    windows = tuple(_window(pipeline, window, layouts[window.name], described[window.name]) for window in pipeline.windows)
    reads, adds = ("; ".join(dict.fromkeys(texts)) for texts in zip(*((each.reads, each.adds) for each in described.values()), strict=True))
    return PipelinePlan(
        pipeline.pipeline,
        "kernel" if refusal else "run",
        (("run", refusal),) if refusal else (),
        parts.names,
        why_rows(pipeline),
        "" if refusal else reads,
        "" if refusal else adds,
        tuple(_aggregate(name, spec, types, parts.layout) for name, spec in pipeline.aggregates.items()),
        windows,
    )


def assumed_types(pipeline: Pipeline) -> dict[str, pa.DataType]:
    """A type for each column that is kept: truth or numbers where aggregates read them, else text."""
    specs = pipeline.aggregates.values()
    truths = {column for spec in specs if spec.declaration.takes == "boolean" for column in spec.columns}
    arguments = {column: pa.bool_() if column in truths else pa.float64() for spec in specs for column in spec.columns}
    return {column: arguments.get(column, pa.string()) for column in (*pipeline.keys, *live_columns(pipeline, arguments), *arguments)}


def _aggregate(name: str, spec: AggregateSpec, types: Mapping[str, pa.DataType], layout: Layout | None) -> AggregatePlan:
    assumed = tuple(value_type(types[column]) for column in spec.columns)
    accuracy = aggregate_for(spec, assumed).accuracy if spec.declaration.partial == "objects" else ""
    return AggregatePlan(name, spec.function, spec.columns, assumed, () if layout is None else layout.columns_of(name), accuracy)


def _window(pipeline: Pipeline, window: Window, layout: StateLayout, described: Described) -> WindowPlan:
    rows = described.shape.state_rows
    choices = tuple(_choice(name, spec, layout, described) for name, spec in pipeline.over_rows().aggregates.items())
    state_bytes = None if rows is None else rows * described.row_bytes
    return WindowPlan(window.name, window.describe(), layout, described.shape, choices, described.row_bytes, state_bytes)


def _choice(name: str, spec: AggregateSpec, layout: StateLayout, described: Described) -> Choice:
    partial, engine, why, combines = spec.declaration.partial, described.engine, described.why, described.combines
    if partial == "none" and layout == "live rows":
        engine, why = "recompute", "an event weighs as long as it lasts inside the window, so each window weighs its events again"
        combines = Combines("n", described.shape.n)
    elif partial == "none":
        why += "; events are clipped to slices, whose parts add up"
    elif partial == "objects":
        why += "; one Python call a combine"
    return Choice(name, engine, why, combines)


def _described(part: Slices | Sessions | Positions | Rows, window: Window, types: Mapping[str, pa.DataType]) -> Described:
    match part:
        case Slices():
            return _of_slices(part, window)
        case Sessions():
            return _of_sessions(part, window)
        case Positions():
            return _of_positions(part, window, types)
        case Rows():
            return _of_rows(part, window, types)


# -- Slices


def _of_slices(part: Slices, window: Window) -> Described:
    pipeline, grids, by_name = part.pipeline, part.grids, dict(part.grids.named)
    grid, nodes, revises = by_name[window.name], Nodes.of(grids.grids), pipeline.emit == "revise"
    n, new = count_slices(grids.edges, grid)
    m = min(new, n)
    spacing = window.spacing()
    assert spacing.size is not None
    assert spacing.step is not None
    alone = n == m or spacing.step == spacing.size or spacing.step.shortest >= spacing.size.longest
    longest = max(pipeline.windows, key=lambda other: by_name[other.name].longest)
    size, span = longest.spacing().size, by_name[longest.name].longest
    assert size is not None
    delay = pipeline.time.delay
    # Grids of fixed lengths have as many slices in any stretch of time; of others the most in the longest window are counted.
    even = all_hopping(grids.grids) is not None
    density = new / grid.hop if even and isinstance(grid, Grid) else count_slices(grids.edges, by_name[longest.name])[0] / span
    starts = sum((size.longest + delay) // _distance(each) + 1 for each in grids.grids) if grids.intervals else 0
    above = ", and nodes over them: for one window end a batch reads at most 2·log2 n rows a key" if nodes else ""
    state = f"slices of the last {size} (longest window){_delays(pipeline)}, a row for each batch that touched one{above}"
    shape = Shape(
        *_cut(part, window, new),
        f"{n:,} slices",
        f"{new:.3g} a {window.hop_field}",
        n,
        m,
        _most_nodes(n) if nodes and n >= MANY_SLICES else None,
        state + _uncounted(part.layout),
        # A node for each slice: half as many on each level as on the one below.
        (math.ceil(density * (span + delay)) + 1) * (2 if nodes else 1) + starts,
    )
    if revises:
        late = "a window that late rows revise is combined once a batch; they are added one by one"
    elif part.layout.objects or grids.intervals or not even:
        late = "slices of late rows are combined one by one"
    else:
        late = "a key with late rows is recomputed in their batch"
    combines = Combines("n − 1", n - 1) if alone else Combines(_TWO_STACKS, round(2 * m + 1 - (m * m + 2 * m) / n, 2))
    own = 3 + bool(nodes) + grids.intervals + 2 * len(grids.known)  # start, closed, batch; level; whether events reach in; spans
    row_bytes = _row_bytes(part.pipeline, own, part.layout)
    return Described(shape, "two_stacks", f"{_OLDEST}; {late}", combines, *_traffic_of_slices(part, nodes), row_bytes)


def _cut(part: Slices, window: Window, new: float) -> tuple[str, str]:
    grids, shared = part.grids.grids, len(part.grids.grids) > 1
    if not all_hopping(grids):
        if shared:
            return "shared edges", "cut where any window begins or ends; all windows share them"
        if part.grids.edges.listed:
            return "calendar edges", f"cut where a window begins or ends on the calendar of {window.zone or 'UTC'}"
        return "panes", f"all edges are {_span(part.pipeline, part.grids.edges.sequences[0][0])} apart; one a {window.hop_field}"
    hopping = all_hopping(grids) or []
    grid = dict(zip((name for name, _ in part.grids.named), hopping, strict=True))[window.name]
    width = math.gcd(*(length for other in hopping for length in (other.size, other.hop, other.origin - hopping[0].origin)))
    wider = f"; panes of {_span(part.pipeline, width)} would be {grid.size // width:,} a window"
    each = "all windows share them" if shared else "one a hop"
    if math.isclose(new * width, grid.hop):
        return "panes", f"all edges are {_span(part.pipeline, width)} apart; {each}"
    if shared:
        return "shared edges", f"cut where any window begins or ends; {each}{wider}"
    return "pairs", f"windows begin and end at different places of a hop, so a hop has two edges{wider}"


def _traffic_of_slices(part: Slices, nodes: Nodes | None) -> tuple[str, str]:
    """Which rows of the state a batch reads, and which it adds."""
    kind, neither = ("nodes and slices", "neither") if nodes else ("slices", "no window")
    reads = f"the {kind} that windows now complete are made of, of all keys; none in a batch that completes {neither}"
    adds = "a row for each slice that new rows touch"
    adds += ", and for each node that becomes whole or was whole before they came" if nodes else ""
    if part.pipeline.emit == "revise":
        reads += "; where rows came late, also those of the windows that they revise"
        adds += "; late rows of a slice have rows of their own"
    if part.grids.known:
        reads += "; the spans of all keys, from the first event to the last, as empty windows between these have rows"
        adds += "; a row for each key whose span changes"
    if part.grids.intervals:
        reads += "; where these windows begin, the rows of events that reach into them from before"
        every = dict.fromkeys(f"every {_distance_text(part.pipeline, grid)}" for grid in part.grids.grids)
        adds += f"; a row for each start of a window ({' and '.join(every)}) that new events last across"
        adds += ", and for each other slice that they overlap, as aggregates weigh them by time" if part.layout.clips else ""
    return reads, adds


def _distance(grid: WindowGrid) -> int:
    """Least distance in ticks between starts of windows."""
    if isinstance(grid, CalendarGrid):
        return grid.hop.shortest
    assert grid.start_sequence is not None
    return grid.start_sequence[0]


def _distance_text(pipeline: Pipeline, grid: WindowGrid) -> str:
    return str(grid.hop) if isinstance(grid, CalendarGrid) else _span(pipeline, _distance(grid))


# -- Sessions


def _of_sessions(part: Sessions, window: Window) -> Described:
    pipeline, cuts = part.pipeline, window.greatest_size() is not None
    gap = _span(pipeline, window.session_gap())
    state = f"bounds and partials of open sessions{_delays(pipeline)}, a row for each batch that touched one"
    state += "; a partial for each instant that windows are not closed through" if cuts else ""
    shape = Shape(
        "sessions",
        f"a window ends where no event comes for {gap}; an event between two makes them one",
        "the rows of the session",
        "all of them",
        None,
        None,
        None,
        state + _uncounted(part.layout),
    )
    each = "version is the one before it and what came since" if pipeline.emit == "revise" else "is combined once, row by row"
    reads = "the open sessions of all keys; none in a batch that closes no session and has no rows"
    adds = "a row for each open session that new rows touch"
    if part.cuts:
        adds += "; of those with a greatest size one for each instant of new rows, until windows are closed through it"
    row_bytes = _row_bytes(pipeline, 1 + len(part.own_columns), part.layout)
    return Described(shape, "recompute", f"windows do not overlap; each {each}", Combines("n"), reads, adds, row_bytes)


# -- Positions


def _of_positions(part: Positions, window: Window, types: Mapping[str, pa.DataType]) -> Described:
    pipeline, policies = part.pipeline, window.policies()
    evict, trigger = policies.evict, policies.trigger
    n = evict.count
    t = n if trigger is None else trigger.count
    known = {"count": f"{n} tuples", "time": f"the tuples of {evict.time}"}.get(evict.kind, f"the tuples up to {evict.describe()}")
    if trigger is not None:
        known = {"count": f"the last {n} tuples", "time": f"the tuples of the last {evict.time}"}.get(evict.kind, "the tuples not evicted")
    m = min(n, t) if n and t else t
    new = "all of them" if trigger is None else f"{m} tuples" if m else "those since the trigger before"
    from_anywhere = trigger is not None and evict.delta is not None
    index = pipeline.windows.index(window)
    sequences = PositionState(pipeline, types, part.layout).sequences
    sharing = next([pipeline.windows[each] for each in held] for held in sequences.values() if index in held)
    counts = [other.policies().evict.count for other in sharing]
    held = known
    if len(pipeline.windows) > 1:
        held = f"the tuples that {', '.join(other.name for other in sharing)} {'hold' if len(sharing) > 1 else 'holds'}"
    nodes = "nodes" if from_anywhere else "at most as many nodes"
    state = f"partials of {held}, and {nodes} over them; tuples that wait for the watermark, and the policies' scalars"
    shape = Shape(
        "positions",
        "tuples of a key are numbered as they are applied, and a window is a stretch of them",
        known,
        new,
        n,
        m,
        _most_nodes(n) if n and n > 1 else None,
        state + _uncounted(part.layout),
        2 * max(count for count in counts if count) if all(counts) else None,
    )
    why = "the state holds its nodes over positions of tuples: a batch reads few of them, whatever the length of the window"
    own = len((KIND, SEQUENCE, BATCH, NODE_LEVEL, POSITION, FIRST, ABOVE))
    combines = _combines_of_positions(n, t, trigger is None, from_anywhere)
    return Described(shape, "flatfat", why, combines, _READS, _ADDS, _row_bytes(pipeline, own, part.layout))


_READS = (
    "of the keys that new rows touch and of those that the watermark makes due: the policies' scalars, the tuples that wait, the leaves "
    "that may leave a window in this batch, and at most 2·log2 n nodes for the rest of each window; where a delta evicts, the nodes over "
    "the tuples, and the 16 leaves below each that may lose one; nothing of other keys"
)
_ADDS = (
    "a leaf for each applied tuple and the nodes that it completes, about two rows a tuple; a row for each tuple that begins to wait, and "
    "one for each key that changes; where a delta evicts, a row for each tuple that leaves and for each node above it, a few; "
    "what windows have left behind goes when the table has doubled"
)


def _combines_of_positions(n: int | None, t: int | None, flushes: bool, from_anywhere: bool) -> Combines:
    """Combines for windows of n tuples, t of them applied since the window before.

    Each applied tuple completes one inner node on average. A batch that may evict leaves reads them without the nodes above, and combines
    these again; a window that is flushed never loses a part. Where a delta evicts, each tuple that enters or leaves changes the nodes
    above it, log2 n at most, and a batch combines once what it restores: up to 16 parts of each node above a tuple that leaves.
    """
    if from_anywhere:
        formula = "2t·log2 n for t tuples since the window before; in each batch of a key, the parts of the nodes that lose tuples"
        return Combines(formula, round(2 * t * math.log2(n), 2) if n and t else None)
    times = 1 if flushes else 2
    formula = f"{'' if flushes else times}t + 2·log2 n for t tuples since the window before; in each batch of a key, up to log2 n more"
    return Combines(formula, round(times * t + 2 * math.log2(n), 2) if n and t else None)


# -- Live rows


def _of_rows(part: Rows, window: Window, types: Mapping[str, pa.DataType]) -> Described:
    pipeline = part.pipeline
    engine = slicer_of(window, pipeline).engine
    shape = Shape(
        "rows",
        f"rows of a key are kept in order of time, and a window is a {'list' if engine == 'recompute' else 'range'} of them",
        "the rows of the window",
        "those since the window before",
        None,
        None,
        None,
        f"the rows that windows still to come may hold{_delays(pipeline)}",
    )
    why, formula = {
        "two_stacks": (f"{_OLDEST}; late rows are combined one by one", _TWO_STACKS),
        "recompute": ("what a window holds follows from its rows alone; they are combined one by one", "n"),
    }[engine]
    reads = "all entries of the keys that new rows touch and of those that the watermark makes due; no others"
    adds = (
        "an entry for each row that comes, goes, or is held otherwise than before, and one for each key that changes; what later entries "
        "supersede goes when the log has doubled"
    )
    log = StateLog(pipeline, types, pipeline.conditions(), shared=part.shared)
    return Described(shape, engine, why, Combines(formula), reads, adds, sum(_width(field.type) for field in log.schema))


# -- What layouts have in common


def _row_bytes(pipeline: Pipeline, own: int, layout: Layout) -> int:
    """Size of a row of the state with ``own`` columns in addition to keys and partials."""
    return CELL_BYTES * (own + len(pipeline.keys)) + sum(_width(kind) for _, kind in layout.stored_columns)


def _width(kind: pa.DataType) -> int:
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return CELL_BYTES


def _uncounted(layout: Layout) -> str:
    """Text, to follow what the state holds, on columns of partials whose types give no size; empty if there are none."""
    bounded = {held.name: all(mergeable(aggregate_for(spec, held.types)).fixed_size for _, spec in held.results) for held in layout.objects}
    sizes = {"of bounded size": True, "at most as large as their rows": False}
    named = {size: [name for name, fixed in bounded.items() if fixed is wanted] for size, wanted in sizes.items()}
    texts = [f"{', '.join(names)} {size}" for size, names in named.items() if names]
    return f" (not counted: partials as bytes, {'; '.join(texts)})" if texts else ""


def _most_nodes(n: int) -> int:
    """Most nodes that make up a window of n leaves."""
    return math.ceil(2 * math.log2(n))


def _delays(pipeline: Pipeline) -> str:
    """What disorder and lateness add to the state, to follow what is kept; nothing if both are zero."""
    lengths = (("disorder", pipeline.time.disorder), ("lateness", pipeline.time.lateness))
    texts = [f"{name} of {length}" for name, length in lengths if length != ZERO]
    return f", and {' and '.join(texts)} before" if texts else ""


def _span(pipeline: Pipeline, ticks: int) -> str:
    return str(Duration(ticks=ticks, plain=pipeline.time.integer_axis))
