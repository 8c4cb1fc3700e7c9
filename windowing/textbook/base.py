"""The interface of every engine: insert partials at the young end, evict at the old end, query the combined window at any time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self

from windowmill.windowing.algebra import Aggregate, P, identical
from windowmill.windowing.errors import InvariantError, StateError

if TYPE_CHECKING:
    from windowmill.windowing.costs import Shape


@dataclass(frozen=True, slots=True)
class EngineState(Generic[P]):
    """An engine's state as a flat list of partials and a few integers; ``None`` is an empty slot.

    A restored engine has the same structure, so its later results are bit-identical to those without the interruption.
    """

    engine: str
    partials: tuple[P | None, ...]
    scalars: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Combines:
    """Amortised number of combines per window of n leaves, m of them new; does not include resizing.

    ``explain`` shows ``formula``; ``count(n, m)`` gives its value. Tests compare it with the combines that the engine makes.
    """

    formula: str
    count: Callable[[float, float], float]


@dataclass(frozen=True, slots=True)
class Setting:
    """A use of windows for which ``explain`` assesses an engine.

    Attributes
    ----------
    shape
        Shape of the window.
    stored
        Whether leaves are slices in the state rather than rows.
    nodes
        Whether the state holds nodes over the slices.
    nodes_from
        Least number of slices in a window for which the state holds nodes; null if it holds none over such windows.
    positions
        Whether leaves are tuples by their positions, and the state holds nodes over them.
    """

    shape: Shape
    stored: bool
    nodes: bool
    nodes_from: int | None
    positions: bool


class Engine(ABC, Generic[P]):
    """A window of partials, oldest first.

    Costs in the engines' docstrings count calls of ``combine`` (and ``deduct``) for a window of n partials.

    Attributes
    ----------
    name
        Name in ``explain`` and in stored snapshots.
    needs
        Properties of :class:`.Aggregate` that an aggregate must have.
    cost
        Cost of a window.
    oldest_only
        Whether only the oldest partial can be evicted.
    not_taken
        Reason, for ``explain``, why runs do not use the engine although it is admissible.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    cost: ClassVar[Combines]
    oldest_only: ClassVar[bool] = True
    not_taken: ClassVar[str] = "no kernel has it"

    @classmethod
    def why_not(cls, setting: Setting) -> str:  # noqa: ARG003 - for engines whose reason depends on the window
        """The reason of :attr:`not_taken` in ``setting``."""
        return cls.not_taken

    def __init__(self, aggregate: Aggregate[P]) -> None:
        """Create an empty window.

        Raises
        ------
        AlgebraError
            If ``aggregate`` lacks a property that the engine needs.
        """
        aggregate.require(self.needs, self.name)
        self.aggregate = aggregate

    @abstractmethod
    def insert(self, partial: P) -> None:
        """Add ``partial`` at the young end."""

    @abstractmethod
    def evict(self) -> None:
        """Remove the oldest partial; does nothing in an empty window."""

    @abstractmethod
    def query(self) -> P:
        """The partials of the window combined in order; the identity if the window is empty."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of partials in the window."""

    @abstractmethod
    def snapshot(self) -> EngineState[P]:
        """A copy of the state for storage, independent of later changes; O(n)."""

    @abstractmethod
    def _load(self, snapshot: EngineState[P]) -> None:
        """Replace the state by that of ``snapshot``."""

    @abstractmethod
    def check(self) -> None:
        """Check every invariant; O(n) combines.

        Raises
        ------
        InvariantError
            Names the first invariant that does not hold.
        """

    @classmethod
    def restore(cls, aggregate: Aggregate[P], snapshot: EngineState[P], **options: Any) -> Self:
        """The engine with the state of ``snapshot``; ``options`` must equal those of the original engine.

        Raises
        ------
        StateError
            If the snapshot is of another type of engine.
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


def filled(snapshot: EngineState[P]) -> list[P]:
    """The partials of the snapshot of an engine that has no empty slots.

    Raises
    ------
    StateError
        If a slot is empty.
    """
    partials = [partial for partial in snapshot.partials if partial is not None]
    empty = len(snapshot.partials) - len(partials)
    if empty:
        raise StateError(f"stored state of engine {snapshot.engine!r} has {empty} empty slots where there can be none. Rebuild it")
    return partials
