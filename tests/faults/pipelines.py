"""Small pipelines, one for each way of working and of telling progress, and everything that a run leaves in their tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from deltalake import DeltaTable, QueryBuilder

from tests.spark.harness import AGGREGATES, BASE, Bench, Row, events, lasting
from windowmill.checkpoints.ledger import Ledger
from windowmill.windowing.spec import Pipeline

#: Columns that tell attempts, instants and names of files apart, not what was computed: each writer of a source names its files anew.
_PER_ATTEMPT = {"generation", "attempt", "at", "source_file"}
_AT_BASE = datetime.fromtimestamp(BASE / 1e6, UTC)
_FEW = {name: AGGREGATES[name] for name in ("n", "total", "low", "worst", "closing")}
_SLOTS = {"name": "slots", "type": "tumbling", "size": "10 minutes"}
_VISITS = {"name": "visits", "type": "session", "gap": "9 minutes"}
_LAST_FIVE = {"name": "last_five", "type": "sliding", "evict": {"count": 5}, "trigger": {"count": 2}}
_BAND = {"name": "band", "type": "sliding", "evict": {"delta": {"column": "v", "by": 30}}, "trigger": {"count": 3}}
_SPANS = {"name": "spans", "type": "snapshot"}
_THREE = {"name": "three", "type": "count", "count": 3}
#: The changes to the harness's spec that make each pipeline.
PIPELINES: Mapping[str, Mapping[str, Any]] = {
    "slices": {"aggregates": _FEW},
    "live_rows": {"aggregates": _FEW, "windows": [_SPANS, _THREE]},
    "sessions": {"aggregates": _FEW, "windows": [_VISITS, _VISITS | {"name": "short", "max_size": "1 hour"}]},
    "positions": {"aggregates": _FEW, "windows": [_LAST_FIVE]},
    "deltas": {"aggregates": _FEW, "windows": [_BAND]},
    "mixed": {"aggregates": _FEW, "windows": [_SLOTS, _VISITS, _LAST_FIVE, _BAND, _SPANS]},
    "revise": {"aggregates": _FEW, "emit": "revise", "windows": [_SLOTS, _VISITS]},
    "lasting": {
        "aggregates": _FEW | {"level": {"time_weighted_mean": "v"}},
        "emit": "revise",
        "time": {"column": "t", "end": "e", "tie_break": ["id"], "disorder": "5 minutes", "lateness": "30 minutes"},
        "windows": [_SLOTS | {"empty": "emit"}],
    },
    "vouched": {
        "aggregates": _FEW,
        "time": {"column": "t", "tie_break": ["id"], "watermark": "data_interval_end", "lateness": "5 minutes"},
    },
}


@dataclass
class Story:
    """A pipeline, its three versions of rows, and how to run it."""

    name: str
    bench: Bench
    versions: Sequence[Sequence[Row]] = field(default_factory=list)

    @classmethod
    def of(cls, name: str, folder: Path, *, rows: int = 240) -> Story:
        sink = {"path": str(folder / "sink"), "current": str(folder / "current")}
        bench, every = Bench(folder, {**PIPELINES[name], "sink": sink, "dedup": {"by": ["id"]}}), events(71, rows)
        every = lasting(every, 72) if bench.pipeline.time.end else every
        return cls(name, bench, [every[: rows // 3], every[rows // 3 : 2 * rows // 3], every[2 * rows // 3 :]])

    def copied_to(self, folder: Path) -> Story:
        """The same story, with a copy of all tables."""
        return Story(self.name, self.bench.copied_to(folder), self.versions)

    def land(self, version: int) -> None:
        self.bench.land(self.versions[version])

    def run(self) -> list[Any]:
        """Run until the source is drained; the interval that is vouched for grows with the source."""
        if self.name != "vouched":
            return self.bench.run()
        version = DeltaTable(self.bench.source).version()
        return self.bench.run(interval_end=_AT_BASE + timedelta(minutes=100 * (version + 1)))

    def spec_file(self) -> Path:
        """The pipeline's spec, written to a file."""
        path = self.bench.folder / "spec.yaml"
        path.write_text(yaml.safe_dump(self.bench.spec, sort_keys=False))
        return path

    def tables(self) -> dict[str, Counter[Any]]:
        """The rows of each table, with how often each is there."""
        root = f"{self.bench.sink}.windowmill"
        current = str(self.bench.folder / "current")
        paths = {"sink": self.bench.sink, "current": current}
        paths |= {name: f"{root}/{name}" for name in ("state", "seen", "quarantine", "quality")}
        return {role: contents(path) for role, path in paths.items()}

    def batches(self) -> list[tuple[Any, ...]]:
        return batches_of(self.bench.pipeline)


def batches_of(pipeline: Pipeline) -> list[tuple[Any, ...]]:
    """What the ledger says of each batch."""
    batches = Ledger.open(pipeline).batches()
    return [(b.number, b.action, b.status, b.verdict, b.from_version, b.to_version, b.counts) for b in batches]


def but_for_restored(batches: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """What the ledger says of each batch but for the rows of the state that it read, which depend on who computes it."""
    return [(*rest, replace(counts, state_restored={})) for *rest, counts in batches]


def undisturbed(name: str, folder: Path) -> Story:
    """The pipeline ``name`` after runs over all its versions."""
    folder.mkdir()
    story = Story.of(name, folder)
    for version in range(3):
        story.land(version)
        story.run()
    return story


def contents(path: str) -> Counter[Any]:
    """The rows of the Delta table at ``path`` as a multiset; floats by their digits, so that NaN equals itself."""
    if not DeltaTable.is_deltatable(path):
        return Counter()
    rows = pa.table(QueryBuilder().register("t", DeltaTable(path)).execute("SELECT * FROM t").read_all())
    kept = [name for name in rows.schema.names if name not in _PER_ATTEMPT]
    return Counter(tuple(repr(row[name]) for name in kept) for row in rows.to_pylist())


def begun(name: str, folder: Path) -> tuple[Story, tuple[Any, Any]]:
    """A pipeline below ``folder`` after its first batch, and its tables and batches after undisturbed runs over the other versions."""
    story = Story.of(name, folder / "begun")
    story.bench.folder.mkdir()
    story.land(0)
    story.run()
    clean = story.copied_to(folder / "clean")
    for version in (1, 2):
        clean.land(version)
        clean.run()
    return story, (clean.tables(), clean.batches())
