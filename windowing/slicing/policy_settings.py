"""The eviction and trigger policies of a window in the kernel's form, and the state of a key under them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from windowmill.windowing.axis import Duration
from windowmill.windowing.bounds import check_key, check_share
from windowmill.windowing.kernels import policies as kernel
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.lift import condition_column, float64_of, int64_of, valid_of
from windowmill.windowing.kernels.policies import apply_policies
from windowmill.windowing.slicing.calendars import Steps, origin_of, zone_named
from windowmill.windowing.watermark import AFTER, BEFORE, Clock

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline
    from windowmill.windowing.windows.base import Delta, Policy, PolicyRules, Window

#: Names of a key's scalars, in the order of the kernel's elements ``LAST`` to ``BASE``.
STATE = ("last", "ticked", "tick", "fired", "inserted", "full", "has_base", "base")
#: Those of them that are points of the axis.
INSTANTS = frozenset({"last", "ticked", "tick"})
_FRESH = {"last": BEFORE, "ticked": BEFORE, "tick": AFTER}
_KINDS = {"count": kernel.COUNT, "time": kernel.TIME, "delta": kernel.DELTA, "punctuation": kernel.PUNCTUATION}
_NONE = np.empty(0, np.int64)


class Triggers(NamedTuple):
    """The triggers that fired in a batch, key by key in order of firing; int64, shapes (n_triggers,) but for ``removed``."""

    key: Ints  #: Index of the key.
    #: Bounds of the window that is shown, and the trigger's number.
    start: Ints
    end: Ints
    number: Ints
    #: The window holds tuples lo:hi, without those that deltas have removed.
    lo: Ints
    hi: Ints
    gone_to: Ints  #: ``removed[:gone_to]`` were removed until then.
    removed: Ints  #: The tuples that deltas have removed, in order of removal; shape (n_removed,).


class PolicySettings:
    """The policies of one window of the spec.

    ``evict``, ``trigger``: the window's policies; no trigger for a window that its eviction flushes.
    ``array``: the kernel's settings, elements ``EVICT`` to ``PERIOD``; int64, shape (11,).
    """

    def __init__(self, window: Window, rules: PolicyRules, pipeline: Pipeline) -> None:
        self._name = window.name
        self.evict, self.trigger = rules.evict, rules.trigger
        period = self.trigger.time if self.trigger is not None else self.evict.time
        self._steps: Steps | None = None
        if period is not None:
            zone = zone_named(rules.timezone)
            self._steps = Steps(origin_of(rules.origin, period, zone, pipeline.time.integer_axis), period, zone)
        age = self.evict.time.elapsed() if self.evict.time is not None and self.trigger is not None else AFTER
        idle = rules.idle_after.elapsed() if rules.idle_after is not None else AFTER
        ticks = 0 if self._steps is None else 2 if self._steps.period is None else 1
        self.array = np.array(
            [
                _KINDS[self.evict.kind],
                _KINDS[self.trigger.kind] if self.trigger is not None else kernel.NONE,
                self.evict.count or 0,
                age,
                (self.trigger.count or 0) if self.trigger is not None else 0,
                rules.partial,
                window.empty == "emit",
                idle,
                ticks,
                self._steps.origin if self._steps is not None else 0,
                (self._steps.period or 1) if self._steps is not None else 1,
            ],
            np.int64,
        )

    @property
    def from_anywhere(self) -> bool:
        """Whether tuples leave the window from any position, not only from its front."""
        return self.evict.delta is not None and self.trigger is not None

    @property
    def acceptance(self) -> tuple[object, ...]:
        """What decides which tuples are late: windows with equal values apply the same tuples in the same order."""
        settings = self.array
        if self._steps is None:
            return (int(settings[kernel.IDLE]),)
        by_ticks = (kernel.IDLE, kernel.TICKS, kernel.ORIGIN, kernel.PERIOD, kernel.EMPTY, kernel.AGE)
        flushes = bool(settings[kernel.TRIGGER] == kernel.NONE)
        return (*(int(settings[place]) for place in by_ticks), flushes, str(self._steps.step), str(self._steps.zone))

    @property
    def difference(self) -> float:
        """By how much a new tuple's value exceeds those of the tuples that it evicts; 0 if no delta evicts."""
        return _difference(self.evict.delta)

    def fresh(self, n_keys: int) -> Ints:
        """The states of ``n_keys`` keys without tuples; int64, shape (n_keys, 8)."""
        states = np.array([[_FRESH.get(name, 0) for name in STATE]] * n_keys, np.int64).reshape(-1, len(STATE))
        # As in the SPL runtime, a time window counts as full from the start.
        states[:, kernel.FULL] = self.array[kernel.EVICT] == kernel.TIME
        return states

    def listed(self, time: Ints, ticks: Ints, clock: Clock) -> Ints:
        """Calendar ticks that a batch may reach, ascending; empty if ticks have a fixed period.

        ``time``, ``ticks``: times of the tuples to apply, and next ticks of the keys; shapes (n_tuples,) and (n_keys,).
        """
        if self._steps is None or self._steps.period is not None:
            return _NONE
        instants = [*time.tolist(), *ticks[ticks < AFTER].tolist()]
        if not instants:
            return _NONE
        age = int(self.array[kernel.AGE])
        longest = 366 * 86_400_000_000 * (1 + self._steps.step.months // 12)
        through = max(clock.seen, BEFORE if clock.ended else clock.watermark, *instants) + (age if age < AFTER else 0) + 2 * longest
        return np.array(self._steps.between(min(instants) - 1, through), np.int64)

    def run(self, listed: Ints, tuples: kernel.Tuples, keys: kernel.KeyStates, clock: Clock, whole: tuple[bool, bool]) -> Triggers:
        """Apply ``tuples`` to ``keys``, in place; returns the triggers that fire.

        ``whole``: whether the columns of the eviction's and of the trigger's delta hold integers. Raises ``LimitExceededError`` if a key
        has too many due ticks, or the batch too many triggers.
        """
        by = [_difference(policy.delta if policy is not None else None) for policy in (self.evict, self.trigger)]
        rules = kernel.Rules(
            self.array,
            listed,
            np.array(by, np.float64),
            np.array([min(math.floor(each), kernel.MAX_GAP) for each in by], np.uint64),
            np.array(whole),
        )
        progress = kernel.InputProgress(clock.watermark, clock.ended, clock.seen)
        counts = np.zeros(3, np.int64)
        if self._steps is None:
            # Without ticks, each tuple fires at most once.
            counts[:2] = len(tuples.time)
        else:
            tried = kernel.KeyStates(keys.states.copy(), keys.bases.copy(), keys.alive.copy())
            apply_policies(rules, tuples, tried, progress, kernel.TriggerLog(False, counts, np.empty((7, 0), np.int64), _NONE))
            check_key(self._name, int(counts[kernel.DUE]))
            check_share(self._name, int(counts[kernel.NOTED]))
        out, removed = np.empty((7, counts[0]), np.int64), np.empty(counts[1], np.int64)
        counts[:] = 0
        apply_policies(rules, tuples, keys, progress, kernel.TriggerLog(True, counts, out, removed))
        return Triggers._make((*out[:, : counts[kernel.NOTED]], removed[: counts[kernel.REMOVED]]))


def delta_of(settings: PolicySettings) -> Delta:
    """The delta by which a window evicts."""
    if settings.evict.delta is None:
        raise TypeError("the window does not evict by a delta")
    return settings.evict.delta


def values_of(delta: Delta | None, table: pa.Table, rows: Ints) -> kernel.Values:
    """The column of a delta policy at these ``rows`` of ``table``; NaN counts as null. Zeros if there is no such policy."""
    if delta is None:
        return no_values(len(rows))
    column = table.column(delta.column).combine_chunks().take(pa.array(rows))
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("us")).cast(pa.int64())  # as instants, in whose ticks the difference is
    floats = float64_of(column)
    ints = int64_of(column) if holds_integers(delta, table) else np.zeros(len(column), np.int64)
    return kernel.Values(floats, ints, valid_of(column) & ~np.isnan(floats))


