"""Which slices, and which engine, each window and aggregate of a pipeline gets, and why; what it costs, and what was not taken.

Works from the spec alone. Column types that are not known are assumed, and what would be otherwise under other types is said. What is
planned is what runs: refusals, columns of partials, edges of slices and admissible engines are asked of the code that has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from windowmill.windowing.aggregates import VALUE_TYPES
from windowmill.windowing.aggregates.order import mergeable
from windowmill.windowing.algebra import Aggregate
from windowmill.windowing.assumed_types import CELL_BYTES, assumed_aggregate, assumed_arrow, assumed_types, built_over, width_of
from windowmill.windowing.axis import all_hopping
from windowmill.windowing.catalogue import AggregateSpec
from windowmill.windowing.columnar.log import StateLog
from windowmill.windowing.columnar.positions import PositionState
from windowmill.windowing.costs import Cost, Shape, listed_cost, ranges_cost, tree_cost
from windowmill.windowing.nodes import MANY_SLICES, Nodes
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.stored_shapes import ADDS, NODE_COLUMNS, READS, WHY, cost_of, lasting_costs, position_shape, slice_shape
from windowmill.windowing.textbook import ENGINES, Setting, admissible, engine_cost
from windowmill.windowing.ways import Positions, Rows, Sessions, Slices, WayName, divide, why_rows
from windowmill.windowing.windows.base import VERSIONS, Window, kept_before

Command = Literal["run", "kernel"]

#: Columns of a stored slice beside keys and partials: start, closed, batch; more with nodes (the level), and if events may reach into it.
_SLICES_OWN = 3
#: What revisions add to ``_READS`` and ``_ADDS`` of slices.
_REVISIONS = (
    "; where rows came late, also those of the windows that they revise",
    "; late rows of a slice have rows of their own",
)
#: What empty windows add to them.
_SPANS = (
    "; the spans of all keys, from the first event to the last, as empty windows between these have rows",
    "; a row for each key whose span changes",
)
#: What sessions with a greatest size add to ``_ADDS`` of sessions.
_INSTANTS = "; of those with a greatest size one for each instant of new rows, until windows are closed through it"
_READS: Mapping[str, str] = {
    "slices": "the slices that windows now complete are made of, of all keys; none in a batch that completes no window",
    "nodes": "the nodes and slices that windows now complete are made of, of all keys; none in a batch that completes neither",
    "sessions": "the open sessions of all keys; none in a batch that closes no session and has no rows",
    "positions": READS,
    "live rows": "all entries of the keys that new rows touch and of those that the watermark makes due; no others",
}
_ADDS: Mapping[str, str] = {
    "slices": "a row for each slice that new rows touch",
    "nodes": "a row for each slice that new rows touch, and for each node that becomes whole or was whole before they came",
    "sessions": "a row for each open session that new rows touch",
    "positions": ADDS,
    "live rows": (
        "an entry for each row that comes, goes, or is held otherwise than before, and one for each key that changes; "
        "what later entries supersede goes when the log has doubled"
    ),
}


@dataclass(frozen=True, slots=True)
class Alternative:
    """An engine that was not taken; ``combines`` is what it would need, were it ``allowed``."""

    engine: str
    combines: Cost
    allowed: bool
    why_not: str


@dataclass(frozen=True, slots=True)
class Choice:
    """What computes one aggregate of one window."""

    aggregate: str
    engine: str
    why: str
    combines: Cost
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class AggregatePlan:
    """One aggregate, whatever the window.

    Attributes
    ----------
    assumed
        The types of its columns that the plan assumes.
    partial
        Columns of its partial; where slices are stored, the state table's, some of them other aggregates' too.
    admissible
        Engines that its algebra allows.
    deducted_if
        Types of its columns that would allow deduction where the assumed one does not; empty if none.
    accuracy
        How exact its result is; empty if it is within the rounding of its type.
    """

    name: str
    function: str
    columns: tuple[str, ...]
    assumed: tuple[str, ...]
    partial: tuple[str, ...]
    admissible: tuple[str, ...]
    deducted_if: tuple[str, ...]
    accuracy: str


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """One window of the spec: how it is cut, what computes it, and what a key keeps of it between batches.

    Attributes
    ----------
    way
        What its leaves are: partials of slices, of sessions or of tuples by their positions, or rows.
    leaf_bytes
        Of one stored slice, session, node over positions or live row, its key included.
    state_bytes
        Of ``shape.state_rows`` rows, as columns in memory; ``None`` where their number depends on the data.
    """

    name: str
    what: str
    way: WayName
    shape: Shape
    choices: tuple[Choice, ...]
    leaf_bytes: int
    state_bytes: int | None


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """How a pipeline is computed.

    Attributes
    ----------
    command
        What is planned: ``run``, or, where the spec lacks what that needs, ``try`` with the engine of this name.
    refused
        The commands before it in this order, and why they do not.
    ways
        The ways that windows go.
    why
        The parts of the spec that need live rows, each with its reason.
    reads, adds
        Which state a batch reads, and what it adds to it; empty where no state is kept.
    """

    pipeline: str
    command: Command
    refused: tuple[tuple[Command, str], ...]
    ways: tuple[WayName, ...]
    why: tuple[str, ...]
    reads: str
    adds: str
    aggregates: tuple[AggregatePlan, ...]
    windows: tuple[WindowPlan, ...]


def plan(pipeline: Pipeline, types: Mapping[str, str] | None = None, refusal: str | None = None) -> PipelinePlan:
    """The plan of ``pipeline``.

    Parameters
    ----------
    types
        Types of columns where they are known, as ``windowmill.windowing.aggregates.VALUE_TYPES`` names them.
    refusal
        Why ``run`` does not do it, if so.

    Raises
    ------
    SpecError
        If an aggregate cannot be had of columns of these types, or a function of the user's cannot be loaded.
    """
    return _Planner(pipeline, types or {}, refusal).plan()


_Part = Slices | Sessions | Positions | Rows


class _Planner:
    def __init__(self, pipeline: Pipeline, types: Mapping[str, str], refusal: str | None) -> None:
        self._pipeline, self._known, self._revises = pipeline, set(types), pipeline.emit == "revise"
        self._types = assumed_types(pipeline, types)
        self._arrow = assumed_arrow(pipeline, self._types)
        self._aggregates: dict[str, Aggregate[Any]] = {
            name: assumed_aggregate(spec, self._types) for name, spec in pipeline.aggregates.items()
        }
        self._refusal, self._why = refusal, why_rows(pipeline)
        self._parts = parts = divide(pipeline, self._arrow)
        self._layout = parts.layout
        self._objects = self._partials_of_bytes()
        self._nodes = Nodes.of(parts.slices.grids.grids) if parts.slices else None
        self._nodes_from = None if parts.slices and all_hopping(parts.slices.grids.grids) is None else MANY_SLICES
        self._part_of: dict[str, _Part] = {window.name: part for part in parts.each for window in part.pipeline.windows}
        for window in pipeline.windows:  # fail here if a user function cannot be imported
            window.slicer(pipeline)

    def plan(self) -> PipelinePlan:
        aggregates = tuple(self._aggregate(name, spec) for name, spec in self._pipeline.aggregates.items())
        windows = tuple(self._window(window) for window in self._pipeline.windows)
        name, ways = self._pipeline.pipeline, self._parts.ways
        if self._refusal:
            return PipelinePlan(name, "kernel", (("run", self._refusal),), ways, self._why, "", "", aggregates, windows)
        reads, adds = ("; ".join(texts) for texts in zip(*map(self._reads_and_adds, self._parts.each), strict=True))
        return PipelinePlan(name, "run", (), ways, self._why, reads, adds, aggregates, windows)

    def _reads_and_adds(self, part: _Part) -> tuple[str, str]:
        """Which state a batch reads for the windows of ``part``, and what it adds to it."""
        kind = "nodes" if self._has_nodes(part) else part.way
        reads, adds = [_READS[kind]], [_ADDS[kind]]
        match part:
            case Slices():
                more = [text for text, applies in ((_REVISIONS, self._revises), (_SPANS, part.grids.known)) if applies]
                if part.grids.lasting:
                    more.append(lasting_costs(part.pipeline, part.grids, clips=part.layout.clips))
                for read, added in more:
                    reads.append(read)
                    adds.append(added)
            case Sessions() if part.cuts:
                adds.append(_INSTANTS)
        return "".join(reads), "".join(adds)

    def _has_nodes(self, part: _Part) -> bool:
        return isinstance(part, Slices) and self._nodes is not None

    def _partials_of_bytes(self) -> str:
        """The columns of partials of which the types give no size, to follow what the state holds; nothing if there are none."""
        held = self._layout.objects if self._layout else ()
        bounded = {column.name: all(mergeable(self._aggregates[name]).fixed_size for name, _ in column.results) for column in held}
        sizes = (("of bounded size", True), ("at most as large as their rows", False))
        named = {size: [name for name, fixed in bounded.items() if fixed == wanted] for size, wanted in sizes}
        parts = [f"{', '.join(names)} {size}" for size, names in named.items() if names]
        return f" (not counted: partials as bytes, {'; '.join(parts)})" if parts else ""

    def _leaf_bytes(self, part: _Part) -> int:
        match part:
            case Slices():
                own = _SLICES_OWN + self._has_nodes(part) + part.grids.lasting + 2 * len(part.grids.known)
            case Sessions():
                own = 1 + len(part.own_columns)
            case Positions():
                own = len(NODE_COLUMNS)
            case Rows():
                log = StateLog(part.pipeline, self._arrow, part.pipeline.conditions(), beside=part.beside)
                return sum(width_of(field.type) for field in log.schema)
        return CELL_BYTES * (own + len(self._pipeline.keys)) + sum(width_of(kind) for _, kind in part.layout.stored_columns)

    def _aggregate(self, name: str, spec: AggregateSpec) -> AggregatePlan:
        aggregate = self._aggregates[name]
        partial = tuple(field.name for field in aggregate.fields)
        if self._layout:
            partial = self._layout.columns_of(name)
        assumed = tuple(self._types[column] for column in spec.columns)
        settled = aggregate.invertible or set(spec.columns) <= self._known
        others = {} if settled else {type_: built_over(spec, type_) for type_ in VALUE_TYPES}
        deducted_if = tuple(type_ for type_, other in others.items() if other is not None and other.invertible)
        return AggregatePlan(
            name, spec.function, spec.columns, assumed, partial, tuple(admissible(aggregate)), deducted_if, aggregate.accuracy
        )

    def _window(self, window: Window) -> WindowPlan:
        shape, part = window.shape(self._pipeline), self._part_of[window.name]
        match part:
            case Slices():
                shape = slice_shape(part.pipeline, part.grids, self._nodes, window, self._objects)
            case Sessions():
                kept = f"bounds and partials of open sessions{kept_before(self._pipeline)}, a row for each batch that touched one"
                if window.greatest_size() is not None:
                    kept += "; a partial for each instant that windows are not closed through"
                shape = replace(shape, state=kept + self._objects, listed=VERSIONS if self._revises else shape.listed)
            case Positions():
                columns = PositionState(part.pipeline, self._arrow, part.layout)
                shape = position_shape(part.pipeline, columns, window, self._objects)
        choices = tuple(self._choice(window, name, spec, shape) for name, spec in self._pipeline.aggregates.items())
        leaf_bytes = self._leaf_bytes(part)
        state_bytes = shape.state_rows * leaf_bytes if shape.state_rows is not None else None
        return WindowPlan(window.name, window.describe(), part.way, shape, choices, leaf_bytes, state_bytes)

    def _choice(self, window: Window, name: str, spec: AggregateSpec, shape: Shape) -> Choice:
        aggregate, part = self._aggregates[name], self._part_of[window.name]
        if spec.declaration.partial == "none" and not isinstance(part, Slices):
            engine, why = "recompute", "an event weighs as long as it lasts inside the window, so each window weighs its events anew"
        elif shape.listed:
            engine, why = "recompute", shape.listed
        else:
            engine, why = "two_stacks", "what leaves is the oldest, and any associative aggregate will do"
            if isinstance(part, Positions):
                engine, why = "flatfat", WHY
            elif not shape.in_order:
                engine, why = "flatfat", "tuples leave from anywhere; only what stands above them in the tree is combined anew"
            why += "; events are clipped to slices, whose parts add up" if spec.declaration.partial == "none" else ""
            why += "; one Python call a combine" if spec.declaration.partial == "objects" else ""
            why += f"; {shape.late}" if shape.late else ""
        if engine == "recompute":
            combines = listed_cost(shape.n)
        elif isinstance(part, Positions):
            combines = cost_of(window, shape)
        elif engine == "flatfat":
            combines = tree_cost(shape.n, shape.m)
        else:
            combines = ranges_cost(shape.n, shape.m, alone=shape.alone or shape.n == shape.m)
        others = tuple(self._alternative(other, aggregate, shape, part) for other in ENGINES if other != engine)
        return Choice(name, engine, why, combines, others)

    def _alternative(self, engine: str, aggregate: Aggregate[Any], shape: Shape, part: _Part) -> Alternative:
        combines, allowed = engine_cost(engine, shape.n, shape.m), engine in admissible(aggregate)
        if not allowed and not aggregate.exact:
            why_not = "floating point is never deducted: rounding, infinity or NaN of what left would stay behind"
        elif not allowed:
            why_not = f"{aggregate.name} has no inverse"
        elif not shape.in_order and ENGINES[engine].oldest_only:
            allowed, why_not = False, "takes out the oldest only"
        elif shape.listed and shape.alone:
            why_not = "no gain, as windows do not overlap"
        else:
            setting = Setting(shape, isinstance(part, Slices), self._has_nodes(part), self._nodes_from, isinstance(part, Positions))
            why_not = ENGINES[engine].why_not(setting)
        return Alternative(engine, combines, allowed, why_not)
