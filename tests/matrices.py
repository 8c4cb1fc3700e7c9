"""Tables of cases: `make test` takes some pairs of two lists, with each entry of either; `make faults` and `make fuzz` take every pair."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import TypeVar

#: Whether a test takes all of its cases.
EVERY = os.environ.get("WINDOWMILL_FAULTS") == "all"
A, B = TypeVar("A"), TypeVar("B")


def crossed(first: Iterable[A], second: Iterable[B]) -> list[tuple[A, B]]:
    """Every pair with ``WINDOWMILL_FAULTS=all``, else each entry of the longer list with one of the other in turn."""
    one, other = list(first), list(second)
    if EVERY:
        return list(itertools.product(one, other))
    return [(one[n % len(one)], other[n % len(other)]) for n in range(max(len(one), len(other)))]
