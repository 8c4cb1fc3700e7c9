"""The format of each of a pipeline's own tables, stored as a table property; a table without the property has format 1.

A format is increased when older code would misread the table. Ledger records have their own format
(:mod:`windowmill.checkpoints.assembling`).
"""

from __future__ import annotations

from deltalake import CommitProperties, DeltaTable

from windowmill.windowing.errors import StateError

#: The format that this release writes and reads, for each kind of table.
FORMATS = {"state": 3, "quarantine": 1, "quality": 1, "held": 1}
#: Name of the table property with the format.
FORMAT = "windowmill.format"


def ours(what: str) -> CommitProperties:
    """Commit properties that mark a commit as windowmill's own maintenance, not a batch."""
    return CommitProperties(custom_metadata={"userMetadata": f'{{"windowmill": "{what}"}}'}, max_commit_retries=0)


def check_format(table: DeltaTable, kind: str) -> None:
    """Raise ``StateError`` unless this release can read ``table``."""
    text = table.metadata().configuration.get(FORMAT, "1")
    if not text.isdecimal():
        raise StateError(f"{kind} {table.table_uri}: table property {FORMAT} is {text!r}, not a number; put it back")
    if int(text) > FORMATS[kind]:
        raise StateError(
            f"{kind} {table.table_uri}: format {text}, this windowmill reads format {FORMATS[kind]}; upgrade windowmill on this machine"
        )
    if int(text) < FORMATS[kind]:
        raise StateError(
            f"{kind} {table.table_uri}: format {text} of a version before the first release, this windowmill reads format {FORMATS[kind]}; "
            "give the pipeline a new sink and backfill it there"
        )
