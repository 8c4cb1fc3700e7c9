"""Writes HTML pages beside a pipeline's tables: to a local folder, or to object storage through pyarrow's file systems."""

from __future__ import annotations

import os
from pathlib import Path

from pyarrow import fs


def write_page(place: str, html: str) -> None:
    """Replace the page at ``place``, a local path or a URI; creates local folders. A link stays, and a pipe or device is written to.

    Raises
    ------
    OSError, pyarrow.ArrowException
        If ``place`` cannot be written, or pyarrow has no file system for its scheme.
    """
    if "://" in place:
        filesystem, path = fs.FileSystem.from_uri(place)
        # A single request to object storage: a reader sees the old page or the new one.
        with filesystem.open_output_stream(path) as stream:
            stream.write(html.encode())
        return
    page = Path(place)
    if page.exists() and not page.is_file() and not page.is_dir():
        page.write_text(html, encoding="utf-8")
        return
    page = page.resolve()
    page.parent.mkdir(parents=True, exist_ok=True)
    # Written to a temporary file and renamed, so that no reader loads half a page.
    part = page.with_name(f".{page.name}.{os.getpid()}")
    try:
        part.write_text(html, encoding="utf-8")
        part.replace(page)
    finally:
        part.unlink(missing_ok=True)


def names(folder: str) -> list[str]:
    """Names of the files in ``folder``; empty if it does not exist."""
    filesystem, path = _filesystem(folder)
    listed = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return [info.base_name for info in listed if info.type == fs.FileType.File]


def remove(folder: str, name: str) -> None:
    """Remove the file ``name`` from ``folder``, if it exists."""
    filesystem, path = _filesystem(folder)
    if filesystem.get_file_info(f"{path}/{name}").type == fs.FileType.File:
        filesystem.delete_file(f"{path}/{name}")


def _filesystem(folder: str) -> tuple[fs.FileSystem, str]:
    if "://" in folder:
        filesystem, path = fs.FileSystem.from_uri(folder)
        return filesystem, path.rstrip("/")
    return fs.LocalFileSystem(), str(Path(folder).absolute())
