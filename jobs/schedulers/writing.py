"""The files that a batch writes: those of a task of Spark, and those of a process that computes a batch by itself.

Each attempt at a task writes files with names of its own. The driver receives their entries and counts, never rows. Spark uses the output
of one attempt at each task, so no commit names the files of the others. A failing task removes its files; ``windowmill maintain`` removes
those of killed tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from windowmill.checkpoints.data_files import FileWriter, Packing
from windowmill.checkpoints.stores import Options, use_options
from windowmill.jobs.conditions.expressions import Expressions
from windowmill.jobs.layouts.output import Output, Published, Role, RowWriter
from windowmill.jobs.spark.access import running_task
from windowmill.windowing.columnar.added_columns import NUMBER_OF, RETRACTED
from windowmill.windowing.columnar.hashes import with_buckets
from windowmill.windowing.columnar.results import with_retracted
from windowmill.windowing.counts import Counts

REFUSED_SCHEMA = pa.schema([(NUMBER_OF, pa.int64())])


@dataclass(frozen=True, slots=True)
class Target:
    """The folder and file schema of a table, the ``order`` in which the rows of a file are sorted, and the ``keys`` of a state table."""

    table: str
    schema: pa.Schema
    order: Sequence[str] = ()
    keys: Sequence[str] = ()
    packing: Packing | None = None  #: As of :class:`.FileWriter`.


@dataclass(frozen=True, slots=True)
class Targets:
    """Where an attempt at a batch writes; small and picklable."""

    batch: int
    attempt: str
    of: Mapping[Role, Target]
    #: For each place in object storage, the settings of its client; they hold credentials.
    options: Mapping[str, Options] = field(default_factory=dict)
    published: Published | None = None  #: Which result rows are written; null for all.
    expressions: Expressions | None = None  #: Aggregates that are computed of result rows; null for none.


class OutputWriter(RowWriter, ExitStack):
    """A context manager that writes the rows of one task; after an error it removes all that it wrote."""

    def __init__(self, targets: Targets) -> None:
        super().__init__()
        use_options(targets.options)
        self._targets, (self._task, self._executor) = targets, running_task()
        self._open: dict[Role, FileWriter] = {}

    def results(self, rows: pa.Table) -> None:
        published, expressions = self._targets.published, self._targets.expressions
        rows = rows if published is None else published.of(rows)
        super().results(rows if expressions is None else expressions.over(rows))

    def quarantine_rows(self, rows: pa.Table) -> None:
        reasons = rows.column("reason").value_counts().to_pylist()
        self.counts += Counts(quarantined={each["values"]: each["counts"] for each in reasons})
        self.write("quarantine", rows)

    def refused(self, numbers: Any) -> None:
        self.write("refused", pa.table([pa.array(numbers, pa.int64())], schema=REFUSED_SCHEMA))

    def write(self, role: Role, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        to, batch, attempt = self._targets.of[role], self._targets.batch, self._targets.attempt
        if role == "state":
            rows = with_buckets(rows, to.keys) if to.keys else rows
            own = set(rows.column_names)
            # The columns of other parts are null.
            columns = [rows.column(f.name) if f.name in own else pa.nulls(len(rows), f.type) for f in to.schema]
            rows = pa.table(columns, names=to.schema.names)
        if role == "sink" and RETRACTED in to.schema.names:
            rows = with_retracted(rows)
        if role not in self._open:
            writer = FileWriter(to.table, to.schema, batch=batch, attempt=attempt, task=self._task, order=to.order, packing=to.packing)
            self._open[role] = self.enter_context(writer)
        self._open[role].write(rows)

    def output(self) -> Output:
        """Finish all files; returns their entries, and the counts of result rows and of quarantined ones."""
        files = {role: writer.close() for role, writer in self._open.items()}
        return Output(files, self.counts, executors=frozenset({self._executor}))
