"""What every engine offers: partials in at the young end, out at the old end, the combined window at any time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self

from windowmill.windowing.algebra import Aggregate, P, identical
from windowmill.windowing.errors import StateError

if TYPE_CHECKING:
    from windowmill.windowing.costs import Shape


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


@dataclass(frozen=True, slots=True)
class Combines:
    """Combines per window, amortised, where a window has n leaves of which m are new; resizing is not counted.

    ``formula`` is what ``explain`` shows, ``count`` gives its value. Tests hold it against the engine's own count.
    """

    formula: str
    count: Callable[[float, float], float]


@dataclass(frozen=True, slots=True)
class Setting:
    """Where ``explain`` considers an engine.

    Attributes
    ----------
    shape
        The window.
    stored
        Whether leaves are slices in the state; else they are rows.
    nodes
        Whether the state holds nodes over them.
    nodes_from
        Slices of a window from which on it does.
    """

    shape: Shape
    stored: bool
    nodes: bool
    nodes_from: int


class Engine(ABC, Generic[P]):
    """A window of partials, oldest first.

    Costs in the engines' docstrings count calls of ``combine`` (and ``deduct``) for a window of n partials.

    Attributes
    ----------
    name
        As ``explain`` and stored snapshots have it.
    needs
        Properties of :class:`.Aggregate` without which an aggregate is refused.
    cost
        What ``explain`` says that a window costs.
    oldest_only
        Whether only the oldest partial can leave.
    not_taken
        Why runs do not compute with it where it is allowed, for ``explain``.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    cost: ClassVar[Combines]
    oldest_only: ClassVar[bool] = True
    not_taken: ClassVar[str] = "no kernel has it"

    @classmethod
    def why_not(cls, setting: Setting) -> str:  # noqa: ARG003 - for engines whose reason depends on the window
        """:attr:`not_taken`, as it reads in ``setting``."""
        return cls.not_taken

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
