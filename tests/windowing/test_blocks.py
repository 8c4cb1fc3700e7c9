"""Blocks of words: what is written comes back, and what is constant or written already takes no room."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windowmill.windowing.kernels.blocks import damaged, decode, encode

WORDS = st.one_of(st.sampled_from([0, 1]), st.integers(-(2**63), 2**63 - 1))


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Columns, some of them copies or constant, and the bounds of blocks."""
    n_columns, lengths = draw(st.integers(1, 19)), draw(st.lists(st.integers(1, 6), max_size=6))
    rows = sum(lengths)
    drawn = [draw(st.lists(WORDS, min_size=rows, max_size=rows)) for _ in range(draw(st.integers(1, n_columns)))]
    columns = [draw(st.sampled_from(drawn)) for _ in range(n_columns)]
    return np.array(columns, np.int64).reshape(n_columns, rows), np.cumsum([0, *lengths])


@given(tables())
def test_blocks_come_back_as_they_were(table):
    columns, offsets = table
    words, bounds = encode(columns, offsets)
    assert np.array_equal(decode(words, bounds, len(columns)), columns)
    assert np.array_equal(words[bounds[:-1]], np.diff(offsets))
    assert bounds[-1] == len(words)


def test_only_what_differs_takes_room():
    own, head = np.arange(100), 1 + 1 + 1
    columns = np.stack([own, np.zeros(100, np.int64), own, np.full(100, 7), own * 2])
    words, _ = encode(columns, np.array([0, 100]))
    # Number of rows, codes, checksum.
    assert len(words) == head + 100 + 0 + 1 + 1 + 100


@given(tables(), st.integers(min_value=0), st.integers(1, 2**64 - 1))
def test_a_word_that_is_another_is_noticed(table, place, other):
    columns, offsets = table
    words, bounds = encode(columns, offsets)
    assert damaged(words, bounds) == 0
    if len(words):
        words.view(np.uint64)[place % len(words)] ^= np.uint64(other)
        assert damaged(words, bounds) == 1


def test_blocks_cut_or_empty_are_noticed():
    words, bounds = encode(np.arange(20).reshape(2, 10), np.array([0, 4, 10]))
    for length in range(bounds[1], bounds[2]):
        assert damaged(words[:length].copy(), np.array([0, bounds[1], length])) == 1


def test_blocks_can_be_read_alone():
    columns = np.array([[1, 2, 3, 3, 3], [5, 5, 5, 6, 7]])
    words, bounds = encode(columns, np.array([0, 2, 5]))
    alone = words[bounds[1] :].copy()
    assert decode(alone, np.array([0, len(alone)]), 2).tolist() == [[3, 3, 3], [5, 6, 7]]
