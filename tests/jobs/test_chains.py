"""Pipelines over the results of others: their rows are those of a brute force over the other one's latest view, whatever happens to it."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from tests import latest
from tests.faults.dying import DiedError, arm
from tests.faults.kills import Run
from tests.faults.world import UNMET
from tests.jobs.test_widened_columns import retype
from tests.readers import compute_by_many_tasks
from tests.spark.harness import quiet
from windowmill import aggregate
from windowmill.checkpoints import current, failpoints
from windowmill.checkpoints.batches import RunPlan
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.jobs.batch import loop, purging
from windowmill.jobs.batch import maintenance_batches as savepoints
from windowmill.jobs.cli import main
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.jobs.sources import chains
from windowmill.jobs.sources.chains import InputCheck, Marker, UpstreamSink
from windowmill.jobs.sources.unread import SourceWatch
from windowmill.jobs.verify.check import verify
from windowmill.windowing import errors
from windowmill.windowing.axis import AXIS_BEGIN, to_us
from windowmill.windowing.errors import HeldError, SourceMissingError, SourceReplacedError
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import load_pipeline, parse_pipeline

pytestmark = pytest.mark.local
MINUTE, HOUR = 60_000_000, 3_600_000_000
#: 2024-03-09T22:00Z, some hours before New York sets its clocks forward.
BASE = 1_710_021_600_000_000
Row = dict[str, Any]
#: Ends and failures of a chain, by where a process ends.
PLACES = (*failpoints.OF_INPUT, "batch.before", "batch.after", "sink.after")


def plain(value: Any) -> Any:
    return to_us(value) if isinstance(value, datetime) else value


def rows_of(path: str) -> list[Row]:
    try:
        found = DeltaTable(path).to_pyarrow_table().to_pylist()
    except Exception:  # noqa: BLE001 - there is no table yet
        return []
    return [{name: plain(value) for name, value in row.items()} for row in found]


class Level:
    """A pipeline in a file, and what it has published."""

    def __init__(self, folder: Path, spec: Mapping[str, Any]) -> None:
        self.spec = {"quarantine": {"warn": "never", "hold": "never"}, "sink": {"path": str(folder / str(spec["pipeline"]))}, **spec}
        self.file = folder / f"{spec['pipeline']}.yaml"
        self.write()

    def write(self, **changes: Any) -> None:
        self.spec |= changes
        self.file.write_text(yaml.safe_dump(self.spec))

    @property
    def pipeline(self) -> Any:
        return load_pipeline(self.file)

    @property
    def ledger(self) -> Ledger:
        return Ledger.open(self.pipeline)

    def run(self, **options: Any) -> list[Any]:
        return loop.run(self.pipeline, quiet(), **options)

    def shown(self) -> list[Row]:
        return latest.latest(self.pipeline, rows_of(self.spec["sink"]["path"]))

    def complete(self) -> int | None:
        return self._marker().complete if self._marker().complete != AXIS_BEGIN else None

    def _marker(self) -> Marker:
        found = Marker.of(DeltaTable(Places.of(self.pipeline).input))
        assert found is not None
        return found

    @property
    def emitted(self) -> int | None:
        last = self.ledger.last_commit
        return None if last is None else last.outcome.emitted


# -- A brute force over the latest view


def grid_spans(window: Mapping[str, Any], at: int, unit: int) -> Iterator[tuple[int, int]]:
    """The windows of a grid that hold ``at``, by walking along the axis."""
    size, hop = window["size"], window.get("hop", window["size"])
    size, hop = (value * unit if isinstance(value, int) else int(str(value).split()[0]) * unit for value in (size, hop))
    start = (at // hop) * hop
    while start > at - size:
        yield start, start + size
        start -= hop


def brute(level: Level, rows: Sequence[Row]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Key, window, start and end -> values of the aggregates, of the rows of the other pipeline's latest view."""
    spec, found = level.spec, dict[tuple[Any, ...], list[Row]]()
    column = spec.get("time", {}).get("column", "window_end")
    unit = 1 if level.pipeline.time.integer_axis else MINUTE
    for window in spec["windows"]:
        if window["type"] == "session":
            gap = window["gap"] if isinstance(window["gap"], int) else int(window["gap"].split()[0]) * MINUTE
            by_key = dict[tuple[Any, ...], list[Row]]()
            for row in rows:
                by_key.setdefault(tuple(row[key] for key in spec["keys"]), []).append(row)
            for key, own in by_key.items():
                session = list[Row]()
                for row in sorted(own, key=lambda row: row[column]):
                    if session and row[column] > session[-1][column] + gap:
                        found[(*key, window["name"], session[0][column], session[-1][column] + gap)] = session
                        session = []
                    session.append(row)
                found[(*key, window["name"], session[0][column], session[-1][column] + gap)] = session
            continue
        for row in rows:
            for start, end in grid_spans(window, row[column], unit):
                found.setdefault((*(row[key] for key in spec["keys"]), window["name"], start, end), []).append(row)
    return {place: values_of(spec["aggregates"], own) for place, own in found.items()}


def values_of(aggregates: Mapping[str, Any], rows: Sequence[Row]) -> tuple[Any, ...]:
    found = list[Any]()
    for spec in aggregates.values():
        [(function, column)] = spec.items()
        values = [row[column] for row in rows if column != "*" and row[column] is not None]
        found.append(len(rows) if column == "*" else None if not values else {"sum": sum, "max": max, "min": min}[function](values))
    return tuple(found)


def published(level: Level) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    keys, aggregates = level.spec["keys"], level.spec["aggregates"]
    return {
        (*(row[key] for key in keys), row["window"], row["window_start"], row["window_end"]): tuple(row[name] for name in aggregates)
        for row in level.shown()
    }


