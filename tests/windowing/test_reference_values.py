"""Aggregates of the oracle and of runs against values worked out by hand, and calendar grids of the oracle against brute force."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from tests.windowing.kernel_algebra import made_of
from windowmill.windowing.algebra import close
from windowmill.windowing.catalogue import parse_aggregate
from windowmill.windowing.reference.aggregates import compute
from windowmill.windowing.reference.events import Event, EventWindow, Record
from windowmill.windowing.reference.windows import GridWindows
from windowmill.windowing.windows.types import Hopping, Tumbling

NAN, INF = math.nan, math.inf


def check(written: dict[str, Any], names: tuple[str, ...], rows: list[tuple[Any, ...]], expected: Any) -> None:
    """What the oracle and what runs give for ``written`` over one window is as ``expected``; each row has a cell for each of ``names``."""
    events = [Event(n, n, (), n, n, (n,), 0, 0, Record(dict(zip(names, row, strict=True)))) for n, row in enumerate(rows)]
    spec = parse_aggregate(written)
    by_oracle = compute("a", spec, EventWindow(0, 100, events))
    assert by_oracle == expected or ("nan" in repr(expected) and close(by_oracle, expected)), by_oracle
    cells = [[row[place] for row in rows] for place in range(len(names))]
    kinds = [{type(cell) for cell in column} - {type(None)} for column in cells]
    of_nulls = "bool" if spec.declaration.takes == "boolean" else "float64"
    names_of = {int: "int64", bool: "bool", str: "string"}
    types = ["float64" if float in kind else names_of[kind.pop()] if kind else of_nulls for kind in kinds]
    aggregate = made_of(written, types)
    by_run = aggregate.lower(aggregate.of(rows))
    # Rounding shows in correlations alone.
    assert by_run == expected or (("nan" in repr(expected) or "corr" in written) and close(by_run, expected)), by_run


@pytest.mark.parametrize(
    ("written", "values", "expected"),
    [
        ({"count": "v"}, [1, None, 2], 2),
        ({"count": "v"}, [None], 0),
        ({"count_distinct": "v"}, [0.0, -0.0, math.nan, math.nan, 1.0, None], 3),
        ({"approx_distinct": "v"}, [NAN, -NAN, 0.0, -0.0], 2),
        ({"sum": "v"}, [], None),
        ({"sum": "v"}, [1.0, NAN], NAN),
        ({"sum": "v"}, [INF, -1e308], INF),
        ({"sum": "v"}, [INF, -INF], NAN),
        ({"mean": "v"}, [INF, 1.0], INF),
        ({"min": "v"}, [NAN, 1.0, -INF], -INF),
        ({"max": "v"}, [NAN, 1.0, INF], NAN),
        ({"min": "v"}, [NAN], NAN),
        ({"min_count": "v"}, [-0.0, 0.0, 1.0], 2),
        ({"range": "v"}, [NAN, 1.0], NAN),
        *(({"top_k": {"column": "v", "k": 2}}, values, [NAN, INF]) for values in ([1.0, NAN, INF], [NAN, -INF, INF])),
        ({"top_k": {"column": "v", "k": 2}}, [NAN, -INF, 1.0, NAN], [NAN, NAN]),
        ({"bottom_k": {"column": "v", "k": 2}}, [1.0, NAN, INF], [1.0, INF]),
        ({"var_samp": "v"}, [INF], None),
        ({"var_pop": "v"}, [INF], NAN),
        ({"var_samp": "v"}, [INF, 1.0], NAN),
        ({"stddev_pop": "v"}, [NAN, 1.0], NAN),
        ({"skewness": "v"}, [7.0, 7.0, 7.0], None),
        ({"skewness": "v"}, [1.0], None),
        ({"geometric_mean": "v"}, [2.0, 0.0], 0.0),
        ({"product": "v"}, [-2.0, 3.0, 0.5], -3.0),
        ({"product": "v"}, [0.0, INF], NAN),
        ({"collect_distinct": "v"}, [NAN, 0.0, NAN, -0.0], [NAN, 0.0]),
        ({"sum": "v"}, [1e16, 1.0, -1e16], 1.0),
        ({"mean": "v"}, [1e308, 1e308], 1e308),
        ({"geometric_mean": "v"}, [1, 10, 100], pytest.approx(10.0)),
        ({"geometric_mean": "v"}, [5], 5.0),
        ({"geometric_mean": "v"}, [-1, 10], pytest.approx(math.nan, nan_ok=True)),
        ({"product": "v"}, [1e-200, 1e-200, 1e300, 1e200], pytest.approx(1e100)),
        ({"product": "v"}, [math.inf, 1e-320, -1.0], -math.inf),
        ({"min_count": "v"}, [2, 1, 1, None], 2),
        ({"max_count": "v"}, [math.nan, 1.0, math.nan], 2),
        ({"range": "v"}, [3, 9, 4], 6),
        ({"top_k": {"column": "v", "k": 2}}, [1, 5, None, 3], [5, 3]),
        ({"bottom_k": {"column": "v", "k": 2}}, [None], None),
        ({"var_samp": "v"}, [1], None),
        ({"var_pop": "v"}, [7], 0.0),
        ({"var_pop": "v"}, [1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16], 22.5),
        ({"stddev_samp": "v"}, [math.inf, 1.0], pytest.approx(math.nan, nan_ok=True)),
        ({"skewness": "v"}, [1, 2, 2, 10], pytest.approx(1.1099684, rel=1e-6)),
        ({"kurtosis": "v"}, [3, 3, 3], None),
        ({"first": "v"}, [None, 4, 5], 4),
        ({"last": "v"}, [4, 5, None], 5),
        ({"collect": "v"}, [2, None, 1, 2], [2, 1, 2]),
        ({"collect_distinct": "v"}, [2, 1, 2, 3, 1], [2, 1, 3]),
        ({"concat": "v"}, ["a", None, "b"], "ab"),
        ({"quantile": {"column": "v", "q": 0.1}}, list(range(30)), 2.0),
        ({"quantile": {"column": "v", "q": 1}}, [1.0, math.inf], math.inf),
        # 4,097 neighbours are one too many, and are taken two by two.
        ({"quantile": {"column": "v", "q": 0.5}}, [0.5 + n * 2.0**-53 for n in range(4_097)], 0.5 + 2_048 * 2.0**-53),
        ({"quantile": {"column": "v", "q": 0.26}}, [0.5 + n * 2.0**-53 for n in range(4_100)], 0.5 + 1_064 * 2.0**-53),
        ({"quantile": {"column": "v", "q": 0.26, "exact": True}}, [0.5 + n * 2.0**-53 for n in range(4_100)], 0.5 + 1_065 * 2.0**-53),
        *(({"quantile": {"column": "v", "q": q}}, [3.0, 1.0, NAN, 2.0], 1.0) for q in (0, 0.1, 0.25)),
        *(({"quantile": {"column": "v", "q": q}}, [3.0, 1.0, NAN, 2.0], 2.0) for q in (0.26, 0.5)),
        *(({"quantile": {"column": "v", "q": q}}, [3.0, 1.0, NAN, 2.0], found) for q, found in ((0.75, 3.0), (1, NAN))),
        *(({"quantile": {"column": "v", "q": q}}, [-INF, -INF, 1.0, INF], found) for q, found in ((0.5, -INF), (0.75, 1.0), (1, INF))),
        ({"median": "v"}, [3, 1, 2, 10], 2.5),
        ({"median": "v"}, [3, 1, 2], 2.0),
        ({"median": "v"}, [None, 7.0], 7.0),
        ({"median": "v"}, [None], None),
        ({"median": "v"}, [1.0, NAN, NAN], NAN),
        ({"median": "v"}, [NAN, 1.0, 2.0], 2.0),
        ({"median": "v"}, [-INF, INF], NAN),
        ({"median": "v"}, [1.7e308, 1.5e308], 1.6e308),
        ({"histogram": {"column": "v", "edges": [0, 1, 2]}}, [-0.1, 0.0, 0.9, 1.0, 2.0, 2.1, NAN, None], [2, 2]),
        ({"histogram": {"column": "v", "edges": [0, 1, 2]}}, [0, 0.5, 1, 2, 2.5, -1], [2, 2]),
        ({"histogram": {"column": "v", "edges": [0, 1]}}, [], None),
        ({"bool_and": "v"}, [True, None, False], False),
        ({"bool_or": "v"}, [None], None),
    ],
    ids=str,
)
def test_aggregates_of_one_column(written: dict[str, Any], values: list[Any], expected: Any):
    check(written, ("v",), [(value,) for value in values], expected)


@pytest.mark.parametrize(
    ("written", "pairs", "expected"),
    [
        ({"weighted_mean": ["x", "y"]}, [(10, 1), (20, 3), (99, None)], 17.5),
        ({"weighted_mean": ["x", "y"]}, [(10, 0)], None),
        ({"weighted_mean": ["x", "y"]}, [(1.0, 2.0), (5.0, -2.0)], None),
        *(({function: ["x", "y"]}, [(1.0, 2.0), (None, 3.0), (4.0, None)], None) for function in ("covar_samp", "corr", "linear_trend")),
        ({"corr": ["x", "y"]}, [(2.0, 1.0), (3.0, 1.0)], None),
        ({"linear_trend": ["x", "y"]}, [(2.0, 1.0), (3.0, 1.0)], {"slope": 0.0, "intercept": 1.0}),
        ({"arg_max": ["x", "y"]}, [(1, "a"), (5, "b"), (5, "c"), (None, "d")], "b"),
        ({"arg_max": ["x", "y"]}, [(5.0, "b"), (math.nan, None)], None),
        ({"arg_min": ["x", "y"]}, [(0.0, "a"), (-0.0, "b")], "a"),
        ({"covar_samp": ["x", "y"]}, [(1, 2), (2, 4), (3, None)], 1.0),
        ({"corr": ["x", "y"]}, [(1, 2), (2, 4), (3, 6)], 1.0),
        ({"corr": ["x", "y"]}, [(1, 2), (1, 4)], None),
        ({"linear_trend": ["x", "y"]}, [(1, 3), (2, 5)], {"slope": 2.0, "intercept": 1.0}),
        ({"linear_trend": ["x", "y"]}, [(1, 3), (1, 5)], None),
    ],
    ids=str,
)
def test_aggregates_of_two_columns(written: dict[str, Any], pairs: list[Any], expected: Any):
    check(written, ("x", "y"), pairs, expected)


DAY_US = 86_400_000_000
ZONES = [None, "America/New_York", "Europe/Berlin", "America/Sao_Paulo", "Pacific/Apia"]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("size", ["1 day", "2 days", "1 week", "1 month", "1 quarter", "1 year", "1 day 6 hours", "6 hours"])
@pytest.mark.parametrize("origin", [None, "2011-01-31", "2030-03-10T02:30:00"])
def test_tumbling_calendar_windows_cover_time_once_and_in_order(zone: str | None, size: str, origin: str | None):
    grid = GridWindows(
        Tumbling.model_validate({"name": "w", "type": "tumbling", "size": size, "timezone": zone, "origin": origin}).rules(), False
    )
    chance = random.Random(7)
    for _ in range(12):
        instant = chance.randrange(-3_000 * DAY_US, 30_000 * DAY_US)
        [(start, end)] = grid.holding(instant, instant + 1)
        assert start <= instant < end
        [(_, before), (opens, _)] = grid.holding(start - 1, start + 1)
        assert before == opens == start


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize(("size", "hop"), [("1 month", "1 day"), ("1 day", "5 hours"), ("3 days", "1 week"), ("1 day", "1 month")])
def test_hopping_calendar_windows_are_those_of_brute_force(zone: str | None, size: str, hop: str):
    grid = GridWindows(Hopping.model_validate({"name": "w", "type": "hopping", "size": size, "hop": hop, "timezone": zone}).rules(), False)
    chance = random.Random(7)
    for _ in range(6):
        instant = chance.randrange(0, 20_000 * DAY_US)
        wide = list(grid.holding(instant - 70 * DAY_US, instant + 70 * DAY_US))
        assert list(grid.holding(instant, instant + 1)) == [(start, end) for start, end in wide if start <= instant < end]
