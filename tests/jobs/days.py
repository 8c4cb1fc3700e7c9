"""A pipeline and what happens to it and its source day after day, for tests of commands behind one another."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import yaml
from deltalake import DeltaTable, write_deltalake

from tests.latest import shown
from tests.spark.harness import quiet
from windowmill.jobs.batch import loop
from windowmill.jobs.cli import main
from windowmill.jobs.verify.check import verify
from windowmill.windowing.axis import AXIS_BEGIN, to_us
from windowmill.windowing.specfile import parse_pipeline

_DAY = datetime(2024, 3, 29, tzinfo=UTC)
_SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.string()), ("t", pa.timestamp("us", "UTC")), ("v", pa.int64()), ("s", pa.string())])
HOURLY, HALF = {"name": "hourly", "type": "tumbling", "size": "1 hour"}, {"name": "half", "type": "tumbling", "size": "30 minutes"}
VISIT = {"name": "visit", "type": "session", "gap": "30 minutes"}
LAST_2 = {"name": "last_2", "type": "sliding", "evict": {"count": 2}, "trigger": {"count": 1}}
RISES = {"name": "rises", "type": "sliding", "evict": {"count": 2}, "trigger": {"delta": {"column": "v", "by": 5}}}
PAIRS = {"name": "pairs", "type": "tumbling", "evict": {"count": 2}}
#: Around all rows.
BEGIN, END = (to_us(_DAY + timedelta(days=days)) for days in (-1, 2))


def at(clock: str) -> datetime:
    """The instant of ``08:05`` on the day of these tests."""
    hours, minutes = clock.split(":")
    return _DAY + timedelta(hours=int(hours), minutes=int(minutes))


class Days:
    """A pipeline of ``windows``, and what happens to it and its source; rows are (id, key, time, v, s)."""

    def __init__(self, folder: Path, *windows: dict[str, Any], **fields: Any) -> None:
        self.path, self.file, self.environment = str(folder / "source"), folder / "days.yaml", dict[str, str]()
        self.spec: dict[str, Any] = {
            "pipeline": "days",
            "keys": ["k"],
            "aggregates": {"n": {"count": "*"}, "total": {"sum": "v"}},
            "sink": {"path": str(folder / "sink")},
            "quarantine": {"warn": "never", "hold": "never"},
        }
        self.spec |= fields | {"windows": list(windows)}
        self.spec["source"] = {"path": self.path, "changes": "restate"} | fields.get("source", {})
        self.spec["time"] = {"column": "t", "tie_break": ["id"]} | fields.get("time", {})

    @property
    def pipeline(self) -> Any:
        return parse_pipeline(self.spec, environment=self.environment)

    @property
    def source(self) -> DeltaTable:
        return DeltaTable(self.path)

    @staticmethod
    def _table(rows: tuple[tuple[Any, ...], ...]) -> pa.Table:
        whole = [(*row, None)[:5] for row in rows]
        return pa.Table.from_pylist([dict(zip(_SCHEMA.names, (*row[:2], at(row[2]), *row[3:]), strict=True)) for row in whole], _SCHEMA)

    def append(self, *rows: tuple[Any, ...]) -> Self:
        write_deltalake(self.path, self._table(rows), mode="append")
        return self

    def merge(self, *rows: tuple[Any, ...]) -> Self:
        merging = self.source.merge(self._table(rows), "s.id = t.id", source_alias="s", target_alias="t")
        merging.when_matched_update_all().when_not_matched_insert_all().execute()
        return self

    def update(self, where: str, **values: str) -> Self:
        self.source.update(predicate=where, updates=values)
        return self

    def delete(self, where: str | None = None) -> Self:
        self.source.delete(where)
        return self

    def run(self, **options: Any) -> Self:
        loop.run(self.pipeline, quiet(), **options)
        return self

    def apply(self, *windows: dict[str, Any], history: int | None = AXIS_BEGIN) -> Self:
        self.spec["windows"] = list(windows)
        loop.apply(self.pipeline, quiet(), history=history)
        return self

    def backfill(self, begin: int = BEGIN, end: int = END, **options: Any) -> Self:
        loop.backfill(self.pipeline, quiet(), begin=begin, end=end, **options)
        return self

    def restate(self, **options: Any) -> Self:
        loop.restate(self.pipeline, quiet(), **options)
        return self

    def command(self, name: str, *options: str) -> int:
        """The exit code of a command over the spec in a file."""
        self.file.write_text(yaml.safe_dump(self.spec))
        return main([name, str(self.file), *options])

    def verified(self) -> tuple[int, list[str]]:
        """How many published rows `verify` has compared, and what it tells of those that differ, or that it cannot judge."""
        found = verify(self.pipeline, quiet(), number=100, seed=1).comparison
        untold = [f"{what}: {why}, {rows}" for (what, why), rows in found.left_out.items()]
        return len(found.rows), [*untold, *(f"{row.row}: {row.differences}" for row in found.differing)]

    def rows(self, window: str) -> list[dict[str, Any]]:
        every = DeltaTable(self.spec["sink"]["path"]).to_pyarrow_table().to_pylist()
        assert all(row["retracted"] in (True, False) for row in every), "`retracted` is known in every row"
        return [row for row in every if row["window"] == window]

    def latest(self, window: str) -> list[tuple[Any, ...]]:
        """Key, trigger or start, end, n and total of each row that counts."""
        found = shown({window: False}, ["k"], self.rows(window))
        numbered = any(row["trigger"] is not None for row in found)
        cells = [(row["k"], row["trigger"] if numbered else f"{row['window_start']:%H:%M}", row) for row in found]
        return sorted((key, place, f"{row['window_end']:%H:%M}", row["n"], row["total"]) for key, place, row in cells)
