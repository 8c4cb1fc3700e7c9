"""What policies are told and what they keep, as arrays: settings, tuples, states of keys, and what is noted of triggers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from windowmill.windowing.kernels.combine import Bools, Floats, Ints, inner

COUNT, TIME, DELTA, PUNCTUATION, NONE = 0, 1, 2, 3, -1
#: Settings: what evicts, what triggers (NONE: tumbling), count and age of eviction, count of the trigger, whether triggers of a window not
#: yet full fire, whether empty ones do, idle time, ticks (0 none, 1 origin and period, 2 listed), their origin and period.
EVICT, TRIGGER, EVICT_COUNT, AGE, TRIGGER_COUNT, PARTIAL, EMPTY, IDLE, TICKS, ORIGIN, PERIOD = range(11)
#: A key's state: time of its last tuple, last tick that fired, next tick, triggers so far, tuples so far, whether the window has been full,
#: whether a base of the delta trigger is known, and the base where it is a whole number.
LAST, TICKED, TICK, FIRED, INSERTED, FULL, HAS_BASE, BASE = range(8)
BEFORE, AFTER = np.iinfo(np.int64).min, np.iinfo(np.int64).max
#: Counts: triggers and removed tuples noted, what of the latter the last trigger knew, ticks that the key is due. Where those are more than
#: ``MOST_ROWS_OF_KEY``, nothing goes on.
NOTED, REMOVED, KNOWN, DUE = 0, 1, 2, 3
#: Places of the eviction and of the trigger in what is told of both.
EVICTION, TRIGGERING = 0, 1


class Rules(NamedTuple):
    """What a window's policies are.

    Attributes
    ----------
    settings
        As above; shape (11,).
    listed
        The instants of listed ticks, ascending.
    deltas, floors, wholes
        Of the eviction and of the trigger: the delta, the delta rounded down, whether the column holds whole numbers; shapes (2,).
    """

    settings: Ints
    listed: Ints
    deltas: Floats
    floors: Ints
    wholes: Bools


class Values(NamedTuple):
    """The column that a delta looks at; shapes (n_tuples,).

    Attributes
    ----------
    value, whole
        As floats, and as whole numbers where it holds those.
    known
        Where it is neither null nor NaN.
    """

    value: Floats
    whole: Ints
    known: Bools


class Tuples(NamedTuple):
    """The tuples of all keys, in the order in which they are applied; times in ticks of the axis.

    Attributes
    ----------
    offsets, held
        Key k's tuples are ``offsets[k]:offsets[k + 1]``, of which the first ``held[k]`` are in its window.
    time, fresh, punctuation
        Of each tuple; ``fresh`` ones find their key forgotten.
    evict, trigger
        What deltas look at.
    """

    offsets: Ints
    held: Ints
    time: Ints
    fresh: Bools
    punctuation: Bools
    evict: Values
    trigger: Values


class Keys(NamedTuple):
    """What is kept of the keys and of their windows; left as it comes out.

    Attributes
    ----------
    states
        As above; shape (n_keys, 8).
    bases
        Base of the delta trigger where it is no whole number; shape (n_keys,).
    alive
        Whether each tuple is in its key's window; shape (n_tuples,).
    """

    states: Ints
    bases: Floats
    alive: Bools


class Progress(NamedTuple):
    """How far the input has come, in ticks of the axis.

    Attributes
    ----------
    greatest
        The greatest event time of the whole input, where ticks over windows that never empty stop once the input has ``ended``.
    """

    watermark: int
    ended: bool
    greatest: int


class Noted(NamedTuple):
    """What has been noted.

    Attributes
    ----------
    write
        Whether triggers and removed tuples are written, and not only counted.
    counts
        As above; shape (4,).
    out
        Key, start, end, number, lo and hi of each trigger, and from where to where tuples have been removed since the last; shape (8, n).
    removed
        The tuples that deltas have removed.
    """

    write: bool
    counts: Ints
    out: Ints
    removed: Ints


@inner
def tick_after(settings: Ints, listed: Ints, instant: int) -> Any:
    """The first tick after ``instant``."""
    if settings[TICKS] == 1:
        return settings[ORIGIN] + ((instant - settings[ORIGIN]) // settings[PERIOD] + 1) * settings[PERIOD]
    place = np.searchsorted(listed, instant, side="right")
    return listed[place] if place < len(listed) else AFTER


@inner
def tick_until(settings: Ints, listed: Ints, instant: int) -> Any:
    """The last tick not after ``instant``."""
    if settings[TICKS] == 1:
        return settings[ORIGIN] + (instant - settings[ORIGIN]) // settings[PERIOD] * settings[PERIOD]
    place = np.searchsorted(listed, instant, side="right")
    return listed[place - 1] if place > 0 else BEFORE
