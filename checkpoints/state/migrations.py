"""In-place migrations of the state table: one function per format, never edited once released.

A step that dies half-way is repeated from the start, because only its last commit sets the new format.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Field, QueryBuilder
from deltalake.schema import PrimitiveType

from windowmill.checkpoints.formats import FORMAT, FORMATS, UNCHECKED_THROUGH, check_format, ours
from windowmill.checkpoints.stores import table_at


def migrated(table: DeltaTable, path: str) -> DeltaTable:
    """Migrate the state ``table`` at ``path`` to this release's format; raises ``StateError`` if its format is newer."""
    while (found := check_format(table, "state")) < FORMATS["state"]:
        STEPS[found](path)
        table = table_at(path)
    return table


def add_row_checksums(path: str) -> None:
    """Format 1 to 2: add the column ``_sum``. Existing rows stay without checksums; a table property records their last batch."""
    table = table_at(path)
    found = pa.table(QueryBuilder().register("state", table).execute("SELECT max(_batch) AS last FROM state").read_all())
    last = pc.max(found.column("last")).as_py()
    if "_sum" not in pa.schema(table.schema().to_arrow()).names:
        table.alter.add_columns([Field("_sum", PrimitiveType("long"))], commit_properties=ours("migrate to format 2"))
    table_at(path).alter.set_table_properties(
        {FORMAT: "2", UNCHECKED_THROUGH: str(-1 if last is None else last)},
        raise_if_not_exists=False,
        commit_properties=ours("migrate to format 2"),
    )


#: By format, the migration to the next one.
STEPS: dict[int, Callable[[str], None]] = {1: add_row_checksums}
