"""Eviction and trigger policies, key by key: tuples applied one by one, in the order of the open SPL runtime.

On a new tuple: 1. due ticks fire; 2. a delta trigger fires, before the tuple evicts or enters; 3. eviction; 4. insertion; 5. a count
trigger fires with the tuple inside. What a trigger sees is noted as a range of the key's sequence of tuples; where a delta evicts from
the middle, as what has been removed from it.

References
----------
IBMStreams/OSStreams, src/cpp/SPL/Runtime/Window (the rules).
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from windowmill.windowing.bounds import MOST_ROWS_OF_KEY
from windowmill.windowing.kernels.combine import Bools, Floats, Ints, inner, njit

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
#: Cursor: first tuple of the window, the tuple after its last, how many it holds.
HEAD, TAIL, HELD = 0, 1, 2


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


@inner
def _exceeds(whole: bool, value: Floats, value_int: Ints, place: int, base: float, base_int: int, by: float, by_int: int) -> Any:
    """Whether the value at ``place`` is more than the delta past the base; whole numbers are compared without rounding."""
    if not whole:
        return value[place] - base > by
    v = value_int[place]
    if by_int >= 0:
        return v > base_int and (v - base_int < 0 or v - base_int > by_int)
    return v >= base_int or (base_int - v >= 0 and base_int - v < -by_int)


@inner
def _forget(settings: Ints, state: Ints, cursor: Ints, alive: Bools, write: bool, counts: Ints, removed: Ints) -> None:
    for place in range(cursor[HEAD], cursor[TAIL]):
        if alive[place]:
            _remove(cursor, alive, place, write, counts, removed)
    cursor[HEAD] = cursor[TAIL]
    state[LAST], state[TICKED], state[TICK] = BEFORE, BEFORE, AFTER
    state[FIRED] = state[INSERTED] = state[HAS_BASE] = state[BASE] = 0
    # A time window counts as full from the start.
    state[FULL] = 1 if settings[EVICT] == TIME else 0


@inner
def _remove(cursor: Ints, alive: Bools, place: int, write: bool, counts: Ints, removed: Ints) -> None:
    """Take a tuple out of wherever it stands, and note it."""
    alive[place] = False
    cursor[HELD] -= 1
    if write:
        removed[counts[REMOVED]] = place
    counts[REMOVED] += 1


@inner
def _drop_until(cursor: Ints, alive: Bools, head: int) -> None:
    for place in range(cursor[HEAD], head):
        if alive[place]:
            alive[place] = False
            cursor[HELD] -= 1
    cursor[HEAD] = head


@inner
def _expire(settings: Ints, cursor: Ints, time: Ints, alive: Bools, at: int) -> None:
    if settings[AGE] < AFTER:
        head = cursor[HEAD]
        while head < cursor[TAIL] and at - time[head] > settings[AGE]:
            head += 1
        _drop_until(cursor, alive, head)


@inner
def _fire(
    settings: Ints,
    state: Ints,
    cursor: Ints,
    time: Ints,
    key: int,
    at: int,
    write: bool,
    counts: Ints,
    out: Ints,
) -> None:
    """Note a trigger: key, start, end, number, lo and hi, and from where to where tuples have been removed since the last."""
    if settings[PARTIAL] or state[FULL]:
        row = counts[NOTED]
        if write:
            out[0, row], out[1, row], out[2, row], out[3, row] = key, BEFORE, at, state[FIRED]
            if cursor[HELD] > 0:
                out[1, row] = time[cursor[HEAD]]
            out[4, row], out[5, row] = cursor[HEAD], cursor[TAIL]
            out[6, row], out[7, row] = counts[KNOWN], counts[REMOVED]
        counts[KNOWN] = counts[REMOVED]
        counts[NOTED] += 1
    state[FIRED] += 1


@inner
def _fire_ticks(
    settings: Ints,
    listed: Ints,
    state: Ints,
    cursor: Ints,
    time: Ints,
    alive: Bools,
    key: int,
    through: int,
    write: bool,
    counts: Ints,
    out: Ints,
) -> None:
    if settings[TICKS] == 1 and state[TICK] <= through:
        last = through
        if not settings[EMPTY]:
            if settings[TRIGGER] == NONE or cursor[HELD] == 0:
                last = min(last, state[TICK])
            elif settings[AGE] < AFTER:
                last = min(last, time[cursor[TAIL] - 1] + settings[AGE])
        counts[DUE] += max(0, (last - state[TICK]) // settings[PERIOD] + 1)
        if counts[DUE] > MOST_ROWS_OF_KEY:
            return
    while state[TICK] <= through and state[TICK] < AFTER:
        tick = state[TICK]
        _expire(settings, cursor, time, alive, tick)
        if cursor[HELD] > 0 or settings[EMPTY]:
            state[TICKED] = tick
            _fire(settings, state, cursor, time, key, tick, write, counts, out)
        if settings[TRIGGER] == NONE:
            _drop_until(cursor, alive, cursor[TAIL])
        # An empty window needs no tick before the next tuple comes.
        state[TICK] = tick_after(settings, listed, tick) if cursor[HELD] > 0 or settings[EMPTY] else AFTER


@inner
def _advance(
    settings: Ints,
    listed: Ints,
    state: Ints,
    cursor: Ints,
    time: Ints,
    alive: Bools,
    key: int,
    at: int,
    fresh: bool,
    write: bool,
    counts: Ints,
    out: Ints,
    removed: Ints,
) -> None:
    """Fire the ticks up to ``at``, and forget the key if it has been idle for too long by then (or is said to be ``fresh``)."""
    known = state[LAST] > BEFORE
    if known and (fresh or (settings[IDLE] < AFTER and at - state[LAST] > settings[IDLE])):
        through = state[LAST] + settings[IDLE]
        _fire_ticks(settings, listed, state, cursor, time, alive, key, through, write, counts, out)
        _forget(settings, state, cursor, alive, write, counts, removed)
    else:
        _fire_ticks(settings, listed, state, cursor, time, alive, key, at, write, counts, out)


@njit
def apply_policies(  # noqa: PLR0915 - the order of a tuple's five steps is the point, and stands here at once
    settings: Ints,
    listed: Ints,
    deltas: Floats,
    whole_deltas: Ints,
    wholes: Bools,
    offsets: Ints,
    held: Ints,
    time: Ints,
    fresh: Bools,
    punctuation: Bools,
    evict_value: Floats,
    evict_int: Ints,
    evict_known: Bools,
    trigger_value: Floats,
    trigger_int: Ints,
    trigger_known: Bools,
    states: Ints,
    bases: Floats,
    alive: Bools,
    watermark: int,
    ended: bool,
    greatest: int,
    write: bool,
    counts: Ints,
    out: Ints,
    removed: Ints,
) -> None:
    """Apply each key's tuples, then advance to ``watermark``; ``states``, ``bases`` and ``alive`` are left as they come out.

    Parameters
    ----------
    settings, listed
        As above; the instants of listed ticks.
    deltas, whole_deltas, wholes
        Of the eviction and of the trigger: the delta, the delta rounded down, whether the column holds whole numbers.
    offsets, held
        Key k's tuples are ``offsets[k]:offsets[k + 1]``, of which the first ``held[k]`` are in its window.
    time, fresh, punctuation, evict_*, trigger_*
        Of each tuple; ``fresh`` ones find their key forgotten, values not ``known`` are null or NaN.
    greatest
        The greatest event time of the whole input, where ticks over windows that never empty stop once the input has ``ended``.
    counts, out, removed
        As above; triggers and removed tuples, written only where ``write``.
    """
    by_delta = settings[EVICT] == DELTA and settings[TRIGGER] != NONE
    for key in range(len(offsets) - 1):
        state = states[key]
        first = offsets[key]
        cursor = np.array([first, first + held[key], held[key]])
        alive[first : first + held[key]] = True
        counts[KNOWN], counts[DUE] = counts[REMOVED], 0
        # A delta evicts the least values first, so those that stay are never looked at.
        least = [
            (evict_value[place], evict_int[place], place) for place in range(first, first + held[key]) if by_delta and evict_known[place]
        ]
        heapq.heapify(least)
        for place in range(first + held[key], offsets[key + 1]):
            at = time[place]
            _advance(settings, listed, state, cursor, time, alive, key, at, fresh[place], write, counts, out, removed)
            if cursor[HELD] == 0:
                least.clear()
            if settings[TICKS] and state[TICK] == AFTER:
                state[TICK] = tick_after(settings, listed, at)
            flush = False
            if settings[TRIGGER] == NONE:
                head = cursor[HEAD]
                if settings[EVICT] == DELTA and cursor[HELD] > 0 and evict_known[place] and evict_known[head]:
                    flush = _exceeds(
                        wholes[0], evict_value, evict_int, place, evict_value[head], evict_int[head], deltas[0], whole_deltas[0]
                    )
                if flush:
                    _fire(settings, state, cursor, time, key, at, write, counts, out)
                    _drop_until(cursor, alive, cursor[TAIL])
            else:
                _expire(settings, cursor, time, alive, at)
                if settings[TRIGGER] == DELTA and trigger_known[place]:
                    if state[HAS_BASE] and _exceeds(
                        wholes[1], trigger_value, trigger_int, place, bases[key], state[BASE], deltas[1], whole_deltas[1]
                    ):
                        _fire(settings, state, cursor, time, key, at, write, counts, out)
                        state[HAS_BASE] = 0
                    if not state[HAS_BASE]:
                        state[HAS_BASE], state[BASE], bases[key] = 1, trigger_int[place], trigger_value[place]
                if by_delta and evict_known[place]:
                    while len(least) > 0 and _exceeds(
                        wholes[0], evict_value, evict_int, place, least[0][0], least[0][1], deltas[0], whole_deltas[0]
                    ):
                        _remove(cursor, alive, heapq.heappop(least)[2], write, counts, removed)
                        state[FULL] = 1
                    heapq.heappush(least, (evict_value[place], evict_int[place], place))
                elif settings[EVICT] == COUNT and cursor[HELD] == settings[EVICT_COUNT]:
                    _drop_until(cursor, alive, cursor[HEAD] + 1)
            alive[place] = True
            cursor[TAIL], cursor[HELD] = place + 1, cursor[HELD] + 1
            while not alive[cursor[HEAD]]:
                cursor[HEAD] += 1
            state[INSERTED] += 1
            if settings[EVICT] == COUNT and cursor[HELD] == settings[EVICT_COUNT]:
                state[FULL] = 1
            if settings[TRIGGER] == NONE:
                flush = (settings[EVICT] == COUNT and cursor[HELD] == settings[EVICT_COUNT]) or (
                    settings[EVICT] == PUNCTUATION and punctuation[place]
                )
            else:
                flush = False
            if flush or (settings[TRIGGER] == COUNT and state[INSERTED] % settings[TRIGGER_COUNT] == 0):
                _fire(settings, state, cursor, time, key, at, write, counts, out)
            if flush:
                _drop_until(cursor, alive, cursor[TAIL])
            state[LAST] = at
        if not ended:
            if watermark > BEFORE:
                _advance(settings, listed, state, cursor, time, alive, key, watermark, False, write, counts, out, removed)
        elif settings[TICKS] and state[LAST] > BEFORE:
            last_tick = tick_after(settings, listed, greatest)
            _advance(settings, listed, state, cursor, time, alive, key, last_tick, False, write, counts, out, removed)
            while state[TICK] < AFTER and cursor[HELD] > 0 and settings[AGE] < AFTER and counts[DUE] <= MOST_ROWS_OF_KEY:
                _expire(settings, cursor, time, alive, state[TICK])
                if cursor[HELD] > 0:
                    _advance(settings, listed, state, cursor, time, alive, key, state[TICK], False, write, counts, out, removed)
        if counts[DUE] > MOST_ROWS_OF_KEY:
            return


@njit
def judge_tuples(
    settings: Ints,
    listed: Ints,
    offsets: Ints,
    time: Ints,
    number: Ints,
    watermark: Ints,
    new: Bools,
    applied: Bools,
) -> Any:
    """Which new tuples come after what their key had applied when they arrived.

    Parameters
    ----------
    applied
        Older tuples that the key knows: in the window, waiting, or the last one applied.

    Returns
    -------
    tuple
        Whether each tuple is accepted; whether it finds its key forgotten; how often its key had been forgotten before it is applied.
    """
    accepted, fresh, life = np.zeros(len(time), np.bool_), np.zeros(len(time), np.bool_), np.zeros(len(time), np.int64)
    for key in range(len(offsets) - 1):
        first, last = offsets[key], offsets[key + 1]
        behind = 0
        for place in range(first, last):
            if new[place]:
                accepted[place] = True
                behind += 1 if time[place] < watermark[place] else 0
        if behind == 0:
            continue
        suspects, arrival = np.empty(behind, np.int64), np.empty(behind, np.int64)
        behind = 0
        for place in range(first, last):
            if new[place] and time[place] < watermark[place]:
                suspects[behind], arrival[behind] = place, number[place]
                accepted[place] = False
                behind += 1
        lives, born_number, born_at = 0, np.empty(behind, np.int64), np.empty(behind, np.int64)
        for index in np.argsort(arrival):
            place = suspects[index]
            met = watermark[place]
            youngest = -1
            other = first + np.searchsorted(time[first:last], met, side="left") - 1
            while other >= first:
                known = (accepted[other] or applied[other]) and number[other] < number[place]
                if known and (lives == 0 or number[other] >= born_number[lives - 1] or time[other] >= born_at[lives - 1]):
                    youngest = other
                    break
                other -= 1
            if youngest < 0:
                accepted[place] = True
            elif settings[IDLE] < AFTER and met - time[youngest] > settings[IDLE]:
                accepted[place] = fresh[place] = True
                born_number[lives], born_at[lives] = number[place], met
                lives += 1
            else:
                accepted[place] = place > youngest and time[place] >= _last_tick(settings, listed, time[youngest], met)
        for place in range(first, last):
            for born in range(lives):
                if number[place] >= born_number[born] or time[place] >= born_at[born]:
                    life[place] += 1
    return accepted, fresh, life


@inner
def _last_tick(settings: Ints, listed: Ints, youngest: int, watermark: int) -> Any:
    """The last tick that has fired by ``watermark`` over a window whose youngest tuple is of time ``youngest``; none before it matters."""
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
