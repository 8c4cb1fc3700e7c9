"""Rows of one commit arrive together: by hand, for each kind of window, in every order of the rows in a commit, on both engines.

Drawings show one commit on each line, its rows at their times::

    time        0    5    10
    commit 0         a         b
    commit 1       a
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.kernel_runs import KernelRun
from tests.specs import a_spec
from windowmill.windowing.reference import Record, evaluate
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

#: Key and time of a row; the commits, in order.
Row = tuple[str, int | None]
Commits = Sequence[Sequence[Row]]
#: Key, start, end and revision of a window, and the times of its rows.
Shown = tuple[str, int, int, int, list[int]]
Refused = list[tuple[str, int | None, str]]

SLOTS: dict[str, Any] = {"type": "tumbling", "size": 10}
VISITS: dict[str, Any] = {"type": "session", "gap": 5}
LAST_3: dict[str, Any] = {"type": "sliding", "evict": {"count": 3}, "trigger": {"count": 1}}


def spec_of(window: dict[str, Any], emit: str = "final", **time: Any) -> Pipeline:
    axis, aggregates = {"column": "t", "unit": "none"} | time, {"times": {"collect": "t"}}
    return parse_pipeline(a_spec(keys=["k"], time=axis, windows=[{"name": "w"} | window], aggregates=aggregates, emit=emit))


def by_reference(spec: Pipeline, commits: Commits) -> tuple[list[Any], list[tuple[int, str]]]:
    numbered = [(number, row) for number, rows in enumerate(commits) for row in rows]
    outcome = evaluate(spec, [Record({"k": key, "t": time}) for _, (key, time) in numbered], commits=[number for number, _ in numbered])
    return outcome.rows, outcome.quarantined


def by_kernel(spec: Pipeline, commits: Commits, commits_per_batch: int) -> tuple[list[Any], list[tuple[int, str]]]:
    engine = KernelRun(spec)
    for first in range(0, len(commits), commits_per_batch):
        batch = [(number, row) for number, rows in enumerate(commits) for row in rows if first <= number < first + commits_per_batch]
        columns = {"k": pa.array([key for _, (key, _) in batch], pa.string()), "t": pa.array([time for _, (_, time) in batch], pa.int64())}
        engine.feed(pa.table(columns), commits=np.array([number for number, _ in batch], np.int64))
    return engine.finish(final=True)


def outcomes(spec: Pipeline, commits: Commits) -> Iterator[tuple[list[Shown], Refused]]:
    """What the engines say: the reference; the parts of a run, with one, two and all commits in a batch."""
    arrived = [row for rows in commits for row in rows]
    computed = (by_kernel(spec, commits, size) for size in (1, 2, len(commits)))
    for rows, refused in (by_reference(spec, commits), *computed):
        shown = [
            tuple(row[name] for name in ("k", "window_start", "window_end", "revision", "times"))
            for row in rows
            if not row.get("retracted")
        ]
        yield sorted(shown), in_order((*arrived[number], reason) for number, reason in refused)


def in_order(refused: Iterable[tuple[str, int | None, str]]) -> Refused:
    return sorted(refused, key=repr)


def in_every_order(commits: Commits) -> Iterator[Commits]:
    """The ``commits``, with the rows of one of them in every order."""
    for number, rows in enumerate(commits):
        for order in permutations(rows):
            yield [*commits[:number], order, *commits[number + 1 :]]


def check(spec: Pipeline, commits: Commits, shown: list[Shown], refused: Refused) -> None:
    """In whatever order the rows of a commit are, ``shown`` are the result rows, and ``refused`` the rows set aside."""
    for ordered in in_every_order(commits):
        for outcome in outcomes(spec, ordered):
            assert outcome == (sorted(shown), in_order(refused)), ordered


def row_by_row(commits: Commits) -> Commits:
    """The rows of ``commits``, each a commit of its own."""
    return [[row] for rows in commits for row in rows]


def late(*rows: Row) -> Refused:
    return [(*row, "too_late") for row in rows]


# time        0    5    10   15   20   25
# commit 0         5      12
# commit 1       3          14         25     windows are closed through 12
# commit 2           7          18            and through 25
GRID = [[("a", 12), ("a", 5)], [("a", 3), ("a", 25), ("a", 14)], [("a", 18), ("a", 7)]]


def test_windows_on_a_grid_take_what_the_commits_before_left_open():
    shown: list[Shown] = [("a", 0, 10, 0, [5]), ("a", 10, 20, 0, [12, 14]), ("a", 20, 30, 0, [25])]
    check(spec_of(SLOTS), GRID, shown, late(("a", 3), ("a", 7), ("a", 18)))


def test_where_each_row_is_a_commit_the_rows_before_it_close_windows():
    shown: list[Shown] = [("a", 10, 20, 0, [12]), ("a", 20, 30, 0, [25])]
    check(spec_of(SLOTS), row_by_row(GRID), shown, late(*(("a", time) for time in (3, 5, 7, 14, 18))))


def test_one_commit_has_no_late_rows():
    rows = [("a", time) for time in (31, 2, 18, 24)]
    check(spec_of(SLOTS), [rows], [("a", start, start + 10, 0, [time]) for start, time in ((0, 2), (10, 18), (20, 24), (30, 31))], [])
    check(spec_of(SLOTS), row_by_row([rows]), [("a", 30, 40, 0, [31])], late(("a", 2), ("a", 18), ("a", 24)))


def test_disorder_and_lateness_count_from_the_commits_before():
    # The watermark is at 12 − 2, and windows are closed through 10 − 3: [0, 10) is open still for the whole commit that brings 40.
    commits = [[("a", 12)], [("a", 40), ("a", 3)], [("a", 4), ("a", 32)]]
    shown: list[Shown] = [("a", 0, 10, 0, [3]), ("a", 10, 20, 0, [12]), ("a", 30, 40, 0, [32]), ("a", 40, 50, 0, [40])]
    check(spec_of(SLOTS, disorder=2, lateness=3), commits, shown, late(("a", 4)))


def test_rows_without_a_usable_time_are_set_aside_and_close_nothing():
    commits = [[("a", 12), ("a", None)], [("a", None), ("a", 3), ("a", 30)], [("a", 14)]]
    refused = [("a", None, "null_time"), ("a", None, "null_time"), *late(("a", 3), ("a", 14))]
    check(spec_of(SLOTS), commits, [("a", 10, 20, 0, [12]), ("a", 30, 40, 0, [30])], refused)


# time        5    10   15   20   25
# commit 0                   20           a
# commit 1                       24       b closes sessions that end before 24, not [20, 25)
# commit 2        11   16                 a
CHAIN = [[("a", 20)], [("b", 24)], [("a", 16), ("a", 11)]]


@pytest.mark.parametrize("cut", [{}, {"max_size": 40}], ids=["whole", "cut"])
def test_a_late_row_links_another_of_its_commit_to_an_open_session(cut: dict[str, int]):
    shown: list[Shown] = [("a", 11, 25, 0, [11, 16, 20]), ("b", 24, 29, 0, [24])]
    check(spec_of(VISITS | cut), CHAIN, shown, [])
    check(spec_of(VISITS | cut), row_by_row(CHAIN), shown, [])
    # By itself, or before the row that links it, the row at 11 is late.
    alone: list[Shown] = [("a", 16, 25, 0, [16, 20]), ("b", 24, 29, 0, [24])]
    check(spec_of(VISITS | cut), [*CHAIN[:2], [("a", 11)], [("a", 16)]], alone, late(("a", 11)))


@pytest.mark.parametrize("cut", [{}, {"max_size": 40}], ids=["whole", "cut"])
def test_late_rows_that_come_together_revise_a_session_once(cut: dict[str, int]):
    # [20, 25) of a is shown at 30, and open until 60.
    commits = [[("a", 20)], [("b", 30)], [("a", 11), ("a", 16), ("a", 24)], [("a", 7)]]
    spec = spec_of(VISITS | cut, emit="revise", lateness=30)
    once: list[Shown] = [("a", 20, 25, 0, [20]), ("a", 11, 29, 1, [11, 16, 20, 24]), ("a", 7, 29, 2, [7, 11, 16, 20, 24])]
    check(spec, commits, [*once, ("b", 30, 35, 0, [30])], [])
    by_row: list[Shown] = [
        ("a", 20, 25, 0, [20]),
        ("a", 11, 16, 0, [11]),
        ("a", 11, 25, 1, [11, 16, 20]),
        ("a", 11, 29, 2, [11, 16, 20, 24]),
        ("a", 7, 29, 3, [7, 11, 16, 20, 24]),
    ]
    check(spec, row_by_row(commits), [*by_row, ("b", 30, 35, 0, [30])], [])


def test_late_rows_that_come_together_revise_a_window_once():
    # [0, 10) is shown with 5; [10, 20) held nothing when 25 passed it, so its first late rows show it.
    commits = [[("a", 5)], [("a", 25)], [("a", 3), ("a", 12), ("a", 7)], [("a", 14), ("a", 2)]]
    shown: list[Shown] = [
        *[("a", 0, 10, 0, [5]), ("a", 0, 10, 1, [3, 5, 7]), ("a", 0, 10, 2, [2, 3, 5, 7])],
        *[("a", 10, 20, 0, [12]), ("a", 10, 20, 1, [12, 14]), ("a", 20, 30, 0, [25])],
    ]
    spec = spec_of(SLOTS, emit="revise", lateness=100)
    check(spec, commits, shown, [])
    by_row: list[Shown] = [
        *[("a", 0, 10, 0, [5]), ("a", 0, 10, 1, [3, 5]), ("a", 0, 10, 2, [3, 5, 7]), ("a", 0, 10, 3, [2, 3, 5, 7])],
        *[("a", 10, 20, 0, [12]), ("a", 10, 20, 1, [12, 14]), ("a", 20, 30, 0, [25])],
    ]
    check(spec, row_by_row(commits), by_row, [])


def test_empty_windows_are_revised_once_by_what_comes_together():
    # 5 and 35 make a known from 0 on, so [10, 20) and [20, 30) have been shown empty.
    commits = [[("a", 5)], [("a", 35)], [("a", 18), ("a", 12)]]
    shown: list[Shown] = [
        *[("a", 0, 10, 0, [5]), ("a", 10, 20, 0, []), ("a", 10, 20, 1, [12, 18])],
        *[("a", 20, 30, 0, []), ("a", 30, 40, 0, [35])],
    ]
    empties = [(key, start, end, revision, times or None) for key, start, end, revision, times in shown]
    spec = spec_of(SLOTS | {"empty": "emit"}, emit="revise", lateness=100)
    for ordered in in_every_order(commits):
        for found, refused in outcomes(spec, ordered):
            assert ([(*row[:4], row[4] or None) for row in found], refused) == (empties, [])


# time        8    10   12        20
# commit 0         10                     a
# commit 1                        20      b lets a apply the tuple at 10
# commit 2    8      11 12                a
TUPLES = [[("a", 10)], [("b", 20)], [("a", 12), ("a", 8), ("a", 11)]]


def test_tuples_that_come_together_are_late_to_what_was_applied_before_them_alone():
    shown: list[Shown] = [("a", 10, 10, 0, [10]), ("a", 10, 11, 0, [10, 11]), ("a", 10, 12, 0, [10, 11, 12])]
    numbered = [(key, start, end, times) for key, start, end, _, times in [*shown, ("b", 20, 20, 0, [20])]]
    for ordered in in_every_order(TUPLES):
        for found, refused in outcomes(spec_of(LAST_3), ordered):
            assert [(key, start, end, times) for key, start, end, _, times in found] == numbered
            assert refused == late(("a", 8))
    for found, refused in outcomes(spec_of(LAST_3), row_by_row(TUPLES)):
        # The tuple at 12 is applied when the next one arrives.
        assert [times for *_, times in found] == [[10], [10, 12], [20]]
        assert refused == late(("a", 11), ("a", 8))


@pytest.mark.parametrize("window", [SLOTS, VISITS, LAST_3], ids=["grid", "session", "policies"])
def test_where_intervals_are_vouched_for_rows_close_nothing(window: dict[str, Any]):
    spec = spec_of(window, watermark="data_interval_end")
    rows = [row for rows in GRID for row in rows]
    [wanted, *others] = [
        outcome for commits in (GRID, [rows], [[row] for row in rows], [rows[::-1]]) for outcome in outcomes(spec, commits)
    ]
    assert wanted[1] == []
    assert all(other == wanted for other in others)


PAIRS: dict[str, Any] = {"type": "count", "count": 2}


@pytest.mark.parametrize("emit", ["final", "revise"])
def test_no_row_of_a_commit_completes_a_window_by_count_before_another_has_joined_it(emit: str):
    # When b comes, a has one start time and waits for another. Either of 20 and 25 would have been it.
    commits = [[("a", 10)], [("b", 30)], [("a", 20), ("a", 25)], [("a", 15)]]
    shown: list[Shown] = [("a", 10, 21, 0, [10, 20]), ("a", 20, 26, 0, [20, 25])]
    check(spec_of(PAIRS, emit=emit), commits, shown, late(("a", 15)))


def test_rows_in_time_and_late_ones_of_a_commit_share_windows_by_count():
    # The window that begins with 25 ends with 35, which came with it, until 28 comes between them.
    commits = [[("a", 10)], [("b", 30)], [("a", 35), ("a", 20), ("a", 25)], [("a", 28)]]
    shown: list[Shown] = [("a", 10, 21, 0, [10, 20]), ("a", 20, 26, 0, [20, 25]), ("a", 25, 29, 0, [25, 28]), ("a", 28, 36, 0, [28, 35])]
    check(spec_of(PAIRS, lateness=2), commits, shown, [])
