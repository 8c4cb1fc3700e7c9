"""Finds late tuples, in order of arrival: those that precede a tuple that their key has applied, or a tick that has fired."""

from __future__ import annotations

from typing import Any

import numpy as np

from windowmill.windowing.kernels.arrays import bisect_left
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.compilation import inner, njit
from windowmill.windowing.kernels.policy_arrays import AGE, EMPTY, IDLE, NONE, TICKS, TRIGGER, tick_after, tick_until
from windowmill.windowing.kernels.rows import suspects_of
from windowmill.windowing.watermark import AFTER, BEFORE


@njit
def judge_tuples(settings: Ints, listed: Ints, offsets: Ints, time: Ints, moment: Ints, watermark: Ints, new: Bools, applied: Bools) -> Any:
    """Accept or refuse new tuples by what their key had applied when they arrived; O(n), plus sorting and searching for late ones.

    Parameters
    ----------
    settings, listed
        As in :class:`~windowmill.windowing.kernels.policy_arrays.Rules`.
    moment
        Moment of arrival, as in :class:`~windowmill.windowing.kernels.rows.Rows`.
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
