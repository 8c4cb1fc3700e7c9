"""What is promised about rounding: NIST's reference sets, and every aggregate's bound against exact rational arithmetic."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.windowing.kernel_algebra import Kernels
from tests.windowing.reactive import ReactiveAggregator, Snapshot

UNIT = 2.0**-53
MAX = Fraction(1.7976931348623157e308)
NIST = Path(__file__).parents[1] / "data" / "nist"


def of_pairs(function: str) -> Kernels:
    return Kernels({function: ["x", "y"]}, ["float64", "float64"])


def of(function: str) -> Kernels:
    return Kernels({function: "x"}, ["float64"])


def partials(kernels: Kernels, values: Sequence[float], rows: int) -> list[Any]:
    """Slices of ``rows`` rows each."""
    return kernels.partials([(value,) for value in values], rows)


def total(kernels: Kernels, values: Sequence[float], rows: int) -> Any:
    """The result of these slices."""
    return kernels.aggregate.lower(kernels.aggregate.fold(partials(kernels, values, rows)))


# ---------------------------------------------------------------------------------------------------------------------------------
# NIST StRD, univariate. Certified mean and sample standard deviation; the ceiling is the number of correct digits of s that exact
# arithmetic reaches on the inputs rounded to float64, capped at 15.

CERTIFIED = {
    "Lew": ("-177.435000000000", "277.332168044316", 15.0),
    "Lottery": ("518.958715596330", "291.699727470969", 15.0),
    "Mavro": ("2.00185600000000", "0.000429123454003053", 13.1),
    "Michelso": ("299.852400000000", "0.0790105478190518", 13.8),
    "PiDigits": ("4.53480000000000", "2.86733906028871", 15.0),
    "NumAcc1": ("10000002", "1", 15.0),
    "NumAcc2": ("1.2", "0.1", 15.0),
    "NumAcc3": ("1000000.2", "0.1", 9.5),
    "NumAcc4": ("10000000.2", "0.1", 8.3),
}
SIZES = {"Lew": 200, "Lottery": 218, "Mavro": 50, "Michelso": 100, "PiDigits": 5000, "NumAcc1": 3}


def nist(name: str) -> list[float]:
    if name == "NumAcc1":
        return [10000001.0, 10000003.0, 10000002.0]
    if name.startswith("NumAcc"):
        base = {"NumAcc2": "1", "NumAcc3": "1000000", "NumAcc4": "10000000"}[name]
        return [float(f"{base}.2"), *[float(f"{base}.1"), float(f"{base}.3")] * 500]
    lines = (NIST / f"{name}.txt").read_text().splitlines()
    return [float(number) for line in lines if not line.startswith("#") for number in line.split()]


def correct_digits(got: float, certified: str) -> float:
    """NIST's log relative error, capped at 15."""
    error = abs(Decimal(got) - Decimal(certified)) / abs(Decimal(certified))
    return 15.0 if error == 0 else min(15.0, float(-error.log10()))


def check_digits(name: str, mean: float, deviation: float) -> None:
    certified_mean, certified_deviation, ceiling = CERTIFIED[name]
    assert correct_digits(mean, certified_mean) >= 14
    assert correct_digits(deviation, certified_deviation) >= ceiling - 1


@pytest.mark.parametrize("name", CERTIFIED)
def test_the_ceiling_is_what_exact_arithmetic_reaches(name):
    values = [Fraction(value) for value in nist(name)]
    assert len(values) == SIZES.get(name, 1001)
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    with localcontext(prec=60):
        deviation = (Decimal(variance.numerator) / Decimal(variance.denominator)).sqrt()
        error = abs(deviation - Decimal(CERTIFIED[name][1])) / Decimal(CERTIFIED[name][1])
        digits = 15.0 if error == 0 else min(15.0, float(-error.log10()))
    assert digits == pytest.approx(CERTIFIED[name][2], abs=0.06)


@pytest.mark.parametrize("rows", [1, 7, 64, 10_000])
@pytest.mark.parametrize("name", CERTIFIED)
def test_nist_digits_whole_and_sliced(name, rows):
    results = []
    for function in ("mean", "stddev_samp"):
        aggregate = of(function).aggregate
        slices = partials(of(function), nist(name), rows)
        random.Random(rows).shuffle(slices)
        results.append(aggregate.lower(aggregate.fold(slices)))
    check_digits(name, *results)


