"""The oracle against cases small enough to work out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from windowmill.windowing.reference import Evaluation, Record, evaluate
from windowmill.windowing.specfile import parse_pipeline


def outcome(window: dict[str, Any], rows: list[tuple[Any, ...]], final: bool = True, **spec: Any) -> Evaluation:
    """``rows`` are (key, time, value) or (key, time, end, value) on a plain integer axis."""
    time = {"column": "t", "unit": "none"} | spec.pop("time", {})
    aggregates = spec.pop("aggregates", {"all": {"collect": "v"}})
    written = {"pipeline": "p", "keys": ["k"], "time": time, "windows": [{"name": "w"} | window], "aggregates": aggregates, **spec}
    names = ("k", "t", "e", "v") if "end" in time else ("k", "t", "v")
    return evaluate(parse_pipeline(written), [Record(dict(zip(names, row, strict=True))) for row in rows], final=final)


def windows(window: dict[str, Any], rows: list[tuple[Any, ...]], **options: Any) -> list[tuple[Any, ...]]:
    """(start, end, collected values) of each result row."""
    return [(row["window_start"], row["window_end"], row["all"]) for row in outcome(window, rows, **options).rows]


def test_hops_that_start_before_the_first_event_are_emitted():
    #  -5   0    5    10   15
    #  [--------)  1
    #       [--------)  1, 2
    #            [--------)  2
    rows = [("a", 0, 1), ("a", 7, 2)]
    assert windows({"type": "hopping", "size": 10, "hop": 5}, rows) == [(-5, 5, [1]), (0, 10, [1, 2]), (5, 15, [2])]


def test_a_gap_between_windows_swallows_events_without_quarantine():
    found = outcome({"type": "hopping", "size": 3, "hop": 10}, [("a", 2, 1), ("a", 3, 2), ("a", 12, 3)])
    assert [(row["window_start"], row["all"]) for row in found.rows] == [(0, [1]), (10, [3])]
    assert found.quarantined == []


def test_a_late_event_counts_in_its_open_windows_and_is_quarantined_when_none_is_open():
    rows = [("a", 0, 1), ("a", 11, 2), ("a", 8, 3), ("a", 4, 4)]
    found = outcome({"type": "hopping", "size": 10, "hop": 5}, rows)
    # At 11 the windows [-5, 5) and [0, 10) are closed: 8 still counts in [5, 15), 4 nowhere.
    assert [(row["window_start"], row["all"]) for row in found.rows] == [(-5, [1]), (0, [1]), (5, [3, 2]), (10, [2])]
    assert found.quarantined == [(3, "too_late")]


@pytest.mark.parametrize("arrival", [[0, 10, 30], [30, 10, 0], [10, 30, 0]])
def test_touching_sessions_merge(arrival: list[int]):
    rows = [("a", t, t) for t in arrival]
    assert windows({"type": "session", "gap": 10}, rows, time={"disorder": 100}) == [(0, 20, [0, 10]), (30, 40, [30])]


def test_a_session_is_cut_at_its_greatest_size():
    rows = [("a", t, t) for t in range(0, 30, 4)]
    expected = [(0, 10, [0, 4, 8]), (12, 22, [12, 16, 20]), (24, 33, [24, 28])]
    assert windows({"type": "session", "gap": 5, "max_size": 10}, rows) == expected


def test_lateness_of_a_session_is_judged_after_merging():
    rows = [("a", 1, 1), ("b", 15, 2), ("a", 12, 3), ("b", 40, 4), ("a", 14, 5)]
    found = outcome({"type": "session", "gap": 10}, rows, time={"disorder": 5})
    # The watermark is at 10 when 12 arrives, so [1, 11) is open, but 12 is further off; at 35 nothing holds 14.
    assert [(row["k"], row["window_start"], row["window_end"]) for row in found.rows] == [
        ("a", 1, 11),
        ("a", 12, 22),
        ("b", 15, 25),
        ("b", 40, 50),
    ]
    assert found.quarantined == [(4, "too_late")]


def test_snapshots_split_at_every_end_point():
    #  0    5    10   15
    #  1----------)
    #       2---------)
    rows = [("a", 0, 10, 1), ("a", 5, 15, 2)]
    assert windows({"type": "snapshot"}, rows, time={"end": "e"}) == [(0, 5, [1]), (5, 10, [1, 2]), (10, 15, [2])]


def test_count_windows_span_distinct_start_times():
    rows = [("a", 0, 1), ("a", 5, 2), ("a", 5, 3), ("a", 9, 4)]
    assert windows({"type": "count", "count": 2}, rows) == [(0, 6, [1, 2, 3]), (5, 10, [2, 3, 4])]


def test_cumulative_windows_share_their_start():
    rows = [("a", 1, 1), ("a", 7, 2), ("a", 16, 3)]
    expected = [(0, 5, [1]), (0, 10, [1, 2]), (0, 15, [1, 2]), (15, 20, [3]), (15, 25, [3]), (15, 30, [3])]
    assert windows({"type": "cumulative", "size": 15, "step": 5}, rows) == expected


def test_interval_events_are_clipped_for_the_time_weighted_mean():
    rows = [("a", 0, 15, 2.0), ("a", 5, 10, 8.0)]
    found = outcome({"type": "tumbling", "size": 10}, rows, time={"end": "e"}, aggregates={"m": {"time_weighted_mean": "v"}})
    assert [(row["window_start"], row["m"]) for row in found.rows] == [(0, (2.0 * 10 + 8.0 * 5) / 15), (10, 2.0)]


def test_empty_windows_are_rows_between_the_first_and_the_last_event():
    rows = [("a", 1, 1), ("a", 35, 2), ("b", 12, 3)]
    found = outcome(
        {"type": "tumbling", "size": 10, "empty": "emit"}, rows, time={"disorder": 50}, aggregates={"n": {"count": "*"}, "s": {"sum": "v"}}
    )
    assert [(row["k"], row["window_start"], row["n"], row["s"]) for row in found.rows] == [
        ("a", 0, 1, 1),
        ("a", 10, 0, None),
        ("a", 20, 0, None),
        ("a", 30, 1, 2),
        ("b", 10, 1, 3),
    ]


def test_each_late_event_brings_one_revision():
    rows = [("a", 1, 1), ("a", 12, 2), ("a", 3, 3), ("a", 2, 4), ("a", 40, 5), ("a", 4, 6)]
    found = outcome({"type": "tumbling", "size": 10}, rows, time={"lateness": 20}, emit="revise")
    assert [(row["window_start"], row["revision"], row["all"]) for row in found.rows] == [
        (0, 0, [1]),
        (0, 1, [1, 3]),
        (0, 2, [1, 4, 3]),
        (10, 0, [2]),
        (40, 0, [5]),
    ]
    assert found.quarantined == [(5, "too_late")]


def test_a_revised_session_outranks_those_it_merges():
    rows = [("a", 1, 1), ("a", 31, 2), ("a", 60, 3), ("a", 11, 4), ("a", 21, 5)]
    found = outcome({"type": "session", "gap": 10}, rows, time={"lateness": 100}, emit="revise")
    rows = [(row["window_start"], row["window_end"], row["revision"], row["retracted"]) for row in found.rows]
    assert [row[:3] for row in rows if not row[3]] == [(1, 11, 0), (1, 21, 1), (31, 41, 0), (1, 41, 2), (60, 70, 0)]
    assert [row[:3] for row in rows if row[3]] == [(1, 11, 1), (1, 21, 2), (31, 41, 1)]


def test_without_an_end_of_input_only_complete_windows_come_out():
    rows = [("a", 1, 1), ("a", 12, 2), ("a", 22, 3)]
    assert windows({"type": "tumbling", "size": 10}, rows, final=False, time={"disorder": 3}) == [(0, 10, [1])]


SLIDING = {"type": "sliding"}


def test_count_eviction_count_trigger():
    rows = [("a", t, t) for t in range(7)]
    assert windows({**SLIDING, "evict": {"count": 5}, "trigger": {"count": 2}}, rows) == [
        (0, 1, [0, 1]),
        (0, 3, [0, 1, 2, 3]),
        (1, 5, [1, 2, 3, 4, 5]),
    ]


def test_partial_windows_are_swallowed_but_counted():
    found = outcome({**SLIDING, "evict": {"count": 3}, "partial": False}, [("a", t, t) for t in range(4)])
    assert [(row["trigger"], row["all"]) for row in found.rows] == [(2, [0, 1, 2]), (3, [1, 2, 3])]


def test_a_tick_sees_what_came_before_it_and_is_not_too_old():
    #  time 3 evicts what is more than 3 old; a tick at 4 sees 1, 2 and 3, not 4
    rows = [("a", t, t) for t in range(5)]
    assert windows({**SLIDING, "evict": {"time": 3}, "trigger": {"time": 2}}, rows) == [(0, 2, [0, 1]), (1, 4, [1, 2, 3]), (3, 6, [3, 4])]


def test_a_delta_trigger_over_an_expired_window_fires_empty():
    rows = [("a", 0, 0), ("a", 100, 9)]
    window = {**SLIDING, "evict": {"time": 5}, "trigger": {"delta": {"column": "v", "by": 3}}}
    assert windows(window, rows) == [(None, 100, None)]


def test_a_time_trigger_over_a_count_window_stops_after_the_first_tick_past_the_input():
    rows = [("a", 1, 1), ("b", 25, 2)]
    found = outcome({**SLIDING, "evict": {"count": 2}, "trigger": {"time": 10}}, rows)
    assert [(row["k"], row["window_end"], row["trigger"]) for row in found.rows] == [("a", 10, 0), ("a", 20, 1), ("a", 30, 2), ("b", 30, 0)]


@pytest.mark.parametrize(
    ("evict", "expected"),
    [
        ({"count": 2}, [(0, 1, [0, 1]), (2, 3, [5, 6])]),
        ({"delta": {"column": "v", "by": 2}}, [(0, 2, [0, 1]), (2, 4, [5, 6])]),
        ({"time": 3}, [(0, 3, [0, 1, 5]), (3, 6, [6, 9])]),
    ],
)
def test_tumbling_policies_flush(evict: dict[str, Any], expected: list[tuple[Any, ...]]):
    rows = [("a", t, v) for t, v in enumerate([0, 1, 5, 6, 9])]
    assert windows({"type": "tumbling", "evict": evict}, rows) == expected


def test_tuples_wait_for_the_watermark_and_late_ones_are_refused():
    rows = [("a", 0, 0), ("a", 4, 4), ("a", 2, 2), ("a", 20, 20), ("a", 3, 3)]
    found = outcome({**SLIDING, "evict": {"count": 9}}, rows, time={"disorder": 5})
    assert [row["all"] for row in found.rows] == [[0], [0, 2], [0, 2, 4], [0, 2, 4, 20]]
    assert found.quarantined == [(4, "too_late")]


def test_an_idle_key_is_forgotten():
    rows = [("a", t, t) for t in (0, 1, 20, 21)]
    found = outcome({**SLIDING, "evict": {"count": 9}, "idle_after": 10}, rows)
    assert [(row["trigger"], row["all"]) for row in found.rows] == [(0, [0]), (1, [0, 1]), (0, [20]), (1, [20, 21])]


def test_calendar_days_follow_the_wall_clock_and_hours_do_not():
    spec = {"pipeline": "p", "time": {"column": "t"}, "aggregates": {"n": {"count": "*"}}}
    autumn_us = 1_383_458_400_000_000  # 2013-11-03 06:00 UTC, 01:00 for the second time in New York
    daily = parse_pipeline(spec | {"windows": [{"name": "w", "type": "tumbling", "size": "1 day", "timezone": "America/New_York"}]})
    [row] = evaluate(daily, [Record({"t": autumn_us})]).rows
    assert (row["window_end"] - row["window_start"]) / 3_600_000_000 == 25
    hourly = parse_pipeline(spec | {"windows": [{"name": "w", "type": "tumbling", "size": "1 hour", "timezone": "America/New_York"}]})
    rows = evaluate(hourly, [Record({"t": autumn_us - 3_600_000_000}), Record({"t": autumn_us})]).rows
    assert len(rows) == 2
