"""Times at the ends of the axis, and windows and ticks without end: right, or refused before the work."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

from tests.kernel_runs import KernelRun
from tests.specs import a_spec
from windowmill.windowing.bounds import accepted_times, check_lengths
from windowmill.windowing.errors import LimitExceededError, SpecError
from windowmill.windowing.reference import Record, evaluate
from windowmill.windowing.specfile import parse_pipeline

LEAST, GREATEST = -(2**63), 2**63 - 1
YEAR_2060 = 2_840_140_800_000_000
WINDOWS: dict[str, dict[str, Any]] = {
    "tumbling": {"type": "tumbling", "size": 10},
    "hopping": {"type": "hopping", "size": 10, "hop": 3},
    "gaps": {"type": "hopping", "size": 2, "hop": 5, "origin": 1},
    "empty": {"type": "hopping", "size": 10, "hop": 3, "empty": "emit"},
    "cumulative": {"type": "cumulative", "size": 12, "step": 4},
    "session": {"type": "session", "gap": 5},
    "long_session": {"type": "session", "gap": 5, "max_size": 20},
    "snapshot": {"type": "snapshot"},
    "count": {"type": "count", "count": 2},
    "young": {"type": "sliding", "evict": {"time": 4}, "trigger": {"time": 3}},
    "last": {"type": "sliding", "evict": {"count": 2}},
    "flushed": {"type": "tumbling", "evict": {"time": 4}, "idle_after": 8},
}


def pipeline(window: dict[str, Any], emit: str = "final", **axis: Any) -> Any:
    return parse_pipeline(a_spec(time={"column": "t", **({"unit": "none"} | axis)}, windows=[{"name": "w", **window}], emit=emit))


def both(spec: Any, rows: list[dict[str, int]], final: bool = True) -> tuple[list[Any], list[Any]]:
    """Rows and refusals, the same from the reference and the kernels."""
    found = evaluate(spec, [Record(row) for row in rows], final=final)
    engine = KernelRun(spec)
    engine.feed(pa.table({name: pa.array([row[name] for row in rows], pa.int64()) for name in rows[0]}))
    computed, refused = engine.finish(final=final)
    assert (computed, refused) == (found.rows, found.quarantined)
    return found.rows, found.quarantined


@pytest.mark.covers("I5", "I6")
@pytest.mark.parametrize("emit", ["final", "revise"])
@pytest.mark.parametrize("window", WINDOWS)
def test_times_beyond_the_axis_are_set_aside_and_those_at_its_ends_count(window, emit):
    if emit == "revise" and "evict" in WINDOWS[window]:
        emit = "final"
    sparse = WINDOWS[window].get("empty") != "emit"
    spec = pipeline(WINDOWS[window], emit)
    least, greatest = accepted_times(spec)
    far = [LEAST, least - 1, greatest + 1, GREATEST]
    near = [least, least + 1, -1, 0, 1, greatest - 1, greatest] if sparse else [-1, 0, 1]
    rows, refused = both(spec, [{"t": at} for at in sorted([*far, *near])])
    assert [reason for _, reason in refused] == ["time_out_of_range"] * 4
    assert all(
        LEAST // 2 <= row["window_start"] <= row["window_end"] <= GREATEST // 2 + 1 for row in rows if row["window_start"] is not None
    )
    if window in ("tumbling", "session", "snapshot"):
        assert sum(row["n"] for row in rows) == len(near)


def test_both_ends_of_an_event_lie_on_the_axis():
    spec = pipeline({"type": "tumbling", "size": 10}, end="e")
    rows, refused = both(spec, [{"t": 0, "e": GREATEST}, {"t": LEAST, "e": 0}, {"t": 5, "e": 4}, {"t": 4, "e": 5}])
    assert refused == [(0, "time_out_of_range"), (1, "time_out_of_range"), (2, "end_before_time")]
    assert [row["n"] for row in rows] == [1]


def test_instants_end_with_the_years_that_can_be_printed():
    least, greatest = accepted_times(pipeline({"type": "tumbling", "size": "1 hour"}, unit=None))
    assert -62_135_596_800_000_000 < least < -62_135_000_000_000_000
    assert 253_401_000_000_000_000 < greatest < 253_402_300_800_000_000


SECOND, DAY = 1_000_000, 86_400_000_000
ENDLESS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "empty": ({"type": "tumbling", "size": SECOND, "empty": "emit"}, [0, YEAR_2060]),
    "ticks": ({"type": "sliding", "evict": {"count": 3}, "trigger": {"time": SECOND}}, [0, YEAR_2060]),
    "ticks of empty windows": ({"type": "tumbling", "evict": {"time": SECOND}, "empty": "emit"}, [0, YEAR_2060]),
    "old tuples": ({"type": "sliding", "evict": {"time": 10_000 * DAY}, "trigger": {"time": 1}}, [0]),
}


@pytest.mark.parametrize("case", ENDLESS)
def test_a_row_far_from_the_others_brings_no_end_of_windows(case):
    window, times = ENDLESS[case]
    spec, begun = pipeline(window), time.perf_counter()
    with pytest.raises(
        LimitExceededError, match=r"^window w: one key would have [\d,]+ windows or ticks in this batch, more than 10,000,000; "
    ):
        evaluate(spec, [Record({"t": at}) for at in times])
    engine = KernelRun(spec)

    def run() -> None:
        engine.feed(pa.table({"t": times}))
        engine.finish(final=True)

    with pytest.raises(LimitExceededError, match=r"^window w: one key would have [\d,]+ windows or ticks in this batch"):
        run()
    assert time.perf_counter() - begun < 60


@pytest.mark.parametrize("window", ["empty", "ticks", "ticks of empty windows"])
def test_the_same_rows_over_a_day_are_no_trouble(window):
    rows, refused = both(pipeline(ENDLESS[window][0]), [{"t": 0}, {"t": 1_000 * SECOND}])
    assert refused == []
    assert 1_000 <= len(rows) <= 1_002


def test_an_event_that_lasts_for_ages():
    spec = pipeline({"type": "tumbling", "size": SECOND}, end="e")
    with pytest.raises(LimitExceededError, match="window w: an event that lasts 2,840,140,800,000,000 ticks would be in"):
        evaluate(spec, [Record({"t": 0, "e": YEAR_2060})])
    engine = KernelRun(spec)
    engine.feed(pa.table({"t": [0], "e": [YEAR_2060]}))
    with pytest.raises(LimitExceededError, match=r"leave such rows out by source\.filter"):
        engine.finish(final=True)


@pytest.mark.parametrize(
    ("window", "field"),
    [
        ({"type": "hopping", "size": "10000 days", "hop": "1 us"}, "longer hop"),
        ({"type": "cumulative", "size": "1000 days", "step": "1 us"}, "longer step"),
        ({"type": "hopping", "size": "10000 days", "hop": "1 ms", "timezone": "Europe/Vienna"}, "longer hop"),
    ],
)
def test_windows_of_one_event_are_bounded_by_the_spec(window, field):
    with pytest.raises(LimitExceededError, match=rf"^pipeline p: windows.0: each event would be in [\d,]+ windows, .* a {field}$"):
        check_lengths(pipeline(window, unit=None))


@pytest.mark.parametrize(
    ("window", "axis", "message"),
    [
        ({"type": "tumbling", "size": 2**62}, {}, "windows: lengths reach beyond the time axis"),
        ({"type": "tumbling", "size": "9000 years"}, {"unit": None}, "windows: lengths reach beyond the time axis"),
        ({"type": "tumbling", "size": 10, "origin": 2**62}, {}, r"windows.0.origin: got 4611686018427387904; expected"),
        ({"type": "tumbling", "size": 10}, {"lateness": 2**63}, "time.lateness: got a whole number of 64 bits"),
    ],
)
def test_lengths_beyond_the_axis_are_refused(window, axis, message):
    with pytest.raises(SpecError, match=message):
        check_lengths(pipeline(window, **axis))
