"""Caches open Delta tables for the length of a run: updating one costs a tenth of opening it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import pyarrow.fs as pa_fs
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler


class KeptTable:
    """The Delta table at ``path``, opened on first use."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._files: pa_fs.FileSystem | None = None
        self._table: DeltaTable | None = None
        self._entry: tuple[int | None, int | None] | None = None

    def newest(self) -> DeltaTable:
        """The table at its newest version; raises ``TableNotFoundError`` and other errors of ``DeltaTable``.

        Returns the same object each time, updated, as long as the log entry of its version is unchanged. If the entry is missing or
        different, the table was recreated or restored, or its log cleaned up; then it is opened again.
        """
        entry, later = (None, None) if self._table is None else self._entries(self._table.version())
        if self._table is None or entry is None or entry != self._entry:
            self._table = DeltaTable(self._path)
        elif later is not None:
            self._table.update_incremental()
        else:
            return self._table
        self._entry, _ = self._entries(self._table.version())
        return self._table

    def _entries(self, version: int) -> list[tuple[int | None, int | None] | None]:
        """Modification time and size of the log entries of ``version`` and ``version + 1``; none for an entry that does not exist."""
        if self._files is None:
            self._files = pa_fs.PyFileSystem(DeltaStorageHandler(self._path))
        found = self._files.get_file_info([f"_delta_log/{number:020d}.json" for number in (version, version + 1)])
        return [(info.mtime_ns, info.size) if info.type == pa_fs.FileType.File else None for info in found]


_KEPT: ContextVar[dict[str, KeptTable] | None] = ContextVar("kept_tables", default=None)


@contextmanager
def tables_kept() -> Iterator[None]:
    """In this context and thread, :func:`newest` opens each table only once."""
    token = _KEPT.set({})
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
