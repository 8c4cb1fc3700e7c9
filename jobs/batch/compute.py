"""Computes a batch: in this process, in one task of Spark, or in many. What comes back are entries of files and counts, never rows.

The rows go to files beside the tables that they are for. Until a record of the ledger names these, they are part of no table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from windowmill.checkpoints.batches import BackfillPlan, Changes, Plan
from windowmill.checkpoints.data_files import DataFile, remove
from windowmill.checkpoints.delta_tables import newest, tables_kept
from windowmill.checkpoints.features import delta_rs_can_write
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.replacing import ReplacedRange
from windowmill.checkpoints.state.base import order_of
from windowmill.checkpoints.state.compaction import joint_schema
from windowmill.checkpoints.state.readers import DeltaState
from windowmill.checkpoints.stores import Options, is_table, options_of, use_options
from windowmill.jobs.schedulers.files.quarantine import Quarantining
from windowmill.jobs.schedulers.files.rows import FileRows
from windowmill.jobs.schedulers.local import parts as local_parts
from windowmill.jobs.schedulers.spark import numbered_rows
from windowmill.jobs.schedulers.spark import parts as spark_parts
from windowmill.jobs.schedulers.spark.numbered_rows import NumberedRows, read_by_spark
from windowmill.jobs.schedulers.spark.quarantine import not_applied, write_by_tasks
from windowmill.jobs.schedulers.spark.task_output import (
    REFUSED_SCHEMA,
    RETURNED,
    OutputWriter,
    Target,
    Targets,
    returned,
    taken,
    task_number,
)
from windowmill.jobs.sources.base import Reading, SourceTable
from windowmill.jobs.sources.plain_rows import PlainRows
from windowmill.jobs.spark.access import access_to, map_in_arrow, mapped
from windowmill.jobs.ways import limits
from windowmill.jobs.ways.base import BatchSurvey, Part
from windowmill.jobs.ways.choose import parts_of
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.input import TableInput
from windowmill.jobs.ways.lateness import TOO_LATE
from windowmill.jobs.ways.limits import OnlySparkError, TooLargeError
from windowmill.jobs.ways.output import Output, Windows, check_balance, counted
from windowmill.jobs.ways.quarantine import quarantine_schema, quarantined
from windowmill.jobs.ways.restored import Restored
from windowmill.jobs.ways.returning import returnable
from windowmill.windowing.columnar.added_columns import KIND, LEVEL, REACHING
from windowmill.windowing.columnar.checksums import RowCheck
from windowmill.windowing.errors import WindowmillError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Times a step; takes its name and what it does.
Step = Callable[[str, str], AbstractContextManager[Any]]


def _untimed(_name: str, _doing: str) -> AbstractContextManager[Any]:
    return nullcontext()


@dataclass(frozen=True)
class Job:
    """All that computing a batch needs; picklable.

    Attributes
    ----------
    source
        The source with the columns that the plan has pinned.
    reading
        What the plan reads of it.
    check
        Verifies rows of the state.
    options
        For each place in object storage, the settings of its client; they hold credentials.
    """

    runnable: Runnable
    plan: Plan
    source: SourceTable
    reading: Reading
    check: RowCheck
    options: Mapping[str, Options]

    @classmethod
    def of(cls, runnable: Runnable, plan: Plan, source: SourceTable, reading: Reading, check: RowCheck) -> Job:
        """The job of ``plan``, with what this process knows of the places in object storage."""
        every = (runnable.source_path, runnable.sink_path, runnable.places.root)
        options = {place: found for place in every if (found := options_of(place)) is not None}
        return cls(runnable, plan, source, reading, check, options)

    @cached_property
    def input(self) -> TableInput:
        """The batch's new rows and the progress before it."""
        plain = PlainRows.of(self.runnable.pipeline, self.source, self.reading)
        return TableInput.of(self.runnable, self.plan, self.source, self.reading, plain, self.check)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "input"}

    @property
    def state(self) -> DeltaState:
        """The state before the batch."""
        return DeltaState(self.runnable.places.state, self.check)

    def parts(self) -> list[Part]:
        """The parts of the pipeline."""
        return parts_of(self.input, self.state)

    def targets(self, parts: Sequence[Part]) -> Targets:
        """Where the rows that ``parts`` compute are written."""
        runnable, pipeline = self.runnable, self.runnable.pipeline
        state = joint_schema(pipeline, [part.schema for part in parts])
        # Batches read all rows alike of a table without kinds, levels and families of events.
        order = order_of(state.names) if {KIND, LEVEL, REACHING} & set(state.names) else []
        quarantine = runnable.places.quarantine
        return Targets(
            self.plan.batch,
            self.plan.attempt,
            {
                "sink": Target(runnable.sink_path, self.input.sink_schema),
                "state": Target(runnable.places.state, state, order),
                "quarantine": Target(quarantine, quarantine_schema(pipeline)),
                "refused": Target(quarantine, REFUSED_SCHEMA),
            },
            self.options,
        )


