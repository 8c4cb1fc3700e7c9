"""A state machine that does to a pipeline and its source, in any order, what people, orchestrators and crashes do to them."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from tests.faults.dying import DiedError
from tests.faults.pipelines import PIPELINES
from tests.faults.stepping import Draw, Stepping
from tests.faults.world import OPERATIONS, World, shuffled
from tests.spark.harness import Bench
from windowmill.checkpoints import failpoints
from windowmill.jobs.layouts import limits
from windowmill.windowing.errors import HeldError

_ARRIVALS = ("in order", "in order", "in order", "late", "in any order", "again", "nothing")
KINDS = ("slices", "live_rows", "mixed", "revise", "lasting")
_SEEDS, _SHARES = st.integers(0, 10_000), st.integers(0, 100)
_BY_SPARK = st.sampled_from([False, False, False, True])
_STEPS = (
    *("append", "append", "append", "append_and_crash", "append_and_crash", "append_and_crash", "crash", "run", "run", "run_twice"),
    *("hold", "hold", "release", "discard", "abandon", "backfill", "backfill", "maintain", "optimize_sink"),
    *("optimize", "vacuum", "clean_log", "add_column", "set_property"),
)


def _die() -> None:
    raise DiedError


def _lose() -> None:
    raise failpoints.InjectedError("the response is lost")


class Machine(Stepping):
    """After whatever has happened, a run that drains the source leaves the tables that the reference engine says."""

    #: Folder of the prepared pipelines and of the one that is worked on.
    root: ClassVar[Path]
    steps, instead = _STEPS, "append"
    _prepared: ClassVar[dict[str, World]] = {}

    @initialize(kind=st.sampled_from(KINDS), fresh=st.sampled_from([False, False, True]), example=st.integers(0, 1 << 32))
    def begin(self, kind: str, fresh: bool, example: int) -> None:
        assume(example)  # not the simplest example of all, which repeats one rule and which Hypothesis tries first
        folder = Path(tempfile.mkdtemp(dir=self.root)) / "pipeline"
        if fresh:
            folder.mkdir()
            self.world = World(Bench(folder, dict(PIPELINES[kind])))
            self.world.land([])
        else:
            self.world = self._begun(kind).copied_to(folder)
        self.look()
        self.sound = True

    @classmethod
    def _begun(cls, kind: str) -> World:
        """A pipeline that has committed its first batch; copying its folder is quicker than making the tables anew."""
        if kind not in cls._prepared:
            folder = Path(tempfile.mkdtemp(prefix=f"prepared-{kind}-", dir=cls.root))
            world = World(Bench(folder, dict(PIPELINES[kind])))
            world.land(world.new_rows(5, 60))
            world.run()
            world.check_drained()
            cls._prepared[kind] = world
        return cls._prepared[kind]

    def look(self) -> None:
        ledger = self.world.ledger
        last, self.is_held = ledger.last_commit, ledger.held_batch is not None
        self.read_through = last.to_version if last else -1

    def _all_read(self) -> bool:
        return not self.is_held and 0 <= self.read_through == self.world.source.version()

    def allowed(self, what: str) -> bool:
        return {
            "release": self.is_held,
            "discard": self.is_held,
            "abandon": self.is_held,
            "backfill": not self.is_held and self.read_through >= 0,
            "vacuum": self._all_read(),
            "clean_log": not self.is_held and self.read_through > 0,
            "add_column": self.world.columns_added < 3,
        }.get(what, True)

    # The source

    def _append(self, world: World, draw: Draw) -> None:
        how, seed, count = draw(st.sampled_from(_ARRIVALS)), draw(_SEEDS), draw(st.integers(5, 40))
        if how == "again":  # as a producer does that repeats itself
            rows = shuffled(seed, world.rows_through(world.source.version())[-60:])[:count]
        elif how == "nothing":
            rows = []
        else:
            rows = world.new_rows(seed, count, late=draw(st.integers(1, 150)) if how == "late" else 0)
        world.land(shuffled(seed, rows) if how == "in any order" else rows)

    def _optimize(self, world: World, draw: Draw) -> None:
        world.optimize()

    def _vacuum(self, world: World, draw: Draw) -> None:
        world.vacuum()

    def _clean_log(self, world: World, draw: Draw) -> None:
        world.clean_log(self.read_through - draw(st.integers(0, 3)))

    def _add_column(self, world: World, draw: Draw) -> None:
        world.add_column()

    def _set_property(self, world: World, draw: Draw) -> None:
        world.set_property()

    # The pipeline

    def _run(self, world: World, draw: Draw) -> None:
        with _worked_on(draw(_BY_SPARK)):
            world.run()
        world.check_drained()

    def _run_twice(self, world: World, draw: Draw) -> None:
        world.run()
        assert world.run() == []
        world.check_drained()

    def _hold(self, world: World, draw: Draw) -> None:
        with contextlib.suppress(HeldError):
            world.run(holding=True)
            world.check_drained()  # all that there was had been published before its rules changed

    def _release(self, world: World, draw: Draw) -> None:
        world.rule("release", holding=draw(st.booleans()))
        assert world.held_batch() is None

    def _discard(self, world: World, draw: Draw) -> None:
        world.rule("discard", holding=draw(st.booleans()))
        newest = world.ledger.newest
        assert newest is not None
        assert (newest.status, newest.verdict) == ("committed", "discarded")

    def _abandon(self, world: World, draw: Draw) -> None:
        world.abandon()

    def _backfill(self, world: World, draw: Draw) -> None:
        with _worked_on(draw(_BY_SPARK)):
            world.backfill(draw(_SHARES), draw(_SHARES))
        assert world.held_batch() is None

    def _maintain(self, world: World, draw: Draw) -> None:
        world.maintain()

    def _optimize_sink(self, world: World, draw: Draw) -> None:
        world.optimize_sink()

    def _crash(self, world: World, draw: Draw) -> None:
        what = draw(st.sampled_from([name for name in sorted(OPERATIONS) if self.allowed(name)]))
        rulings = what in ("release", "discard", "abandon")
        others = {"batch", "held", *failpoints.STEPS} if rulings else {"ruling"} if self.is_held or what == "hold" else {"ruling", "held"}
        place = draw(st.sampled_from([place for place in failpoints.FAILPOINTS if place.partition(".")[0] not in others]))
        failpoints.arm(place, _lose if place.endswith(".lost") else _die)
        try:
            with contextlib.suppress(DiedError, failpoints.InjectedError, HeldError), _worked_on(draw(_BY_SPARK)):
                OPERATIONS[what](world)
        finally:
            failpoints.disarm()

    def _append_and_crash(self, world: World, draw: Draw) -> None:
        """So that a crash finds something to do."""
        self._append(world, draw)
        self._crash(world, draw)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            if self.sound:  # a failure before is told as it is
                self.world.run()
                self.world.check_drained()
        finally:
            shutil.rmtree(self.world.bench.folder.parent)


@contextlib.contextmanager
def _worked_on(by_spark: bool) -> Iterator[None]:
    """Let Spark work on batches that this process would work on by itself."""
    most = limits.MAX_ROWS
    limits.MAX_ROWS = 0 if by_spark else most
    try:
        yield
    finally:
        limits.MAX_ROWS = most