def chosen(lower: Level, upper: Level) -> list[Row]:
    """The rows of the latest view that the upper pipeline reads."""
    source = upper.spec["source"]
    names = {source["window"]} if "window" in source else set(source.get("windows", [])) or {w["name"] for w in lower.spec["windows"]}
    return [row for row in lower.shown() if row["window"] in names]


def closes(level: Level, place: tuple[Any, ...], through: int | None) -> bool:
    """Whether a window is complete through an instant."""
    window = next(each for each in level.spec["windows"] if each["name"] == place[-3])
    return through is not None and (place[-1] < through if window["type"] == "session" else place[-1] <= through)


# -- Random pipelines, and what happens to them


class World:
    """A random pipeline over random events, one over its results, and one that shows only what is final."""

    def __init__(self, folder: Path, seed: int, **fields: Any) -> None:
        self.rng, self.folder, self.n, self.minute, self.saved = random.Random(seed), folder, 0, 0.0, 0
        rng = self.rng
        self.integers = rng.random() < 0.3
        self.length: Callable[[int], Any] = (lambda n: n) if self.integers else (lambda n: f"{n} minutes")
        keys = rng.choice([["shop", "item"], ["shop", "item"], ["shop"], []])
        emit = rng.choice(["final", "revise"])
        windows = [{"name": f"w{number}", **self.window(emit)} for number in range(rng.choice([1, 1, 2, 3]))]
        time = {"column": "t", "disorder": self.length(rng.choice([0, 3])), "lateness": self.length(rng.choice([0, 10, 60, 600]))}
        self.lower = Level(
            folder,
            {
                "pipeline": "lower",
                "source": {"path": str(folder / "events"), "changes": "restate"},
                "keys": keys,
                "time": time | {"tie_break": ["id"]} | ({"unit": "none"} if self.integers else {}),
                "windows": windows,
                "aggregates": {"n": {"count": "*"}, "total": {"sum": "v"}, "high": {"max": "v"}},
                "emit": emit,
            }
            | fields,
        )
        self.checks = True  # whether a brute force knows the windows
        self.upper, self.left = self._reader("upper", 100_000, "revise"), self._reader("left", *self._little())

    def window(self, emit: str) -> dict[str, Any]:
        rng, length = self.rng, self.length
        kinds = ["tumbling", "tumbling", "hopping", "cumulative", "session", "sliding", "count", "last"]
        kind = rng.choice(kinds if self.integers else [*kinds, "calendar"])
        if kind == "tumbling":
            return {"type": "tumbling", "size": length(5), "empty": rng.choice(["skip", "emit"])}
        if kind == "hopping":
            return {"type": "hopping", "size": length(rng.choice([15, 7])), "hop": length(5)}
        if kind == "cumulative":
            return {"type": "cumulative", "size": length(20), "step": length(5)}
        if kind == "session":
            return {"type": "session", "gap": length(4)}
        if kind == "calendar":
            return {"type": "tumbling", "size": "1 day", "timezone": "America/New_York"}
        if kind == "sliding":
            return {"type": "sliding", "evict": {"time": length(12)}, "trigger": {"time": length(5)}}
        if kind == "count":
            return {"type": "count", "count": 3} if emit == "final" else {"type": "session", "gap": length(2)}
        return {"type": "sliding", "evict": {"count": 3}, "trigger": {"count": 2}} | rng.choice([{}, {"idle_after": length(60)}])

    def _little(self) -> tuple[int, str]:
        return self.rng.choice([0, 20]), self.rng.choice(["final", "revise"])

    def _reader(self, name: str, lateness: int, emit: str) -> Level:
        rng, windows = self.rng, self.lower.spec["windows"]
        taken = rng.sample(windows, rng.randint(1, len(windows)))
        names = [window["name"] for window in taken]
        source: Row = {"pipeline": "lower.yaml"}
        if len(names) > 1:
            source["windows"] = names
        elif len(windows) > 1 or rng.random() < 0.5:
            source["window"] = names[0]
        on_grid = all(window["type"] in ("tumbling", "hopping", "cumulative") for window in taken)
        time = {"lateness": self.length(lateness)} | ({"column": "window_start"} if on_grid and rng.random() < 0.5 else {})
        keys = rng.sample(self.lower.spec["keys"], rng.randint(0, len(self.lower.spec["keys"])))
        own = [{"name": "by_size", "type": "tumbling", "size": self.length(30)}, {"name": "over", "type": "hopping"}]
        own[1] |= {"size": self.length(60), "hop": self.length(20)}
        own += [{"name": "visit", "type": "session", "gap": self.length(25)}] if name == "upper" else []
        return Level(
            self.folder,
            {
                "pipeline": name,
                "source": source,
                "keys": keys,
                "time": time,
                "windows": rng.sample(own, rng.randint(1, len(own))),
                "aggregates": {"rows": {"count": "*"}, "n": {"sum": "n"}, "total": {"sum": "total"}, "high": {"max": "high"}},
                "emit": emit,
            },
        )

    def land(self, count: int = 30) -> None:
        rng, rows = self.rng, []
        for _ in range(count):
            self.minute += rng.choice([0, 0.3, 1, 3])
            late = rng.choice([0, 0, 0, 0, 2, 8, 40])
            at = round(self.minute - late) if self.integers else BASE + round((self.minute - late) * MINUTE)
            rows.append({"id": self.n, "shop": rng.choice("abc"), "item": rng.choice([1, 2, None]), "t": at, "v": rng.randint(-9, 9)})
            self.n += 1
        axis = pa.int64() if self.integers else pa.timestamp("us", "UTC")
        schema = pa.schema([("id", pa.int64()), ("shop", pa.string()), ("item", pa.int64()), ("t", axis), ("v", pa.int64())])
        write_deltalake(self.folder / "events", pa.Table.from_pylist(rows, schema), mode="append")

    @property
    def events(self) -> DeltaTable:
        return DeltaTable(self.folder / "events")

    def happen(self) -> None:
        """Something happens to the lower pipeline."""
        rng, lower = self.rng, self.lower
        what = (
            "land"
            if lower.ledger.last_commit is None
            else rng.choice(["land"] * 6 + ["update", "delete", "backfill", "restore", "save", "apply", "hold", "tidy", "late", "none"])
        )
        match what:
            case "land":
                self.land(rng.choice([1, 10, 40]))
            case "update":
                self.events.update(predicate=f"id % 17 = {rng.randrange(17)}", updates={"v": "v + 100"})
            case "delete":
                self.events.delete(f"id % 23 = {rng.randrange(23)}")
            case "backfill":
                begin = self.minute - rng.randint(10, 90)
                ends = [int(at) if self.integers else BASE + int(at) * MINUTE for at in (begin, begin + rng.randint(1, 80))]
                with suppress(errors.UnsupportedError, errors.OutOfTurnError):
                    loop.backfill(lower.pipeline, quiet(), begin=ends[0], end=ends[1])
                return
            case "save":
                savepoints.create(lower.pipeline, quiet(), f"s{self.saved}")
                self.saved += 1
                return
            case "restore":
                if self.saved:
                    with suppress(errors.RefusedError):
                        savepoints.restore(lower.pipeline, quiet(), f"s{rng.randrange(self.saved)}")
                return
            case "apply" if all({"window", "windows"} & level.spec["source"].keys() for level in (self.upper, self.left)):
                self.apply()
                return
            case "hold":
                self.land(8)
                lower.write(expectations=UNMET)
                with suppress(HeldError):
                    lower.run()
                lower.write(expectations=[])
                if lower.ledger.held_batch is not None:
                    if self.checks:
                        self.check()  # nothing of the held batch is seen
                    with suppress(errors.UnsupportedError):
                        lower.run(ruling=rng.choice(["release", "discard"]))
                    if lower.ledger.held_batch is not None:
                        loop.abandon(lower.pipeline, quiet())
                return
            case "tidy":
                maintain(lower.pipeline, quiet(), now=rng.random() < 0.3)
                maintain(self.upper.pipeline, quiet())
                return
            case "late":
                with suppress(errors.UnsupportedError):
                    loop.restate(lower.pipeline, quiet(), late=True)
                return
        lower.run()

    def apply(self) -> None:
        """A window is added, or dropped again."""
        lower, extra = self.lower, {"name": "extra", "type": "tumbling", "size": self.length(10)}
        before = lower.spec["windows"]
        lower.write(windows=[window for window in before if window != extra] if extra in before else [*before, extra])
        try:
            loop.apply(lower.pipeline, quiet(), history=AXIS_BEGIN)
        except errors.UnsupportedError:
            lower.write(windows=before)

    def check(self) -> None:
        self.check_upper()
        self.check_left()

    def check_upper(self) -> None:
        """All windows are revised, so each complete one is that of the latest view."""
        self.upper.run()
        if self.upper.ledger.last_commit is None:
            return
        every = brute(self.upper, chosen(self.lower, self.upper))
        through = self._greatest(self.upper, self.upper.complete())
        expected = {place: values for place, values in every.items() if closes(self.upper, place, through)}
        assert published(self.upper) == expected
        found = InputCheck.of(loop.runnable_of(self.upper.pipeline))
        assert found is None or found.differing == 0

    def check_left(self) -> None:
        """Windows that were final stay; others are those of the latest view when they are shown, and until they are final."""
        before, emitted = published(self.left), self.left.emitted
        self.left.run()
        if self.left.ledger.last_commit is None:
            return
        every, final = brute(self.left, chosen(self.lower, self.left)), self.left.spec["emit"] == "final"
        through = self.left.emitted if final else self._greatest(self.left, self.left.complete())
        expected = {place: values for place, values in before.items() if closes(self.left, place, emitted)}
        expected |= {
            place: values for place, values in every.items() if closes(self.left, place, through) and not closes(self.left, place, emitted)
        }
        assert published(self.left) == expected

    @staticmethod
    def _greatest(level: Level, complete: int | None) -> int | None:
        """The watermark never goes back, although the other pipeline may."""
        plans = [batch.plan.interval_end for batch in level.ledger.batches() if isinstance(batch.plan, RunPlan)]
        return max((at for at in (*plans, complete) if at is not None), default=None)


