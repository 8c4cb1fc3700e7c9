"""Computes a batch over positions on Spark: one shuffle brings the new rows and the restored state of a key together."""

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
from windowmill.windowing.columnar.position_batch import advance
from windowmill.windowing.columnar.positions import PositionStage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class LoadedOnSpark:
    """New rows and the restored state in Spark; either may be null."""

    new: NumberedRows | None
    stored: DataFrame | None
    stage: PositionStage
    partitions: int

    def compute(self) -> Computed:
        stage, new = self.stage, self.new
        rows = None if new is None else new.read_by(stage)
        if rows is None and self.stored is None:
            return Computed()
        schema = output_schema(stage.results, stage.state.stored_schema)
        both = keyed_pass.by_key(rows, self.stored, stage.keys, partitions_for(0 if new is None else new.survey.rows, self.partitions))
        worked = map_in_arrow(both, partial(_work, stage, schema), schema)
        return computed(worked, keeps=stage.keep)


def _work(stage: PositionStage, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor over the rows and the state of one Spark partition, in any order."""
    both = keyed_pass.split(batches, stage.state.rows, stage.state.stored_schema)
    if both is None:
        return
    done = advance(stage, *both)
    yield from output(schema, done.results, done.state, done.refused, applied=done.applied, late=done.late)
