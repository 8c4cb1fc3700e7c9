"""Aggregates whose partials are numbers: their atoms, and how their results are computed from these.

An aggregate's :class:`Recipe` has two functions: one gives its atoms and the type of its result, the other its result column from partials
in the arenas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.algebra import WIDE
from windowmill.windowing.catalogue import AggregateSpec
from windowmill.windowing.errors import AggregateOverflowError
from windowmill.windowing.kernels import combine as op
from windowmill.windowing.kernels.combine import CARRY_UNIT, PICKED, ROW, TIMES, Floats, Ints

if TYPE_CHECKING:
    from windowmill.windowing.kernels.layout import Layout, Result

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

#: Kinds of atoms that count an event in each slice that it overlaps, as long as it lasts there.
CLIPPED = ("area", "lasting")
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
ROW_OPERATIONS: Mapping[str, tuple[int, int, int]] = {**OPERATIONS, "greatest": (op.PICK_GREATEST, 2, 0), "least": (op.PICK_LEAST, 2, 0)}


@dataclass(frozen=True, slots=True)
class Atom:
    """A part of a partial with one combine operation.

    ``least`` and ``greatest`` keep the extreme value. If they are ``ordered`` they keep a row: ``columns`` are (by, value) for the row with
    the extreme ``by``, where the earlier row in (time, tie_break) order wins a tie, or (value,) for the first or last row in that order.
    ``sum_product`` sums the product of two columns, ``sum_weight`` the second column, over rows where neither is null. ``area`` and
    ``lasting`` are the same for a column and the time that each event lasts in a slice, ``clipped`` to it. One column may be given twice:
    ``sum_product`` of (x, x) sums squares.
    """

    kind: AtomKind
    columns: tuple[str, ...] = ()
    where: str | None = None
    ordered: bool = False
    edges: tuple[float, ...] = ()

    @property
    def place_decides(self) -> bool:
        """Whether the row's position in time decides rather than a value: first and last."""
        return self.ordered and len(self.columns) == 1


#: Fractional digits of a mean of decimals, more than its column has: as of Spark's avg.
MEAN_DIGITS = 4

_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Partials:
    """Partials in the arenas, a row each."""

    layout: Layout
    program: Ints  #: As of :meth:`.Layout.program`.
    ints: Ints
    floats: Floats
    table: pa.Table  #: The rows that partials point into.

    def ints_of(self, atom: int) -> Ints:
        _, first, _, number, _ = self.program[atom]
        return self.ints[:, first : first + number]

    def floats_of(self, atom: int) -> Floats:
        _, _, first, _, number = self.program[atom]
        return self.floats[:, first : first + number]


