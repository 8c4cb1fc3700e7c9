"""Reads validations from the quality table; an error names the table and says what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from windowmill.checkpoints.batches import Plan
from windowmill.checkpoints.stores import options_of, remedy
from windowmill.expectations.gate import Verdict, last_verdict
from windowmill.windowing.errors import StateCorruptError, first_line


@contextmanager
def named_where_unreadable(path: str) -> Iterator[None]:
    """Raise ``StateCorruptError`` for any error of reading the quality table at ``path``."""
    try:
        yield
    except Exception as err:  # delta-rs' queries raise errors of no class of their own
        raise StateCorruptError(
            f"quality {path}: cannot be read ({first_line(err)}); {remedy(err, 'restore the folder from a copy')}"
        ) from err


def kept_verdict(path: str, plan: Plan) -> Verdict | None:
    """The verdict of the last validation of the batch of ``plan``; null if there is none. Raises ``StateCorruptError``."""
    with named_where_unreadable(path):
        return last_verdict(path, plan.generation, plan.batch, options_of(path))
