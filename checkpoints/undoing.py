"""Takes the rows of later batches out of a table: which files hold some, and what stays of them. No JVM."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from windowmill.checkpoints.data_files import DataFile, rows_of, write_files
from windowmill.checkpoints.plans import RestorePlan
from windowmill.checkpoints.state.base import files_of

_BATCH, _END = "batch", "window_end"


@dataclass(frozen=True, slots=True)
class Undo:
    """Which rows of a table with a column ``batch`` go: those of batches after ``after``.

    Attributes
    ----------
    spared
        Later batches whose rows of windows that end at or before ``through`` stay: backfills, which replaced rows of earlier batches.
    """

    after: int
    spared: tuple[int, ...] = ()
    through: int | None = None

    @classmethod
    def by(cls, plan: RestorePlan, role: str) -> Undo:
        """Which rows go from the table with this ``role`` by ``plan``."""
        return cls(plan.kept_batch, tuple(plan.spared) if role == "sink" else (), plan.through)


@dataclass(frozen=True, slots=True)
class UndoneFiles:
    """The files of the table at ``table`` that hold rows to go: such rows alone (``whole``), or maybe also others (``partly``)."""

    table: str
    schema: pa.Schema
    undo: Undo
    whole: tuple[str, ...] = ()
    partly: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: str, snapshot: DeltaTable, undo: Undo) -> UndoneFiles:
        """The files of ``snapshot``, the table at ``table``; reads only its log."""
        whole, partly = [], []
        for file in files_of(snapshot):
            low, high = file.get(f"min.{_BATCH}"), file.get(f"max.{_BATCH}")
            if low is None or high is None:
                partly.append(file["path"])
            elif low > undo.after and not undo.spared:
                whole.append(file["path"])
            elif high > undo.after:
                partly.append(file["path"])
        return cls(table, pa.schema(snapshot.schema().to_arrow()), undo, tuple(whole), tuple(partly))

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of all files that go."""
        return self.whole + self.partly

    def keep(self, *, batch: int, attempt: str) -> tuple[DataFile, ...]:
        """Write the rows that stay to files of their own."""
        staying = (rows.filter(self.stays(rows)) for rows in rows_of(self.table, self.partly, self.schema))
        return write_files(self.table, self.schema, staying, batch=batch, attempt=attempt)

    def stays(self, rows: pa.Table) -> pa.ChunkedArray:
        """Mask of the ``rows`` that stay."""
        numbers = rows.column(_BATCH)
        stays = pc.less_equal(numbers, self.undo.after)
        if self.undo.spared and self.undo.through is not None:
            ends = rows.column(_END).cast(pa.int64())
            published = pc.is_in(numbers, pa.array(self.undo.spared, numbers.type))
            stays = pc.or_(stays, pc.and_(published, pc.less_equal(ends, self.undo.through)))
        return stays.fill_null(True)
