"""The state table: slices of partials per key, appended by every batch, read back for the windows that are still to come.

One row per key, slice and batch that touched it; readers combine. This is the only module that reads and writes state tables for runs;
:mod:`windowmill.checkpoints.inspection` shows them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from windowmill.checkpoints.appending import LITTLE_ROWS, append_once, landed, writer_once
from windowmill.checkpoints.conditions import Condition, selected, starting_in
from windowmill.checkpoints.features import delta_rs_can_write
from windowmill.checkpoints.formats import nullable, ours, prepare
from windowmill.checkpoints.kept_tables import newest
from windowmill.checkpoints.opening import damage_told
from windowmill.checkpoints.quoting import backquoted, quoted
from windowmill.checkpoints.reading import WHOLE_BYTES, read_whole, require_columns
from windowmill.windowing.columnar.checksums import SUM, RowCheck
from windowmill.windowing.columnar.log import DUE, GONE, KEY_ENTRY, KIND, NUMBER_OF
from windowmill.windowing.columnar.slices import BATCH, CLOSED, LEVEL, SLICE
from windowmill.windowing.errors import StateError
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.nodes import Selection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: A log is read whole at every batch: so many entries, and so many files, are no burden.
FEW_ENTRIES, FEW_FILES = 100_000, 64
#: Rows and bytes of a file that successive batches' slices are merged into: they are sorted in memory.
SORTED_ROWS, SORTED_BYTES = 2_000_000, 64 << 20
#: Commits that rewrite what is there, on the version that was read.
_REWRITE = ours("maintenance")
#: Bytes of files up to which a log is compacted in memory without being asked.
COMPACTED_BYTES = 1 << 30


def state_schema(keys: dict[str, pa.DataType], layout: Layout, *, nodes: bool = False) -> pa.Schema:
    """Columns of the state table: keys, start of the slice, ``_closed`` (windows that end later count it; null: all), batch, partials.

    With ``nodes`` also ``_level``: rows where it is not 0 are nodes, see :mod:`windowmill.windowing.nodes`.
    """
    own = [(SLICE, pa.int64()), *([(LEVEL, pa.int64())] if nodes else []), (CLOSED, pa.int64()), (BATCH, pa.int64())]
    return pa.schema([*keys.items(), *own, *((stored.name, stored.type) for stored in layout.fields)])


class _StateTable:
    """Rows that batches append and never change."""

    #: Whether a batch may bring columns that those before it had not.
    _widens = False
    #: Columns in whose order a batch's rows are written.
    _order: Sequence[str] = ()

    def __init__(self, spark: SparkSession, path: str, schema: pa.Schema, check: RowCheck | None = None) -> None:
        self._spark, self._path, self._schema = spark, path, schema
        self._check = RowCheck(path) if check is None else check
        self._exists = DeltaTable.is_deltatable(path)

    def remember(self, rows: DataFrame | pa.Table, count: int, *, app_id: str, batch: int, metadata: str) -> int:
        """Append a batch's rows in one commit and give the table's version; a repeated batch changes nothing."""
        if not self._exists:
            prepare(self._path, nullable(self._schema), "state")
            self._exists = True
        if count <= LITTLE_ROWS and delta_rs_can_write(self._path):
            few = (rows if isinstance(rows, pa.Table) else rows.toArrow()).select(self._schema.names)
            few = few.sort_by([(name, "ascending") for name in self._order]) if self._order else few
            append_once(self._path, few, app_id=app_id, version=batch, metadata=metadata, widen=self._widens)
        else:
            frame = self._spark.createDataFrame(rows) if isinstance(rows, pa.Table) else rows
            chosen = frame.select(*map(backquoted, self._schema.names))
            writer = writer_once(chosen, count, app_id=app_id, version=batch, metadata=metadata, order=self._order)
            writer.mode("append").option("mergeSchema", self._widens).save(self._path)
        version = landed(self._path, app_id=app_id, version=batch)
        if version is None:
            raise StateError(f"state {self._path}: the commit of batch {batch} did not land; run again")
        return version

    def _on_spark(self) -> DataFrame:
        """The table; damaged pages of its files are told by Spark's reader."""
        return self._spark.read.format("delta").option("parquet.page.verify-checksum.enabled", "true").load(self._path)


