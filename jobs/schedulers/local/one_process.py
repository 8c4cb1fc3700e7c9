"""Computes small batches in this process: surveys the new rows, loads each part, and finds the rows that all parts refuse as too late.

A row is too late if some window refuses it and no window counts it. A part whose windows are all on grids neither counts nor refuses a row
that lies between its windows, so for such parts the grids decide. Every other part refuses the rows that it does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from windowmill.jobs.layouts import limits
from windowmill.jobs.layouts.base import BatchSurvey, emits_within_range_only
from windowmill.jobs.layouts.lateness import JUDGED_BY, revised_after, seen_after, too_late_among
from windowmill.jobs.layouts.output import Output, RowWriter, combine_counts
from windowmill.jobs.layouts.restored import restored_kinds
from windowmill.jobs.schedulers.local.new_rows import NewRows, SourceRows
from windowmill.windowing.counts import Counts

if TYPE_CHECKING:
    from windowmill.checkpoints.state.readers import State
    from windowmill.jobs.layouts.base import Loaded, Part
    from windowmill.jobs.layouts.emission import Emission
    from windowmill.jobs.layouts.input import Input, TableInput
    from windowmill.windowing.kernels.combine import Ints
    from windowmill.windowing.slicing.edges import WindowGrid

Rows = TypeVar("Rows", bound=NewRows)


def survey(batch: TableInput, parts: Sequence[Part], given: pa.Table | None) -> BatchSurvey[SourceRows]:
    """Survey the new rows of a small ``batch``: those ``given`` by Spark, null to read them.

    Raises
    ------
    TooLargeError
        If the rows are too many for this process, or only Spark can read them.
    """
    stages = [part.reading for part in parts]
    if not batch.files:
        return BatchSurvey(None, 0, batch.emission(batch.seen, emits_within_range_only=emits_within_range_only(batch, parts)))
    # Plain files cost little to read, so each part checks the number of their rows after they are read.
    limits.check_files(batch.files, None)
    new = SourceRows.of_files(batch, stages) if given is None else SourceRows.of_spark(batch, stages, given)
    seen = seen_after(new.table, batch.seen)
    return BatchSurvey(new, len(new.table), batch.emission(seen, emits_within_range_only=emits_within_range_only(batch, parts)), seen)


def load(part: Part, new: NewRows | None, emission: Emission, state: State) -> Loaded:
    """Load a small batch of a part in this process; raises ``TooLargeError`` if its state or windows turn out to be too large."""
    rows, batch = part.judged(new), part.batch
    wanted = part.wanted(emission, has_rows=bool(rows), revised_after=revised_after(rows, batch.lateness))
    stored = None
    if wanted is not None:
        stored = wanted.read(state, rows, limits.state_read(part.reading.layout, limited=batch.is_limited))
        if stored is None:
            raise limits.state_beyond(state.name)
    return part.load(rows, stored, emission)


def compute_parts(
    new: Rows | None, parts: Sequence[Part], loaded: Sequence[Loaded], batch: Input, writer: RowWriter
) -> tuple[Output, Rows | None]:
    """Compute the ``loaded`` batch of each part in this process, and write it; returns the counts, and the new rows, judged."""
    done = [each.compute(writer) for each in loaded]
    refused, judged = 0, None
    if new is not None:
        refusing = [each.refused for part, each in zip(parts, done, strict=True) if not part.grids]
        too_late = refused_by_all(new, refusing, [grid for part in parts for grid in part.grids], batch)
        refused, judged = len(too_late), new.without(too_late, batch)
    restored = (Output(counts=Counts(state_restored=restored_kinds(each.stored))) for each in loaded)
    return sum(restored, combine_counts(parts, [each.output for each in done], refused)), judged


def refused_by_all(new: NewRows, refusing: Sequence[Ints], grids: Sequence[WindowGrid], batch: Input) -> Ints:
    """Numbers of the new rows that came too late for all: each ``refusing`` part refuses them, and no window on ``grids`` counts them."""
    numbers: Ints | None = None
    for each in refusing:
        numbers = each if numbers is None else np.intersect1d(numbers, each)
    if numbers is not None and (not grids or not len(numbers)):
        return numbers
    return too_late_among(new.usable(batch, JUDGED_BY), numbers, grids)
