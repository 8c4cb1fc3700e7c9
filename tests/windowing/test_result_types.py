"""Types of arguments that aggregates cannot take, and results as columns of the sink."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.specs import a_spec
from windowmill.windowing.aggregates import adapt_own
from windowmill.windowing.columnar.results import result_schema, typed
from windowmill.windowing.errors import SpecError
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

NESTED = [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64())]


class Spread:
    """The least and the greatest value."""

    commutative, result = True, "list<int64>"

    def lift(self, value: int) -> tuple[int, int]:
        return value, value

    def combine(self, older: tuple[int, int], newer: tuple[int, int]) -> tuple[int, int]:
        return min(older[0], newer[0]), max(older[1], newer[1])

    def lower(self, partial: tuple[int, int]) -> list[int]:
        return list(partial)


def pipeline_of(aggregate: dict[str, Any]) -> Pipeline:
    return parse_pipeline(a_spec(aggregates={"found": aggregate}))


@pytest.mark.parametrize("kind", NESTED, ids=str)
@pytest.mark.parametrize(
    "aggregate",
    [
        {"top_k": {"column": "v", "k": 2}},
        {"bottom_k": {"column": "v", "k": 2}},
        {"max": "v"},
        {"min_count": "v"},
        {"arg_max": ["v", "t"]},
    ],
    ids=lambda aggregate: next(iter(aggregate)),
)
def test_values_without_an_order_are_refused(aggregate, kind):
    pipeline, types = pipeline_of(aggregate), {"t": pa.timestamp("us", "UTC"), "v": kind}
    for fails in (Layout.of, result_schema):
        with pytest.raises(SpecError, match=r"aggregates.found: .* of column 'v' of type .*; expected values that have an order"):
            fails(pipeline, types)


@pytest.mark.parametrize("kind", [pa.binary(), pa.date32(), *NESTED], ids=str)
def test_a_quantile_of_what_is_no_number_is_refused(kind):
    pipeline = pipeline_of({"quantile": {"column": "v", "q": 0.5}})
    for fails in (Layout.of, result_schema):
        with pytest.raises(SpecError, match=r"quantile of column 'v' of type .*; expected numbers, booleans or instants"):
            fails(pipeline, {"t": pa.timestamp("us", "UTC"), "v": kind})


def test_a_users_result_of_no_type_that_it_may_declare_is_json():
    pipeline = pipeline_of({"use": f"{__name__}:Spread", "args": ["v"]})
    types = {"t": pa.timestamp("us", "UTC"), "v": pa.int64()}
    assert result_schema(pipeline, types).field("found").type == pa.string()


def test_the_same_result_is_the_same_json_whether_its_partial_was_stored_or_not():
    assert typed("own", [7, np.int64(7), np.float64(0.5), np.bool_(True)], pa.string(), as_json=True).to_pylist() == [
        "7",
        "7",
        "0.5",
        "true",
    ]


@pytest.mark.parametrize(("value", "why"), [("text", "text"), (7.5, "7.5 is not a whole number"), (1 << 70, "")])
def test_a_result_of_another_type_than_declared_names_its_aggregate(value, why):
    with pytest.raises(SpecError, match=f"aggregate own: its results do not fit its column of type int64 .*{why}"):
        typed("own", [1, value, None], pa.int64(), as_json=False)


def test_instants_inside_lists_are_listed():
    instant, kind = datetime(2024, 1, 1, tzinfo=UTC), pa.timestamp("us", "UTC")
    assert typed("c", [[[instant]], None], pa.list_(pa.list_(kind)), as_json=False).to_pylist() == [[[instant]], None]
    assert typed("c", [[1_704_067_200_000_000], None], pa.list_(kind), as_json=False).to_pylist() == [[instant], None]


@pytest.mark.parametrize("value", ["no", lambda: False, 1])
def test_a_property_is_true_or_false(value):
    class Odd(Spread):
        commutative = value

    with pytest.raises(SpecError, match=r"use: 'odd': commutative is of type (str|function|method|int); expected True or False"):
        adapt_own(Odd, "odd")
