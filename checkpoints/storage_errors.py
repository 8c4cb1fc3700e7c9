"""Telling a full disk, and a place that must not be written, from other failures, whichever library met them."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from windowmill.checkpoints.places import local_path

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
#: Texts by which messages of Rust and Arrow report the operating system's error.
_TOLD = re.compile(r"(?:os error|\[errno) (\d+)", re.IGNORECASE)


def is_disk_full(err: BaseException | None) -> bool:
    """Whether ``err``, or what caused it, says that the disk, a quota or the size of a file is used up."""
    return any(code in _FULL for code in _codes(err))


def is_forbidden(err: BaseException | None) -> bool:
    """Whether ``err``, or what caused it, says that a file must not be written: by its permissions, or a read-only file system."""
    return any(code in _FORBIDDEN for code in _codes(err))


def forbidden_folder(table: str) -> Path | None:
    """The folder of a table on this machine, or of its log, if this process must not write it; none if it may."""
    root = local_path(table)
    if root is None:
        return None
    # A table that does not exist yet gets a folder in the nearest one that does.
    there = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    return next((folder for folder in (there, root / "_delta_log") if folder.exists() and not os.access(folder, os.W_OK | os.X_OK)), None)


def _codes(err: BaseException | None) -> Iterator[int]:
    """Numbers of the operating system's errors in ``err`` and what caused it."""
    while err is not None:
        if isinstance(err, OSError) and err.errno is not None:
            yield err.errno
        yield from map(int, _TOLD.findall(str(err)))
        err = err.__cause__ or err.__context__
