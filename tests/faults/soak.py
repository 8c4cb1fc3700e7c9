"""Hundreds of batches under a killer: `windowmill run` in a loop, its driver, JVM or workers killed again and again, upkeep in between.

``python -m tests.faults.soak --batches 300 --seconds-between-kills 30``. Each version of the source is a batch of its own. In the end the
sink equals the reference engine's rows, each batch has one commit a table, and nothing is left of the attempts that died.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml
from deltalake import DeltaTable

from tests.faults.kills import VICTIMS, Run
from tests.faults.pipelines import PIPELINES
from tests.faults.world import World
from tests.spark.harness import Bench
from windowmill.checkpoints import delta_tables, records
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.own_tables import own_tables
from windowmill.checkpoints.places import Places
from windowmill.jobs.runnables import runnable_of

#: Versions that are landed before each run, so that a process takes several batches.
LANDED_AT_ONCE = 10
#: Batches between two rounds of upkeep.
MAINTAINED_EVERY = 50
ROWS_OF_A_BATCH = 20


@dataclass
class Soak:
    """The pipeline, and what has been counted so far."""

    folder: Path
    kind: str
    batches: int
    seconds_between_kills: float
    rng: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    #: Resident megabytes at the most of each run's driver, in order.
    driver_mb: list[float] = field(default_factory=list)
    rounds_of_upkeep: int = 0
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        source = {"path": str(self.folder / "source"), "options": {"maxFilesPerTrigger": "1"}}
        self.world = World(Bench(self.folder, dict(PIPELINES[self.kind]) | {"source": source}))
        self.spec = self.folder / "spec.yaml"
        self.spec.write_text(yaml.safe_dump(self.world.bench.spec))
        self.next_kill = self.started + self.seconds_between_kills

    @property
    def committed(self) -> int:
        return Ledger.open(self.world.bench.pipeline).next_commit

    def go(self) -> None:
        """Land versions, run and kill until all batches are committed."""
        while (committed := self.committed) < self.batches:
            for _ in range(min(LANDED_AT_ONCE, self.batches - len(self.world.landed))):
                number = len(self.world.landed)
                late = 40.0 if number % 7 == 3 else 0.0
                self.world.land(self.world.new_rows(number, ROWS_OF_A_BATCH, late=late))
            if committed >= (self.rounds_of_upkeep + 1) * MAINTAINED_EVERY:
                self._maintain()
            self._run()
            print(
                f"  {self.committed} batches, {self.kills.total()} kills, {self.failed} failed runs, "
                f"{time.monotonic() - self.started:.0f} s",
                flush=True,
            )

    def _run(self) -> None:
        run = Run(self.spec)
        most = 0.0
        try:
            while run.process.poll() is None:
                most = max(most, _resident_mb(run.process.pid))
                if time.monotonic() >= self.next_kill:
                    self.next_kill = time.monotonic() + self.rng.uniform(0.5, 1.5) * self.seconds_between_kills
                    victim = self.rng.choice(VICTIMS)
                    self.kills[victim] += run.kill(victim)
                time.sleep(0.2)
        finally:
            self.failed += run.end() != 0
        self.driver_mb.append(most)

    def _maintain(self) -> None:
        self.rounds_of_upkeep += 1
        subprocess.run(
            [sys.executable, "-m", "windowmill.jobs.cli", "maintain", str(self.spec)], check=True, stdout=subprocess.DEVNULL, timeout=600
        )

    def check(self) -> list[str]:
        """What the soak came to, line by line; fails on whatever is not as it should be."""
        pipeline = self.world.bench.pipeline
        places = Places.of(pipeline)
        self.world.check_drained()
        for role, table in own_tables(runnable_of(pipeline)).items():
            doubled = {batch: n for batch, n in _commits(table, role).items() if n > 1}
            assert not doubled, f"{role}: batches with several commits: {doubled}"
        self._maintain()
        left = [*Path(places.root, ".staging").glob("*")]
        assert left == [], f"staged files of dead attempts: {left}"
        paths = [pipeline.sink.path, places.state, places.quarantine, places.quality, places.ledger]  # type: ignore[union-attr]
        before = sum(_unnamed_bytes(path) for path in paths)
        records.RETENTION_HOURS = 0
        for path in paths[:-1]:
            delta_tables.vacuum(path, retention_hours=0)
        records.DeltaRecords(places.ledger).vacuum()
        after = {path: size for path in paths if (size := _unnamed_bytes(path))}
        assert after == {}, f"bytes of files that no version names: {after}"
        self.world.check_drained()
        # Every run is a process of its own, so what grows with the pipeline's life shows in later ones.
        whole = [mb for mb in self.driver_mb if mb > 0]
        early, late = sorted(whole[: max(1, len(whole) // 3)]), sorted(whole[-max(1, len(whole) // 3) :])
        assert late[-1] <= 1.5 * early[-1] + 100, f"the driver's memory grew from {early[-1]:.0f} to {late[-1]:.0f} MB"
        return [
            f"{self.batches} batches ({self.kind}) in {time.monotonic() - self.started:.0f} s and {len(self.driver_mb)} runs",
            f"kills: {', '.join(f'{n} {victim}' for victim, n in sorted(self.kills.items()))}; {self.failed} runs failed",
            f"sink, quarantine, ledger as by the reference engine; one commit a batch and table; {self.rounds_of_upkeep} rounds of upkeep",
            f"files no version names: {before / 1e6:.2f} MB before a vacuum that retains nothing, 0 after it",
            f"driver: {early[-1]:.0f} MB at the most in the first third of the runs, {late[-1]:.0f} MB in the last",
        ]


def _commits(table: Any, role: str) -> Counter[int]:
    """How many commits of rows each batch has in a table; a batch is validated anew by an attempt that finds its rules changed only."""
    notes = [change.note for change in table.changes_after(-1) if change.added and role != "quality"]
    return Counter(note["batch"] for note in notes if isinstance(note.get("batch"), int) and "windowmill" not in note)


def _unnamed_bytes(path: str) -> int:
    """Bytes of data files below the table at ``path`` that its newest version does not hold."""
    if not DeltaTable.is_deltatable(path):
        return 0
    named = {Path(uri.removeprefix("file://")).resolve() for uri in DeltaTable(path).file_uris()}
    found = [file for file in Path(path).rglob("*.parquet") if "_delta_log" not in file.parts]
    return sum(file.stat().st_size for file in found if file.resolve() not in named)


def _resident_mb(pid: int) -> float:
    try:
        return float(psutil.Process(pid).memory_info().rss / 1e6)
    except psutil.Error:
        return 0.0


def main() -> None:
    """Soak a pipeline, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--seconds-between-kills", type=float, default=30.0)
    parser.add_argument("--kind", choices=["slices", "sessions", "positions", "live_rows", "mixed", "revise", "lasting"], default="slices")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="windowmill-soak-") as folder:
        soak = Soak(Path(folder), options.kind, options.batches, options.seconds_between_kills, random.Random(options.seed))
        soak.go()
        print("\n".join(soak.check()))


if __name__ == "__main__":
    main()
