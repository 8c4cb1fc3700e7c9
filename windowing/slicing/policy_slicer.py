"""Sliding and tumbling windows with eviction and trigger policies, in the order of the SPL runtime.

Tuples of a key wait until the watermark has passed them, and are then applied in order of time, tie-break and arrival. So the order does
not depend on batches. A tuple is late if it precedes one that its key has already applied, or a tick that has fired.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windowmill.windowing.bounds import check_key, check_share
from windowmill.windowing.durations import Duration
from windowmill.windowing.kernels import policy_rules as kernel
from windowmill.windowing.kernels.columns import float64_of, int64_of, valid_of
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.late_tuples import judge_tuples
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.kernels.policies import apply_policies
from windowmill.windowing.kernels.rings import PENDING, ring_changes
from windowmill.windowing.slicing.calendars import Steps, origin_of, zone_named
from windowmill.windowing.slicing.leaves import Applied, Leaves, Ring, Windows, earliest, runs
from windowmill.windowing.watermark import AFTER, BEFORE, Clock

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline
    from windowmill.windowing.windows.base import Window
    from windowmill.windowing.windows.policy_rules import Delta, PolicyRules

_NONE = np.empty(0, np.int64)
_STATE = ("last", "ticked", "tick", "fired", "inserted", "full", "has_base", "base")
_FRESH = {"last": BEFORE, "ticked": BEFORE, "tick": AFTER}
_KEPT = ("last_number", "applied", "middle", "capacity")
_KINDS = {"count": kernel.COUNT, "time": kernel.TIME, "delta": kernel.DELTA, "punctuation": kernel.PUNCTUATION}


class PolicySlicer:
    """One window with policies, over all keys.

    Its state is one row of scalars per key, and the numbers of the rows that are in a window or wait.
    """

    def __init__(self, window: Window, rules: PolicyRules, pipeline: Pipeline) -> None:
        self._window = window
        self._evict, self._trigger = rules.evict, rules.trigger
        period = self._trigger.time if self._trigger is not None else self._evict.time
        self._steps: Steps | None = None
        if period is not None:
            zone = zone_named(rules.timezone)
            self._steps = Steps(origin_of(rules.origin, period, zone, pipeline.time.unit is not None), period, zone)
        age = self._evict.time.elapsed() if self._evict.time is not None and self._trigger is not None else AFTER
        idle = rules.idle_after.elapsed() if rules.idle_after is not None else AFTER
        ticks = 0 if self._steps is None else 2 if self._steps.period is None else 1
        self._settings = np.array(
            [
                _KINDS[self._evict.kind],
                _KINDS[self._trigger.kind] if self._trigger is not None else kernel.NONE,
                self._evict.count or 0,
                age,
                (self._trigger.count or 0) if self._trigger is not None else 0,
                rules.partial,
                window.empty == "emit",
                idle,
                ticks,
                self._steps.origin if self._steps is not None else 0,
                (self._steps.period or 1) if self._steps is not None else 1,
            ],
            np.int64,
        )
        self._states, self._bases = np.empty((0, len(_STATE)), np.int64), np.empty(0, np.float64)
        self._last_number, self._applied, self._middle, self._capacity = _NONE, _NONE, _NONE, _NONE
        self._held, self._waiting, self._slots = _NONE, _NONE, _NONE
        self._from_anywhere = self._evict.delta is not None and self._trigger is not None

    def apply(self, leaves: Leaves, clock: Clock) -> Applied:
        self._grow(leaves.n_keys)
        held, waiting, last = (leaves.among(numbers) for numbers in (self._held, self._waiting, self._known_last))
        listed = self._listed(leaves, clock)
        accepted, fresh, life = judge_tuples(
            self._settings, listed, leaves.offsets, leaves.time, leaves.number, leaves.watermark, leaves.new, held | waiting | last
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
        return Applied(accepted, leaves.new & ~accepted, kept, [windows])

    @property
    def _known_last(self) -> Ints:
        return self._last_number[self._last_number >= 0]

    def _run(
        self, leaves: Leaves, clock: Clock, listed: Ints, sequence: Ints, offsets: Ints, n_held: Ints, fresh: Bools
    ) -> tuple[Windows, Bools]:
        evict, evict_by = _values(self._evict.delta, leaves.table, sequence)
        trigger, trigger_by = _values(self._trigger.delta if self._trigger is not None else None, leaves.table, sequence)
        punctuation = np.zeros(len(sequence), np.bool_)
        if self._evict.punctuation is not None:
            punctuation = int64_of(leaves.table.column(condition_column(self._evict.punctuation)).combine_chunks())[sequence] != 0
        deltas = np.array([evict_by[0], trigger_by[0]]), np.array([evict_by[1], trigger_by[1]]), np.array([evict_by[2], trigger_by[2]])
        rules = kernel.Rules(self._settings, listed, *deltas)
        tuples = kernel.Tuples(offsets, n_held, leaves.time[sequence], fresh[sequence], punctuation, evict, trigger)
        progress = kernel.Progress(clock.watermark, clock.ended, clock.seen)
        alive = np.zeros(len(sequence), np.bool_)
        counts = np.zeros(4, np.int64)
        if self._steps is None:
            # Without ticks, each tuple fires at most once.
            counts[:2] = len(sequence)
        else:
            tried = kernel.Keys(self._states.copy(), self._bases.copy(), alive.copy())
            apply_policies(rules, tuples, tried, progress, kernel.Noted(False, counts, np.empty((8, 0), np.int64), _NONE))
            check_key(self._window, int(counts[kernel.DUE]))
            check_share(self._window.name, int(counts[kernel.NOTED]))
        out, removed = np.empty((8, counts[0]), np.int64), np.empty(counts[1], np.int64)
        counts[:] = 0
        apply_policies(rules, tuples, kernel.Keys(self._states, self._bases, alive), progress, kernel.Noted(True, counts, out, removed))
        key, start, end, number, lo, hi, gone_from, gone_to = out[:, : counts[0]]
        bounds = runs(key)
        keys = key[bounds[:-1]]
        if self._from_anywhere:
            slots_of = np.full(len(leaves), PENDING, np.int64)
            slots_of[leaves.find(self._held)] = self._slots
            slots, gone = slots_of[sequence], np.stack((gone_from, gone_to), axis=1)
            *columns, places = ring_changes(bounds, keys, offsets[keys], hi, gone, removed, slots, self._capacity)
            self._slots = slots[alive]
            capacity, front, span, empty, change_offsets, changed = columns
            ring = Ring(capacity, front, span, empty, change_offsets, changed, np.where(places < 0, -1, sequence[places]))
            return Windows.of(key, start, end, trigger=number, ring=ring), alive
        self._begins = offsets[:-1] - (self._applied - n_held)
        middles = np.where(self._middle[keys] < 0, -1, self._middle[keys] + self._begins[keys])
        return Windows.of(key, start, end, trigger=number, ranges=(sequence, lo, hi), middles=middles), alive

    def _remember(self, leaves: Leaves, sequence: Ints, offsets: Ints, n_held: Ints, alive: Bools, known: Bools, ready: Bools) -> None:
        self._held, self._waiting = leaves.number[sequence[alive]], leaves.number[known & ~ready]
        fed = np.diff(offsets) - n_held
        self._applied += fed
        moved = np.flatnonzero(fed)
        self._last_number[moved] = leaves.number[sequence[offsets[moved + 1] - 1]]
        self._last_number[self._states[:, kernel.LAST] == BEFORE] = -1

    def _listed(self, leaves: Leaves, clock: Clock) -> Ints:
        """Calendar ticks that this batch may reach, ascending; empty if ticks have a fixed period."""
        if self._steps is None or self._steps.period is not None:
            return _NONE
        ticks = self._states[:, kernel.TICK]
        instants = [*leaves.time.tolist(), *ticks[ticks < AFTER].tolist()]
        if not instants:
            return _NONE
        age = int(self._settings[kernel.AGE])
        longest = 366 * 86_400_000_000 * (1 + self._steps.step.months // 12)
        through = max(clock.seen, *instants) + (age if age < AFTER else 0) + 2 * longest
        return np.array(self._steps.between(min(instants) - 1, through), np.int64)

    def due(self, leaves: Leaves, applied: Applied, clock: Clock) -> Ints:  # noqa: ARG002 - a window stays until a row or a tick comes
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
            fresh = np.array([[_FRESH.get(name, 0) for name in _STATE]] * missing, np.int64)
            fresh[:, kernel.FULL] = self._settings[kernel.EVICT] == kernel.TIME
            self._states = np.concatenate((self._states, fresh))
            self._bases = np.append(self._bases, np.zeros(missing))
            self._last_number, self._applied, self._middle, self._capacity = (
                np.append(column, np.full(missing, fill, np.int64))
                for column, fill in ((self._last_number, -1), (self._applied, 0), (self._middle, -1), (self._capacity, 0))
            )

    def snapshot(self) -> dict[str, pa.Table]:
        states = {name: np.ascontiguousarray(self._states[:, column]) for column, name in enumerate(_STATE)}
        kept = {name: getattr(self, f"_{name}") for name in _KEPT}
        held = {"number": self._held} | ({"slot": self._slots} if self._from_anywhere else {})
        rows = {"held": pa.table(held), "waiting": pa.table({"number": self._waiting})}
        return {"keys": pa.table(states | kept | {"float_base": self._bases}), **rows}

    def restore(self, tables: dict[str, pa.Table]) -> None:
        keys = tables["keys"]
        self._states = np.stack([keys.column(name).to_numpy() for name in _STATE], axis=1)
        self._last_number, self._applied, self._middle, self._capacity = (keys.column(name).to_numpy().copy() for name in _KEPT)
        self._bases = keys.column("float_base").to_numpy().copy()
        self._held, self._waiting = (tables[name].column("number").to_numpy() for name in ("held", "waiting"))
        if self._from_anywhere:
            self._slots = tables["held"].column("slot").to_numpy()


def _values(delta: Delta | None, table: pa.Table, sequence: Ints) -> tuple[kernel.Values, tuple[float, int, bool]]:
    """The column of a delta; and the delta as a float, rounded down, and whether the column holds integers."""
    if delta is None:
        nothing = np.zeros(len(sequence)), np.zeros(len(sequence), np.int64), np.zeros(len(sequence), np.bool_)
        return kernel.Values(*nothing), (0.0, 0, True)
    column = table.column(delta.column).combine_chunks().take(pa.array(sequence))
    by = delta.by.elapsed() if isinstance(delta.by, Duration) else delta.by
    whole = not pa.types.is_floating(column.type)
    floats = float64_of(column)
    ints = int64_of(column) if whole else np.zeros(len(sequence), np.int64)
    return kernel.Values(floats, ints, valid_of(column) & ~np.isnan(floats)), (float(by), math.floor(by), whole)
