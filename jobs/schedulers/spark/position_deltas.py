"""Which nodes Spark reads for a batch of windows over positions that evict by a delta.

As :mod:`windowmill.windowing.columnar.position_delta_nodes`, but of rounded differences: a batch may read some nodes more than it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted
from windowmill.windowing.columnar.added_columns import BATCH, KIND, LEVEL
from windowmill.windowing.columnar.position_delta_nodes import STRIDE
from windowmill.windowing.columnar.position_nodes import POSITION
from windowmill.windowing.columnar.positions import FLOAT_LEAST, LEAST, LIVE, NODE, SEQUENCE, PositionStage
from windowmill.windowing.slicing.policy_settings import compares_as_float, delta_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Column of a node that a batch splits, beside the names of its place.
SPLIT = "_ split"
_LATEST, _GREATEST, _PLACE = "_ latest node", "_ greatest", ("_ node level", "_ node position")


def values(stage: PositionStage, *, stored: bool) -> dict[str, Column]:
    """For each sequence that evicts by a delta, the value of a row in the delta's column; null where it is null or NaN.

    ``stored`` is whether the row is a tuple that waits, and no new one.
    """
    found = {}
    for name in sorted(stage.state.deltas):
        column = delta_of(stage.settings_of(name)).column
        value, kind = F.col(backquoted(stage.state.live[column] if stored else column)), _type_of(stage, name)
        if compares_as_float(kind):
            value = value.cast("double")
            found[name] = F.when(~F.isnan(value), value)
        elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            found[name] = F.unix_micros(value.cast("timestamp"))
        else:
            found[name] = value.cast("long")
    return found


def _type_of(stage: PositionStage, name: str) -> pa.DataType:
    """The type of the column of the delta of the sequence ``name``."""
    return stage.state.schema.field(stage.state.live[delta_of(stage.settings_of(name)).column]).type


def greatest_column(name: str) -> str:
    """The column of the greatest value that the sequence ``name`` may apply in the batch."""
    return f"{_GREATEST} {name}"


def _may_leave(stage: PositionStage, least: Mapping[str, Column]) -> Column:
    """Whether something below a node may leave; ``least`` are its columns by name."""
    found = []
    for name in sorted(stage.state.deltas):
        settings, greatest = stage.settings_of(name), F.col(backquoted(greatest_column(name)))
        if compares_as_float(_type_of(stage, name)):
            exceeds = greatest - least[FLOAT_LEAST] > settings.difference
        else:
            whole = "decimal(20,0)"
            by = Decimal(min(int(settings.difference), 10**20 - 1))
            exceeds = greatest.cast(whole) - least[LEAST].cast(whole) > F.lit(by)
        found.append((F.col(SEQUENCE) == name) & exceeds)
    return F.coalesce(reduce(or_, found), F.lit(False))


def with_splits(stage: PositionStage, bounded: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Stored rows with the bounds of their keys, the parts of a node that the batch splits with a value in ``SPLIT``.

    Parameters
    ----------
    bounded
        Stored rows, with :func:`greatest_column` of each sequence.
    keys
        The key columns and the sequence, quoted.
    """
    inner = bounded.where((F.col(KIND) == NODE) & (F.col(LEVEL) > 0) & F.col(SEQUENCE).isin(*stage.state.deltas))
    names = [greatest_column(name) for name in sorted(stage.state.deltas)]
    latest = inner.groupBy(*keys, LEVEL, POSITION).agg(
        F.max_by(F.struct(LIVE, LEAST, FLOAT_LEAST), F.col(BATCH)).alias(_LATEST), *(F.max(backquoted(name)).alias(name) for name in names)
    )
    least = {name: F.col(f"`{_LATEST}`.{name}") for name in (LEAST, FLOAT_LEAST)}
    split = latest.where((F.col(f"`{_LATEST}`.{LIVE}") > 0) & _may_leave(stage, least))
    renamed = [f"_ split {number}" for number in range(len(keys))]
    split = split.select(
        *(F.col(key).alias(name) for key, name in zip(keys, renamed, strict=True)),
        F.col(LEVEL).alias(_PLACE[0]),
        F.col(POSITION).alias(_PLACE[1]),
        F.lit(True).alias(SPLIT),
    )
    of_key = [F.col(key).eqNullSafe(F.col(f"`{name}`")) for key, name in zip(keys, renamed, strict=True)]
    below = reduce(and_, of_key) & (F.col(LEVEL) + STRIDE == F.col(f"`{_PLACE[0]}`")) & (_parent() == F.col(f"`{_PLACE[1]}`"))
    return bounded.join(F.broadcast(split), below, "left")


def _parent() -> Column:
    """First position of the stored node that a node is a part of."""
    return F.expr(f"shiftleft(shiftright({POSITION}, int({LEVEL} + {STRIDE})), int({LEVEL} + {STRIDE}))")


def is_needed(stage: PositionStage, head: Column, following: Column) -> Column:
    """Whether a node of a sequence that evicts by a delta is part of a node that is split, or below no stored node.

    Parameters
    ----------
    head, following
        First position that the windows of the key hold, and the one after the last.
    """
    on_top = _parent() + F.expr(f"shiftleft(1L, int({LEVEL} + {STRIDE}))") > following
    ends = F.col(POSITION) + F.expr(f"shiftleft(1L, int({LEVEL}))")
    return F.col(SEQUENCE).isin(*stage.state.deltas) & (ends > head) & (on_top | F.col(f"`{SPLIT}`").isNotNull())
