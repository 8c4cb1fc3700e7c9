"""Takes rows out of a pipeline's tables, without a JVM: those of later batches (a restoration), or those of some keys (a purge).

A purge also removes the bounds of files, which may name a key, from the ledger. Its keys are in a file in the ledger's folder until every
table is rid of them: a commit may have to look for their rows again, and the ledger must not name them.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import DeltaTable

from windowmill.checkpoints.batches import RestorePlan
from windowmill.checkpoints.data_files import DataFile, rows_of, write_files
from windowmill.checkpoints.delta_tables import files_of
from windowmill.checkpoints.ledger import CHANGES, MANIFEST, read_manifest, remove_manifest, write_manifest
from windowmill.checkpoints.records import DeltaRecords, LedgerRecord
from windowmill.checkpoints.state.tables import order_of
from windowmill.checkpoints.stores import filesystem_of, make_folder, remove_folder
from windowmill.windowing.columnar.rows import are_among
from windowmill.windowing.errors import LedgerCorruptError

_BATCH, _END = "batch", "window_end"
_JSON, _KEYS = "_json", b"windowmill.keys"
#: End of the name of a manifest without bounds.
_REDACTED = "-redacted"
#: Texts by which messages and pages show a null key.
_NULLS = ("None", "null")


@dataclass(frozen=True, slots=True)
class UndoneFiles:
    """The files of the table at ``table`` that hold rows of batches after ``after``, which a restoration removes."""

    table: str
    schema: pa.Schema
    after: int
    #: Later batches whose rows of windows that end at or before ``through`` stay: backfills, which replaced rows of earlier batches.
    backfills: Sequence[int] = ()
    through: int | None = None
    #: Paths of files with rows to remove only, and of files that may also hold other rows.
    whole: tuple[str, ...] = ()
    partly: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: str, snapshot: DeltaTable, plan: RestorePlan, *, role: str) -> UndoneFiles:
        """The files with rows that ``plan`` takes out of ``snapshot``, the table at ``table`` with this ``role``; reads only its log."""
        after, backfills = plan.kept_batch, plan.spared if role == "sink" else ()
        whole, partly = [], []
        for file in files_of(snapshot):
            low, high = file.get(f"min.{_BATCH}"), file.get(f"max.{_BATCH}")
            if low is None or high is None:
                partly.append(file["path"])
            elif low > after and not backfills:
                whole.append(file["path"])
            elif high > after:
                partly.append(file["path"])
        schema = pa.schema(snapshot.schema().to_arrow())
        return cls(table, schema, after, backfills, plan.through, tuple(whole), tuple(partly))

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of all files that go."""
        return self.whole + self.partly

    def keep(self, *, batch: int, attempt: str) -> tuple[DataFile, ...]:
        """Write the rows that stay to files of their own."""
        staying = (rows.filter(self.stays(rows)) for rows in rows_of(self.table, self.partly, self.schema))
        return write_files(self.table, self.schema, staying, batch=batch, attempt=attempt)

    def stays(self, rows: pa.Table) -> pa.ChunkedArray:
        numbers = rows.column(_BATCH)
        stays = pc.less_equal(numbers, self.after)
        if self.backfills and self.through is not None:
            ends = rows.column(_END).cast(pa.int64())
            published = pc.is_in(numbers, pa.array(self.backfills, numbers.type))
            stays = pc.or_(stays, pc.and_(published, pc.less_equal(ends, self.through)))
        return stays.fill_null(True)


