"""Make the golden tables of the format that this code writes: ``python -m tests.golden.make 5 /golden``; needs Spark.

Tables are made in the folder ``/golden``, which their logs name, and copied here.

Each case is a folder ``tests/golden/format-<n>/<case>/`` with the source, the sink and ``sink.windowmill`` of a small pipeline after two
batches, and ``spec.json``, whose paths are relative to the folder; a new format takes the specs of the one before. Folders of formats that
have been released are never made anew: ``test_golden.py`` goes on from each of them.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from tests.faults.dying import DiedError
from tests.spark.harness import BASE, MINUTE, lasting, quiet
from windowmill.jobs.batch import loop
from windowmill.windowing.specfile import parse_pipeline

HERE = Path(__file__).parent
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("site", pa.int64()),
        ("t", pa.timestamp("us", "UTC")),
        ("n", pa.int64()),
        ("v", pa.float64()),
        ("i", pa.int64()),
        ("label", pa.string()),
        ("id", pa.string()),
        ("day", pa.date32()),
        ("price", pa.decimal128(12, 2)),
        ("ratio", pa.float32()),
        ("flag", pa.bool_()),
        ("raw", pa.binary()),
        ("small", pa.int16()),
        ("seen", pa.timestamp("us", "UTC")),
    ]
)
#: Each has its spec in its folder.
CASES = (
    *("calendars", "cut_visits", "deltas", "empty", "held", "integers", "lasting", "lasting_revised", "live", "mixed", "nodes", "objects"),
    *("open", "positions", "revise", "revised_visits", "sessions", "slices"),
)
#: The cases whose tables are kept of each format of ledgers.
KEPT = {"5": CASES}
#: An expectation that no batch meets: it holds the second one of the case ``held``.
IMPOSSIBLE = {"type": "expect_column_values_to_be_between", "column": "n", "max_value": -1, "severity": "critical"}


@dataclass(frozen=True)
class Golden:
    """A golden pipeline in ``folder``."""

    folder: Path

    def spec(self, **changes: Any) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "spec.json").read_text())
        for table in ("source", "sink"):
            found[table] = found[table] | {"path": str(self.folder / found[table]["path"])}
        # The rows that a test lands are as old as those before them, so nearly all of them are late.
        return found | {"quarantine": {"warn": "never", "hold": "never"}} | changes

    def run(self, ruling: Any = None, **changes: Any) -> list[Any]:
        return loop.run(parse_pipeline(self.spec(**changes)), quiet(), ruling=ruling)

    def land(self, rows: Sequence[dict[str, Any]]) -> None:
        schema = SCHEMA
        if "end" in self.spec()["time"]:
            rows, schema = lasting(rows, 4), SCHEMA.append(pa.field("e", pa.timestamp("us", "UTC")))
        write_deltalake(self.folder / "source", pa.Table.from_pylist(list(rows), schema=schema), mode="append")


def rows_of(seed: int, count: int, first: int = 0) -> list[dict[str, Any]]:
    """Rows of some hours from row ``first`` on, out of order, with nulls, NaN, −0.0 and stragglers, in every type that is stored."""
    rng, now, rows = random.Random(seed), 0.0, []
    for number in range(first + count):
        now += rng.expovariate(1 / 1.4)
        minute = now - rng.choice([0, 0, 0, rng.uniform(0, 12), rng.uniform(0, 90) if rng.random() < 0.2 else 0])
        instant = BASE + int(round(minute, 1) * MINUTE)
        rows.append(
            {
                "k": rng.choice(["a", "bé", "", None]),
                "site": rng.choice([1, 2]),
                "t": None if rng.random() < 0.02 else instant,
                "n": int(minute * 10),
                "v": rng.choice([None, float("nan"), -0.0, 50.0, *(round(rng.gauss(40, 30), 2) for _ in range(12))]),
                "i": rng.choice([None, *range(-3, 4)]),
                "label": rng.choice([None, "x", "y", "zé", ""]),
                "id": f"e{number:05d}",
                "day": rng.choice([None, date(1969, 12, 31), date(2024, 2, 29)]),
                "price": rng.choice([None, Decimal("-0.01"), Decimal("19.99"), Decimal("1234567890.12")]),
                "ratio": rng.choice([None, float("nan"), -0.0, 0.0, 1.5]),
                "flag": rng.choice([None, True, False]),
                "raw": rng.choice([None, b"", b"\x00\xff", b"raw"]),
                "small": rng.choice([None, -7, 32767]),
                "seen": rng.choice([None, datetime(1960, 1, 1, tzinfo=UTC), datetime(2024, 3, 1, 1, 2, 3, 4, tzinfo=UTC)]),
            }
        )
    return rows[first:]


def make(case: str, folder: Path, count: int = 150) -> None:
    """Two batches of ``case`` in ``folder``; of ``open`` the second has died before its commits, of ``held`` it is held."""
    from windowmill.jobs.batch.steps import _Steps

    folder.mkdir(parents=True)
    shutil.copy(max(HERE.glob(f"format-*/{case}/spec.json")), folder)
    golden, rows = Golden(folder), rows_of(1, 2 * count)
    _land_in_commits(golden, rows[:count])
    golden.run()
    _land_in_commits(golden, rows[count:])
    if case == "open":
        publish = _Steps.publish
        _Steps.publish = _dying  # type: ignore[method-assign, assignment]
        with contextlib.suppress(DiedError):
            golden.run()
        _Steps.publish = publish  # type: ignore[method-assign]
    elif case == "held":
        from windowmill.windowing.errors import HeldError

        with contextlib.suppress(HeldError):
            golden.run(expectations=[IMPOSSIBLE])
    else:
        golden.run()
    for leftover in (folder / "sink.windowmill").iterdir():
        if leftover.name in ("docs", "report.html") or leftover.name.startswith("."):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def _land_in_commits(golden: Golden, rows: Sequence[dict[str, Any]]) -> None:
    for first in range(0, len(rows), 30):
        golden.land(rows[first : first + 30])


def _dying(*_: object) -> None:
    raise DiedError


def main(format_: str, scratch: Path) -> None:
    """Make the cases that are kept of ``format_`` and not there yet, in the folder ``scratch``."""
    from windowmill.jobs.spark.session import spark_session

    session = spark_session("golden tables", master="local[2]", brief=True)
    for case in KEPT[format_]:
        folder = Path(f"format-{format_}") / case
        if not (HERE / folder / "sink").exists():
            make(case, scratch / folder)
            shutil.copytree(scratch / folder, HERE / folder, dirs_exist_ok=True)
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
