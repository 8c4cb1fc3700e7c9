"""Delta tables that stay open for the length of a run: to bring one up to date costs a tenth of opening it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import pyarrow.fs as pa_fs
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler


class KeptTable:
    """The Delta table at ``path``, opened when it is first asked for."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._files: pa_fs.FileSystem | None = None
        self._table: DeltaTable | None = None
        self._entry: tuple[int | None, int | None] | None = None

    def newest(self) -> DeltaTable:
        """The table at its newest version; raises ``TableNotFoundError``, and what ``DeltaTable`` raises.

        The same object each time, brought up to date, as long as the log entry of its version is the file that it was. Where that is gone
        or another one, the table has been made anew, restored or its log cleaned up: it is opened again.
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
        """Time and size of the log entries that made ``version`` and the one after it; none where the log does not hold them."""
        if self._files is None:
            self._files = pa_fs.PyFileSystem(DeltaStorageHandler(self._path))
        found = self._files.get_file_info([f"_delta_log/{number:020d}.json" for number in (version, version + 1)])
        return [(info.mtime_ns, info.size) if info.type == pa_fs.FileType.File else None for info in found]


_KEPT: ContextVar[dict[str, KeptTable] | None] = ContextVar("kept_tables", default=None)


@contextmanager
def tables_kept() -> Iterator[None]:
    """Within this context, in this thread, :func:`newest` opens each table once."""
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


def newest(path: str) -> DeltaTable:
    """The Delta table at ``path`` at its newest version; raises as ``DeltaTable``.

    Within :func:`tables_kept` callers share one object, which a later call moves on: whoever needs one version while others ask keeps a
    :class:`KeptTable` of their own.
    """
    kept = _KEPT.get()
    return KeptTable(path).newest() if kept is None else kept.setdefault(path, KeptTable(path)).newest()
