"""The oracle against cases small enough to work out by hand, beyond those of the drawings (test_drawings.py)."""

from __future__ import annotations

from typing import Any

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


def test_partial_windows_are_swallowed_but_counted():
    found = outcome({**SLIDING, "evict": {"count": 3}, "partial": False}, [("a", t, t) for t in range(4)])
    assert [(row["trigger"], row["all"]) for row in found.rows] == [(2, [0, 1, 2]), (3, [1, 2, 3])]


def test_a_delta_trigger_over_an_expired_window_fires_empty():
    rows = [("a", 0, 0), ("a", 100, 9)]
    window = {**SLIDING, "evict": {"time": 5}, "trigger": {"delta": {"column": "v", "by": 3}}}
    assert windows(window, rows) == [(None, 100, None)]


def test_a_time_trigger_over_a_count_window_stops_after_the_first_tick_past_the_input():
    rows = [("a", 1, 1), ("b", 25, 2)]
    found = outcome({**SLIDING, "evict": {"count": 2}, "trigger": {"time": 10}}, rows)
    assert [(row["k"], row["window_end"], row["trigger"]) for row in found.rows] == [("a", 10, 0), ("a", 20, 1), ("a", 30, 2), ("b", 30, 0)]


def test_tuples_wait_for_the_watermark_and_late_ones_are_refused():
    rows = [("a", 0, 0), ("a", 4, 4), ("a", 2, 2), ("a", 20, 20), ("a", 3, 3)]
    found = outcome({**SLIDING, "evict": {"count": 9}}, rows, time={"disorder": 5})
    assert [row["all"] for row in found.rows] == [[0], [0, 2], [0, 2, 4], [0, 2, 4, 20]]
    assert found.quarantined == [(4, "too_late")]


def test_an_idle_key_is_forgotten():
    rows = [("a", t, t) for t in (0, 1, 20, 21)]
    found = outcome({**SLIDING, "evict": {"count": 9}, "idle_after": 10}, rows)
    assert [(row["trigger"], row["all"]) for row in found.rows] == [(0, [0]), (1, [0, 1]), (0, [20]), (1, [20, 21])]


def test_hours_of_a_zone_do_not_follow_the_wall_clock():
    window, at = {"name": "w", "type": "tumbling", "size": "1 hour", "timezone": "America/New_York"}, 1_383_458_400_000_000
    spec = parse_pipeline({"pipeline": "p", "time": {"column": "t"}, "windows": [window], "aggregates": {"n": {"count": "*"}}})
    assert len(evaluate(spec, [Record({"t": at - 3_600_000_000}), Record({"t": at})]).rows) == 2