class SliceTable(_StateTable):
    """The slices of one pipeline at ``path``."""

    def __init__(self, spark: SparkSession, path: str, schema: pa.Schema, check: RowCheck | None = None) -> None:
        super().__init__(spark, path, schema, check)
        if LEVEL in schema.names:
            self._order = _reading_order(schema.names)

    def restore(self, *, before_batch: int, first_slice: int, last_slice: int) -> DataFrame | None:
        """Slices that start in [``first_slice``, ``last_slice``) as the batches before ``before_batch`` left them; none at first.

        An attempt that died after remembering left rows of ``before_batch`` itself: they are not read, and the retry's are the same.
        Rows have their checksums, which whoever packs them verifies.
        """
        return self._restored(starting_in(first_slice, last_slice, before_batch=before_batch))

    def restore_nodes(self, wanted: Selection, *, before_batch: int) -> DataFrame | None:
        """As :meth:`restore`, the nodes and slices that are ``wanted``, where the table holds nodes."""
        return self._restored(selected(wanted, before_batch=before_batch))

    def _restored(self, condition: Condition) -> DataFrame | None:
        if not self._exists:
            return None
        rows = self._on_spark()
        require_columns(self._path, rows.columns, self._schema.names)
        return rows.where(condition.sql).select(*map(backquoted, self._schema.names))

    def restore_here(self, *, before_batch: int, first_slice: int, last_slice: int, most_bytes: int, most_rows: int) -> pa.Table | None:
        """As :meth:`restore`, but read without Spark and verified; none where the files that may hold the slices exceed the limits."""
        if not self._exists:
            return self._schema.empty_table()
        with damage_told(self._path):
            table = newest(self._path)
            every = _files(table)
            files = [file for file in every if _meets(file, first_slice, last_slice)]
            if sum(file["size_bytes"] for file in files) > most_bytes or sum(file["num_records"] for file in files) > most_rows:
                return None
            return self._read(table, every, starting_in(first_slice, last_slice, before_batch=before_batch), most_rows)

    def restore_nodes_here(self, wanted: Selection, *, before_batch: int, most_bytes: int, most_rows: int) -> pa.Table | None:
        """As :meth:`restore_nodes`, but read without Spark and verified; none where files to be searched, or rows, exceed the limits."""
        if not self._exists:
            return self._schema.empty_table()
        with damage_told(self._path):
            table = newest(self._path)
            every = _files(table)
            if sum(file["size_bytes"] for file in every if _may_hold(file, wanted)) > most_bytes:
                return None
            return self._read(table, every, selected(wanted, before_batch=before_batch), most_rows)

    def files_with(self, wanted: Selection) -> list[dict[str, Any]]:
        """What the table's log tells of each file that may hold any of what is ``wanted``."""
        return [file for file in _files(newest(self._path)) if _may_hold(file, wanted)]

    def _read(self, table: DeltaTable, files: Sequence[Mapping[str, Any]], wanted: Condition, most_rows: int) -> pa.Table | None:
        """The rows that are ``wanted``, verified; none if they are more than ``most_rows``. ``files`` are all of the table's."""
        if sum(file["size_bytes"] for file in files) <= WHOLE_BYTES:
            rows = read_whole(table, files, self._schema, wanted.expression)
        else:
            rows = self._queried(table, wanted.sql, most_rows)
        if rows.num_rows > most_rows:
            return None
        if SUM not in self._schema.names:
            return rows
        self._check.verify(rows)
        return rows.drop_columns([SUM])

    def _queried(self, table: DeltaTable, where: str, most_rows: int) -> pa.Table:
        """The rows where a condition holds; not many more than ``most_rows``."""
        require_columns(self._path, pa.schema(table.schema().to_arrow()).names, self._schema.names)
        names = ", ".join(map(quoted, self._schema.names))
        found = pa.RecordBatchReader.from_stream(
            QueryBuilder().register("state", table).execute(f"SELECT {names} FROM state WHERE {where}")
        )
        batches, rows = [], 0
        for batch in found:
            batches.append(batch)
            rows += batch.num_rows
            if rows > most_rows:
                break
        return pa.Table.from_batches(batches, found.schema).cast(self._schema)


def _files(table: DeltaTable) -> list[dict[str, Any]]:
    return list(pa.table(table.get_add_actions(flatten=True)).to_pylist())


def _meets(file: Mapping[str, Any], first_slice: int, last_slice: int) -> bool:
    low, high = file.get(f"min.{SLICE}"), file.get(f"max.{SLICE}")
    return low is None or high is None or (low < last_slice and high >= first_slice)


