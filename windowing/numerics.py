"""Floating-point building blocks: sums and products that carry their own rounding error.

Nothing here ever subtracts an evicted value: state only ever combines (docs/numerics.md has the measured drift of inverses).
All functions are pure and take and return float64 fields, so the same formulas serve objects here and arrays in the kernels.

References
----------
Knuth, The Art of Computer Programming 2, 4.2.2 (two-sum); Dekker (1971), doi:10.1007/BF01397083 (product);
Neumaier (1974), doi:10.1002/zamm.19740540106; Ogita, Rump and Oishi (2005), doi:10.1137/030601818.
"""

from __future__ import annotations

import math

Sum = tuple[float, float, int]
Product = tuple[float, float, int]

#: The empty sum and the empty product.
ZERO_SUM: Sum = (0.0, 0.0, 0)
UNIT_PRODUCT: Product = (0.5, 0.0, 1)

#: One unit of a sum's ``carry``: half the span of float64's exponents, so that two parts below it never overflow when added.
CARRY_UNIT = 2.0**1023
_SPLITTER = 2.0**27 + 1.0


def is_nan(value: object) -> bool:
    """Whether ``value`` is a floating-point NaN; false for values of any other type."""
    return isinstance(value, float) and math.isnan(value)


def to_sum(value: float) -> Sum:
    """``value`` as a compensated sum ``(high, low, carry)`` that represents ``high + low + carry * 2**1023``."""
    if -CARRY_UNIT < value < CARRY_UNIT or value - value != 0.0:
        return value, 0.0, 0
    carry = 1 if value > 0.0 else -1
    return value - carry * CARRY_UNIT, 0.0, carry


def add_sums(a: Sum, b: Sum) -> Sum:
    """Sum of two compensated sums; relative error 2**-104 of the sum of magnitudes, O(1).

    ``abs(high) < 2**1023`` always, and what goes beyond is counted in ``carry``: 1e308 + 1e308 - 1e308 is 1e308, in any order.
    Infinities and NaN live in ``high`` with ``low`` zero, so that they stay what IEEE 754 makes of them.
    """
    high_a, low_a, carry_a = a
    high_b, low_b, carry_b = b
    total = high_a + high_b
    if total - total != 0.0:
        return total, 0.0, 0
    part = total - high_a
    low = (low_a + low_b) + ((high_a - (total - part)) + (high_b - part))
    high = total + low
    low -= high - total
    carry = carry_a + carry_b
    if high >= CARRY_UNIT:
        high, carry = high - CARRY_UNIT, carry + 1
    elif high <= -CARRY_UNIT:
        high, carry = high + CARRY_UNIT, carry - 1
    return high, low, carry


def sum_value(total: Sum) -> float:
    """The float64 nearest to a compensated sum, infinite if it is out of range."""
    high, low, carry = total
    if carry == 0 or high - high != 0.0:
        return high + low
    # Halved, high and one carry unit add up without overflow, and exactly where they cancel.
    return 2.0 * (0.5 * high + carry * (0.5 * CARRY_UNIT)) + low


def sum_over(total: Sum, n: float) -> float:
    """``total / n``; finite wherever the quotient is, even if the sum itself is out of range."""
    high, low, carry = total
    if carry == 0 or high - high != 0.0:
        return (high + low) / n
    scaled = (high * 2.0**-64 + carry * 2.0**959) + low * 2.0**-64
    return scaled / n * 2.0**64


def to_product(value: float) -> Product:
    """``value`` as ``(high, low, exponent)`` that represents ``(high + low) * 2**exponent`` with 0.5 <= abs(high) < 1."""
    high, exponent = math.frexp(value)
    return high, 0.0, exponent


def multiply(a: Product, b: Product) -> Product:
    """Product of two scaled products; relative error 2**-100, and no overflow whatever the factors; O(1)."""
    high_a, low_a, exponent_a = a
    high_b, low_b, exponent_b = b
    high = high_a * high_b
    if high == 0.0 or high - high != 0.0:
        return high, 0.0, 0
    split = _SPLITTER * high_a
    top_a = split - (split - high_a)
    rest_a = high_a - top_a
    split = _SPLITTER * high_b
    top_b = split - (split - high_b)
    rest_b = high_b - top_b
    error = ((top_a * top_b - high) + top_a * rest_b + rest_a * top_b) + rest_a * rest_b
    low = error + (high_a * low_b + low_a * high_b)
    total = high + low
    low -= total - high
    mantissa, shift = math.frexp(total)
    return mantissa, math.ldexp(low, -shift), exponent_a + exponent_b + shift


def product_value(product: Product) -> float:
    """The float64 nearest to a scaled product: infinite above its range, zero or subnormal below."""
    high, low, exponent = product
    try:
        return math.ldexp(high + low, exponent)
    except OverflowError:
        return math.copysign(math.inf, high)


def product_root(product: Product, n: int) -> float:
    """The ``n``-th root of a positive scaled product, through its logarithm to base 2."""
    high, low, exponent = product
    if high - high != 0.0:
        return high
    # The exponent's whole share goes through ldexp: a sum of logarithms would lose log2(exponent) bits to it.
    whole, rest = divmod(exponent, n)
    root = 2.0 ** ((math.log2(high + low) + rest) / n)
    try:
        return math.ldexp(root, whole)
    except OverflowError:
        return math.inf