FOREIGN_ROWS = 100_000
STAYING = 50


def foreign() -> Iterator[float]:
    """Rows that must leave no trace: spikes, opposite signs, infinities, NaN."""
    draw = random.Random(3)
    for number in range(FOREIGN_ROWS):
        yield (
            math.inf if number % 9_973 == 0 else math.nan if number % 7_919 == 0 else draw.lognormvariate(0, 9) * draw.choice([-1, 1, 1e16])
        )


@pytest.fixture(scope="module")
def used() -> Callable[[str], Snapshot]:
    """States through which the foreign rows have passed; the last of them are still inside."""
    states: dict[str, Snapshot] = {}

    def state(function: str) -> Snapshot:
        if function not in states:
            kernels = of(function)
            window = ReactiveAggregator(kernels.aggregate)
            for partial in partials(kernels, list(foreign()), 1):
                window.insert(partial)
                if len(window) > STAYING:
                    window.evict()
            window.query()
            states[function] = window.snapshot()
        return states[function]

    return state


@pytest.mark.parametrize("name", CERTIFIED)
def test_nist_digits_after_foreign_rows_have_left_by_two_stacks(name):
    rows = [(value,) for value in [*list(foreign())[-2_000:], *nist(name)]]
    lo = [*range(0, 2_000, 7), 2_000]
    hi = [min(len(rows), low + 900) for low in lo[:-1]] + [len(rows)]
    check_digits(name, *(of(function).windows(rows, lo, hi)[-1] for function in ("mean", "stddev_samp")))


@pytest.mark.parametrize("name", CERTIFIED)
def test_nist_digits_after_foreign_rows_have_left_and_through_a_restore(name, used):
    results = []
    values = nist(name)
    for function in ("mean", "stddev_samp"):
        aggregate = of(function).aggregate
        window = ReactiveAggregator.restore(aggregate, used(function))
        slices = partials(of(function), values, 7)
        for number, partial in enumerate(slices):
            window.insert(partial)
            window.query() if number % 100 == 0 else None
            if number == len(slices) // 2:
                window = ReactiveAggregator.restore(aggregate, through_bytes(window.snapshot()))
        for _ in range(STAYING):
            window.evict()
        assert len(window) == len(slices)
        results.append(aggregate.lower(window.query()))
    check_digits(name, *results)


def through_bytes(snapshot: Snapshot) -> Snapshot:
    """The snapshot with every float written as its eight IEEE bytes and read back."""

    def stored(value: Any) -> Any:
        return struct.unpack("<d", struct.pack("<d", value))[0] if isinstance(value, float) else value

    return snapshot._replace(slots=tuple(None if partial is None else tuple(map(stored, partial)) for partial in snapshot.slots))


# ---------------------------------------------------------------------------------------------------------------------------------
# Streams that break careless formulas, and exact windows over them.

WINDOW = 16


def _walk(draw: random.Random, n: int) -> list[float]:
    at, walk = 0.0, []
    for _ in range(n):
        at += draw.gauss(0, 1)
        walk.append(at)
    return walk


