"""Readers of the state, one for each kind of part: of the state table, or of :mod:`.memory`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from windowmill.checkpoints.state.log import LogTable
from windowmill.checkpoints.state.partials import PartialTable, has_nodes
from windowmill.checkpoints.state.positions import PositionTable
from windowmill.checkpoints.stores import is_table

if TYPE_CHECKING:
    import pyarrow as pa

    from windowmill.checkpoints.state.wanted import ReadLimit, Wanted
    from windowmill.windowing.columnar.buckets import KeysOfShare
    from windowmill.windowing.columnar.checksums import RowCheck
    from windowmill.windowing.columnar.positions import PositionStage


class PartialReader(Protocol):
    """Reads slices or sessions; methods as those of :class:`.PartialTable`."""

    def read(self, wanted: Wanted, *, before_batch: int, limit: ReadLimit) -> pa.Table | None: ...


class PositionReader(Protocol):
    """Reads windows over positions; methods as those of :class:`.PositionTable`."""

    def read(self, stage: PositionStage, rows: pa.Table, limit: ReadLimit) -> pa.Table | None: ...


class LogReader(Protocol):
    """Reads live rows; methods as those of :class:`.LogTable`."""

    def read(
        self, touched: pa.Table, keys: Mapping[str, str], *, before_batch: int, watermark: int, limit: ReadLimit
    ) -> pa.Table | None: ...


class State(Protocol):
    """The state of one pipeline."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def holds_nodes(self) -> bool:
        """Whether it may hold nodes over slices."""
        ...

    def partials(self, schema: pa.Schema, /) -> PartialReader:
        """Reads slices, or sessions, with the columns of ``schema``."""
        ...

    def positions(self, schema: pa.Schema, /) -> PositionReader:
        """Reads windows over positions, with the columns of ``schema``."""
        ...

    def log(self, schema: pa.Schema, may_lack: Collection[str], /) -> LogReader:
        """Reads live rows, with the columns of ``schema``, of which the state may lack some until a batch adds them."""
        ...


@dataclass(frozen=True)
class DeltaState:
    """The state table at the path ``name``.

    Attributes
    ----------
    check
        Verifies rows.
    replaced
        Whether a batch replaces all rows.
    only
        The keys whose rows are read; null for all.
    """

    name: str
    check: RowCheck
    replaced: bool = False
    only: KeysOfShare | None = None

    @property
    def holds_nodes(self) -> bool:
        # This is fixed when the rows are first written.
        return self.replaced or not is_table(self.name) or has_nodes(self.name)

    def partials(self, schema: pa.Schema, /) -> PartialTable:
        return PartialTable(self.name, schema, self.check, self.only)

    def positions(self, schema: pa.Schema, /) -> PositionTable:
        return PositionTable(self.name, schema, self.check, self.only)

    def log(self, schema: pa.Schema, may_lack: Collection[str], /) -> LogTable:
        return LogTable(self.name, schema, self.check, self.only, may_lack=may_lack)
