"""Computes a batch by sessions on Spark: one shuffle brings the new rows and open sessions of a key together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from windowmill.jobs.spark.access import map_in_arrow
from windowmill.jobs.ways import keyed_pass
from windowmill.jobs.ways.base import Computed
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.jobs.ways.partitioning import partitions_for
from windowmill.jobs.ways.pass_output import computed, output, output_schema
from windowmill.windowing.columnar.added_columns import SUM
from windowmill.windowing.columnar.joined_sessions import advance
from windowmill.windowing.columnar.session_partials import SessionStage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class LoadedOnSpark:
    """New rows and restored fragments in Spark; either may be null."""

    new: NumberedRows | None
    stored: DataFrame | None
    stage: SessionStage
    partitions: int

    def compute(self) -> Computed:
        stage = self.stage
        new = None if self.new is None else self.new.read_by(stage)
        if new is None and self.stored is None:
            return Computed()
        n_rows = 0 if self.new is None else self.new.survey.rows
        schema = output_schema(stage.results, stage.schema.append(pa.field(SUM, pa.int64())))
        both = keyed_pass.by_key(new, self.stored, stage.keys, partitions_for(n_rows, self.partitions))
        worked = map_in_arrow(both, partial(_work, stage, schema), schema)
        return computed(worked, keeps=stage.keep)


def _work(stage: SessionStage, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor over the rows and fragments of one Spark partition, in any order."""
    both = keyed_pass.split(batches, stage.rows, stage.schema.append(pa.field(SUM, pa.int64())))
    if both is None:
        return
    done = advance(stage, *both)
    yield from output(schema, done.results, done.state, done.refused, applied=done.applied, late=done.late)
