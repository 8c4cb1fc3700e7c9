"""Savepoints: named copies of a pipeline's state and position, which outlive the files of its tables. No JVM.

A savepoint is a folder with the files of the state and of remembered rows, linked or copied, and an entry that describes them. The entry is
written last and removed first: a folder without one is no savepoint. Files of the sink that a later batch replaces are kept in the same
place, in a folder for each batch, as long as a savepoint is older than the batch.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import Schema
from pydantic import TypeAdapter

from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.committer import widens
from windowmill.checkpoints.data_files import DataFile, FileWriter
from windowmill.checkpoints.delta_tables import files_of, newest
from windowmill.checkpoints.places import local_path
from windowmill.checkpoints.state.tables import keys_of, order_of
from windowmill.checkpoints.stores import filesystem_of, is_table, make_folder, remedy, store_of
from windowmill.windowing.columnar.added_columns import BUCKET, SUM
from windowmill.windowing.columnar.hashes import RowCheck, with_buckets, with_checksums
from windowmill.windowing.counts import Totals
from windowmill.windowing.errors import SavepointError, SpecError, StateError, first_line

#: The format that this release writes and reads.
FORMAT = 2
_ENTRY, _UNFINISHED = "savepoint.json", "savepoint.unfinished"
#: Folder of the files that batches have replaced; no savepoint has this name.
_REPLACED = ".replaced"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True)
class Savepoint:
    """A savepoint's entry."""

    name: str
    created_at: str
    pipeline: str
    #: The newest batch that had been committed.
    batch: int
    #: Identity of the ledger.
    generation: str
    #: The position in the source, as of :class:`.Plan`.
    to_version: int
    source_id: str
    source_mark: str | None
    #: Progress along the axis, as of :class:`.Outcome`.
    seen: int | None
    emitted: int | None
    #: What the state means, as of :class:`.Plan`.
    meaning: str
    modules: dict[str, str]
    #: Sums over all batches.
    totals: Totals
    #: The state's columns (Delta JSON); null if there was no state.
    schema: str | None = None
    #: Names of the state's files in the savepoint, with their numbers of rows.
    files: dict[str, int] = field(default_factory=dict)
    size: int = 0
    format: int = FORMAT
    #: Names of the files of remembered rows, with their numbers of entries; a savepoint without any does not name them.
    remembered: dict[str, int] = field(default_factory=dict)

    @property
    def at(self) -> datetime:
        return datetime.fromisoformat(self.created_at)


_FIELDS = {each.name for each in fields(Savepoint)}


