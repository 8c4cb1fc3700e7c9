"""What every engine offers: partials in at the young end, out at the old end, the combined window at any time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Self

from windowmill.windowing.algebra import Aggregate, P, identical
from windowmill.windowing.errors import StateError


class InvariantError(AssertionError):
    """An engine's ``check`` found its structure broken: a defect of the engine, or of the state that it was restored from."""


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[P]):
    """An engine's state as a flat list of partials and a few whole numbers; ``None`` is an empty slot.

    Restoring it gives the same structure, so that later results are the same to the bit as without the interruption.
    """

    engine: str
    partials: tuple[P | None, ...]
    scalars: Mapping[str, int] = field(default_factory=dict)


class Engine(ABC, Generic[P]):
    """A window of partials, oldest first. ``needs`` names the properties without which an aggregate is refused.

    Costs in the engines' docstrings count calls of ``combine`` (and ``deduct``) for a window of n partials.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()

    def __init__(self, aggregate: Aggregate[P]) -> None:
        """An empty window.

        Raises
        ------
        AlgebraError
            If ``aggregate`` lacks a property that the engine needs.
        """
        aggregate.require(self.needs, self.name)
        self.aggregate = aggregate

    @abstractmethod
    def insert(self, partial: P) -> None:
        """Put ``partial`` at the young end."""

    @abstractmethod
    def evict(self) -> None:
        """Drop the oldest partial; an empty window stays as it is."""

    @abstractmethod
    def query(self) -> P:
        """The partials of the window combined in order; the identity when it is empty."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of partials in the window."""

    @abstractmethod
    def snapshot(self) -> Snapshot[P]:
        """The state, to be stored; later changes of the engine do not show in it. O(n)."""

    @abstractmethod
    def _load(self, snapshot: Snapshot[P]) -> None:
        """Take over what ``snapshot`` gave."""

    @abstractmethod
    def check(self) -> None:
        """Walk every invariant; O(n) combines.

        Raises
        ------
        InvariantError
            Naming the first that does not hold.
        """

    @classmethod
    def restore(cls, aggregate: Aggregate[P], snapshot: Snapshot[P], **options: Any) -> Self:
        """The engine that ``snapshot`` was taken of; ``options`` are those it was made with.

        Raises
        ------
        StateError
            If the snapshot is another engine's.
        """
        if snapshot.engine != cls.name:
            raise StateError(f"state of engine {snapshot.engine!r} given to {cls.name!r}. Restore it with its own engine, or rebuild it")
        engine = cls(aggregate, **options)
        engine._load(snapshot)
        return engine

    def _expect(self, holds: bool, what: str) -> None:
        if not holds:
            raise InvariantError(f"{self.name}: {what}")

    def _expect_same(self, got: P, wanted: P, what: str) -> None:
        if not identical(got, wanted):
            raise InvariantError(f"{self.name}: {what}: got {got!r}, expected {wanted!r}")


def filled(snapshot: Snapshot[P]) -> list[P]:
    """The partials of a snapshot whose engine leaves no slot empty.

    Raises
    ------
    StateError
        If it has one.
    """
    kept = [partial for partial in snapshot.partials if partial is not None]
    empty = len(snapshot.partials) - len(kept)
    if empty:
        raise StateError(f"stored state of engine {snapshot.engine!r} has {empty} empty slots where there can be none. Rebuild it")
    return kept
