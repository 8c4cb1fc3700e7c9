"""What the state's columns are called depends on what they hold, never on the order in which a spec writes it."""

from __future__ import annotations

import random
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowmill.windowing.columnar.keyed import StateLog
from windowmill.windowing.errors import SpecError
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

TYPES = {
    "t": pa.timestamp("us", "UTC"), "k": pa.string(), "a.b": pa.float64(), "a_b": pa.float64(), "a": pa.float64(), "b": pa.float64(),
    "v": pa.int64(), "least_v": pa.int64(), "count_v": pa.string(), "label": pa.string(),
}  # fmt: skip
BASE: dict[str, Any] = {
    "pipeline": "p", "keys": ["k"], "time": {"column": "t", "disorder": "5 minutes"},
    "windows": [{"name": "w", "type": "tumbling", "size": "1 hour"}],
}  # fmt: skip
#: Windows that keep rows, in a log.
ROWS: dict[str, Any] = {"windows": [{"name": "spans", "type": "snapshot"}]}
NUMBERS = st.sampled_from(["a.b", "a_b", "a", "b", "v", "least_v"])
FUNCTIONS = st.one_of(
    st.tuples(st.sampled_from(["count", "sum", "mean", "min", "max", "min_count", "first", "last", "stddev_samp"]), NUMBERS),
    st.tuples(st.sampled_from(["arg_min", "arg_max", "weighted_mean", "corr"]), st.lists(NUMBERS, min_size=2, max_size=2)),
    st.builds(lambda column, edge: ("histogram", {"column": column, "edges": [0, edge]}), NUMBERS, st.integers(1, 3)),
    st.just(("count", "*")),
)
WHERE = st.sampled_from([{}, {}, {"where": "v > 1"}, {"where": "v > 2"}, {"where": "a > 1"}])
AGGREGATE = st.builds(lambda function, where: {function[0]: function[1]} | where, FUNCTIONS, WHERE)


def spec_of(aggregates: dict[str, Any], **changes: Any) -> Pipeline:
    return parse_pipeline(BASE | {"aggregates": aggregates} | changes)


def shuffled(value: Any, rng: random.Random) -> Any:
    """``value`` with every mapping in it in another order."""
    if isinstance(value, dict):
        names = list(value)
        rng.shuffle(names)
        return {name: shuffled(value[name], rng) for name in names}
    return [shuffled(item, rng) for item in value] if isinstance(value, list) else value


def fields_of(pipeline: Pipeline) -> dict[str, set[tuple[str, str]]]:
    """(column of the state, type) by aggregate."""
    layout = Layout.of(pipeline, TYPES)
    assert len({field.name.lower() for field in layout.fields}) == len(layout.fields)
    return {
        result.name: {(field.name, str(field.type)) for field in layout.fields if field.atom in result.atoms} for result in layout.results
    }


@given(
    st.dictionaries(st.from_regex(r"[a-z]{3}_[a-z]", fullmatch=True), AGGREGATE, min_size=1, max_size=8), st.randoms(use_true_random=False)
)
def test_a_permutation_of_any_mapping_changes_no_hash_and_no_label(aggregates, rng):
    spec = BASE | {
        "aggregates": aggregates,
        "windows": [*BASE["windows"], {"name": "last", "type": "sliding", "evict": {"delta": {"column": "v", "by": 2}}}],
    }
    one, other = parse_pipeline(spec), parse_pipeline(shuffled(spec, rng))
    assert one.meaning_hash() == other.meaning_hash()
    assert fields_of(one) == fields_of(other)
    logs = [StateLog(parse_pipeline(written), TYPES, one.conditions()) for written in (spec | ROWS, shuffled(spec | ROWS, rng))]
    assert dict(logs[0].conditions) == dict(logs[1].conditions)
    assert set(logs[0].schema) == set(logs[1].schema)


