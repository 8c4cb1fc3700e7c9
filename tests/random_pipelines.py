"""Random pipelines with random rows in random commits, told by a seed: what tests of the whole road compare engine with engine over."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import pyarrow as pa

from tests.spark import harness
from windowmill.windowing.reference import Evaluation, Record, evaluate
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

MINUTE = 60_000_000
#: 2024-03-09T22:00Z, some hours before New York sets its clocks forward.
BASE = 1_710_021_600_000_000
CONDITION = "i > 3"
Row = dict[str, Any]
PLACE = ("window", "window_end", "trigger", "revision", "window_start")
AGGREGATES: dict[str, dict[str, Any]] = {
    "n": {"count": "*"},
    "large": {"count": "i", "where": CONDITION},
    "whole": {"sum": "i"},
    "total": {"sum": "f"},
    "average": {"mean": "f"},
    "low": {"min": "s"},
    "high": {"max": "f"},
    "worst": {"arg_max": ["f", "s"]},
    "opening": {"first": "s"},
    "closing": {"last": "i"},
    "ids": {"collect": "x"},
    "kinds": {"count_distinct": "s"},
    "middle": {"median": "i"},
    "most": {"top_k": {"column": "i", "k": 2}},
    "spread": {"var_pop": "f"},
}
#: Aggregates whose results depend on the order of the rows of one time.
BY_ORDER = {"worst", "opening", "closing", "ids"}


def examples(few: int) -> range:
    """The seeds to try: ``few``, or as many as WINDOWMILL_RANDOM_PIPELINES says, from WINDOWMILL_RANDOM_SEED on."""
    first = int(os.environ.get("WINDOWMILL_RANDOM_SEED", "0"))
    return range(first, first + int(os.environ.get("WINDOWMILL_RANDOM_PIPELINES", few)))


@dataclass
class Case:
    """A pipeline and the rows of its source, in the order of their commits.

    Attributes
    ----------
    spec
        The pipeline as JSON values, without source and sink.
    rows, commits
        The rows in one order of arrival, and the number of each row's commit, from 0 without gaps.
    shuffled
        Whether the order of the rows of a commit must not matter.
    """

    seed: int
    spec: dict[str, Any]
    rows: list[Row]
    commits: list[int]
    shuffled: bool

    @property
    def pipeline(self) -> Pipeline:
        return parse_pipeline(self.spec)

    @property
    def schema(self) -> pa.Schema:
        axis = pa.int64() if "unit" in self.spec["time"] else pa.timestamp("us", "UTC")
        times = [("t", axis), *([("e", axis)] if "end" in self.spec["time"] else [])]
        return pa.schema([("k", pa.string()), *times, ("x", pa.int64()), ("i", pa.int64()), ("f", pa.float64()), ("s", pa.string())])

    def by_commit(self) -> list[list[Row]]:
        return [[row for _, row in rows] for _, rows in groupby(zip(self.commits, self.rows, strict=True), key=lambda pair: pair[0])]

    def permuted(self, rng: random.Random) -> list[Row]:
        """The rows in another order inside their commits, if their order must not matter."""
        return [row for rows in self.by_commit() for row in (rng.sample(rows, len(rows)) if self.shuffled else rows)]

    def batches(self, rng: random.Random) -> list[tuple[int, int]]:
        """First and last number of the commits of each batch of a random cut."""
        count = self.commits[-1] + 1
        cuts = sorted(rng.sample(range(1, count), rng.randint(0, count - 1)))
        return list(zip([0, *cuts], [*cuts, count], strict=True))

    def expected(self, rows: Sequence[Row] | None = None, *, final: bool = False) -> Evaluation:
        """What the reference engine says; its rows in the order of :meth:`place`."""
        records = [Record(row, frozenset([CONDITION] if (row["i"] or 0) > 3 else [])) for row in (self.rows if rows is None else rows)]
        outcome = evaluate(self.pipeline, records, commits=self.commits, final=final)
        outcome.rows.sort(key=self.place)
        return outcome

    def place(self, row: Row) -> tuple[Any, ...]:
        return tuple((row[name] is not None, row[name]) for name in (*self.spec["keys"], *PLACE))


def random_case(seed: int, *, instants: bool | None = None, points: bool = False, usable: bool = False, aggregates: int = 0) -> Case:
    """The case of ``seed``.

    Parameters
    ----------
    instants
        Whether the axis is one of instants; either unless given.
    points
        Whether no events last and no intervals are vouched for.
    usable
        Whether all rows have a time.
    aggregates
        Number of aggregates beside the count and ``ids``; random unless given.
    """
    rng = random.Random(seed)
    integers = rng.random() < 0.35 if instants is None else not instants
    length: Callable[[int], Any] = (lambda n: n) if integers else (lambda n: f"{n} minutes")
    lasting, unique = not points and rng.random() < 0.2, rng.random() < 0.8
    emit = rng.choice(["final", "final", "revise"])
    lateness = rng.choice([0, 0, 5, 40] if emit == "final" else [0, 5, 40, 400])
    time: dict[str, Any] = {"column": "t", "disorder": length(rng.choice([0, 0, 3, 20])), "lateness": length(lateness)}
    time |= {"unit": "none"} if integers else {}
    time |= {"end": "e"} if lasting else {}
    time |= {"tie_break": rng.choice([["x"], ["s", "x"]])} if unique else rng.choice([{}, {"tie_break": ["i"]}])
    time |= {"watermark": "data_interval_end"} if not points and rng.random() < 0.1 else {}
    windows = [
        {"name": f"w{number}", **random_window(rng, integers=integers, emit=emit, lasting=lasting)}
        for number in range(rng.choice([1, 1, 2, 2, 3, 4]))
    ]
    chosen = rng.sample(list(AGGREGATES), aggregates or rng.randint(1, 8))
    if not unique and BY_ORDER & set(chosen):
        time["tie_break"] = ["x"]
    spec = {
        "pipeline": f"random_{seed}",
        "keys": rng.choice([["k"], ["k"], ["k"], [], ["k", "s"]]),
        "time": time,
        "windows": windows,
        "aggregates": {name: AGGREGATES[name] for name in dict.fromkeys(["n", *(["ids"] if unique else []), *chosen])},
        "emit": emit,
        "quarantine": {"warn": "never", "hold": "never"},
    }
    sizes = _sizes(rng)
    rows = _rows(rng, sum(sizes), MINUTE if not integers else 1, BASE if not integers else rng.choice([0, -50]), lasting, usable)
    commits = [number for number, size in enumerate(sizes) for _ in range(size)]
    return Case(seed, spec, rows, commits, shuffled=unique)


def random_window(rng: random.Random, *, integers: bool, emit: str, lasting: bool = False, kind: str | None = None) -> dict[str, Any]:
    """A window of ``kind``, or any that ``emit`` and ``lasting`` events allow, without a name, on an axis of integers or of instants."""
    length: Callable[[int], Any] = (lambda n: n) if integers else (lambda n: f"{n} minutes")
    kinds = ["tumbling", "hopping", "cumulative", "calendar", "session", "session", "snapshot", "count", "sliding", "flush"]
    kind = kind or rng.choice(kinds)
    empty = rng.choice([{}, {}, {"empty": "emit"}])
    if kind == "tumbling":
        return {"type": "tumbling", "size": length(rng.choice([4, 10, 25])), **empty}
    if kind == "hopping":
        size, hop = rng.choice([(10, 5), (10, 4), (7, 3), (3, 8), (30, 7), (1, 1)])
        return {"type": "hopping", "size": length(size), "hop": length(hop), **empty}
    if kind == "cumulative":
        return {"type": "cumulative", "size": length(12), "step": length(rng.choice([4, 6])), **empty}
    if kind == "calendar":
        if integers:
            return {"type": "tumbling", "size": 15, "origin": -7, **empty}
        size, hop = rng.choice([("1 day", "1 day"), ("2 days", "1 day"), ("3 hours", "1 hour")])
        return {"type": "hopping", "size": size, "hop": hop, "timezone": rng.choice(["America/New_York", "Asia/Kolkata"]), **empty}
    if kind == "session":
        return {"type": "session", "gap": length(rng.choice([2, 5, 9])), **rng.choice([{}, {}, {"max_size": length(12)}])}
    if kind == "count":
        return {"type": "count", "count": rng.randint(1, 4)}
    if kind == "snapshot" or emit == "revise" or lasting:
        return {"type": "snapshot"}
    return _policies(rng, length, flush=kind == "flush")


def _policies(rng: random.Random, length: Callable[[int], Any], *, flush: bool) -> dict[str, Any]:
    def policy(count: int, time: int, by: int) -> dict[str, Any]:
        return rng.choice([{"count": count}, {"time": length(time)}, {"delta": {"column": "i", "by": by}}])

    idle = rng.choice([{}, {}, {"idle_after": length(30)}])
    if flush:
        evict = rng.choice([policy(3, 9, 2), {"punctuation": CONDITION}])
        empty = {"empty": "emit", "idle_after": length(30)} if "time" in evict and rng.random() < 0.3 else {}
        return {"type": "tumbling", "evict": evict, **idle, **empty}
    partial = rng.choice([{}, {"partial": False}])
    return {"type": "sliding", "evict": policy(rng.randint(1, 4), 8, 3), "trigger": policy(rng.randint(1, 3), 5, 2), **idle, **partial}


def _sizes(rng: random.Random) -> list[int]:
    """How many rows each commit has."""
    count = rng.choice([5, 15, 30, 60])
    greatest = rng.choice([1, 3, 3, 8, 8, 20, count])
    sizes: list[int] = []
    while sum(sizes) < count:
        sizes.append(min(rng.randint(1, greatest), count - sum(sizes)))
    return sizes


def _rows(rng: random.Random, count: int, tick: int, base: int, lasting: bool, usable: bool) -> list[Row]:
    steps = rng.choice([[0, 0, 1, 1, 2, 4, 7, 25], [0, 1, 1, 1, 2], [0, 0, 1, 1, 5, 20], [0, 3, 11, 60, 400]])
    delays = rng.choice([[0], [0, 0, 0, 1, 4], [0, 0, 3, 8, 30], [0, 5, 10, 15, 20, 50], [0, 0, 0, 100]])
    ahead, rows = list(accumulate(rng.choice(steps) for _ in range(count))), list[Row]()
    for number, minute in enumerate(ahead):
        at = base + (minute - rng.choice(delays)) * tick + rng.choice([0, 0, 0, 1] if tick > 1 else [0])
        absent = not usable and rng.random() < 0.02
        ends = {"e": rng.choice([at, at, at + tick, at + 5 * tick, at + 40 * tick, at - 1])} if lasting else {}
        values = {"x": number, "i": rng.choice([None, *range(-9, 10)]), "f": rng.choice([None, *(n / 8 for n in range(-40, 41))])}
        values["s"] = rng.choice(["x", "y", "zé", None])
        rows.append({"k": rng.choice(["a", "a", "b", "c", None]), "t": None if absent else at, **ends, **values})
    return rows


def differences(found: Sequence[Row], wanted: Sequence[Row]) -> list[str]:
    """What differs between two tables of result rows; empty when equal. Values are eighths, so that few floats may differ at all."""
    return harness.differences(found, wanted, 1e-9)[:3]
