"""From partials in the arenas to result columns."""

from __future__ import annotations

from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.errors import AggregateOverflowError
from windowmill.windowing.kernels.combine import CARRY_UNIT, PICKED, ROW, TIMES, Floats, Ints
from windowmill.windowing.kernels.layout import Layout, Result
from windowmill.windowing.kernels.recipes import MEAN_DIGITS

_MASK = (1 << 64) - 1
_MEAN = Context(prec=38)


def lower(layout: Layout, ints: Ints, floats: Floats, table: pa.Table, overflow: bool = False) -> dict[str, pa.Array]:
    """Result columns of the partials (``ints``, ``floats``), by name, in the spec's order.

    Parameters
    ----------
    table
        The rows that the partials' rows point into.
    overflow
        Whether a kernel has found an integer that does not fit.

    Raises
    ------
    AggregateOverflowError
        If an exact result left its type.
    """
    if overflow:
        raise AggregateOverflowError("an integer sum left the range of a 64-bit integer; cast the column to double in a view of the source")
    program = layout.program()
    with np.errstate(all="ignore"):
        return {result.name: _lower(result, layout, program, ints, floats, table) for result in layout.results}


def _lower(result: Result, layout: Layout, program: Ints, ints: Ints, floats: Floats, table: pa.Table) -> pa.Array:
    _, i, f, *_ = program[result.atoms[0]]
    n, moments = ints[:, i], floats[:, f:]
    match result.function:
        case "count":
            return pa.array(n)
        case "sum" | "mean":
            return _summed(result, layout, n, program[result.atoms[1]], ints, floats)
        case "weighted_mean":
            _, j, g, *_ = program[result.atoms[1]]
            weights = sum_value(floats[:, g], floats[:, g + 1], ints[:, j])
            return pa.array(sum_over(floats[:, f], floats[:, f + 1], n, weights), mask=weights == 0.0)
        case "product" | "geometric_mean":
            return _multiplied(result.function, ints[:, i : i + 3], moments)
        case "var_samp" | "var_pop" | "stddev_samp" | "stddev_pop":
            freedom = 1 if result.function.endswith("samp") else 0
            variance = moments[:, 2] / np.maximum(n - freedom, 1)
            return pa.array(np.sqrt(variance) if result.function.startswith("stddev") else variance, mask=n <= freedom)
        case "skewness":
            return pa.array(np.sqrt(n) * (moments[:, 3] / moments[:, 2]) / np.sqrt(moments[:, 2]), mask=(n == 0) | (moments[:, 2] == 0.0))
        case "kurtosis":
            return pa.array(n * (moments[:, 4] / moments[:, 2]) / moments[:, 2] - 3.0, mask=(n == 0) | (moments[:, 2] == 0.0))
        case "covar_samp" | "corr" | "linear_trend":
            return _paired(result.function, n, moments)
        case "histogram":
            return _bins(n, program[result.atoms[1]], ints)
        case "min_count" | "max_count":
            return pa.array(ints[:, i + TIMES], mask=ints[:, i + TIMES] == 0)
        case "range":
            least, greatest = (_taken(layout, atom, ints, program, table) for atom in result.atoms)
            try:
                return pc.subtract_checked(greatest, least)
            except pa.ArrowInvalid as err:
                raise _too_great(result, "the difference of two values") from err
        case _:
            return _taken(layout, result.atoms[0], ints, program, table)


def _too_great(result: Result, value: object) -> AggregateOverflowError:
    return AggregateOverflowError(
        f"aggregates.{result.name}: {result.function} over a window is {value}, beyond its type; "
        "make the column floating-point in the source"
    )


def _summed(result: Result, layout: Layout, n: Ints, line: Ints, ints: Ints, floats: Floats) -> pa.Array:
    _, j, g, *_ = line
    kind = layout.atoms[result.atoms[1]].kind
    if kind == "sum_float":
        parts = (floats[:, g], floats[:, g + 1], ints[:, j])
        total = sum_value(*parts) if result.function == "sum" else sum_over(*parts, np.maximum(n, 1))
        return pa.array(total, mask=n == 0)
    low, high = ints[:, j], ints[:, j + 1]
    if kind == "sum_decimal":
        return _decimals(result, n, low, high)
    if result.function == "mean":
        fits = high == low >> 63
        whole = np.where(fits, low.astype(np.float64), high * 2.0**64 + low.astype(np.uint64).astype(np.float64))
        return pa.array(whole / np.maximum(n, 1), mask=n == 0)
    wrong = np.flatnonzero(high != low >> 63)
    if len(wrong):
        raise _too_great(result, (int(high[wrong[0]]) << 64) + (int(low[wrong[0]]) & _MASK))
    return pa.array(np.ascontiguousarray(low), mask=n == 0)