def examples(few: int) -> range:
    """The seeds to try: ``few``, or as many as WINDOWMILL_CHAINS says, from WINDOWMILL_SEED on."""
    first = int(os.environ.get("WINDOWMILL_SEED", "0"))
    return range(first, first + int(os.environ.get("WINDOWMILL_CHAINS", few)))


def in_small_parts(monkeypatch: Any) -> None:
    """Files of a few rows, and keys compared in shares, as those of large inputs are."""
    monkeypatch.setattr(chains, "ROWS_PER_FILE", 7)
    monkeypatch.setattr(chains, "ROWS_SORTED", 20)
    monkeypatch.setattr(current, "ROWS_AT_ONCE", 40)


@pytest.mark.parametrize("seed", examples(25))
def test_rows_are_those_of_the_latest_view_whatever_happens_to_the_other_pipeline(tmp_path, seed, monkeypatch):
    if seed % 2:
        in_small_parts(monkeypatch)
    world = World(tmp_path, seed)
    world.land()
    for _ in range(8):
        world.happen()
        if world.rng.random() < 0.7:
            world.check()
    world.land()
    world.lower.run()
    world.check()


@pytest.mark.parametrize("seed", examples(6))
def test_windows_that_are_numbered_are_those_of_a_first_run(tmp_path, seed):
    """What a chain has revised again and again is what one gives that reads all at once."""
    world = World(tmp_path, 1_000 + seed)
    by_count = {"name": "last", "type": "sliding", "evict": {"count": 3}, "trigger": {"count": 2}}
    by_time = {"name": "ago", "type": "sliding", "evict": {"time": world.length(30)}, "trigger": {"time": world.length(20)}}
    visit = {"name": "visit", "type": "session", "gap": world.length(15)}
    ties = [*world.lower.spec["keys"], "window", "n", "total"]
    time = {"column": "window_end", "lateness": world.length(100_000), "tie_break": ties}
    world.upper.write(windows=[by_count, by_time, visit], time=time)
    world.checks = False
    world.land()
    for _ in range(7):
        world.happen()
        world.upper.run()
    fresh = Level(tmp_path, {**world.upper.spec, "pipeline": "fresh", "sink": {"path": str(tmp_path / "fresh")}})
    fresh.run()

    def places(level: Level) -> list[str]:
        return sorted(repr({name: value for name, value in row.items() if name != "batch"}) for row in level.shown())

    # One that has run before knows of a watermark to which the other pipeline may have gone back.
    if fresh.ledger.last_commit is not None and fresh.complete() == world._greatest(world.upper, world.upper.complete()):
        assert places(world.upper) == places(fresh)


