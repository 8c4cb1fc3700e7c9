"""The columnar engine against the oracle: every kind of window under every aggregate, however the input is cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel_runs import KernelRun
from tests.specs import a_spec
from tests.strategies import ARRIVALS, FLOATS, Arrival, between_commits, shared
from windowmill.windowing.layouts import divide
from windowmill.windowing.reference import Record, evaluate
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

COUNT, TIME, DELTA = {"count": 3}, {"time": 4}, {"delta": {"column": "v", "by": 2}}
TRIGGERS = {"count": {"count": 2}, "time": {"time": 3}, "delta": {"delta": {"column": "f", "by": 1.5}}}
WINDOWS: dict[str, dict[str, Any]] = {
    "tumbling": {"type": "tumbling", "size": 4},
    "hopping": {"type": "hopping", "size": 7, "hop": 3, "origin": 2},
    "gaps": {"type": "hopping", "size": 2, "hop": 5},
    "empty": {"type": "hopping", "size": 3, "hop": 2, "empty": "emit"},
    "empty_gaps": {"type": "hopping", "size": 2, "hop": 5, "empty": "emit"},
    "cumulative": {"type": "cumulative", "size": 6, "step": 2},
    **{
        f"{evict}_{trigger}": {"type": "sliding", "evict": how, "trigger": when}
        for evict, how in (("count", COUNT), ("time", TIME), ("delta", DELTA))
        for trigger, when in TRIGGERS.items()
    },
    "swallow_count": {"type": "sliding", "evict": COUNT, "trigger": {"time": 3}, "partial": False},
    "swallow_delta": {"type": "sliding", "evict": DELTA, "partial": False},
    "live_keys": {"type": "sliding", "evict": TIME, "trigger": {"time": 3}, "empty": "emit", "idle_after": 20},
    "idle_count": {"type": "sliding", "evict": COUNT, "trigger": {"time": 2}, "idle_after": 3},
    "idle_delta": {"type": "sliding", "evict": DELTA, "trigger": {"count": 1}, "idle_after": 2},
    "flush_count": {"type": "tumbling", "evict": {"count": 3}},
    "flush_time": {"type": "tumbling", "evict": {"time": 5}, "origin": 1},
    "flush_time_empty": {"type": "tumbling", "evict": {"time": 9}, "empty": "emit", "idle_after": 30},
    "flush_delta": {"type": "tumbling", "evict": {"delta": {"column": "v", "by": 1}}},
    "flush_mark": {"type": "tumbling", "evict": {"punctuation": "v > 2"}},
}
SHAPES: dict[str, dict[str, Any]] = {
    "session": {"type": "session", "gap": 2},
    "long_session": {"type": "session", "gap": 3, "max_size": 5},
    "snapshot": {"type": "snapshot"},
    "count": {"type": "count", "count": 3},
    "count_one": {"type": "count", "count": 1},
    "pairs": {"type": "custom", "function": "tests.windowing.test_columnar:pairs"},
    "until_large": {"type": "custom", "function": "tests.windowing.test_columnar:until_large"},
    "nested": {"type": "custom", "function": "tests.windowing.test_columnar:nested"},
}
WINDOWS |= SHAPES
AGGREGATES: dict[str, dict[str, Any]] = {
    "rows": {"count": "*"},
    "known": {"count": "f"},
    "large": {"count": "*", "where": "v > 2"},
    "distinct": {"count_distinct": "f"},
    "about": {"approx_distinct": "name"},
    "total": {"sum": "v"},
    "float_total": {"sum": "f"},
    "mean": {"mean": "f"},
    "int_mean": {"mean": "v", "where": "v > 2"},
    "geometric": {"geometric_mean": "f"},
    "product": {"product": "f"},
    "weighted": {"weighted_mean": ["f", "v"]},
    "least": {"min": "f"},
    "greatest": {"max": "name"},
    "least_large": {"min": "name", "where": "v > 2"},
    "greatest_whole": {"max": "v"},
    "greatest_flag": {"max": "flag"},
    "least_times": {"min_count": "f"},
    "greatest_times": {"max_count": "v"},
    "range": {"range": "f"},
    "at_least": {"arg_min": ["f", "name"]},
    "at_greatest": {"arg_max": ["v", "f"]},
    "top": {"top_k": {"column": "f", "k": 2}},
    "bottom": {"bottom_k": {"column": "name", "k": 3}},
    "variance": {"var_samp": "f"},
    "whole_variance": {"var_pop": "f"},
    "deviation": {"stddev_pop": "v"},
    "sample_deviation": {"stddev_samp": "f"},
    "skewness": {"skewness": "f"},
    "kurtosis": {"kurtosis": "v"},
    "covariance": {"covar_samp": ["f", "v"]},
    "correlation": {"corr": ["f", "v"]},
    "trend": {"linear_trend": ["v", "f"]},
    "opening": {"first": "name"},
    "closing": {"last": "f"},
    "everything": {"collect": "f"},
    "large_values": {"collect": "v", "where": "v > 2"},
    "each": {"collect_distinct": "name"},
    "text": {"concat": "name"},
    "half": {"quantile": {"column": "f", "q": 0.5}},
    "median": {"median": "f"},
    "bins": {"histogram": {"column": "f", "edges": [-10, 0, 0.5, 100]}},
    "all": {"bool_and": "flag"},
    "any": {"bool_or": "flag"},
    "own": {"use": "tests.windowing.test_columnar:Longest", "args": ["name"]},
}
#: Ratios of sums of powers lose digits where the values nearly cancel.
LOOSE = {"skewness", "kurtosis", "covariance", "correlation", "trend", "variance", "whole_variance", "deviation", "sample_deviation"}
#: All NaN are equal here, so rows compare as wholes.
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("t", pa.int64()),
        ("e", pa.int64()),
        ("v", pa.int64()),
        ("f", pa.float64()),
        ("name", pa.string()),
        ("flag", pa.bool_()),
    ]
)


class Longest:
    """The longest name, the earliest of equals: neither commutative nor known to the kernels."""

    result = "string"

    def lift(self, name: str) -> str:
        return name

    def combine(self, older: str, newer: str) -> str:
        return newer if len(newer) > len(older) else older

    def lower(self, name: str) -> str:
        return name


def pairs(count: int | None, columns: dict[str, Any]) -> tuple[int, int, list[int]]:
    """Each row begins a window that ends after the next but one."""
    count = count or 0
    return count + 1, 1, [count - 2] if count > 1 else []


def until_large(state: tuple[int, list[int]] | None, columns: dict[str, Any]) -> tuple[tuple[int, list[int]], int, list[int]]:
    """Two windows begin at every third row; the older of the open ones ends with a value above 2, youngest first with one below -2."""
    heard, still_open = state or (0, [])
    begun = heard // 3 * 2 + (2 if heard % 3 else 0)
    begins = 2 if heard % 3 == 0 else 0
    still_open = [*still_open, *range(begun, begun + begins)]
    value = columns["v"] or 0
    ends = still_open[:1] if value > 2 else still_open[-1:] if value < -2 else []
    return (heard + 1, [number for number in still_open if number not in ends]), begins, ends


def nested(still_open: list[int] | None, columns: dict[str, Any]) -> tuple[list[int], int, list[int]]:
    """A window begins at each row and ends where the flag holds with others, in no order, or where it does not hold, the youngest first."""
    numbers = still_open or [0]
    ends = [*numbers[1::2], *numbers[::2]] if columns["flag"] else numbers[:-3:-1] if columns["flag"] is False else []
    # The last of the state is the number of the window that begins with the row to come.
    return [*(number for number in numbers if number not in ends), numbers[-1] + 1], 1, ends


class Row(NamedTuple):
    k: str | None
    t: int | None
    e: int | None
    v: int | None
    f: float | None
    name: str | None
    flag: bool | None


def _maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(values, values, values, values, st.none())


def _arrived(first: int, drawn: list[tuple[Any, ...]]) -> list[Row]:
    """Rows from steps of the clock, how late each row is, and how long its event lasts."""
    time, rows = first, []
    for step, late, unknown, length, *values in drawn:
        time += step
        at = None if unknown == 0 else time - late
        key, v, f, name, flag = values
        rows.append(Row(key, at, None if at is None else at + length, v, f, name, flag))
    return rows


_DRAWN_ROW = st.tuples(
    st.sampled_from([0, 0, 1, 1, 2, 4, 7, 25]),
    st.integers(0, 6),
    st.integers(0, 30),
    st.sampled_from([0, 0, 1, 3, 9]),
    st.sampled_from(["a", "a", "b", None]),
    _maybe(st.integers(-5, 5)),
    _maybe(FLOATS),
    _maybe(st.sampled_from(["", "x", "yé", "zz", "abc"])),
    _maybe(st.booleans()),
)
#: Rows in the order of arrival, with ties, gaps, nulls and negative times. Built once: making strategies costs more than drawing from them.
#: A list of any length is mostly a short one, so some lengths are asked for.
STREAMS = st.builds(
    _arrived, st.integers(-20, 5), st.one_of(*(st.lists(_DRAWN_ROW, min_size=least, max_size=least + 5) for least in (0, 5, 12, 20)))
)


def pipeline(
    *windows: dict[str, Any],
    keys: Sequence[str] = ("k",),
    intervals: bool = False,
    emit: str = "final",
    disorder: int = 0,
    lateness: int = 0,
    watermark: str = "max_event_time",
) -> Pipeline:
    spans = {"end": "e"} if intervals else {}
    weighted = {"over_time": {"time_weighted_mean": "f"}} if intervals else {}
    time = {"column": "t", "unit": "none", "tie_break": ["v"], "disorder": disorder, "lateness": lateness, "watermark": watermark} | spans
    named = [{"name": f"w{index}", **window} for index, window in enumerate(windows)]
    return parse_pipeline(a_spec(keys=list(keys), time=time, windows=named, aggregates=AGGREGATES | weighted, emit=emit))


def computed(
    spec: Pipeline,
    rows: list[Row],
    cuts: list[int],
    *,
    commits: Sequence[int] | None = None,
    final: bool = True,
    latest: float = math.inf,
) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    """What the parts of a run say of ``rows`` cut at ``cuts``.

    ``commits`` are as those of the oracle.
    """
    engine = KernelRun(spec, latest)
    for begin, end in pairwise([0, *sorted(cuts), len(rows)]):
        table = pa.Table.from_pylist([row._asdict() for row in rows[begin:end]], schema=SCHEMA)
        large = pa.array([row.v is not None and row.v > 2 for row in rows[begin:end]], pa.bool_())
        engine.feed(table, {"v > 2": large}, None if commits is None else np.array(commits[begin:end], np.int64))
    return engine.finish(final=final)


def recomputed(
    spec: Pipeline, rows: list[Row], *, commits: Sequence[int] | None = None, final: bool = True, latest: float = math.inf
) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    records = [Record(row._asdict(), frozenset({"v > 2"} if row.v is not None and row.v > 2 else ())) for row in rows]
    outcome = evaluate(spec, records, commits=commits, final=final, latest=latest)
    return outcome.rows, outcome.quarantined


def same(found: Any, wanted: Any, relative: float) -> bool:
    if isinstance(wanted, float) and isinstance(found, float):
        return (
            found == wanted or (math.isnan(found) and math.isnan(wanted)) or math.isclose(found, wanted, rel_tol=relative, abs_tol=relative)
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list) and len(found) == len(wanted) and all(same(x, y, relative) for x, y in zip(found, wanted, strict=True))
        )
    if isinstance(wanted, dict):
        return (
            isinstance(found, dict) and found.keys() == wanted.keys() and all(same(found[name], wanted[name], relative) for name in wanted)
        )
    return type(found) is type(wanted) and found == wanted


def assert_same(found: list[dict[str, Any]], wanted: list[dict[str, Any]], keys: Sequence[str] = ("k",)) -> None:
    place = (*keys, "window", "window_start", "window_end", "trigger", "revision")
    assert repr([[row[name] for name in place] for row in found]) == repr([[row[name] for name in place] for row in wanted])
    for got, want in zip(found, wanted, strict=True):
        wrong = {name: (got[name], want[name]) for name in want if not same(got[name], want[name], 1e-9 if name in LOOSE else 1e-12)}
        assert not wrong, f"{wrong} in {want}"
        assert list(got) == list(want)


def check(
    spec: Pipeline, rows: list[Row], cuts: list[int], final: bool, latest: float = math.inf, commits: Sequence[int] | None = None
) -> None:
    commits = list(range(len(rows))) if commits is None else commits
    found, quarantined = computed(spec, rows, [], commits=commits, final=final, latest=latest)
    wanted, refused = recomputed(spec, rows, commits=commits, final=final, latest=latest)
    assert quarantined == refused
    assert_same(found, wanted, spec.keys)
    cuts = between_commits([cut for cut in cuts if cut <= len(rows)], commits)
    pieces, set_aside = computed(spec, rows, cuts, commits=commits, final=final, latest=latest)
    assert set_aside == refused
    if {"slices", "sessions"} & set(divide(spec, {field.name: field.type for field in SCHEMA}).names):
        # Batches that touch one slice have a partial of it each, so floats are added in another order.
        assert_same(pieces, wanted, spec.keys)
    else:
        assert repr(pieces) == repr(found)


#: Where the input is cut: nowhere to everywhere.
CUTS = st.one_of(st.lists(st.integers(0, 25), max_size=6), st.just(list(range(26))))
#: How late rows may come, and how they arrive.
BOUNDS = st.fixed_dictionaries({"disorder": st.integers(0, 5), "lateness": st.integers(0, 5)})
DRAWN = {"rows": STREAMS, "cuts": CUTS, "arrival": ARRIVALS, "bounds": BOUNDS, "final": st.booleans()}
REVISED = [name for name, window in WINDOWS.items() if "evict" not in window]


@pytest.mark.thorough
@pytest.mark.parametrize("window", WINDOWS)
@shared(len(WINDOWS), 5)
@given(**DRAWN)
def test_points_agree_with_the_oracle(window: str, rows: list[Row], cuts: list[int], arrival: Arrival, bounds: dict[str, int], final: bool):
    check(pipeline(WINDOWS[window], **bounds), rows, cuts, final, commits=arrival.commits(len(rows)))


@pytest.mark.thorough
@pytest.mark.parametrize("window", REVISED)
@shared(len(REVISED), 5)
@given(**DRAWN)
def test_intervals_agree_with_the_oracle(
    window: str, rows: list[Row], cuts: list[int], arrival: Arrival, bounds: dict[str, int], final: bool
):
    spec = pipeline(WINDOWS[window], intervals=True, **bounds)
    check(spec, rows, cuts, final, commits=arrival.commits(len(rows)))


@pytest.mark.thorough
@pytest.mark.parametrize("intervals", [False, True])
@pytest.mark.parametrize("window", REVISED)
@shared(2 * len(REVISED), 5)
@given(**DRAWN)
def test_revisions_agree_with_the_oracle(
    window: str, intervals: bool, rows: list[Row], cuts: list[int], arrival: Arrival, bounds: dict[str, int], final: bool
):
    spec = pipeline(WINDOWS[window], intervals=intervals, emit="revise", **bounds)
    check(spec, rows, cuts, final, commits=arrival.commits(len(rows)))


@shared(1)
@given(
    **DRAWN,
    windows=st.lists(st.sampled_from(list(WINDOWS)), min_size=2, max_size=3),
    keys=st.sampled_from([(), ("k",), ("f",), ("k", "flag")]),
    intervals=st.booleans(),
    emit=st.sampled_from(["final", "revise"]),
    watermark=st.sampled_from(["max_event_time"] * 4 + ["data_interval_end"]),
    latest=st.sampled_from([math.inf, 40.0]),
)
def test_windows_of_a_pipeline_share_rows_and_quarantine(
    rows: list[Row],
    cuts: list[int],
    arrival: Arrival,
    bounds: dict[str, int],
    final: bool,
    windows: list[str],
    keys: tuple[str, ...],
    intervals: bool,
    emit: str,
    watermark: str,
    latest: float,
):
    intervals = intervals and all(name in REVISED for name in windows)
    how = {"intervals": intervals, "emit": emit, "watermark": watermark, **bounds}
    spec = pipeline(*(WINDOWS[name] for name in windows), keys=keys, **how)
    check(spec, rows, cuts, final, latest, commits=arrival.commits(len(rows)))


def test_an_aggregate_over_a_key_column_does_not_depend_on_what_comes_from_the_state():
    rows = [Row("a", t, t, v, f, "x", True) for t, v, f in [(0, 2, -0.0), (0, 5, 0.0), (0, 7, -0.0), (6, -1, 0.0)]]
    check(pipeline(WINDOWS["pairs"], keys=("f",)), rows, [1, 2, 3], final=True)


def test_a_version_that_outlives_its_window_keeps_its_rows():
    # The session of 0 is shown, then again with 1 in it, and then closed; later batches still know of the first showing.
    times = [("a", 0), ("b", 2), ("a", 1), ("b", 3), ("b", 6), ("b", 7), ("a", 20)]
    rows = [Row(k, t, t, 1, 1.0, "x", True) for k, t in times]
    check(pipeline(WINDOWS["session"], emit="revise", lateness=3), rows, list(range(1, len(rows))), final=False)
