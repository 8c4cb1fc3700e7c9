"""The output of a pass over a batch's keys on Spark, which its tasks write to files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from windowmill.jobs.layouts.base import written
from windowmill.jobs.layouts.output import Output
from windowmill.jobs.layouts.restored import restored_kinds
from windowmill.jobs.layouts.returning import RETURNED, returned
from windowmill.jobs.schedulers.spark.task_output import OutputWriter, Targets, output_of
from windowmill.jobs.spark.access import mapped
from windowmill.windowing.columnar.advanced import Advanced
from windowmill.windowing.counts import Counts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


#: Makes groups of what a worker receives: new and stored rows, each group with all rows of its keys.
GroupsOf = Callable[[Iterator[pa.RecordBatch]], Iterator[tuple[pa.Table, pa.Table]]]
#: Advances the keys of what a worker receives; gives what it makes of some keys, and the rows that it has restored for them.
AdvancedOf = Callable[[Iterator[pa.RecordBatch]], Iterator[tuple[pa.Table | None, Advanced]]]


def written_by_tasks(gathered: DataFrame, advanced_of: AdvancedOf, targets: Targets) -> Output:
    """Have the tasks of ``gathered``, whose partitions each have all rows of their keys, advance the keys and write the files."""
    return output_of(mapped(gathered, partial(_write, targets, advanced_of), RETURNED))


def _write(targets: Targets, advanced_of: AdvancedOf, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor: writes files, and returns one :class:`.Output`."""
    counts = Output()
    with OutputWriter(targets) as writer:
        for stored, done in advanced_of(batches):
            counts += written(writer, done) + Output(counts=Counts(state_restored=restored_kinds(stored)))
            writer.refused(done.refused)
        counts += writer.output()
    yield from returned(counts)
