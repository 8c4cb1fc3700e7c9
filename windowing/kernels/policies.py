"""Eviction and trigger policies, key by key: applies tuples one by one, in the order of the open SPL runtime.

A new tuple: 1. due ticks fire; 2. a delta trigger fires, before the tuple evicts or enters; 3. eviction; 4. insertion; 5. a count trigger
fires with the tuple in the window. Each trigger records its window as a range of the key's sequence of tuples; if a delta evicts from the
middle, it also records the tuples removed from that range.

References
----------
IBMStreams/OSStreams, src/cpp/SPL/Runtime/Window (the rules).
"""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from windowmill.windowing.bounds import MAX_ROWS_OF_KEY
from windowmill.windowing.kernels.arrays import bisect_left, bisect_right, suspects_of
from windowmill.windowing.kernels.combine import Bools, Floats, Ints
from windowmill.windowing.kernels.compilation import helper, inlined, inner, njit
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
#: Elements of the counts: recorded triggers, recorded removed tuples, due ticks of the key. The kernel stops if the last exceeds
#: ``MAX_ROWS_OF_KEY``.
NOTED, REMOVED, DUE = 0, 1, 2
#: Indexes of the eviction and of the trigger in arrays of shape (2,).
EVICTION, TRIGGERING = 0, 1


class Rules(NamedTuple):
    """The policies of a window."""

    settings: Ints  #: Elements ``EVICT`` to ``PERIOD``; shape (11,).
    listed: Ints  #: Instants of listed ticks, ascending.
    #: For the eviction and the trigger: the delta, the delta rounded down, whether the column holds integers; shapes (2,).
    deltas: Floats
    floors: npt.NDArray[np.uint64]
    wholes: Bools


class Values(NamedTuple):
    """The column of a delta policy; shapes (n_tuples,)."""

    #: Its values as floats, and as integers if the column holds integers.
    value: Floats
    whole: Ints
    known: Bools  #: Mask of values that are neither null nor NaN.


class Tuples(NamedTuple):
    """The tuples of all keys, in the order in which they are applied; times in ticks of the axis.

    Several tuples in a row may stand as one *run*, if the window holds them all and evicts them only together.
    """

    #: Key k's tuples are ``offsets[k]:offsets[k + 1]``; the first ``held[k]`` are in its window. Shapes (n_keys + 1,) and (n_keys,).
    offsets: Ints
    held: Ints
    weight: Ints  #: Number of tuples that each one stands for: 1 but for runs. Shape (n_tuples,).
    #: Columns of the tuples, shapes (n_tuples,); a ``fresh`` tuple resets its key first. A run has the time of its first tuple.
    time: Ints
    fresh: Bools
    punctuation: Bools
    #: Columns of the delta policies.
    evict: Values
    trigger: Values


class KeyStates(NamedTuple):
    """The states of keys and their windows; updated in place."""

    states: Ints  #: Elements ``LAST`` to ``BASE`` of each key; shape (n_keys, 8).
    bases: Floats  #: Base of the delta trigger if it is not an integer; shape (n_keys,).
    alive: Bools  #: Whether each tuple is in its key's window; shape (n_tuples,).


class InputProgress(NamedTuple):
    """Progress of the input, in ticks of the axis."""

    watermark: int
    ended: bool
    #: Greatest event time of the whole input, where the ticks of windows that never become empty stop after the input has ``ended``.
    greatest: int


class TriggerLog(NamedTuple):
    """The recorded triggers and removed tuples."""

    write: bool  #: Whether triggers and removed tuples are written rather than only counted.
    counts: Ints  #: Elements ``NOTED`` to ``DUE``; shape (3,).
    #: A column for each of n triggers: the fields of :class:`windowmill.windowing.columnar.positions.Triggers` up to ``gone_to``, in
    #: their order; shape (7, n).
    out: Ints
    removed: Ints  #: The tuples that deltas have removed, in order of removal.


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


