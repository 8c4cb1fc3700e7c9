"""What windows cost: how many leaves each has, how many of them are new, and how often an engine combines.

A leaf is a slice's partial where slices are stored, a row where rows are kept. n is the number of leaves in a window, m how many of
them are new since the window before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from windowmill.windowing.axis import Edges, Grid
from windowmill.windowing.durations import Duration
from windowmill.windowing.spec import Count, Cumulative, Custom, Hopping, Pipeline, Policy, Session, Sliding, Snapshot, Tumbling, Window

#: Edges are counted one by one up to so many a window, and added up train by train beyond.
_COUNTED_EDGES = 20_000
#: Windows of a grid that are looked at for the longest one.
_WINDOWS = 24


@dataclass(frozen=True, slots=True)
class Cost:
    """Combines per window: a formula in n and m, and its value where both are known."""

    formula: str
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """A window of the spec as its engine meets it.

    Attributes
    ----------
    slicing, why
        Name of the cut into leaves, and its reason.
    leaves, new_leaves
        n and m in words.
    n, m
        Where they are known from the spec.
    in_order
        Whether what leaves is always the oldest.
    alone
        Whether no two windows overlap.
    listed
        Why the kernels take a window leaf by leaf instead of as a range; empty if they do not.
    late
        What late rows cost, if anything.
    state, state_rows
        What a key keeps between batches, in words, and in rows where that is known.
    """

    slicing: str
    why: str
    leaves: str
    new_leaves: str
    n: float | None = None
    m: float | None = None
    in_order: bool = True
    alone: bool = False
    listed: str = ""
    late: str = ""
    state: str = ""
    state_rows: int | None = None


#: Combines per window, amortised; resizing not counted. Held against the engines' own counts in tests.
_COSTS: Mapping[str, tuple[str, Callable[[float, float], float]]] = {
    "recompute": ("n − 1", lambda n, _m: n - 1),
    "subtract": ("2m", lambda _n, m: 2 * m),
    "two_stacks": ("2m + 1", lambda _n, m: 2 * m + 1),
    "daba": ("4m + 1", lambda _n, m: 4 * m + 1),
    "epochs": ("2m + 1", lambda _n, m: 2 * m + 1),
    "flatfat": ("2m(1 + ⌈log2(n/2m)⌉) + log2 n", lambda n, m: _flatfat(n, 2 * m) + math.ceil(math.log2(n))),
    "dyadic": ("3m + 2·log2 n", lambda n, m: 3 * m + 2 * math.log2(n)),
}


def _flatfat(n: float, changes: float) -> float:
    capacity = 1 << max(0, math.ceil(math.log2(n)))
    return changes * (1 + max(0, math.ceil(math.log2(capacity / changes))))


def engine_cost(engine: str, n: float | None, m: float | None) -> Cost:
    """Combines per window of an engine of :mod:`windowmill.windowing.engines`."""
    formula, value = _COSTS[engine]
    return Cost(formula, round(max(0.0, value(n, m)), 2) if n and m else None)


def ranges_cost(n: float | None, m: float | None, *, alone: bool) -> Cost:
    """Combines per window of :func:`windowmill.windowing.kernels.two_stacks.fifo_ranges`; ``alone``: no window overlaps another."""
    if alone:
        return Cost("n − 1", n - 1 if n else None)
    value = 2 * m + 1 - (m * m + 2 * m) / n if n and m else None
    return Cost(
        "2m + 1 − (m² + 2m)/n; in a batch that completes w windows of a key, up to n/w more", None if value is None else round(value, 2)
    )


def tree_cost(n: float | None, m: float | None) -> Cost:
    """Combines per window of :func:`windowmill.windowing.kernels.flatfat.tree_windows`, over rows of which m enter and m leave."""
    return Cost(
        "2m(1 + ⌈log2(n/2m)⌉); in a batch that completes w windows of a key, up to n/w more",
        round(_flatfat(n, 2 * m), 2) if n and m else None,
    )


def listed_cost(n: float | None) -> Cost:
    """Combines per window of :func:`windowmill.windowing.kernels.two_stacks.add_members` and of clipped means, leaf by leaf."""
    return Cost("n", n)


def count_slices(edges: Edges, grid: Grid) -> tuple[int, float]:
    """Most slices in a window of ``grid`` when time is cut at ``edges``, and how many a hop brings on average.

    Examples
    --------
    >>> grids = [Grid(size=10, hop=7), Grid(size=5, hop=5)]
    >>> count_slices(Edges.of(grids[:1]), grids[0])
    (3, 2.0)
    >>> count_slices(Edges.of(grids), grids[0])
    (5, 3.0)
    """
    cycle = math.lcm(grid.hop, *(period for period, _ in edges.trains))
    if max(grid.size, cycle) // min(period for period, _ in edges.trains) > _COUNTED_EDGES:
        densities = sum(1 / period for period, _ in edges.trains)
        return math.ceil(grid.size * densities), grid.hop * densities

    def between(start: int, stop: int) -> int:
        return len({t for period, phase in edges.trains for t in range(start + (phase - start) % period, stop, period)})

    windows = range(min(cycle // grid.hop, _WINDOWS))
    return max(between(grid.start(k), grid.end(k)) for k in windows), between(0, cycle) * grid.hop / cycle


def rows_shape(window: Window, pipeline: Pipeline) -> Shape:
    """``window`` over rows that are kept as they came."""
    behind = _span_of(pipeline.time.disorder, pipeline.time.lateness)
    late = _LATE if pipeline.time.end is None else f"{_LATE}, and so are events that reach in from before the window"
    match window:
        case Tumbling(size=Duration() as size):
            return Shape("rows", _ROWS, f"the rows of {size}", "all of them", alone=True, late=late, state=_live(size, behind))
        case Hopping(size=size, hop=hop):
            alone = not (size.months or hop.months) and hop.elapsed() >= size.elapsed()
            new = "all of them" if alone else f"those of {hop}"
            return Shape("rows", _ROWS, f"the rows of {size}", new, alone=alone, late=late, state=_live(size, behind))
        case Cumulative(size=size, step=step):
            return Shape("rows", _ROWS, f"the rows of {step} to {size}", f"those of {step}", late=late, state=_live(size, behind))
        case Session(gap=gap):
            why, live = (
                f"a window ends where no event comes for {gap}; an event between two makes them one",
                f"the rows of open sessions{behind}",
            )
            return Shape("sessions", why, "the rows of the session", "all of them", alone=True, listed=_ONCE, state=live)
        case Snapshot():
            why, live = "cut at every start and end of an event", f"the rows still open{behind}"
            points = pipeline.time.end is None
            listed = _ONCE if points else "events end in any order; those that live in a span are combined one by one"
            new = "all of them" if points else "those that begin there"
            return Shape("snapshots", why, "the rows that live in the span", new, in_order=points, alone=points, listed=listed, state=live)
        case Count(count=count):
            why, live = f"a window begins at each start time and spans {count:,} of them", f"the rows of open windows{behind}"
            return Shape("start times", why, f"the rows of {count:,} times", "those of one time", count, 1, state=live)
        case Custom(function=function):
            why, new = f"cut where {function} begins or ends a window", "those since the window before"
            return Shape("custom", why, "the rows that the function gives it", new, state="the rows of open windows")
        case _:
            assert isinstance(window, Sliding | Tumbling)
            return _policy_shape(window)


_ONCE = "windows do not overlap; each is combined once, row by row"
_LATE = "late rows are combined one by one"
_ROWS = "rows of a key stand in order of time, and a window is a range of them"


def _live(size: Duration, behind: str) -> str:
    return f"the rows of the last {size}{behind}"


def _span_of(disorder: Duration, lateness: Duration) -> str:
    parts = [f"{name} of {length}" for name, length in (("disorder", disorder), ("lateness", lateness)) if not length.is_zero]
    return f", and {' and '.join(parts)} before" if parts else ""


def _policy_shape(window: Sliding | Tumbling) -> Shape:
    evict = window.evict
    assert evict is not None
    n, waiting = evict.count, "and those that wait for the watermark"
    if isinstance(window, Tumbling):
        why = "tuples of a key are applied one by one, and flushed together"
        held = {"count": f"{n} tuples", "time": f"the tuples of {evict.time}"}.get(_kind(evict), f"the tuples up to {_written(evict)}")
        return Shape("tuples", why, held, "all of them", n, n, alone=True, state=f"the tuples not yet flushed, {waiting}", state_rows=n)
    why, fires = "tuples of a key enter, leave and trigger one by one", window.trigger.count
    held = {"count": f"the last {n} tuples", "time": f"the tuples of the last {evict.time}"}.get(_kind(evict), "the tuples not evicted")
    m = min(fires, n) if n and fires else fires
    new = f"{m} tuples" if m else "those since the trigger before"
    alone = n is not None and fires is not None and fires >= n
    in_order = evict.delta is None
    return Shape("tuples", why, held, new, n, m, in_order=in_order, alone=alone, state=f"{held}, {waiting}", state_rows=n)


def _kind(policy: Policy) -> str:
    return next(name for name in ("count", "time", "delta", "punctuation") if getattr(policy, name) is not None)


def _written(policy: Policy) -> str:
    value = f"of {policy.delta.column} by {policy.delta.by}" if policy.delta is not None else getattr(policy, _kind(policy))
    return f"{_kind(policy)} {value}"


def describe(window: Window) -> str:
    """The window's type and lengths in a few words.

    Examples
    --------
    >>> from windowmill.windowing.durations import Duration
    >>> describe(Hopping(name="day", type="hopping", size="24 hours", hop="5 minutes"))
    'hopping: 24 hours, every 5 minutes'
    """
    match window:
        case Tumbling(size=Duration() as size):
            return f"tumbling: {size}"
        case Tumbling(evict=Policy() as evict):
            return f"tumbling: evict {_written(evict)}"
        case Hopping(size=size, hop=hop):
            return f"hopping: {size}, every {hop}"
        case Cumulative(size=size, step=step):
            return f"cumulative: {size}, in steps of {step}"
        case Session(gap=gap, max_size=most):
            return f"session: gap {gap}" + (f", at most {most}" if most else "")
        case Count(count=count):
            return f"count: {count:,} start times"
        case Custom(function=function):
            return f"custom: {function}"
        case Sliding(evict=evict, trigger=trigger):
            return f"sliding: evict {_written(evict)}, trigger {_written(trigger)}"
        case _:
            return window.type
