"""File systems of places, for reading and writing data files with pyarrow alone, so in an executor too."""

from __future__ import annotations

import pyarrow.fs as pa_fs

from windowmill.checkpoints.places import local_path


def filesystem_of(place: str) -> tuple[pa_fs.FileSystem, str]:
    """The file system of ``place``, a local path or a URI, and the path of ``place`` in it."""
    local = local_path(place)
    if local is None:
        fs, path = pa_fs.FileSystem.from_uri(place)
        return fs, path
    return pa_fs.LocalFileSystem(), str(local.absolute())
