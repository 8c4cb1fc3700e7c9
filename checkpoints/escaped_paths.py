"""Folders that delta-rs takes for others: it follows links, and decodes escapes such as %41 in the path to which they lead.

So it would read the table in a folder "A" for the one in "%41", without a word if there is one. A spec must not name such a folder
(:mod:`windowmill.windowing.paths`), but a link that it names may lead to one, or the folder in which the command runs may lie below one.
"""

from __future__ import annotations

import re
import tempfile
from functools import cache
from pathlib import Path

from windowmill.checkpoints.places import local_path

_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")


def escape_in(place: str) -> str | None:
    """The first escape in the path to which ``place`` leads on this machine; none if delta-rs finds it."""
    local = local_path(place)
    found = None if local is None else _ESCAPE.search(str(local.resolve()))
    return None if found is None else found[0]


def readable_path(place: str) -> str:
    """Where delta-rs reads the log of the table at ``place``: there, or in a folder of this process that links to the log.

    Only the log: paths of data files are relative to the table's own folder.
    """
    return place if escape_in(place) is None else str(_stand_in(place).name)


@cache
def _stand_in(place: str) -> tempfile.TemporaryDirectory[str]:
    """A folder without escapes in its path, until this process ends; its log is that of the table, wherever a link may lead later."""
    local, folder = local_path(place), tempfile.TemporaryDirectory(prefix="windowmill-")
    assert local is not None  # only paths on this machine have links
    (Path(folder.name) / "_delta_log").symlink_to(local.absolute() / "_delta_log")
    return folder