@returnable
@dataclass(frozen=True)
class ComputedBatch:
    """What computing a batch gives.

    Attributes
    ----------
    windows
        Number of result rows by window name, with the first and last window end.
    reasons
        Number of quarantined rows by reason.
    changes
        What the batch changes in each table, by role; a role in which it changes nothing is missing.
    executors
        One text for each process that ran tasks.
    restored
        Number of rows of state that were restored, by kind.
    in_one_process
        Whether one process computed all of it.
    """

    emission: Emission
    rows_read: int
    rows_applied: int
    rows_late: int
    new_state: int
    windows: Windows
    reasons: Mapping[str, int]
    changes: Mapping[str, Changes]
    executors: frozenset[str] = frozenset()
    restored: Restored = field(default_factory=dict)
    in_one_process: bool = False

    @property
    def row_count(self) -> int:
        """Number of result rows."""
        return sum(n for n, _, _ in self.windows.values())

    @property
    def rows_quarantined(self) -> int:
        return sum(self.reasons.values())


def compute_locally(job: Job, given: pa.Table | None = None, step: Step = _untimed) -> ComputedBatch:
    """Compute a small batch in this process; ``given`` are its new rows if Spark has read them.

    Raises
    ------
    TooLargeError
        If rows, state or results are beyond what one process computes.
    OnlySparkError
        If only Spark can read the rows, or evaluate the spec on them.
    """
    batch, parts = job.input, job.parts()
    targets = job.targets(parts)
    with step("survey", "which windows the new rows complete"):
        surveyed = local_parts.survey(batch, parts, given)
    new = surveyed.new
    with step("restore", "the state that rows and windows need"):
        loaded = [local_parts.load(part, new, surveyed.emission, job.state) for part in parts]
    with step("apply", "new rows and restored state into windows"), OutputWriter(targets) as writer:
        counts, judged = local_parts.compute_parts(new, parts, loaded, batch, writer)
        if judged is not None and (refused := judged.refused()) is not None:
            writer.quarantined(quarantined(refused, batch.columns.struct.names, batch.pipeline, job.plan))
        output = counts + writer.output()
        check_balance(batch, output, surveyed.rows_read)
        replaced = _replaced(job, surveyed.emission)
        kept = () if replaced is None else _keep(job, replaced, replaced.partly)
    return replace(_computed(job, targets, surveyed, output, replaced, kept), in_one_process=True)


def compute_in_a_task(job: Job, spark: SparkSession, step: Step = _untimed) -> ComputedBatch:
    """As :func:`compute_locally`, in one task of Spark, which is given the rows if only Spark can read them."""
    limits.check_files(job.input.files, None)
    with step("apply", "new rows and restored state into windows, in one task"):
        reads = job.input.plain is not None or not job.input.files
        found = _of_task(job, spark, given=not reads)
        if reads and isinstance(found, OnlySparkError):
            found = _of_task(job, spark, given=True)
    if isinstance(found, Exception):
        raise found
    return cast("ComputedBatch", found)


def compute_by_spark(job: Job, spark: SparkSession, step: Step = _untimed) -> ComputedBatch:
    """Compute a batch of any size on Spark: the tasks that combine windows write the files."""
    parts = job.parts()
    targets = job.targets(parts)
    with step("survey", "which windows the new rows complete"):
        surveyed = spark_parts.survey(spark, job.input, parts)
    new = surveyed.new
    done: list[Output] = []
    kept: list[DataFile] = []
    try:
        with step("restore", "the state that rows and windows need"):
            loaded = [spark_parts.load(part, new, surveyed.emission, job.state.name, spark) for part in parts]
        with step("apply", "new rows and restored state into windows"):
            done.extend(part.compute(targets) for part in loaded)
            output = _with_quarantined(job, spark, targets, parts, done, new, surveyed.rows_read)
            done.append(output)
            check_balance(job.input, output, surveyed.rows_read)
            replaced = _replaced(job, surveyed.emission)
            if replaced is not None and replaced.partly:
                numbers = spark.range(0, len(replaced.partly), 1, len(replaced.partly))
                kept += [file for files in taken(map_in_arrow(numbers, partial(_keep_in_task, job, replaced), RETURNED)) for file in files]
    except BaseException:
        _remove(targets, done)
        with suppress(OSError):
            remove(job.runnable.sink_path, kept)
        raise
    _remove(targets, done, roles=("refused",))
    return _computed(job, targets, surveyed, output, replaced, kept)


