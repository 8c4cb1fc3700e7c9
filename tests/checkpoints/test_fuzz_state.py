"""A few hundred examples of :mod:`tests.checkpoints.fuzz_state`; a million are tried by running it."""

from __future__ import annotations

import random

import pytest

from tests.checkpoints import fuzz_state

pytestmark = pytest.mark.covers("D3")


def test_damaged_rows_are_refused():
    assert set(fuzz_state.fuzz_rows(2_000, random.Random(1))) <= {"equal", "refused"}


@pytest.mark.covers("X7", "D3")
def test_damaged_files_are_refused(tmp_path):
    assert set(fuzz_state.fuzz_files(60, random.Random(1), tmp_path)) <= {"equal", "refused"}
