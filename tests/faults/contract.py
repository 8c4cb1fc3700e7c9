"""What the contract says that the latest view shows, whatever commands have been given: brute force, by the reference engine.

The model follows the ledger, batch by batch. Of each window and key it knows the events that count, as they arrived or as the source held
them when they were restated, and the rows that are shown. It computes all of them anew at each step.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from windowmill.checkpoints.batches import ApplyPlan, BackfillPlan, Batch, FoldPlan, PurgePlan, RestatePlan, RestorePlan
from windowmill.windowing.reference import rows_of
from windowmill.windowing.reference.aggregates import compute
from windowmill.windowing.reference.events import BEFORE, Course, Event, Record, Tally, ranks
from windowmill.windowing.reference.windows import without_duplicates
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.windows.base import Window

Row = dict[str, Any]
Key = tuple[Any, ...]
#: What tells the rows of a window and key apart: a trigger, or both bounds.
Bounds = tuple[Any, ...]
#: The rows shown of a window and key.
Shown = dict[Bounds, Row]


@dataclass
class Version:
    """A version of the source: the rows that the table holds, by number; those appended; and those changed, as they were and are."""

    table: dict[int, Row]
    appended: list[Row] = field(default_factory=list)
    changed: list[Row] = field(default_factory=list)
    inserted: list[Row] = field(default_factory=list)
    changes: bool = False


@dataclass(frozen=True)
class Reach:
    """How far the batches have come. None of it ever goes back, whatever settings of time the spec gets."""

    #: The greatest event time through which windows have been shown.
    seen: float = BEFORE
    watermark: float = BEFORE
    #: The instants through which windows are closed, and those without policies are shown.
    closed: float = BEFORE
    shown: float = BEFORE

    def after(self, pipeline: Pipeline, seen: float) -> Reach:
        """With a run after which ``seen`` is the greatest event time: it takes the settings as they are now."""
        watermark = max(self.watermark, seen - pipeline.time.disorder.elapsed())
        closed = max(self.closed, watermark - pipeline.time.lateness.elapsed())
        return Reach(seen, watermark, closed, max(self.shown, watermark if pipeline.emit == "revise" else closed))

    def by(self, pipeline: Pipeline) -> Reach:
        """With changed settings: a window that has been shown is closed where none is revised."""
        return self if pipeline.emit == "revise" else replace(self, closed=max(self.closed, self.shown))


#: What nothing has reached, and what everything has.
NOTHING, EVERYTHING = Reach(), Reach(math.inf, math.inf, math.inf, math.inf)


@dataclass
class Progress:
    """Where the pipeline is: all of it that a savepoint brings back."""

    #: By window and key, the events that count.
    events: dict[str, dict[Key, list[Event]]] = field(default_factory=dict)
    #: By window and key, the rows shown.
    view: dict[str, dict[Key, Shown]] = field(default_factory=dict)
    #: Rows in quarantine because they came too late.
    lost: list[Row] = field(default_factory=list)
    #: The greatest event time.
    seen: float = BEFORE
    reach: Reach = NOTHING
    position: int = -1
    #: The newest version that a restatement has read; null for none.
    restated: int | None = None
    #: Whether rows came too late for a window that holds them, and have not been restated since.
    missed: bool = False
    #: The rows as batches count them, each with the version that appended it.
    counted: list[tuple[int, Row]] = field(default_factory=list)
    #: Whether keys have been purged since the source was read anew.
    purged: bool = False
    #: By window, between which ends a changed spec has left out its rows, and no backfill has brought them since.
    left_out: dict[str, list[tuple[float, float]]] = field(default_factory=dict)


class Contract:
    """The contract for one pipeline over the ``versions`` of a source.

    Its filter leaves in the ``chosen`` rows, its steps give them columns ``computed``; ``conditions`` are those of the spec that hold for a
    row. All three may change with the spec.
    """

    def __init__(
        self,
        versions: list[Version],
        chosen: Callable[[Row], bool],
        computed: Callable[[Row], Row],
        conditions: Callable[[Row], frozenset[str]],
    ) -> None:
        self.versions, self._chosen, self._computed, self._conditions = versions, chosen, computed, conditions
        self.now = Progress()
        self.after: dict[int, Progress] = {}
        #: Ranges of the backfills whose rows are published.
        self._backfilled: dict[int, tuple[int, int]] = {}
        #: Keys that are purged next.
        self.purged: set[Key] = set()
        self._meanings: dict[str, Any] = {}
        self._read = self._numbered = 0

    def follow(self, batches: Sequence[Batch], pipeline: Pipeline) -> None:
        """Take up the batches that the ledger has got."""
        for batch in batches[self._read :]:
            if batch.status == "held":
                break
            self._read = batch.number + 1
            if batch.status == "committed":
                self._take(batch, pipeline)
                self.after[batch.number] = copy.deepcopy(self.now)

    def _take(self, batch: Batch, pipeline: Pipeline) -> None:
        plan, now, publish = batch.plan, self.now, batch.verdict != "discarded"
        if isinstance(plan, FoldPlan):
            return
        if isinstance(plan, RestorePlan):
            self.now = copy.deepcopy(self.after[plan.kept_batch])
            for number in sorted(self._backfilled.keys() & set(plan.spared)):
                self._spare(number, plan.through)
            self._meanings = {window["name"]: window for window in _windows_of(plan.definition)}
            return
        if isinstance(plan, PurgePlan):
            self._purge(pipeline)
        elif isinstance(plan, RestatePlan):
            self._restate(pipeline, plan, publish)
        elif isinstance(plan, ApplyPlan):
            self._apply(pipeline, plan, publish)
            now.missed = now.missed or bool(batch.counts.late_missed)
        elif isinstance(plan, BackfillPlan):
            self._backfill(pipeline, plan, publish, batch.counts.late_missed)
            self._backfilled |= {batch.number: plan.range} if publish else {}
        else:
            self._run(pipeline, plan.from_version, plan.to_version, publish, late_missed=batch.counts.late_missed)
        now.position = plan.to_version
        self._meanings = {window["name"]: window for window in _windows_of(plan.definition)}

    def _spare(self, number: int, through: int | None) -> None:
        """Windows on a grid that a savepoint has shown, ``through`` an instant, keep what a later backfill has published of them."""
        then, (begin, end) = self.after[number], self._backfilled[number]
        for name, own in then.view.items():
            for key in {*own, *self.now.view.get(name, {})}:
                view = self.now.view.setdefault(name, {}).setdefault(key, {})
                found = view | own.get(key, {})
                spared = {bounds for bounds, row in found.items() if begin < row["window_end"] <= min(end, through or begin)}
                kept = {bounds: row for bounds, row in view.items() if bounds not in spared}
                self.now.view[name][key] = kept | {bounds: row for bounds, row in own.get(key, {}).items() if bounds in spared}
        self.now.left_out = then.left_out

    # What batches do

    def _run(self, pipeline: Pipeline, after: int, through: int, publish: bool, *, late_missed: Mapping[str, int]) -> None:
        now, before = self.now, {}
        fresh, seen = self._arriving(pipeline, range(after + 1, through + 1), now.seen, least=now.reach)
        now.counted += [(number, row) for number in range(after + 1, through + 1) for row in self.versions[number].appended]
        known = {event.number: event for own in now.events.values() for events in own.values() for event in events}
        fresh = self._distinct(pipeline, fresh, known.values())
        for window in pipeline.windows:
            own = now.events.setdefault(window.name, {})
            before[window.name] = {key: self._shown(pipeline, window, events)[0] for key, events in own.items()}
            for event in fresh:
                own.setdefault(event.key, []).append(event)
        counted, refused = set[int](), set[int]()
        now.seen, now.reach = seen, now.reach.after(pipeline, seen)
        for window in pipeline.windows:
            for key, events in now.events[window.name].items():
                found, tally = self._shown(pipeline, window, events)
                counted, refused = counted | tally.counted, refused | tally.refused
                if publish:
                    view, old = now.view.setdefault(window.name, {}).setdefault(key, {}), before[window.name].get(key, {})
                    for bounds in old.keys() - found.keys():
                        view.pop(bounds, None)
                    view.update({bounds: row for bounds, row in found.items() if old.get(bounds) != row})
        now.missed = now.missed or bool(late_missed)
        numbers = {event.number for event in fresh}
        now.lost += [event.record.values for event in fresh if event.number in (refused - counted) & numbers]

    def _restate(self, pipeline: Pipeline, plan: RestatePlan, publish: bool) -> None:
        now, table = self.now, self.versions[plan.to_version].table
        touched: list[Row] | None = None
        if plan.changed is not None or plan.late:
            touched = []
        if plan.changed is not None:
            for version in self.versions[plan.changed[0] : plan.changed[1] + 1]:
                touched += filter(self._chosen, version.changed)
            for number in range(plan.from_version + 1, plan.changed[1] + 1):
                touched += filter(self._chosen, self.versions[number].appended)
        if plan.late:
            late = [row for row in now.lost if table.get(row["x"]) == row]
            touched = None if now.missed else [*touched, *late]
            now.lost = [row for row in now.lost if row not in late]
        keys = {self._key(pipeline, row) for row in (table.values() if touched is None else touched)}
        if touched is None:
            keys |= {key for own in now.events.values() for key in own} | {key for own in now.view.values() for key in own}
        settled = self._settled(pipeline, [row for row in table.values() if row not in now.lost])
        for window in pipeline.windows:
            for key in keys:
                events = now.events.setdefault(window.name, {})[key] = list(settled.get(key, []))
                found, _ = self._shown(pipeline, window, events)
                times = None if touched is None or not _plain_grid(window) else self._times(pipeline, touched, key)
                if publish:
                    self._replace(window, key, found, plan.range_from, plan.range_to, times, now.left_out.get(window.name, ()))
        if plan.late or (plan.changed, plan.range_from, plan.range_to) == (None,) * 3:
            now.missed = False
        inserted = [row for version in self._changed(plan) for row in version.inserted if self._chosen(row)]
        inserted += [
            row for version in self.versions[plan.from_version + 1 : plan.to_version + 1] for row in filter(self._chosen, version.appended)
        ]
        now.seen = max([now.seen, *(row["t"] for row in inserted)])
        self._count_anew(plan.to_version, None if touched is None else keys, pipeline)

    def _count_anew(self, version: int, keys: Collection[Key] | None, pipeline: Pipeline) -> None:
        """Rows of ``keys``, null for all, count as the table held them at ``version``."""

        def is_new(row: Row) -> bool:
            return keys is None or self._key(pipeline, row) in keys

        now = self.now
        now.counted = [(number, row) for number, row in now.counted if number > version or not is_new(row)]
        now.counted += [(version, row) for row in self.versions[version].table.values() if is_new(row)]
        now.restated, now.purged = version, False

    def _changed(self, plan: RestatePlan) -> list[Version]:
        return [] if plan.changed is None else self.versions[plan.changed[0] : plan.changed[1] + 1]

    def _backfill(self, pipeline: Pipeline, plan: BackfillPlan, publish: bool, late_missed: Mapping[str, int]) -> None:
        now = self.now
        if not plan.rereads:
            self._run(pipeline, -1, plan.to_version, publish, late_missed=late_missed)
            return
        now.missed = now.missed or (plan.replaces_state and bool(late_missed))
        events = self._read_again(pipeline, plan.snapshot, plan.to_version)
        for window in pipeline.windows if publish else ():
            if plan.replaces_state:
                now.events[window.name] = {key: list(own) for key, own in events.items()}
            own, through = now.view.setdefault(window.name, {}), None if plan.replaces_state else plan.range_to
            for key in {*events, *own}:
                found, _ = self._shown(pipeline, window, events.get(key, []))
                self._replace(window, key, found, plan.range_from, through, None)
            stretches = now.left_out.pop(window.name, [])
            cut = [(first, min(last, plan.range_from)) for first, last in stretches]
            cut += [(max(first, through), last) for first, last in stretches if through is not None]
            now.left_out[window.name] = [(first, last) for first, last in cut if first < last]
        if plan.replaces_state and publish and plan.snapshot is not None:
            self._count_anew(plan.snapshot, None, pipeline)
        elif plan.replaces_state and publish:
            now.restated = None
            now.counted = [(number, row) for number in range(plan.to_version + 1) for row in self.versions[number].appended]

    def _apply(self, pipeline: Pipeline, plan: ApplyPlan, publish: bool) -> None:
        now = self.now
        now.reach = now.reach.by(pipeline)
        if plan.rejudges and pipeline.emit == "revise" and plan.history is not None and plan.history <= now.reach.closed:
            now.reach = replace(now.reach, shown=now.reach.watermark)
        meanings = {window["name"]: window for window in _windows_of(plan.definition)}
        every = plan.rejudges or plan.reads_others
        changed = {name for name, window in meanings.items() if every or self._meanings.get(name) != window} | set(plan.fills)
        now.events = {name: own for name, own in now.events.items() if name in meanings}
        snapshot = plan.snapshot if plan.carried is None else now.restated
        base = None
        if now.purged and pipeline.source is not None and pipeline.source.changes == "ignore" and snapshot is not None:
            base = [row for number, row in now.counted if number <= snapshot]
        events = self._read_again(pipeline, snapshot, plan.to_version, base)
        for window in pipeline.windows:
            if window.name not in changed:
                continue
            if every or self._meanings.get(window.name) != meanings[window.name]:
                now.left_out[window.name] = [
                    (-math.inf, min(math.inf if plan.history is None else plan.history, self._through(pipeline, window)))
                ]
            now.events[window.name] = {key: list(own) for key, own in events.items()}
            own = now.view.setdefault(window.name, {})
            for key in {*events, *own}:
                found, _ = self._shown(pipeline, window, events.get(key, []))
                if publish and plan.history is not None:
                    self._replace(window, key, found, plan.history, None, None)

    def _purge(self, pipeline: Pipeline) -> None:
        for own in (*self.now.events.values(), *self.now.view.values()):
            for key in self.purged & own.keys():
                del own[key]
        self.now.lost = [row for row in self.now.lost if self._key(pipeline, row) not in self.purged]
        self.now.counted = [(number, row) for number, row in self.now.counted if self._key(pipeline, row) not in self.purged]
        self.now.purged = True

    # What they are made of

    def _key(self, pipeline: Pipeline, row: Row) -> Key:
        return tuple(row[name] for name in pipeline.keys)

    def _times(self, pipeline: Pipeline, rows: Iterable[Row], key: Key) -> list[int]:
        return [row["t"] for row in rows if self._key(pipeline, row) == key]

    def _event(self, pipeline: Pipeline, row: Row, commit: int, watermark: float, closed: float = BEFORE) -> Event:
        ties = [row[name] for name in pipeline.time.tie_break]
        order = (row["t"], *ranks(ties), row["x"])
        self._numbered += 1  # a row that is delivered again is another event
        return Event(self._numbered, commit, self._key(pipeline, row), row["t"], row["t"], order, watermark, closed, Record(row))

    def _record(self, row: Row) -> Record:
        return Record({**row, **self._computed(row)}, self._conditions(row))

    def _arriving(
        self, pipeline: Pipeline, versions: Iterable[int], seen: float, least: Reach = NOTHING, most: Reach = EVERYTHING
    ) -> tuple[list[Event], float]:
        """The events that versions append, as they arrive after ``seen``; and the greatest event time after them.

        They find at least what earlier settings have reached, and, where they are read again, no more than has been reached by now.
        """
        events = []
        for number in versions:
            rows = [row for row in self.versions[number].appended if self._chosen(row)]
            watermark = min(max(seen - pipeline.time.disorder.elapsed(), least.watermark), most.watermark)
            closed = min(max(watermark - pipeline.time.lateness.elapsed(), least.closed), most.closed)
            events += [self._event(pipeline, row, number, watermark, closed) for row in rows]
            seen = max([seen, *(row["t"] for row in rows)])
        return events, seen

    def _settled(self, pipeline: Pipeline, rows: Iterable[Row]) -> dict[Key, list[Event]]:
        """Events by key, none of them late."""
        rows = sorted(filter(self._chosen, rows), key=lambda row: (row["t"], row["x"]))
        return _by_key(self._distinct(pipeline, [self._event(pipeline, row, -1, BEFORE) for row in rows]))

    def _distinct(self, pipeline: Pipeline, events: Sequence[Event], known: Iterable[Event] = ()) -> list[Event]:
        """Those of ``events`` that are no duplicates of one another, or of ``known`` ones."""
        left = without_duplicates(pipeline, sorted([*known, *events], key=lambda event: (event.commit, event.order)))
        numbers = {event.number for event in left}
        return [event for event in events if event.number in numbers]

    def _read_again(self, pipeline: Pipeline, snapshot: int | None, through: int, base: list[Row] | None = None) -> dict[Key, list[Event]]:
        """Events by key: ``base``, or the table at ``snapshot``, settled, then rows appended through ``through`` as they arrived."""
        if base is None:
            base = [] if snapshot is None else list(self.versions[snapshot].table.values())
        settled = self._settled(pipeline, [row for row in base if row["t"] <= self.now.seen])
        found = [event for events in settled.values() for event in events]
        seen = max([BEFORE, *(event.time for event in found)])
        versions = range(0 if snapshot is None else snapshot + 1, through + 1)
        arrived, _ = self._arriving(pipeline, versions, seen, most=self.now.reach)
        counted = [event for event in arrived if not self.now.purged or (event.commit, event.record.values) in self.now.counted]
        return _by_key([*found, *self._distinct(pipeline, counted, found)])

    def _shown(self, pipeline: Pipeline, window: Window, events: list[Event]) -> tuple[Shown, Tally]:
        """The rows of a window and key that are shown by now."""
        tally, reach, revises = Tally(), self.now.reach, pipeline.emit == "revise"
        watermark = reach.shown if revises and not window.follows_policies else reach.watermark
        course = Course(pipeline.time.integer_axis, revises, watermark, reach.closed, reach.seen)
        # What came before revisions were shown has revised nothing.
        events = [replace(event, watermark=min(event.watermark, watermark), record=self._record(event.record.values)) for event in events]
        found: Shown = {}
        # Reference engines take events in order of arrival.
        results = rows_of(window, sorted(events, key=lambda event: (event.commit, event.order)), tally, course) if events else ()
        for fired in sorted(results, key=lambda fired: fired.revision):
            bounds = (fired.trigger,) if fired.trigger is not None else (fired.span.start, fired.span.end)
            found.pop(bounds, None)
            if not fired.retracted:
                values = {name: compute(name, spec, fired.span) for name, spec in pipeline.aggregates.items()}
                found[bounds] = {"window_start": fired.span.start, "window_end": fired.span.end, "trigger": fired.trigger, **values}
        return found, tally

    def _through(self, pipeline: Pipeline, window: Window) -> float:
        """The instant through which rows of a window are shown: a tuple at the watermark triggers once this is past it."""
        if window.follows_policies:
            return self.now.reach.watermark - window.policies().triggers_by_tuples
        return self.now.reach.shown

    def _replace(
        self,
        window: Window,
        key: Key,
        found: Shown,
        begin: int | None,
        end: int | None,
        times: Sequence[int] | None,
        left_out: Sequence[tuple[float, float]] = (),
    ) -> None:
        """Have the rows ``found`` take the place of those shown of this range that are not ``left_out`` and hold one of ``times``."""

        def meant(row: Row) -> bool:
            if times is not None and not any(row["window_start"] <= time < row["window_end"] for time in times):
                return False
            if any(first < row["window_end"] <= last for first, last in left_out):
                return False
            return (begin is None or row["window_end"] > begin) and (end is None or row["window_end"] <= end)

        view = self.now.view.setdefault(window.name, {}).setdefault(key, {})
        for bounds in [bounds for bounds, row in view.items() if meant(row)]:
            del view[bounds]
        view.update({bounds: row for bounds, row in found.items() if meant(row)})

    # What must be there

    def differences(self, pipeline: Pipeline, rows: Iterable[Row]) -> list[str]:
        """How the ``rows`` of a latest view differ from those that the contract says."""
        names = ("window_start", "window_end", "trigger", *pipeline.aggregates)

        def cells(window: str, key: Key, row: Row) -> tuple[Any, ...]:
            return (window, *key, *(repr(row.get(name)) for name in names))

        current = {window.name for window in pipeline.windows}
        found = Counter(cells(row["window"], self._key(pipeline, row), row if row["window"] in current else _bounds(row)) for row in rows)
        wanted = Counter(
            cells(name, key, row if name in current else _bounds(row))
            for name, own in self.now.view.items()
            for key, view in own.items()
            for row in view.values()
        )
        lacking, odd = wanted - found, found - wanted
        return [*(f"lacks {each}" for each in lacking), *(f"has {each}" for each in odd)]


def _by_key(events: Iterable[Event]) -> dict[Key, list[Event]]:
    found: dict[Key, list[Event]] = {}
    for event in events:
        found.setdefault(event.key, []).append(event)
    return found


def _bounds(row: Row) -> Row:
    return {name: row[name] for name in ("window_start", "window_end", "trigger")}


def _windows_of(definition: Mapping[str, Any]) -> list[dict[str, Any]]:
    windows: list[dict[str, Any]] = definition.get("windows", [])
    return windows


def _plain_grid(window: Window) -> bool:
    return window.on_grid and not window.fills_gaps
