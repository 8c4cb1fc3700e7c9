"""A restatement over a folder of files: of files that were delivered again or taken away, or of windows as all files are now. No JVM."""

from __future__ import annotations

from collections.abc import Sequence

from windowmill.checkpoints.batches import effective_batches
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Runnable
from windowmill.jobs.sources.base import SourceTable
from windowmill.jobs.sources.folder import FolderSource
from windowmill.windowing.errors import OutOfTurnError, UnsupportedError


def corrected(
    runnable: Runnable, ledger: Ledger, source: SourceTable, files: Sequence[str], after: int, ends: tuple[int | None, int | None]
) -> tuple[FolderSource, Sequence[str], int]:
    """The source, the paths of ``files`` in it, and the last version that changed one; ``after`` is the last one that has been read.

    Raises
    ------
    UnsupportedError
        If it is no folder, or windows that are recomputed would lose rows of other files that are gone. ``ends`` say of which windows
        the user wants that.
    OutOfTurnError
        If other versions that have not been read come before.
    """
    if not isinstance(source, FolderSource):
        raise UnsupportedError(
            f"pipeline {runnable.name}: --file names files of a folder, and the source {source.path} is none; `windowmill restate` by "
            "--versions, or without options, takes up what versions of a table changed"
        )
    through, paths = after, list[str]()
    if files:
        source, paths, through = source.corrected(files, after)
    other = next((file for file in source.seen[after + 1 : through + 1] if file.path not in paths and file.event != "forgotten"), None)
    if other is not None:
        first = "name it by --file, too" if other.event in ("changed", "removed") else "`windowmill run --max-batches 1` reads it"
        raise OutOfTurnError(f"pipeline {runnable.name}: {other.path} ({other.event}) comes before; {first}, then restate")
    lost = sorted(source.removed(through) - {*paths, *restated_files(ledger)})
    if lost and ends == (None, None):
        more = f" and {len(lost) - 1:,} more" if len(lost) > 1 else ""
        raise UnsupportedError(
            f"pipeline {runnable.name}: {lost[0]}{more} of {source.path} were removed after batches had read them, and windows that hold "
            "their rows would lose these; name such files by --file if that is right, or the windows to recompute by --from and --to"
        )
    return source, paths, through


def restated_files(ledger: Ledger) -> set[str]:
    """Paths of the files that restatements have read, or left out, as they were delivered again, or taken away."""
    return {path for batch in effective_batches(ledger.batches()) for path in batch.plan.files}