#: Computes a result column from partials; raises ``AggregateOverflowError`` if an exact result left its type.
Lower = Callable[["Result", Partials], pa.Array]
#: Function that returns the atoms of an aggregate over columns of given types, which hold what its declaration says that it takes, and the
#: type of its result.
Atoms = Callable[[AggregateSpec, list[pa.DataType]], tuple[list[Atom], pa.DataType]]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The atoms of an aggregate, and the function that lowers them to its result; built-in ones are below, recipes at the end."""

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


def _histogram(spec: AggregateSpec, _types: list[pa.DataType]) -> tuple[list[Atom], pa.DataType]:
    bins = Atom("histogram", spec.columns, spec.where, edges=tuple(spec.options["edges"]))
    return [Atom("count", spec.columns, spec.where), bins], pa.list_(pa.int64())


def _one(kind: AtomKind, result: pa.DataType | int, *, ordered: bool = False) -> Atoms:
    """One atom, and a result of this type, or of that of the column at this place."""
    return lambda spec, types: ([Atom(kind, spec.columns, spec.where, ordered)], types[result] if isinstance(result, int) else result)


def _range(spec: AggregateSpec, types: list[pa.DataType]) -> tuple[list[Atom], pa.DataType]:
    [kind] = types
    if pa.types.is_integer(kind):
        result = pa.int64()
    else:
        result = pa.decimal128(min(kind.precision + 1, 38), kind.scale) if pa.types.is_decimal(kind) else kind
    return [Atom("least", spec.columns, spec.where), Atom("greatest", spec.columns, spec.where)], result


def lower(layout: Layout, ints: Ints, floats: Floats, table: pa.Table) -> dict[str, pa.Array]:
    """Result columns of the partials (``ints``, ``floats``), by name, in the spec's order, each by the ``lower`` of its aggregate's recipe.

    ``table``: the rows that the partials' rows point into. Raises ``AggregateOverflowError`` if an exact result left its type.
    """
    partials = Partials(layout, layout.program(), ints, floats, table)
    with np.errstate(all="ignore"):
        return {result.name: result.lower(result, partials) for result in layout.results}


def count(result: Result, partials: Partials) -> pa.Array:
    return pa.array(np.ascontiguousarray(partials.ints_of(result.atoms[0])[:, 0]))


def total(result: Result, partials: Partials) -> pa.Array:
    """Sum, of atoms (count, sum)."""
    n, kind = _number(result, partials), partials.layout.atoms[result.atoms[1]].kind
    if kind == "sum_float":
        return pa.array(sum_value(*_sum_parts(result.atoms[1], partials)), mask=n == 0)
    if kind == "sum_decimal":
        return _decimals(result, [sums if count else None for sums, count in zip(_integers(result, partials), n, strict=True)])
    low, high = partials.ints_of(result.atoms[1]).T
    wrong = np.flatnonzero(high != low >> 63)
    if len(wrong):
        raise _too_great(result, (int(high[wrong[0]]) << 64) + (int(low[wrong[0]]) & _MASK))
    return pa.array(np.ascontiguousarray(low), mask=n == 0)


def mean(result: Result, partials: Partials) -> pa.Array:
    """Mean, of atoms (count, sum)."""
    n, kind = _number(result, partials), partials.layout.atoms[result.atoms[1]].kind
    if kind == "sum_float":
        return pa.array(sum_over(*_sum_parts(result.atoms[1], partials), np.maximum(n, 1)), mask=n == 0)
    if kind == "sum_decimal":
        finer = 10 ** (result.type.scale - _scale(result.atoms[1], partials))
        totals = zip(_integers(result, partials), n.tolist(), strict=True)
        return _decimals(result, [_rounded(total * finer, count) if count else None for total, count in totals])
    low, high = partials.ints_of(result.atoms[1]).T
    means = low / np.maximum(n, 1)
    great = np.flatnonzero((high != low >> 63) | (low > 2**53) | (low < -(2**53)))
    if len(great):
        # Python rounds the quotient of two whole numbers once.
        sums = _integers(result, partials)
        means[great] = [sums[row] / max(int(n[row]), 1) for row in great]
    return pa.array(means, mask=n == 0)


def weighted_mean(result: Result, partials: Partials) -> pa.Array:
    """Sum of products over the sum of weights; null where that is zero."""
    products, weights = result.atoms
    weight = sum_value(*_sum_parts(weights, partials))
    return pa.array(sum_over(*_sum_parts(products, partials), weight), mask=weight == 0.0)


def product(result: Result, partials: Partials) -> pa.Array:
    _, _, exponent = partials.ints_of(result.atoms[0]).T
    high, low = partials.floats_of(result.atoms[0]).T
    return _with_zeros(result, partials, np.ldexp(high + low, np.clip(exponent, -5_000, 5_000).astype(np.int32)))


def geometric_mean(result: Result, partials: Partials) -> pa.Array:
    """Geometric mean; NaN for a negative product."""
    n, _, exponent = partials.ints_of(result.atoms[0]).T
    high, low = partials.floats_of(result.atoms[0]).T
    # The exponent's whole share goes through ldexp: a sum of logarithms would lose log2(exponent) bits to it.
    whole, rest = np.divmod(exponent, np.maximum(n, 1))
    root = 2.0 ** ((np.log2(high + low) + rest) / np.maximum(n, 1))
    value = np.where(high - high == 0.0, np.ldexp(root, np.clip(whole, -5_000, 5_000).astype(np.int32)), high)
    return _with_zeros(result, partials, np.where(high > 0.0, value, np.nan))


def _with_zeros(result: Result, partials: Partials, value: Floats) -> pa.Array:
    """``value`` of the factors that are not zero, with those that are."""
    n, zeros, _ = partials.ints_of(result.atoms[0]).T
    high = partials.floats_of(result.atoms[0])[:, 0]
    return pa.array(np.where(zeros > 0, np.where(high - high == 0.0, 0.0, np.nan), value), mask=n == 0)


@dataclass(frozen=True, slots=True)
class Spread:
    """Variance, or with ``root`` standard deviation; null of ``freedom`` values or fewer, which is 1 for a sample, 0 for a population."""

    freedom: int
    root: bool = False

    def __call__(self, result: Result, partials: Partials) -> pa.Array:
        n, m2 = _number(result, partials), partials.floats_of(result.atoms[0])[:, 2]
        variance = pa.array(m2 / np.maximum(n - self.freedom, 1), mask=n <= self.freedom)
        return pc.sqrt(variance) if self.root else variance


def skewness(result: Result, partials: Partials) -> pa.Array:
    """Skewness of a population; null where all values are equal."""
    n, (_, _, m2, m3, _) = _number(result, partials), partials.floats_of(result.atoms[0]).T
    return pa.array(np.sqrt(n) * (m3 / m2) / np.sqrt(m2), mask=(n == 0) | (m2 == 0.0))


def kurtosis(result: Result, partials: Partials) -> pa.Array:
    """Kurtosis of a population in excess of the normal distribution's; null where all values are equal."""
    n, (_, _, m2, _, m4) = _number(result, partials), partials.floats_of(result.atoms[0]).T
    return pa.array(n * (m4 / m2) / m2 - 3.0, mask=(n == 0) | (m2 == 0.0))


