"""Every crash, every pair of crashes, every lost response and every interleaving of two attempts, over tables in memory."""

from __future__ import annotations

import copy
import itertools

import pytest

from tests.simulator.scheduler import KINDS, Fault, dies, interleaved
from tests.simulator.world import UNLUCKY, WRITES, Run, World, drop
from windowmill.windowing.errors import FencedError, HeldError, LedgerBehindError, LedgerError, MixedAttemptError

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
    assert not world.ledger().open_batch


def begun(batches: int) -> World:
    """A world after so many batches."""
    world = World(copy.deepcopy(SOURCE))
    for _ in range(batches):
        Run(world)()
    return world


def faults() -> list[Fault]:
    return [Fault(at, kind) for at in range(len(WRITES)) for kind in KINDS]


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


@pytest.mark.covers("P10")
@pytest.mark.parametrize("write", WRITES)
def test_a_response_that_is_lost_does_not_stop_the_batch(write):
    world = begun(1)
    assert Run(world, Fault(WRITES.index(write), "lost").probe())()
    assert [batch.status for batch in world.ledger().batches()] == ["committed"] * 2
    clean(world)


@pytest.mark.thorough
@pytest.mark.covers("P6", "P7")
@pytest.mark.parametrize("batch", range(3))
def test_every_interleaving_of_two_attempts(batch):
    """Two processes take turns at every write; one may die or lose a response on the way."""
    turns = {tuple(order) for order in _orders(len(WRITES), len(WRITES))}
    assert len(turns) == 924
    for order in turns:
        world = begun(batch)
        ends = interleaved(order, [lambda probe, world=world: Run(world, probe)() for _ in range(2)])
        assert all(end is None or isinstance(end, FencedError | OSError) for end in ends), ends
        assert None in ends
        clean(world)


@pytest.mark.thorough
@pytest.mark.covers("P7", "P10")
@pytest.mark.parametrize("fault", faults(), ids=lambda fault: f"{WRITES[fault.at]}-{fault.kind}")
def test_interleavings_of_an_attempt_with_one_that_fails(fault):
    for order in list(_orders(len(WRITES), len(WRITES)))[:: 7 + fault.at]:
        world = begun(1)

        def failing(probe, world=world):
            own = fault.probe()
            return Run(world, lambda name, write: own(name, lambda: probe(name, write)))()

        interleaved(order, [failing, lambda probe, world=world: Run(world, probe)()])
        clean(world)


def _orders(a: int, b: int):
    for places in itertools.combinations(range(a + b), a):
        yield [0 if place in places else 1 for place in range(a + b)]


@pytest.mark.covers("Q1")
@pytest.mark.parametrize("ruling", ["release", "discard"])
def test_a_held_batch_and_every_fault_of_its_ruling(ruling):
    """What a ruling has begun, another run finishes; a ruling that contradicts what has landed is refused."""
    for first, then in itertools.product(faults(), ("release", "discard", None)):
        world = World([[1], [2, UNLUCKY], [3]])
        with pytest.raises(HeldError):
            Run(world)()
        assert not world.tables["sink"].commits
        dies(Run(world, first.probe(), ruling=ruling))
        world.source.append([4])
        if world.ledger().open_batch is not None:
            published = bool(world.tables["sink"].commits)
            try:
                Run(world, ruling=then)()
            except HeldError:
                assert then is None
                assert not published
                Run(world, ruling=ruling)()
            except LedgerError:
                assert then == "discard"
                assert published
                Run(world, ruling="release")()
            else:
                assert not (published and then == "discard"), "the rows are in the sink, and nobody was told"
        clean(world)


@pytest.mark.parametrize("fault", faults(), ids=lambda fault: f"{WRITES[fault.at]}-{fault.kind}")
def test_abandon_drops_only_what_has_written_nothing(fault):
    world = begun(1)
    dies(Run(world, fault.probe()))
    if world.ledger().open_batch is None:
        return
    written = any(len(world.tables[role].commits) > 1 for role in ("sink", "state"))
    if written:
        with pytest.raises(LedgerError, match="cannot be abandoned"):
            drop(world)
    else:
        drop(world)
        assert world.ledger().open_batch is None
    world.source.append([8])
    clean(world)


def test_a_dropped_attempt_that_wakes_is_noticed():
    """Its rows are in the sink: the ledger's fence came too late for them, and the next run does not go on over them."""
    world = begun(1)

    def wakes(probe):
        Run(world, probe)()

    def abandons(probe):
        probe("begin", lambda: None)
        drop(world)

    # The first has planned and validated, and is about to write to the sink, when the plan is dropped.
    ends = interleaved([0, 0, 1], [wakes, abandons])
    assert isinstance(ends[0], FencedError)
    with pytest.raises(LedgerBehindError, match="does not contain or has abandoned"):
        Run(world)()


@pytest.mark.covers("P6")
def test_attempts_that_compute_different_rows_are_not_mixed():
    for at in range(2, len(WRITES)):
        world = begun(1)
        dies(Run(world, Fault(at, "after").probe()))
        if world.ledger().open_batch is None:
            continue
        with pytest.raises(MixedAttemptError, match="wrote other rows"):
            Run(world, flaw=1)()
        clean(world)


@pytest.mark.covers("D4")
@pytest.mark.parametrize("lost", range(1, 6))
def test_a_ledger_restored_from_an_older_copy_is_noticed(lost):
    world = begun(3)
    del world.records[-lost:]
    world.source.append([8])
    if world.ledger().open_batch is None:
        with pytest.raises(LedgerBehindError):
            Run(world)()
    elif lost == 1:
        clean(world)
    else:
        with pytest.raises(LedgerBehindError):
            drain(world)


def test_a_ledger_that_is_lost_is_noticed():
    world = begun(2)
    world.records.clear()
    with pytest.raises(Exception, match="is empty"):
        Run(world)()


def test_a_renamed_pipeline_goes_on():
    for fault in faults():
        world = begun(1)
        dies(Run(world, fault.probe()))
        world.name = "renamed"
        clean(world)
