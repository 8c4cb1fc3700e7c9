"""What the state holds of sessions, and settings for a batch of them.

The state holds *fragments*: the first and last event time of some rows of one session, and their partial. Of each open session with new
rows a batch stores one fragment, which holds the whole session. It supersedes the fragments of earlier batches within its bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from windowmill.windowing.columnar.added_columns import BATCH, CLOSED, LATE, NUMBER_OF, TIME
from windowmill.windowing.columnar.checksums import RowCheck
from windowmill.windowing.columnar.stored_objects import StoredObjects
from windowmill.windowing.kernels.columns import int64_of
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.kernels.fragments import uncovered
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.kernels.sessions import SessionLimits
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import AFTER

#: Columns of a fragment beside the keys, ``BATCH`` and the partials: the gap of its session, and its first and last event time.
GAP, FIRST, LAST = "_gap", "_first", "_last"
#: Column of a fragment where sessions are revised: the number of the version that the session is, or will be when it is shown.
REVISION = "_revision"
#: Columns of a fragment where sessions have a greatest size: this size, null for those that have none; and whether the fragment is closed,
#: and is there to supersede others.
LONGEST, GONE = "_longest", "_gone"


def row_schema(pipeline: Pipeline, types: Mapping[str, pa.DataType], layout: Layout) -> pa.Schema:
    """Schema of new rows: keys, the columns that partials read, event time, number in order of arrival, ``CLOSED`` and ``LATE``.

    ``CLOSED`` is the instant through which windows were closed when the row arrived; null if it makes no difference. ``LATE`` is whether
    the row arrived behind the watermark; null means no.
    """
    columns = dict.fromkeys([*pipeline.keys, *pipeline.time.tie_break, *layout.source_columns])
    own = [(TIME, pa.int64()), (NUMBER_OF, pa.int64()), (CLOSED, pa.int64()), (LATE, pa.bool_())]
    conditions = [(condition_column(text), pa.bool_()) for text in layout.conditions]
    return pa.schema([*((name, types[name]) for name in columns), *conditions, *own])


def own_columns(*, revises: bool, cuts: bool) -> tuple[str, ...]:
    """Columns of a fragment beside keys, batch and partials; of sessions that are revised, or that a greatest size cuts."""
    return (GAP, FIRST, LAST, *([REVISION] if revises else []), *([LONGEST, GONE] if cuts else []))


def fragment_schema(keys: dict[str, pa.DataType], layout: Layout, *, revises: bool = False, cuts: bool = False) -> pa.Schema:
    """Schema of a table of fragments: keys, their own columns, batch, partials; parameters as of :func:`own_columns`."""
    own = [(name, pa.bool_() if name == GONE else pa.int64()) for name in (*own_columns(revises=revises, cuts=cuts), BATCH)]
    return pa.schema([*keys.items(), *own, *layout.stored_columns])


@dataclass(frozen=True)
class SessionStage:
    """Settings for a batch of sessions; small and picklable.

    Attributes
    ----------
    limits
        Name, and gap and greatest size of each session window of the spec.
    closed_before, closed
        Instants through which windows are closed before and after the batch: no later row joins a session that ends before.
    ahead
        How far the instants through which windows are shown are ahead of these: the lateness if late rows bring revisions, else 0.
    ends
        Restricts the results to windows that end in this range (begin, end]; null for all.
    keep
        Whether later batches continue from this one's state.
    rows
        Columns of a new row.
    schema
        Columns of a fragment.
    results
        Columns of a result row.
    by_row
        Whether each row arrives by itself; otherwise the rows of a commit arrive together.
    check
        Verifies fragments read from the state; null if there is no state.
    """

    keys: tuple[str, ...]
    ties: tuple[str, ...]
    layout: Layout
    limits: tuple[tuple[str, SessionLimits], ...]
    batch: int
    closed_before: int
    closed: int
    ahead: int
    ends: tuple[int, int] | None
    keep: bool
    rows: pa.Schema
    schema: pa.Schema
    results: pa.Schema
    by_row: bool
    check: RowCheck | None = None

    @property
    def source_columns(self) -> Sequence[str]:
        """Columns that the partials read."""
        return self.layout.source_columns

    @property
    def conditions(self) -> Sequence[str]:
        """Conditions under which rows count."""
        return self.layout.conditions

    def own_columns(self, limits: SessionLimits, n: int) -> dict[str, pa.Array]:
        """The columns that ``n`` fragments of the batch have in common, of sessions with these ``limits``."""
        longest = None if limits.longest == AFTER else limits.longest
        own = {GAP: pa.repeat(limits.gap, n), BATCH: pa.repeat(self.batch, n)}
        return own | {LONGEST: pa.repeat(pa.scalar(longest, pa.int64()), n), GONE: pa.repeat(False, n)}

    @cached_property
    def objects(self) -> StoredObjects:
        """The partials that are Python objects."""
        return StoredObjects(self.layout.objects)


def latest_fragments(fragments: pa.Table, codes: Ints, *, cut: bool = False) -> Ints:
    """Indices of the fragments that no later batch has superseded; fragments of one key and window share one of the ``codes``.

    If one fragment lies within another, the outer one is the later. Not so where a greatest size cuts sessions, if one of them is ``GONE``:
    there a fragment of a later batch supersedes those within it.
    """
    first, last, batch = (int64_of(fragments.column(name).combine_chunks()) for name in (FIRST, LAST, BATCH))
    if cut:
        gone = fragments.column(GONE).combine_chunks().to_numpy(zero_copy_only=False).astype(np.bool_)
        order = np.lexsort((-batch, first, codes))
        return np.sort(order[uncovered(codes[order], first[order], last[order], batch[order], gone[order])])
    order = np.lexsort((-batch, -last, first, codes))
    _, rank = np.unique(last, return_inverse=True)
    # Greatest last event time of each code so far: a fragment that is not within an outer one ends after all that began before it.
    reach = codes[order] * (len(codes) + 1) + rank[order] + 1
    before = np.maximum.accumulate(np.append(0, reach))[:-1]
    return np.sort(order[reach > before])
