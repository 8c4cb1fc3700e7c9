"""What earlier batches have left: rows of windows of earlier specs, which stay in the sink as they are, rulings, and validations.

An error of reading the quality table names the table and says what to do about it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from windowmill.checkpoints.batches import Batch, Plan, effective_batches
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.stores import options_of, remedy
from windowmill.expectations.gate import Verdict, last_verdict
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.errors import StateCorruptError, UnsupportedError, first_line
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import LatenessRule

#: Ends of windows in (first, last].
Stretch = tuple[int, int]


class _Meaning(NamedTuple):
    """The meaning of a window in a spec, and the number of the last batch that changed it, be it only by a variable or by code."""

    since: int | None
    window: Mapping[str, Any]


def has_dropped_windows(pipeline: Pipeline, ledger: Ledger) -> bool:
    """Whether the sink may hold rows of windows that the spec does not have."""
    names = {window.name for window in pipeline.windows}
    return any(windows.keys() - names for _, windows in _windows_of(ledger))


def left_out(pipeline: Pipeline, ledger: Ledger) -> Mapping[str, Sequence[Stretch]]:
    """For each window that a changed spec added without its whole history, the ranges of window ends without rows in the sink."""
    found: dict[str, Sequence[Stretch]] = {}
    before: Mapping[str, _Meaning] | None = None
    for plan, windows in _windows_of(ledger):
        if before is not None and plan.changes_spec:
            brought = [name for name, window in windows.items() if before.get(name) != window]
            found |= {name: [(AXIS_BEGIN, _shown_after(pipeline, plan, name))] for name in brought}
        elif plan.range is not None:
            begin, end = plan.replaced or plan.range
            found = {name: list(_without(stretches, begin, end)) for name, stretches in found.items()}
        before = windows
    return found


def numbered_otherwise(definition: Mapping[str, Any], redefined: Collection[str], ledger: Ledger) -> set[str]:
    """Windows with policies whose triggers in the sink may be numbered under another meaning than by ``definition`` and ``redefined``."""
    now, past = {window["name"]: window for window in definition["windows"]}, list(_windows_of(ledger))
    newest = {name: meaning.since for _, windows in past for name, meaning in windows.items()}
    before = ((name, meaning) for _, windows in past for name, meaning in windows.items())
    return {
        name
        for name, (since, window) in before
        if "evict" in window
        and "evict" in now.get(name, {})
        and (window != now[name] or since != newest[name] or f"windows.{name}" in redefined)
    }


def rulings(ledger: Ledger, held: Plan) -> tuple[str, str]:
    """The two commands that rule on the held batch of this plan; ``abandon`` replaces ``discard`` where that is refused."""
    return "release", "abandon" if _numbered_anew(ledger, held) else "discard"


def check_discarded(pipeline: Pipeline, ledger: Ledger, held: Batch) -> None:
    """Refuse to discard the ``held`` batch if it renumbers published triggers: later batches would use their numbers again."""
    if numbered := _numbered_anew(ledger, held.plan):
        raise UnsupportedError(
            f"pipeline {pipeline.pipeline}: batch {held.number} renumbers the triggers of window {min(numbered)}; without its rows, later "
            "triggers would have the numbers of published ones: `windowmill release` it; or correct the source or the rule, "
            "`windowmill abandon` it and run again"
        )


def _numbered_anew(ledger: Ledger, held: Plan) -> set[str]:
    """Windows with policies whose published triggers the held batch of this plan renumbers."""
    meaning: Mapping[str, Any] = held.definition
    if held.restates:
        return {window["name"] for window in meaning["windows"] if "evict" in window}
    return numbered_otherwise(meaning, held.redefined, ledger) if held.changes_spec else set()


def redefined_by(batches: Iterable[Batch]) -> Mapping[int, Mapping[str, int]]:
    """By batch, the last batches that changed windows and aggregates of its spec, by their names as of :attr:`.ApplyPlan.redefined`."""
    after: dict[int, Mapping[str, int]] = {}
    now: Mapping[str, int] = {}
    for batch in batches:
        if batch.status == "committed" and batch.plan.kept_batch is not None:
            now = after.get(batch.plan.kept_batch, {})
        elif batch.status == "committed" and batch.plan.redefined:
            now = {**now, **dict.fromkeys(batch.plan.redefined, batch.number)}
        after[batch.number] = now
    return after


def _without(stretches: Sequence[Stretch], begin: int, end: int) -> Iterator[Stretch]:
    """The ``stretches`` without (``begin``, ``end``].

    >>> list(_without([(0, 10)], 3, 5)), list(_without([(0, 10)], -1, 5)), list(_without([(0, 10)], 10, 12))
    ([(0, 3), (5, 10)], [(5, 10)], [(0, 10)])
    """
    for first, last in stretches:
        yield from ((low, high) for low, high in ((first, min(last, begin)), (max(first, end), last)) if low < high)


def _windows_of(ledger: Ledger) -> Iterator[tuple[Plan, Mapping[str, _Meaning]]]:
    """The plans of the batches that the sink has rows of, oldest first, each with the windows of its spec by name."""
    batches = ledger.batches()
    redefined = redefined_by(batches)
    for batch in effective_batches(batches, in_sink=True):
        meaning: Mapping[str, Any] = batch.plan.definition
        if not batch.is_backfill or batch.verdict != "discarded":
            since = redefined[batch.number]
            windows = ((window["name"], window) for window in meaning.get("windows", ()))
            yield batch.plan, {name: _Meaning(since.get(f"windows.{name}"), window) for name, window in windows}


def _shown_after(pipeline: Pipeline, plan: Plan, name: str) -> int:
    if plan.emitted is None:
        return AXIS_BEGIN
    window = next((each for each in pipeline.windows if each.name == name), None)
    rule = LatenessRule.of_meaning(pipeline.filled(plan.definition))
    shown = plan.shown_by(rule)
    shown = plan.emitted if shown is None else shown
    if window is not None and window.follows_policies:
        # A tuple at the watermark itself triggers once the watermark is past it.
        shown = plan.watermark_by(rule) - window.policies().triggers_by_tuples
    return min(plan.history, shown) if plan.history is not None and name in plan.fills else shown


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
