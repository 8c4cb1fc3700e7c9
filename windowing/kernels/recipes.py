"""The recipes of aggregates with numeric partials: atoms, type of the result, and the function that computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from windowmill.windowing.catalogue import AggregateSpec
from windowmill.windowing.kernels import combine as op
from windowmill.windowing.kernels import lower as to
from windowmill.windowing.kernels.lower import MEAN_DIGITS, Lower

AtomKind = Literal[
    "rows",
    "count",
    "sum_int",
    "sum_float",
    "sum_decimal",
    "sum_product",
    "sum_weight",
    "area",
    "lasting",
    "moments",
    "moments4",
    "comoments",
    "product",
    "magnitude",
    "histogram",
    "least",
    "greatest",
    "count_least",
    "count_greatest",
]

#: Kernel operation, number of int columns and number of float columns, by atom kind. A histogram has one int column per bin.
OPERATIONS: Mapping[str, tuple[int, int, int]] = {
    **dict.fromkeys(("rows", "count"), (op.ADD, 1, 0)),
    "histogram": (op.ADD, 0, 0),
    "sum_int": (op.WIDE, 2, 0),
    "sum_decimal": (op.WIDER, 3, 0),
    **dict.fromkeys(("sum_float", "sum_product", "sum_weight", "area", "lasting"), (op.SUM, 1, 2)),
    "moments": (op.MOMENTS, 1, 3),
    "moments4": (op.MOMENTS4, 1, 5),
    "comoments": (op.COMOMENTS, 1, 7),
    **dict.fromkeys(("product", "magnitude"), (op.PRODUCT, 3, 2)),
    "greatest": (op.GREATEST, 4, 0),
    "least": (op.LEAST, 4, 0),
    "count_greatest": (op.COUNT_GREATEST, 2, 0),
    "count_least": (op.COUNT_LEAST, 2, 0),
}
#: Operations if leaves are rows of one sorted table: a row's number gives its position, so two columns suffice for an extreme.
ROW_OPERATIONS: Mapping[str, tuple[int, int, int]] = {
    **OPERATIONS,
    "greatest": (op.PICK_GREATEST, 2, 0),
    "least": (op.PICK_LEAST, 2, 0),
}


@dataclass(frozen=True, slots=True)
class Atom:
    """A part of a partial with one combine operation.

    ``least`` and ``greatest`` keep the extreme value. If they are ``ordered`` they keep a row: ``columns`` are (by, value) for the row with
    the extreme ``by``, where the earlier row in (time, tie_break) order wins a tie, or (value,) for the first or last row in that order.
    ``sum_product`` sums the product of two columns, ``sum_weight`` the second column, over rows where neither is null. ``area`` and
    ``lasting`` do so of a column and of how long each event lasts in a slice, ``clipped`` to it.
    """

    kind: AtomKind
    columns: tuple[str, ...] = ()
    where: str | None = None
    ordered: bool = False
    edges: tuple[float, ...] = ()

    @property
    def clipped(self) -> bool:
        """Whether it counts an event in each slice that it overlaps, as long as it lasts there."""
        return self.kind in ("area", "lasting")

    @property
    def place_decides(self) -> bool:
        """Whether the row's position in time decides rather than a value: first and last."""
        return self.ordered and len(self.columns) == 1