@dataclass(frozen=True)
class ErasedKeys:
    """Keys to take out."""

    #: A row for each: values of some of the key columns, or of all.
    values: pa.Table
    #: Each as a JSON object, as rows in quarantine have it.
    texts: tuple[str, ...]
    #: All key columns of the pipeline, in order.
    every: tuple[str, ...]

    def needed(self, role: str, columns: Sequence[str]) -> list[str]:
        """Those of a table's ``columns`` by which :meth:`of` finds the rows."""
        if role == "quality":
            return [name for name in ("column", "observed", "examples", "values") if name in columns]
        return ["row"] if role == "quarantine" else self._columns(role, columns)

    def of(self, role: str, rows: pa.Table, columns: Sequence[str]) -> np.ndarray:
        """Mask of the ``rows`` of the table with this ``role`` that name one of the keys; ``columns`` are all of the table's."""
        if role == "quality":
            return np.array([self._cleaned(row) != row for row in rows.select(self.needed(role, columns)).to_pylist()], np.bool_)
        if role == "quarantine":
            return np.array([self._of_json(json.loads(text)) in self._known for text in rows.column("row").to_pylist()], np.bool_)
        names = self._columns(role, columns)
        own = self.values.rename_columns(names).cast(pa.schema([rows.schema.field(name) for name in names]))
        return are_among(rows, own, names)

    def without(self, role: str, rows: pa.Table) -> pa.Table:
        """``rows`` of the table with this ``role`` without the keys: without their rows, or of quality with less in some columns."""
        if role != "quality":
            return rows.filter(pa.array(~self.of(role, rows, rows.column_names)))
        needed = self.needed(role, rows.column_names)
        cleaned = [self._cleaned(row) for row in rows.select(needed).to_pylist()]
        for name in needed[1:]:
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, rows.schema.field(name), pa.array([row[name] for row in cleaned], pa.string()))
        return rows

    def are_named_in(self, text: str) -> bool:
        """Whether ``text`` may name one of the keys: it contains a value of each column."""
        return not self._are_exact or all(pattern.search(text) for pattern in self._patterns)

    def _columns(self, role: str, columns: Sequence[str]) -> list[str]:
        own = self.values.column_names
        # The state's first columns are the keys, under names of its own.
        return [columns[self.every.index(name)] for name in own] if role == "state" else own

    def _of_json(self, row: Any) -> tuple[str, ...]:
        return tuple(json.dumps(_canonical(row.get(name))) for name in self.values.column_names)

    @cached_property
    def _known(self) -> frozenset[tuple[str, ...]]:
        return frozenset(self._of_json(json.loads(text)) for text in self.texts)

    @cached_property
    def _are_exact(self) -> bool:
        """Whether a page and a message show values as JSON does."""
        return all(pa.types.is_string(kind) or pa.types.is_integer(kind) for kind in self.values.schema.types)

    @cached_property
    def _patterns(self) -> list[re.Pattern[str]]:
        return [_pattern([json.loads(text).get(name) for text in self.texts]) for name in self.values.column_names]

    def _cleaned(self, row: dict[str, Any]) -> dict[str, Any]:
        """A result of a rule without the examples and the observation that name one of the keys."""
        examples = json.loads(row["examples"])
        stay = [not self._is_example(each) for each in examples]
        texts = any(pa.types.is_string(kind) for kind in self.values.schema.types)
        about = not set(self.values.column_names).isdisjoint((row["column"] or "").split(", "))
        observed = row["observed"]
        if observed is not None and (texts or about) and self.are_named_in(observed):
            observed = None
        if all(stay):
            return row | {"observed": observed}
        cleaned = row | {"observed": observed, "examples": _those(examples, stay)}
        # The values of the first examples, in their order.
        return cleaned | ({"values": _those(json.loads(row["values"]), stay)} if row.get("values") else {})

    def _is_example(self, example: Any) -> bool:
        if self._are_exact and isinstance(example, dict):
            return self._of_json(example) in self._known
        return self.are_named_in(json.dumps(example, ensure_ascii=False))


