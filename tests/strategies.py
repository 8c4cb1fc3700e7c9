"""What tests draw: values, rows, streams out of order, histories of a window."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, cycle, islice, repeat
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st


def shared(among: int, least: int = 8) -> settings:
    """The profile's examples, shared among so many parameters of a test: together they try as many as the profile says.

    Each tries at least so many, or a part of them under a profile that has to be quick.
    """
    profile = settings.default
    assert profile is not None
    least = 2 if profile.max_examples <= 5 else 1 + least // 2 if profile.max_examples <= 15 else least
    return settings(max_examples=max(least, profile.max_examples // among))


#: Eighths: sums and squares of a few are exact, so that only a wrong formula can make results differ.
TAME_FLOATS = st.integers(-8000, 8000).map(lambda eighths: eighths / 8)
WILD_FLOATS = st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 0.0])
FLOATS = st.one_of(TAME_FLOATS, TAME_FLOATS, WILD_FLOATS)
INTS = st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1))
STRINGS = st.text("abé", max_size=2)
DECIMALS = st.decimals(-1000, 1000, places=2)

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int64": INTS,
    "float64": FLOATS,
    "decimal": DECIMALS,
    "string": STRINGS,
    "any": STRINGS,
}


def rows(*types: str) -> st.SearchStrategy[tuple[Any, ...]]:
    """Argument tuples of columns of the given types; now and then a null."""
    return st.tuples(*(st.one_of(VALUES[type_], VALUES[type_], VALUES[type_], st.none()) for type_ in types))


class Event(NamedTuple):
    """A row of a stream; ``time`` on an integer axis."""

    key: str
    time: int
    value: Any


@st.composite
def streams(
    draw: st.DrawFn, values: st.SearchStrategy[Any] = FLOATS, max_size: int = 30, max_disorder: int = 5, keys: str = "ab"
) -> list[Event]:
    """Events in order of arrival: with ties, gaps, nulls and negative times, and none later than ``max_disorder`` behind one before it."""
    time, stream = draw(st.integers(-20, 5)), []
    for _ in range(draw(st.integers(0, max_size))):
        time += draw(st.sampled_from([0, 0, 1, 1, 2, 7, 40]))
        late = draw(st.integers(0, max_disorder))
        stream.append(Event(draw(st.sampled_from(keys)), time - late, draw(st.one_of(values, values, values, st.none()))))
    return stream


class Arrival(NamedTuple):
    """How rows arrive: in commits of these ``sizes``, in turn."""

    sizes: tuple[int, ...] = (1,)

    def commits(self, n: int) -> list[int]:
        """The number of the commit of each of ``n`` rows."""
        return list(islice(chain.from_iterable(repeat(number, size) for number, size in enumerate(cycle(self.sizes))), n))


ROW_BY_ROW = Arrival()


def _arrival(kind: int, few: list[int]) -> Arrival:
    return Arrival(tuple(few) if kind < 7 else (1,) if kind < 9 else (1_000,))


#: Mostly a commit has a few rows; or each row is one, or all rows are.
ARRIVALS = st.builds(_arrival, st.integers(0, 9), st.lists(st.sampled_from([4, 3, 2, 1, 6]), min_size=1, max_size=5))


def many(elements: st.SearchStrategy[Any], most: int) -> st.SearchStrategy[list[Any]]:
    """Lists of 1 to ``most`` elements. A list of any length is mostly a short one, so some lengths are asked for."""
    return st.one_of(*(st.lists(elements, min_size=least, max_size=most) for least in (1, most // 3, most // 2, most * 3 // 4)))


@st.composite
def delays(draw: st.DrawFn, lengths: st.SearchStrategy[int]) -> Iterator[int]:
    """How far each row comes behind: after some that come in time, some come late, so that a commit may bring several of these."""
    runs = draw(st.lists(st.tuples(st.integers(1, 4), lengths, st.integers(1, 4)), min_size=2, max_size=6))
    return cycle(chain.from_iterable([0] * in_time + [length] * late for in_time, length, late in runs))


def between_commits(cuts: Iterable[int], commits: Sequence[int]) -> list[int]:
    """The ``cuts`` of rows with these ``commits`` into batches, in order; one within a commit is moved to its end."""
    return sorted(bisect_right(commits, commits[cut - 1]) if 0 < cut < len(commits) else cut for cut in cuts)


def arriving(before: list[int], n: int, commits: Sequence[int] | None = None) -> list[int]:
    """The ``commits`` of the next ``n`` rows, each of which is one unless given; they are added to those of the rows ``before``."""
    following = 1 + max(before, default=-1)
    before += range(following, following + n) if commits is None else commits
    return before[len(before) - n :]


#: Histories of a first-in-first-out window: +1 inserts, -1 evicts, 0 queries. Phases that fill and drain reach flips and resizes.
HISTORIES = st.lists(
    st.one_of(
        st.sampled_from([(+1,), (-1,), (0,), (+1, 0), (-1, 0), (+1, -1, 0)]),
        st.tuples(st.sampled_from([+1, -1]), st.integers(1, 40)).map(lambda phase: (phase[0],) * phase[1] + (0,)),
    ),
    max_size=14,
).map(lambda phases: [step for phase in phases for step in phase])
