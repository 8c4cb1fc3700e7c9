"""Commits existing files to a Delta table, replaces a range of window ends in it, and rewrites its columns in wider types.

delta-rs makes the commits, but neither skips a transaction that is committed already, nor checks files against the table's schema and
constraints. This module does both, on the very snapshot from which the commit is made. If several writers commit the same version, one
wins, on every store that creates an object only if it is absent; the others start again from a fresh snapshot.

Changes that do not fit a table, because its owner has altered it, are refused before the record: later no commit could succeed.

A table that delta-rs cannot write gets the same rows by Spark's :class:`Committer`, but only on this machine: on object storage Spark's
commits overwrite those of other writers.

If a column becomes wider, all files are rewritten: a table without the table feature typeWidening must hold only the types of its schema.
Then every reader can still read it, and delta-rs write it. No row changes, so readers of a sink's changes skip the rewrite.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Field, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.data_files import DataFile, FileWriter, remove, rows_of, write_files
from windowmill.checkpoints.delta_tables import (
    FORMAT,
    FORMATS,
    NO_HOOKS,
    Features,
    check_format,
    checkpoint_if_due,
    existing,
    files_of,
    floor_of,
    newest,
    own_commit,
    sizes_of,
    span_of,
)
from windowmill.checkpoints.stores import FAILURES, create_table, is_local, table_at
from windowmill.windowing.errors import SinkError, SinkRefusedError, StateError, WindowmillError

#: Decimal digits of the whole numbers of a type, by its bits.
_DIGITS = {8: 10, 16: 10, 32: 10, 64: 20}
#: Number of bits of whole numbers all of which a double holds exactly.
_BITS_OF_DOUBLE = 32
#: How often a commit is tried if others commit first.
_ATTEMPTS = 20
#: Characters in names of columns that Delta takes only under column mapping.
_ONLY_MAPPED = frozenset(" ,;{}()\n\t=")
#: Metadata of columns whose values a writer makes.
_MADE = ("delta.generationExpression", "delta.identity.start", "CURRENT_DEFAULT")
#: … and of those whose values it has to check or make.
_COMPUTED = ("delta.invariants", *_MADE)
#: Columns of each type take values of the types before it.
_INTEGERS = ("byte", "short", "integer")
#: Parts of a type's JSON that do not concern the type of its values.
_APART = ("containsNull", "valueContainsNull", "nullable", "metadata")


class Rewritten(Protocol):
    """Files of a table that are rewritten without some of their rows."""

    @property
    def files(self) -> Sequence[str]:
        """Their paths."""

    def keep(self, *, batch: int, attempt: str) -> tuple[DataFile, ...]:
        """Write the remaining rows to new files."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A commit to a table."""

    #: The table's role in the pipeline.
    role: str
    #: The commit's transaction.
    app_id: str
    batch: int
    changes: Changes
    #: Its ``userMetadata``, ids only, since it stays in the table's history: generation, batch, attempt, and digest of the changes.
    note: Mapping[str, Any] = field(default_factory=dict)
    #: Whether the files replace all others of the table, and their schema replaces the table's.
    replaces_all: bool = False
    #: Finds the files to rewrite, in a snapshot of the table at a path; null if ``changes`` names all files to remove.
    rewrites: Callable[[str, DeltaTable], Rewritten] | None = None


class Committer(Protocol):
    """Commits to tables; does nothing if the log has the transaction already."""

    def check(self, place: str, role: str, changes: Changes) -> None:
        """Raise an error if ``changes`` could not be committed to the table of this ``role`` at ``place``."""

    def commit(self, place: str, publication: Publication) -> None:
        """Commit ``publication`` to the table at ``place``; after an error, the commit may have been made or not."""