#: Function that returns the atoms of an aggregate over columns of given types, which hold what its declaration says that it takes, and the
#: type of its result.
Atoms = Callable[[AggregateSpec, list[pa.DataType]], tuple[list[Atom], pa.DataType]]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The atoms of an aggregate, and the function that computes its result from them."""

    atoms: Atoms
    lower: Lower


def _count(spec: AggregateSpec, _types: list[pa.DataType]) -> tuple[list[Atom], pa.DataType]:
    if not spec.columns and not spec.where:
        return [Atom("rows")], pa.int64()
    return [Atom("count", spec.columns, spec.where)], pa.int64()


def _sum(spec: AggregateSpec, types: list[pa.DataType]) -> tuple[list[Atom], pa.DataType]:
    count = Atom("count", spec.columns, spec.where)
    if pa.types.is_integer(types[0]):
        return [count, Atom("sum_int", spec.columns, spec.where)], pa.int64()
    if pa.types.is_decimal(types[0]):
        return [count, Atom("sum_decimal", spec.columns, spec.where)], pa.decimal128(38, types[0].scale)
    return [count, Atom("sum_float", spec.columns, spec.where)], pa.float64()


def _mean(spec: AggregateSpec, types: list[pa.DataType]) -> tuple[list[Atom], pa.DataType]:
    atoms, _ = _sum(spec, types)
    [kind] = types
    if not pa.types.is_decimal(kind):
        return atoms, pa.float64()
    # As of Spark's avg; of a column with more fractional digits than that leaves room for, as many as every mean has room for.
    return atoms, pa.decimal128(38, kind.scale + MEAN_DIGITS if kind.scale <= 38 - MEAN_DIGITS else 38 - kind.precision + kind.scale)


def numeric(*kinds: AtomKind) -> Atoms:
    """One atom of each of ``kinds`` over columns of numbers, which count as float64, as the result is."""
    return lambda spec, _types: ([Atom(kind, spec.columns, spec.where) for kind in kinds], pa.float64())


def _over_time(spec: AggregateSpec, _types: list[pa.DataType]) -> tuple[list[Atom], pa.DataType]:
    return [Atom("area", spec.columns, spec.where), Atom("lasting", spec.columns, spec.where)], pa.float64()


def _trend(spec: AggregateSpec, _types: list[pa.DataType]) -> tuple[list[Atom], pa.DataType]:
    return [Atom("comoments", spec.columns, spec.where)], pa.struct([("slope", pa.float64()), ("intercept", pa.float64())])


def _histogram(spec: AggregateSpec, _types: list[pa.DataType]) -> tuple[list[Atom], pa.DataType]:
    bins = Atom("histogram", spec.columns, spec.where, edges=tuple(spec.options["edges"]))
    return [Atom("count", spec.columns, spec.where), bins], pa.list_(pa.int64())


def _extreme(kind: AtomKind) -> Atoms:
    return lambda spec, types: ([Atom(kind, spec.columns, spec.where)], types[0])


def _how_often(kind: AtomKind) -> Atoms:
    return lambda spec, _types: ([Atom(kind, spec.columns, spec.where)], pa.int64())


def _arg(kind: AtomKind) -> Atoms:
    return lambda spec, types: ([Atom(kind, spec.columns, spec.where, ordered=True)], types[1])


def _end(kind: AtomKind) -> Atoms:
    return lambda spec, types: ([Atom(kind, spec.columns, spec.where, ordered=True)], types[0])


def _bool(kind: AtomKind) -> Atoms:
    return lambda spec, _types: ([Atom(kind, spec.columns, spec.where)], pa.bool_())


def _range(spec: AggregateSpec, types: list[pa.DataType]) -> tuple[list[Atom], pa.DataType]:
    [kind] = types
    if pa.types.is_integer(kind):
        result = pa.int64()
    else:
        result = pa.decimal128(min(kind.precision + 1, 38), kind.scale) if pa.types.is_decimal(kind) else kind
    return [Atom("least", spec.columns, spec.where), Atom("greatest", spec.columns, spec.where)], result


# The declarations of the catalogue name these recipes.
COUNT = Recipe(_count, to.count)
SUM = Recipe(_sum, to.total)
MEAN = Recipe(_mean, to.mean)
WEIGHTED_MEAN = Recipe(numeric("sum_product", "sum_weight"), to.weighted_mean)
TIME_WEIGHTED_MEAN = Recipe(_over_time, to.weighted_mean)
PRODUCT = Recipe(numeric("product"), to.product)
GEOMETRIC_MEAN = Recipe(numeric("magnitude"), to.geometric_mean)
MIN = Recipe(_extreme("least"), to.picked)
MAX = Recipe(_extreme("greatest"), to.picked)
MIN_COUNT = Recipe(_how_often("count_least"), to.times)
MAX_COUNT = Recipe(_how_often("count_greatest"), to.times)
RANGE = Recipe(_range, to.span)
ARG_MIN = Recipe(_arg("least"), to.picked)
ARG_MAX = Recipe(_arg("greatest"), to.picked)
FIRST = Recipe(_end("least"), to.picked)
LAST = Recipe(_end("greatest"), to.picked)
BOOL_AND = Recipe(_bool("least"), to.picked)
BOOL_OR = Recipe(_bool("greatest"), to.picked)
VAR_SAMP = Recipe(numeric("moments"), to.var_samp)
VAR_POP = Recipe(numeric("moments"), to.var_pop)
STDDEV_SAMP = Recipe(numeric("moments"), to.stddev_samp)
STDDEV_POP = Recipe(numeric("moments"), to.stddev_pop)
SKEWNESS = Recipe(numeric("moments4"), to.skewness)
KURTOSIS = Recipe(numeric("moments4"), to.kurtosis)
COVAR_SAMP = Recipe(numeric("comoments"), to.covar_samp)
CORR = Recipe(numeric("comoments"), to.corr)
LINEAR_TREND = Recipe(_trend, to.linear_trend)
HISTOGRAM = Recipe(_histogram, to.histogram)