def test_what_is_published_meanwhile_is_read_by_the_next_run(tmp_path, monkeypatch):
    days, found = Days(tmp_path, 4), chains._changed_paths
    days.land(5)
    days.run()
    days.land(5)
    days.minute.run()

    def meanwhile(*arguments: Any) -> Any:
        days.land(5)
        days.minute.run()
        return found(*arguments)

    monkeypatch.setattr(chains, "_changed_paths", meanwhile)
    days.hour.run()
    monkeypatch.undo()
    assert days.hour._marker().batch == 1
    assert days.hour.run()
    assert days.hour._marker().batch == 2
    days.day.run()
    days.direct.run()
    days.check()
    check = InputCheck.of(loop.runnable_of(days.hour.pipeline))
    assert check is not None
    assert check.differing == 0


def test_a_new_aggregate_of_the_other_pipeline_may_be_used(tmp_path):
    days = Days(tmp_path, 6)
    days.land(30)
    days.run()
    days.minute.write(aggregates=days.minute.spec["aggregates"] | {"least": {"min": "v"}})
    loop.apply(days.minute.pipeline, quiet(), history=AXIS_BEGIN)
    days.land(5)
    days.run()
    days.check()
    days.hour.write(aggregates=days.hour.spec["aggregates"] | {"least": {"min": "least"}})
    loop.apply(days.hour.pipeline, quiet(), history=AXIS_BEGIN)
    days.hour.spec["windows"] = [{"name": "hour", "type": "tumbling", "size": "60 minutes"}]
    every, through = brute(days.hour, days.minute.shown()), days.hour.complete()
    assert published(days.hour) == {place: values for place, values in every.items() if closes(days.hour, place, through)}


@pytest.mark.parametrize("lateness", ["2 hours", "1000000 days"])
def test_corrections_of_any_column_reach_the_next_level(tmp_path, lateness):
    """Also where it is named like a column of the state, and where windows stay open for longer than there are dates."""
    days = Days(tmp_path, 9)
    days.land(2)
    aggregates = {"n": {"count": "*"}, "_sum": {"sum": "v"}}
    days.minute.write(aggregates=aggregates, emit="revise", source={"path": str(tmp_path / "events"), "changes": "restate"})
    days.hour.write(aggregates={"_sum": {"sum": "_sum"}}, emit="revise", time={"column": "window_start", "lateness": lateness})
    for level in (days.minute, days.hour):
        level.run()
    before = sum(row["_sum"] for row in days.hour.shown())
    DeltaTable(tmp_path / "events").update(updates={"v": "v + 1000"})
    for level in (days.minute, days.hour):
        level.run()
    assert sum(row["_sum"] for row in days.hour.shown()) > before


def test_what_the_other_pipeline_had_published_is_missed(tmp_path):
    days = Days(tmp_path, 10)
    days.land(3)
    days.run()
    (tmp_path / "gone").mkdir()
    sink = Path(days.minute.spec["sink"]["path"])
    sink.rename(tmp_path / "gone" / "sink")
    with pytest.raises(SourceMissingError, match=r"what the pipeline minute had published is gone from .*; bring both back, or give this"):
        days.hour.run()
    (tmp_path / "gone" / "sink").rename(sink)
    days.land(1)
    days.run()
    days.check()


def test_a_column_that_becomes_wider_is_wider_through_the_chain(tmp_path):
    days = Days(tmp_path, 8)
    days.land(3)
    rows = DeltaTable(tmp_path / "events").to_pyarrow_table()
    write_deltalake(tmp_path / "other", rows.set_column(4, "v", rows["v"].cast(pa.int32())))
    for level in (days.minute, days.direct):
        level.write(source={"path": str(tmp_path / "other")})
    days.run()
    retype(str(tmp_path / "other"), "v", pa.int64())
    days.folder = tmp_path / "wide"
    days.land(30)
    wide = DeltaTable(tmp_path / "wide" / "events").to_pyarrow_table()
    write_deltalake(tmp_path / "other", wide.set_column(4, "v", pc.multiply(wide["v"], 10**11)), mode="append")
    for _ in range(2):
        for level in (*days.levels, days.direct):
            level.run()
        days.check()
    kinds = {field.name: field.type.type for field in DeltaTable(Places.of(days.hour.pipeline).input).schema().fields}
    assert kinds["high"] == "long"


