"""Computes a batch: a small one in this process, which may be a Spark task; others by many Spark tasks. Returns file entries, not rows.

Rows are written to files in the folders of their tables. The tables contain them once a record of the ledger names the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.committer import ReplacedRange
from windowmill.checkpoints.data_files import DataFile, remove
from windowmill.checkpoints.delta_tables import delta_rs_can_write, newest
from windowmill.checkpoints.quoting import sql_text
from windowmill.checkpoints.state.tables import joint_schema, keys_of, order_of
from windowmill.checkpoints.stores import is_table, use_options
from windowmill.jobs.batch.applying import carried_of, has_revisions, with_gaps
from windowmill.jobs.batch.corrections import superseded
from windowmill.jobs.batch.job import ComputedBatch, FinishedShares, Job, Step, untimed
from windowmill.jobs.layouts.base import BatchSurvey, Part
from windowmill.jobs.layouts.carried import CarriedPart, carry
from windowmill.jobs.layouts.input import Emission
from windowmill.jobs.layouts.output import (
    RETURNED,
    Output,
    Published,
    check_balance,
    collect_results,
    combine_counts,
    encode_result,
    quarantine_schema,
)
from windowmill.jobs.schedulers import local, tasks
from windowmill.jobs.schedulers.exchange import Exchange
from windowmill.jobs.schedulers.file_rows import FileRows
from windowmill.jobs.schedulers.tasks import NumberedRows, Quarantining
from windowmill.jobs.schedulers.writing import REFUSED_SCHEMA, OutputWriter, Target, Targets
from windowmill.jobs.sources.table_rows import ends_in_sql, queried
from windowmill.jobs.sources.unusable_rows import TOO_LATE
from windowmill.jobs.spark.access import SparkSession, map_in_arrow, running_task
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.columnar.added_columns import RETRACTED
from windowmill.windowing.columnar.results import result_schema
from windowmill.windowing.counts import Counts
from windowmill.windowing.registry import imported

if TYPE_CHECKING:
    from windowmill.jobs.layouts.output import Role
    from windowmill.jobs.layouts.unique import Deduplication


def compute_locally(job: Job, given: tuple[pa.Table, int] | None = None, step: Step = untimed) -> ComputedBatch:
    """Compute a small batch, from rows ``given`` by Spark, with their number before filters, or read here.

    Raises ``TooLargeError`` if Spark has to compute it.
    """
    batch, every = job.input, job.parts()
    parts, targets = [part for part in every if part.name not in job.plan.keeps], _targets(job, every)
    with step("survey", "which windows the new rows complete"):
        surveyed = local.survey(batch, parts, given)
    new, found = surveyed.new, None
    if batch.finds_duplicates_by and new is not None:
        with step("dedup", "rows whose values have been seen"):
            new, found = _deduplication(job, surveyed).of_new(new, batch)
    with step("restore", "the state that rows and windows need"):
        loaded = [local.load(part, new, surveyed.emission, job.state) for part in parts]
    with step("apply", "new rows and restored state into windows"), OutputWriter(targets) as writer:
        counts, judged = local.compute_parts(new, parts, loaded, batch, writer)
        if judged is not None and (refused := judged.refused()) is not None:
            writer.quarantine_rows(job.quarantine.of(refused, batch.columns.struct.names))
        if found is not None:
            writer.write("seen", found.entries)
            counts += Output(counts=Counts(duplicates=len(found.numbers)))
        output = counts + _keep_state(job, writer) + writer.output() + Output(counts=surveyed.counts)
        check_balance(job.input, output.counts)
        return _computed(job, targets, surveyed, output, _replaced(job, surveyed.emission))


def _deduplication(job: Job, surveyed: BatchSurvey[Any]) -> Deduplication:
    """How duplicates are found among the rows that the batch reads."""
    plan, batch = job.plan, job.input
    table = _seen().SeenTable(job.runnable.places.seen) if batch.restores else None
    since = _remembered_since(job, surveyed.emission) if plan.remembers else AXIS_END
    found: Deduplication = imported("windowmill.jobs.layouts.unique:Deduplication").of(batch, table, since)
    return replace(found, bounds=plan.range) if plan.range is not None and not plan.builds_state and plan.snapshot is not None else found


def _remembered_since(job: Job, emission: Emission) -> int:
    """The instant before which rows lie that no later row is a duplicate of."""
    return max(AXIS_BEGIN, emission.watermark - job.input.pipeline.remembers_for)


def _seen() -> Any:
    from windowmill.checkpoints import seen  # loads what a spec without dedup does without

    return seen


def compute_from_state(job: Job, step: Step) -> ComputedBatch:
    """Compute the batch of a changed spec in this process, from the stored state alone."""
    plan, runnable = job.plan, job.runnable
    assert plan.carried is not None
    before = runnable.pipeline.meaning_as(plan.carried)
    changed = {window.name for window in runnable.pipeline.windows if window not in before.windows}
    made = () if plan.of_published else plan.fills  # windows that the state fills
    carried = carried_of(runnable, before, job.input.types, changed, made, plan.batch)
    targets, whole = _targets(job, [each.part for each in carried]), job.input.emission(plan.seen)
    # Without ``history`` the range of window ends is empty, so nothing is published.
    emission = replace(whole, after=min(AXIS_END if plan.history is None else plan.history, whole.through))
    with step("restore", "the state, and what the changed spec keeps and makes of it"), OutputWriter(targets) as writer:
        output = carry(carried, runnable.places.state, job.check, emission, writer, made)
        if plan.of_published:
            _write_published(job, writer)
        output += writer.output()
        return _computed(job, targets, BatchSurvey(None, Counts(), whole), output, _replaced(job, whole))


def _write_published(job: Job, writer: OutputWriter) -> None:
    """Write the published rows of the windows that the batch of a changed spec fills, in which it computes expressions again."""
    plan, pipeline = job.plan, job.runnable.pipeline
    table, schema = newest(job.runnable.sink_path), result_schema(pipeline, job.input.types)
    there = set(pa.schema(table.schema().to_arrow()).names)
    revised = RETRACTED in there and has_revisions(table)
    types = {field.name: field.type for field in schema} | ({RETRACTED: pa.bool_()} if revised else {})
    for window in plan.fills:
        own = f'"window" = {sql_text(window)} AND {ends_in_sql(timed=not pipeline.time.integer_axis)} > {plan.history}'
        found = queried(table, types, own, {name: name for name in types if name in there})
        for published in [pa.concat_tables([pa.schema(list(types.items())).empty_table(), *found])] if revised else found:
            batch = pa.repeat(pa.scalar(plan.batch, pa.int64()), len(published))
            rows = published.set_column(published.schema.get_field_index("batch"), "batch", batch)
            if revised:  # rows that no longer count are not validated
                counts = np.ones(len(rows), np.bool_)
                counts[superseded(pipeline, rows).to_numpy()] = False
                writer.results(rows.filter(pa.array(~counts)))
                rows = rows.filter(pa.array(counts)).drop_columns([RETRACTED])
            writer.results(rows)


def _keep_state(job: Job, writer: OutputWriter) -> Output:
    """Write the stored rows of the state that the batch of a changed spec keeps as they are."""
    plan, runnable = job.plan, job.runnable
    if plan.kept_from is None:
        return Output()
    before, kept = runnable.pipeline.meaning_as(plan.kept_from), list[CarriedPart]()
    for own, only in ((runnable, plan.keeps), (with_gaps(runnable, plan.keeps_gaps), ("sessions",))):
        kept += carried_of(own, before, job.input.types, set(), (), plan.batch, only=only)
    return carry(kept, runnable.places.state, job.check, job.input.emission(plan.seen), writer, ())


def compute_by_spark(job: Job, spark: SparkSession, step: Step, finished: FinishedShares | None) -> ComputedBatch:
    """Compute a batch of any size on Spark, whose tasks write the files; ``finished`` keeps the output of each share of the keys."""
    every = job.parts()
    parts, targets = [part for part in every if part.name not in job.plan.keeps], _targets(job, every)
    with step("survey", "which windows the new rows complete"):
        surveyed = tasks.survey(spark, job.input, parts)
    new, unique = surveyed.new, Output()
    done: list[Output] = []
    kept: list[DataFile] = []
    try:
        if job.input.finds_duplicates_by and new is not None:
            with step("dedup", "rows whose values have been seen"):
                new, unique = tasks.without_duplicates(spark, job.input, new, _deduplication(job, surveyed), targets)
        with step("restore", "the state that rows and windows need"):
            shares = new.shares() if finished is not None and isinstance(new, FileRows) else [new]
            loaded = [[tasks.load(part, own, surveyed.emission, job.state, spark) for own in shares] for part in parts]
        with step("apply", "new rows and restored state into windows"):
            if finished is None:
                done.extend(part.compute(targets) for [part] in loaded)
            else:
                done.extend(_by_shares(finished, parts, loaded, targets))
            output = _with_quarantined(job, spark, targets, parts, done, new, surveyed.counts.rows_kept - unique.counts.duplicates) + unique
            with OutputWriter(targets) as writer:
                output += _keep_state(job, writer) + writer.output() + Output(counts=surveyed.counts)
            done.append(output)
            check_balance(job.input, output.counts)
            replaced = _replaced(job, surveyed.emission)
            if replaced is not None and replaced.partly:
                numbers = spark.range(0, len(replaced.partly), 1, len(replaced.partly))
                kept += [
                    file
                    for files in collect_results(map_in_arrow(numbers, partial(_keep_in_task, job, replaced), RETURNED))
                    for file in files
                ]
    except BaseException:
        _remove(targets, [*(done if finished is None else []), unique])
        with suppress(OSError):
            remove(job.runnable.sink_path, kept)
        raise
    _remove(targets, [*(done if finished is None else []), unique], roles=("refused",))
    return _computed(job, targets, surveyed, output, replaced, kept)


def _by_shares(finished: FinishedShares, parts: Sequence[Part], loaded: Sequence[Sequence[Exchange]], targets: Targets) -> list[Output]:
    """The output of each of ``parts``; ``loaded`` has an exchange for each part and share of the keys."""
    names = [
        f"{part.name} {number} of {len(shares)}" for part, shares in zip(parts, loaded, strict=True) for number in range(1, len(shares) + 1)
    ]
    computed = dict(zip(names, (partial(share.compute, targets) for shares in loaded for share in shares), strict=True))
    done = iter(finished.outputs(computed, {role: target.table for role, target in targets.of.items()}))
    return [sum((next(done) for _ in shares), Output()) for shares in loaded]


def _targets(job: Job, parts: Sequence[Part]) -> Targets:
    """Where the rows that ``parts`` compute are written."""
    runnable, pipeline = job.runnable, job.runnable.pipeline
    state = joint_schema(pipeline, [part.schema for part in parts])
    expressions = job.input.expressions
    results = expressions.schema
    if job.input.rule.revises or not _lacks_retracted(job):
        results = results.append(pa.field(RETRACTED, pa.bool_()))
    quarantine, sink = runnable.places.quarantine, Target(runnable.sink_path, results)
    of: dict[Role, Target] = {
        "sink": sink,
        "retracted": sink,
        "state": Target(runnable.places.state, state, order_of(state.names, of_batch=True), keys_of(state)),
        "quarantine": Target(quarantine, quarantine_schema(pipeline)),
        "refused": Target(quarantine, REFUSED_SCHEMA),
    }
    if pipeline.dedup is not None:
        of["seen"] = Target(runnable.places.seen, _seen().ENTRIES, _seen().ORDER, packing=_seen().PACKING)
    return Targets(
        job.plan.batch,
        job.plan.attempt,
        of,
        job.options,
        Published(job.plan.fills, AXIS_END if job.plan.history is None else job.plan.history) if job.plan.changes_spec else None,
        expressions if expressions.texts else None,
    )


def _with_quarantined(
    job: Job,
    spark: SparkSession,
    targets: Targets,
    parts: Sequence[Part],
    done: Sequence[Output],
    new: FileRows | NumberedRows | None,
    rows_kept: int,
) -> Output:
    """The output of all ``parts`` and of the quarantine; rows are read again for the quarantine if any was not applied."""
    refusing = [each for part, each in zip(parts, done, strict=True) if not part.grids]
    refuses = all(each.refused for each in refusing)
    every = combine_counts(parts, done, 0)
    if new is None or (every.counts.rows_applied == rows_kept and not (refusing and refuses)):
        return every
    batch, grids = job.input, [grid for part in parts for grid in part.grids]
    numbers = [each.files["refused"] for each in refusing] if refuses else None
    own = Quarantining(job.quarantine, targets, batch.rule, numbers, grids)
    found = own.write_of_files(spark, new) if isinstance(new, FileRows) else None
    if found is None:
        rows = (
            new if isinstance(new, NumberedRows) else replace(NumberedRows.surveyed(tasks.read(batch, spark), batch), left_out=new.left_out)
        )
        found = own.write_of_frame(rows.doubtful, batch.columns.struct.names)
    return combine_counts(parts, done, found.counts.quarantined.get(TOO_LATE, 0) if refusing else 0) + found


def _replaced_ends(job: Job, emission: Emission) -> tuple[int, int] | None:
    """The range (after, through] of window ends whose published rows the batch replaces; null if it replaces none."""
    return job.plan.replaced if job.plan.builds_state else (emission.after, emission.through)


def _replaced(job: Job, emission: Emission) -> ReplacedRange | None:
    """The published rows that the batch replaces; null if there are none, or if Spark must write the sink."""
    sink, ends = job.runnable.sink_path, _replaced_ends(job, emission)
    if ends is None or not delta_rs_can_write(sink):
        return None
    return ReplacedRange.of(sink, newest(sink), ends, job.replaced_windows)


def _keep(job: Job, replaced: ReplacedRange, paths: Sequence[str]) -> tuple[DataFile, ...]:
    return replaced.keep(paths, batch=job.plan.batch, attempt=job.plan.attempt, task=running_task()[0]) if paths else ()


def _keep_in_task(job: Job, replaced: ReplacedRange, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    use_options(job.options)
    numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
    yield from encode_result(_keep(job, replaced, [replaced.partly[number] for number in numbers]))


def _remove(
    targets: Targets, done: Sequence[Output], roles: Sequence[str] = ("sink", "retracted", "state", "seen", "quarantine", "refused")
) -> None:
    """Remove files that no record will name, as far as possible; ``windowmill maintain`` removes the others."""
    for role, target in targets.of.items():
        files = {file for each in done for file in each.files.get(role, ())} if role in roles else set()
        with suppress(OSError):
            remove(target.table, files)


def _lacks_retracted(job: Job) -> bool:
    """Whether an earlier version of windowmill made the sink without the column ``retracted``, which revised results add."""
    sink = job.runnable.sink_path
    return is_table(sink) and RETRACTED not in (field.name for field in newest(sink).schema().fields)


def _remembered(job: Job, emission: Emission, adds: Sequence[DataFile]) -> Changes | None:
    """What the batch changes in the table of remembered rows, to which it has written the files ``adds``; null for nothing."""
    plan, place = job.plan, job.runnable.places.seen
    if job.input.pipeline.dedup is None:  # the spec leaves no rows out any more
        return _seen().SeenTable(place).replaced_by(()) if is_table(place) else None
    if not plan.remembers or plan.restates:
        return None
    table, since = _seen().SeenTable(place), _remembered_since(job, emission)
    found: Changes | None = table.changes(adds, since, batch=plan.batch, attempt=plan.attempt, rebuilt=plan.replaces_state)
    return found


def _computed(
    job: Job,
    targets: Targets,
    surveyed: BatchSurvey[Any],
    output: Output,
    replaced: ReplacedRange | None,
    kept: Sequence[DataFile] | None = None,
) -> ComputedBatch:
    """The computed batch; ``kept`` are the rows that tasks kept of partly replaced files, null if this process keeps them."""
    in_one_process = kept is None
    if kept is None:
        kept = () if replaced is None else _keep(job, replaced, replaced.partly)
    emission, plan = surveyed.emission, job.plan
    applies, ends = plan.changes_spec, _replaced_ends(job, emission)
    # The state gets the columns of a changed spec even if no rows are added: readers require all of them.
    widens_state = applies and is_table(job.runnable.places.state)
    changes = {
        role: Changes.of(targets.of[role].schema, output.files.get(role, ()))
        for role in ("state", "quarantine")
        if output.files.get(role) or (role == "state" and widens_state)
    }
    if job.runnable.pipeline.dedup is not None or applies:
        remembered = _remembered(job, emission, output.files.get("seen", ()))
        changes |= {} if remembered is None else {"seen": remembered}
    results, schema = output.files.get("sink", ()), targets.of["sink"].schema
    kept = (*kept, *output.files.get("retracted", ()))
    widens = applies or (job.input.rule.revises and _lacks_retracted(job))
    if ends is not None or applies:
        removes = () if replaced is None else replaced.files
        windows = job.replaced_windows
        changes["sink"] = Changes.of(schema, results, kept=kept, removes=removes, replaces=ends, windows=windows, widens=widens)
    elif not is_table(job.runnable.sink_path) or results or kept:
        changes["sink"] = Changes.of(schema, results, kept=kept, widens=widens)
    counts = output.counts + Counts(rows_ignored=job.reading.rows_ignored)
    return ComputedBatch(emission, counts, changes, output.executors, in_one_process, surveyed.seen)
