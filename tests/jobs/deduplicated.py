"""Pipelines with duplicates: one beside another in whose source they count for nobody, and one that counts rows by window."""

from __future__ import annotations

import os
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.pipelines import quiet
from tests.faults.dying import DiedError, arm
from tests.faults.world import UNMET
from tests.latest import latest
from windowmill.checkpoints import failpoints
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import loop
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.errors import (
    HeldError,
    OutOfTurnError,
    WindowmillError,
)
from windowmill.windowing.specfile import parse_pipeline

Row = dict[str, Any]
SCHEMA = pa.schema([("t", pa.int64()), ("k", pa.string()), ("v", pa.int64()), ("id", pa.string()), ("part", pa.int64()), ("o", pa.int64())])
#: The key of duplicates in the source of the pipeline without ``dedup``, where they move the watermark and count for nobody.
COPY = "copy"
GRIDS = [
    {"name": "tumbling", "type": "tumbling", "size": 20},
    {"name": "hopping", "type": "hopping", "size": 30, "hop": 10},
    {"name": "grown", "type": "cumulative", "size": 40, "step": 10},
]
OTHERS = [
    {"name": "visit", "type": "session", "gap": 6},
    {"name": "last_3", "type": "sliding", "evict": {"count": 3}, "trigger": {"count": 2}},
    {"name": "recent", "type": "sliding", "evict": {"time": 15}, "trigger": {"time": 10}},
    {"name": "three", "type": "count", "count": 3},
]


def histories(few: int) -> range:
    """The seeds of histories: ``few``, or as many as WINDOWMILL_DEDUP_HISTORIES says, from WINDOWMILL_RANDOM_SEED on."""
    first = int(os.environ.get("WINDOWMILL_RANDOM_SEED", "0"))
    return range(first, first + int(os.environ.get("WINDOWMILL_DEDUP_HISTORIES", few)))


def a_spec(rng: random.Random) -> dict[str, Any]:
    windows = rng.sample(GRIDS, rng.randint(1, 2)) + (rng.sample(OTHERS, rng.randint(1, 2)) if rng.random() < 0.5 else [])
    spec: dict[str, Any] = {
        "pipeline": "unique",
        "dedup": {"by": rng.choice([["id"], ["id", "part"]])},
        "keys": ["k"],
        "time": {"column": "t", "unit": "none", "disorder": rng.choice([0, 4, 12]), "lateness": rng.choice([0, 5, 15]), "tie_break": ["o"]},
        "windows": windows,
        "aggregates": {"n": {"count": "*"}, "total": {"sum": "v"}, "last": {"last": "v"}},
        "emit": rng.choice(["final", "revise"]),
        "quarantine": {"warn": "never", "hold": "never"},
    }
    if rng.random() < 0.5:
        spec["dedup"]["within"] = rng.choice([0, 7, 25, 200])
    return spec


def closes(window: dict[str, Any], time: int) -> int:
    """The end of the last window on a grid that holds ``time``."""
    hop, size = window.get("hop", window["size"]), window["size"]
    return time // hop * hop + size


