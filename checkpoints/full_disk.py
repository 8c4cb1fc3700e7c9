"""Telling a full disk from other failures, whichever library met it."""

from __future__ import annotations

import errno
import re

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: Texts by which messages of Rust and Arrow report the operating system's error.
_TOLD = re.compile(r"(?:os error|\[errno) (\d+)", re.IGNORECASE)


def is_disk_full(err: BaseException | None) -> bool:
    """Whether ``err``, or what caused it, says that the disk, a quota or the size of a file is used up."""
    while err is not None:
        if isinstance(err, OSError) and err.errno in _FULL:
            return True
        if any(int(code) in _FULL for code in _TOLD.findall(str(err))):
            return True
        err = err.__cause__ or err.__context__
    return False
