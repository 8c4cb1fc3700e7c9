"""A bounded input in files that tasks read by Arrow, not through the JVM: a DataFrame that scans Parquet files, or a Delta table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints import stores
from windowmill.jobs.schedulers.spark.partitioning import ROWS_PER_PARTITION
from windowmill.jobs.sources.columns import REASON, ROW, Columns
from windowmill.jobs.sources.delta_log import read_version
from windowmill.jobs.sources.file_parts import Tasks, all_examined, divided, parts_of
from windowmill.jobs.sources.plain_files import Form, NotPlainError
from windowmill.jobs.sources.plain_rows import PlainRows, local_conditions
from windowmill.jobs.spark.access import access_to
from windowmill.windowing.columnar.added_columns import TIME
from windowmill.windowing.errors import SourceError
from windowmill.windowing.kernels.lift import condition_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from windowmill.jobs.layouts.input import SourceInput
    from windowmill.jobs.spark.file_ranges import DeltaScan
    from windowmill.windowing.kernels.combine import Ints


@dataclass(frozen=True)
class FileScan:
    """A pipeline's input in files; small and picklable.

    Attributes
    ----------
    columns
        Columns of the source that :meth:`rows` gives.
    latest
        Greatest accepted event time; null for no bound.
    options
        Place of the files, and ``storage_options`` with which tasks open them there.
    """

    plain: PlainRows
    columns: Sequence[str]
    latest: int | None
    tasks: Tasks
    options: Mapping[str, Mapping[str, str]]

    @classmethod
    def of(cls, df: DataFrame, batch: SourceInput, columns: Sequence[str], latest: int | None) -> FileScan | None:
        """The scan that ``df`` consists of; ``None`` if only Spark can read it, or evaluate the spec's conditions and times."""
        try:
            conditions = local_conditions(batch.pipeline, batch.columns)
        except NotPlainError:
            return None
        if conditions.outside or TIME in columns:
            return None
        access, form = access_to(df.sparkSession), Form(batch.types, batch.columns.fixed_lengths)
        plain = PlainRows(batch.pipeline, (), (), form, conditions)
        delta = access.delta_scan(df)
        if delta is not None:
            return cls._of_delta(delta, plain, columns, latest, access.cores())
        ranges = access.file_ranges(df)
        tasks = None if ranges is None else parts_of(ranges, form, plain.needed(columns))
        return None if tasks is None else cls(plain, tuple(dict.fromkeys(columns)), latest, tasks, {})

    @classmethod
    def _of_delta(cls, delta: DeltaScan, plain: PlainRows, columns: Sequence[str], latest: int | None, cores: int) -> FileScan | None:
        needed = plain.needed(columns)
        try:
            source = read_version(delta.path, delta.version)
            types = Columns.of(source.schema_json).arrow
            if any(types.get(name) != plain.types[name] for name in needed):
                return None
            files = source.plain_files(source.reading())
        except SourceError:  # Spark reads it, or says what is wrong
            return None
        found = None if files is None else all_examined(files, plain.form, needed)
        if files is None or found is None:
            return None
        tasks = divided(files, found, ROWS_PER_PARTITION, min(cores, len(files)))
        options = stores.options_of(delta.path)
        return cls(plain, tuple(dict.fromkeys(columns)), latest, tasks, {} if options is None else {delta.path: options})

    def rows(self, task: int) -> Iterator[tuple[pa.RecordBatch, Ints]]:
        """The usable rows of a task, and their places among all rows of the task.

        Beside ``columns`` they have their event times in the column ``TIME``, and for each condition of the aggregates and windows its
        truth in a :func:`.condition_column`.
        """
        stores.use_options(self.options)
        conditions, before = self.plain.pipeline.conditions(), 0
        names = [*self.columns, TIME, *map(condition_column, conditions)]
        for part in self.tasks[task]:
            for rows in self.plain.read_part(part, self.columns, conditions, latest=self.latest):
                usable = rows if rows.column(REASON).null_count == len(rows) else rows.filter(pc.is_null(rows.column(REASON)))
                places = usable.column(ROW).to_numpy() - part.first + before
                if usable.num_rows:
                    yield usable.select(names).combine_chunks().to_batches()[0], places
            before += part.rows

    def usable(self, task: int) -> Iterator[pa.RecordBatch]:
        """The usable rows of a task; see :meth:`rows`."""
        return (rows for rows, _ in self.rows(task))