def _spiked(draw: random.Random, n: int) -> list[float]:
    return [1e16 if number == n // 3 else draw.gauss(0, 1) for number in range(n)]


STREAMS: dict[str, Callable[[random.Random, int], list[float]]] = {
    "random walk": _walk,
    "lognormal": lambda draw, n: [draw.lognormvariate(0, 3) for _ in range(n)],
    "1e9 and noise": lambda draw, n: [1e9 + draw.gauss(0, 1) for _ in range(n)],
    "one spike": _spiked,
    "alternating": lambda draw, n: [(-1) ** number * 1e15 * (1 + draw.random()) for number in range(n)],
    "1e308 pairs": lambda draw, n: [draw.choice([1e308, -1e308, 1.5e308, -1.7e308]) for _ in range(n)],
    "subnormal": lambda draw, n: [draw.randrange(-1000, 1000) * 5e-324 for _ in range(n)],
    "mixed scales": lambda draw, n: [draw.choice([-1, 1]) * 10.0 ** draw.uniform(-300, 300) for _ in range(n)],
}


def windows(kernels: Kernels, values: Sequence[float]) -> Iterator[tuple[Any, list[Fraction]]]:
    """Results of a sliding window of ``WINDOW`` rows, every fifth row, by two stacks, beside its exact contents."""
    hi = range(1, len(values) + 1, 5)
    lo = [max(0, stop - WINDOW) for stop in hi]
    for got, low, stop in zip(kernels.windows([(value,) for value in values], lo, hi), lo, hi, strict=True):
        yield got, [Fraction(value) for value in values[low:stop]]


def check_sum(got: float, exact: Fraction, magnitude: Fraction, n: int, slack: Fraction = Fraction(0)) -> None:
    """The promise: an error of at most (ceil(log2 n) + 2) * 2**-53 * sum of abs x; infinite only beyond the range of float64."""
    bound = (math.ceil(math.log2(n)) + 2) * Fraction(UNIT) * magnitude + slack
    if math.isinf(got):
        assert abs(exact) + bound > MAX
        assert (got > 0) == (exact > 0)
    else:
        assert abs(Fraction(got) - exact) <= bound


@pytest.mark.parametrize("stream", STREAMS)
def test_sums_and_means_keep_their_bound_in_any_window(stream):
    values = STREAMS[stream](random.Random(5), 600)
    for got, window in windows(of("sum"), values):
        check_sum(got, sum(window), sum(map(abs, window)), len(window))
    # A mean among the subnormals is rounded to a multiple of 2**-1074.
    for got, window in windows(of("mean"), values):
        n = len(window)
        check_sum(got, sum(window) / n, sum(map(abs, window)) / n, n, Fraction(5e-324))
        assert math.isfinite(got)


@pytest.mark.parametrize("stream", STREAMS)
def test_a_slice_fed_row_by_row_is_as_accurate_as_a_tree(stream):
    """A plain running sum may be off by n * 2**-53 of the magnitudes; the compensated one by its last rounding."""
    values = STREAMS[stream](random.Random(11), 20_000)
    exact, magnitude = sum(map(Fraction, values)), sum(abs(Fraction(value)) for value in values)
    got = total(of("sum"), values, len(values))
    if math.isinf(got):
        assert abs(exact) >= MAX
    else:
        assert abs(Fraction(got) - exact) <= 2 * Fraction(UNIT) * abs(exact) + Fraction(2.0**-80) * magnitude


def test_what_leaves_takes_its_infinity_nan_and_rounding_along():
    for spike in (1e16, 1e308, math.inf, math.nan):
        for function, expected in (("sum", 6.0), ("mean", 2.0), ("var_samp", 1.0), ("max", 3.0)):
            kernels, rows = of(function), [(spike,), (1.0,), (2.0,), (3.0,)]
            assert kernels.windows(rows, [0, 1], [4, 4])[1] == expected
            window = ReactiveAggregator(kernels.aggregate)
            for partial in kernels.partials(rows):
                window.insert(partial)
            window.query()
            window.evict()
            assert kernels.aggregate.lower(window.query()) == expected


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(FINITE, min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_sums_of_any_floats_in_any_tree_keep_the_bound(values, draw):
    summed = of("sum").aggregate
    parts = partials(of("sum"), values, 1)
    while len(parts) > 1:
        at = draw.randrange(len(parts) - 1)
        parts[at : at + 2] = [summed.combine(parts[at], parts[at + 1])]
    check_sum(summed.lower(parts[0]), sum(map(Fraction, values)), sum(abs(Fraction(value)) for value in values), len(values))


@given(st.lists(FINITE, min_size=1, max_size=12))
def test_the_carry_undoes_itself(values):
    """Values and their negatives cancel to exactly zero, through any overflow on the way."""
    every = values + [-value for value in values]
    _, carry, high, low = of("sum").aggregate.fold(partials(of("sum"), every, 1))
    error = abs(Fraction(high) + Fraction(low) + carry * Fraction(2) ** 1023)
    assert error <= Fraction(2) ** -100 * sum(abs(Fraction(value)) for value in values)
    assert abs(high) < 2.0**1023
    assert total(of("mean"), every, 1) == pytest.approx(total(of("sum"), every, 1) / len(every))


def exact_variance(window: Sequence[Fraction]) -> Fraction:
    mean = sum(window) / len(window)
    return sum((value - mean) ** 2 for value in window) / (len(window) - 1)


@pytest.mark.parametrize("stream", ["random walk", "lognormal", "1e9 and noise", "one spike", "alternating"])
def test_variances_keep_twelve_digits_in_any_window(stream):
    for got, window in windows(of("var_samp"), STREAMS[stream](random.Random(5), 600)):
        if len(window) < 2:
            assert got is None
            continue
        exact = exact_variance(window)
        assert got >= 0.0
        assert abs(Fraction(got) - exact) <= Fraction(1e-12) * exact


@pytest.mark.parametrize("shape", ["row by row", "slices of 7", "pairs upwards", "from the right"])
@pytest.mark.parametrize("relative", [1e-3, 1e-6, 1e-9])
def test_variances_keep_twelve_digits_in_any_shape_of_merging(shape, relative):
    """Down to a standard deviation of 1e-9 of the mean."""
    draw = random.Random(2)
    values = [1e9 * (1 + relative * draw.gauss(0, 1)) for _ in range(5_000)]
    variance = of("var_samp").aggregate
    parts = partials(of("var_samp"), values, 7 if shape == "slices of 7" else 1)
    if shape == "pairs upwards":
        while len(parts) > 1:
            parts = [variance.fold(parts[at : at + 2]) for at in range(0, len(parts), 2)]
    elif shape == "from the right":
        right = parts.pop()
        while parts:
            right = variance.combine(parts.pop(), right)
        parts = [right]
    exact = exact_variance([Fraction(value) for value in values])
    assert abs(Fraction(variance.lower(variance.fold(parts))) - exact) <= Fraction(1e-12) * exact


@pytest.mark.parametrize("value", [0.1, 1e9 + 0.1, -1e300, 5e-324])
def test_a_constant_has_variance_zero_in_any_shape(value):
    for function in ("var_samp", "stddev_pop"):
        for rows in (1, 3, 50):
            assert total(of(function), [value] * 100, rows) == 0.0


def exact_moment(values: Sequence[Fraction], power: int) -> Fraction:
    mean = sum(values) / len(values)
    return sum((value - mean) ** power for value in values) / len(values)


def _skewed(draw: random.Random, n: int, shift: float) -> list[float]:
    return [shift + 200.0 * draw.expovariate(1.0) for _ in range(n)]


@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize("shift", [0.0, 1e8, -1e8])
def test_skewness_and_kurtosis_keep_nine_digits_when_shifted(shift, rows):
    values = _skewed(random.Random(9), 400, shift)
    fractions = [Fraction(value) for value in values]
    m2, m3, m4 = (exact_moment(fractions, power) for power in (2, 3, 4))
    assert total(of("skewness"), values, rows) == pytest.approx(float(m3) / float(m2) ** 1.5, rel=1e-9)
    assert total(of("kurtosis"), values, rows) == pytest.approx(float(m4 / m2**2 - 3), rel=1e-9)


def test_rolling_skewness_of_a_random_walk_keeps_nine_digits():
    """The walk on which adding and removing drifts by hundreds; windows of 16, m3 well away from its zeros."""
    walk = _walk(random.Random(42), 4_000)
    compared = 0
    for got, window in windows(of("skewness"), walk):
        if len(window) < 8:
            continue
        m2, m3 = exact_moment(window, 2), exact_moment(window, 3)
        exact = float(m3) / float(m2) ** 1.5
        if abs(exact) > 1e-2:
            compared += 1
            assert got == pytest.approx(exact, rel=1e-9)
    assert compared > 600


@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize("shift", [0.0, 1e8])
def test_correlation_covariance_and_trend_keep_nine_digits_when_shifted(shift, rows):
    draw = random.Random(4)
    pairs = [(x, shift + 3.0 * (x - shift) + draw.gauss(0, 300)) for x in (shift + draw.gauss(0, 200) for _ in range(500))]
    xs, ys = ([Fraction(value) for value in column] for column in zip(*pairs, strict=True))
    mean_x, mean_y = sum(xs) / 500, sum(ys) / 500
    xy = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    xx, yy = 500 * exact_moment(xs, 2), 500 * exact_moment(ys, 2)
    results = {}
    for function in ("covar_samp", "corr", "linear_trend"):
        aggregate = of_pairs(function).aggregate
        results[function] = aggregate.lower(aggregate.fold(of_pairs(function).partials(pairs, rows)))
    assert results["covar_samp"] == pytest.approx(float(xy / 499), rel=1e-9)
    assert results["corr"] == pytest.approx(float(xy) / math.sqrt(float(xx) * float(yy)), rel=1e-9)
    assert results["linear_trend"]["slope"] == pytest.approx(float(xy / xx), rel=1e-9)
    assert results["linear_trend"]["intercept"] == pytest.approx(float(mean_y - xy / xx * mean_x), rel=1e-9)


def test_a_perfect_correlation_never_exceeds_one():
    pairs = [(number / 7, number / 7 * 3.1) for number in range(1, 50)]
    [got] = of_pairs("corr").windows(pairs, [0], [len(pairs)])
    assert got == pytest.approx(1.0, rel=1e-15)
    assert abs(got) <= 1.0


@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize(
    "values",
    [[1e300, 1e-300] * 500 + [3.0], [1e308] * 400 + [1e-308] * 400, [5e-324, 1e308, 1e16] * 100, [1.0 + 1e-9] * 3_000, [-1.5, 0.7] * 501],
    ids=["cancelling", "far out and back", "subnormal factors", "many near one", "alternating signs"],
)
def test_products_and_geometric_means_keep_twelve_digits_without_overflow(values, rows):
    exact = math.prod(map(Fraction, values), start=Fraction(1))
    got = total(of("product"), values, rows)
    if exact.numerator == 0 or abs(exact) < Fraction(2.3e-308):
        assert abs(got) <= 2.3e-308
    elif abs(exact) > MAX:
        assert math.isinf(got)
    else:
        assert abs(Fraction(got) - exact) <= Fraction(1e-12) * abs(exact)
    magnitudes = [abs(value) for value in values]
    logarithm = math.fsum(map(math.log, magnitudes)) / len(magnitudes)
    assert total(of("geometric_mean"), magnitudes, rows) == pytest.approx(math.exp(logarithm), rel=1e-12)


@given(st.lists(FINITE.filter(bool), min_size=1, max_size=20))
def test_scaled_products_are_nearly_exact(values):
    kernels = of("product")
    product = kernels.aggregate.fold(partials(kernels, values, 1))
    exact = math.prod(map(Fraction, values), start=Fraction(1))
    _, _, exponent, high, low = product
    got = (Fraction(high) + Fraction(low)) * Fraction(2) ** exponent
    assert abs(got - exact) <= Fraction(2) ** -96 * abs(exact)
    assert 0.5 <= abs(high) <= 1.0
    assert abs(kernels.aggregate.lower(product)) == pytest.approx(
        float(min(abs(exact), 2 * MAX)) if abs(exact) <= MAX else math.inf, rel=1e-15, abs=5e-324
    )


def test_roots_use_the_whole_exponent():
    """Of partials (factors, zeros, exponent, high, low)."""
    root = of("geometric_mean").aggregate.lower
    assert root((1000, 0, 1001, 0.5, 0.0)) == 2.0
    assert root((10**6, 0, 10**6 * 7 + 1, 0.5, 0.0)) == 128.0
    assert root((1, 0, 10**7, 0.5, 0.0)) == math.inf


def test_weighted_means_keep_the_bound_of_a_sum():
    draw = random.Random(8)
    pairs = [(draw.gauss(1e9, 1), draw.lognormvariate(0, 2)) for _ in range(3_000)]
    [got] = of_pairs("weighted_mean").windows(pairs, [0], [len(pairs)])
    exact = sum(Fraction(value) * Fraction(weight) for value, weight in pairs) / sum(Fraction(weight) for _, weight in pairs)
    assert abs(Fraction(got) - exact) <= 4 * Fraction(UNIT) * exact
