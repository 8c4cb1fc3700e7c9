"""Windows with policies, over the positions of a key's tuples: applies new tuples to restored nodes of a FlatFAT.

The state of a key holds, in rows of three kinds:

``key``
    The scalars of each window's policies, its first position, and the last applied tuple; the latest row counts.
``row``
    A tuple that waits for the watermark.
``node``
    A leaf, which is the partial of one applied tuple, or an inner node. A batch appends the leaves of its tuples and the nodes that they
    complete. Of windows that evict by a delta, a node that loses tuples gets a new row: see :mod:`.position_delta_nodes`.

Windows that apply the same tuples in the same order form a *sequence* and share its positions, nodes and waiting tuples. Windows that
evict by a delta do so only if it is the same delta.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from windowmill.windowing.columnar.added_columns import BATCH, CLOSED, DUE, KIND, LATE, LEVEL, NUMBER_OF, TIME
from windowmill.windowing.columnar.checksums import RowCheck, with_checksum_column
from windowmill.windowing.columnar.keyed import live_columns
from windowmill.windowing.columnar.position_nodes import ABOVE, FIRST, POSITION
from windowmill.windowing.columnar.state_log import LIVE_PREFIX, label_of
from windowmill.windowing.columnar.stored_objects import StoredObjects
from windowmill.windowing.errors import SpecError
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.slicing.policy_settings import STATE, PolicySettings
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import Clock

#: Kinds of rows of the state.
KEY_ROW, WAITING, NODE = "key", "row", "node"
#: Columns of rows of every kind: the sequence.
SEQUENCE = "_sequence"
#: Columns of a ``key`` row: the watermark through which its tuples were applied, the position of the next tuple, and the first position
#: that a window holds, and how many tuples wait. It also has ``DUE``, and ``NUMBER_OF`` and ``TIME`` of the last applied tuple.
THROUGH, NEXT, HEAD, QUEUED = "_through", "_next", "_head", "_queued"
#: Scalars of a key in a window, in addition to ``STATE``: the base of its delta if it is no integer, and its first position.
BASE, FRONT = "float_base", "front"
#: Columns that only pipelines with windows that evict by a delta have: the number of live tuples of a key, or below a node; and for a node
#: the least value of these in the delta's column, as an integer or as a float; null if none has one.
LIVE, LEAST, FLOAT_LEAST = "_live", "_least", "_float_least"
_SCALARS = {**dict.fromkeys(STATE, pa.int64()), BASE: pa.float64(), FRONT: pa.int64()}


class PositionState:
    """The columns of the state of one pipeline; a function of the spec and the source's column types.

    Parameters
    ----------
    types
        Arrow type of each of the source's columns.

    Attributes
    ----------
    live, conditions
        The state's column for each column of the source, and for each condition column, that waiting tuples keep.
    sequences
        Indexes of the windows of each sequence, by the sequence's name.
    deltas
        Names of the sequences whose windows evict by a delta, so that tuples leave from anywhere.
    schema
        Schema of the state, without checksums.
    rows
        Schema of new rows: keys, the columns and conditions that windows and aggregates read, event time, number in order of arrival,
        ``CLOSED`` and ``LATE``. ``CLOSED`` is the instant through which windows were closed when the row arrived; null means the same as
        for the row before. ``LATE`` is whether the row arrived behind the watermark; null means no.

    Raises
    ------
    SpecError
        If two columns of the state would have the same name.
    """

    def __init__(self, pipeline: Pipeline, types: Mapping[str, pa.DataType], layout: Layout) -> None:
        self.live = {name: f"{LIVE_PREFIX}{label_of(name)}" for name in live_columns(pipeline, types)}
        texts = dict.fromkeys([*layout.conditions, *(text for window in pipeline.windows for text in window.conditions().values())])
        self.conditions = {condition_column(text): f"_where__{_digest(text)}" for text in texts}
        self._texts = tuple(texts)
        self.sequences = _sequences(pipeline)
        self.deltas = frozenset(name for name, held in self.sequences.items() if settings_of(pipeline, held[0]).from_anywhere)
        fields = [*((key, types[key]) for key in pipeline.keys), (KIND, pa.string()), (SEQUENCE, pa.string()), (BATCH, pa.int64())]
        fields += [(name, pa.int64()) for name in (DUE, THROUGH, NEXT, HEAD, QUEUED, NUMBER_OF, TIME)]
        fields += [(label, types[name]) for name, label in self.live.items()]
        fields += [(label, pa.bool_()) for label in self.conditions.values()]
        scalars = [(scalar_of(window.name, name), kind) for window in pipeline.windows for name, kind in _SCALARS.items()]
        self._scalars, self._partials = [name for name, _ in scalars], [name for name, _ in layout.stored_columns]
        fields += scalars
        fields += [(name, pa.int64()) for name in (LEVEL, POSITION, FIRST, ABOVE)]
        if self.deltas:
            fields += [(LIVE, pa.int64()), (LEAST, pa.int64()), (FLOAT_LEAST, pa.float64())]
        self.schema = pa.schema([*fields, *layout.stored_columns])
        twice = next((name for name, n in Counter(name.lower() for name in self.stored_schema.names).items() if n > 1), None)
        if twice is not None:
            raise SpecError(
                f"pipeline {pipeline.pipeline}: two columns of the state would be named {twice!r}; rename a window, or a "
                "column in the source"
            )
        read = dict.fromkeys([*pipeline.keys, *self.live])
        own = [(TIME, pa.int64()), (NUMBER_OF, pa.int64()), (CLOSED, pa.int64()), (LATE, pa.bool_())]
        self.rows = pa.schema([*((name, types[name]) for name in read), *((name, pa.bool_()) for name in self.conditions), *own])

    @property
    def stored_schema(self) -> pa.Schema:
        """Schema of the state table: ``schema`` and checksums."""
        return with_checksum_column(self.schema)

    @property
    def entry_columns(self) -> list[str]:
        """Columns of the state table that may have values in ``key`` rows and in waiting tuples."""
        own = {LEVEL, POSITION, FIRST, ABOVE, LEAST, FLOAT_LEAST, *self._partials}
        return [name for name in self.stored_schema.names if name not in own]

    @property
    def node_columns(self) -> list[str]:
        """Columns of the state table that may have values in nodes."""
        own = {DUE, THROUGH, NEXT, HEAD, QUEUED, NUMBER_OF, TIME, *self.live.values(), *self.conditions.values(), *self._scalars}
        return [name for name in self.stored_schema.names if name not in own]

    @property
    def texts(self) -> tuple[str, ...]:
        """The conditions of the spec."""
        return self._texts


def scalar_of(window: str, name: str) -> str:
    """The state's column for the scalar ``name`` of ``window``."""
    return f"_{window}__{name}"


