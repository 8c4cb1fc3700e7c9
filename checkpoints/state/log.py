"""The state table of live rows: a log of entries per key, of which later ones supersede earlier ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from windowmill.checkpoints.features import delta_rs_can_write
from windowmill.checkpoints.quoting import backquoted, quoted
from windowmill.checkpoints.reading import require_columns
from windowmill.checkpoints.state.base import REWRITE, StateTable, files_of, number_of_rows
from windowmill.windowing.columnar.checksums import RowCheck
from windowmill.windowing.columnar.log import DUE, GONE, KEY_ENTRY, KIND, NUMBER_OF
from windowmill.windowing.columnar.slices import BATCH

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: A log is read whole at every batch: so many entries, and so many files, are no burden.
FEW_ENTRIES, FEW_FILES = 100_000, 64
#: Bytes of files up to which a log is compacted in memory without being asked.
COMPACTED_BYTES = 1 << 30


class LogTable(StateTable):
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
    files = files_of(DeltaTable(path))
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
    write_deltalake(table, kept, mode="overwrite", commit_properties=REWRITE)
    return before - number_of_rows(DeltaTable(path))


def latest_entries(log: str, keys: Sequence[str], where: str) -> str:
    """A query for those entries of the table ``log`` that no later ones supersede, among those where ``where`` holds."""
    # Rows are told apart by their numbers, keys by their columns: each partition of the window holds the entries of one of them.
    by = ", ".join([f"CASE WHEN {KIND} = '{KEY_ENTRY}' THEN -1 ELSE {NUMBER_OF} END", *map(quoted, keys)])
    ages = f"SELECT *, row_number() OVER (PARTITION BY {by} ORDER BY {BATCH} DESC) AS age FROM {log} WHERE {where}"
    return f"SELECT * FROM ({ages}) WHERE age = 1"