# -- Minute, hour, day


class Days:
    """Minutes of each shop and item, hours of each shop, days of all; beside a pipeline of days over the same events."""

    def __init__(self, folder: Path, seed: int, **fields: Any) -> None:
        self.folder, self.rng, self.at, self.n = folder, random.Random(seed), 0.0, 0
        time = {"column": "t", "disorder": "30 seconds", "lateness": "6 hours", "tie_break": ["id"]}
        total = {"n": {"count": "*"}, "total": {"sum": "v"}, "high": {"max": "v"}}
        again = {"n": {"sum": "n"}, "total": {"sum": "total"}, "high": {"max": "high"}}
        start = {"column": "window_start", "lateness": "30 days"}
        day = [{"name": "day", "type": "tumbling", "size": "1 day"}]
        self.direct = Level(folder, self._over_events("direct", [], time, day, total) | fields)
        self.minute = Level(
            folder,
            self._over_events("minute", ["shop", "item"], time, [{"name": "minute", "type": "tumbling", "size": "1 minute"}], total)
            | fields,
        )
        self.hour = Level(folder, self._over("minute", "hour", ["shop"], start, "1 hour", again) | fields)
        self.day = Level(folder, self._over("hour", "day", [], start, "1 day", again) | fields)

    def _over_events(self, name: str, keys: list[str], time: Row, windows: list[Row], aggregates: Row) -> Row:
        source = {"path": str(self.folder / "events")}
        return {
            "pipeline": name,
            "source": source,
            "keys": keys,
            "time": time,
            "windows": windows,
            "aggregates": aggregates,
            "emit": "revise",
        }

    @staticmethod
    def _over(source: str, name: str, keys: list[str], time: Row, size: str, aggregates: Row) -> Row:
        windows = [{"name": name, "type": "tumbling", "size": size}]
        return {
            "pipeline": name,
            "source": {"pipeline": f"{source}.yaml"},
            "keys": keys,
            "time": time,
            "windows": windows,
            "aggregates": aggregates,
            "emit": "revise",
        }

    @property
    def levels(self) -> list[Level]:
        return [self.minute, self.hour, self.day]

    def land(self, hours: float) -> None:
        """Events of so many hours, one a minute on average; one in a hundred comes up to four hours late."""
        rng, rows, end = self.rng, [], self.at + hours * 60
        while self.at < end:
            self.at += rng.expovariate(1)
            at = self.at - (rng.uniform(0, 240) if rng.random() < 0.01 else 0)
            rows.append(
                {"id": self.n, "shop": rng.choice("abc"), "item": rng.randrange(4), "t": BASE + round(at * MINUTE), "v": rng.randrange(99)}
            )
            self.n += 1
        schema = pa.schema(
            [("id", pa.int64()), ("shop", pa.string()), ("item", pa.int64()), ("t", pa.timestamp("us", "UTC")), ("v", pa.int64())]
        )
        write_deltalake(self.folder / "events", pa.Table.from_pylist(rows, schema), mode="append")

    def run(self) -> None:
        for level in (*self.levels, self.direct):
            level.run()

    def check(self) -> None:
        assert published(self.day) == published(self.direct)


CUTS = int(os.environ.get("WINDOWMILL_CHAIN_CUTS", "25"))


def test_days_over_hours_over_minutes_are_those_of_one_pipeline_after_each_cut(tmp_path):
    days = Days(tmp_path, 1)
    for cut in range(1, CUTS + 1):
        days.land(days.rng.choice([0.2, 1, 5, 12]))
        days.run()
        days.check()
        if cut % 20 == 0:
            for level in days.levels:
                maintain(level.pipeline, quiet())
    assert len(published(days.day)) >= 3
    assert max(row["revision"] for row in rows_of(days.hour.spec["sink"]["path"])) > 0
    assert sum(batch.counts.rows_late + batch.counts.rows_quarantined for batch in days.hour.ledger.batches()) == 0


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("nth", [1, 2])
def test_a_chain_goes_on_where_a_process_has_died(tmp_path, place, nth):
    days = Days(tmp_path, 7)
    for _ in range(5):
        days.land(5)
        days.minute.run()
        for level in (days.hour, days.day):
            failpoints.arm(place, lambda: (_ for _ in ()).throw(DiedError()), nth=nth)
            with suppress(DiedError):
                level.run()
            failpoints.disarm()
            level.run()
            found = InputCheck.of(loop.runnable_of(level.pipeline))
            assert found is not None
            assert found.differing == 0
        days.direct.run()
        days.check()
    assert "restate" in {batch.action for batch in days.hour.ledger.batches()}


def test_kills_of_any_level_lose_and_repeat_nothing(tmp_path):
    days, kills, wanted = Days(tmp_path, 11), 0, int(os.environ.get("WINDOWMILL_KILLS", "2"))
    while kills < wanted:
        days.land(8)
        for level in days.levels:
            run = Run(level.file, place=days.rng.choice(PLACES if level is not days.minute else PLACES[3:]))
            kills += run.wait_until_reached() and run.kill("driver")
            run.resume()
            run.end()
            level.run()
        days.direct.run()
        days.check()


