"""What tests of batches draw: windows of all kinds, rows of their source and how these arrive."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tests.strategies import ARRIVALS, delays, many
from tests.windowing import calendar_cases
from windowmill.windowing.spec import Pipeline

Row = dict[str, Any]
MINUTE = 60_000_000
SOURCE = pa.schema(
    [("k", pa.string()), ("t", pa.timestamp("us", "UTC")), ("x", pa.int64()), ("i", pa.int64()), ("f", pa.float64()), ("s", pa.string())]
)
VALUES = {
    "k": st.sampled_from("ab"),
    "x": st.integers(0, 1),
    "i": st.one_of(st.none(), st.integers(-9, 9)),
    "f": st.one_of(st.none(), st.integers(-99, 99).map(lambda n: n / 8)),
    "s": st.sampled_from("xyz"),
}
COUNT: dict[str, Any] = {"n": {"count": "*"}}
COUNTS = COUNT | {"whole": {"sum": "i"}}
NUMBERS = COUNTS | {
    "large": {"count": "i", "where": "i > 3"},
    "total": {"sum": "f"},
    "low": {"min": "s"},
    "worst": {"arg_max": ["f", "s"]},
    "opening": {"first": "s"},
    "closing": {"last": "i"},
    "spread": {"stddev_samp": "f"},
}
OBJECTS = NUMBERS | {
    "kinds": {"count_distinct": "s"},
    "greatest": {"top_k": {"column": "i", "k": 2}},
    "half": {"quantile": {"column": "i", "q": 0.5}},
    "all": {"collect": "s"},
    "joined": {"concat": "s"},
}
#: Windows of a few minutes on grids; between gappy ones lie rows of no window.
GRIDS: dict[str, dict[str, Any]] = {
    "slots": {"type": "tumbling", "size": "10 minutes"},
    "rolling": {"type": "hopping", "size": "9 minutes", "hop": "2 minutes"},
    "shifted": {"type": "hopping", "size": "7 minutes", "hop": "5 minutes", "origin": "2024-01-01T00:03:00Z"},
    "gappy": {"type": "hopping", "size": "3 minutes", "hop": "20 minutes"},
    "steps": {"type": "cumulative", "size": "20 minutes", "step": "4 minutes"},
    "days": {"type": "tumbling", "size": "1 day", "timezone": "Asia/Kolkata"},
}
#: Windows of many slices.
LONG: dict[str, dict[str, Any]] = {
    "long": {"type": "hopping", "size": "60 minutes", "hop": "3 minutes"},
    "dense": {"type": "hopping", "size": "40 minutes", "hop": "1 minute"},
}
FILLED: dict[str, dict[str, Any]] = {
    "known": {"type": "tumbling", "size": "10 minutes", "empty": "emit"},
    "known_gaps": {"type": "hopping", "size": "3 minutes", "hop": "20 minutes", "empty": "emit"},
}
SESSIONS = {
    name: {"type": "session", "gap": gap}
    for name, gap in {"visit": "5 minutes", "trip": "10 minutes", "stay": "5 minutes", "burst": "1 second"}.items()
}
#: Sessions with a greatest size, some of which share gap and size.
CUT: dict[str, dict[str, Any]] = {
    "short_visit": {"type": "session", "gap": "5 minutes", "max_size": "12 minutes"},
    "short_stay": {"type": "session", "gap": "5 minutes", "max_size": "12 minutes"},
    "long_visit": {"type": "session", "gap": "5 minutes", "max_size": "31 minutes"},
    "brief": {"type": "session", "gap": "10 minutes", "max_size": "4 minutes"},
}
POLICIES: dict[str, dict[str, Any]] = {
    "last_3": {"type": "sliding", "evict": {"count": 3}, "trigger": {"count": 2}},
    "recent": {"type": "sliding", "evict": {"time": "9 minutes"}, "trigger": {"time": "4 minutes"}},
    "flush": {"type": "tumbling", "evict": {"count": 2}},
    "jumps": {"type": "sliding", "evict": {"delta": {"column": "i", "by": 2}}, "trigger": {"count": 1}},
}
#: Windows that keep live rows; ``short_visit`` too, under ``emit: revise``.
OTHERS: dict[str, dict[str, Any]] = {
    "spans": {"type": "snapshot"},
    "three": {"type": "count", "count": 3},
    "triples": {"type": "custom", "function": "tests.jobs.drawn:triples"},
}
WINDOWS = calendar_cases.WINDOWS | GRIDS | LONG | FILLED | SESSIONS | CUT | POLICIES | OTHERS


def triples(count: int | None, columns: dict[str, Any]) -> tuple[int, int, list[int]]:
    """Each row begins a window that ends after the third."""
    count = count or 0
    return count + 1, 1, [count - 2] if count > 1 else []


def pipeline_of(
    windows: Iterable[str] | Mapping[str, dict[str, Any]],
    aggregates: dict[str, Any] = COUNT,
    emit: str = "final",
    filled: Collection[str] = (),
    **time: Any,
) -> Pipeline:
    """A pipeline of these windows, by their names or as they are; those of the names ``filled`` are shown though they are empty."""
    named = windows if isinstance(windows, Mapping) else {name: WINDOWS[name] for name in windows}
    listed = [{"name": name, **window, **({"empty": "emit"} if name in filled else {})} for name, window in named.items()]
    spec = {"pipeline": "p", "keys": ["k"], "time": {"column": "t", **time}, "windows": listed, "aggregates": aggregates, "emit": emit}
    return Pipeline.model_validate(spec)


def at(minute: float, until: float | None = None, **changes: Any) -> Row:
    """A row of key a; an event that lasts where ``until`` is given."""
    lasts = {} if until is None else {"e": int(until * MINUTE)}
    return {"k": "a", "x": 0, "i": 1, "f": 0.5, "s": "x", "t": int(minute * MINUTE)} | lasts | changes


#: How far the input moves on from row to row, and how far a row comes behind.
ADVANCES = st.sampled_from([MINUTE, 0, 2 * MINUTE, 1, 3 * MINUTE, 9 * MINUTE, 40 * MINUTE])
DELAYS = st.sampled_from([25 * MINUTE, 12 * MINUTE, 50 * MINUTE, 9 * MINUTE, 4 * MINUTE, 1])
LONG_AGO = st.just(1_000_000_000_000_000)


@st.composite
def streams(
    draw: st.DrawFn,
    advances: st.SearchStrategy[int] = ADVANCES,
    late: st.SearchStrategy[int] = DELAYS,
    most: int = 24,
    start: st.SearchStrategy[int] = LONG_AGO,
    shift: st.SearchStrategy[int] | None = None,
    lasting: st.SearchStrategy[int] | None = None,
    values: Mapping[str, st.SearchStrategy[Any]] = VALUES,
) -> list[Row]:
    """Rows, each of them moved by a ``shift``, and ``lasting`` if given."""
    ahead, behind = list(accumulate(draw(many(advances, most)), initial=draw(start))), draw(delays(late))
    rows = []
    for time in ahead:
        t = time - next(behind) + (0 if shift is None else draw(shift))
        ends = {} if lasting is None else {"e": t + draw(lasting)}
        rows.append({"t": t, **ends, **{name: draw(drawn) for name, drawn in values.items()}})
    return rows


def ended(rows: st.SearchStrategy[list[Row]]) -> st.SearchStrategy[list[Row]]:
    """``rows`` and one more, which repeats the last or ends windows."""

    def longer(drawn: tuple[list[Row], int]) -> list[Row]:
        some, later = drawn
        return [*some, some[-1] | {"t": max(row["t"] for row in some) + later}]

    return st.tuples(rows, st.sampled_from([0, 30 * MINUTE, 90 * MINUTE])).map(longer)


def cuts(last: int, most: int) -> st.SearchStrategy[list[int]]:
    """Where rows up to ``last`` are cut into batches."""
    return st.lists(st.integers(1, last), max_size=most)


def some(names: Iterable[str], most: int, least: int = 1) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(list(names)), min_size=least, max_size=most, unique=True)


@st.composite
def inputs(
    draw: st.DrawFn,
    rows: st.SearchStrategy[list[Row]],
    cut: st.SearchStrategy[list[int]],
    disorder: Sequence[str] = ("0 seconds", "2 minutes"),
    lateness: Sequence[str] = ("2 hours", "30 minutes", "4 minutes", "0 seconds"),
    aggregates: Sequence[dict[str, Any]] = (NUMBERS, OBJECTS),
    emits: Sequence[str] = ("final",),
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Aggregates and time for :func:`pipeline_of`; for ``check`` rows, where they are cut, how they arrive, and whether they end."""
    arrival = draw(ARRIVALS)
    time = {"tie_break": ["x"], "disorder": draw(st.sampled_from(disorder)), "lateness": draw(st.sampled_from(lateness))}
    spec = {"aggregates": draw(st.sampled_from(aggregates)), "emit": draw(st.sampled_from(emits))} | time
    return spec, {"rows": draw(rows), "cuts": draw(cut), "arrival": arrival, "final": draw(st.booleans())}
