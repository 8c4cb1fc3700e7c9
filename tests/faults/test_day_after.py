"""Whatever order late rows, corrections, changed specs, restatements, backfills, savepoints and purges come in, the latest view is right.

The right rows are what the reference engine computes of those that the source holds now. `make test` takes a few dozen steps, the
same every time; `make machine` takes ``WINDOWMILL_STEPS`` from the seed ``WINDOWMILL_SEED`` (0) on.
"""

from __future__ import annotations

import contextlib
import copy
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from tests.faults.corrected import UNMET, Corrected
from tests.faults.dying import DiedError, arm
from tests.faults.stepping import WANTED, Draw, Stepping, take, take_those_wanted
from tests.spark.harness import quiet
from windowmill.checkpoints import failpoints
from windowmill.checkpoints.failpoints import FAILPOINTS
from windowmill.jobs.batch import loop, purging, savepoints
from windowmill.jobs.commands.maintenance import maintain
from windowmill.windowing.durations import Duration
from windowmill.windowing.errors import HeldError, SavepointError, UnsupportedError

pytestmark = [pytest.mark.covers("P1", "P10", "P11")]
if WANTED:
    pytestmark.append(pytest.mark.timeout(0))
_SEEDS, _FEW = st.integers(0, 1 << 32), st.integers(1, 12)
#: Where a command may die: not where only rulings and held batches come.
_PLACES = [place for place in FAILPOINTS if not place.startswith(("ruling", "held")) and not place.endswith(".lost")]


