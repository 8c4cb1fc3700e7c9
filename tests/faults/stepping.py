"""Machines of Hypothesis that take steps in any order, and runs of them: a few steps, or as many as the environment asks for."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

#: Number of steps; a few where it is not given.
WANTED = os.environ.get("WINDOWMILL_STEPS")
_STEPS_OF_AN_EXAMPLE, _EXAMPLES_OF_A_SEED = 50, 10
Draw = Callable[[st.SearchStrategy[Any]], Any]


class Stepping(RuleBasedStateMachine):
    """A machine whose steps are its methods ``_<step>``, which take its ``world`` and a function that draws from strategies."""

    #: What a step may be; what is named twice comes twice as often.
    steps: ClassVar[Sequence[str]] = ()
    #: The step in the place of one that cannot be taken.
    instead: ClassVar[str] = ""
    #: How often each step has been taken, over all examples.
    done: ClassVar[Counter[str]] = Counter()
    #: Steps after which progress is printed; none are if 0.
    told_every: ClassVar[int] = 0
    world: Any

    def __init__(self) -> None:
        super().__init__()
        #: Whether no step has failed.
        self.sound = False

    def allowed(self, what: str) -> bool:
        """Whether this step can be taken now."""
        return True

    def look(self) -> None:
        """Called after each step."""

    # One rule, which draws what it does: of several, Hypothesis leaves out half in each example, and often all that run.
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        what = data.draw(st.sampled_from(self.steps))
        what = what if self.allowed(what) else self.instead
        self.sound = False
        getattr(self, f"_{what}")(self.world, data.draw)
        self.look()
        self.sound = True
        self.done[what] += 1
        steps = self.done.total()
        if self.told_every and steps % self.told_every == 0:
            print(f"  {steps} steps: {', '.join(f'{n} {name}' for name, n in self.done.most_common())}", flush=True)


def take(machine: type[Stepping], number: int, examples: int, steps: int) -> None:
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
    run_state_machine_as_test(seed(number)(machine), settings=chosen)


def take_those_wanted(machine: type[Stepping]) -> None:
    """Take as many steps as the environment asks for, seed by seed, and fail with the seeds that failed."""
    assert WANTED is not None
    failed, number = [], int(os.environ.get("WINDOWMILL_SEED", "0"))
    machine.told_every = 50
    while machine.done.total() < int(WANTED):
        before = machine.done.total()
        try:
            take(machine, number, _EXAMPLES_OF_A_SEED, _STEPS_OF_AN_EXAMPLE)
        except Exception as err:  # noqa: BLE001 - the other seeds are tried all the same
            failed.append(number)
            print(f"seed {number} failed: {type(err).__name__}: {err}\n" + "\n".join(getattr(err, "__notes__", [])), flush=True)
        print(f"seed {number}: {machine.done.total() - before} steps, {machine.done.total()} of {WANTED}", flush=True)
        number += 1
    assert failed == [], f"seeds that failed: {failed}; run one by WINDOWMILL_SEED=n WINDOWMILL_STEPS=1"