def _of_task(job: Job, spark: SparkSession, *, given: bool) -> object:
    """What :func:`compute_locally` returns, or raises, in one task of Spark."""
    if not given:
        [found] = taken(map_in_arrow(spark.range(0, 1, 1, 1), partial(_in_task, job), RETURNED))
        return found
    stages = [part.reading for part in job.parts()]
    for stage in stages:
        limits.check_files(job.input.files, stage.layout)
    rows = read_by_spark(job.input, stages, spark)
    interpreting = job.input.expected_rows <= limits.MAX_INTERPRETED
    with access_to(spark).interpreting() if interpreting else nullcontext():
        [found] = taken(mapped(rows.coalesce(1), partial(_in_task_given, job, _empty(rows)), RETURNED))
    return found


def _empty(rows: DataFrame) -> pa.Table:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(rows.schema, timezone="UTC").empty_table()


def _in_task(job: Job, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    for _ in batches:
        pass
    yield from _answered(job, None)


def _in_task_given(job: Job, empty: pa.Table, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    tables = [pa.Table.from_batches([batch]).cast(empty.schema) for batch in batches]
    yield from _answered(job, pa.concat_tables([empty, *tables]))


def _answered(job: Job, given: pa.Table | None) -> Iterator[pa.RecordBatch]:
    """The batch, or the error that has a meaning to the driver; Spark would repeat a task that raises it."""
    use_options(job.options)
    with tables_kept():
        try:
            yield from returned(compute_locally(job, given))
        except (TooLargeError, WindowmillError) as err:
            yield from returned(err)


def _with_quarantined(
    job: Job,
    spark: SparkSession,
    targets: Targets,
    parts: Sequence[Part],
    done: Sequence[Output],
    new: FileRows | NumberedRows | None,
    rows_read: int,
) -> Output:
    """The output of all ``parts`` and of the quarantine, which is read anew if any row was not applied."""
    refusing = [each for part, each in zip(parts, done, strict=True) if not part.grids]
    refuses = all(each.rows_refused for each in refusing)
    every = counted(parts, done, 0)
    if new is None or (every.rows_applied == rows_read and not (refusing and refuses)):
        return every
    batch, grids = job.input, [grid for part in parts for grid in part.grids]
    numbers = [each.files["refused"] for each in refusing] if refuses else None
    found = None
    if isinstance(new, FileRows):
        found = Quarantining(new, batch.pipeline, job.plan, targets, numbers, grids).write(spark)
        new = NumberedRows.surveyed(numbered_rows.read(batch, spark), batch) if found is None else new
    if isinstance(new, NumberedRows):
        rows = new.rows if numbers is None else not_applied(new, numbers, targets, grids)
        found = write_by_tasks(rows, batch.columns.struct.names, batch.pipeline, job.plan, targets)
    assert found is not None
    return counted(parts, done, found.reasons.get(TOO_LATE, 0) if refusing else 0) + found


def _replaced(job: Job, emission: Emission) -> ReplacedRange | None:
    """What a backfill of a running pipeline replaces; null for any other batch, and for a sink that Spark must write."""
    sink = job.runnable.sink_path
    if not isinstance(job.plan, BackfillPlan) or job.plan.builds_state or not delta_rs_can_write(sink):
        return None
    return ReplacedRange.of(sink, newest(sink), (emission.after, emission.through))


def _keep(job: Job, replaced: ReplacedRange, paths: Sequence[str]) -> tuple[DataFile, ...]:
    return replaced.keep(paths, batch=job.plan.batch, attempt=job.plan.attempt, task=task_number()) if paths else ()


def _keep_in_task(job: Job, replaced: ReplacedRange, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    use_options(job.options)
    numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
    yield from returned(_keep(job, replaced, [replaced.partly[number] for number in numbers]))


def _remove(targets: Targets, done: Sequence[Output], roles: Sequence[str] = ("sink", "state", "quarantine", "refused")) -> None:
    """Remove files that no one will name; ``windowmill maintain`` removes what is left."""
    for role, target in targets.of.items():
        files = {file for each in done for file in each.files.get(role, ())} if role in roles else set()
        with suppress(OSError):
            remove(target.table, files)


def _computed(
    job: Job, targets: Targets, surveyed: BatchSurvey[Any], output: Output, replaced: ReplacedRange | None, kept: Sequence[DataFile]
) -> ComputedBatch:
    emission, plan = surveyed.emission, job.plan
    changes = {role: Changes.of(targets.of[role].schema, output.files[role]) for role in ("state", "quarantine") if output.files.get(role)}
    results, schema = output.files.get("sink", ()), targets.of["sink"].schema
    if not plan.builds_state:
        removes = () if replaced is None else replaced.files
        changes["sink"] = Changes.of(schema, results, kept=kept, removes=removes, replaces=(emission.after, emission.through))
    elif results or not is_table(job.runnable.sink_path):
        changes["sink"] = Changes.of(schema, results)
    return ComputedBatch(
        emission,
        surveyed.rows_read,
        output.rows_applied,
        output.rows_late,
        output.new_state,
        output.windows,
        output.reasons,
        changes,
        output.executors,
        output.restored,
    )