def check_name(name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise SpecError(f"savepoint {name!r}: expected at most 63 letters, digits, dots, hyphens and underscores, first a letter or digit")


def savepoints_in(folder: str) -> tuple[dict[str, Savepoint], dict[str, str]]:
    """The savepoints below ``folder``, oldest first, by name; and by name the errors of those that can only be dropped."""
    entries, damaged = [], dict[str, str]()
    for name in (path.split("/")[0] for path in _files_in(folder, "") if path.endswith(f"/{_ENTRY}")):
        try:
            entries.append(_read(folder, name))
        except SavepointError as err:
            damaged[name] = str(err)
    return {entry.name: entry for entry in sorted(entries, key=lambda entry: (entry.batch, entry.at, entry.name))}, damaged


def savepoint_names(folder: str) -> tuple[str, ...]:
    """The names of all savepoints below ``folder``: those of :func:`savepoints_in`, in its order, then of damaged ones."""
    found, damaged = savepoints_in(folder)
    return (*found, *damaged)


def save(folder: str, state: str, seen: str, facts: Mapping[str, Any]) -> Savepoint:
    """Make a savepoint of the tables at ``state`` and ``seen`` below ``folder``; ``facts`` are the other fields of its entry."""
    name = facts["name"]
    _clear(folder, name)
    copied: dict[str, dict[str, int]] = {state: {}, seen: {}}
    schema, size = None, 0
    for path, files in copied.items():
        if not is_table(path):
            continue
        table = newest(path)
        schema = table.schema().to_json() if path == state else schema
        for number, file in enumerate(files_of(table)):
            copy = f"{'' if path == state else 'seen-'}{number:06d}.parquet"
            _link(path, str(file["path"]), f"{folder}/{name}", copy)
            files[copy], size = int(file["num_records"]), size + int(file["size_bytes"])
    entry = Savepoint(**facts, schema=schema, files=copied[state], size=size, remembered=copied[seen])
    make_folder(f"{folder}/{name}")
    # The entry is written whole or not at all, which object storage guarantees by itself.
    store, first = store_of(f"{folder}/{name}"), _UNFINISHED if local_path(folder) is not None else _ENTRY
    with store.open_output_stream(first) as stream:
        stream.write(json.dumps({name: value for name, value in asdict(entry).items() if name != "remembered" or value}).encode())
    if first != _ENTRY:
        store.move(first, _ENTRY)
    return entry


def drop(folder: str, name: str) -> None:
    """Remove the savepoint ``name``, and what is kept for it alone."""
    with suppress(FileNotFoundError):
        store_of(f"{folder}/{name}").delete_file(_ENTRY)
    _clear(folder, name)
    others = savepoints_in(folder)[0].values()
    for batch in {int(path.split("/")[1]) for path in _files_in(folder, _REPLACED)}:
        if not any(entry.batch < batch for entry in others):
            _clear(folder, f"{_REPLACED}/{batch}")


def keep_replaced(folder: str, table: str, paths: Sequence[str], *, batch: int) -> None:
    """Keep the files ``paths`` of ``table``, which ``batch`` replaces, if there is a savepoint to which a restoration may go back."""
    if not paths or not savepoints_in(folder)[0]:
        return
    _clear(folder, f"{_REPLACED}/{batch}")  # of an attempt that died
    for number, path in enumerate(paths):
        _link(table, path, f"{folder}/{_REPLACED}/{batch}", f"{number:06d}.parquet")


def replaced_files(folder: str, batch: int) -> tuple[str, list[str]]:
    """The folder of the files that ``batch`` has replaced, and their names; none if they were not kept."""
    own = f"{_REPLACED}/{batch}"
    return f"{folder}/{own}", sorted(path.rpartition("/")[2] for path in _files_in(folder, own))


def restored(folder: str, entry: Savepoint, state: str, *, batch: int, attempt: str) -> Changes | None:
    """Write the rows of a savepoint to files of the state at ``state``; null if it has no state.

    Raises ``SavepointError`` if a file of the savepoint is gone or damaged.
    """
    if entry.schema is None:
        return None
    saved = pa.schema(Schema.from_json(entry.schema).to_arrow())
    # Columns of the state may have become wider since.
    now = {field.name: field.type for field in (pa.schema(newest(state).schema().to_arrow()) if is_table(state) else ())}
    schema = pa.schema([field.with_type(kind) if widens(field.type, kind := now.get(field.name, field.type)) else field for field in saved])
    adds: list[DataFile] = []
    for number, (name, rows) in enumerate(entry.files.items()):
        # A file for each, so that large tables keep the order in which compaction has put them.
        with FileWriter(state, schema, batch=batch, attempt=attempt, task=number, order=order_of(schema.names)) as writer:
            table = saved_rows(folder, entry, name, rows)
            lacking = [field for field in schema if field.name not in table.column_names]
            for each in lacking:
                table = table.append_column(each, pa.nulls(table.num_rows, each.type))
            if schema != saved and SUM in schema.names:
                RowCheck(f"{folder}/{entry.name}").verify(table)
                table = with_checksums(table.select(schema.names).cast(schema))
                table = with_buckets(table, keys_of(schema)) if BUCKET in schema.names else table
            writer.write(table)
        adds += writer.close()
    return Changes.of(schema, adds)


def saved_rows(folder: str, entry: Savepoint, name: str, rows: int) -> pa.Table:
    """The rows of the savepoint's file ``name``, which has so many ``rows``; raises as :func:`restored`."""
    fs, root = filesystem_of(f"{folder}/{entry.name}")
    try:
        table = pq.read_table(f"{root}/{name}", filesystem=fs, use_threads=False, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as err:
        raise _damaged(folder, entry, f"{name} cannot be read ({first_line(err)})") from err
    if table.num_rows != rows:
        raise _damaged(folder, entry, f"{name} has {table.num_rows:,} rows instead of {rows:,}")
    return table


def _damaged(folder: str, entry: Savepoint, what: str) -> SavepointError:
    return SavepointError(f"savepoint {entry.name}: {folder}/{entry.name}: {what}; restore another savepoint, or this folder from a copy")


def _read(folder: str, name: str) -> Savepoint:
    try:
        with store_of(f"{folder}/{name}").open_input_file(_ENTRY) as stream:
            found = json.loads(stream.read())
        if isinstance(found, dict) and found.get("format") == FORMAT and found.keys() | {"remembered"} == _FIELDS:
            entry = TypeAdapter(Savepoint).validate_python(found)
            datetime.fromisoformat(entry.created_at)
            return entry
    except OSError as err:
        raise StateError(
            f"savepoint {name}: {folder}/{name}/{_ENTRY} cannot be read ({first_line(err)}); {remedy(err, 'run again')}"
        ) from err
    except (ValueError, TypeError) as err:
        raise SavepointError(f"savepoint {name}: {folder}/{name}/{_ENTRY} is cut or damaged ({first_line(err)}); drop it") from err
    raise SavepointError(f"savepoint {name}: {folder}/{name}/{_ENTRY} is not of format {FORMAT}, which this windowmill reads; drop it")


def _link(source: str, path: str, target: str, name: str) -> None:
    """Have the file ``path`` of the folder ``source`` in the folder ``target`` too, where on this machine it takes no room."""
    make_folder(target)
    here, there = local_path(source), local_path(target)
    if here is not None and there is not None:
        with suppress(OSError):  # another file system, or one without links
            os.link(here / path, there / name)
            return
    (fs, root), (into, below) = filesystem_of(source), filesystem_of(target)
    pa_fs.copy_files(f"{root}/{path}", f"{below}/{name}", source_filesystem=fs, destination_filesystem=into, use_threads=False)


def _clear(folder: str, name: str) -> None:
    for path in _files_in(folder, name):
        store_of(folder).delete_file(path)
    here = local_path(f"{folder}/{name}")
    if here is not None and here.is_dir():
        here.rmdir()


def _files_in(folder: str, name: str) -> list[str]:
    """Paths of the files below ``folder`` and its subfolder ``name``."""
    found = store_of(folder).get_file_info(pa_fs.FileSelector(name, recursive=True, allow_not_found=True))
    return [info.path for info in found if info.type == pa_fs.FileType.File]
