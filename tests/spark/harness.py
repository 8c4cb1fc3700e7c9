"""Landing rows in a Delta source version by version, running a pipeline over them, and reading what it published."""

from __future__ import annotations

import io
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from rich.console import Console

from windowmill.jobs.batch import loop
from windowmill.jobs.batch.progress import Progress
from windowmill.windowing import reference
from windowmill.windowing.axis import to_us
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("site", pa.int64()),
        ("t", pa.timestamp("us", "UTC")),
        ("v", pa.float64()),
        ("i", pa.int64()),
        ("label", pa.string()),
        ("id", pa.string()),
    ]
)
#: Columns of events that last.
LASTING = SCHEMA.append(pa.field("e", pa.timestamp("us", "UTC")))
MINUTE = 60_000_000
BASE = to_us(datetime(2024, 3, 1, tzinfo=UTC))
AGGREGATES = {
    "n": {"count": "*"},
    "nv": {"count": "v"},
    "big": {"count": "*", "where": "v > 50"},
    "total": {"sum": "v"},
    "whole": {"sum": "i"},
    "average": {"mean": "v"},
    "low": {"min": "v"},
    "high": {"max": "label"},
    "spread": {"stddev_samp": "v"},
    "worst": {"arg_max": ["v", "label"]},
    "best": {"arg_min": ["i", "id"]},
    "opening": {"first": "label"},
    "closing": {"last": "v"},
}
WINDOWS = [
    {"name": "slots", "type": "tumbling", "size": "10 minutes"},
    {"name": "rolling", "type": "hopping", "size": "47 minutes", "hop": "7 minutes", "origin": "2024-03-01T00:01:00Z"},
    {"name": "gaps", "type": "hopping", "size": "5 minutes", "hop": "20 minutes"},
]
TIME = {"column": "t", "tie_break": ["id"], "disorder": "5 minutes", "lateness": "8 minutes"}
Row = dict[str, Any]
PLACE = ("window", "window_end", "trigger", "revision", "window_start")


def quiet() -> Progress:
    return Progress(Console(file=io.StringIO()))


def events(seed: int, count: int) -> list[Row]:
    """Rows of a few keys over some hours, out of order, with ties, nulls, NaN, gaps and stragglers."""
    rng = random.Random(seed)
    now, rows = 0.0, []
    for n in range(count):
        now += rng.expovariate(1 / 1.2) + (90 if rng.random() < 0.01 else 0)
        delay = rng.choice([0, 0, 0, rng.uniform(0, 12), rng.uniform(0, 120) if rng.random() < 0.2 else 0])
        minute = round(now - delay, rng.choice([0, 1, 6]))
        rows.append(
            {
                "k": rng.choice(["a", "b", "c", None]),
                "site": rng.choice([1, 2]),
                "t": None if rng.random() < 0.02 else BASE + int(minute * MINUTE),
                "v": rng.choice([None, float("nan"), -0.0, 50.0, *(round(rng.gauss(40, 30), 2) for _ in range(12))]),
                "i": rng.choice([None, *range(-3, 4)]),
                "label": rng.choice([None, "x", "y", "zé", ""]),
                "id": f"e{n:05d}" if rng.random() < 0.5 else f"e{n:05d}x",
            }
        )
    return rows


def lasting(rows: Sequence[Row], seed: int) -> list[Row]:
    """``rows`` that last: points, events of no length and of up to some hours; a few end before they begin, or have no end."""
    rng, ended = random.Random(seed), []
    for row in rows:
        minutes = rng.choice([0, 0, 1 / MINUTE, rng.uniform(0, 10), rng.uniform(0, 60), rng.uniform(0, 400)])
        until = None if row["t"] is None else row["t"] + int(minutes * MINUTE)
        odd = rng.random()
        ended.append(row | {"e": None if odd < 0.01 or until is None else until - 500 * MINUTE if odd < 0.02 else until})
    return ended


