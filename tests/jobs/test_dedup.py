"""Duplicates: a pipeline that leaves them out publishes what one without ``dedup`` does over rows from which they are gone."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from benchmarks.pipelines import quiet
from tests.faults.dying import DiedError, arm
from tests.faults.world import UNMET
from tests.latest import latest
from tests.readers import compute_by_many_tasks, use_spark_for_small_batches
from windowmill.checkpoints import data_files, failpoints, seen
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import loop
from windowmill.jobs.batch import maintenance_batches as savepoints
from windowmill.jobs.cli import main
from windowmill.jobs.commands.try_command import attempt
from windowmill.jobs.dataframe import aggregate
from windowmill.jobs.verify.check import verify
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.errors import (
    HeldError,
    OutOfTurnError,
    SourceSchemaError,
    SpecError,
    StateCorruptError,
    UnsupportedError,
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
            rows.append({"t": time, "k": rng.choice("abc"), "v": number, **own, "o": rng.randint(0, 3)})
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


@pytest.mark.local
@pytest.mark.parametrize("seed", [*histories(24), 6170])  # 6170 restates a key of which a row that came too late has copies
def test_whatever_happens_rows_are_those_without_duplicates(tmp_path, monkeypatch, seed):
    rng = random.Random(seed)
    if seed % 2:
        monkeypatch.setattr(seen, "FEW_FILES", 2)
        monkeypatch.setattr(seen, "MERGED_ROWS", 60)
        for module in (seen, data_files):
            monkeypatch.setattr(module, "ROWS_PER_FILE", 25)
        monkeypatch.setattr(seen, "PACKING", replace(seen.PACKING, group_rows=4))
    # What reads a snapshot takes copies in the order of their times: only exact ones are the same whichever of them counts.
    exact = rng.random() < 0.5
    spec, named = a_spec(rng), 0
    if exact:  # a snapshot remembers every row, so that runs must, too, as long as a copy may count
        on_grids = all("size" in window for window in spec["windows"])
        spec["dedup"] = {"by": spec["dedup"]["by"]} | rng.choice([{}, {"within": 200}] if on_grids else [{"within": 10_000}])
    twins = Twins(tmp_path, spec, exact=exact, seed=seed)
    for _ in range(rng.randint(4, 9)):
        for _ in range(rng.choice([1, 1, 2, 4])):
            twins.land()
        what = rng.choice(["run", "run", "die", "hold", "backfill", "savepoint", "restate" if exact else "run"])
        twins.story.append(what)
        if what == "die":
            die(twins, rng)
        elif what == "hold":
            hold(twins, rng.choice(["release", "abandon", "again"]))
        twins.each(run)
        if what == "backfill":
            ends = sorted(rng.sample(range(-20, twins.now + 60), 2))
            with suppress(UnsupportedError):  # windows that are on no grid may lie across the bounds of the range
                twins.each(lambda pipeline, ends=ends: loop.backfill(pipeline, quiet(), begin=ends[0], end=ends[1]))
        elif what == "savepoint":
            named += 1
            twins.each(lambda pipeline, name=f"s{named}": savepoints.create(pipeline, quiet(), name))
            twins.land()
            twins.each(run)
            twins.each(lambda pipeline, name=f"s{named}": savepoints.restore(pipeline, quiet(), name))
            twins.check()
            twins.each(run)
        elif what == "restate":
            chosen = rng.choice([row["v"] for row in twins.rows])
            for name, key in (("raw", "'c'"), ("plain", f"CASE WHEN k = '{COPY}' THEN k ELSE 'c' END")):
                DeltaTable(tmp_path / name / "source").update(predicate=f"v = {chosen}", updates={"k": key})
            for row in twins.rows:
                row["k"] = "c" if row["v"] == chosen else row["k"]
            twins.each(run)
        twins.check()
    assert twins.counted()["read"] >= len(twins.rows) or exact
    if not any(batch.plan.goes_back or batch.plan.restates for batch in twins.ledger().batches()):
        assert twins.counted() == {"read": len(twins.rows), "duplicates": twins.duplicates}


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


@pytest.mark.parametrize("engine", ["kernel", "reference"])
@pytest.mark.parametrize("seed", range(12))
def test_try_leaves_out_what_runs_leave_out(tmp_path, seed, engine):
    rng = random.Random(seed)
    twins = Twins(tmp_path, a_spec(rng), seed=seed)
    lines: dict[str, list[Row]] = {"raw": [], "plain": []}
    for _ in range(60):
        rows = [row | {"t": row["t"] or 0} for row in twins.some_rows()][:5]
        if rng.random() < 0.2:  # a copy in the same commit, which counts for nobody whatever ``within`` is
            rows[-1] = dict(rows[0])
        rows += [{"t": None, "k": "a", "v": 0, "id": None, "part": None, "o": 0}] * (5 - len(rows))
        copies = twins.rule.duplicates(rows)
        twins.rows += rows
        twins.now += rng.choice([0, 5, 10])
        lines["raw"] += rows
        lines["plain"] += [row | {"k": COPY if is_copy else row["k"]} for row, is_copy in zip(rows, copies, strict=True)]
    found = {}
    for name, pipeline in zip(lines, twins.pipelines(), strict=True):
        text = "\n".join(map(json.dumps, lines[name])).encode()
        cut = {"batch_rows": rng.choice([None, 5, 30])} if name == "raw" else {}
        found[name] = [row for row in attempt(pipeline, text, engine=engine, commit_rows=5, **cut).rows if row["k"] != COPY]
    assert found["raw"] == found["plain"]
    assert any(row["k"] == COPY for row in lines["plain"])


SPARK = ["one task", "many tasks", "read by Spark", "read by Spark, many tasks"]


@pytest.fixture(params=SPARK)
def computed_by_spark(request, monkeypatch, spark):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "spark")
    if "many" in request.param:
        compute_by_many_tasks(monkeypatch)
    if "read" in request.param:
        use_spark_for_small_batches(monkeypatch)


@pytest.mark.spark
@pytest.mark.parametrize("seed", [1, 4])
def test_spark_leaves_out_what_this_process_leaves_out(tmp_path, computed_by_spark, seed):
    twins = Twins(tmp_path, a_spec(random.Random(seed)), exact=True, seed=seed)
    for _ in range(3):
        for _ in range(3):
            twins.land()
        twins.each(run)
        twins.check()
    assert twins.counted() == {"read": len(twins.rows), "duplicates": twins.duplicates}
    assert twins.duplicates
    twins.each(lambda pipeline: loop.backfill(pipeline, quiet(), begin=-50, end=twins.now))
    twins.check()
    twins.each(lambda pipeline: loop.restate(pipeline, quiet()))
    twins.check()
    twins.land()
    twins.each(run)
    twins.check()


@pytest.mark.spark
@pytest.mark.parametrize("seed", range(4))
def test_aggregate_leaves_out_all_but_the_first_of_each(tmp_path, spark, seed):
    twins = Twins(tmp_path, a_spec(random.Random(seed)), seed=seed)
    rows = [row | {"o": number} for number, row in enumerate(row for _ in range(8) for row in twins.some_rows())]
    copies = twins.rule.duplicates(rows)
    frame = spark.createDataFrame(pa.Table.from_pylist(rows, SCHEMA))
    left = [row for row, is_copy in zip(rows, copies, strict=True) if not is_copy]
    plain = spark.createDataFrame(pa.Table.from_pylist(left, SCHEMA))
    raw, without = twins.pipelines()
    assert sorted(map(repr, aggregate(frame, raw).collect())) == sorted(map(repr, aggregate(plain, without).collect()))
    assert any(copies)


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


@pytest.mark.local
def test_a_changed_dedup_recomputes_the_history(tmp_path):
    own = Counted(tmp_path, a_grid() | {"dedup": None})
    own.spec.pop("dedup")
    own.land((1, "a", "x"), (2, "a", "x"), (3, "a", "y"), (5, "b", "y"))
    own.land((40, "a", "z"))
    own.run()
    assert own.rows == {("a", 10): 3, ("b", 10): 1}
    own.apply(dedup={"by": ["id"]})
    assert own.rows == {("a", 10): 2}
    own.land((41, "a", "z"), (45, "b", "z"), (80, "a", "w"))
    own.run()
    assert own.rows == {("a", 10): 2, ("a", 50): 1}
    assert own.remembered == 4  # x and y have expired, but lie in a file with z
    own.apply(dedup={"by": ["id", "k"]})
    assert own.rows == {("a", 10): 2, ("b", 10): 1, ("a", 50): 1, ("b", 50): 1}
    own.apply(windows=[*own.spec["windows"], {"name": "other", "type": "tumbling", "size": 20}])
    assert {key: n for key, n in own.rows.items() if key[1] == 60} == {("a", 60): 1, ("b", 60): 1}
    own.land((81, "a", "w"), (130, "a", "v"))
    own.run()
    assert own.batches()[-1].counts.duplicates == 1
    own.apply(dedup=None)
    assert own.rows[("a", 50)] == 2
    assert own.remembered == 0


@pytest.mark.local
def test_a_restatement_counts_the_copy_of_a_row_that_is_gone(tmp_path):
    own = Counted(tmp_path, a_grid(within=30))
    own.land((1, "a", "x"), (3, "b", "y"))
    own.land((12, "b", "x"), (13, "a", "y"), (14, "c", "z"))
    own.land((60, "a", "w"))
    own.run()
    assert own.rows == {("a", 10): 1, ("b", 10): 1, ("c", 20): 1}
    DeltaTable(tmp_path / "source").delete("t = 1")
    own.run()
    assert own.rows == {("b", 10): 1, ("b", 20): 1, ("c", 20): 1}
    DeltaTable(tmp_path / "source").update(predicate="t = 13", updates={"id": "'other'"})
    own.run()
    assert own.rows == {("b", 10): 1, ("a", 20): 1, ("b", 20): 1, ("c", 20): 1}
    # What is remembered is that of the rows as they are now.
    own.land((61, "a", "w"), (62, "b", "w"), (110, "c", "u"))
    own.run()
    assert own.rows[("a", 70)] == 1
    assert ("b", 70) not in own.rows


@pytest.mark.local
def test_a_copy_of_a_key_that_shares_nothing_else_counts_once_its_row_is_gone(tmp_path):
    own = Counted(tmp_path, a_grid(within=30))
    own.land((1, "a", "x"))
    own.land((12, "b", "x"), (60, "c", "w"))
    own.run()
    assert own.rows == {("a", 10): 1}
    DeltaTable(tmp_path / "source").delete("t = 1")
    own.run()
    assert own.rows == {("b", 20): 1}


@pytest.mark.local
def test_a_restatement_counts_the_copy_of_a_row_on_which_a_condition_fails_now(tmp_path):
    own = Counted(tmp_path, a_grid(within=30) | {"aggregates": {"n": {"count": "*", "where": "cast(k as int) > 0"}}, "keys": ["id"]})
    own.land((1, "1", "x"))
    own.land((2, "1", "x"), (60, "1", "z"))
    own.run()
    DeltaTable(tmp_path / "source").update(predicate="t = 1", updates={"k": "'none'"})
    own.run()
    assert own.batches()[-1].counts.quarantined == {"bad_condition": 1}
    found = latest(own.pipeline, DeltaTable(tmp_path / "sink").to_pyarrow_table().to_pylist())
    assert [(row["id"], row["window_end"], row["n"]) for row in found] == [("x", 10, 1)]


@pytest.mark.local
def test_entries_expire_with_the_watermark_and_are_merged(tmp_path, monkeypatch):
    monkeypatch.setattr(seen, "FEW_FILES", 3)
    own = Counted(tmp_path, a_grid())
    sizes = []
    for number in range(40):
        own.land(*((number * 5 + extra, "a", f"{number}-{extra}") for extra in range(4)))
        own.run()
        sizes.append((own.remembered, len(DeltaTable(tmp_path / "sink.windowmill" / "seen").file_uris())))
    # Of 30 behind the watermark, which is 10 behind the newest row, and what has expired since files were merged.
    assert all(32 <= rows <= 90 for rows, _ in sizes[12:])
    assert all(files <= 12 for _, files in sizes)


@pytest.mark.local
@pytest.mark.parametrize(
    ("dedup", "problem"),
    [
        ({"by": []}, "dedup.by"),
        ({"by": ["id", "ID"]}, "the name 'id' is given twice"),
        ({"by": ["id"], "within": -1}, "dedup.within: got -1; expected a fixed length, zero or more"),
        ({"by": ["id"], "within": "5 minutes"}, "dedup.within: got 5 minutes; expected a plain integer"),
        ({"by": ["id"], "within": "1 month"}, "dedup.within: got 1 month; expected a fixed length"),
        ({"by": ["nothing"]}, "dedup.by.0: .*'nothing'"),
        ({"by": ["m"]}, r"dedup.by.0: 'm' is map<string,bigint>, which identifies no row; name a column of a simple type, a field of it"),
    ],
    ids=str,
)
def test_a_dedup_that_cannot_be_is_refused(tmp_path, dedup, problem):
    fields = [("t", pa.int64()), ("k", pa.string()), ("id", pa.string()), ("m", pa.map_(pa.string(), pa.int64()))]
    write_deltalake(tmp_path / "source", pa.Table.from_pylist([{"t": 1, "k": "a", "id": "x", "m": []}], pa.schema(fields)))
    with pytest.raises((SpecError, SourceSchemaError), match=problem):
        Counted(tmp_path, a_grid() | {"dedup": dedup}).run()


@pytest.mark.local
def test_rows_of_a_struct_and_behind_steps(tmp_path):
    kind = pa.schema([("t", pa.int64()), ("k", pa.string()), ("event", pa.struct([("id", pa.string())]))])
    events = [(1, {"id": "x"}), (2, {"id": "X"}), (3, {"id": "y"}), (4, None), (5, {"id": None})]
    rows = [{"t": t, "k": "a", "event": event} for t, event in events]
    write_deltalake(tmp_path / "source", pa.Table.from_pylist([*rows, {"t": 50, "k": "a", "event": {"id": "z"}}], kind))
    own = Counted(tmp_path, a_grid() | {"dedup": {"by": ["event.id"]}})
    own.run()
    assert own.rows == {("a", 10): 5}
    other = Counted(tmp_path, a_grid() | {"dedup": {"by": ["low"]}, "steps": [{"columns": {"low": "lower(event.id)"}}]})
    other.spec["sink"] = {"path": str(tmp_path / "other")}
    run(other.pipeline)
    assert DeltaTable(tmp_path / "other").to_pyarrow_table().column("n").to_pylist() == [4]


@pytest.mark.spark
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_verify_recomputes_without_duplicates(tmp_path, spark, monkeypatch, seed, exact):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    rng = random.Random(seed)
    spec = a_spec(rng)
    spec["windows"] = [GRIDS[0], *rng.sample(OTHERS[:2], seed % 2)]
    twins = Twins(tmp_path, spec, exact=exact, seed=seed)
    for _ in range(6):
        for _ in range(3):
            twins.land()
        twins.each(run)
    assert twins.duplicates
    found = verify(twins.pipelines()[0], quiet(), number=60, seed=1).comparison
    assert [(row.row, row.differences) for row in found.differing] == []
    assert len(found.rows) >= 10
    # A copy that counted nevertheless is found.
    place = tmp_path / "raw" / "source"
    rows = DeltaTable(place).to_pyarrow_table().to_pylist()
    write_deltalake(place, pa.Table.from_pylist([row | {"id": None} for row in rows], SCHEMA), mode="overwrite")
    changed = verify(twins.pipelines()[0], quiet(), number=60, seed=1).comparison
    assert changed.differing or changed.left_out


def verified(tmp_path: Path, monkeypatch: Any, **fields: Any) -> tuple[Counted, list[Any]]:
    """A pipeline that runs in this process over the rows in ``tmp_path``, and what `verify` says of its published rows."""
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    own = Counted(tmp_path, a_grid() | fields)
    own.run()
    found = verify(own.pipeline, quiet(), number=60, seed=1).comparison
    assert len(found.rows) == len(own.rows)
    assert not found.left_out
    return own, [(row.row, row.differences) for row in found.differing]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("kind", "values", "n_distinct"),
    [
        (pa.timestamp("us", "UTC"), [datetime(2024, 1, 1, microsecond=us, tzinfo=UTC) for us in (1, 1, 2, 2)], 2),
        (pa.float64(), [0.0, -0.0, 1.0, float("nan"), float("nan")], 3),
        (pa.decimal128(12, 4), [Decimal("1.25"), Decimal("1.2500"), Decimal("1.2501")], 2),
    ],
    ids=str,
)
def test_verify_compares_values_as_runs_do(tmp_path, spark, monkeypatch, kind, values, n_distinct):
    rows = [{"t": number, "k": "a", "id": value} for number, value in enumerate(values)]
    rows.append({"t": 100, "k": "z", "id": None})
    schema = pa.schema([("t", pa.int64()), ("k", pa.string()), ("id", kind)])
    write_deltalake(tmp_path / "source", pa.Table.from_pylist(rows, schema), mode="append")
    own, differing = verified(tmp_path, monkeypatch)
    assert own.rows == {("a", 10): n_distinct}
    assert differing == []


@pytest.mark.spark
@pytest.mark.parametrize("windows", [None, [{"name": "visit", "type": "session", "gap": 6}]])
def test_verify_takes_columns_of_any_name(tmp_path, spark, monkeypatch, windows):
    names = ["_closed_through", "_text", "_times", "_id", "_from", "_gap", "_session", "reason"]
    for rows in ([(1, "x"), (2, "x"), (60, "y")], [(3, "z")]):  # the last one is too late
        times, ids = zip(*rows, strict=True)
        table = pa.table({"t": times, "k": ["a"] * len(rows)} | dict.fromkeys(names, ids))
        write_deltalake(tmp_path / "source", table, mode="append")
    own, differing = verified(tmp_path, monkeypatch, dedup={"by": names}, **({} if windows is None else {"windows": windows}))
    assert differing == []
    assert list(own.rows.values()) == [1]
    assert own.batches()[-1].counts.rows_quarantined == 1


@pytest.mark.spark
@pytest.mark.parametrize(
    ("window", "until", "late", "counted"),
    [
        # In no window, so that it is not too late either.
        ({"type": "hopping", "size": 5, "hop": 20}, None, (27, 28), {("a", 45): 1}),
        # The windows that hold it have been closed, as none holds the instant at which it ends.
        ({"type": "tumbling", "size": 10}, "until", (15, 30), {("a", 50): 2, ("z", 40): 1}),
    ],
    ids=["between windows", "until the end of a window"],
)
def test_verify_judges_late_rows_as_runs_do(tmp_path, spark, monkeypatch, window, until, late, counted):
    schema = pa.schema([("t", pa.int64()), ("until", pa.int64()), ("k", pa.string()), ("id", pa.string())])
    commits = [[(31, 32, "z", None)], [(*late, "a", "x")], [(43, 44, "a", "x"), (44, 45, "a", "y")], [(100, 101, "z", None)]]
    for rows in commits:
        table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
        write_deltalake(tmp_path / "source", table, mode="append")
    time = {"column": "t", "unit": "none"} | ({} if until is None else {"end": until})
    own, differing = verified(tmp_path, monkeypatch, windows=[{"name": "w", **window}], time=time, dedup={"by": ["id"], "within": 100})
    assert own.rows == counted
    assert differing == []


@pytest.mark.local
def test_commands_say_what_was_left_out(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = Counted(tmp_path, a_grid())
    own.land((1, "a", "x"), (2, "a", "x"), (60, "a", "y"))
    Path("own.yaml").write_text(yaml.safe_dump(own.spec))
    assert main(["run", "own.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["batches"][0]["duplicates"] == 1
    for command, text in {
        "explain": "rows with the id of an applied row are left out until the watermark has passed its time by 30",
        "history": "duplicates",
        "status": "duplicates",
    }.items():
        assert main([command, "own.yaml"]) == 0
        assert text in " ".join(capsys.readouterr().out.split())
    assert main(["report", "own.yaml"]) == 0
    assert "duplicates, left out" in (tmp_path / "sink.windowmill" / "report.html").read_text()
    own.spec["source"]["filter"] = "soundex(k) = 'A000'"
    Path("own.yaml").write_text(yaml.safe_dump(own.spec))
    assert main(["explain", "own.yaml"]) == 0
    assert "restatements are refused, as only Spark evaluates source.filter" in " ".join(capsys.readouterr().out.split())


@pytest.mark.local
@pytest.mark.parametrize("changed", [False, True])
def test_init_proposes_dedup_where_rows_with_an_id_come_twice(tmp_path, capsys, monkeypatch, changed):
    monkeypatch.chdir(tmp_path)
    at = [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(minutes=number) for number in range(200)]
    rows = [{"event_id": f"e{number}", "shop": "ab"[number % 2], "at": time, "v": number} for number, time in enumerate(at)]
    rows += [row | ({"v": -1} if changed else {}) for row in rows[10:20]]
    write_deltalake(tmp_path / "source", pa.Table.from_pylist(rows))
    assert main(["init", "--source", str(tmp_path / "source"), "--time", "at", "--yes"]) == 0
    [written] = tmp_path.glob("*.yaml")
    assert yaml.safe_load(written.read_text()).get("dedup") == (None if changed else {"by": ["event_id"]})
    assert ("repeat a value of event_id" in written.read_text()) == changed
    capsys.readouterr()


@pytest.mark.local
def test_files_that_others_rewrite_lose_no_entry(tmp_path, monkeypatch):
    monkeypatch.setattr(seen, "FEW_FILES", 1)
    own = Counted(tmp_path, a_grid(within=1_000))
    for number in range(3):
        own.land((number, "a", f"x{number}"))
        own.run()
    own.land((5, "a", "x4"))
    arm("seen.before")
    with pytest.raises(DiedError):
        own.run()
    failpoints.disarm()
    DeltaTable(tmp_path / "sink.windowmill" / "seen").optimize.compact()
    own.land(*((6, "a", f"x{number}") for number in (0, 1, 2, 4)), (60, "a", "y"))
    own.run()
    assert own.rows == {("a", 10): 4}


@pytest.mark.local
def test_entries_that_a_restatement_forgets_go_from_files_that_others_rewrite(tmp_path):
    own = Counted(tmp_path, a_grid(within=1_000))
    for row in ((1, "a", "x"), (2, "a", "y")):
        own.land(row)
        own.run()
    DeltaTable(tmp_path / "source").delete("id = 'x'")
    arm("seen.before")
    with pytest.raises(DiedError):
        own.run()
    failpoints.disarm()
    DeltaTable(tmp_path / "sink.windowmill" / "seen").optimize.compact()
    own.land((6, "a", "x"), (60, "a", "z"))
    own.run()
    assert own.rows == {("a", 10): 2}


@pytest.mark.local
@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: bytes(200) + data[200:]], ids=["shorter", "other"])
def test_a_damaged_table_of_remembered_rows_is_named(tmp_path, damage):
    own = Counted(tmp_path, a_grid())
    own.land((1, "a", "x"))
    own.run()
    [file] = (tmp_path / "sink.windowmill" / "seen").glob("*.parquet")
    file.write_bytes(damage(file.read_bytes()))
    own.land((2, "a", "x"))
    with pytest.raises(StateCorruptError, match=rf"^seen (file://)?{tmp_path}/sink\.windowmill/seen/?: "):
        own.run()


@pytest.mark.local
@pytest.mark.parametrize("range_", [(50, None), (None, 50), "backfill"])
def test_a_range_does_not_divide_rows_with_equal_ids(tmp_path, range_):
    """Of two rows with other times and keys the later one came first, and counts until all windows are computed again."""
    own = Counted(tmp_path, a_grid())
    own.land((50, "a", "x"))
    own.land((45, "b", "x"), (20, "c", "q"))
    own.land((100, "z", "z"))
    own.run()
    if range_ == "backfill":  # which reads the table as it is once a change has been restated
        DeltaTable(tmp_path / "source").update(predicate="t = 20", updates={"id": "'other'"})
        own.run()
    shown = own.rows
    recompute = partial(loop.backfill, begin=50, end=100) if range_ == "backfill" else partial(loop.restate, ends=range_)
    with pytest.raises(UnsupportedError, match=r"rows with equal values of dedup\.by have times inside and outside of the range"):
        recompute(own.pipeline, quiet())
    assert own.rows == shown
    loop.restate(own.pipeline, quiet(), ends=(0, None))
    assert sum(own.rows.values()) == sum(shown.values())


@pytest.mark.local
def test_a_restatement_of_other_keys_remembers_the_row_that_counts(tmp_path):
    own = Counted(tmp_path, a_grid() | {"time": {"column": "t", "unit": "none", "disorder": 0, "lateness": 10}})
    for row in ((20, "c", "q"), (50, "a", "x"), (45, "b", "x")):
        own.land(row)
        own.run()
    DeltaTable(tmp_path / "source").update(predicate="t = 20", updates={"id": "'other'"})
    own.run()
    for row in ((66, "z", "z"), (50, "a", "x"), (100, "z", "later")):
        own.land(row)
    own.run()
    assert own.rows[("a", 60)] == 1


@pytest.mark.local
@pytest.mark.parametrize("within", [None, 5, 40])
@pytest.mark.parametrize("history", [AXIS_BEGIN, 110, None])
def test_a_changed_spec_finds_duplicates_of_rows_before_its_windows(tmp_path, within, history):
    own = Counted(tmp_path, a_grid(**({} if within is None else {"within": within})))
    for row in ((75, "a", "x"), (110, "a", "y"), (112, "a", "x"), (113, "a", "y")):
        own.land(row)
    own.run()
    copies = 3 if within == 5 else 2
    own.apply(history=history, windows=[*own.spec["windows"], {"name": "sevens", "type": "tumbling", "size": 7}])
    own.land((200, "a", "z"))
    own.run()
    found = latest(own.pipeline, DeltaTable(tmp_path / "sink").to_pyarrow_table().to_pylist())
    assert [row["n"] for row in found if (row["window"], row["window_end"]) == ("tens", 120)] == [copies - 1]


@pytest.mark.local
def test_a_changed_spec_reads_the_rows_that_decide_about_those_that_decide(tmp_path):
    """The first row makes the second one a duplicate, which lies near enough to the third one."""
    own = Counted(tmp_path, a_grid(within=60) | {"windows": [{"name": "hours", "type": "tumbling", "size": 60}]})
    for time in (530, 580, 630):
        own.land((time, "a", "x"))
    own.run()
    own.apply(history=None, windows=[*own.spec["windows"], {"name": "sevens", "type": "tumbling", "size": 7}])
    own.land((800, "a", "z"))
    own.run()
    found = latest(own.pipeline, DeltaTable(tmp_path / "sink").to_pyarrow_table().to_pylist())
    assert {(row["window_end"], row["n"]) for row in found if row["window"] == "hours"} == {(540, 1), (660, 1)}


@pytest.mark.local
@pytest.mark.parametrize(("by", "steps"), [("event.id", []), ("e", [{"columns": {"e": "event.id"}}]), ("d", [])])
def test_ids_of_another_kind_are_refused(tmp_path, by, steps):
    def land(number: pa.DataType, decimals: int) -> None:
        fields = [("t", pa.int64()), ("k", pa.string()), ("event", pa.struct([("id", number)])), ("d", pa.decimal128(20, decimals))]
        rows = pa.Table.from_pylist([{"t": 1, "k": "a", "event": {"id": 1}, "d": 1}], pa.schema(fields))
        write_deltalake(tmp_path / "source", rows, mode="overwrite", schema_mode="overwrite")

    land(pa.int32(), 2)
    own = Counted(tmp_path, a_grid() | {"dedup": {"by": [by]}, "steps": steps})
    own.spec["source"]["changes"] = "ignore"
    own.run()
    land(pa.float64(), 4)
    with pytest.raises(SourceSchemaError, match=rf"column '{by}' was .* and is now .*, and dedup\.by names it"):
        own.run()


@pytest.mark.local
def test_ids_of_another_kind_in_a_looked_up_table_are_refused(tmp_path):
    names = {"key": ["a"], "number": [7]}
    write_deltalake(tmp_path / "names", pa.table(names))
    lookup = {"path": str(tmp_path / "names"), "on": {"k": "key"}, "columns": ["number"]}
    own = Counted(tmp_path, a_grid() | {"dedup": {"by": ["number"]}, "steps": [{"lookup": lookup}]})
    own.land((1, "a", "x"))
    own.run()
    write_deltalake(tmp_path / "names", pa.table(names | {"number": ["7"]}), mode="overwrite", schema_mode="overwrite")
    own.land((2, "a", "y"))
    with pytest.raises(SourceSchemaError, match=r"lookup names: column 'number' of .* was BIGINT and is now STRING"):
        own.run()


@pytest.mark.local
def test_rows_without_a_match_are_known_to_a_restatement(tmp_path):
    write_deltalake(tmp_path / "names", pa.table({"key": ["a"], "name": ["A"]}))
    lookup = {"path": str(tmp_path / "names"), "on": {"k": "key"}, "columns": ["name"], "missing": "quarantine"}
    own = Counted(tmp_path, a_grid() | {"keys": ["name"], "steps": [{"lookup": lookup}]})
    own.land((1, "a", "x"), (2, "a", "x"), (3, "none", "y"), (60, "a", "z"))
    own.run()
    DeltaTable(tmp_path / "source").update(predicate="id = 'z'", updates={"t": "61"})
    own.run()
    found = latest(own.pipeline, DeltaTable(tmp_path / "sink").to_pyarrow_table().to_pylist())
    assert [(row["name"], row["window_end"], row["n"]) for row in found] == [("A", 10, 1)]


@pytest.mark.local
def test_rows_that_stay_in_quarantine_are_nobodys_first(tmp_path):
    """Of two rows that came too late, the range holds only the later one: it counts, as the other one counts nowhere."""
    own = Counted(tmp_path, a_grid())
    for rows in ([(1, "a", "y"), (100, "z", "z")], [(20, "a", "x"), (51, "b", "x")]):
        own.land(*rows)
        own.run()
    assert own.batches()[-1].counts.rows_quarantined == 2
    loop.restate(own.pipeline, quiet(), ends=(40, 70), late=True)
    assert own.rows == {("a", 10): 1, ("b", 60): 1}


@pytest.mark.local
def test_a_range_does_not_divide_intervals_that_reach_into_it(tmp_path):
    """A row that begins before the range is in its windows, too, however short these are."""
    spec = a_grid() | {"time": {"column": "t", "end": "until", "unit": "none", "disorder": 10, "lateness": 10}}
    own = Counted(tmp_path, spec)
    schema = pa.schema([("t", pa.int64()), ("until", pa.int64()), ("k", pa.string()), ("id", pa.string())])
    for rows in ([(3, 48, "a", "x")], [(2, 9, "b", "x"), (100, 101, "z", "z")]):
        write_deltalake(
            tmp_path / "source", pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema), mode="append"
        )
        own.run()
    with pytest.raises(UnsupportedError, match=r"rows with equal values of dedup\.by have times inside and outside of the range"):
        loop.restate(own.pipeline, quiet(), ends=(30, None))
