"""Every crash, every pair of crashes, every lost response and every interleaving of two attempts, over tables in memory."""

from __future__ import annotations

import copy
import itertools

import pytest

from tests.simulator.scheduler import KINDS, Fault, dies, interleaved
from tests.simulator.world import HELD_WRITES, RULING_WRITES, UNLUCKY, WRITES, Run, World
from windowmill.windowing.errors import FencedError, HeldError, LedgerBehindError, OutOfTurnError

#: Three batches, of two versions, two and one; values that are not positive are quarantined.
SOURCE = [[1, 2], [3], [4, -1], [5], [6, 0, 7]]


def drain(world: World, *, most: int = 20) -> None:
    for _ in range(most):
        if not Run(world)():
            return
    raise AssertionError("the source was not drained")


def clean(world: World) -> None:
    drain(world)
    world.check()


def begun(batches: int) -> World:
    """A world after so many batches."""
    world = World(copy.deepcopy(SOURCE))
    for _ in range(batches):
        Run(world)()
    return world


def faults(writes: tuple[str, ...] = WRITES) -> list[Fault]:
    return [Fault(at, kind) for at in range(len(writes)) for kind in KINDS]


def ids(writes: tuple[str, ...] = WRITES) -> list[str]:
    return [f"{writes[fault.at]}-{fault.kind}" for fault in faults(writes)]


def test_undisturbed():
    world = World(copy.deepcopy(SOURCE))
    clean(world)
    assert [(b.from_version, b.to_version) for b in world.ledger().batches()] == [(-1, 1), (1, 3), (3, 4)]


@pytest.mark.thorough
@pytest.mark.covers("P1", "P10", "P11")
@pytest.mark.parametrize("batch", range(3))
def test_every_fault_and_every_pair_of_faults(batch):
    """A process fails in batch ``batch``, rows land, the next fails too, rows land, the third goes on to the end."""
    for first, second in itertools.product(faults(), faults()):
        world = begun(batch)
        dies(Run(world, first.probe()))
        world.source.append([8])
        dies(Run(world, second.probe()))
        world.source.append([9, -3])
        clean(world)


@pytest.mark.covers("P1", "P10")
@pytest.mark.parametrize("batch", range(3))
@pytest.mark.parametrize("fault", faults(), ids=ids())
def test_behind_the_record_nothing_is_computed_again(batch, fault):
    world = begun(batch)
    dies(Run(world, fault.probe()))
    recorded = world.ledger().count > batch
    assert recorded == ((fault.at, fault.kind) >= (WRITES.index("batch"), "lost") or (fault.at, fault.kind) == (1, "after"))
    clean(world)
    assert world.computed[batch] == (1 if recorded else 2)


@pytest.mark.covers("P10")
@pytest.mark.parametrize("write", WRITES[1:])
def test_a_response_that_is_lost_does_not_stop_the_batch(write):
    world = begun(1)
    assert Run(world, Fault(WRITES.index(write), "lost").probe())()
    assert [batch.status for batch in world.ledger().batches()] == ["committed"] * 2
    clean(world)


@pytest.mark.thorough
@pytest.mark.covers("P6", "P7")
@pytest.mark.parametrize("batch", range(3))
@pytest.mark.parametrize("pruned", [False, True], ids=["kept", "pruned"])
def test_every_interleaving_of_two_attempts(batch, pruned):
    """Two processes take turns at every write; with ``pruned`` logs are cleaned up in between, as if one had been stalled for long.

    They do the same, so it does not matter which of them is the first.
    """
    turns = {tuple(order) for order in orders(len(WRITES), len(WRITES)) if order[0] == 0}
    assert len(turns) == 1716
    for order in turns:
        world = begun(batch)

        def process(probe, world=world):
            def pruning(name, write):
                probe(name, write)
                if pruned:
                    world.prune()

            return Run(world, pruning)()

        ends = interleaved(order, [process, process])
        assert all(end is None or isinstance(end, FencedError) for end in ends), ends
        assert None in ends
        assert world.ledger().count > batch
        clean(world)