class DayAfter(Stepping):
    """After each step that leaves nothing to run, the latest view shows what the source as it is now gives."""

    root: ClassVar[Path]
    #: How often the product has refused what would not have led to the truth.
    refused: ClassVar[Counter[str]] = Counter()
    steps = (
        *("append", "append", "append", "run", "run", "correct", "correct", "correct", "apply", "apply", "restate", "restate_range"),
        *("backfill", "save", "restore", "come_too_late", "hold", "maintain", "optimize", "purge", "fold"),
    )
    instead = "append"
    world: Corrected

    @initialize(example=_SEEDS, feed=st.booleans(), by_backfill=st.sampled_from([False, False, True]))
    def begin(self, example: int, feed: bool, by_backfill: bool) -> None:
        assume(example)  # not the simplest example of all, which Hypothesis tries first
        rng, folder = random.Random(example), Path(tempfile.mkdtemp(dir=self.root))
        self.world = world = Corrected.of(example, folder)
        self.savepoints: list[tuple[str, dict[str, Any], int]] = []
        world.land(world.new_rows(rng, rng.randint(3, 20)), feed=feed)
        if by_backfill:
            begin, end = world.whole
            loop.backfill(world.bench.pipeline, quiet(), begin=begin, end=end)
        world.run()
        world.check()
        self.sound = True

    def look(self) -> None:
        if self.world.is_up_to_date():
            self.world.check()

    # The source

    def _append(self, world: Corrected, draw: Draw) -> None:
        world.land(world.new_rows(random.Random(draw(_SEEDS)), draw(_FEW)))

    def _correct(self, world: Corrected, draw: Draw) -> None:
        world.correct(random.Random(draw(_SEEDS)), draw(st.sampled_from(["update", "delete", "overwrite", "move", "merge"])))

    def _optimize(self, world: Corrected, draw: Draw) -> None:
        world.source.optimize.compact()

    def _come_too_late(self, world: Corrected, draw: Draw) -> None:
        """Rows come too late for some window, and are restated."""
        world.run()
        world.land(world.new_rows(random.Random(draw(_SEEDS)), draw(_FEW), too_late=True))
        world.restate_all()

    # The pipeline

    def _run(self, world: Corrected, draw: Draw) -> None:
        self._may_die(draw, world.run)

    def _hold(self, world: Corrected, draw: Draw) -> None:
        world.bench.changes["expectations"] = UNMET
        try:
            with contextlib.suppress(HeldError):
                world.run()
            if world.ledger.held_batch is not None:
                world.release()
        finally:
            del world.bench.changes["expectations"]

    def _restate(self, world: Corrected, draw: Draw) -> None:
        self._may_die(draw, lambda: loop.restate(world.bench.pipeline, quiet()))

    def _restate_range(self, world: Corrected, draw: Draw) -> None:
        bounds = world.range(random.Random(draw(_SEEDS)))
        self._may_die(draw, lambda: loop.restate(world.bench.pipeline, quiet(), ends=bounds))

    def _backfill(self, world: Corrected, draw: Draw) -> None:
        begin, end = world.range(random.Random(draw(_SEEDS)))
        self._may_die(draw, lambda: loop.backfill(world.bench.pipeline, quiet(), begin=begin, end=end))

    def _apply(self, world: Corrected, draw: Draw) -> None:
        before = copy.deepcopy(world.spec)
        world.change(random.Random(draw(_SEEDS)))
        if not self._may_die(draw, world.apply):
            world.bench.changes = before
        elif world.came_too_late and any(window.follows_policies for window in world.bench.pipeline.windows):
            world.restate_all()  # rows within the lateness of the windows before may be too late for policies

    def _save(self, world: Corrected, draw: Draw) -> None:
        self.savepoints.append((world.save(), copy.deepcopy(world.spec), world.ledger.last_commit.to_version))

    def _restore(self, world: Corrected, draw: Draw) -> None:
        if not self.savepoints:
            self._save(world, draw)
            return
        name, _, version = draw(st.sampled_from(self.savepoints))
        if self._may_die(draw, lambda: savepoints.restore(world.bench.pipeline, quiet(), name)) and any(
            late > version for late in world.came_too_late
        ):
            world.restate_all()

    def _maintain(self, world: Corrected, draw: Draw) -> None:
        world.maintain()

    def _fold(self, world: Corrected, draw: Draw) -> None:
        """All revisions but the newest of each window go."""
        self._may_die(draw, lambda: maintain(world.bench.pipeline, quiet(), fold=Duration.parse("1 second"), now=True))

    def _purge(self, world: Corrected, draw: Draw) -> None:
        """The source deletes some keys, but not that of its newest row, which the watermark stands by."""
        names = world.spec["keys"]
        world.run()
        newest = max(world.held(), key=lambda row: row["t"])
        others = {tuple(row[name] for name in names) for row in world.held()} - {tuple(newest[name] for name in names)}
        if not others:
            return
        keys = dict(zip(names, draw(st.sampled_from(sorted(others, key=repr))), strict=True))
        world.source.delete(" AND ".join(f"{name} IS NULL" if value is None else f"{name} = {value!r}" for name, value in keys.items()))
        self.savepoints.clear()  # a purge drops them
        self._may_die(draw, lambda: purging.purge(world.bench.pipeline, quiet(), [keys]))
        assert not any(all(row[name] == value for name, value in keys.items()) for row in world.bench.rows())

    def _may_die(self, draw: Draw, command: Any) -> bool:
        """Have ``command`` die somewhere, perhaps, and give it again; whether it was not refused."""
        place = draw(st.sampled_from([None, None, None, *_PLACES]))
        try:
            if place is not None:
                arm(place)
                with contextlib.suppress(DiedError):
                    command()
                failpoints.disarm()
            command()
        except (UnsupportedError, SavepointError) as err:
            self.refused[str(err).partition(": ")[2][:60]] += 1
            return False
        finally:
            failpoints.disarm()
        return True

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            if self.sound:  # a failure before is told as it is
                self.world.run()
                self.world.check()
        finally:
            if self.sound:
                shutil.rmtree(self.world.bench.folder)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[DayAfter]:
    """The machine with a folder of its own, and without Spark."""
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    monkeypatch.setattr(DayAfter, "root", tmp_path, raising=False)
    DayAfter.done.clear()
    DayAfter.refused.clear()
    return DayAfter


def test_the_latest_view_is_the_truth_after_each_step(machine):
    if WANTED:
        take_those_wanted(machine)
        print(f"refused: {dict(machine.refused)}")
    else:
        take(machine, 1, examples=3, steps=15)
        assert machine.done.total() >= 30