@pytest.mark.spark
@pytest.mark.parametrize("many", [False, True])
def test_spark_computes_two_levels(tmp_path, spark, monkeypatch, many):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "spark")
    if many:
        compute_by_many_tasks(monkeypatch)
    days = Days(tmp_path, 3)
    for _ in range(3):
        days.land(20)
        days.run()
        days.check()
    rows = spark.read.format("delta").load(Places.of(days.hour.pipeline).input)
    every = {(row["shop"], row["window_end"].timestamp()): row["n"] for row in aggregate(rows, days.hour.file).collect()}
    assert every.items() >= {(shop, end / 1e6): values[0] for (shop, _, _, end), values in published(days.hour).items()}.items()
    for level in (days.hour, days.day):
        found = verify(level.pipeline, quiet(), number=20, seed=1)
        assert found.comparison.rows
        assert found.comparison.differing == []
        assert found.input is not None
        assert found.input.differing == 0


# -- Commands, and what is refused


@pytest.fixture
def days(tmp_path):
    """Three levels that have run once."""
    made = Days(tmp_path, 5)
    made.land(30)
    made.run()
    return made


def answer(capsys: Any, *command: str) -> Any:
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_commands_name_the_batches_of_the_other_pipeline(days, capsys):
    days.land(5)
    days.minute.run()
    days.land(5)
    days.minute.run()
    waiting = answer(capsys, "status", str(days.hour.file))
    assert waiting["upstream"] == {"pipeline": "minute", "read_through": 0, "unread": 2}
    assert main(["status", str(days.hour.file)]) == 0
    assert "minute: read through batch 0, 2 published batches unread" in " ".join(capsys.readouterr().out.split())
    done = answer(capsys, "run", str(days.hour.file))
    assert [batch["upstream"] for batch in done["batches"]][-1]["batches"][1] == 2
    history = answer(capsys, "history", str(days.hour.file))
    named = [batch["upstream"] for batch in history]
    assert named[0] == {"pipeline": "minute", "batches": [0, 0]}
    assert {each["pipeline"] for each in named} == {"minute"}
    assert (named[1]["batches"][0], named[-1]["batches"][1]) == (1, 2)
    assert answer(capsys, "status", str(days.hour.file))["upstream"] == {"pipeline": "minute", "read_through": 2, "unread": 0}
    assert answer(capsys, "run", str(days.hour.file))["status"] == "nothing new"
    days.hour.write(aggregates=days.hour.spec["aggregates"] | {"most": {"max": "n"}})
    capsys.readouterr()
    assert main(["plan", str(days.hour.file), "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["upstream"]["pipeline"] == "minute"
    assert main(["apply", str(days.hour.file)]) == 0


def test_explain_draws_the_levels(days, capsys):
    found = answer(capsys, "explain", str(days.day.file))["chain"]
    assert found == [
        f"minute: minute of {days.folder}/events",
        "→ hour: hour of minute of minute",
        "→ day: day of hour of hour",
    ]


def test_maintenance_and_the_report_know_the_input(days, capsys):
    for _ in range(3):
        days.land(2)
        days.run()
    tidied = {row["table"]: row for row in answer(capsys, "maintain", str(days.hour.file), "--now")}
    assert tidied["input"]["files_after"] < tidied["input"]["files_before"]
    days.land(30)
    days.run()
    days.check()
    for command in ("report", "cost", "doctor", "state", "quality"):
        main([command, str(days.hour.file)] if command != "doctor" else [command])
        assert "Traceback" not in capsys.readouterr().err


def test_a_backfill_and_a_restatement_of_a_level_change_nothing_that_is_right(days):
    before = published(days.hour)
    loop.backfill(days.hour.pipeline, quiet(), begin=BASE, end=BASE + 10 * HOUR)
    assert published(days.hour) == before
    assert loop.restate(days.hour.pipeline, quiet(), ends=(BASE, None)) == []
    days.land(3)
    days.run()
    days.check()


def corrected_late(folder: Path) -> tuple[Days, dict[Any, Any]]:
    """Levels of which hours are shown once, and what these showed before an event came late to the minutes of a final hour."""
    days = Days(folder, 9)
    days.hour.write(time={"column": "window_start"}, emit="final")
    days.land(30)
    days.run()
    late = pa.Table.from_pylist([{"id": 10**6, "shop": "a", "item": 9, "t": BASE + 29 * HOUR, "v": 1_000}])
    schema = DeltaTable(days.folder / "events").to_pyarrow_table().schema
    write_deltalake(days.folder / "events", late.cast(schema), mode="append")
    before = published(days.hour)
    days.minute.run()
    days.hour.run()
    return days, before


def test_a_level_goes_back_to_a_savepoint_and_reads_again(days):
    savepoints.create(days.hour.pipeline, quiet(), "before")
    for _ in range(3):
        days.land(4)
        days.run()
    shown = published(days.hour)
    savepoints.restore(days.hour.pipeline, quiet(), "before")
    assert published(days.hour) != shown
    days.hour.run()
    assert published(days.hour) == shown
    days.run()
    days.check()


def test_windows_that_are_final_are_left_until_they_are_restated(tmp_path):
    days, before = corrected_late(tmp_path)
    assert published(days.hour) == before
    loop.restate(days.hour.pipeline, quiet(), ends=(BASE, None))
    [(place, values)] = published(days.hour).items() - before.items()
    assert place[2] <= BASE + 29 * HOUR < place[3]
    assert values[2] == 1_000


@pytest.mark.spark
def test_windows_that_were_left_are_excused_until_they_are_restated(tmp_path, spark):
    days, _ = corrected_late(tmp_path)
    found = verify(days.hour.pipeline, quiet(), number=500, seed=1)
    assert found.comparison.differing == []
    [excused] = [row for row in found.comparison.rows if row.differences]
    assert excused.undecided is not None
    assert "their source was corrected once they were final" in excused.undecided
    loop.restate(days.hour.pipeline, quiet(), ends=(BASE, None))
    found = verify(days.hour.pipeline, quiet(), number=500, seed=1)
    assert found.comparison.differing == []
    assert not found.comparison.left_out
    assert found.input is not None
    assert found.input.differing == 0


def test_an_input_that_others_have_changed_is_found(days):
    DeltaTable(Places.of(days.hour.pipeline).input).delete("shop = 'a'")
    found = InputCheck.of(loop.runnable_of(days.hour.pipeline))
    assert found is not None
    assert found.differing > 0


def test_a_purge_of_both_levels_leaves_nothing_of_the_key(days):
    DeltaTable(days.folder / "events").delete("shop = 'b'")
    days.minute.write(source={"path": str(days.folder / "events"), "changes": "restate"})
    purging.purge(days.minute.pipeline, quiet(), [{"shop": "b"}])
    purging.purge(days.hour.pipeline, quiet(), [{"shop": "b"}])
    for level in (days.minute, days.hour):
        assert {row["shop"] for row in rows_of(level.spec["sink"]["path"])} == {"a", "c"}
    assert "b" not in {row["shop"] for row in rows_of(Places.of(days.hour.pipeline).input)}
    days.land(3)
    days.minute.run()
    days.hour.run()
    assert {row["shop"] for row in days.hour.shown()} == {"a", "b", "c"}


def test_a_batch_without_its_commit_to_the_sink_is_not_seen(days):
    days.land(5)
    arm("sink.before")
    with pytest.raises(DiedError):
        days.minute.run()
    failpoints.disarm()
    assert days.minute.ledger.count == 2
    assert UpstreamSink.of(days.hour.pipeline).batch == 0
    assert days.hour.run() == []
    days.minute.run()
    assert UpstreamSink.of(days.hour.pipeline).batch >= 1


def test_a_watch_looks_at_published_batches(days):
    watch = SourceWatch(days.hour.pipeline)
    assert watch.poll() is None
    days.land(1)
    days.minute.run()
    found = watch.poll()
    assert (found.version, found.planned, found.open) == (1, 0, False)
    days.hour.run()
    assert watch.poll() is None


def test_a_pipeline_that_was_set_up_again_is_another_one(days):
    for place in ("minute", "minute.windowmill"):
        shutil.rmtree(days.folder / place)
    days.minute.run()
    with pytest.raises(SourceReplacedError, match=r"source\.pipeline: minute has another ledger than the one whose batches were read"):
        days.hour.run()


def test_other_windows_are_other_rows(tmp_path):
    world = World(tmp_path, 1)
    world.lower.write(windows=[{"name": name, "type": "tumbling", "size": world.length(5)} for name in ("one", "two")])
    world.upper.write(source={"pipeline": "lower.yaml", "window": "one"}, keys=[])
    world.land()
    world.lower.run()
    world.upper.run()
    world.upper.write(source={"pipeline": "lower.yaml", "windows": ["one", "two"]})
    with pytest.raises(SourceReplacedError, match="its rows were those of one and are now those of one, two"):
        world.upper.run()


def test_nothing_is_read_before_the_other_pipeline_has_published(tmp_path, capsys):
    days = Days(tmp_path, 2)
    days.land(2)
    assert days.hour.run() == []
    status = answer(capsys, "status", str(days.hour.file))
    assert status["next_run_error"] is None
    assert status["upstream"] == {"pipeline": "minute", "read_through": None, "unread": 0}


UP: Row = {
    "pipeline": "up",
    "source": {"path": "/data/in"},
    "keys": ["shop"],
    "time": {"column": "t"},
    "windows": [{"name": "minute", "type": "tumbling", "size": "1 minute"}, {"name": "visit", "type": "session", "gap": "1 minute"}],
    "aggregates": {"n": {"count": "*"}},
    "sink": {"path": "/data/up"},
}
DOWN: Row = {
    "pipeline": "down",
    "source": {"pipeline": "up.yaml", "window": "minute"},
    "keys": ["shop"],
    "windows": [{"name": "hour", "type": "tumbling", "size": "1 hour"}],
    "aggregates": {"n": {"sum": "n"}},
    "sink": {"path": "/data/down"},
}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"source": {"pipeline": "no.yaml"}}, "source.pipeline: '{folder}/no.yaml': cannot be read"),
        ({"source": {"pipeline": "bad.yaml"}}, "source.pipeline: {folder}/bad.yaml:1: windows: missing"),
        ({"source": {"pipeline": "down.yaml"}}, "by which a pipeline would read its own results: down.yaml → down.yaml"),
        ({"source": {"pipeline": "round.yaml"}}, "by which a pipeline would read its own results: down.yaml → round.yaml → down.yaml"),
        ({"source": {"pipeline": "up.yaml"}}, "source.window: missing; the pipeline up has the windows minute, visit"),
        (
            {"source": {"pipeline": "up.yaml", "window": "hour"}},
            "source.window: got 'hour'; the windows of the pipeline up are minute, visit",
        ),
        ({"source": {"pipeline": "up.yaml", "windows": ["minute", "x"]}}, "source.windows: got 'x'; the windows of"),
        ({"source": {"pipeline": "up.yaml", "window": "minute", "windows": ["visit"]}}, "source.windows: got window, too"),
        ({"source": {"path": "/data/x", "window": "minute"}, "time": {"column": "t"}}, "source.window: got no pipeline"),
        *(
            ({"source": DOWN["source"] | {name: value}}, f"source.{name}: the results of another pipeline are read from its sink")
            for name, value in {
                "path": "/x",
                "table": "a.b",
                "format": "delta",
                "options": {},
                "filter": "n > 1",
                "changes": "ignore",
            }.items()
        ),
        *(
            ({"time": {name: value}}, f"time.{name}: how far the input is complete follows from what up has published")
            for name, value in {"disorder": "1 hour", "max_future_skew": "1 day", "watermark": "max_event_time"}.items()
        ),
        ({"time": {"column": "n"}}, "time.column: got 'n'; expected window_end or window_start"),
        ({"time": {"unit": "s"}}, "time.unit: got 's', but the results of the pipeline up have instants"),
        (
            {"time": {"column": "window_start"}, "source": {"pipeline": "up.yaml", "window": "visit"}},
            "time.column: got 'window_start', but a window of visit (session) may begin at any time",
        ),
        ({"steps": [{"columns": {"window_end": "window_start"}}]}, "steps.0.columns.window_end: the time of results says how far"),
        ({"keys": ["shap"]}, "keys.0: the sink of the pipeline up has no column 'shap'; did you mean 'shop'?"),
        ({"aggregates": {"m": {"max": "m"}}}, "aggregates.m: the sink of the pipeline up has no column 'm'"),
        ({"steps": [{"filter": "revision > 0"}]}, "steps.0.filter: the sink of the pipeline up has no column 'revision'"),
        ({"aggregates": {"n": {"sum": "n", "where": "m > 1"}}}, "aggregates.n.where: the sink of the pipeline up has no column 'm'"),
        ({"sink": {"path": "/data/up"}}, "sink.path: is that of the sink of up"),
        ({"sink": {"path": "/data/up.windowmill/state"}}, "sink.path: lies below the checkpoints of up"),
        ({"sink": {"path": "/data"}}, "sink.path: holds the source of up"),
        ({"source": {"path": "/data/in"}}, "time: missing; add this field"),
    ],
)
def test_a_chain_that_cannot_be_is_refused_in_a_line(tmp_path, capsys, fields, says):
    (tmp_path / "up.yaml").write_text(yaml.safe_dump(UP))
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump({name: value for name, value in UP.items() if name != "windows"}))
    (tmp_path / "round.yaml").write_text(yaml.safe_dump(DOWN | {"pipeline": "round", "source": {"pipeline": "down.yaml"}}))
    (tmp_path / "down.yaml").write_text(yaml.safe_dump(DOWN | fields))
    assert main(["validate", str(tmp_path / "down.yaml")]) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1
    assert says.format(folder=tmp_path) in told[0]