def _decimals(result: Result, n: Ints, low: Ints, high: Ints) -> pa.Array:
    kind = result.type
    scale = kind.scale - (MEAN_DIGITS if result.function == "mean" else 0)
    totals = [
        Decimal((int(upper) << 64) + (int(lower) & _MASK)).scaleb(-scale, _MEAN) if count else None
        for count, lower, upper in zip(n, low, high, strict=True)
    ]
    if result.function == "mean":
        unit = Decimal(1).scaleb(-kind.scale)
        means = (None if total is None else _MEAN.divide(total, Decimal(int(count))) for total, count in zip(totals, n, strict=True))
        return pa.array([None if mean is None else mean.quantize(unit, context=_MEAN) for mean in means], kind)
    try:
        return pa.array(totals, kind)
    except pa.ArrowInvalid as err:
        raise _too_great(result, "a decimal of more than 38 digits") from err


def sum_value(high: Floats, low: Floats, carry: Ints) -> Floats:
    """:func:`windowmill.windowing.numerics.sum_value` of arrays."""
    if not carry.any():
        return high + low
    halves = 2.0 * (0.5 * high + carry * (0.5 * CARRY_UNIT)) + low
    return np.asarray(np.where((carry == 0) | (high - high != 0.0), high + low, halves))


def sum_over(high: Floats, low: Floats, carry: Ints, n: Floats | Ints) -> Floats:
    """:func:`windowmill.windowing.numerics.sum_over` of arrays."""
    if not carry.any():
        return (high + low) / n
    scaled = (high * 2.0**-64 + carry * 2.0**959) + low * 2.0**-64
    return np.asarray(np.where((carry == 0) | (high - high != 0.0), (high + low) / n, scaled / n * 2.0**64))


def _multiplied(function: str, counts: Ints, factors: Floats) -> pa.Array:
    n, zeros, exponent = counts[:, 0], counts[:, 1], counts[:, 2]
    high, low = factors[:, 0], factors[:, 1]
    finite = high - high == 0.0
    if function == "product":
        value = np.ldexp(high + low, np.clip(exponent, -5_000, 5_000).astype(np.int32))
    else:
        # The exponent's whole share goes through ldexp: a sum of logarithms would lose log2(exponent) bits to it.
        whole, rest = np.divmod(exponent, np.maximum(n, 1))
        root = 2.0 ** ((np.log2(high + low) + rest) / np.maximum(n, 1))
        value = np.where(finite, np.ldexp(root, np.clip(whole, -5_000, 5_000).astype(np.int32)), high)
        value = np.where(high > 0.0, value, np.nan)
    return pa.array(np.where(zeros > 0, np.where(finite, 0.0, np.nan), value), mask=n == 0)


def _paired(function: str, n: Ints, moments: Floats) -> pa.Array:
    anchor_x, delta_x, anchor_y, delta_y, xx, xy, yy = (moments[:, column] for column in range(7))
    if function == "covar_samp":
        return pa.array(xy / np.maximum(n - 1, 1), mask=n < 2)
    nan = np.isnan(xy)
    if function == "corr":
        r = np.clip(xy / np.sqrt(xx) / np.sqrt(yy), -1.0, 1.0)
        return pa.array(np.where(nan, np.nan, r), mask=(n < 2) | (((xx == 0.0) | (yy == 0.0)) & ~nan))
    slope = np.where(nan, np.nan, xy / xx)
    intercept = (anchor_y - slope * anchor_x) + (delta_y - slope * delta_x)
    missing = (n < 2) | ((xx == 0.0) & ~nan)
    return pa.StructArray.from_arrays([pa.array(slope), pa.array(intercept)], ["slope", "intercept"], mask=pa.array(missing))


def _bins(n: Ints, line: Ints, ints: Ints) -> pa.Array:
    _, i, _, bins, _ = line
    counts = np.ascontiguousarray(ints[:, i : i + bins]).reshape(-1)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(counts), int(bins))
    return pc.if_else(pa.array(n > 0), lists.cast(pa.list_(pa.int64())), pa.scalar(None, pa.list_(pa.int64())))


def _taken(layout: Layout, atom: int, ints: Ints, program: Ints, table: pa.Table) -> pa.Array:
    kept = layout.atoms[atom]
    if layout.of_rows:
        rows, name = ints[:, program[atom, 1] + PICKED], kept.columns[-1]
    else:
        rows, name = ints[:, program[atom, 1] + ROW], layout.fields_of(atom)["value"].name
    column, none = table.column(name).combine_chunks(), np.asarray(rows < 0)
    taken = column.take(pa.array(np.where(none, 0, rows), mask=none)) if len(column) else pa.nulls(len(rows), column.type)
    # Of two zeros that are equal either may have been kept; what stands beside an extreme is given as it is.
    return pc.add(taken, 0.0) if pa.types.is_floating(taken.type) and not kept.ordered else taken
