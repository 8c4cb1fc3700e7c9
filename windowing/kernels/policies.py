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

from windowmill.windowing.bounds import MAX_ROWS_OF_KEY
from windowmill.windowing.kernels.combine import Bools, Floats, Ints
from windowmill.windowing.kernels.compilation import helper, inlined, inner, njit
from windowmill.windowing.kernels.policy_arrays import (
    AGE,
    BASE,
    COUNT,
    DELTA,
    DUE,
    EMPTY,
    EVICT,
    EVICT_COUNT,
    EVICTION,
    FIRED,
    FULL,
    HAS_BASE,
    IDLE,
    INSERTED,
    KNOWN,
    LAST,
    NONE,
    NOTED,
    PARTIAL,
    PERIOD,
    PUNCTUATION,
    REMOVED,
    TICK,
    TICKED,
    TICKS,
    TIME,
    TRIGGER,
    TRIGGER_COUNT,
    TRIGGERING,
    InputProgress,
    KeyStates,
    Rules,
    TriggerLog,
    Tuples,
    Values,
    tick_after,
)
from windowmill.windowing.watermark import AFTER, BEFORE

#: Elements of a cursor: first tuple of the window, the tuple after its last one, number of tuples in the window.
HEAD, TAIL, HELD = 0, 1, 2


class KeyWindow(NamedTuple):
    """One key's window while its tuples are applied.

    Attributes
    ----------
    state, cursor
        State of the key, as in :class:`KeyStates`, and its cursor; shapes (8,) and (3,).
    weight, time, alive
        Columns of all tuples, as in :class:`Tuples` and :class:`KeyStates`.
    """

    key: int
    state: Ints
    cursor: Ints
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
            out[6, row], out[7, row] = counts[KNOWN], counts[REMOVED]
        counts[KNOWN] = counts[REMOVED]
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
        counts[KNOWN], counts[DUE] = counts[REMOVED], 0
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