def no_values(n: int) -> kernel.Values:
    """Values of ``n`` tuples that have none."""
    return kernel.Values(np.zeros(n), np.zeros(n, np.int64), np.zeros(n, np.bool_))


def values_at(values: kernel.Values, chosen: Bools | Ints) -> kernel.Values:
    return kernel.Values(values.value[chosen], values.whole[chosen], values.known[chosen])


def joined_values(parts: Sequence[kernel.Values]) -> kernel.Values:
    floats, ints, known = zip(*parts, strict=True)
    return kernel.Values(np.concatenate(floats), np.concatenate(ints), np.concatenate(known))


def holds_integers(delta: Delta | None, table: pa.Table) -> bool:
    """Whether the column of a delta policy in ``table`` holds integers; so if there is no such policy.

    Decimals are compared as floats, too: their differences may be off in the last digit.
    """
    kind = None if delta is None else table.schema.field(delta.column).type
    return kind is None or not (pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def punctuation_of(policy: Policy, table: pa.Table, rows: Ints) -> Bools:
    """Whether the policy's punctuation holds at these ``rows`` of ``table``; false if it has none."""
    if policy.punctuation is None:
        return np.zeros(len(rows), np.bool_)
    column = table.column(condition_column(policy.punctuation)).combine_chunks().take(pa.array(rows))
    return np.asarray(int64_of(column) != 0, np.bool_)


def _difference(delta: Delta | None) -> float:
    if delta is None:
        return 0.0
    return delta.by.elapsed() if isinstance(delta.by, Duration) else delta.by