class Rule:
    """Which rows are duplicates, by the definition: a search among all rows that have been applied."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec, self.seen = spec, -(10**9)
        self.applied: list[tuple[Any, int, int]] = []
        #: Of the rows of the last commit, those that came too late for all windows behind a copy that is forgotten, or came too late, too:
        #: a snapshot has both.
        self.forgotten: list[bool] = []
        self.came: set[Any] = set()
        time, windows = spec["time"], spec["windows"]
        longest = max((window.get("size", window.get("gap", 0)) for window in windows), default=0)
        self.written = spec["dedup"].get("within")
        self.within = time["disorder"] + time["lateness"] + longest if self.written is None else self.written
        self.on_grids = all("size" in window for window in windows)
        self.commit = 0

    def duplicates(self, rows: list[Row]) -> list[bool]:
        """Of the ``rows`` of the next commit."""
        self.commit += 1
        time = self.spec["time"]
        watermark = self.seen - time["disorder"]
        found, self.forgotten = [False] * len(rows), [False] * len(rows)
        usable = [place for place, row in enumerate(rows) if row["t"] is not None]
        for place in sorted(usable, key=lambda place: (rows[place]["t"], rows[place]["o"], place)):
            row = rows[place]
            own = tuple(row[name] for name in self.spec["dedup"]["by"])
            if None in own:
                continue
            found[place] = any(
                own == other
                and (commit == self.commit or watermark <= at + self.within)
                and (self.written is None or abs(row["t"] - at) <= self.written)
                for other, at, commit in self.applied
            )
            is_late = self.on_grids and all(closes(window, row["t"]) <= watermark - time["lateness"] for window in self.spec["windows"])
            self.forgotten[place] = is_late and not found[place] and own in self.came
            self.came.add(own)
            if not found[place] and not is_late:
                self.applied.append((own, row["t"], self.commit))
        self.seen = max([self.seen, *(rows[place]["t"] for place in usable)])
        return found


class Twins:
    """A pipeline with ``dedup``, and one without, in whose source duplicates have a key of their own."""

    def __init__(self, folder: Path, spec: dict[str, Any], *, exact: bool = False, seed: int = 0) -> None:
        self.rng, self.spec, self.exact, self.folder = random.Random(seed), spec, exact, folder
        self.rule, self.rows, self.now, self.duplicates = Rule(spec), list[Row](), 0, 0
        self.rules: list[dict[str, Any]] = []
        self.story = list[str]()

    def pipelines(self) -> list[Any]:
        found = []
        for name in ("raw", "plain"):
            spec = dict(self.spec) | {"expectations": self.rules}
            spec |= {"source": {"path": str(self.folder / name / "source"), "changes": "restate"}}
            spec["sink"] = {"path": str(self.folder / name / "sink")}
            if name == "plain":
                del spec["dedup"]
            found.append(parse_pipeline(spec))
        return found

    def some_rows(self) -> list[Row]:
        """Rows of a commit, 5 % of them copies of earlier ones, or of each other; mostly exact ones."""
        rng, rows = self.rng, list[Row]()
        for _ in range(rng.choice([1, 5, 40])):
            number = len(self.rows) + len(rows)
            time = None if rng.random() < 0.02 else self.now + rng.randint(-20, 10)
            own = {"id": None if rng.random() < 0.03 else f"e{number}", "part": rng.choice([0, 0, 1, None])}
            key, tie = rng.choice("abc"), rng.randint(0, 3)
            # A snapshot has no order of equal times and ties.
            rows.append({"t": time, "k": key, "v": number, **own, "o": 10_000 * tie + number if self.exact else tie})
            everyone = self.rows[-300:] + rows
            if rng.random() < 0.08:
                copy = dict(rng.choice(everyone))
                if not self.exact and copy["t"] is not None and rng.random() < 0.3:
                    copy |= {"t": copy["t"] + rng.randint(-9, 9), "v": copy["v"] + 1_000, "k": rng.choice("abc")}
                rows.append(copy)
        rng.shuffle(rows)
        return rows

    def land(self) -> None:
        rows = self.some_rows()
        copies = self.rule.duplicates(rows)
        self.duplicates += sum(copies)
        self.rows += rows
        self.now += self.rng.choice([0, 3, 10, 30])
        gone = [is_copy or is_late for is_copy, is_late in zip(copies, self.rule.forgotten, strict=True)]
        plain = [row | {"k": COPY if is_gone else row["k"]} for row, is_gone in zip(rows, gone, strict=True)]
        for name, own in (("raw", rows), ("plain", plain)):
            write_deltalake(self.folder / name / "source", pa.Table.from_pylist(own, SCHEMA), mode="append")

    def each(self, act: Any) -> None:
        for pipeline in self.pipelines():
            act(pipeline)

    def ledger(self, name: str = "raw") -> Ledger:
        return Ledger(str(self.folder / name / "sink.windowmill" / "ledger"))

    def shown(self, name: str) -> list[Row]:
        place = self.folder / name / "sink"
        rows = DeltaTable(place).to_pyarrow_table().to_pylist() if (place / "_delta_log").is_dir() else []
        found = [{column: value for column, value in row.items() if column != "batch"} for row in latest(self.pipelines()[0], rows)]
        return sorted((row for row in found if row["k"] != COPY), key=repr)

    def check(self) -> None:
        assert self.shown("raw") == self.shown("plain"), (self.spec, self.story)

    def counted(self) -> Counter[str]:
        """Sums over the batches of runs."""
        found = Counter[str]()
        for batch in self.ledger().batches():
            if batch.plan.advances and batch.status == "committed":
                counts = batch.counts
                assert counts.rows_read == counts.rows_applied + counts.rows_quarantined + counts.duplicates
                found.update(read=counts.rows_read, duplicates=counts.duplicates)
        return found


def run(pipeline: Any) -> None:
    loop.run(pipeline, quiet())


def die(twins: Twins, rng: random.Random) -> None:
    """A run of the pipeline with ``dedup`` that ends at a failpoint."""
    place = rng.choice([place for place in failpoints.FAILPOINTS if not place.startswith(("ruling", "held", "current"))])
    arm(place)
    with suppress(DiedError, WindowmillError, failpoints.InjectedError):
        run(twins.pipelines()[0])
    failpoints.disarm()


def hold(twins: Twins, then: str) -> None:
    """A batch that a rule holds, and what becomes of it."""
    twins.rules = UNMET
    for pipeline in twins.pipelines():
        with suppress(HeldError):
            run(pipeline)
    twins.rules = []
    for pipeline in twins.pipelines():
        with suppress(OutOfTurnError):
            if then == "release":
                loop.run(pipeline, quiet(), ruling="release")
            elif then == "abandon":
                loop.abandon(pipeline, quiet())


def a_grid(**dedup: Any) -> dict[str, Any]:
    """A pipeline of hourly numbers."""
    return {
        "pipeline": "unique",
        "dedup": {"by": ["id"], **dedup},
        "keys": ["k"],
        "time": {"column": "t", "unit": "none", "disorder": 10, "lateness": 10},
        "windows": [{"name": "tens", "type": "tumbling", "size": 10}],
        "aggregates": {"n": {"count": "*"}},
        "quarantine": {"warn": "never", "hold": "never"},
    }


class Counted:
    """A pipeline over rows (t, k, id), which counts them by window."""

    def __init__(self, folder: Path, spec: dict[str, Any]) -> None:
        self.folder, self.spec = folder, spec | {"source": {"path": str(folder / "source"), "changes": "restate"}}
        self.spec |= {"sink": {"path": str(folder / "sink")}}

    @property
    def pipeline(self) -> Any:
        return parse_pipeline(self.spec)

    def land(self, *rows: tuple[int, str, Any]) -> None:
        table = pa.Table.from_pylist([{"t": t, "k": k, "id": own} for t, k, own in rows], SCHEMA)
        write_deltalake(self.folder / "source", table, mode="append")

    def run(self) -> None:
        run(self.pipeline)

    def apply(self, history: int | None = AXIS_BEGIN, **fields: Any) -> None:
        self.spec |= fields
        self.spec = {name: value for name, value in self.spec.items() if value is not None}
        loop.apply(self.pipeline, quiet(), history=history)

    @property
    def rows(self) -> dict[tuple[str, int], int]:
        found = latest(self.pipeline, DeltaTable(self.folder / "sink").to_pyarrow_table().to_pylist())
        return {(row["k"], row["window_end"]): row["n"] for row in found}

    @property
    def remembered(self) -> int:
        return DeltaTable(self.folder / "sink.windowmill" / "seen").to_pyarrow_table().num_rows

    def batches(self) -> list[Any]:
        return Ledger(str(self.folder / "sink.windowmill" / "ledger")).batches()
