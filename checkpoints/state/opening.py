"""Opens the state table: checks that it exists if the ledger says so, and its format, and reports damage in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from deltalake.exceptions import TableNotFoundError

from windowmill.checkpoints.delta_log_files import fault_of_log
from windowmill.checkpoints.formats import check_format
from windowmill.checkpoints.kept_tables import newest
from windowmill.windowing.columnar.checksums import REMEDY, RowCheck
from windowmill.windowing.errors import StateCorruptError, StateMissingError, WindowmillError, first_line

#: Matches messages of delta-rs, pyarrow and object stores about a missing file.
_MISSING = re.compile(r"not found|No such file|NotFound|does not exist|FileNotFoundError|NoSuchKey", re.IGNORECASE)


def open_state(path: str, *, left_at: int | None) -> RowCheck:
    """Check the state table at ``path``, if it exists; returns the check for its rows.

    Parameters
    ----------
    left_at
        Version of the table after the last batch that wrote to it, from the ledger; null if no batch has.

    Raises
    ------
    StateMissingError
        If a batch has written state, but the table is missing or at an older version.
    StateCorruptError
        If its log cannot be read.
    StateError
        If its format is another.
    """
    with reporting_damage(path):
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
        check_format(table, "state")
        return RowCheck(path)


@contextmanager
def reporting_damage(path: str) -> Iterator[None]:
    """Raise errors of libraries that read the state at ``path`` as ``StateMissingError`` or ``StateCorruptError``."""
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
            raise StateMissingError(f"state {path}: a file is gone ({_excerpt(err)}); {REMEDY}") from err
        raise StateCorruptError(f"state {path}: cannot be read ({_excerpt(err)}); {REMEDY}") from err
    except BaseException as err:
        # A Rust panic is not an ``Exception``.
        if type(err).__name__ == "PanicException":
            raise StateCorruptError(f"state {path}: cannot be read ({_excerpt(err)}); {REMEDY}") from err
        raise


def _excerpt(err: BaseException) -> str:
    return first_line(err)[:300]
