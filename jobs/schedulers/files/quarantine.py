"""Quarantines rows of plain files: tasks find the rows that were not applied, and read all columns of the file parts that hold some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.json_lines import spark_form
from windowmill.jobs.layouts.lateness import JUDGED_BY, marked, too_late_among, usable
from windowmill.jobs.layouts.output import Output
from windowmill.jobs.layouts.quarantine import quarantined
from windowmill.jobs.layouts.returning import RETURNED, encode_result
from windowmill.jobs.reasons import with_too_late
from windowmill.jobs.schedulers.files.rows import FileRows, examined_all
from windowmill.jobs.schedulers.spark.partitioning import numbers_in, numbers_of_tasks
from windowmill.jobs.schedulers.spark.task_output import OutputWriter, Targets, output_of, read_files
from windowmill.jobs.sources.columns import FILE, REASON, ROW, VERSION
from windowmill.jobs.spark.access import map_in_arrow
from windowmill.windowing.columnar.added_columns import NUMBER_OF, WATERMARK_OF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windowmill.checkpoints.data_files import DataFile
    from windowmill.checkpoints.plans import Plan
    from windowmill.windowing.axis import WindowGrid
    from windowmill.windowing.kernels.combine import Ints
    from windowmill.windowing.spec import Pipeline


@dataclass(frozen=True)
class Quarantining:
    """The quarantine of a batch's rows in files; picklable.

    Attributes
    ----------
    paths
        The path of each file, by which quarantine names it.
    refusing
        For each part that refuses rows, the files that hold their numbers; null if a part refuses none, and no row can be too late.
    grids
        The grids of the other parts.
    """

    new: FileRows
    pipeline: Pipeline
    plan: Plan
    targets: Targets
    paths: Sequence[str]
    refusing: Sequence[Sequence[DataFile]] | None
    grids: Sequence[WindowGrid]

    def write(self, spark: SparkSession) -> Output | None:
        """Have tasks write the rows that were not applied; null if only Spark can read all columns, or write them as JSON."""
        types, plain = self.new.plain.types, self.new.plain
        if not spark_form.takes(types.values()) or examined_all(spark, plain, list(types), self.new.options) is None:
            return None
        return output_of(map_in_arrow(numbers_of_tasks(spark, len(self.new.tasks)), partial(_write, self), RETURNED))

    @cached_property
    def refused(self) -> Ints | None:
        """Numbers of the rows that all refusing parts refuse; null if no part refuses rows."""
        table = self.targets.of["refused"].table
        numbers = [_all_of(table, files) for files in self.refusing or ()]
        return reduce(np.intersect1d, numbers) if numbers else None

    def of_task(self, task: int) -> Iterator[pa.Table]:
        """The rows of the quarantine table for the rows of a task; runs in an executor."""
        new, names = self.new, list(self.new.plain.types)
        for part, batches in new.parts(task):
            found = [self._not_applied(arrived) for arrived in batches]
            chosen = pa.concat_tables(found) if found else None
            if chosen is None or not chosen.num_rows:
                continue
            for rows in new.plain.read_part(part, names, (), latest=new.latest):
                own = rows.drop_columns([REASON]).join(chosen, ROW, join_type="inner")
                own = own.append_column(VERSION, pa.repeat(pa.scalar(new.plain.versions[part.index], pa.int64()), own.num_rows))
                own = own.append_column(FILE, pa.repeat(pa.scalar(part.index, pa.int32()), own.num_rows))
                if own.num_rows:
                    yield quarantined(own, names, self.pipeline, self.plan, self.paths)

    def _not_applied(self, arrived: pa.Table) -> pa.Table:
        """Index, reason and watermark of the rows that were not applied."""
        rows, late = marked(arrived, self.new.rule.lateness), np.empty(0, np.int64)
        if self.refusing is not None and rows.column(WATERMARK_OF).null_count < rows.num_rows:
            late = too_late_among(usable(rows).select(JUDGED_BY.names), self.refused, self.grids)
        rows = with_too_late(rows, pc.is_in(rows.column(NUMBER_OF), pa.array(late)))
        return rows.select([ROW, REASON, WATERMARK_OF]).filter(pc.is_valid(rows.column(REASON)))


def _all_of(table: str, files: Sequence[DataFile]) -> Ints:
    found = [batch.column(0).to_numpy() for batch in read_files(table, files)]
    return np.asarray(np.concatenate(found) if found else np.empty(0, np.int64))


def _write(quarantining: Quarantining, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    with OutputWriter(quarantining.targets) as writer:
        for task in numbers_in(batches):
            for rows in quarantining.of_task(task):
                writer.quarantined(rows)
        done = writer.output()
    yield from encode_result(done)
