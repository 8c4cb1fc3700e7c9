"""The output of a batch's tasks: data files of the pipeline's own tables. The driver receives their entries and counts, never rows.

A task writes files whose names no other attempt at it uses, and returns their entries. Spark takes the rows of one attempt at each task,
so the files of the others are never named by a commit: a failing task removes its own, ``windowmill maintain`` those of killed ones.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext

from windowmill.checkpoints.data_files import DataFile, FileWriter
from windowmill.checkpoints.stores import Options, filesystem_of, use_options
from windowmill.jobs.layouts.output import Output, Published, Role, RowWriter
from windowmill.jobs.layouts.returning import collect_results
from windowmill.windowing.columnar.added_columns import NUMBER_OF, RETRACTED
from windowmill.windowing.columnar.buckets import with_buckets
from windowmill.windowing.columnar.results import with_retracted
from windowmill.windowing.counts import Counts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REFUSED_SCHEMA = pa.schema([(NUMBER_OF, pa.int64())])


@dataclass(frozen=True, slots=True)
class Target:
    """The folder of a table, the columns of its files, those by which the rows of a file are sorted, and the key columns of the state."""

    table: str
    schema: pa.Schema
    order: Sequence[str] = ()
    keys: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Targets:
    """Where an attempt at a batch writes; small and picklable.

    Attributes
    ----------
    options
        For each place in object storage, the settings of its client; they hold credentials.
    published
        Which result rows are written; null for all.
    """

    batch: int
    attempt: str
    of: Mapping[Role, Target]
    options: Mapping[str, Options] = field(default_factory=dict)
    published: Published | None = None

    def writer(self, role: Role, task: int) -> FileWriter:
        """A writer for the rows of ``role`` in the task of this number."""
        target = self.of[role]
        return FileWriter(target.table, target.schema, batch=self.batch, attempt=self.attempt, task=task, order=target.order)


class OutputWriter(RowWriter):
    """Writes the rows of one task: a context manager; after an error nothing that it wrote is left."""

    def __init__(self, targets: Targets) -> None:
        super().__init__()
        use_options(targets.options)
        self._targets, self._task = targets, task_number()
        self._open: dict[Role, FileWriter] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    def results(self, rows: pa.Table) -> None:
        published = self._targets.published
        super().results(rows if published is None else published.of(rows))

    def quarantined(self, rows: pa.Table) -> None:
        """Write rows of the quarantine table."""
        reasons = rows.column("reason").value_counts().to_pylist()
        self.counts += Counts(quarantined={each["values"]: each["counts"] for each in reasons})
        self.write("quarantine", rows)

    def refused(self, numbers: Any) -> None:
        """Write the numbers of rows that came too late."""
        self.write("refused", pa.table([pa.array(numbers, pa.int64())], schema=REFUSED_SCHEMA))

    def write(self, role: Role, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        if role == "state":
            schema, keys, n = self._targets.of[role].schema, self._targets.of[role].keys, rows.num_rows
            rows = with_buckets(rows, keys) if keys else rows
            own = set(rows.column_names)
            # The columns of other parts are null.
            columns = [rows.column(f.name) if f.name in own else pa.nulls(n, f.type) for f in schema]
            rows = pa.table(columns, names=schema.names)
        if role == "sink" and RETRACTED in self._targets.of[role].schema.names:
            rows = with_retracted(rows)
        if role not in self._open:
            self._open[role] = self._stack.enter_context(self._targets.writer(role, self._task))
        self._open[role].write(rows)

    def output(self) -> Output:
        """Finish all files; returns their entries, and the counts of result rows and of quarantined ones."""
        files = {role: writer.close() for role, writer in self._open.items()}
        return Output(files, self.counts, executors=frozenset({executor()}))


def task_number() -> int:
    """A number that no other attempt at a task of this Spark application has; 0 in a process that runs no task."""
    context = TaskContext.get()
    return 0 if context is None else int(context.taskAttemptId())


def executor() -> str:
    """Names the executor that this process works for: all its Python workers are children of one daemon, whose number names it."""
    return f"{socket.gethostname()}:{os.getpid() if TaskContext.get() is None else os.getppid()}"


def output_of(worked: DataFrame) -> Output:
    """Run ``worked``, whose tasks return an :class:`Output` each; their sum."""
    return sum(collect_results(worked), Output())


def read_files(table: str, files: Iterable[DataFile], columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of ``files`` of ``table``, a part at a time."""
    fs, root = filesystem_of(table)
    for file in files:
        with pq.ParquetFile(f"{root}/{file.path}", filesystem=fs) as opened:
            yield from opened.iter_batches(columns=None if columns is None else list(columns), use_threads=False)