def _may_hold(file: Mapping[str, Any], wanted: Selection) -> bool:
    """Whether a file may have rows that are ``wanted``, by its statistics."""
    lowest, highest, first, last = (file.get(f"{bound}.{column}") for column in (LEVEL, SLICE) for bound in ("min", "max"))
    if lowest is None or highest is None or first is None or last is None:
        return True
    if lowest == 0:
        latest = file.get(f"max.{CLOSED}")
        some_late = file.get(f"null_count.{CLOSED}") != file["num_records"] and (latest is None or latest > wanted.late_after)
        if (some_late and last >= wanted.late_from) or any(low <= last and high > first for low, high in wanted.slices):
            return True
    return any(lowest <= level <= highest and any(first <= start <= last for start in starts) for level, starts in wanted.nodes)


def has_nodes(path: str) -> bool:
    """Whether the state table at ``path`` holds nodes beside slices; a table keeps the form that it was made in."""
    return LEVEL in DeltaTable(path).schema().to_arrow().names


def _reading_order(columns: Sequence[str]) -> list[str]:
    """What slices and nodes are sorted by: a reader of few of them then leaves out most pages of a file by their statistics."""
    return [LEVEL, SLICE] if LEVEL in columns else [SLICE]


def compact_slices(path: str, needed_from: int | None) -> int:
    """Merge the files of successive batches at ``path``, and drop the rows that start before ``needed_from``; how many went. No JVM.

    A file gets at most ``SORTED_ROWS`` and ``SORTED_BYTES``, in the order of level and start. Files of distant batches never meet in one:
    a file's statistics span little of the axis. Where a batch wrote more at once, its files stay, without what is dropped. A table whose
    features delta-rs does not write stays as it is.
    """
    if not delta_rs_can_write(path):
        return 0
    rows_before = number_of_rows(DeltaTable(path))
    for first, last, files in _spans_of_batches(_files(DeltaTable(path))):
        table = DeltaTable(path)
        within = f"{BATCH} >= {first} AND {BATCH} <= {last}"
        expired = needed_from is not None and any(file.get(f"min.{SLICE}") is None or file[f"min.{SLICE}"] < needed_from for file in files)
        if not _fit(files):
            if expired:
                table.delete(f"{within} AND {SLICE} < {needed_from}", commit_properties=_REWRITE)
        elif expired or len(files) > 1:
            columns = pa.schema(table.schema().to_arrow()).names
            kept = within if needed_from is None else f"{within} AND {SLICE} >= {needed_from}"
            query = f"SELECT {', '.join(map(quoted, columns))} FROM state WHERE {kept} ORDER BY {', '.join(_reading_order(columns))}"
            rows = QueryBuilder().register("state", table).execute(query)
            # On the version that was read: rows that another has appended since would be lost.
            write_deltalake(table, rows, mode="overwrite", predicate=within, commit_properties=_REWRITE)
    return rows_before - number_of_rows(DeltaTable(path))


def _spans_of_batches(files: Sequence[dict[str, Any]]) -> list[tuple[int, int, list[dict[str, Any]]]]:
    """First and last batch, and the files, of spans of batches that share no file; spans that fit into one file together are one."""
    spans = [(*_batches(file), [file]) for file in files]
    spans.sort(key=lambda span: span[:2])
    for belong in (lambda span, other: other[0] <= span[1], lambda span, other: _fit([*span[2], *other[2]])):
        merged = spans[:1]
        for other in spans[1:]:
            first, last, together = merged[-1]
            if belong(merged[-1], other):
                merged[-1] = (first, max(last, other[1]), [*together, *other[2]])
            else:
                merged.append(other)
        spans = merged
    return spans


def _batches(file: Mapping[str, Any]) -> tuple[int, int]:
    """First and last batch of which a file has rows; any, where there are no statistics."""
    low, high = file.get(f"min.{BATCH}"), file.get(f"max.{BATCH}")
    return (0, (1 << 63) - 1) if low is None or high is None else (low, high)


def _fit(files: Sequence[Mapping[str, Any]]) -> bool:
    rows, size = (sum(int(file[name]) for file in files) for name in ("num_records", "size_bytes"))
    return rows <= SORTED_ROWS and size <= SORTED_BYTES


