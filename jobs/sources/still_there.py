"""Which versions of a source can still be read, where files have been rewritten, and the old ones removed."""

from __future__ import annotations

from windowmill.jobs.sources.base import SourceTable
from windowmill.windowing.errors import SourceRangeGoneError


def unchanged_since(source: SourceTable, version: int) -> int:
    """A version with the rows of ``version`` whose files still exist: ``version`` itself, or a later one that only rewrote files."""
    try:
        if source.missing(source.snapshot(version)) is None:
            return version
    except SourceRangeGoneError:
        pass
    later = version
    try:
        for logged in source.versions(version, source.version):
            if logged.changes or logged.added:
                break
            later = logged.version
    except SourceRangeGoneError:
        pass
    return later


def first_readable(source: SourceTable, after: int) -> int:
    """The first version from ``after`` on that ends changes of rows, or is the newest, and whose files exist; else the newest one.

    Rows of a version that changed some later are gone once files are removed (VACUUM).
    """
    for version in [after, *_changes(source, after)]:
        if _exists(source, unchanged_since(source, version)):
            return version
    return source.version


def _changes(source: SourceTable, after: int) -> list[int]:
    """The versions after ``after`` that changed rows; none where the log no longer has them."""
    try:
        return [version.version for version in source.versions(after, source.version) if version.changes]
    except SourceRangeGoneError:
        return []


def _exists(source: SourceTable, version: int) -> bool:
    try:
        return source.missing(source.snapshot(version)) is None
    except SourceRangeGoneError:
        return False
