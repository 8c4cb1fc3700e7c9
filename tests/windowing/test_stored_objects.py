"""Partials that are Python objects, lifted from runs of rows: each distinct value once where the aggregate allows it."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.specs import a_spec
from windowmill.windowing.aggregates import aggregate_for
from windowmill.windowing.columnar.objects import StoredObjects
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.specfile import parse_pipeline

TYPES = {"i": pa.int64(), "f": pa.float64(), "s": pa.string(), "t": pa.timestamp("us", "UTC"), "l": pa.list_(pa.int64())}
VALUES = {
    "i": st.integers(-3, 3),
    "f": st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf")]),
    "s": st.sampled_from(["", "a", "é", "NaN"]),
    "t": st.integers(0, 3),
    "l": st.lists(st.integers(0, 2), max_size=2),
}


def _objects(column, where=None):
    spec = a_spec(time={"column": "at"}, aggregates={"n": {"count_distinct": column} | ({"where": where} if where else {})})
    pipeline = parse_pipeline(spec)
    return pipeline.aggregates["n"], StoredObjects(Layout.of(pipeline, TYPES).objects)


@pytest.mark.parametrize("where", [None, "i > 0"], ids=["all", "some"])
@pytest.mark.parametrize("column", TYPES)
@given(data=st.data())
def test_distinct_values_of_a_run_are_those_of_its_rows(column, where, data):
    values = data.draw(st.lists(st.none() | VALUES[column], max_size=30))
    holds = data.draw(st.lists(st.none() | st.booleans(), min_size=len(values), max_size=len(values)))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(values) - 1)), max_size=4))) if len(values) > 1 else []
    bounds = np.array([0, *cuts, len(values)] if values else [0], np.int64)
    rows = pa.table({column: pa.array(values, TYPES[column]), condition_column("i > 0"): pa.array(holds, pa.bool_())})
    spec, objects = _objects(column, where)
    lifted = objects.lift(rows, bounds, "at", ())[:, 0]
    aggregate = aggregate_for(spec, ["any" if column in ("t", "l") else {"i": "int64", "f": "float64", "s": "string"}[column]])
    for partial, (first, stop) in zip(lifted, itertools.pairwise(bounds.tolist()), strict=True):
        counted = [value for value, holding in zip(values[first:stop], holds[first:stop], strict=True) if where is None or holding]
        wanted = aggregate.identity
        for value in counted:
            wanted = aggregate.combine(wanted, aggregate.lift((value,), (0, ())))
        assert partial == wanted