def test_a_chain_in_python_is_that_of_the_file(tmp_path, monkeypatch):
    (tmp_path / "up.yaml").write_text(yaml.safe_dump(UP))
    (tmp_path / "down.yaml").write_text(yaml.safe_dump(DOWN))
    monkeypatch.chdir(tmp_path)
    read, made = load_pipeline(tmp_path / "down.yaml"), Pipeline(**DOWN)
    assert made.time == read.time
    assert made.meaning_hash() == read.meaning_hash()
    monkeypatch.chdir("/")  # a worker runs elsewhere
    again = parse_pipeline(made.given_fields())
    assert (again.meaning_hash(), again.upstream) == (read.meaning_hash(), read.upstream)
    assert "source" in again.meaning()
    assert "up.yaml" not in json.dumps(again.meaning())


@pytest.mark.parametrize("engine", ["kernel", "reference"])
def test_try_takes_rows_of_results(tmp_path, capsys, engine):
    (tmp_path / "up.yaml").write_text(yaml.safe_dump(UP))
    (tmp_path / "down.yaml").write_text(yaml.safe_dump(DOWN))
    ends = ["10:01", "10:59", "11:00", "10:30"]
    lines = [json.dumps({"shop": "a", "window": "minute", "window_end": f"2024-01-01T{end}:00Z", "n": n}) for n, end in enumerate(ends)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    assert main(["try", str(tmp_path / "down.yaml"), "--input", str(tmp_path / "rows.jsonl"), "--engine", engine]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["window_start"], row["n"]) for row in found] == [("2024-01-01T10:00:00Z", 4), ("2024-01-01T11:00:00Z", 2)]