@dataclass(frozen=True)
class DeltaRsCommitter:
    """Commits by delta-rs; leaves tables that it cannot write to another committer, ``beyond``."""

    beyond: Committer | None = None

    def check(self, place: str, role: str, changes: Changes) -> None:
        table = existing(place)
        if table is not None:
            refuse_misfit(role, place, table, changes)
        reason = beyond_delta_rs(role, table, changes)
        if reason is not None:
            self._other(place, role, reason).check(place, role, changes)

    def commit(self, place: str, publication: Publication) -> None:
        for _ in range(_ATTEMPTS):
            table = self._opened(place, publication)
            reason = beyond_delta_rs(publication.role, table, publication.changes)
            if reason is not None:
                rewritten = replace(publication, note={**publication.note, "rewritten": True})
                self._other(place, publication.role, reason).commit(place, rewritten)
                return
            assert table is not None
            newest_batch, version = table.transaction_version(publication.app_id), table.version()
            if newest_batch is not None and newest_batch >= publication.batch:
                return
            try:
                _write(table, place, publication)
            except FAILURES:
                if table_at(place).version() == version:
                    raise
                continue  # another commit was first
            # A version below the log's oldest one can be created again after a clean-up; no reader sees it, so try again.
            if floor_of(place) <= version:
                checkpoint_if_due(place, version + 1)
                return
        raise error_of(publication.role)(
            f"{publication.role} {place}: others commit to it all the time, so batch {publication.batch} could not be published; stop "
            "them, and run again"
        )

    def _opened(self, place: str, publication: Publication) -> DeltaTable | None:
        """The newest snapshot of the table, created or widened if needed; null if delta-rs cannot create it."""
        role, schema = publication.role, publication.changes.schema
        table = existing(place)
        if table is None:
            if schema is None:
                raise error_of(role)(f"{role} {place}: the table is gone; restore the folder from a copy")
            if not names_need_mapping(role, schema):
                create(place, schema, role, publication.note)
                table = newest(place)
        elif schema is not None and not publication.replaces_all and (role != "sink" or publication.changes.widens):
            if role != "sink":
                check_format(table, role)
            missed = lacking(table, schema)
            if missed and not Features.of(table).beyond_delta_rs:
                table.alter.add_columns(missed, commit_properties=own_commit("widen"))
                table = newest(place)
        return table

    def _other(self, place: str, role: str, reason: str) -> Committer:
        """The committer to a table that delta-rs cannot write, for this ``reason``."""
        if role == "current":
            raise SinkRefusedError(
                f"current {place}: {reason}, and no run writes such a table; remove its folder, and the next run makes it of the sink again"
            )
        if not is_local(place):
            raise SinkRefusedError(
                f"{role} {place}: {reason}, so only Spark could write it, and on object storage Spark overwrites commits of other writers; "
                "drop the feature (ALTER TABLE … DROP FEATURE), or give the pipeline another sink"
            )
        if self.beyond is None:
            raise error_of(role)(f"{role} {place}: {reason}; only `windowmill run` can write it, by Spark")
        return self.beyond


def beyond_delta_rs(role: str, table: DeltaTable | None, changes: Changes) -> str | None:
    """Why delta-rs cannot commit ``changes`` to the ``table`` of this role, null for one that does not exist; null if it can."""
    schema = None if role in ("current", "held") else changes.schema  # their columns are replaced with their rows
    if table is None:
        return "names of its columns need column mapping" if schema is not None and names_need_mapping(role, schema) else None
    features, metadata = Features.of(table), table.metadata()
    if beyond := features.beyond_delta_rs:
        return f"uses {', '.join(beyond)}"
    if metadata.partition_columns:
        return "is partitioned"
    if any(name.startswith("delta.constraints.") for name in metadata.configuration):
        return "has constraints"
    if changes.removes and "deletionVectors" in features.reader:
        return "has deletion vectors"
    stored = {each.name: each for each in table.schema().fields}
    wanted = {} if schema is None else {each.name: each for each in DeltaSchema.from_json(schema).fields}
    for name, each in stored.items():
        if name in wanted and wanted[name].type != each.type:
            return f"has other types than the results (column {name})"
        if (name not in wanted and not each.nullable) or any(key in each.metadata for key in _COMPUTED):
            return f"requires values of its column {name}"
    return None


def create(place: str, schema: str, role: str, note: Mapping[str, Any]) -> None:
    """Create an empty table with the columns ``schema`` (Delta JSON) at ``place``, unless another writer has."""
    own = role in FORMATS
    metadata = {"windowmill": "create", **({"generation": note["generation"]} if "generation" in note else {})}
    create_table(
        place,
        DeltaSchema.from_json(schema),
        mode="ignore",
        name=f"windowmill {role}" if own else None,
        configuration={FORMAT: str(FORMATS[role])} if own else None,
        raise_if_key_not_exists=False,
        commit_properties=CommitProperties(custom_metadata={"userMetadata": json.dumps(metadata)}, max_commit_retries=0),
    )


