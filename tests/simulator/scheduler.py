"""Processes that die, lose responses, or take turns at every write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from greenlet import greenlet

from tests.simulator.world import LostResponseError
from windowmill.windowing.errors import WindowmillError


class DiedError(BaseException):
    """Stands for ``kill -9``: nothing of the product catches it."""


@dataclass
class Fault:
    """What happens at the write number ``at`` (from 0) of a process: ``before`` or ``after`` it the process dies, or ``lost``."""

    at: int
    kind: str

    def probe(self) -> Callable[[str, Callable[[], None]], None]:
        """A probe that lets the fault happen once."""
        writes = iter(range(1 << 30))

        def probe(name: str, write: Callable[[], None]) -> None:
            if next(writes) != self.at:
                write()
                return
            if self.kind == "before":
                raise DiedError(name)
            write()
            raise DiedError(name) if self.kind == "after" else LostResponseError(name)

        return probe


KINDS = ("before", "after", "lost")


def dies(process: Callable[[], object]) -> bool:
    """Let ``process`` run; whether it died or failed by its own fault."""
    try:
        process()
    except (DiedError, LostResponseError):
        return True
    return False


def interleaved(order: Iterable[int], processes: list[Callable[[Callable[..., None]], object]]) -> list[BaseException | None]:
    """Run the processes, each up to its next write whenever ``order`` names it, then to their ends; how each ended.

    A process that is named writes, and goes on to where it is about to write again.
    """
    ends: list[BaseException | None] = [None] * len(processes)

    def body(number: int) -> None:
        main = greenlet.getcurrent().parent
        assert main is not None

        def probe(name: str, write: Callable[[], None]) -> None:
            main.switch(name)
            write()

        try:
            processes[number](probe)
        except (WindowmillError, OSError, LostResponseError, DiedError) as err:
            ends[number] = err

    turns = [greenlet(body) for _ in processes]
    for number, turn in enumerate(turns):
        turn.switch(number)
    for number in order:
        if not turns[number].dead:
            turns[number].switch()
    for turn in turns:
        while not turn.dead:
            turn.switch()
    return ends
