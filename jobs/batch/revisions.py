"""Has the revisions of a run's result rows go on from those of windows that a restatement or a backfill has published."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.data_files import DataFile, FileWriter, remove
from windowmill.checkpoints.delta_tables import newest
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.plans import Plan
from windowmill.checkpoints.quoting import sql_text
from windowmill.checkpoints.state.base import files_of
from windowmill.checkpoints.stores import is_table
from windowmill.jobs.batch.corrections import continued
from windowmill.jobs.schedulers.spark.task_output import read_files
from windowmill.jobs.sources.changed_rows import ends_in_sql, queried
from windowmill.windowing.columnar.added_columns import RETRACTED
from windowmill.windowing.kernels.columns import int64_of


def going_on(runnable: Runnable, ledger: Ledger, plan: Plan, schema: pa.Schema, changes: Changes) -> Changes:
    """``changes`` of the sink by the run of ``plan``, whose rows have the columns of ``schema``; reads nothing where none comes again."""
    if not changes.files or not is_table(runnable.sink_path):
        return changes
    table, pipeline = newest(runnable.sink_path), runnable.pipeline
    restated = any(file.get("max.revision") != 0 for file in files_of(table))
    filling = [window.name for window in pipeline.windows if window.fills_gaps] if ledger.totals.backfills else []
    if not restated and not filling:
        return changes
    own = [*pipeline.keys, "window", "window_start", "window_end", "trigger", "revision"]
    types = {name: schema.field(name).type for name in own}
    new = pa.concat_tables([_empty(types), *(pa.Table.from_batches([rows]) for rows in _rows(runnable, changes.files, own))])
    ends = ends_in_sql(timed=not pipeline.time.integer_axis)
    wanted = []
    if restated and RETRACTED in (field.name for field in table.schema().fields):
        # Triggers that were retracted may come again, and so may empty windows between the first and the last event of a key.
        wanted.append(f"(revision > 0 AND {RETRACTED})")
    if restated and pipeline.emit == "revise":
        # Other windows that are closed never come back.
        wanted.append("true" if plan.emitted is None else f"{ends} >= {plan.emitted}")
    gaps = new.filter(pc.is_in(new.column("window"), pa.array(filling, pa.string())))
    if len(gaps):
        # Of a key that comes again, a run gives the empty windows since its last event; a backfill may have counted quarantined rows there.
        span = pc.min_max(int64_of(gaps.column("window_end").combine_chunks())).as_py()
        wanted.append(f"(window IN ({', '.join(map(sql_text, filling))}) AND {ends} BETWEEN {span['min']} AND {span['max']})")
    if not wanted:
        return changes
    shown = pa.concat_tables([_empty(types), *queried(table, types, " OR ".join(wanted), {name: name for name in types})])
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