@njit
def judge_tuples(settings: Ints, listed: Ints, offsets: Ints, time: Ints, moment: Ints, watermark: Ints, new: Bools, applied: Bools) -> Any:
    """Accept or refuse new tuples by what their key had applied when they arrived; O(n), plus sorting and searching for late ones.

    Parameters
    ----------
    settings, listed
        As in :class:`Rules`.
    moment
        Moment of arrival, as in :class:`~windowmill.windowing.kernels.arrays.Rows`.
    applied
        Older tuples that the key knows: in the window, waiting, or the last one applied.

    Returns
    -------
    tuple
        For each tuple: whether it is accepted, whether its key's state had expired, and how often it had expired before the tuple is
        applied; shapes (n_tuples,).
    """
    n = len(time)
    accepted, fresh, life = np.zeros(n, np.bool_), np.zeros(n, np.bool_), np.zeros(n, np.int64)
    suspect = np.empty(n, np.bool_)
    for key in range(len(offsets) - 1):
        first, last = offsets[key], offsets[key + 1]
        behind = 0
        for place in range(first, last):
            if new[place]:
                accepted[place] = True
                behind += 1 if time[place] < watermark[place] else 0
        if behind == 0:
            continue
        for place in range(first, last):
            suspect[place] = new[place] and time[place] < watermark[place]
            accepted[place] = new[place] and not suspect[place]
        suspects = suspects_of(first, last, suspect, moment, False)
        lives, born_with, born_at = 0, np.empty(behind, np.int64), np.empty(behind, np.int64)
        for place in suspects:
            met = watermark[place]
            other = bisect_left(time, met, first, last) - 1
            # Tuples applied before the key's state last expired do not count.
            while other >= first:
                known = (accepted[other] or applied[other]) and moment[other] < moment[place]
                if known and (lives == 0 or moment[other] >= born_with[lives - 1] or time[other] >= born_at[lives - 1]):
                    break
                other -= 1
            if other < first:
                accepted[place] = True
            elif settings[IDLE] < AFTER and met - time[other] > settings[IDLE]:
                accepted[place] = fresh[place] = True
                born_with[lives], born_at[lives] = moment[place], met
                lives += 1
            else:
                accepted[place] = place > other and time[place] >= _last_tick(settings, listed, time[other], met)
        for place in range(first, last):
            for born in range(lives):
                if moment[place] >= born_with[born] or time[place] >= born_at[born]:
                    life[place] += 1
    return accepted, fresh, life


@inner
def _last_tick(settings: Ints, listed: Ints, youngest: int, watermark: int) -> Any:
    """The last tick after ``youngest``, the time of the window's youngest tuple, that has fired by ``watermark``; else ``BEFORE``."""
    if not settings[TICKS]:
        return BEFORE
    through = watermark
    if not settings[EMPTY]:
        if settings[TRIGGER] == NONE:
            through = min(through, tick_after(settings, listed, youngest))
        elif settings[AGE] < AFTER:
            through = min(through, youngest + settings[AGE])
    tick = tick_until(settings, listed, through)
    return tick if tick > youngest else BEFORE


#: Elements of a cursor: first tuple of the window, the tuple after its last one, number of tuples in the window.
HEAD, TAIL, HELD = 0, 1, 2


class KeyWindow(NamedTuple):
    """One key's window while its tuples are applied."""

    key: int
    #: State of the key, as in :class:`KeyStates`, and its cursor; shapes (8,) and (3,).
    state: Ints
    cursor: Ints
    #: Columns of all tuples, as in :class:`Tuples` and :class:`KeyStates`.
    weight: Ints
    time: Ints
    alive: Bools


@inlined
def _exceeds(rules: Rules, which: int, values: Values, place: int, base: float, base_int: int) -> Any:
    """Whether the value at ``place`` exceeds the base by more than the delta; integers are compared without rounding."""
    if not rules.wholes[which]:
        return values.value[place] - base > rules.deltas[which]
    # A difference may exceed int64, whose overflow compiled code takes to be impossible.
    whole = values.whole[place]
    return whole > base_int and np.uint64(whole) - np.uint64(base_int) > rules.floors[which]


@inner
def _forget(rules: Rules, window: KeyWindow, noted: TriggerLog) -> None:
    state, cursor = window.state, window.cursor
    for place in range(cursor[HEAD], cursor[TAIL]):
        if window.alive[place]:
            _remove(window, place, noted)
    cursor[HEAD] = cursor[TAIL]
    state[LAST], state[TICKED], state[TICK] = BEFORE, BEFORE, AFTER
    state[FIRED] = state[INSERTED] = state[HAS_BASE] = state[BASE] = 0
    # As in the SPL runtime, a time window counts as full from the start.
    state[FULL] = 1 if rules.settings[EVICT] == TIME else 0


@inlined
def _remove(window: KeyWindow, place: int, noted: TriggerLog) -> None:
    """Remove a tuple at any position of the window, and record it."""
    window.alive[place] = False
    window.cursor[HELD] -= window.weight[place]
    if noted.write:
        noted.removed[noted.counts[REMOVED]] = place
    noted.counts[REMOVED] += 1


