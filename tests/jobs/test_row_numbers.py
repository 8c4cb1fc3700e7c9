"""Numbers of rows: those of a commit are consecutive, whatever its files; what cannot be numbered is refused."""

from __future__ import annotations

import pytest

from windowmill.jobs.layouts.lateness import starts_of
from windowmill.windowing.errors import LimitExceededError
from windowmill.windowing.watermark import COMMIT_SHIFT


def test_files_of_a_commit_are_numbered_on_and_those_of_another_one_anew():
    assert [divmod(start, 1 << COMMIT_SHIFT) for start in starts_of([3, 2, 0, 4, 1], [7, 7, 7, 9, 2**29 - 1]).tolist()] == [
        *[(7, 0), (7, 3), (7, 5)],
        *[(9, 0), (2**29 - 1, 0)],
    ]
    assert starts_of([], []).tolist() == []


def test_the_first_commit_may_go_on_after_rows_that_have_its_numbers():
    assert [divmod(start, 1 << COMMIT_SHIFT) for start in starts_of([3, 2, 4], [7, 7, 9], 5).tolist()] == [(7, 5), (7, 8), (9, 0)]


def test_a_commit_of_too_many_rows_is_refused():
    with pytest.raises(LimitExceededError, match="a commit of the source has more than 8,589,934,592 rows"):
        starts_of([2**32, 2**32, 1], [0, 0, 0])
    assert starts_of([2**32, 2**32, 1], [0, 0, 1]).tolist() == [0, 2**32, 2**33]


def test_a_version_whose_rows_cannot_be_numbered_is_named():
    with pytest.raises(LimitExceededError, match="version 1,710,021,600 of the source: rows can be numbered up to version 536,870,911"):
        starts_of([1], [1_710_021_600])