def _write(table: DeltaTable, place: str, publication: Publication) -> None:
    changes, note = publication.changes, dict(publication.note)
    active = sizes_of(table) if changes.removes or publication.replaces_all else {}
    removes = list(active) if publication.replaces_all else list(changes.removes)
    files = changes.files
    moved_on = not publication.replaces_all and any(path not in active for path in removes)
    if moved_on and publication.rewrites is not None:
        later = publication.rewrites(place, table)
        files = later.keep(batch=publication.batch, attempt=str(note.get("attempt", "")))
        removes, note["rewritten"] = list(later.files), True
    elif moved_on and publication.role == "seen":
        # Others have rewritten files that expire or are merged: entries that are there twice do no harm, and those that are lost would.
        removes = [path for path in removes if path in active]
    elif moved_on and changes.replaces is None:
        # Others have rewritten the files since; without a range, the batch replaces the whole table.
        removes = list(active)
    elif moved_on:
        # Others have rewritten the files since: the remaining rows are in new files.
        assert changes.replaces is not None
        moved = ReplacedRange.of(place, table, changes.replaces, changes.windows)
        files = changes.adds + moved.keep(moved.partly, batch=publication.batch, attempt=str(note.get("attempt", "")), task=0)
        removes, note["rewritten"] = list(moved.files), True
    wanted = DeltaSchema.from_json(changes.schema) if publication.replaces_all and changes.schema is not None else None
    gone = {path: active[path] for path in removes}
    commit_files(table, files, gone, note, [Transaction(publication.app_id, publication.batch)], schema=wanted)


def commit_files(
    table: DeltaTable,
    files: Sequence[DataFile],
    removes: Mapping[str, int],
    note: Mapping[str, Any],
    transactions: Sequence[Transaction],
    *,
    schema: DeltaSchema | None = None,
    **more: Any,
) -> None:
    """Add ``files`` to ``table``, and remove those of the paths ``removes``, which have these sizes.

    ``note``: the ``userMetadata`` of the commit; ``more``: further metadata. ``schema``: the columns of the table from now on, if all its
    files go; null if they stay as they are. Raises ``CommitFailedError`` if others have committed meanwhile.
    """
    now, mode = time.time_ns() // 1_000_000, "append"
    actions: list[AddAction | RemoveAction] = [AddAction(file.path, file.size, {}, file.modified_ms, True, file.stats) for file in files]
    if schema is not None and schema != table.schema():
        mode = "overwrite"  # which removes all files by itself
    else:
        actions += [RemoveAction(path, True, now, size) for path, size in removes.items()]
    metrics = {"num_added_files": len(files), "num_removed_files": len(removes)}
    once = CommitProperties(
        app_transactions=list(transactions),
        custom_metadata={"userMetadata": json.dumps(note), "operationMetrics": metrics, **more},
        max_commit_retries=0,
    )
    columns = table.schema() if schema is None else schema
    table.create_write_transaction(actions, mode, columns, commit_properties=once, post_commithook_properties=NO_HOOKS)


def names_need_mapping(role: str, schema: str) -> bool:
    """Whether a table of this role with the columns ``schema`` (Delta JSON) needs column mapping, because of characters in their names.

    Only the sink does, whose owner may read and alter it by Spark. All others are read by windowmill, without mapping.
    """
    return role == "sink" and not _ONLY_MAPPED.isdisjoint("".join(each.name for each in DeltaSchema.from_json(schema).fields))


def error_of(role: str) -> type[WindowmillError]:
    """The class of errors about the table with this ``role``."""
    return SinkError if role in ("sink", "current") else StateError


def refuse_misfit(role: str, place: str, table: DeltaTable, changes: Changes) -> None:
    """Raise ``SinkRefusedError`` or ``StateError`` if ``table``, of this ``role``, does not take ``changes``.

    That is because of its columns, or because it is append-only.
    """
    why = _misfit(role, table, changes)
    if why is not None:
        raise (SinkRefusedError if role == "sink" else StateError)(f"{role} {place}: {why}, and run again")


def lacking(table: DeltaTable, schema: str) -> list[Field]:
    """The columns of ``schema`` (Delta JSON) that the table lacks."""
    known = {each.name.lower() for each in table.schema().fields}
    return [each for each in DeltaSchema.from_json(schema).fields if each.name.lower() not in known]


