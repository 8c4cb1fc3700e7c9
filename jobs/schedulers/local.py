"""Computes small batches in this process: surveys the new rows, loads each part, and finds the rows that all parts refuse.

A row is too late if some window refuses it and no window counts it. A part whose windows are all on grids neither counts nor refuses a row
that lies between its windows, so for such parts the grids decide. Every other part refuses the rows that it does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs import json_lines
from windowmill.jobs.layouts import lateness, limits
from windowmill.jobs.layouts.base import BatchSurvey, Loaded, Part, columns_read, conditions_read, emits_within_range_only, written
from windowmill.jobs.layouts.lateness import JUDGED_BY, numbers_of, revised_after, seen_after, too_late_among
from windowmill.jobs.layouts.output import Output, RowWriter, chosen_rows, combine_counts, restored_kinds
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.plain_files import NotPlainError
from windowmill.jobs.sources.plain_rows import NOT_HERE, local_conditions
from windowmill.jobs.sources.unusable_rows import with_too_late
from windowmill.windowing.columnar.added_columns import FILE, REASON, ROW, TIME, UNTIL_OF, VERSION, WATERMARK_OF
from windowmill.windowing.counts import Counts
from windowmill.windowing.kernels.lift import condition_column

if TYPE_CHECKING:
    from windowmill.checkpoints.state.readers import State
    from windowmill.jobs.layouts.input import Emission, Input, TableInput
    from windowmill.windowing.columnar.slices import RowColumns
    from windowmill.windowing.kernels.combine import Ints
    from windowmill.windowing.slicing.edges import WindowGrid


@dataclass(frozen=True)
class NewRows:
    """New rows in this process."""

    table: pa.Table  #: The columns that lifting reads, in order of arrival; includes unusable rows.
    #: Reads them with all columns; null if only Spark can read them, or write them as JSON.
    whole: Callable[[], pa.Table | None] = lambda: None

    @classmethod
    def of_files(cls, batch: TableInput, stages: Sequence[RowColumns]) -> tuple[Self, int]:
        """The new rows with the columns that ``stages`` read, from plain files, and the number of all rows of the files.

        Raises ``OnlySparkError`` if only Spark reads them.
        """
        plain, latest = batch.plain, batch.latest
        if plain is None:
            raise limits.OnlySparkError(f"the source's rows need Spark: {_why(batch)}")
        try:
            read, stored = plain.read_here(columns_read(*stages), conditions_read(*stages), latest=latest)
        except NOT_HERE as err:
            raise limits.OnlySparkError(f"the source's rows need Spark: {_why(batch)}") from err

        def whole() -> pa.Table | None:
            return plain.read(list(plain.types), [], latest=latest) if json_lines.has_spark_json(plain.types.values()) else None

        return cls(read.drop_columns([VERSION]), whole), stored

    @classmethod
    def of_spark(cls, batch: TableInput, stages: Sequence[RowColumns], rows: pa.Table) -> Self:
        """The new rows of ``batch`` that Spark has read by :func:`.read_by_spark`, in any order."""
        rows = batch.times.of(rows.sort_by([(FILE, "ascending"), (ROW, "ascending")]))
        own = [name for name in (FILE, ROW, REASON, TIME, UNTIL_OF) if name in rows.column_names]
        whole = rows if json_lines.has_spark_json(batch.types.values()) else None
        return cls(rows.select([*own, *input_names(*stages)]), lambda: whole)

    def usable(self, batch: Input, schema: pa.Schema) -> pa.Table:
        """The rows without a quarantine reason, numbered by arrival over all batches, in ``schema``; a point ends at its time."""
        marked = lateness.marked(lateness.arrived(self.table, batch), batch.rule)
        return lateness.usable(marked).select(schema.names).cast(schema)

    def without(self, too_late: Ints, batch: Input) -> Self:
        """These rows, with the reason ``too_late`` for those of these numbers, and the watermark that they found."""
        late = np.isin(numbers_of(self.table, batch), too_late)
        table = with_too_late(self.table, pa.array(late))
        if late.any() and WATERMARK_OF not in table.column_names:
            table = table.append_column(WATERMARK_OF, lateness.arrived(self.table, batch).column(WATERMARK_OF))
        return replace(self, table=table)

    def refused(self) -> pa.Table | None:
        """All columns of the rows with a quarantine reason, null for none; raises ``TooLargeError`` if they are many or not JSON here."""
        names = [name for name in (FILE, ROW, REASON, WATERMARK_OF) if name in self.table.column_names]
        refused = self.table.filter(pc.is_valid(self.table.column(REASON))).select(names)
        if not refused.num_rows:
            return None
        if refused.num_rows > limits.MAX_REFUSED:
            raise limits.too_many(refused.num_rows, "rows to quarantine", limits.MAX_REFUSED)
        here = self.whole()
        if here is None:
            raise limits.OnlySparkError("only Spark can write the rows to quarantine as JSON")
        return chosen_rows(here, refused, [FILE, ROW])


def input_names(*stages: RowColumns) -> list[str]:
    """Names of the columns that ``stages`` read: columns of the source, and of the truth of conditions."""
    return list(dict.fromkeys([*columns_read(*stages), *map(condition_column, conditions_read(*stages))]))


def _why(batch: TableInput) -> str:
    """Why the rows of ``batch`` need Spark."""
    try:
        steps = Columns.of(batch.plan.source_schema).steps(batch.pipeline)
        for step, why in ({} if steps is None else steps.outside).items():
            return f"{step}: {why}"
        for condition, why in local_conditions(batch.pipeline, batch.columns).outside.items():
            return f"condition {condition!r}: {why}"
    except NotPlainError as err:
        return str(err)
    return "its files have deletion vectors, or values that Arrow reads otherwise than Spark does"


def survey(batch: TableInput, parts: Sequence[Part], given: tuple[pa.Table, int] | None) -> BatchSurvey[NewRows]:
    """Survey new rows, ``given`` by Spark with the number before filters, or read here.

    Raises ``TooLargeError`` if they are many, or only Spark reads them.
    """
    stages, within_range = [*(part.reading for part in parts), *batch.finds_duplicates_by], emits_within_range_only(batch, parts)
    if not batch.reading.files:
        return BatchSurvey(None, Counts(), batch.emission(batch.seen, emits_within_range_only=within_range))
    # Plain files cost little to read, so each part checks the number of their rows after they are read.
    limits.check_files(batch.reading.files, None)
    new, stored = NewRows.of_files(batch, stages) if given is None else (NewRows.of_spark(batch, stages, given[0]), given[1])
    seen = seen_after(new.table, batch.seen)
    counts = Counts(rows_read=stored, filtered=stored - len(new.table))
    return BatchSurvey(new, counts, batch.emission(seen, emits_within_range_only=within_range), seen)


def load(part: Part, new: NewRows | None, emission: Emission, state: State) -> Loaded:
    """Load a small batch of a part in this process; raises ``TooLargeError`` if its state or windows turn out to be too large."""
    rows, batch = part.judged(new), part.batch
    wanted = part.wanted(emission, has_rows=bool(rows), revised_after=revised_after(rows, batch.rule.lateness))
    stored = None
    if wanted is not None:
        stored = wanted.read(state, rows, limits.state_read(part.reading.layout, limited=batch.is_limited))
        if stored is None:
            raise limits.state_beyond(state.name)
    return part.load(rows, stored, emission)


def compute_parts(
    new: NewRows | None, parts: Sequence[Part], loaded: Sequence[Loaded], batch: Input, writer: RowWriter
) -> tuple[Output, NewRows | None]:
    """Compute the ``loaded`` batch of each part in this process, and write it; returns the counts, and the new rows, judged."""
    done: list[Output] = []
    refusing: list[Ints] = []
    for part, each in zip(parts, loaded, strict=True):
        output, numbers = Output(), [np.empty(0, np.int64)]
        for some in each.advanced():
            output += written(writer, some)
            numbers.append(some.refused)
        done.append(output)
        refusing += [] if part.grids else [np.concatenate(numbers)]
    refused, judged = 0, None
    if new is not None:
        too_late = refused_by_all(new, refusing, [grid for part in parts for grid in part.grids], batch)
        refused, judged = len(too_late), new.without(too_late, batch)
    restored = (Output(counts=Counts(state_restored=restored_kinds(each.stored))) for each in loaded)
    return sum(restored, combine_counts(parts, done, refused)), judged


def refused_by_all(new: NewRows, refusing: Sequence[Ints], grids: Sequence[WindowGrid], batch: Input) -> Ints:
    """Numbers of the new rows that came too late for all: each ``refusing`` part refuses them, and no window on ``grids`` counts them."""
    numbers: Ints | None = None
    for each in refusing:
        numbers = each if numbers is None else np.intersect1d(numbers, each)
    if numbers is not None and (not grids or not len(numbers)):
        return numbers
    return too_late_among(new.usable(batch, JUDGED_BY), numbers, grids)
