"""Variance, higher moments, covariance and the line through the points.

A partial holds the number of values, an anchor (its first value), the mean as an offset from the anchor, and sums of powers of
deviations from the mean. Merging takes the difference of means as ``(anchor_b - anchor_a) + (delta_b - delta_a)``, which stays
exact where values are large and close together: NIST's NumAcc4 keeps 8.3 digits of its standard deviation instead of none.
Sums of squares are never subtracted, so no variance is negative and that of a constant is exactly zero.

References
----------
Chan, Golub and LeVeque (1983), doi:10.1080/00031305.1983.10483115; Pebay, Terriberry, Kolla and Bennett (2016),
doi:10.1007/s00180-015-0637-z. Measured errors: docs/numerics.md.
"""

# ruff: noqa: ARG001 - every lift and every builder is called alike, whether or not it needs the position or the types
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from windowmill.windowing.aggregates.values import Builder, require_number
from windowmill.windowing.algebra import Aggregate, Args, Field, Position
from windowmill.windowing.catalogue import AggregateSpec

Moments2 = tuple[int, float, float, float]
Moments4 = tuple[int, float, float, float, float, float]
Comoments = tuple[int, float, float, float, float, float, float, float]

_NO_MOMENTS2: Moments2 = (0, 0.0, 0.0, 0.0)
_NO_MOMENTS4: Moments4 = (0, 0.0, 0.0, 0.0, 0.0, 0.0)
_NO_COMOMENTS: Comoments = (0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def _fields(*names: str) -> tuple[Field, ...]:
    return (Field("n", "int64"), *(Field(name, "float64") for name in names))


def _lift2(args: Args, at: Position) -> Moments2:
    if args[0] is None:
        return _NO_MOMENTS2
    value = float(args[0])
    # value - value is 0, or NaN for an infinity or NaN: their spread is not a number from the start.
    return 1, value, 0.0, value - value


def combine_moments2(a: Moments2, b: Moments2) -> Moments2:
    """Merge ``(n, anchor, delta, m2)``; mean = anchor + delta, m2 in squared units; O(1)."""
    n_a, anchor_a, delta_a, m2_a = a
    n_b, anchor_b, delta_b, m2_b = b
    if not n_a or not n_b:
        return a if n_a else b
    n = n_a + n_b
    d = (anchor_b - anchor_a) + (delta_b - delta_a)
    share = n_b / n
    return n, anchor_a, delta_a + d * share, m2_a + m2_b + d * d * (n_a * share)


def _variance(sample: bool, root: bool) -> Callable[[Moments2], float | None]:
    def lower(partial: Moments2) -> float | None:
        n, m2 = partial[0], partial[3]
        if n <= sample:
            return None
        variance = m2 / (n - sample)
        return math.sqrt(variance) if root else variance

    return lower


def _second(name: str, sample: bool, root: bool) -> Builder:
    def build(spec: AggregateSpec, types: tuple[str, ...], /) -> Aggregate[Moments2]:
        require_number(spec, types)
        return Aggregate(
            name,
            kind="moments2",
            fields=_fields("anchor", "delta", "m2"),
            identity=_NO_MOMENTS2,
            lift=_lift2,
            combine=combine_moments2,
            lower=_variance(sample, root),
            commutative=True,
            exact=False,
        )

    return build


def _lift4(args: Args, at: Position) -> Moments4:
    if args[0] is None:
        return _NO_MOMENTS4
    value = float(args[0])
    zero = value - value
    return 1, value, 0.0, zero, zero, zero


def combine_moments4(a: Moments4, b: Moments4) -> Moments4:
    """Merge ``(n, anchor, delta, m2, m3, m4)``, sums of the second to fourth power of deviations; O(1)."""
    n_a, anchor_a, delta_a, m2_a, m3_a, m4_a = a
    n_b, anchor_b, delta_b, m2_b, m3_b, m4_b = b
    if not n_a or not n_b:
        return a if n_a else b
    n = n_a + n_b
    d = (anchor_b - anchor_a) + (delta_b - delta_a)
    share_a, share_b = n_a / n, n_b / n
    between = d * d * (n_a * share_b)
    m3 = m3_a + m3_b + between * d * (share_a - share_b) + 3.0 * d * (share_a * m2_b - share_b * m2_a)
    m4 = (
        m4_a
        + m4_b
        + between * d * d * (share_a * share_a - share_a * share_b + share_b * share_b)
        + 6.0 * d * d * (share_a * share_a * m2_b + share_b * share_b * m2_a)
        + 4.0 * d * (share_a * m3_b - share_b * m3_a)
    )
    return n, anchor_a, delta_a + d * share_b, m2_a + m2_b + between, m3, m4


def _skewness(partial: Moments4) -> float | None:
    n, _, _, m2, m3, _ = partial
    return math.sqrt(n) * (m3 / m2) / math.sqrt(m2) if m2 else None


def _kurtosis(partial: Moments4) -> float | None:
    n, _, _, m2, _, m4 = partial
    return n * (m4 / m2) / m2 - 3.0 if m2 else None


def _fourth(name: str, lower: Callable[[Moments4], float | None]) -> Builder:
    def build(spec: AggregateSpec, types: tuple[str, ...], /) -> Aggregate[Moments4]:
        require_number(spec, types)
        return Aggregate(
            name,
            kind="moments4",
            fields=_fields("anchor", "delta", "m2", "m3", "m4"),
            identity=_NO_MOMENTS4,
            lift=_lift4,
            combine=combine_moments4,
            lower=lower,
            commutative=True,
            exact=False,
        )

    return build


def _lift_pair(args: Args, at: Position) -> Comoments:
    if args[0] is None or args[1] is None:
        return _NO_COMOMENTS
    x, y = float(args[0]), float(args[1])
    zero_x, zero_y = x - x, y - y
    return 1, x, 0.0, y, 0.0, zero_x, zero_x + zero_y, zero_y


def combine_comoments(a: Comoments, b: Comoments) -> Comoments:
    """Merge ``(n, anchor_x, delta_x, anchor_y, delta_y, m_xx, m_xy, m_yy)``; O(1)."""
    n_a, anchor_xa, delta_xa, anchor_ya, delta_ya, xx_a, xy_a, yy_a = a
    n_b, anchor_xb, delta_xb, anchor_yb, delta_yb, xx_b, xy_b, yy_b = b
    if not n_a or not n_b:
        return a if n_a else b
    n = n_a + n_b
    share = n_b / n
    weight = n_a * share
    d_x = (anchor_xb - anchor_xa) + (delta_xb - delta_xa)
    d_y = (anchor_yb - anchor_ya) + (delta_yb - delta_ya)
    return (
        n,
        anchor_xa,
        delta_xa + d_x * share,
        anchor_ya,
        delta_ya + d_y * share,
        xx_a + xx_b + d_x * d_x * weight,
        xy_a + xy_b + d_x * d_y * weight,
        yy_a + yy_b + d_y * d_y * weight,
    )


def _covar_samp(partial: Comoments) -> float | None:
    return partial[6] / (partial[0] - 1) if partial[0] > 1 else None


def _corr(partial: Comoments) -> float | None:
    n, _, _, _, _, xx, xy, yy = partial
    if n < 2 or math.isnan(xy):
        return math.nan if n > 1 else None
    if xx == 0.0 or yy == 0.0:
        return None
    r = xy / math.sqrt(xx) / math.sqrt(yy)
    return math.copysign(1.0, r) if abs(r) > 1.0 else r


def _linear_trend(partial: Comoments) -> dict[str, float] | None:
    n, anchor_x, delta_x, anchor_y, delta_y, xx, xy, _ = partial
    if n < 2 or (xx == 0.0 and not math.isnan(xy)):
        return None
    slope = math.nan if math.isnan(xy) else xy / xx
    return {"slope": slope, "intercept": (anchor_y - slope * anchor_x) + (delta_y - slope * delta_x)}


def _pair(name: str, lower: Callable[[Comoments], Any], result: str = "float64") -> Builder:
    def build(spec: AggregateSpec, types: tuple[str, ...], /) -> Aggregate[Comoments]:
        require_number(spec, types)
        return Aggregate(
            name,
            kind="comoments",
            fields=_fields("anchor_x", "delta_x", "anchor_y", "delta_y", "m_xx", "m_xy", "m_yy"),
            identity=_NO_COMOMENTS,
            lift=_lift_pair,
            combine=combine_comoments,
            lower=lower,
            commutative=True,
            exact=False,
            result=result,
        )

    return build


#: Skewness and kurtosis are Spark's: of the population, kurtosis in excess of the normal distribution's.
build_var_samp = _second("var_samp", sample=True, root=False)
build_var_pop = _second("var_pop", sample=False, root=False)
build_stddev_samp = _second("stddev_samp", sample=True, root=True)
build_stddev_pop = _second("stddev_pop", sample=False, root=True)
build_skewness = _fourth("skewness", _skewness)
build_kurtosis = _fourth("kurtosis", _kurtosis)
build_covar_samp = _pair("covar_samp", _covar_samp)
build_corr = _pair("corr", _corr)
build_linear_trend = _pair("linear_trend", _linear_trend, "struct<slope:float64,intercept:float64>")
