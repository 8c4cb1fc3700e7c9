"""Numbers of rows: those of a commit are consecutive, whatever its files; what cannot be numbered is refused."""

from __future__ import annotations

import pytest

from windowmill.jobs.layouts.lateness import starts_of
from windowmill.windowing.errors import LimitExceededError
from windowmill.windowing.watermark import COMMIT_SHIFT


def starts(rows: list[int], commits: list[int], *begin: int) -> list[tuple[int, int]]:
    """The commit and the number of the first row of each file."""
    return [divmod(start, 1 << COMMIT_SHIFT) for start in starts_of(rows, commits, *begin).tolist()]


def test_files_of_a_commit_are_numbered_on_and_those_of_another_one_anew():
    last = 2**29 - 1
    assert starts([3, 2, 0, 4, 1], [7, 7, 7, 9, last]) == [(7, 0), (7, 3), (7, 5), (9, 0), (last, 0)]
    assert starts([3, 2, 4], [7, 7, 9], 5) == [(7, 5), (7, 8), (9, 0)], "the first may go on after rows that have its numbers"
    assert starts([], []) == []


def test_what_cannot_be_numbered_is_refused():
    with pytest.raises(LimitExceededError, match="a commit of the source has more than 8,589,934,592 rows"):
        starts_of([2**32, 2**32, 1], [0, 0, 0])
    assert starts_of([2**32, 2**32, 1], [0, 0, 1]).tolist() == [0, 2**32, 2**33]
    with pytest.raises(LimitExceededError, match="version 1,710,021,600 of the source: rows can be numbered up to version 536,870,911"):
        starts_of([1], [1_710_021_600])
