"""Pipelines over the results of others, whose rows a brute force over the other one's latest view gives, too."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

from tests import latest
from tests.faults.world import UNMET
from tests.spark.harness import quiet
from windowmill.checkpoints.batches import RunPlan
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.jobs.batch import loop
from windowmill.jobs.batch import maintenance_batches as savepoints
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.jobs.sources.chains import InputCheck, Marker
from windowmill.windowing import errors
from windowmill.windowing.axis import AXIS_BEGIN, to_us
from windowmill.windowing.errors import HeldError
from windowmill.windowing.specfile import load_pipeline

MINUTE, HOUR = 60_000_000, 3_600_000_000
#: 2024-03-09T22:00Z, some hours before New York sets its clocks forward.
BASE = 1_710_021_600_000_000
Row = dict[str, Any]


def plain(value: Any) -> Any:
    return to_us(value) if isinstance(value, datetime) else value


def rows_of(path: str) -> list[Row]:
    try:
        found = DeltaTable(path).to_pyarrow_table().to_pylist()
    except TableNotFoundError:
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


def ran_once(folder: Path) -> Days:
    """Three levels that have run once."""
    made = Days(folder, 5)
    made.land(30)
    made.run()
    return made