@inlined
def _drop_until(window: KeyWindow, head: int) -> None:
    cursor, alive = window.cursor, window.alive
    for place in range(cursor[HEAD], head):
        if alive[place]:
            alive[place] = False
            cursor[HELD] -= window.weight[place]
    cursor[HEAD] = head


@inlined
def _expire(age: int, window: KeyWindow, at: int) -> None:
    """Evict the tuples that are older than ``age`` at ``at``; ``AFTER`` is no age limit."""
    if age < AFTER:
        cursor, time = window.cursor, window.time
        head = cursor[HEAD]
        while head < cursor[TAIL] and at - time[head] > age:
            head += 1
        _drop_until(window, head)


@inlined
def _fire(partial: int, window: KeyWindow, at: int, noted: TriggerLog) -> None:
    """Record a trigger at ``at`` if the window is full, or if triggers of ``partial`` windows count."""
    state, cursor, counts, out = window.state, window.cursor, noted.counts, noted.out
    if partial or state[FULL]:
        row = counts[NOTED]
        if noted.write:
            out[0, row], out[1, row], out[2, row], out[3, row] = window.key, BEFORE, at, state[FIRED]
            if cursor[HELD] > 0:
                out[1, row] = window.time[cursor[HEAD]]
            out[4, row], out[5, row] = cursor[HEAD], cursor[TAIL]
            out[6, row] = counts[REMOVED]
        counts[NOTED] += 1
    state[FIRED] += 1


