"""Writes HTML pages beside a pipeline's tables: to a local folder, or to object storage."""

from __future__ import annotations

import os
from pathlib import Path

from pyarrow import fs


class Folder:
    """A folder of pages.

    Parameters
    ----------
    place
        Path of a local folder; created if missing.
    files
        File system whose root is the folder, if it is in object storage; ``place`` is then only shown.
    """

    def __init__(self, place: str | os.PathLike[str], files: fs.FileSystem | None = None) -> None:
        self.place = os.fspath(place).rstrip("/")
        if files is None and "://" in self.place:
            raise ValueError(f"{self.place}: a folder in object storage needs the file system that opens it")
        self._files = files

    def write(self, name: str, html: str) -> str:
        """Replace the page ``name``, and return its path or URI. A link stays, and a pipe or device is written to.

        Raises
        ------
        OSError, pyarrow.ArrowException
            If it cannot be written.
        """
        if self._files is None:
            _write(Path(self.place or "/", name), html)
        else:
            # A single request to object storage: a reader sees the old page or the new one.
            with self._files.open_output_stream(name) as stream:
                stream.write(html.encode())
        return f"{self.place}/{name}"

    def names(self) -> list[str]:
        """Names of the files in the folder; empty if it does not exist."""
        if self._files is None:
            folder = Path(self.place)
            return [path.name for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
        listed = self._files.get_file_info(fs.FileSelector("", allow_not_found=True))
        return [info.base_name for info in listed if info.type == fs.FileType.File]

    def remove(self, name: str) -> None:
        """Remove the file ``name``, if it exists."""
        if self._files is None:
            Path(self.place, name).unlink(missing_ok=True)
        elif self._files.get_file_info(name).type == fs.FileType.File:
            self._files.delete_file(name)


def _write(page: Path, html: str) -> None:
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