@pytest.mark.parametrize(
    "pair",
    [
        ({"sum": "a.b"}, {"sum": "a_b"}),
        ({"count": "*", "where": "v > 1"}, {"count": "*", "where": "v > 2"}),
        ({"min": "v"}, {"first": "v"}),
        ({"arg_max": ["a_b", "v"]}, {"arg_max": ["a.b", "v"]}),
        ({"corr": ["a", "b_a"]}, {"corr": ["a_b", "a"]}),
        ({"histogram": {"column": "v", "edges": [0, 1]}}, {"histogram": {"column": "v", "edges": [0, 2]}}),
        ({"count": "least_v"}, {"min_count": "v"}),
    ],
)
def test_aggregates_that_differ_never_share_or_swap_columns(pair):
    types = TYPES | {"b_a": pa.float64()}
    layouts = [Layout.of(spec_of(aggregates), types) for aggregates in ({"x": pair[0], "y": pair[1]}, {"y": pair[1], "x": pair[0]})]
    found = [{result.name: {f.name for f in layout.fields if f.atom in result.atoms} for result in layout.results} for layout in layouts]
    assert found[0] == found[1]
    assert found[0]["x"] != found[0]["y"]


def test_a_key_named_like_a_partial_moves_no_other_column():
    types = TYPES | {"count_a": pa.string()}
    names = [field.name for field in Layout.of(spec_of({"s": {"sum": "a"}, "n": {"count": "*"}}, keys=["count_a"]), types).fields]
    assert names[0] == "rows"
    assert names[1].startswith("count_a_")
    assert names[2:] == ["sum_float_a__carry", "sum_float_a__sum", "sum_float_a__error"]


def test_names_that_were_clear_before_stay():
    layout = Layout.of(spec_of({"n": {"count": "*"}, "big": {"sum": "a", "where": "v > 1"}, "high": {"max": "label"}}), TYPES)
    assert [field.name for field in layout.fields] == [
        "rows", "count_a_where", "sum_float_a_where__carry", "sum_float_a_where__sum", "sum_float_a_where__error", "greatest_label__value",
    ]  # fmt: skip
    log = StateLog(spec_of({"n": {"collect": "a", "where": "v > 1"}}, **ROWS), TYPES, ["v > 1"])
    assert log.conditions == {condition_column("v > 1"): "_where_0"}


def test_columns_of_the_log_that_would_share_a_name_are_refused():
    other = f"a_b_{crc32(b'a.b'):08x}"
    pipeline = spec_of({"x": {"collect": "a.b"}, "y": {"collect": other}}, **ROWS)
    with pytest.raises(SpecError, match=f"two columns of the state would be named '{other}'"):
        StateLog(pipeline, TYPES | {other: pa.float64()}, ())
    assert "a_b" in StateLog(spec_of({"x": {"collect": "a.b"}, "y": {"collect": "a_b"}}, **ROWS), TYPES, ()).schema.names


def test_a_limit_of_the_future_that_was_changed_is_another_meaning():
    lengths = ("2 days", "3 days", None)
    assert len({spec_of({"n": {"count": "*"}}, time={"column": "t", "max_future_skew": length}).meaning_hash() for length in lengths}) == 3


@pytest.mark.parametrize(("unit", "limit"), [(None, "1 day"), ("s", "1 day"), ("ms", "1 day"), ("us", "1 day"), ("none", "None")])
def test_an_event_may_be_a_day_in_the_future_unless_the_axis_is_no_time(unit, limit):
    size = "1 hour" if unit is None else 10
    time = {"column": "t"} | ({"unit": unit} if unit else {})
    pipeline = spec_of({"n": {"count": "*"}}, time=time, windows=[{"name": "w", "type": "tumbling", "size": size}])
    assert str(pipeline.time.max_future_skew) == limit
    assert Pipeline.model_validate(pipeline.model_dump(mode="json")) == pipeline
    assert Pipeline.model_validate(pipeline.model_dump(mode="json", exclude_unset=True)) == pipeline
    assert (
        parse_pipeline(BASE | {"aggregates": {"n": {"count": "*"}}, "time": {"column": "t", "max_future_skew": None}}).time.max_future_skew
        is None
    )