@inner
def _fire_ticks(settings: Ints, listed: Ints, window: KeyWindow, through: int, noted: TriggerLog) -> None:
    state, cursor, counts = window.state, window.cursor, noted.counts
    if settings[TICKS] == 1 and state[TICK] <= through:
        last = through
        if not settings[EMPTY]:
            if settings[TRIGGER] == NONE or cursor[HELD] == 0:
                last = min(last, state[TICK])
            elif settings[AGE] < AFTER:
                # The youngest tuple of the window is the last one applied.
                last = min(last, state[LAST] + settings[AGE])
        counts[DUE] += max(0, (last - state[TICK]) // settings[PERIOD] + 1)
        if counts[DUE] > MAX_ROWS_OF_KEY:
            return
    while state[TICK] <= through and state[TICK] < AFTER:
        tick = state[TICK]
        _expire(settings[AGE], window, tick)
        if cursor[HELD] > 0 or settings[EMPTY]:
            state[TICKED] = tick
            _fire(settings[PARTIAL], window, tick, noted)
        if settings[TRIGGER] == NONE:
            _drop_until(window, cursor[TAIL])
        # An empty window has no tick until the next tuple arrives.
        state[TICK] = tick_after(settings, listed, tick) if cursor[HELD] > 0 or settings[EMPTY] else AFTER


@inlined
def _advance(rules: Rules, window: KeyWindow, at: int, fresh: bool, noted: TriggerLog) -> None:
    """Fire the ticks up to ``at``, and reset the key if it has been idle for too long by then (or the tuple is ``fresh``)."""
    last, idle = window.state[LAST], rules.settings[IDLE]
    forgotten = last > BEFORE and (fresh or (idle < AFTER and at - last > idle))
    through = last + idle if forgotten else at
    if window.state[TICK] <= through:
        _fire_ticks(rules.settings, rules.listed, window, through, noted)
    if forgotten:
        _forget(rules, window, noted)


@njit
def apply_policies(rules: Rules, tuples: Tuples, keys: KeyStates, progress: InputProgress, noted: TriggerLog) -> None:
    """Apply each key's tuples in order, then advance to the watermark.

    A tuple costs O(log n) in a window of n tuples if a delta evicts, otherwise amortised O(1), besides its ticks. Updates ``keys`` in
    place, and records triggers and removed tuples in ``noted``. Stops if a key has too many due ticks.
    """
    time, fresh, values, counts = tuples.time, tuples.fresh, tuples.evict, noted.counts
    evicts_least = rules.settings[EVICT] == DELTA and rules.settings[TRIGGER] != NONE
    for key in range(len(tuples.offsets) - 1):
        first = tuples.offsets[key]
        stop = first + tuples.held[key]
        cursor = np.array([first, stop, tuples.weight[first:stop].sum()])
        window = KeyWindow(key, keys.states[key], cursor, tuples.weight, time, keys.alive)
        keys.alive[first:stop] = True
        counts[DUE] = 0
        least = _by_value(values, first, stop if evicts_least else first)
        for place in range(stop, tuples.offsets[key + 1]):
            _advance(rules, window, time[place], fresh[place], noted)
            if evicts_least and cursor[HELD] == 0:
                least.clear()
            _before_insertion(rules, tuples, window, keys.bases, place, noted)
            if evicts_least and values.known[place]:
                while len(least) > 0 and _exceeds(rules, EVICTION, values, place, least[0][0], least[0][1]):
                    _remove(window, heapq.heappop(least)[2], noted)
                    window.state[FULL] = 1
                heapq.heappush(least, (values.value[place], values.whole[place], place))
            _insert(rules, tuples, window, place, noted)
        _finish(rules, window, progress, noted)
        if counts[DUE] > MAX_ROWS_OF_KEY:
            return


@helper
def _by_value(values: Values, first: int, stop: int) -> Any:
    """A heap of the tuples first:stop by value: a delta evicts the least values first, so the others need no comparison."""
    least = [(values.value[place], values.whole[place], place) for place in range(first, stop) if values.known[place]]
    heapq.heapify(least)
    return least


@inlined
def _before_insertion(rules: Rules, tuples: Tuples, window: KeyWindow, bases: Floats, place: int, noted: TriggerLog) -> None:
    """Apply the effects of a new tuple before its insertion, except the eviction of least values."""
    settings, state, cursor, at = rules.settings, window.state, window.cursor, tuples.time[place]
    if settings[TICKS] and state[TICK] == AFTER:
        state[TICK] = tick_after(settings, rules.listed, at)
    if settings[TRIGGER] == NONE:
        evict, head = tuples.evict, cursor[HEAD]
        if (
            settings[EVICT] == DELTA
            and cursor[HELD] > 0
            and evict.known[place]
            and evict.known[head]
            and _exceeds(rules, EVICTION, evict, place, evict.value[head], evict.whole[head])
        ):
            _fire(settings[PARTIAL], window, at, noted)
            _drop_until(window, cursor[TAIL])
        return
    _expire(settings[AGE], window, at)
    trigger, key = tuples.trigger, window.key
    if settings[TRIGGER] == DELTA and trigger.known[place]:
        if state[HAS_BASE] and _exceeds(rules, TRIGGERING, trigger, place, bases[key], state[BASE]):
            _fire(settings[PARTIAL], window, at, noted)
            state[HAS_BASE] = 0
        if not state[HAS_BASE]:
            state[HAS_BASE], state[BASE], bases[key] = 1, trigger.whole[place], trigger.value[place]
    if settings[EVICT] == COUNT and cursor[HELD] == settings[EVICT_COUNT]:
        _drop_until(window, cursor[HEAD] + 1)


@inlined
def _insert(rules: Rules, tuples: Tuples, window: KeyWindow, place: int, noted: TriggerLog) -> None:
    """Insert a tuple, and fire if it completes a tumbling window or a count trigger is due."""
    settings, state, cursor, alive = rules.settings, window.state, window.cursor, window.alive
    at = tuples.time[place]
    alive[place] = True
    cursor[TAIL], cursor[HELD] = place + 1, cursor[HELD] + 1
    while not alive[cursor[HEAD]]:
        cursor[HEAD] += 1
    state[INSERTED] += 1
    filled = settings[EVICT] == COUNT and cursor[HELD] == settings[EVICT_COUNT]
    if filled:
        state[FULL] = 1
    flush = settings[TRIGGER] == NONE and (filled or (settings[EVICT] == PUNCTUATION and tuples.punctuation[place]))
    if flush or (settings[TRIGGER] == COUNT and state[INSERTED] % settings[TRIGGER_COUNT] == 0):
        _fire(settings[PARTIAL], window, at, noted)
    if flush:
        _drop_until(window, cursor[TAIL])
    state[LAST] = at


@inner
def _finish(rules: Rules, window: KeyWindow, progress: InputProgress, noted: TriggerLog) -> None:
    """Fire the ticks through the watermark or, if the input has ended, those after its last event."""
    settings, state, cursor = rules.settings, window.state, window.cursor
    if not progress.ended:
        if progress.watermark > BEFORE:
            _advance(rules, window, progress.watermark, False, noted)
    elif settings[TICKS] and state[LAST] > BEFORE:
        _advance(rules, window, tick_after(settings, rules.listed, progress.greatest), False, noted)
        while state[TICK] < AFTER and cursor[HELD] > 0 and settings[AGE] < AFTER and noted.counts[DUE] <= MAX_ROWS_OF_KEY:
            _expire(settings[AGE], window, state[TICK])
            if cursor[HELD] > 0:
                _advance(rules, window, state[TICK], False, noted)
