"""A random pipeline over a source that people correct, and what its latest view must show: what the source as it is now gives."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests import random_pipelines
from tests.latest import latest, without_revision
from tests.random_pipelines import AGGREGATES, BASE, CONDITION, MINUTE, Case, differences, random_case
from tests.spark.harness import Bench, Row, quiet
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import applying, loop, planning, savepoints
from windowmill.jobs.commands.maintenance import maintain
from windowmill.jobs.spec_checks import runnable_of
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.errors import SpecError
from windowmill.windowing.reference import Record, evaluate

#: A rule that no batch passes.
UNMET = [{"type": "expect_table_row_count_to_equal", "value": -1, "severity": "critical"}]
_KEYS, _TEXTS = ("a", "a", "b", "c", None), ("x", "y", "zé", None)


@dataclass
class Corrected:
    """The pipeline of a random case; its rows have numbers of their own, ``x``.

    Attributes
    ----------
    rows
        How many have been made.
    named
        How many windows and savepoints have been named.
    came_too_late
        Versions of the source with rows that were too late for some window, or would have been for one with policies.
    """

    bench: Bench
    case: Case
    rows: int = 0
    named: int = 0
    came_too_late: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, seed: int, folder: Path) -> Corrected:
        """The pipeline that ``seed`` tells: of points, in which no two rows are equal in their order."""
        while True:
            case = random_case(seed, points=True, usable=True)
            if "x" in case.spec["time"].get("tie_break", ()) and case.spec["time"].get("arrival") != "row":
                break
            seed += 1_000_000
        spec = copy.deepcopy(case.spec)
        source = {"path": str(folder / "source"), "changes": "restate"}
        windows = [without_lives(window) for window in spec["windows"]]
        return cls(Bench(folder, spec | {"source": source, "sink": {"path": str(folder / "sink")}, "windows": windows}), case)

    @property
    def spec(self) -> dict[str, Any]:
        return self.bench.changes

    @property
    def _tick(self) -> int:
        return 1 if "unit" in self.spec["time"] else MINUTE

    @property
    def source(self) -> DeltaTable:
        return DeltaTable(self.bench.source)

    @property
    def ledger(self) -> Ledger:
        return Ledger.open(self.bench.pipeline)

    def held(self) -> list[Row]:
        """The rows of the source, in order of event time."""
        table = self.source.to_pyarrow_table().cast(self.case.schema)
        table = table.set_column(1, "t", table["t"].cast(pa.int64()))
        return sorted(table.to_pylist(), key=lambda row: (row["t"], row["x"]))

    def _allowance(self) -> int:
        """How far behind the latest event a row may come and count in all of its windows: with policies lateness plays no part."""
        pipeline = self.bench.pipeline
        lateness = 0 if any(window.follows_policies for window in pipeline.windows) else pipeline.time.lateness.elapsed()
        return pipeline.time.disorder.elapsed() + lateness

    # What happens to the source

    def new_rows(self, rng: random.Random, count: int, *, too_late: bool = False) -> list[Row]:
        """The rows of the next version, some of them late; with ``too_late`` also behind what open windows take."""
        held = self.held() if self.rows else []
        last = held[-1]["t"] if held else BASE if self._tick > 1 else rng.choice([0, -50])
        now, rows = last, list[Row]()
        for _ in range(count):
            now += rng.choice([0, 1, 1, 2, 4, 7, 25]) * self._tick + rng.choice([0, 0, 0, 1])
            behind = rng.randint(0, min(self._allowance(), 60 * self._tick)) if rng.random() < 0.3 else 0
            at = max(now - behind, last - self._allowance()) if held else now
            if too_late and rng.random() < 0.6:
                at = last - self._allowance() - rng.randint(1, 60) * self._tick
            rows.append(self._row(rng, at))
        if held and any(row["t"] < last - self.bench.pipeline.time.disorder.elapsed() for row in rows):
            self.came_too_late.append(self.source.version() + 1)
        # The latest row of all is never corrected, so that the watermark follows from the rows that are there.
        rows.append(self._row(rng, max(now, last + 1)))
        return rows

    def _row(self, rng: random.Random, at: int) -> Row:
        self.rows += 1
        i, f = rng.choice([None, *range(-9, 10)]), rng.choice([None, *(n / 8 for n in range(-40, 41))])
        return {"k": rng.choice(_KEYS), "t": at, "x": self.rows, "i": i, "f": f, "s": rng.choice(_TEXTS)}

    def land(self, rows: Sequence[Row], *, feed: bool = False) -> None:
        """Append ``rows`` as a version; ``feed`` has a new table record its changes."""
        configuration = {"delta.enableChangeDataFeed": "true"} if feed else None
        write_deltalake(self.bench.source, self._table(rows), mode="append", configuration=configuration)

    def correct(self, rng: random.Random, how: str) -> None:
        """Correct a few rows that are not the latest."""
        held = self.held()
        pool = [row for row in held if row["t"] < held[-1]["t"]]
        if not pool:
            return
        chosen = rng.sample(pool, min(len(pool), rng.randint(1, 3)))
        where = f"x in ({', '.join(str(row['x']) for row in chosen)})"
        if how == "update":
            updates = rng.choice([{"i": "i + 3"}, {"f": "0.5"}, {"s": "'x'"}, {"k": "'b'"}, {"k": "'new'"}, {"i": "i"}])
            self.source.update(predicate=where, updates=updates)
        elif how == "delete":
            self.source.delete(where)
        elif how == "overwrite":
            kept = [row | {"i": row["i"] or 0} for row in held if row["x"] != chosen[0]["x"]]
            write_deltalake(self.bench.source, self._table(kept), mode="overwrite")
        elif how == "move":
            self._merge([chosen[0] | {"t": rng.choice(pool)["t"]}])
        else:
            self._merge([chosen[0] | {"i": 5}, self._row(rng, rng.choice(pool)["t"] + rng.choice([0, 0, 1]))])

    def _merge(self, rows: Sequence[Row]) -> None:
        merging = self.source.merge(self._table(rows), "s.x = t.x", source_alias="s", target_alias="t")
        merging.when_matched_update_all().when_not_matched_insert_all().execute()

    def _table(self, rows: Sequence[Row]) -> pa.Table:
        return pa.Table.from_pylist(list(rows), schema=self.case.schema)

    # What people do with the pipeline

    def run(self) -> None:
        """Run until the source is drained."""
        self.bench.run()

    def release(self) -> None:
        self.bench.run(ruling="release")

    def restate_all(self) -> None:
        """Run, and have rows that came too late for some window count in all of their windows."""
        self.run()
        loop.restate(self.bench.pipeline, quiet(), late=True)
        self.run()
        loop.restate(self.bench.pipeline, quiet(), ends=self.whole)

    @property
    def whole(self) -> tuple[int, int]:
        """A range that holds all events and the windows that they are in."""
        zero, reach = (0, 1_000_000) if self._tick == 1 else (BASE, 1_000_000 * MINUTE)
        return zero - reach, zero + reach

    def range(self, rng: random.Random) -> tuple[int, int]:
        """A range between two events, or one that holds all."""
        if rng.random() < 0.2:
            return self.whole
        times = sorted({row["t"] for row in self.held()})
        begin, end = sorted(rng.choices(times, k=2))
        return begin, max(end, begin + self._tick)

    def change(self, rng: random.Random) -> None:
        """Change the windows or the aggregates of the spec; rows that a new window with policies would refuse as late are run before."""
        if any(late > self.ledger.last_commit.to_version for late in self.came_too_late):
            self.run()
        before = copy.deepcopy(self.spec)
        windows, aggregates, what = self.spec["windows"], self.spec["aggregates"], rng.random()
        if what < 0.3:
            self.named += 1
            windows.append({"name": f"n{self.named}", **self._window(rng)})
        elif what < 0.45 and len(windows) > 1:
            windows.pop(rng.randrange(len(windows)))
        elif what < 0.75:
            place = rng.randrange(len(windows))
            windows[place] = {"name": windows[place]["name"], **self._window(rng)}
        elif what < 0.9 or len(aggregates) == 1:
            name = rng.choice(list(AGGREGATES))
            aggregates[name] = AGGREGATES[name]
        else:
            del aggregates[rng.choice([name for name in aggregates if name != "n"])]
        try:
            _ = self.bench.pipeline
        except SpecError:
            self.bench.changes = before

    def _window(self, rng: random.Random) -> dict[str, Any]:
        integers = "unit" in self.spec["time"]
        return without_lives(random_pipelines.random_window(rng, integers=integers, emit=self.spec["emit"]))

    def apply(self) -> None:
        """Carry out the spec as it is now, with all history."""
        loop.apply(self.bench.pipeline, quiet(), history=AXIS_BEGIN)
        left = applying.changes_of(self.bench.pipeline, self.ledger)
        assert left is None, f"the spec differs from that of the tables after it has been applied: {left}"

    def save(self) -> str:
        """Make a savepoint; returns its name."""
        self.named += 1
        savepoints.create(self.bench.pipeline, quiet(), f"s{self.named}")
        return f"s{self.named}"

    def maintain(self) -> None:
        maintain(self.bench.pipeline, quiet())

    # What must hold

    def is_up_to_date(self) -> bool:
        """Whether a run would do nothing."""
        return planning.next_run(runnable_of(self.bench.pipeline), self.ledger) is None

    def check(self) -> None:
        """The latest view shows what the source's rows give if they come in order, and nothing is in quarantine."""
        assert self.bench.quarantine() == [], f"rows are in quarantine: {self.bench.quarantine()}"
        pipeline, rows = self.bench.pipeline, self.held()
        records = [Record(row, frozenset([CONDITION] if (row["i"] or 0) > 3 else [])) for row in rows]
        wanted = evaluate(pipeline, records, commits=[0] * len(records), final=False).rows
        found, expected = (sorted(shown, key=self._place) for shown in (latest(pipeline, self.bench.rows()), map(without_revision, wanted)))
        problems = differences(found, expected)
        assert problems == [], f"the latest view is not the truth: {'; '.join(problems[:5])}"

    def _place(self, row: Row) -> tuple[Any, ...]:
        named = (*self.spec["keys"], "window", "window_end", "trigger", "window_start")
        return tuple((row[name] is not None, row[name]) for name in named)


def without_lives(window: dict[str, Any]) -> dict[str, Any]:
    """``window`` without a life of its keys: which triggers a corrected row gives another number depends on the lives before."""
    kept = {name: value for name, value in window.items() if name != "idle_after"}
    return {name: value for name, value in kept.items() if name != "empty"} if "evict" in kept else kept