@pytest.mark.parametrize(
    ("window", "column", "shown", "least"),
    [
        # The next end, or the least start of a window that ends later.
        ({"type": "tumbling", "size": 10}, "window_end", 40, 50),
        ({"type": "tumbling", "size": 10}, "window_start", 40, 40),
        ({"type": "tumbling", "size": 10}, "window_start", 45, 40),
        ({"type": "hopping", "size": 25, "hop": 10}, "window_end", 45, 55),
        ({"type": "hopping", "size": 25, "hop": 10}, "window_start", 45, 30),
        ({"type": "cumulative", "size": 30, "step": 10}, "window_end", 45, 50),
        ({"type": "cumulative", "size": 30, "step": 10}, "window_start", 45, 30),
        # A session that ends at the very instant may still come.
        ({"type": "session", "gap": 5}, "window_end", 45, 45),
    ],
)
def test_results_are_complete_before_the_next_one_may_come(tmp_path, window, column, shown, least):
    up = UP | {"windows": [{"name": "w", **window}], "time": {"column": "t", "unit": "none"}}
    (tmp_path / "up.yaml").write_text(yaml.safe_dump(up))
    down = DOWN | {"windows": [{"name": "by", "type": "tumbling", "size": 60}], "source": {"pipeline": str(tmp_path / "up.yaml")}}
    pipeline = parse_pipeline(down | {"time": {"column": column}})
    batch = SimpleNamespace(
        plan=SimpleNamespace(definition=pipeline.upstream.meaning()), outcome=SimpleNamespace(emitted=shown, watermark=None, shown=None)
    )
    assert chains.complete_from(pipeline, batch) == least