def _misfit(role: str, table: DeltaTable, changes: Changes) -> str | None:
    if changes.removes and table.metadata().configuration.get("delta.appendOnly", "").lower() == "true":
        return "is append-only, so rows that it has cannot be replaced; unset its property delta.appendOnly"
    if changes.schema is None or role == "current":
        return None
    written = {each["name"]: each for each in json.loads(changes.schema)["fields"]}
    # The batch widens these before it reads or writes.
    wider = wider_fields(table, {field.name: field.type for field in pa.schema(DeltaSchema.from_json(changes.schema).to_arrow())})
    missed = lacking(table, changes.schema) if role == "sink" and not changes.widens else []
    if missed:
        return f"has no column {missed[0].name}, which the results have; put it back"
    for stored in json.loads(table.schema().to_json())["fields"]:
        name, own = stored["name"], written.get(stored["name"])
        kinds = (stored["type"], None if own is None else own["type"])
        takes = own is None or _bare(kinds[0]) == _bare(kinds[1])
        if all(kind in _INTEGERS for kind in kinds):
            takes = _INTEGERS.index(kinds[1]) <= _INTEGERS.index(kinds[0])
        if own is not None and not takes and not (changes.widens and name in wider):
            return (
                f"its column {name} is now of type {_named(stored['type'])}, the results have {_named(own['type'])}; change it back, or "
                "give the pipeline a new sink and backfill it there"
            )
        if stored["nullable"] or (own is None and not stored["metadata"].keys().isdisjoint(_MADE)):
            continue
        if own is None or _has_nulls(name, changes):
            return f"its column {name} is NOT NULL, the results have nulls there; drop that constraint (ALTER COLUMN … DROP NOT NULL)"
    return None


def _bare(kind: Any) -> Any:
    """A type of Delta's JSON without what it says about nulls in elements and fields."""
    if isinstance(kind, dict):
        return {name: _bare(value) for name, value in kind.items() if name not in _APART}
    return [_bare(each) for each in kind] if isinstance(kind, list) else kind


def _named(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])


def _has_nulls(name: str, changes: Changes) -> bool:
    """Whether the column has nulls, or may have: its files count them, unless they have more columns than statistics."""
    return any(file.rows and json.loads(file.stats).get("nullCount", {}).get(name, 1) for file in changes.files)


def widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether a column of type ``old`` may become one of type ``new``: the same one, or a wider one by Delta's rules.

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

    ``rows_of`` gives the rows of a file, by the log's entry of it, with these columns. If others follow the table's changes
    (``is_followed``), one commit changes the schema, and a second one says that it changes no row: delta-rs cannot do both in one commit. A
    crash between the two leaves files of narrower types, which readers cast.

    Raises ``CommitFailedError`` if others have committed to the table meanwhile.
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
            _set_schema(table, schema, [], partition_filters=[(columns.names[0], "=", "")])  # without partitions, no file is removed
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
    """Replace all files, or those that ``more`` names, by ``files``, and the schema of the table by ``schema``."""
    table.create_write_transaction(files, "overwrite", schema, commit_properties=own_commit("widen"), **more)


_END, _WINDOW = "window_end", "window"


@dataclass(frozen=True, slots=True)
class ReplacedRange:
    """The range (``begin``, ``end``] of window ends, instants on the axis, in the table at ``table``."""

    table: str
    #: All columns of the table.
    schema: pa.Schema
    begin: int
    end: int
    #: Names of the windows whose rows in the range are replaced; null for all.
    windows: tuple[str, ...] | None = None
    #: Paths of files with only rows of the range.
    whole: tuple[str, ...] = ()
    #: Paths of files that may also have other rows.
    partly: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: str, snapshot: DeltaTable, ends: tuple[int, int], windows: tuple[str, ...] | None = None) -> ReplacedRange:
        """The files of ``snapshot``, the table at ``table``, that may hold rows of these ``windows`` in the range ``ends``.

        Reads only its log.
        """
        begin, end = ends
        whole, partly = [], []
        for file in files_of(snapshot):
            span = span_of(file, _END)
            if span is None or file.get(f"null_count.{_END}") != 0:
                partly.append(file["path"])
                continue
            low, high = span
            if low > begin and high <= end and windows is None:
                whole.append(file["path"])
            elif high > begin and low <= end:
                partly.append(file["path"])
        return cls(table, pa.schema(snapshot.schema().to_arrow()), begin, end, windows, tuple(whole), tuple(partly))

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of all files that the range's new rows replace."""
        return self.whole + self.partly

    def keep(self, paths: Sequence[str], *, batch: int, attempt: str, task: int) -> tuple[DataFile, ...]:
        """Write the rows of the files ``paths`` that are not in the range to files of their own; runs in an executor, too."""
        staying = (rows.filter(pc.invert(self.within(rows))) for rows in rows_of(self.table, paths, self.schema))
        return write_files(self.table, self.schema, staying, batch=batch, attempt=attempt, task=task)

    def within(self, rows: pa.Table) -> pa.ChunkedArray:
        """Mask of the ``rows`` that are in the range, and whose window is replaced."""
        ends = rows.column(_END).cast(pa.int64())
        within = pc.and_(pc.greater(ends, self.begin), pc.less_equal(ends, self.end)).fill_null(False)
        if self.windows is not None:
            within = pc.and_(within, pc.is_in(rows.column(_WINDOW), pa.array(self.windows, rows.column(_WINDOW).type)))
        return within
