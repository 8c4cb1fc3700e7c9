"""Wider types of a table's columns: which types widen, as Delta's type widening has it, and the rewrite by which a table gets them.

All files are rewritten: a table without the table feature typeWidening holds the types of its schema alone, so that every reader reads it
as before, and delta-rs goes on writing it. No row changes, so whoever follows the changes of a sink passes over the rewrite.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Field
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from windowmill.checkpoints.data_files import DataFile, FileWriter, remove
from windowmill.checkpoints.features import own_commit
from windowmill.checkpoints.state.tables import files_of

#: Decimal digits of the whole numbers of a type, by its bits.
_DIGITS = {8: 10, 16: 10, 32: 10, 64: 20}
#: Bits of the whole numbers that a double holds exactly, whatever their value.
_BITS_OF_DOUBLE = 32


def widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether a column of type ``old`` may become one of type ``new``: the same one, or a wider one by Delta's rules.

    Examples
    --------
    >>> widens(pa.int32(), pa.int64()), widens(pa.int32(), pa.float64()), widens(pa.int64(), pa.float64())
    (True, True, False)
    >>> widens(pa.decimal128(10, 2), pa.decimal128(12, 4)), widens(pa.decimal128(10, 2), pa.decimal128(11, 4))
    (True, False)
    """
    if old == new:
        return True
    if pa.types.is_list(old) and pa.types.is_list(new):
        return widens(old.value_type, new.value_type)
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        names = [field.name for field in old]
        return names == [field.name for field in new] and all(widens(old.field(name).type, new.field(name).type) for name in names)
    if pa.types.is_decimal(new):
        whole = pa.types.is_signed_integer(old)
        if not whole and not pa.types.is_decimal(old):
            return False
        precision, scale = (_DIGITS[old.bit_width], 0) if whole else (old.precision, old.scale)
        return bool(new.scale >= scale and new.precision - new.scale >= precision - scale)
    if pa.types.is_signed_integer(old):
        longer = pa.types.is_signed_integer(new) and new.bit_width > old.bit_width
        return bool(longer or (pa.types.is_float64(new) and old.bit_width <= _BITS_OF_DOUBLE))
    return bool(pa.types.is_float32(old) and pa.types.is_float64(new))


def wider_fields(table: DeltaTable, kinds: Mapping[str, pa.DataType]) -> list[str]:
    """The columns of ``table`` to which ``kinds`` give a wider type than they have."""
    stored = pa.schema(table.schema().to_arrow())
    there = {field.name: field.type for field in stored}
    return [name for name, kind in kinds.items() if name in there and there[name] != kind and widens(there[name], kind)]


def retyped(table: DeltaTable, kinds: Mapping[str, pa.DataType], dropped: Collection[str] = ()) -> DeltaSchema:
    """The schema of ``table`` with columns of these ``kinds``, which it may lack, and without those that are ``dropped``."""
    wanted = {field.name: field for field in DeltaSchema.from_arrow(pa.schema(list(kinds.items()))).fields}
    fields = [field for field in table.schema().fields if field.name not in dropped]
    names = {field.name for field in fields}
    kept = [Field(field.name, wanted.get(field.name, field).type, nullable=field.nullable, metadata=field.metadata) for field in fields]
    return DeltaSchema([*kept, *(field for name, field in wanted.items() if name not in names)])


def rewrite(
    place: str,
    table: DeltaTable,
    schema: DeltaSchema,
    rows_of: Callable[[Mapping[str, Any]], Iterator[pa.Table]],
    *,
    batch: int,
    attempt: str,
    is_followed: bool,
) -> None:
    """Replace all files of ``table``, at ``place``, by files with the columns of ``schema``; no row changes.

    Parameters
    ----------
    rows_of
        The rows of a file, by the log's entry of it, with these columns.
    is_followed
        Whether others follow the table's changes. The schema then comes in a commit of its own, and the one behind it says that it changes
        no row: delta-rs does not make one commit of both. A crash between the two leaves files of narrower types, which readers cast.

    Raises
    ------
    deltalake.exceptions.CommitFailedError
        If others have committed to the table meanwhile.
    """
    files, adds = files_of(table), list[DataFile]()
    columns = pa.schema(schema.to_arrow())
    try:
        for task, file in enumerate(files):
            with FileWriter(place, columns, batch=batch, attempt=attempt, task=task) as writer:
                for rows in rows_of(file):
                    writer.write(rows)
            adds += writer.close()
        new: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size, {}, file.modified_ms, not is_followed, file.stats) for file in adds
        ]
        if is_followed:
            _set_schema(table, schema, [], partition_filters=[(columns.names[0], "=", "")])  # of no partition no file is removed
            version = table.version() + 1
            table.update_incremental()
            if table.version() != version:
                raise CommitFailedError(f"another writer has made version {table.version()}")
            now = time.time_ns() // 1_000_000
            old = [RemoveAction(str(file["path"]), False, now, int(file["size_bytes"])) for file in files]
            table.create_write_transaction([*new, *old], "append", schema, commit_properties=own_commit("widen"))
        else:
            _set_schema(table, schema, new)
    except CommitFailedError:  # after any other error the commit may be there
        remove(place, adds)
        raise


def _set_schema(table: DeltaTable, schema: DeltaSchema, files: list[AddAction | RemoveAction], **more: Any) -> None:
    """Have ``files`` take the place of all others, or of those that ``more`` names, and ``schema`` that of the table's."""
    table.create_write_transaction(files, "overwrite", schema, commit_properties=own_commit("widen"), **more)
