"""Cases of the sliding-window-aggregators library of IBM, over the kernels that runs use; each names the file that it is taken from."""

from __future__ import annotations

import json
from bisect import bisect_left
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.specs import a_spec
from windowmill.windowing.columnar.keyed import Aggregation
from windowmill.windowing.slicing.leaves import Leaves, Windows
from windowmill.windowing.specfile import parse_pipeline


def swag(model: str) -> list[Any]:
    """The cases of a model."""
    cases = json.loads((Path(__file__).parents[1] / "data" / "swag.json").read_text())
    found = [case for case in cases if case["spec"]["model"] == model]
    assert found
    return [pytest.param(case, id=case["id"]) for case in found]


def answers(case: dict[str, Any], times: list[int], values: list[int], **windows: Any) -> list[dict[str, Any]]:
    """What the case's aggregate gives for each window over leaves at ``times``."""
    [asked] = case["aggregations"]
    function = asked if isinstance(asked, str) else asked["fn"]
    name = {"list": "collect", "avg_int": "mean"}.get(function, function)
    empty = 0 if function == "avg_int" else None if isinstance(asked, str) else asked["empty"]
    pipeline = parse_pipeline(a_spec(time={"column": "t"}, aggregates={"a": {name: "x"}}))
    n, at = len(values), np.array(times, np.int64)
    order, zeros = np.arange(n), np.zeros(n, np.int64)
    table = pa.table({"x": pa.array(values, pa.int64())})
    leaves = Leaves(table, np.array([0, n]), zeros, order, at, at, zeros, np.ones(n, np.bool_), order)
    numbers = np.zeros(len(case["expected"]), np.int64)
    columns, _ = Aggregation(pipeline, {"x": pa.int64()}).over(leaves).combine(Windows.of(numbers, numbers, numbers, **windows))
    column = columns["a"]
    found = column.to_pylist() if isinstance(column, pa.Array | pa.ChunkedArray) else list(column)
    whole = [int(value) if function == "avg_int" and value is not None else value for value in found]
    return [{"value": empty if value is None else value} for value in whole]


@pytest.mark.parametrize("case", swag("fifo"))
def test_first_in_first_out_cases(case):
    """Windows are ranges of a sequence, by two stacks."""
    values, low, ranges = [], 0, []
    for item in case["input"]:
        if "push" in item:
            values.append(item["push"])
        low = min(low + item.get("pop", 0), len(values))
        if "query" in item:
            ranges.append((low, len(values)))
    lo, hi = np.array(ranges, np.int64).T.copy()
    assert answers(case, list(range(len(values))), values, ranges=(np.arange(len(values)), lo, hi)) == case["expected"]


@pytest.mark.parametrize("case", swag("ordered"))
def test_cases_by_time_with_late_insertions_and_deletions(case):
    """Windows list their leaves, in order of time."""
    every = sorted((*item["insert"], number) for number, item in enumerate(case["input"]) if "insert" in item)
    place_of = {number: place for place, (_, _, number) in enumerate(every)}
    times, values = [time for time, _, _ in every], [value for _, value, _ in every]
    held: dict[int, int] = {}
    members, offsets = [], [0]
    for number, item in enumerate(case["input"]):
        if "insert" in item:
            held[item["insert"][0]] = place_of[number]
        elif "evict" in item:
            held.pop(item["evict"], None)
        else:
            low, high = item.get("range", (-(2**62), 2**62))
            first, stop = bisect_left(times, low), bisect_left(times, high + 1)
            members += sorted(place for place in held.values() if first <= place < stop)
            offsets.append(len(members))
    assert answers(case, times, values, members=(np.array(offsets, np.int64), np.array(members, np.int64))) == case["expected"]
