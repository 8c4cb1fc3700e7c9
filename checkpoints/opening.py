"""Opening a state table: it is there if the ledger says so, it has the format of this release, and damage is told in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from deltalake.exceptions import TableNotFoundError

from checkpoints.formats import unchecked_through
from checkpoints.kept_tables import newest
from checkpoints.log_entries import fault_of_log
from checkpoints.migrations import migrated
from windowing.columnar.checksums import REMEDY, RowCheck
from windowing.errors import StateCorruptError, StateMissingError, WindowmillError, first_line

#: What messages of delta-rs, pyarrow and object stores say where a file is not there.
_MISSING = re.compile(r"not found|No such file|NotFound|does not exist|FileNotFoundError|NoSuchKey", re.IGNORECASE)


def open_state(path: str, *, left_at: int | None) -> RowCheck:
    """Bring the state table at ``path``, if there is one, to this release's format; how its rows are checked.

    Parameters
    ----------
    left_at
        Version of the table after the last batch that wrote to it, as the ledger has it; null: no batch has.

    Raises
    ------
    StateMissingError
        If there is no table, or one of an older version, where a batch has written state.
    StateCorruptError
        If its log cannot be read.
    StateError
        If it is of a newer format.
    """
    with damage_told(path):
        try:
            table = newest(path)
        except TableNotFoundError as err:
            if left_at is None:
                return RowCheck(path)
            raise StateMissingError(f"state {path}: there is no table, but committed batches have written to it; {REMEDY}") from err
        version = table.version()
        if left_at is not None and version < left_at:
            raise StateMissingError(f"state {path}: at version {version}, but committed batches left it at version {left_at}; {REMEDY}")
        fault = fault_of_log(table)
        if fault is not None:
            raise StateCorruptError(f"state {path}: {fault}; {REMEDY}")
        return RowCheck(path, unchecked_through(migrated(table, path)))


@contextmanager
def damage_told(path: str) -> Iterator[None]:
    """Errors of libraries that read the state at ``path`` as ``StateMissingError`` or ``StateCorruptError``."""
    try:
        yield
    except WindowmillError:
        raise
    except TableNotFoundError as err:
        raise StateMissingError(f"state {path}: there is no table; {REMEDY}") from err
    except FileNotFoundError as err:
        raise StateMissingError(f"state {path}: a file is gone ({first_line(err)}); {REMEDY}") from err
    except Exception as err:
        if _MISSING.search(str(err)):
            raise StateMissingError(f"state {path}: a file is gone ({_brief(err)}); {REMEDY}") from err
        raise StateCorruptError(f"state {path}: cannot be read ({_brief(err)}); {REMEDY}") from err
    except BaseException as err:
        # A panic of Rust code is no Exception.
        if type(err).__name__ == "PanicException":
            raise StateCorruptError(f"state {path}: cannot be read ({_brief(err)}); {REMEDY}") from err
        raise


def _brief(err: BaseException) -> str:
    return first_line(err)[:300]
