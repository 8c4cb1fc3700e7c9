"""The base of all kinds of state table: batches append rows, each batch once, and never change them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder

from windowmill.checkpoints.delta_tables import newest
from windowmill.checkpoints.features import own_commit
from windowmill.checkpoints.quoting import backquoted, quoted
from windowmill.checkpoints.state.reading import WHOLE_BYTES, read_file, read_whole, require_columns
from windowmill.checkpoints.state.wanted import Condition
from windowmill.checkpoints.stores import Options, is_local, is_table, options_of, table_at, use_options
from windowmill.windowing.columnar.added_columns import BATCH, KIND, LEVEL, REACHING, SLICE
from windowmill.windowing.columnar.checksums import RowCheck
from windowmill.windowing.columnar.session_fragments import LAST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Commit properties of a rewrite of existing rows.
REWRITE = own_commit("maintenance")
#: A batch may read a table whole; up to this many superseded rows, or this many files, that is cheap.
FEW_ENTRIES, FEW_FILES = 100_000, 64
#: Size of the files in bytes up to which a table is compacted in memory without a request.
COMPACTED_BYTES = 1 << 30


class StateTable:
    """A table to which batches append rows that never change.

    Parameters
    ----------
    spark
        Gives the session, which may have to be started.
    """

    def __init__(self, spark: Callable[[], SparkSession], path: str, schema: pa.Schema, check: RowCheck | None = None) -> None:
        self._spark, self._path, self._schema = spark, path, schema
        self._check = RowCheck(path) if check is None else check
        self._exists = is_table(path)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the table."""
        return self._schema

    def _rows(
        self,
        table: DeltaTable,
        files: Sequence[Mapping[str, Any]],
        schema: pa.Schema,
        wanted: Condition,
        most_rows: int,
        may_lack: Collection[str] = (),
        *,
        checked: pc.Expression | None = None,
    ) -> pa.Table | None:
        """The ``wanted`` rows, read by this process; none if there are more than ``most_rows``.

        Parameters
        ----------
        files
            All files of the table.
        schema
            The columns to read.
        may_lack
            Columns that are null where the table lacks them.
        checked
            Has the rows read verified. Of a table read whole these are the rows that are verified before the ``wanted`` ones are chosen,
            which damage could hide. Null leaves verifying to the caller.
        """
        whole = sum(file["size_bytes"] for file in files) <= WHOLE_BYTES
        if whole:
            rows = read_whole(table, files, schema, wanted.expression if checked is None else checked, may_lack=may_lack)
        else:
            rows = self._queried(table, schema, wanted.sql, most_rows, may_lack)
        if checked is not None:
            self._check.verify(rows)
            rows = rows.filter(wanted.expression) if whole else rows
        return None if rows.num_rows > most_rows else rows

    def _queried(self, table: DeltaTable, schema: pa.Schema, where: str, most_rows: int, may_lack: Collection[str]) -> pa.Table:
        """The rows for which the SQL condition ``where`` holds; stops soon after ``most_rows`` rows."""
        there = pa.schema(table.schema().to_arrow()).names
        require_columns(self._path, [*there, *may_lack], schema.names)
        names = ", ".join(quoted(name) if name in there else f"NULL AS {quoted(name)}" for name in schema.names)
        reader = pa.RecordBatchReader.from_stream(
            QueryBuilder().register("state", table).execute(f"SELECT {names} FROM state WHERE {where}")
        )
        batches, rows = [], 0
        for batch in reader:
            batches.append(batch)
            rows += batch.num_rows
            if rows > most_rows:
                break
        return pa.Table.from_batches(batches, reader.schema).cast(schema)

    def _on_spark(self) -> DataFrame:
        """The table as a DataFrame; its readers verify page checksums and report damaged pages."""
        if not is_local(self._path):
            return self._by_tasks()
        return self._spark().read.format("delta").option("parquet.page.verify-checksum.enabled", "true").load(self._path)

    def _by_tasks(self) -> DataFrame:
        """The table, read by tasks without Spark's readers, which may lack what they need to read object storage."""
        from pyspark.sql import functions as F
        from pyspark.sql.pandas.types import from_arrow_schema

        table = newest(self._path)
        files = [{name: file[name] for name in ("path", "size_bytes", "num_records")} for file in files_of(table)]
        schema = pa.schema([field.with_nullable(True) for field in pa.schema(table.schema().to_arrow())])
        read = partial(_read_files, table.table_uri, files, schema, {self._path: options_of(self._path) or {}})
        numbers = self._spark().range(0, len(files), 1, max(1, len(files)))
        types = from_arrow_schema(schema, prefer_timestamp_ntz=True)
        rows = numbers.mapInArrow(read, types)
        # A type that is named in SQL is not, over Spark Connect, the type of a value in everything.
        return rows.select(*(F.col(backquoted(field.name)).cast(field.dataType.simpleString()).alias(field.name) for field in types))


