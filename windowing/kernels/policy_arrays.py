"""Arguments and results of the policy kernel as arrays: settings, tuples, states of keys, and recorded triggers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from windowmill.windowing.kernels.arrays import bisect_right
from windowmill.windowing.kernels.combine import Bools, Floats, Ints
from windowmill.windowing.kernels.compilation import inner
from windowmill.windowing.watermark import AFTER, BEFORE

COUNT, TIME, DELTA, PUNCTUATION, NONE = 0, 1, 2, 3, -1
#: Elements of the settings: kind of eviction, kind of trigger (NONE: tumbling), count and age of the eviction, count of the trigger,
#: whether triggers of windows not yet full count, whether those of empty windows do, idle time, kind of ticks (0 none, 1 by origin and
#: period, 2 listed), origin and period of ticks.
EVICT, TRIGGER, EVICT_COUNT, AGE, TRIGGER_COUNT, PARTIAL, EMPTY, IDLE, TICKS, ORIGIN, PERIOD = range(11)
#: Elements of a key's state: time of its last tuple, last tick that fired, next tick, number of triggers, number of inserted tuples,
#: whether the window has been full, whether the delta trigger has a base, and the base if it is an integer.
LAST, TICKED, TICK, FIRED, INSERTED, FULL, HAS_BASE, BASE = range(8)
#: Greatest difference between two integers.
MAX_GAP = (1 << 64) - 1
#: Elements of the counts: recorded triggers, recorded removed tuples, removed tuples at the last trigger, due ticks of the key. The kernel
#: stops if the last exceeds ``MAX_ROWS_OF_KEY``.
NOTED, REMOVED, KNOWN, DUE = 0, 1, 2, 3
#: Indexes of the eviction and of the trigger in arrays of shape (2,).
EVICTION, TRIGGERING = 0, 1


class Rules(NamedTuple):
    """The policies of a window.

    Attributes
    ----------
    settings
        Elements ``EVICT`` to ``PERIOD``; shape (11,).
    listed
        Instants of listed ticks, ascending.
    deltas, floors, wholes
        For the eviction and the trigger: the delta, the delta rounded down, whether the column holds integers; shapes (2,).
    """

    settings: Ints
    listed: Ints
    deltas: Floats
    floors: npt.NDArray[np.uint64]
    wholes: Bools


class Values(NamedTuple):
    """The column of a delta policy; shapes (n_tuples,).

    Attributes
    ----------
    value, whole
        Its values as floats, and as integers if the column holds integers.
    known
        Mask of values that are neither null nor NaN.
    """

    value: Floats
    whole: Ints
    known: Bools


class Tuples(NamedTuple):
    """The tuples of all keys, in the order in which they are applied; times in ticks of the axis.

    Several tuples in a row may stand as one *run*, if the window holds them all and evicts them only together.

    Attributes
    ----------
    offsets, held
        Key k's tuples are ``offsets[k]:offsets[k + 1]``; the first ``held[k]`` are in its window. Shapes (n_keys + 1,) and (n_keys,).
    weight
        Number of tuples that each one stands for: 1 but for runs. Shape (n_tuples,).
    time, fresh, punctuation
        Columns of the tuples, shapes (n_tuples,); a ``fresh`` tuple resets its key first. A run has the time of its first tuple.
    evict, trigger
        Columns of the delta policies.
    """

    offsets: Ints
    held: Ints
    weight: Ints
    time: Ints
    fresh: Bools
    punctuation: Bools
    evict: Values
    trigger: Values


class KeyStates(NamedTuple):
    """The states of keys and their windows; updated in place.

    Attributes
    ----------
    states
        Elements ``LAST`` to ``BASE`` of each key; shape (n_keys, 8).
    bases
        Base of the delta trigger if it is not an integer; shape (n_keys,).
    alive
        Whether each tuple is in its key's window; shape (n_tuples,).
    """

    states: Ints
    bases: Floats
    alive: Bools


class InputProgress(NamedTuple):
    """Progress of the input, in ticks of the axis.

    Attributes
    ----------
    greatest
        Greatest event time of the whole input, where the ticks of windows that never become empty stop after the input has ``ended``.
    """

    watermark: int
    ended: bool
    greatest: int


class TriggerLog(NamedTuple):
    """The recorded triggers and removed tuples.

    Attributes
    ----------
    write
        Whether triggers and removed tuples are written rather than only counted.
    counts
        Elements ``NOTED`` to ``DUE``; shape (4,).
    out
        A column for each of n triggers: the fields of :class:`windowmill.windowing.slicing.policy_settings.Triggers` up to ``gone_to``, in
        their order; shape (8, n).
    removed
        The tuples that deltas have removed, in order of removal.
    """

    write: bool
    counts: Ints
    out: Ints
    removed: Ints


@inner
def tick_after(settings: Ints, listed: Ints, instant: int) -> Any:
    """The first tick greater than ``instant``; ``AFTER`` if there is none. O(1), or O(log n) over n listed ticks."""
    if settings[TICKS] == 1:
        return settings[ORIGIN] + ((instant - settings[ORIGIN]) // settings[PERIOD] + 1) * settings[PERIOD]
    place = bisect_right(listed, instant, 0, len(listed))
    return listed[place] if place < len(listed) else AFTER


@inner
def tick_until(settings: Ints, listed: Ints, instant: int) -> Any:
    """The last tick at or before ``instant``; ``BEFORE`` if there is none. O(1), or O(log n) over n listed ticks."""
    if settings[TICKS] == 1:
        return settings[ORIGIN] + (instant - settings[ORIGIN]) // settings[PERIOD] * settings[PERIOD]
    place = bisect_right(listed, instant, 0, len(listed))
    return listed[place - 1] if place > 0 else BEFORE
