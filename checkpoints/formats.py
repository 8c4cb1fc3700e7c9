"""The format of each of a pipeline's own tables, stored as a table property; a table without the property has format 1.

A format is increased when older code would misread the table. Ledger records have their own format
(:mod:`windowmill.checkpoints.assembling`).
"""

from __future__ import annotations

from deltalake import CommitProperties, DeltaTable

from windowmill.windowing.errors import StateError

#: The format that this release writes for each kind of table. :mod:`.state.migrations` migrates older formats of ``state``.
FORMATS = {"state": 2, "quarantine": 1, "quality": 1, "held": 1}
#: Names of table properties: the format, and the last batch that may have rows without checksums.
FORMAT, UNCHECKED_THROUGH = "windowmill.format", "windowmill.unchecked_through"


def ours(what: str) -> CommitProperties:
    """Commit properties that mark a commit as windowmill's own maintenance, not a batch."""
    return CommitProperties(custom_metadata={"userMetadata": f'{{"windowmill": "{what}"}}'}, max_commit_retries=0)


def check_format(table: DeltaTable, kind: str) -> int:
    """The format of ``table``; raises ``StateError`` if this release cannot read it."""
    found = _property(table, kind, FORMAT, 1)
    if not 1 <= found <= FORMATS[kind]:
        raise StateError(
            f"{kind} {table.table_uri}: format {found}, this windowmill reads up to {FORMATS[kind]}; upgrade windowmill on this machine"
        )
    return found


def unchecked_through(table: DeltaTable) -> int:
    """The last batch whose rows in the state ``table`` may have no checksum; −1 if there is none."""
    return _property(table, "state", UNCHECKED_THROUGH, -1)


def _property(table: DeltaTable, kind: str, name: str, default: int) -> int:
    text = table.metadata().configuration.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError as err:
        raise StateError(f"{kind} {table.table_uri}: table property {name} is {text!r}, not a number; put it back") from err
