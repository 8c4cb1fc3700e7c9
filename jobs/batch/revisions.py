"""Has the revisions of a run's result rows go on from those of windows that a restatement has shown anew, or retracted."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.data_files import DataFile, FileWriter, remove
from windowmill.checkpoints.delta_tables import newest
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.plans import Plan
from windowmill.checkpoints.state.base import files_of
from windowmill.checkpoints.stores import is_table
from windowmill.jobs.batch.corrections import continued
from windowmill.jobs.schedulers.spark.task_output import read_files
from windowmill.jobs.sources.changed_rows import ends_in_sql, queried
from windowmill.windowing.columnar.added_columns import RETRACTED
from windowmill.windowing.kernels.columns import int64_of


def going_on(runnable: Runnable, plan: Plan, schema: pa.Schema, changes: Changes) -> Changes:
    """``changes`` of the sink by the run of ``plan``, whose rows have the columns of ``schema``; reads nothing if nothing was restated."""
    if not changes.files or not is_table(runnable.sink_path):
        return changes
    table, pipeline = newest(runnable.sink_path), runnable.pipeline
    if all(file.get("max.revision") == 0 for file in files_of(table)):
        return changes
    own = [*pipeline.keys, "window", "window_start", "window_end", "trigger", "revision"]
    types = {name: schema.field(name).type for name in own}
    wanted = []
    if RETRACTED in (field.name for field in table.schema().fields):
        # Triggers that were retracted may come again, and so may empty windows between the first and the last event of a key.
        wanted.append(f"(revision > 0 AND {RETRACTED})")
    if pipeline.emit == "revise":
        # Other windows that are closed never come back.
        wanted.append("true" if plan.emitted is None else f"{ends_in_sql(timed=not pipeline.time.integer_axis)} >= {plan.emitted}")
    if not wanted:
        return changes
    shown = pa.concat_tables([_empty(types), *queried(table, types, " OR ".join(wanted), {name: name for name in types})])
    new = pa.concat_tables([_empty(types), *(pa.Table.from_batches([rows]) for rows in _rows(runnable, changes.files, own))])
    revisions = int64_of(continued(pipeline, new, shown).column("revision").combine_chunks())
    shifted = revisions != int64_of(new.column("revision").combine_chunks())
    going = {"adds": list[DataFile](), "kept": list[DataFile]()}
    first = 0
    for role, files in (("adds", changes.adds), ("kept", changes.kept)):
        for file in files:
            part = slice(first, first := first + file.rows)
            going[role] += _rewritten(runnable, plan, file, pa.array(revisions[part])) if shifted[part].any() else [file]
    return replace(changes, adds=tuple(going["adds"]), kept=tuple(going["kept"]))


def _rows(runnable: Runnable, files: tuple[DataFile, ...], columns: list[str]) -> list[pa.RecordBatch]:
    return list(read_files(runnable.sink_path, files, columns))


def _empty(types: dict[str, pa.DataType]) -> pa.Table:
    return pa.schema(list(types.items())).empty_table()


def _rewritten(runnable: Runnable, plan: Plan, file: DataFile, revisions: pa.Array) -> tuple[DataFile, ...]:
    """The rows of ``file`` with these ``revisions``, in a file of their own; removes the old one."""
    rows = pa.Table.from_batches(list(read_files(runnable.sink_path, (file,))))
    place = rows.schema.get_field_index("revision")
    rows = rows.set_column(place, rows.schema.field(place), revisions)
    with FileWriter(runnable.sink_path, rows.schema, batch=plan.batch, attempt=plan.attempt, task=0) as writer:
        writer.write(rows)
    remove(runnable.sink_path, [file])
    return writer.close()
