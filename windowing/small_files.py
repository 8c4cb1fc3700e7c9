"""Reads the small files that a person names: specs, and files that specs name."""

from __future__ import annotations

import errno
import os
import stat

#: Bytes of the largest file that is read.
MAX_BYTES = 1 << 20


def read_small(path: str | os.PathLike[str]) -> bytes:
    """The bytes of the regular file at ``path``.

    A pipe or a device may give nothing for ever, or go on for ever, while Airflow parses DAGs.

    Raises
    ------
    OSError
        If it cannot be read, is no regular file, or has more than :data:`MAX_BYTES` bytes; ``strerror`` says which.
    ValueError
        If ``path`` has a null character.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        found = file.read(MAX_BYTES + 1)
    if len(found) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"more than {MAX_BYTES} bytes", os.fspath(path))
    return found