def _sequences(pipeline: Pipeline) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for index in range(len(pipeline.windows)):
        settings = settings_of(pipeline, index)
        # Windows that evict by a delta have nodes of their own, unless they hold the same tuples.
        held = (settings.acceptance, settings.evict.describe()) if settings.from_anywhere else settings.acceptance
        name = _digest(repr(held))
        found[name] = (*found.get(name, ()), index)
    return found


def settings_of(pipeline: Pipeline, index: int) -> PolicySettings:
    """The policies of the window at ``index``."""
    window = pipeline.windows[index]
    return PolicySettings(window, window.policies(), pipeline)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class PositionStage:
    """Settings for a batch of windows over positions; picklable.

    Attributes
    ----------
    state
        Columns of the state, and the sequences.
    clock
        The clock after the batch; ``since`` is the watermark before it.
    ends
        Restricts the results to windows that end in this range (begin, end]; null for all.
    keep
        Whether later batches continue from this one's state.
    results
        Columns of a result row.
    check
        Verifies rows read from the state; null if there is no state.
    bounded
        Whether the batch has all rows of a bounded input: it continues from no state, and nothing continues from it.
    """

    pipeline: Pipeline
    layout: Layout
    state: PositionState
    batch: int
    clock: Clock
    ends: tuple[int, int] | None
    keep: bool
    results: pa.Schema
    check: RowCheck | None = None
    bounded: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns."""
        return self.pipeline.keys

    @property
    def ties(self) -> tuple[str, ...]:
        """The columns that order rows of one time."""
        return self.pipeline.time.tie_break

    @property
    def source_columns(self) -> Sequence[str]:
        """Columns that windows and aggregates read."""
        return list(self.state.live)

    @property
    def conditions(self) -> Sequence[str]:
        """Conditions on rows, of aggregates and of windows."""
        return self.state.texts

    @cached_property
    def objects(self) -> StoredObjects:
        """The partials that are Python objects."""
        return StoredObjects(self.layout.objects)

    @cached_property
    def settings(self) -> Sequence[PolicySettings]:
        """The policies of each window."""
        return [settings_of(self.pipeline, index) for index in range(len(self.pipeline.windows))]

    def settings_of(self, sequence: str) -> PolicySettings:
        """The policies of the first window of a ``sequence``."""
        return self.settings[self.state.sequences[sequence][0]]