def _canonical(value: Any) -> Any:
    """``value`` of a JSON object, equal for equal keys: whole numbers are integers, whatever the type of their column; −0.0 is 0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _those(items: Sequence[Any], stay: Sequence[bool]) -> str:
    """Those of ``items`` that ``stay``, as JSON."""
    return json.dumps([item for item, stays in zip(items, stay, strict=False) if stays], ensure_ascii=False)


def _pattern(values: Sequence[Any]) -> re.Pattern[str]:
    """A pattern for each of the ``values`` as a word of a text, a JSON text or an HTML page."""
    forms: set[str] = set()
    for value in values:
        text = str(value)
        forms |= set(_NULLS) if value is None else {text, html.escape(text), json.dumps(text)[1:-1]}
    return re.compile("|".join(rf"(?<!\w){re.escape(form)}(?!\w)" for form in sorted(forms, key=len, reverse=True)))


@dataclass(frozen=True, slots=True)
class KeysFile:
    """The file with the keys of the purge by the attempt ``attempt``, in the folder of the ledger at the path ``ledger``."""

    ledger: str
    attempt: str

    def write(self, keys: ErasedKeys) -> None:
        """Write ``keys``; files of purges that have not come to their record go."""
        self.remove()
        make_folder(self._folder)
        fs, path = self._place
        table = keys.values.append_column(_JSON, pa.array(keys.texts, pa.string()))
        pq.write_table(table.replace_schema_metadata({_KEYS: json.dumps(keys.every)}), path, filesystem=fs)

    def read(self) -> ErasedKeys:
        fs, path = self._place
        table = pq.read_table(path, filesystem=fs, use_threads=False)
        every = json.loads((table.schema.metadata or {})[_KEYS])
        return ErasedKeys(table.drop_columns([_JSON]).replace_schema_metadata(None), tuple(table.column(_JSON).to_pylist()), tuple(every))

    @property
    def is_there(self) -> bool:
        fs, path = self._place
        return bool(fs.get_file_info(path).type == pa_fs.FileType.File)

    def remove(self) -> None:
        """Remove the files of all attempts."""
        remove_folder(self._folder)

    @property
    def _folder(self) -> str:
        return f"{self.ledger.rstrip('/')}.purged"

    @property
    def _place(self) -> tuple[pa_fs.FileSystem, str]:
        fs, root = filesystem_of(self._folder)
        return fs, f"{root}/{self.attempt}.parquet"


@dataclass(frozen=True, slots=True)
class ErasedFiles:
    """The files of the table at ``table`` that name some of the ``keys``, in so many ``rows``."""

    table: str
    role: str
    schema: pa.Schema
    keys: ErasedKeys
    files: tuple[str, ...] = ()
    rows: int = 0

    @classmethod
    def of(cls, table: str, snapshot: DeltaTable, *, role: str, keys: Callable[[], ErasedKeys]) -> ErasedFiles:
        """The files of ``snapshot``, the table at ``table`` with this ``role``; reads the columns by which rows are found."""
        erased, schema = keys(), pa.schema(snapshot.schema().to_arrow())
        wanted = pa.schema([schema.field(name) for name in erased.needed(role, schema.names)])
        found = {
            path: sum(int(erased.of(role, rows, schema.names).sum()) for rows in rows_of(table, [path], wanted))
            for path in (str(file["path"]) for file in files_of(snapshot))
        }
        return cls(table, role, schema, erased, tuple(path for path, rows in found.items() if rows), sum(found.values()))

    def keep(self, *, batch: int, attempt: str) -> tuple[DataFile, ...]:
        """Write the rows that stay to files of their own."""
        order = order_of(self.schema.names) if self.role == "state" else ()
        staying = (self.keys.without(self.role, rows) for rows in rows_of(self.table, self.files, self.schema))
        return write_files(self.table, self.schema, staying, batch=batch, attempt=attempt, order=order)


def forget_bounds(ledger: str) -> int:
    """Rewrite a ledger's records without statistics; its commits must have been made. Returns the number of files rewritten."""
    replaced: list[str] = []

    def without(record: LedgerRecord) -> LedgerRecord:
        body = json.loads(record.body)
        changes = _without_bounds(body[CHANGES])
        manifest = body.get(MANIFEST)
        if manifest is not None:
            # An old one may have been removed by `maintain`.
            with suppress(LedgerCorruptError):
                content = json.loads(read_manifest(ledger, *manifest))
                if _REDACTED not in manifest[0]:
                    shorter = json.dumps({CHANGES: _without_bounds(content[CHANGES])}).encode()
                    manifest = list(write_manifest(ledger, record.batch, f"{record.attempt}{_REDACTED}", shorter))
                # A removal that died after the record may have left it.
                replaced.append(str(manifest[0]).replace(_REDACTED, ""))
        if changes == body[CHANGES] and manifest == body.get(MANIFEST):
            return record
        return replace(record, body=json.dumps(body | {CHANGES: changes} | ({} if manifest is None else {MANIFEST: manifest})))

    rewritten = DeltaRecords(ledger).rewrite(without)
    for name in replaced:
        with suppress(FileNotFoundError):
            remove_manifest(ledger, name)
    return rewritten


def _without_bounds(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded ``changes`` of tables, with no statistics of files but their number of rows."""

    def plain(file: Mapping[str, Any]) -> dict[str, Any]:
        return {**file, "stats": json.dumps({"numRecords": file["rows"]})}

    return {role: {**each, **{part: [plain(file) for file in each[part]] for part in ("adds", "kept")}} for role, each in changes.items()}