def covar_samp(result: Result, partials: Partials) -> pa.Array:
    """Covariance of a sample; null of fewer than two pairs."""
    n, xy = _number(result, partials), partials.floats_of(result.atoms[0])[:, 5]
    return pa.array(xy / np.maximum(n - 1, 1), mask=n < 2)


def corr(result: Result, partials: Partials) -> pa.Array:
    """Pearson's correlation; null where a column is constant."""
    n, (_, _, _, _, xx, xy, yy) = _number(result, partials), partials.floats_of(result.atoms[0]).T
    nan = np.isnan(xy)
    r = np.clip(xy / np.sqrt(xx) / np.sqrt(yy), -1.0, 1.0)
    return pa.array(np.where(nan, np.nan, r), mask=(n < 2) | (((xx == 0.0) | (yy == 0.0)) & ~nan))


def linear_trend(result: Result, partials: Partials) -> pa.Array:
    """Slope and intercept of the least squares line; null where x is constant."""
    n, (anchor_x, delta_x, anchor_y, delta_y, xx, xy, _) = _number(result, partials), partials.floats_of(result.atoms[0]).T
    nan = np.isnan(xy)
    slope = np.where(nan, np.nan, xy / xx)
    intercept = (anchor_y - slope * anchor_x) + (delta_y - slope * delta_x)
    missing = (n < 2) | ((xx == 0.0) & ~nan)
    return pa.StructArray.from_arrays([pa.array(slope), pa.array(intercept)], ["slope", "intercept"], mask=pa.array(missing))


def histogram(result: Result, partials: Partials) -> pa.Array:
    """Counts of the bins, of atoms (count, histogram)."""
    n, bins = _number(result, partials), partials.ints_of(result.atoms[1])
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(bins).reshape(-1)), bins.shape[1])
    return pc.if_else(pa.array(n > 0), lists.cast(pa.list_(pa.int64())), pa.scalar(None, pa.list_(pa.int64())))


def times(result: Result, partials: Partials) -> pa.Array:
    found = partials.ints_of(result.atoms[0])[:, TIMES]
    return pa.array(np.ascontiguousarray(found), mask=found == 0)


def span(result: Result, partials: Partials) -> pa.Array:
    """Greatest less least, of atoms (least, greatest)."""
    least, greatest = (picked(result, partials, place) for place in range(2))
    # Wide enough for the difference of any two values of the column.
    wide = pa.decimal256(39, result.type.scale) if pa.types.is_decimal(result.type) else result.type
    try:
        return pc.subtract_checked(greatest.cast(wide), least.cast(wide)).cast(result.type)
    except pa.ArrowInvalid as err:
        raise _too_great(result, "the difference of two values") from err


def picked(result: Result, partials: Partials, place: int = 0) -> pa.Array:
    """The value of the row that the extreme at this ``place`` among the atoms has kept."""
    layout, atom = partials.layout, result.atoms[place]
    kept = layout.atoms[atom]
    if layout.of_rows:
        rows, name = partials.ints_of(atom)[:, PICKED], kept.columns[-1]
    else:
        rows, name = partials.ints_of(atom)[:, ROW], layout.fields_of[atom]["value"].name
    column, none = partials.table.column(name).combine_chunks(), np.asarray(rows < 0)
    taken = column.take(pa.array(np.where(none, 0, rows), mask=none)) if len(column) else pa.nulls(len(rows), column.type)
    # Either of 0.0 and −0.0 may have been kept: give 0.0. The value of an arg_min or arg_max stays as it is.
    return pc.add(taken, 0.0) if pa.types.is_floating(taken.type) and not kept.ordered else taken


def _number(result: Result, partials: Partials) -> Ints:
    """Rows that count: the first column of the first atom."""
    return partials.ints_of(result.atoms[0])[:, 0]


def _sum_parts(atom: int, partials: Partials) -> tuple[Floats, Floats, Ints]:
    """High, low and carry of a sum."""
    high, low = partials.floats_of(atom).T
    return high, low, partials.ints_of(atom)[:, 0]


