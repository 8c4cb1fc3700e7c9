"""Sliding and tumbling windows with eviction and trigger policies, in the order of the SPL runtime.

Tuples of a key wait until the watermark has passed them, and are then applied in order of time, tie-break and arrival. So the order does
not depend on batches. A tuple is late if it precedes one that its key has already applied, or a tick that has fired.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windowmill.windowing.kernels import policy_arrays as kernel
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.late_tuples import judge_tuples
from windowmill.windowing.kernels.rings import PENDING, ring_changes
from windowmill.windowing.slicing.leaves import BatchEffect, Engine, Leaves, Ring, Windows, earliest, runs
from windowmill.windowing.slicing.policy_settings import STATE, PolicySettings, holds_integers, punctuation_of, values_of
from windowmill.windowing.watermark import BEFORE, Clock

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline
    from windowmill.windowing.windows.base import Window
    from windowmill.windowing.windows.rules import PolicyRules

_NONE = np.empty(0, np.int64)
#: Further scalars of a key: number of its last tuple, of tuples applied so far, end of its two stacks' front, slots of its ring.
_KEPT = ("last_number", "applied", "middle", "capacity")


class PolicySlicer:
    """One window with policies, over all keys.

    Its state is one row of scalars per key, and the numbers of the rows that are in a window or wait.
    """

    def __init__(self, window: Window, rules: PolicyRules, pipeline: Pipeline) -> None:
        self._settings = PolicySettings(window, rules, pipeline)
        self.engine: Engine = "flatfat" if self._settings.from_anywhere else "two_stacks"
        self._states, self._bases = self._settings.fresh(0), np.empty(0, np.float64)
        self._last_number, self._applied, self._middle, self._capacity = _NONE, _NONE, _NONE, _NONE
        self._held, self._waiting, self._slots = _NONE, _NONE, _NONE

    def apply(self, leaves: Leaves, clock: Clock) -> BatchEffect:
        self._grow(leaves.n_keys)
        held, waiting, last = (leaves.among(numbers) for numbers in (self._held, self._waiting, self._known_last))
        listed = self._settings.listed(leaves.time, self._states[:, kernel.TICK], clock)
        moments, known = clock.moments(leaves.number), held | waiting | last
        accepted, fresh, life = judge_tuples(
            self._settings.array, listed, leaves.offsets, leaves.time, moments, leaves.watermark, leaves.new, known
        )
        ready = (waiting | accepted) & (leaves.time < clock.watermark) if not clock.ended else waiting | accepted
        sequence = np.flatnonzero(held | ready).astype(np.int64)
        if fresh.any():
            sequence = sequence[np.lexsort((life[sequence] * ready[sequence], leaves.key[sequence]))]
        offsets = np.searchsorted(leaves.key[sequence], np.arange(leaves.n_keys + 1)).astype(np.int64)
        n_held = np.bincount(leaves.key[held], minlength=leaves.n_keys).astype(np.int64)
        windows, alive = self._run(leaves, clock, listed, sequence, offsets, n_held, fresh)
        self._remember(leaves, sequence, offsets, n_held, alive, waiting | accepted, ready)
        kept = (waiting | accepted) & ~ready
        kept[sequence[alive]] = True
        kept[leaves.find(self._known_last)] = True
        return BatchEffect(accepted, leaves.new & ~accepted, kept, [windows])

    @property
    def _known_last(self) -> Ints:
        return self._last_number[self._last_number >= 0]

    def _run(
        self, leaves: Leaves, clock: Clock, listed: Ints, sequence: Ints, offsets: Ints, n_held: Ints, fresh: Bools
    ) -> tuple[Windows, Bools]:
        settings, table, alive = self._settings, leaves.table, np.zeros(len(sequence), np.bool_)
        evict, trigger = settings.evict.delta, settings.trigger.delta if settings.trigger is not None else None
        tuples = kernel.Tuples(
            offsets,
            n_held,
            np.ones(len(sequence), np.int64),
            leaves.time[sequence],
            fresh[sequence],
            punctuation_of(settings.evict, table, sequence),
            values_of(evict, table, sequence),
            values_of(trigger, table, sequence),
        )
        whole = holds_integers(evict, table), holds_integers(trigger, table)
        fired = settings.run(listed, tuples, kernel.KeyStates(self._states, self._bases, alive), clock, whole)
        bounds = runs(fired.key)
        keys = fired.key[bounds[:-1]]
        if self._settings.from_anywhere:
            slots_of = np.full(len(leaves), PENDING, np.int64)
            slots_of[leaves.find(self._held)] = self._slots
            slots, gone = slots_of[sequence], np.stack((fired.gone_from, fired.gone_to), axis=1)
            *columns, places = ring_changes(bounds, keys, offsets[keys], fired.hi, gone, fired.removed, slots, self._capacity)
            self._slots = slots[alive]
            capacity, front, span, empty, change_offsets, changed = columns
            ring = Ring(capacity, front, span, empty, change_offsets, changed, np.where(places < 0, -1, sequence[places]))
            return Windows.of(fired.key, fired.start, fired.end, trigger=fired.number, ring=ring), alive
        self._begins = offsets[:-1] - (self._applied - n_held)
        middles = np.where(self._middle[keys] < 0, -1, self._middle[keys] + self._begins[keys])
        ranges = sequence, fired.lo, fired.hi
        return Windows.of(fired.key, fired.start, fired.end, trigger=fired.number, ranges=ranges, middles=middles), alive

    def _remember(self, leaves: Leaves, sequence: Ints, offsets: Ints, n_held: Ints, alive: Bools, known: Bools, ready: Bools) -> None:
        self._held, self._waiting = leaves.number[sequence[alive]], leaves.number[known & ~ready]
        fed = np.diff(offsets) - n_held
        self._applied += fed
        moved = np.flatnonzero(fed)
        self._last_number[moved] = leaves.number[sequence[offsets[moved + 1] - 1]]
        self._last_number[self._states[:, kernel.LAST] == BEFORE] = -1

    def due(self, leaves: Leaves, applied: BatchEffect, clock: Clock) -> Ints:  # noqa: ARG002 - a window stays until a row or a tick comes
        waits = earliest(leaves, leaves.among(self._waiting), leaves.time)
        return np.minimum(waits, self._states[:, kernel.TICK])

    def flipped(self, windows: Windows, flips: Ints) -> None:
        made = flips >= 0
        if made.any():
            keys = windows.key[windows.group_offsets[:-1]][made]
            self._middle[keys] = windows.hi[flips[made]] - self._begins[keys]

    def _grow(self, n_keys: int) -> None:
        missing = n_keys - len(self._bases)
        if missing:
            self._states = np.concatenate((self._states, self._settings.fresh(missing)))
            self._bases = np.append(self._bases, np.zeros(missing))
            self._last_number, self._applied, self._middle, self._capacity = (
                np.append(column, np.full(missing, fill, np.int64))
                for column, fill in ((self._last_number, -1), (self._applied, 0), (self._middle, -1), (self._capacity, 0))
            )

    def snapshot(self) -> dict[str, pa.Table]:
        states = {name: np.ascontiguousarray(self._states[:, column]) for column, name in enumerate(STATE)}
        kept = {name: getattr(self, f"_{name}") for name in _KEPT}
        held = {"number": self._held} | ({"slot": self._slots} if self._settings.from_anywhere else {})
        rows = {"held": pa.table(held), "waiting": pa.table({"number": self._waiting})}
        return {"keys": pa.table(states | kept | {"float_base": self._bases}), **rows}

    def restore(self, tables: dict[str, pa.Table]) -> None:
        keys = tables["keys"]
        self._states = np.stack([keys.column(name).to_numpy() for name in STATE], axis=1)
        self._last_number, self._applied, self._middle, self._capacity = (keys.column(name).to_numpy().copy() for name in _KEPT)
        self._bases = keys.column("float_base").to_numpy().copy()
        self._held, self._waiting = (tables[name].column("number").to_numpy() for name in ("held", "waiting"))
        if self._settings.from_anywhere:
            self._slots = tables["held"].column("slot").to_numpy()
