"""The files of a folder that are data, and what their paths say.

Links are not followed: what one leads to within the folder is read where it lies, and one that leads out of it is refused.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow.fs as pa_fs

from windowmill.checkpoints.places import local_path
from windowmill.checkpoints.stores import store_of
from windowmill.windowing.errors import SourceError, SourceFileError, SourceMissingError, SourceSchemaError, first_line

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


def partition_of(path: str) -> dict[str, str | None]:
    """The values in the folders ``name=value`` above a file.

    >>> partition_of("year=2024/site=a%20b/0.csv")
    {'year': '2024', 'site': 'a b'}
    """
    pairs = (folder.partition("=") for folder in path.split("/")[:-1] if "=" in folder)
    return {unquote(name): None if value == _NO_VALUE else unquote(value) for name, _, value in pairs}


#: Names of files that are being written, or are no data.
_UNFINISHED = (".tmp", ".crc", "._COPYING_")


class Stat(NamedTuple):
    """Size of a file, and when it was last changed."""

    size: int
    mtime_ns: int


def listed_files(root: str, names: re.Pattern[str] | None = None) -> dict[str, Stat]:
    """The files of the folder that are data, and whose names fit ``names``, by path.

    Raises ``SourceMissingError`` if there is no such folder; ``SourceFileError`` if a link among them leads out of the folder, or the name
    of one cannot be written in one line; ``SourceError`` if it cannot be listed.
    """
    local = local_path(root)
    try:
        if local is not None and local.exists() and not local.is_dir():
            raise SourceError(f"source {root}: is a file; source.path names the folder in which files arrive")
        found = _stored(root) if local is None else _local(root, local)
        files = {path: own for path, own in found if own.size and (names is None or names.fullmatch(path.rpartition("/")[2]))}
    except FileNotFoundError as err:
        raise SourceMissingError(f"source {root}: there is no such folder; make it, or correct source.path") from err
    except (OSError, UnicodeDecodeError) as err:
        raise SourceError(f"source {root}: cannot be listed ({first_line(err)}); check the path and its permissions") from err
    odd = next((path for path in files if not path.isprintable()), None)
    if odd is not None:
        raise SourceFileError(
            f"source {root}: the name {odd!r} is not UTF-8, or has characters that end a line or control a terminal; rename it"
        )
    return files


def data_files(root: str) -> list[str]:
    """The files of a folder that are data, in order of their time of change; raises as :func:`listed_files`."""
    listed = listed_files(root)
    return sorted(listed, key=lambda path: (listed[path].mtime_ns, path))


def check_folders(root: str, listed: Mapping[str, Stat]) -> None:
    """Refuse files of which some lie in folders ``name=value`` and others do not, or in folders of other names."""
    first: str | None = None
    for path in listed:
        first = first or path
        if partition_of(path).keys() != partition_of(first).keys():
            raise SourceSchemaError(f"source {root}: {path!r} lies in folders of other columns (name=value) than {first!r}; move it away")


def _stored(root: str) -> Iterator[tuple[str, Stat]]:
    """The data files in object storage."""
    for info in store_of(root).get_file_info(pa_fs.FileSelector("", recursive=True)):
        path = info.path.strip("/")
        if info.type == pa_fs.FileType.File and _is_data(path):
            yield path, Stat(info.size, info.mtime_ns)


def _local(root: str, folder: Path, below: str = "") -> Iterator[tuple[str, Stat]]:
    """The data files of a ``folder`` of this machine, or of its folder ``below``."""
    with os.scandir(folder / below) as entries:
        for entry in entries:
            path = f"{below}/{entry.name}" if below else entry.name
            if entry.is_symlink():
                if _is_data(path) and not Path(entry.path).resolve().is_relative_to(folder.resolve()):
                    raise SourceFileError(
                        f"source {root}: {path!r} is a link that leads out of the folder; put the file itself there, or remove the link"
                    )
            elif entry.is_dir():
                if _is_data(f"{path}/x"):
                    yield from _local(root, folder, path)
            elif _is_data(path):
                own = entry.stat()
                if stat.S_ISREG(own.st_mode):
                    yield path, Stat(own.st_size, own.st_mtime_ns)


def _is_data(path: str) -> bool:
    *folders, name = path.split("/")
    hidden = any(folder.startswith((".", "_")) and "=" not in folder for folder in folders)
    return not hidden and not name.startswith((".", "_")) and not name.endswith(_UNFINISHED)
