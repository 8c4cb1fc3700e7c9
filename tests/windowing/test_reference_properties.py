"""What must be true of the oracle whatever the input: results already given stay, and no event is lost."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.specs import a_spec
from tests.strategies import ARRIVALS, Arrival, between_commits, shared
from windowmill.windowing.reference import Record, evaluate
from windowmill.windowing.specfile import parse_pipeline

WINDOWS: dict[str, dict[str, Any]] = {
    "tumbling": {"type": "tumbling", "size": 4},
    "hopping": {"type": "hopping", "size": 7, "hop": 3, "origin": 2},
    "gaps": {"type": "hopping", "size": 2, "hop": 5, "empty": "emit"},
    "cumulative": {"type": "cumulative", "size": 6, "step": 2},
    "session": {"type": "session", "gap": 2},
    "long_session": {"type": "session", "gap": 3, "max_size": 5},
    "snapshot": {"type": "snapshot"},
    "count": {"type": "count", "count": 3},
    "last_three": {"type": "sliding", "evict": {"count": 3}, "trigger": {"count": 2}},
    "young": {"type": "sliding", "evict": {"time": 4}, "trigger": {"time": 3}},
    "close": {"type": "sliding", "evict": {"delta": {"column": "v", "by": 2}}, "trigger": {"delta": {"column": "v", "by": 1}}},
    "idle": {"type": "sliding", "evict": {"count": 9}, "trigger": {"time": 2}, "idle_after": 3},
    "batches": {"type": "tumbling", "evict": {"count": 2}},
}
ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(-12, 12), st.integers(0, 6), st.one_of(st.none(), st.integers(-5, 5))), max_size=14
)


def pipeline(window: str, emit: str, disorder: int, lateness: int) -> Any:
    lasting = "evict" not in WINDOWS[window]
    means = {"m": {"time_weighted_mean": "v"}} if lasting else {}
    time = {"column": "t", "unit": "none", "tie_break": ["v", "id"], "disorder": disorder, "lateness": lateness}
    time |= {"end": "e"} if lasting else {}
    aggregates = {"n": {"count": "*"}, "all": {"collect": "v"}} | means
    windows = [{"name": "w", **WINDOWS[window]}]
    return parse_pipeline(a_spec(keys=["k"], time=time, windows=windows, aggregates=aggregates, emit=emit))


def records(rows: list[tuple[str, int, int, int | None]]) -> list[Record]:
    return [Record({"k": key, "t": time, "e": time + length, "v": value, "id": id_}) for id_, (key, time, length, value) in enumerate(rows)]


@pytest.mark.parametrize("emit", ["final", "revise"])
@pytest.mark.parametrize("window", WINDOWS)
@shared(2 * len(WINDOWS), 40)
@given(rows=ROWS, cut=st.integers(0, 14), arrival=ARRIVALS, disorder=st.integers(0, 4), lateness=st.integers(0, 5))
def test_rows_and_refusals_once_given_stay(window: str, emit: str, rows: Any, cut: int, arrival: Arrival, disorder: int, lateness: int):
    spec, events, commits = pipeline(window, emit, disorder, lateness), records(rows), arrival.commits(len(rows))
    [cut] = between_commits([cut], commits)
    early, whole = (evaluate(spec, events[:last], commits=commits[:last], final=False) for last in (cut, len(events)))
    assert [row for row in early.rows if row not in whole.rows] == []
    assert early.quarantined == [(number, reason) for number, reason in whole.quarantined if number < cut]
    ended = evaluate(spec, events, commits=commits).rows
    assert [row for row in whole.rows if row not in ended] == []


@pytest.mark.parametrize("emit", ["final", "revise"])
@pytest.mark.parametrize("window", WINDOWS)
@shared(2 * len(WINDOWS), 40)
@given(rows=ROWS, arrival=ARRIVALS, disorder=st.integers(0, 4), lateness=st.integers(0, 5), random=st.randoms(use_true_random=False))
def test_the_order_of_rows_in_a_commit_makes_no_difference(window, emit, rows, arrival, disorder, lateness, random):
    spec, events, commits = pipeline(window, emit, disorder, lateness), records(rows), arrival.commits(len(rows))
    order = sorted(range(len(rows)), key=lambda row: (commits[row], random.random()))
    given, shuffled = evaluate(spec, events, commits=commits), evaluate(spec, [events[row] for row in order], commits=commits)
    assert shuffled.rows == given.rows
    assert sorted((order[place], reason) for place, reason in shuffled.quarantined) == given.quarantined


@pytest.mark.parametrize("window", ["tumbling", "hopping", "session", "snapshot", "long_session"])
@shared(5, 40)
@given(rows=ROWS, arrival=ARRIVALS, lateness=st.integers(0, 5))
def test_the_last_revision_is_what_enough_patience_would_have_shown(window: str, rows: Any, arrival: Arrival, lateness: int):
    """With ``revise`` the newest version of each window counts the events that ``final`` counts, by another count of the same events."""
    commits = arrival.commits(len(rows))
    revised, final = (evaluate(pipeline(window, emit, 0, lateness), records(rows), commits=commits) for emit in ("revise", "final"))
    assert revised.quarantined == final.quarantined

    newest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in revised.rows:
        its = (row["k"], row["window_start"], row["window_end"])
        if its not in newest or row["revision"] > newest[its]["revision"]:
            newest[its] = row
    shown = [(*its, row["all"]) for its, row in newest.items() if not row["retracted"]]
    wanted = [(row["k"], row["window_start"], row["window_end"], row["all"]) for row in final.rows]
    assert sorted(shown, key=repr) == sorted(wanted, key=repr)


#: Size, hop and origin of some of these windows, which are on grids.
ON_GRIDS = {"tumbling": (4, 4, 0), "hopping": (7, 3, 2), "gaps": (2, 5, 0)}


@pytest.mark.parametrize("emit", ["final", "revise"])
@pytest.mark.parametrize("window", ON_GRIDS)
@shared(2 * len(ON_GRIDS), 40)
@given(rows=ROWS, arrival=ARRIVALS, disorder=st.integers(0, 4), lateness=st.integers(0, 5))
def test_rows_that_found_one_of_their_windows_closed_have_missed_it(window, emit, rows, arrival, disorder, lateness):
    size, hop, origin = ON_GRIDS[window]
    commits, missed = arrival.commits(len(rows)), 0
    for number, (_, time, length, _) in enumerate(rows):
        before = [t for (_, t, _, _), commit in zip(rows[:number], commits, strict=False) if commit < commits[number]]
        seen = max(before, default=-math.inf)
        starts = range(origin - 100 * hop, 100, hop)
        ends = [start + size for start in starts if start < max(time + length, time + 1) and start + size > time]
        missed += any(end <= seen - disorder - lateness for end in ends)
    found = evaluate(pipeline(window, emit, disorder, lateness), records(rows), commits=commits)
    assert found.missed == ({"w": missed} if missed else {})


@pytest.mark.parametrize("window", [name for name in WINDOWS if name not in ("snapshot", "cumulative", *ON_GRIDS)])
@shared(10, 20)
@given(rows=ROWS, arrival=ARRIVALS, lateness=st.integers(0, 5))
def test_a_row_that_such_windows_count_has_missed_none_of_them(window, rows, arrival, lateness):
    found = evaluate(pipeline(window, "final", 0, lateness), records(rows), commits=arrival.commits(len(rows)))
    assert found.missed == ({"w": len(found.quarantined)} if found.quarantined else {})
