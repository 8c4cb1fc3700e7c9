"""A state machine that does to a pipeline and its source, in any order, what people, orchestrators and crashes do to them.

It takes a few steps, or as many as the environment asks for by ``WINDOWMILL_STEPS``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, assume, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.faults.dying import DiedError, arm
from tests.faults.pipelines import PIPELINES
from tests.faults.world import OPERATIONS, World, shuffled
from tests.spark.harness import Bench
from windowmill.checkpoints import failpoints
from windowmill.jobs.layouts import limits
from windowmill.jobs.sources.reading import History
from windowmill.windowing.errors import HeldError

#: Number of steps; a few where it is not given.
WANTED = os.environ.get("WINDOWMILL_STEPS")
_STEPS_OF_AN_EXAMPLE, _EXAMPLES_OF_A_SEED, _TOLD_EVERY = 50, 10, 50
Draw = Callable[[st.SearchStrategy[Any]], Any]
_ARRIVALS = ("in order", "in order", "in order", "late", "in any order", "again", "nothing")
KINDS = ("slices", "live_rows", "mixed", "revise", "lasting")
_SEEDS, _SHARES = st.integers(0, 10_000), st.integers(0, 100)
#: In hundredths of the window ends in the sink; where windows are not on a grid, a part is refused if other rows count.
_RANGES = st.one_of(st.just((0, 100)), st.tuples(_SHARES, _SHARES))
_HISTORIES: st.SearchStrategy[History] = st.sampled_from(["current", "current", "log", "event_time"])
_BY_SPARK = st.sampled_from([False, False, False, True])
#: What a step may be: a method ``_<step>`` of the machine, or a method of its world; what is named twice comes twice as often.
_STEPS = (
    *("append", "append", "append", "append_and_crash", "append_and_crash", "append_and_crash", "crash", "run", "run", "run_twice"),
    *("hold", "hold", "release", "discard", "abandon", "backfill", "backfill", "maintain", "optimize_sink"),
    *("optimize", "vacuum", "clean_log", "add_column", "set_property"),
)


class Machine(RuleBasedStateMachine):
    """After whatever has happened, a run that drains the source leaves the tables that the reference engine says."""

    #: Folder of the prepared pipelines and of the one that is worked on.
    root: ClassVar[Path]
    #: How often each step has been taken, over all examples.
    done: ClassVar[Counter[str]] = Counter()
    _prepared: ClassVar[dict[str, World]] = {}
    #: Whether no step has failed.
    sound = False

    # One rule, which draws what it does: of several, Hypothesis leaves out half in each example, and often all that run.
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        what = data.draw(st.sampled_from(_STEPS))
        what = what if self.allowed(what) else "append"
        self.sound = False
        if hasattr(self, f"_{what}"):
            getattr(self, f"_{what}")(self.world, data.draw)
        else:
            getattr(self.world, what)()
        self.look()
        self.sound = True
        self.done[what] += 1
        if WANTED and self.done.total() % _TOLD_EVERY == 0:
            print(f"  {self.done.total()} steps: {', '.join(f'{n} {name}' for name, n in self.done.most_common())}", flush=True)

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
            "backfill_as_arrived": not self.is_held and self.read_through >= 0,
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

    def _clean_log(self, world: World, draw: Draw) -> None:
        world.clean_log(self.read_through - draw(st.integers(0, 3)))

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
        world.check_tables()

    def _discard(self, world: World, draw: Draw) -> None:
        world.rule("discard", holding=draw(st.booleans()))
        newest = world.ledger.newest
        assert newest is not None
        assert (newest.status, newest.verdict) == ("committed", "discarded")
        world.check_tables()

    def _backfill(self, world: World, draw: Draw) -> None:
        with _worked_on(draw(_BY_SPARK)):
            world.backfill(*draw(_RANGES), draw(_HISTORIES))
        assert world.held_batch() is None

    def _crash(self, world: World, draw: Draw) -> None:
        what = draw(st.sampled_from([name for name in sorted(OPERATIONS) if self.allowed(name)]))
        rulings = what in ("release", "discard", "abandon")
        others = {"batch", "held", *failpoints.STEPS} if rulings else {"ruling"} if self.is_held or what == "hold" else {"ruling", "held"}
        place = draw(st.sampled_from([place for place in failpoints.FAILPOINTS if place.partition(".")[0] not in others]))
        arm(place)
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


def take(number: int, examples: int, steps: int) -> None:
    """Take ``steps`` of each of so many ``examples``, drawn from the seed ``number``."""
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=(Phase.generate,),  # shrinking would run thousands of batches
        deadline=None,
        database=None,
        derandomize=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seed(number)(Machine), settings=chosen)


def take_those_wanted() -> None:
    """Take as many steps as the environment asks for, seed by seed, and fail with the seeds that failed."""
    assert WANTED is not None
    failed, number = [], int(os.environ.get("WINDOWMILL_SEED", "0"))
    while Machine.done.total() < int(WANTED):
        before = Machine.done.total()
        try:
            take(number, _EXAMPLES_OF_A_SEED, _STEPS_OF_AN_EXAMPLE)
        except Exception as err:  # noqa: BLE001 - the other seeds are tried all the same
            failed.append(number)
            print(f"seed {number} failed: {type(err).__name__}: {err}\n" + "\n".join(getattr(err, "__notes__", [])), flush=True)
        print(f"seed {number}: {Machine.done.total() - before} steps, {Machine.done.total()} of {WANTED}", flush=True)
        number += 1
    assert failed == [], f"seeds that failed: {failed}; run one by WINDOWMILL_SEED=n WINDOWMILL_STEPS=1"