def _too_great(result: Result, value: object) -> AggregateOverflowError:
    return AggregateOverflowError(
        f"aggregates.{result.name}: {result.function} over a window is {value}, beyond its type; "
        "make the column floating-point in the source"
    )


def sum_value(high: Floats, low: Floats, carry: Ints) -> Floats:
    """The float64 nearest to each compensated sum, infinite if it is out of range."""
    if not carry.any():
        return high + low
    halves = 2.0 * (0.5 * high + carry * (0.5 * CARRY_UNIT)) + low
    return np.asarray(np.where((carry == 0) | (high - high != 0.0), high + low, halves))


def sum_over(high: Floats, low: Floats, carry: Ints, n: Floats | Ints) -> Floats:
    """Each compensated sum over n; finite wherever the quotient is, even if the sum itself is out of range."""
    if not carry.any():
        return (high + low) / n
    scaled = (high * 2.0**-64 + carry * 2.0**959) + low * 2.0**-64
    return np.asarray(np.where((carry == 0) | (high - high != 0.0), (high + low) / n, scaled / n * 2.0**64))


def _integers(result: Result, partials: Partials) -> list[int]:
    """The exact sums, of whole numbers or of unscaled decimals, that the atoms (count, sum) hold."""
    return [integer_of(limbs) for limbs in partials.ints_of(result.atoms[1]).tolist()]


def integer_of(limbs: Sequence[int]) -> int:
    """The integer whose limbs of 64 bits these are, the lowest first; all but the highest one are unsigned."""
    whole = limbs[-1]
    for limb in limbs[-2::-1]:
        whole = (whole << 64) + (limb & _MASK)
    return whole


def _scale(atom: int, partials: Partials) -> int:
    """Fractional digits of a sum of decimals."""
    layout = partials.layout
    held = partials.table.schema.field(layout.atoms[atom].columns[0]) if layout.of_rows else layout.fields_of[atom][""]
    return int(held.type.scale)


def _rounded(total: int, n: int) -> int:
    """``total / n``, halves away from zero: as Spark rounds decimals."""
    quotient = (2 * abs(total) + n) // (2 * n)
    return quotient if total >= 0 else -quotient


def _decimals(result: Result, unscaled: list[int | None]) -> pa.Array:
    scale = -result.type.scale
    try:
        return pa.array([None if value is None else Decimal(value).scaleb(scale, WIDE) for value in unscaled], result.type)
    except pa.ArrowInvalid as err:
        raise _too_great(result, "a decimal of more than 38 digits") from err


# The catalogue finds the recipe of an aggregate by its name in capitals.
COUNT = Recipe(_count, count)
SUM = Recipe(_sum, total)
MEAN = Recipe(_mean, mean)
WEIGHTED_MEAN = Recipe(numeric("sum_product", "sum_weight"), weighted_mean)
TIME_WEIGHTED_MEAN = Recipe(numeric("area", "lasting"), weighted_mean)
PRODUCT = Recipe(numeric("product"), product)
GEOMETRIC_MEAN = Recipe(numeric("magnitude"), geometric_mean)
MIN = Recipe(_one("least", 0), picked)
MAX = Recipe(_one("greatest", 0), picked)
MIN_COUNT = Recipe(_one("count_least", pa.int64()), times)
MAX_COUNT = Recipe(_one("count_greatest", pa.int64()), times)
RANGE = Recipe(_range, span)
ARG_MIN = Recipe(_one("least", 1, ordered=True), picked)
ARG_MAX = Recipe(_one("greatest", 1, ordered=True), picked)
FIRST = Recipe(_one("least", 0, ordered=True), picked)
LAST = Recipe(_one("greatest", 0, ordered=True), picked)
BOOL_AND = Recipe(_one("least", pa.bool_()), picked)
BOOL_OR = Recipe(_one("greatest", pa.bool_()), picked)
VAR_SAMP = Recipe(numeric("moments"), Spread(1))
VAR_POP = Recipe(numeric("moments"), Spread(0))
STDDEV_SAMP = Recipe(numeric("moments"), Spread(1, root=True))
STDDEV_POP = Recipe(numeric("moments"), Spread(0, root=True))
SKEWNESS = Recipe(numeric("moments4"), skewness)
KURTOSIS = Recipe(numeric("moments4"), kurtosis)
COVAR_SAMP = Recipe(numeric("comoments"), covar_samp)
CORR = Recipe(numeric("comoments"), corr)
LINEAR_TREND = Recipe(_one("comoments", pa.struct([("slope", pa.float64()), ("intercept", pa.float64())])), linear_trend)
HISTOGRAM = Recipe(_histogram, histogram)
