"""Widens the columns of sink and state before a batch whose source has wider ones than the batches before it.

What has been stored is rewritten in the wider types, once. So whatever reads a table finds one type in it, whoever computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError

from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.committer import beyond_delta_rs, error_of
from windowmill.checkpoints.data_files import rows_of
from windowmill.checkpoints.delta_tables import newest
from windowmill.checkpoints.quoting import backquoted
from windowmill.checkpoints.state.compaction import joint_schema, keys_of
from windowmill.checkpoints.state.memory import MemoryState
from windowmill.checkpoints.state.reading import read_file, reporting_damage
from windowmill.checkpoints.stores import is_table
from windowmill.checkpoints.widening import retyped, rewrite, wider_fields
from windowmill.jobs.layouts.choose import parts_of
from windowmill.jobs.layouts.input import Input
from windowmill.jobs.sources.columns import Columns, in_sql
from windowmill.windowing.columnar.added_columns import BUCKET, SUM
from windowmill.windowing.columnar.buckets import with_buckets
from windowmill.windowing.columnar.checksums import with_checksums
from windowmill.windowing.columnar.results import result_schema
from windowmill.windowing.columnar.widening import WiderPartials
from windowmill.windowing.errors import SinkRefusedError, first_line
from windowmill.windowing.layouts import divide

if TYPE_CHECKING:
    from windowmill.checkpoints.ledger import Ledger
    from windowmill.jobs.batch.job import Job
    from windowmill.jobs.batch.progress import Progress
    from windowmill.windowing.spec import Pipeline


def widen_tables(job: Job, ledger: Ledger, progress: Progress) -> None:
    """Give sink and state the types that the batch ``job`` needs, where they have narrower ones.

    Raises
    ------
    SinkRefusedError
        If the sink's columns must be widened, and only Spark can write it.
    SinkError, StateError
        If others write to a table meanwhile.
    StateCorruptError
        If the stored state is damaged.
    """
    last = ledger.newest_kept
    if last is None:
        return
    pipeline, types = job.runnable.pipeline, job.input.types
    kinds = {field.name: field.type for field in result_schema(pipeline, types)}
    if is_table(job.runnable.sink_path) and (wider := wider_fields(newest(job.runnable.sink_path), kinds)):
        with progress.step("widen", f"{', '.join(wider)} of the sink"):
            _widen_sink(job, {name: kinds[name] for name in wider})
    if last.plan.source_schema != job.plan.source_schema and is_table(job.runnable.places.state):
        before = pipeline if pipeline.means(last.plan.definition, last.plan.meaning) else pipeline.meaning_as(last.plan.definition)
        state = _StateWidening.of(job, before, Columns.of(last.plan.source_schema).arrow)
        if state.kinds:
            with progress.step("widen", "columns of the state"):
                state.write()


def _widen_sink(job: Job, kinds: Mapping[str, pa.DataType]) -> None:
    place = job.runnable.sink_path
    table = newest(place)
    there = pa.schema(table.schema().to_arrow())
    reason = beyond_delta_rs("sink", table, Changes(removes=(place,)))
    if reason is not None:
        name, kind = next(iter(kinds.items()))
        was, sql = in_sql(there.field(name).type), in_sql(kind)
        raise SinkRefusedError(
            f"sink {place}: its column {name} is {was} and has to be {sql} now; it {reason}, so widen it by Spark (ALTER TABLE … SET "
            f"TBLPROPERTIES ('delta.enableTypeWidening' = 'true'), ALTER COLUMN {backquoted(name)} TYPE {sql}), and run again"
        )
    schema = retyped(table, kinds)
    columns = pa.schema(schema.to_arrow())

    _rewrite("sink", job, table, schema, lambda file: rows_of(place, [file["path"]], columns))


@dataclass(frozen=True)
class _StateWidening:
    """What the state of ``job`` becomes.

    Attributes
    ----------
    stored
        The columns that it has.
    kinds
        Types of columns that become wider, or take the place of others.
    partials
        How partials are converted.
    """

    job: Job
    table: DeltaTable
    stored: pa.Schema
    kinds: Mapping[str, pa.DataType]
    partials: WiderPartials

    @classmethod
    def of(cls, job: Job, pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> Self:
        """As batches of ``pipeline`` over columns of ``types`` have made it."""
        table = newest(job.runnable.places.state)
        stored = pa.schema(table.schema().to_arrow())
        wide = {name: job.input.types.get(name, kind) for name, kind in types.items()}
        partials = WiderPartials.between(*(divide(pipeline, each).layout for each in (types, wide)))
        assert partials is not None  # the plan has been checked
        parts = parts_of(Input(pipeline=pipeline, types=wide, builds_state=True), MemoryState())
        wanted = joint_schema(pipeline, [part.schema for part in parts])
        converted = partials.replacing(stored.names)
        kinds = {
            field.name: field.type
            for field in wanted
            if field.name in converted or (field.name in stored.names and field.type != stored.field(field.name).type)
        }
        return cls(job, table, stored, kinds, partials)

    def write(self) -> None:
        """Rewrite the state."""
        schema = retyped(self.table, self.kinds, self.partials.replaced)
        columns = pa.schema(schema.to_arrow())
        _rewrite("state", self.job, self.table, schema, lambda file: self._rows(file, columns))

    def _rows(self, file: Mapping[str, Any], columns: pa.Schema) -> Iterator[pa.Table]:
        with reporting_damage(self.job.runnable.places.state):
            rows = read_file(self.table.table_uri, file, self.stored, self.stored.names)
            if SUM in rows.column_names:
                self.job.check.verify(rows)
        found = {name: rows.column(name) for name in rows.column_names} | self.partials.columns(rows)
        n = rows.num_rows
        wider = pa.table([found[each.name].cast(each.type) if each.name in found else pa.nulls(n, each.type) for each in columns], columns)
        wider = with_buckets(wider, keys_of(columns)) if BUCKET in columns.names else wider
        yield with_checksums(wider) if SUM in columns.names else wider


def _rewrite(role: str, job: Job, table: DeltaTable, schema: DeltaSchema, rows: Callable[[Mapping[str, Any]], Iterator[pa.Table]]) -> None:
    place = job.runnable.sink_path if role == "sink" else job.runnable.places.state
    try:
        rewrite(place, table, schema, rows, batch=job.plan.batch, attempt=job.plan.attempt, is_followed=role == "sink")
    except CommitFailedError as err:
        raise error_of(role)(f"{role} {place}: others wrote to it while its columns were widened ({first_line(err)}); run again") from err