def _read_files(
    uri: str,
    files: Sequence[Mapping[str, Any]],
    schema: pa.Schema,
    options: Mapping[str, Options],
    numbers: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    use_options(options)
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from read_file(uri, files[number], schema, schema.names).to_batches()


def order_of(columns: Sequence[str]) -> list[str]:
    """The columns by which rows of a table with these ``columns`` are sorted.

    Rows that are read together then stand together, so statistics exclude most files and pages from a read of few rows.
    """
    return [name for name in (KIND, LEVEL, REACHING, SLICE, LAST) if name in columns]


def files_of(table: DeltaTable) -> list[dict[str, Any]]:
    """The Delta log's entry of each file of ``table``: size, number of rows and statistics. Reads no data file."""
    return list(pa.table(table.get_add_actions(flatten=True)).to_pylist())


def batches_of(file: Mapping[str, Any]) -> tuple[int, int]:
    """First and last batch with rows in ``file``; the whole range if there are no statistics."""
    low, high = file.get(f"min.{BATCH}"), file.get(f"max.{BATCH}")
    return (0, (1 << 63) - 1) if low is None or high is None else (low, high)


@dataclass(frozen=True)
class BatchFiles:
    """Successive batches, from ``first`` through ``last``, and the files that hold their rows."""

    first: int
    last: int
    files: Sequence[Mapping[str, Any]]

    def __add__(self, other: BatchFiles) -> BatchFiles:
        return BatchFiles(min(self.first, other.first), max(self.last, other.last), [*self.files, *other.files])

    @property
    def rows(self) -> int:
        return sum(int(file["num_records"]) for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(int(file["size_bytes"]) for file in self.files)


def by_batches(files: Sequence[Mapping[str, Any]]) -> list[BatchFiles]:
    """``files`` in groups of successive batches, oldest first; no batch has files in two groups."""
    groups: list[BatchFiles] = []
    for each in sorted((BatchFiles(*batches_of(file), [file]) for file in files), key=lambda group: (group.first, group.last)):
        if groups and each.first <= groups[-1].last:
            groups[-1] += each
        else:
            groups.append(each)
    return groups


def number_of_rows(table: DeltaTable) -> int:
    """Number of rows of ``table``, from its log."""
    return sum(file["num_records"] for file in files_of(table))


def is_overgrown(path: str) -> bool:
    """Whether the table at ``path`` has grown enough since its last compaction to be compacted again. Reads only the Delta log.

    It has if the rows appended since outnumber those that the compaction left by more than ``FEW_ENTRIES``. So compaction costs
    amortised constant time per row. A row supersedes at most one older row, so at least half of the rows read are live, apart from
    ``FEW_ENTRIES``.
    """
    files = files_of(table_at(path))
    spans = [(file.get(f"min.{BATCH}"), file.get(f"max.{BATCH}")) for file in files]
    first = min((low for low, _ in spans if low is not None), default=None)
    # A compacted file spans several batches. The first batch supersedes nothing.
    left = sum(file["num_records"] for file, (low, high) in zip(files, spans, strict=True) if low == first or low != high)
    total = sum(file["num_records"] for file in files)
    return (total - left > left + FEW_ENTRIES or len(files) > FEW_FILES) and sum(file["size_bytes"] for file in files) <= COMPACTED_BYTES


def is_scattered(path: str) -> bool:
    """Whether a batch that looks for rows in all files of the table at ``path`` should merge them. Reads only the Delta log."""
    files = files_of(table_at(path))
    return len(files) > FEW_FILES and sum(file["size_bytes"] for file in files) <= COMPACTED_BYTES
