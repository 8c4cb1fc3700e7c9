"""Caches open Delta tables for the length of a run: updating one costs a tenth of opening it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import pyarrow.fs as pa_fs
from deltalake import DeltaTable

from windowmill.checkpoints.delta_log_files import LAST_CHECKPOINT, entry_name
from windowmill.checkpoints.stores import store_of, table_at

#: Modification time and size of a file.
Mark = tuple[int | None, int | None]


class KeptTable:
    """The Delta table at ``path``, opened on first use."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._files: pa_fs.FileSystem | None = None
        self._table: DeltaTable | None = None
        #: Of the log when the table was opened or updated: the entry of its version, and the pointer to the last Delta log checkpoint.
        self._seen: list[Mark | None] = []

    def newest(self) -> DeltaTable:
        """The table at its newest version; raises ``TableNotFoundError`` and other errors of ``DeltaTable``.

        Returns the same object each time, updated, as long as the log entry of its version is unchanged. If the entry is missing or
        different, the table was recreated or restored, or its log cleaned up; then it is opened again. So it is after a new Delta log
        checkpoint: older entries may be gone, which an open table still reads to look up a transaction.
        """
        later, *seen = [None] * 3 if self._table is None else self._marks(self._table.version())
        if self._table is None or seen[0] is None or seen != self._seen:
            self._table = table_at(self._path)
        elif later is not None:
            self._table.update_incremental()
        else:
            return self._table
        _, *self._seen = self._marks(self._table.version())
        return self._table

    def _marks(self, version: int) -> list[Mark | None]:
        """Marks of the log entries of ``version + 1`` and ``version`` and of the last checkpoint; none for what does not exist."""
        if self._files is None:
            self._files = store_of(self._path)
        found = self._files.get_file_info([entry_name(version + 1), entry_name(version), LAST_CHECKPOINT])
        return [(info.mtime_ns, info.size) if info.type == pa_fs.FileType.File else None for info in found]


_KEPT: ContextVar[dict[str, KeptTable] | None] = ContextVar("kept_tables", default=None)


@contextmanager
def tables_kept(kept: dict[str, KeptTable] | None = None) -> Iterator[None]:
    """In this context and thread, :func:`newest` opens each table only once.

    ``kept`` holds tables by path. A caller that passes the same one again reuses the tables of its earlier contexts.
    """
    token = _KEPT.set({} if kept is None else kept)
    try:
        yield
    finally:
        _KEPT.reset(token)


def newest(path: str) -> DeltaTable:
    """The Delta table at ``path`` at its newest version; raises the same errors as ``DeltaTable``.

    Within :func:`tables_kept` all callers share one object, and a later call updates it. A caller that needs a fixed version keeps its
    own :class:`KeptTable`.
    """
    kept = _KEPT.get()
    return KeptTable(path).newest() if kept is None else kept.setdefault(path, KeptTable(path)).newest()
