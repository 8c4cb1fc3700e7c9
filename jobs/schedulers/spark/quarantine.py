"""Quarantines the new rows that no part applied: tasks find which rows these are, and write them with all their columns.

Tasks that read plain files find them first, and then read all columns of the parts that hold some. Where only Spark reads rows, it sends
those that may be among them, as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.conditions.spark import failing
from windowmill.jobs.conditions.truths import every_condition
from windowmill.jobs.json_lines import spark_form
from windowmill.jobs.layouts.lateness import JUDGED_BY, marked, too_late_among, usable
from windowmill.jobs.layouts.output import Output
from windowmill.jobs.layouts.quarantine import FAILURE, JSON, entries, failure_of, quarantined
from windowmill.jobs.layouts.returning import RETURNED, encode_result
from windowmill.jobs.reasons import BAD_CONDITION, with_too_late
from windowmill.jobs.schedulers.files.rows import FileRows, examined_all
from windowmill.jobs.schedulers.spark.partitioning import numbers_in, numbers_of_tasks
from windowmill.jobs.schedulers.spark.task_output import OutputWriter, Targets, output_of, read_files
from windowmill.jobs.sources.columns import FILE, REASON, ROW, UNREAD, VERSION, Columns
from windowmill.jobs.spark.access import map_in_arrow
from windowmill.windowing.columnar.added_columns import NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from windowmill.checkpoints.data_files import DataFile
    from windowmill.checkpoints.plans import Plan
    from windowmill.windowing.kernels.combine import Ints
    from windowmill.windowing.slicing.edges import WindowGrid
    from windowmill.windowing.spec import Pipeline


@dataclass(frozen=True)
class Quarantining:
    """The quarantine of a batch's rows; picklable.

    Attributes
    ----------
    paths
        The path of each file, by which quarantine names it.
    lateness
        The pipeline's, in ticks of the axis.
    refusing
        For each part that refuses rows, the files that hold their numbers; null if a part refuses none, and no row can be too late.
    grids
        The grids of the other parts.
    """

    pipeline: Pipeline
    plan: Plan
    targets: Targets
    paths: Sequence[str]
    lateness: int
    refusing: Sequence[Sequence[DataFile]] | None = None
    grids: Sequence[WindowGrid] = ()

    def write_of_files(self, spark: SparkSession, new: FileRows) -> Output | None:
        """Have tasks write those of ``new`` that were not applied; null if only Spark can read all columns, or write them as JSON."""
        types = new.plain.types
        if not spark_form.takes(types.values()) or examined_all(spark, new.plain, list(types), new.options) is None:
            return None
        return output_of(map_in_arrow(numbers_of_tasks(spark, len(new.tasks)), partial(_write_of_files, self, new), RETURNED))

    def write_of_frame(self, rows: DataFrame, columns: Sequence[str]) -> Output:
        """Have tasks write those of ``rows`` that were not applied, of which ``columns`` are those of the source.

        Only rows without a reason need numbers and the watermark at their arrival, and only where rows may be too late.
        """
        failed = failing(every_condition(self.pipeline), Columns(rows.select(*map(backquoted, columns)).schema).in_conditions)
        why = [F.when(column, F.lit(failure_of(text))) for text, column in failed.items()]
        own = (REASON, VERSION, FILE, ROW, NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF, UNREAD)
        asked = F.col(REASON).isNotNull()
        chosen = rows.where(asked if self.refusing is None else asked | (F.col(TIME) < F.col(WATERMARK_OF))).select(
            *(F.col(backquoted(name)) for name in own if name in rows.columns),
            (F.when(F.col(REASON) == BAD_CONDITION, F.coalesce(*why)) if why else F.lit(None).cast("string")).alias(FAILURE),
            F.to_json(F.struct(*(F.col(backquoted(name)) for name in columns)), {"ignoreNullFields": "false"}).alias(JSON),
        )
        return output_of(map_in_arrow(chosen, partial(_write_of_frame, self), RETURNED))

    @cached_property
    def refused(self) -> Ints | None:
        """Numbers of the rows that all refusing parts refuse; null if no part refuses rows."""
        table = self.targets.of["refused"].table
        numbers = [_all_of(table, files) for files in self.refusing or ()]
        return reduce(np.intersect1d, numbers) if numbers else None

    def not_applied(self, rows: pa.Table) -> pa.Table:
        """Those of ``rows``, as of :func:`.lateness.with_arrival`, that were not applied, each with its reason."""
        if self.refusing is not None and rows.column(WATERMARK_OF).null_count < rows.num_rows:
            rows = marked(rows, self.lateness)
            late = too_late_among(usable(rows).select(JUDGED_BY.names), self.refused, self.grids)
            rows = with_too_late(rows, pc.is_in(rows.column(NUMBER_OF), pa.array(late)))
        return rows.filter(pc.is_valid(rows.column(REASON)))

    def of_task(self, new: FileRows, task: int) -> Iterator[pa.Table]:
        """The rows of the quarantine table for the rows of a task that reads files."""
        names = list(new.plain.types)
        for part, batches in new.parts(task):
            found = [self.not_applied(arrived).select([ROW, REASON, WATERMARK_OF]) for arrived in batches]
            chosen = pa.concat_tables(found) if found else None
            if chosen is None or not chosen.num_rows:
                continue
            for rows in new.plain.read_part(part, names, (), latest=new.latest):
                own = rows.drop_columns([REASON]).join(chosen, ROW, join_type="inner")
                own = own.append_column(VERSION, pa.repeat(pa.scalar(new.plain.versions[part.index], pa.int64()), own.num_rows))
                own = own.append_column(FILE, pa.repeat(pa.scalar(part.index, pa.int32()), own.num_rows))
                if own.num_rows:
                    yield quarantined(own, names, self.pipeline, self.plan, self.paths)


def _all_of(table: str, files: Sequence[DataFile]) -> Ints:
    found = [batch.column(0).to_numpy() for batch in read_files(table, files)]
    return np.asarray(np.concatenate(found) if found else np.empty(0, np.int64))


def _write_of_files(own: Quarantining, new: FileRows, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    return _write(own.targets, (rows for task in numbers_in(batches) for rows in own.of_task(new, task)))


def _write_of_frame(own: Quarantining, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    found = (own.not_applied(pa.Table.from_batches([batch])) for batch in batches)
    return _write(own.targets, (entries(rows, own.pipeline, own.plan, own.paths) for rows in found if rows.num_rows))


def _write(targets: Targets, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    with OutputWriter(targets) as writer:
        for rows in tables:
            writer.quarantined(rows)
        done = writer.output()
    yield from encode_result(done)