class LogTable(_StateTable):
    """The log of one pipeline's live rows at ``path``; see :mod:`windowmill.windowing.columnar.log`.

    Parameters
    ----------
    may_lack
        Columns that the table gets with the first batch that brings them.
    """

    # A function of the user's is told all columns of the source, and the source may get more of them.
    _widens = True

    def __init__(
        self, spark: SparkSession, path: str, schema: pa.Schema, check: RowCheck | None = None, *, may_lack: Collection[str] = ()
    ) -> None:
        super().__init__(spark, path, schema, check)
        self._may_lack = may_lack

    def restore(self, touched: DataFrame | None, keys: Mapping[str, str], *, before_batch: int, watermark: int) -> DataFrame | None:
        """All entries of the keys that are ``touched`` or due by ``watermark``, as the batches before ``before_batch`` left them.

        Entries have their checksums, which whoever works on them verifies.

        Parameters
        ----------
        touched
            New rows, if there are any.
        keys
            Column of the log by key column of the new rows.
        """
        if not self._exists:
            return None
        from pyspark.sql import functions as F
        from pyspark.sql.pandas.types import from_arrow_schema

        stored = self._on_spark().where(F.col(BATCH) < before_batch)
        require_columns(self._path, [*stored.columns, *self._may_lack], self._schema.names)
        types = {field.name: field.dataType for field in from_arrow_schema(self._schema)}
        log = stored.select(
            *(F.col(backquoted(name)) if name in stored.columns else F.lit(None).cast(kind).alias(name) for name, kind in types.items())
        )
        if not keys:
            return log
        columns = [F.col(backquoted(label)) for label in keys.values()]
        latest = log.where(F.col(KIND) == KEY_ENTRY).groupBy(*columns).agg(F.max_by(DUE, BATCH).alias(DUE))
        wanted = latest.where(F.col(DUE) <= watermark).select(*columns)
        if touched is not None:
            wanted = touched.select(*(F.col(backquoted(name)).alias(label) for name, label in keys.items())).unionByName(wanted).distinct()
        alike = [log[backquoted(label)].eqNullSafe(wanted[backquoted(label)]) for label in keys.values()]
        return log.join(wanted, reduce(and_, alike), "left_semi")


def is_log(path: str) -> bool:
    """Whether the state table at ``path`` is a log of live rows; else it holds slices."""
    return KIND in DeltaTable(path).schema().to_arrow().names


def is_overgrown(path: str) -> bool:
    """Whether the log at ``path`` has grown so far since it was last compacted that doing it again pays. From the Delta log alone.

    An entry supersedes one older entry at most, and what has come since is more than what was left then: each entry's share of all
    compactions is constant, and at least every other entry that a batch reads is state, those few aside.
    """
    files = _files(DeltaTable(path))
    spans = [(file.get(f"min.{BATCH}"), file.get(f"max.{BATCH}")) for file in files]
    first = min((low for low, _ in spans if low is not None), default=None)
    # A compaction leaves files of several batches; the first batch superseded nothing.
    left = sum(file["num_records"] for file, (low, high) in zip(files, spans, strict=True) if low == first or low != high)
    every = sum(file["num_records"] for file in files)
    return (every - left > left + FEW_ENTRIES or len(files) > FEW_FILES) and sum(file["size_bytes"] for file in files) <= COMPACTED_BYTES


def compact_log(path: str, before_batch: int) -> int:
    """Rewrite the log at ``path`` without what later entries have superseded, in one commit; how many entries went. No JVM.

    Entries of ``before_batch`` itself, which an attempt that died may have left, stay as they are; so does a table whose features delta-rs
    does not write.
    """
    table = DeltaTable(path)
    if not delta_rs_can_write(table):
        return 0
    schema = pa.schema(table.schema().to_arrow())
    keys = schema.names[: schema.get_field_index(KIND)]
    names = ", ".join(map(quoted, schema.names))
    query = f"""
        SELECT {names} FROM ({latest_entries("log", keys, f"{BATCH} < {before_batch}")}) WHERE {KIND} <> '{GONE}'
        UNION ALL SELECT {names} FROM log WHERE {BATCH} >= {before_batch}
    """
    kept = QueryBuilder().register("log", table).execute(query)
    before = number_of_rows(table)
    # On the version that was read: entries that another has appended since would be lost.
    write_deltalake(table, kept, mode="overwrite", commit_properties=_REWRITE)
    return before - number_of_rows(DeltaTable(path))


def latest_entries(log: str, keys: Sequence[str], where: str) -> str:
    """A query for those entries of the table ``log`` that no later ones supersede, among those where ``where`` holds."""
    # Rows are told apart by their numbers, keys by their columns: each partition of the window holds the entries of one of them.
    by = ", ".join([f"CASE WHEN {KIND} = '{KEY_ENTRY}' THEN -1 ELSE {NUMBER_OF} END", *map(quoted, keys)])
    ages = f"SELECT *, row_number() OVER (PARTITION BY {by} ORDER BY {BATCH} DESC) AS age FROM {log} WHERE {where}"
    return f"SELECT * FROM ({ages}) WHERE age = 1"


def number_of_rows(table: DeltaTable) -> int:
    """Rows of ``table``, by its log."""
    return sum(file["num_records"] for file in _files(table))