@pytest.mark.thorough
@pytest.mark.covers("P7", "P10")
@pytest.mark.parametrize("fault", faults(), ids=ids())
def test_interleavings_of_an_attempt_with_one_that_fails(fault):
    for n, order in enumerate(list(orders(len(WRITES), len(WRITES)))[:: 7 + fault.at]):
        world = begun(n % 3)

        def failing(probe, world=world):
            own = fault.probe()
            return Run(world, lambda name, write: own(name, lambda: probe(name, write)))()

        interleaved(order, [failing, lambda probe, world=world: Run(world, probe)()])
        clean(world)


def orders(a: int, b: int):
    for places in itertools.combinations(range(a + b), a):
        yield [0 if place in places else 1 for place in range(a + b)]


def held() -> World:
    """A world whose second batch is held."""
    world = World([[1], [2], [3, -4], [UNLUCKY], [5]])
    Run(world)()
    with pytest.raises(HeldError):
        Run(world)()
    assert len(world.logs["sink"].commits) == 1
    return world


@pytest.mark.covers("Q1")
@pytest.mark.parametrize("fault", faults(HELD_WRITES), ids=ids(HELD_WRITES))
def test_every_fault_of_a_batch_that_is_held(fault):
    world = World([[1], [2], [3, -4], [UNLUCKY], [5]])
    Run(world)()
    try:
        dies(Run(world, fault.probe()))
    except HeldError:
        assert fault.kind == "lost"
    with pytest.raises(HeldError):
        Run(world)()
    assert world.logs["held"].rows() == {(2, 6): 1, (3, 19): 1}
    Run(world, ruling="released")()
    clean(world)


@pytest.mark.covers("Q1")
@pytest.mark.parametrize("ruling", ["released", "discarded", "abandoned"])
@pytest.mark.parametrize("fault", faults(RULING_WRITES), ids=ids(RULING_WRITES))
def test_every_fault_of_a_ruling(ruling, fault):
    """What a ruling has begun, the next run finishes; no other ruling can take its place. Files that others have removed come back."""
    world = held()
    for role in ("sink", "state", "quarantine"):
        log = world.logs[role]
        named = {path.split()[0] for change in log.commits for path in change.added}
        log.files = {path: rows for path, rows in log.files.items() if path in named}
    before = len(world.records)
    dies(Run(world, fault.probe(), ruling=ruling))
    if len(world.records) > before:
        with pytest.raises(OutOfTurnError):
            Run(world, ruling="released")()
    else:
        Run(world, ruling=ruling)()
    if ruling == "abandoned":
        world.source[3] = [4]  # the source is corrected
    clean(world)
    assert world.computed[1] == 1
    assert not [path for path in world.logs["held"].files if "/" in path]


def test_rulings_of_two_processes():
    """One wins; what the other wanted is not mixed into it."""
    for order in orders(len(RULING_WRITES), len(RULING_WRITES)):
        world = held()
        rulings = ("released", "discarded")
        ends = interleaved(order, [lambda probe, ruling=ruling, world=world: Run(world, probe, ruling)() for ruling in rulings])
        assert sum(end is None for end in ends) == 1 or isinstance(ends[1] or ends[0], FencedError | OutOfTurnError)
        clean(world)


@pytest.mark.covers("D4")
@pytest.mark.parametrize("lost", range(1, 4))
def test_a_ledger_restored_from_an_older_copy_is_noticed(lost):
    world = begun(3)
    del world.records[-lost:]
    world.source.append([8])
    with pytest.raises(LedgerBehindError):
        Run(world)()


def test_an_attempt_that_wakes_after_later_batches_changes_nothing():
    """It was stalled before its record, or between two commits, while others went on and cleaned up the logs."""
    for at in range(len(WRITES)):

        def others(probe, world):
            probe("begin", lambda: None)
            drain(world)
            world.prune()

        world = begun(1)
        sleeper = [0] * at
        interleaved([*sleeper, 1], [lambda probe, world=world: Run(world, probe)(), lambda probe, world=world: others(probe, world)])
        clean(world)