@dataclass
class Bench:
    """A pipeline with a source of its own, below ``folder``."""

    folder: Path
    changes: dict[str, Any] = field(default_factory=dict)
    #: Number of the commit of each row that has landed.
    commits: list[int] = field(default_factory=list)

    @property
    def source(self) -> str:
        return str(self.folder / "source")

    @property
    def sink(self) -> str:
        return str(self.folder / "sink")

    @property
    def spec(self) -> dict[str, Any]:
        return {
            "pipeline": "bench",
            "source": {"path": self.source},
            "keys": ["k", "site"],
            "time": TIME,
            "windows": WINDOWS,
            "aggregates": AGGREGATES,
            "sink": {"path": self.sink},
            # Rows of these tests are late or broken on purpose.
            "quarantine": {"warn": "never", "hold": "never"},
        } | self.changes

    @property
    def pipeline(self) -> Pipeline:
        return parse_pipeline(self.spec)

    def copied_to(self, folder: Path) -> Self:
        """The same pipeline, with a copy of all tables; paths below its folder are those of the copy."""
        shutil.copytree(self.folder, folder)
        changes = json.dumps(self.changes).replace(str(self.folder), str(folder))
        return replace(self, folder=folder, changes=json.loads(changes), commits=list(self.commits))

    def land(self, rows: Sequence[Row]) -> Self:
        """Append ``rows`` as one version of the source."""
        self.append(pa.Table.from_pylist(list(rows), schema=LASTING if "e" in rows[0] else SCHEMA))
        return self

    def append(self, table: pa.Table, **options: Any) -> None:
        """Append the rows of ``table`` as one version of the source."""
        write_deltalake(self.source, table, mode="append", **options)
        self.commits += [1 + max(self.commits, default=-1)] * len(table)

    def run(self, **options: Any) -> list[Any]:

        return loop.run(self.pipeline, quiet(), **options)

    def expected(self, rows: Sequence[Row], *, final: bool = False) -> reference.Evaluation:
        """What the reference engine says of ``rows``, the first that have landed."""
        return expected(self.pipeline, rows, commits=self.commits[: len(rows)], final=final)

    def rows(self) -> list[Row]:
        """The sink, without the number of the batch, in the reference's order; none while its first batch waits for its commits."""
        if not DeltaTable.is_deltatable(self.sink):
            return []
        table = DeltaTable(self.sink).to_pyarrow_table()
        instants = {field.name: table.column(field.name).cast(pa.int64()) for field in table.schema if pa.types.is_timestamp(field.type)}
        for name, column in instants.items():
            table = table.set_column(table.schema.get_field_index(name), name, column)
        return in_order(self.pipeline, table.drop_columns(["batch"]).to_pylist())

    def quarantine(self) -> list[Row]:
        path = str(self.folder / "sink.windowmill" / "quarantine")
        return DeltaTable(path).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(path) else []


def cut(rows: Sequence[Row], seed: int, versions: int) -> list[Sequence[Row]]:
    """``rows`` cut anywhere into ``versions``."""
    cuts = sorted(random.Random(seed).sample(range(1, len(rows)), versions - 1))
    return [rows[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


def run_over(bench: Bench, seed: int, rows: Sequence[Row], versions: int, batches: int | None = None) -> list[Any]:
    """Land ``rows`` cut anywhere into ``versions``, with a run after each, or after every few so that there are about ``batches``."""
    together = max(1, versions // batches) if batches else 1
    done = []
    for n, part in enumerate(cut(rows, seed, versions)):
        bench.land(part)
        if n % together == 0 or n == versions - 1:
            done += bench.run()
    return done


def check_runs_backfill_and_upkeep(bench: Bench, rows: Sequence[Row]) -> list[Any]:
    """Run over three quarters of ``rows``, recompute a part of them, maintain the tables, run over the rest; compare with the reference."""
    from windowmill.jobs.commands.maintenance_command import maintain

    first = len(rows) * 3 // 4
    done = run_over(bench, 6, rows[:first], 2)
    before = bench.rows()
    ends = sorted(row["window_end"] for row in before)
    computed_again = loop.backfill(bench.pipeline, quiet(), begin=ends[len(ends) // 4], end=ends[len(ends) // 2])
    assert computed_again.outcome.counts.rows_published > 0
    assert differences(bench.rows(), before) == []
    maintain(bench.pipeline, quiet())
    done += run_over(bench, 7, rows[first:], 2)
    want = bench.expected(rows)
    assert differences(bench.rows(), want.rows) == []
    assert missed_in(done) == want.missed
    return done


def missed_in(done: Sequence[Any]) -> dict[str, int]:
    """By window name, the rows that came too late for a window that holds them, in batches that are ``done``."""
    return dict(sum((Counter(each.outcome.counts.late_missed) for each in done), Counter[str]()))


def place(pipeline: Pipeline, row: Row) -> tuple[Any, ...]:
    """Where a result row belongs: one place a row, so that equal tables sort equally."""
    return tuple((value is not None, value) for value in (*(row[key] for key in pipeline.keys), *(row[name] for name in PLACE)))


def in_order(pipeline: Pipeline, rows: Iterable[Row]) -> list[Row]:
    """``rows`` in the order of their places; those of the latest view have no revisions."""
    return sorted(rows, key=lambda row: place(pipeline, {"revision": 0} | row))


def expected(pipeline: Pipeline, rows: Sequence[Row], *, commits: Sequence[int] | None = None, final: bool = False) -> reference.Evaluation:
    """What the reference engine says of rows that arrive in this order; each is a commit unless ``commits`` are given."""
    records = [
        reference.Record(row, frozenset({"v > 50"} if row["v"] is not None and (row["v"] > 50 or row["v"] != row["v"]) else ()))
        for row in rows
    ]
    outcome = reference.evaluate(pipeline, records, commits=commits, final=final)
    outcome.rows[:] = in_order(pipeline, outcome.rows)
    return outcome


def differences(found: Sequence[Row], wanted: Sequence[Row], tolerance: float = 1e-12) -> list[str]:
    """What differs between two tables of result rows; floats to ``tolerance``, everything else exactly. Empty when equal."""
    problems = [f"{len(found)} rows instead of {len(wanted)}"] if len(found) != len(wanted) else []
    for got, want in zip(found, wanted, strict=False):
        for name, value in want.items():
            if not _same(got[name], value, tolerance):
                problems.append(f"{name}: {got[name]!r} instead of {value!r} in {want}")
    return problems


def _same(a: Any, b: Any, tolerance: float) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (a != a and b != b) or abs(a - b) <= tolerance * max(1.0, abs(a), abs(b))
    return bool(a == b and type(a) is type(b))
