"""Every aggregate over every type of column: what the reference page promises, `validate --source` accepts, and `try` and runs compute."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from tests.specs import TENS, TICKS, a_spec
from windowmill.jobs.cli import main
from windowmill.jobs.commands.source_look import source_problems
from windowmill.jobs.commands.try_command import ENGINES, TryBatch
from windowmill.testing import try_pipeline
from windowmill.windowing.aggregates import argument_types
from windowmill.windowing.algebra import close
from windowmill.windowing.catalogue import DECLARED, parse_aggregate
from windowmill.windowing.columnar.results import result_types
from windowmill.windowing.errors import AggregateOverflowError, SpecError
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

_DAY, _INSTANT = date(2024, 2, 28), datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)
_SPANS = [127, -1, 0, None, 3, -128, 127, 2, 2, 5, None, 1]


def _decimals(digits: int, scale: int) -> list[Decimal | None]:
    widest = Decimal(10**digits - 1).scaleb(-scale, Context(prec=38))
    cells = [0, 1, -1, None, 2, 2, -3, 50, 5, 7]
    return [widest, *(None if cell is None else Decimal(cell).scaleb(-scale) for cell in cells), widest.copy_negate()]


#: Columns of twelve rows, by name: the extremes of each type, zeros, nulls and equal values among them.
COLUMNS: Mapping[str, pa.Array] = {
    "truth": pa.array([True, False, None, True, True, True, False, False, None, None, True, True]),
    "tiny": pa.array(_SPANS, pa.int8()),
    "short": pa.array([None if v is None else v * 256 for v in _SPANS], pa.int16()),
    "whole": pa.array([None if v is None else v * 2**24 for v in _SPANS], pa.int32()),
    "long": pa.array([None if v is None else v * 2**53 + 1 for v in _SPANS], pa.int64()),
    "single": pa.array([None if v is None else v / 4 for v in _SPANS], pa.float32()),
    "double": pa.array([None if v is None else v / 10 for v in _SPANS], pa.float64()),
    "money": pa.array(_decimals(4, 2), pa.decimal128(4, 2)),
    "price": pa.array(_decimals(18, 6), pa.decimal128(18, 6)),
    "fine": pa.array(_decimals(34, 34), pa.decimal128(34, 34)),
    "text": pa.array(["b", "", None, "é", "a", "b", "c", "", None, None, "a", "z"]),
    "bytes": pa.array([b"b", b"\xff", None, b"", b"a", b"b", b"c", b"", None, None, b"a", b"z"]),
    "day": pa.array([None if v is None else _DAY + timedelta(days=v) for v in _SPANS], pa.date32()),
    "instant": pa.array([None if v is None else _INSTANT + timedelta(microseconds=v * 250_000) for v in _SPANS], pa.timestamp("us", "UTC")),
    "items": pa.array([None if v is None else [v, None] for v in _SPANS], pa.list_(pa.int64())),
    "pair": pa.array([None if v is None else {"a": v} for v in _SPANS], pa.struct([("a", pa.int64())])),
}
ROWS = pa.table(
    {
        "t": pa.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13], pa.int64()),
        "until": pa.array([2, 1, 9, 4, 5, 7, 8, 7, 12, 9, 11, 15], pa.int64()),
        "k": pa.array(["a", "b"] * 6),
        "id": pa.array(range(12), pa.int64()),
        "other": pa.array([1.5, 2.0, None, 0.25, 0.0, 3.0, 1.0, 2.5, 2.0, 8.0, 1.0, 0.5]),
        **COLUMNS,
    }
)
TYPES = {field.name: field.type for field in ROWS.schema}
#: Windows of slices, of positions, of sessions, and of live rows.
WINDOWS = [
    {"name": "slices", "type": "hopping", "size": 6, "hop": 4},
    {"name": "positions", "type": "sliding", "evict": {"count": 4}, "trigger": {"count": 2}},
    {"name": "visits", "type": "session", "gap": 2},
    {"name": "starts", "type": "count", "count": 3},
]


def written(function: str, column: str) -> dict[str, Any]:
    """The aggregate over ``column``, with the column `other` or `id` as its second argument."""
    if DECLARED[function].options:
        options: Mapping[str, Any] = {"k": 2, "q": 0.4, "edges": [-1, 0, 0.1, 50, 1e30]}
        return {function: {"column": column} | {name: options[name] for name in DECLARED[function].options if name in options}}
    second = "id" if function in ("arg_min", "arg_max") else "other"
    return {function: [column, second] if len(DECLARED[function].columns) == 2 else column}


def is_taken(function: str, column: str) -> bool:
    try:
        argument_types(parse_aggregate(written(function, column)), TYPES, "a")
    except SpecError:
        return False
    return True


EVERY = [(function, column) for function in DECLARED.built_in for column in COLUMNS]
TAKEN = [(function, column) for function, column in EVERY if is_taken(function, column)]


def plain(value: Any) -> Any:
    """``value`` with instants as microseconds since 1970, and NaN as itself."""
    if value == "NaN":
        return math.nan
    if isinstance(value, datetime):
        return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return list(map(plain, value)) if isinstance(value, list) else value


def place(row: Mapping[str, Any]) -> str:
    return str([row[name] for name in ("k", "window", "window_end", "trigger", "window_start")])


def check(rows: Sequence[Mapping[str, Any]], pipeline: Pipeline) -> None:
    """Compare ``rows`` with the reference engine's, which implements each aggregate a second time, over plain values."""
    found, wanted = (sorted(each, key=place) for each in (rows, tried(pipeline, "reference", 12)))
    assert {row["window"] for row in wanted} == {window.name for window in pipeline.windows}
    assert list(map(place, found)) == list(map(place, wanted))
    wrong = []
    for row, other in zip(found, wanted, strict=True):
        for name in pipeline.aggregates:
            got, want = plain(row[name]), plain(other[name])
            # Words of 53 bits leave 9 digits of a fourth moment (docs/numerics.md); text, whole numbers and decimals are exact.
            if type(got) is not type(want) or not close(got, want):
                wrong.append((name, place(row), row["ids"], got, want))
    assert wrong == []


def pipeline_of(aggregates: Sequence[tuple[str, str]], **fields: Any) -> dict[str, Any]:
    named = {f"{function}_{column}": written(function, column) for function, column in aggregates}
    return a_spec(keys=["k"], time=TICKS, windows=WINDOWS, aggregates={"ids": {"collect": "id"}, **named}) | fields


def lasting(fields: dict[str, Any]) -> dict[str, Any]:
    return fields | {"time": {**TICKS, "end": "until"}, "windows": WINDOWS[:1]}


POINTS = [pair for pair in TAKEN if pair[0] != "time_weighted_mean"]
OVER_TIME = [pair for pair in TAKEN if pair[0] == "time_weighted_mean"]


def tried(pipeline: Pipeline, engine: str, rows_a_batch: int, rows: pa.Table = ROWS) -> Sequence[Mapping[str, Any]]:
    run = ENGINES[engine](pipeline, math.inf)
    for first in range(0, len(rows), rows_a_batch):
        part = rows.slice(first, rows_a_batch)
        run.feed(TryBatch(part, {}, np.arange(first, first + len(part))))
    return run.finish(final=True).rows


#: Over all twelve rows, worked out by hand.
BY_HAND = {
    "sum_money": Decimal("0.63"), "mean_money": Decimal("0.057273"), "range_money": Decimal("199.98"), "mean_fine": Decimal("5.7273E-34"),
    "sum_long": 138 * 2**53 + 10, "count_distinct_money": 10, "quantile_money": 0.01, "histogram_money": [2, 6, 1, 1], "arg_max_day": 0,
    "concat_truth": "truefalsetruetruetruefalsefalsetruetrue", "concat_money": "99.990.000.01-0.010.020.02-0.030.500.050.07-99.99",
    "top_k_day": [date(2024, 7, 4)] * 2, "min_day": date(2023, 10, 23), "min_count_text": 2, "max_bytes": b"\xff", "bool_and_truth": False,
}  # fmt: skip


@pytest.mark.parametrize("engine", ["reference", "kernel"])
def test_results_over_all_rows_are_those_worked_out_by_hand(engine):
    [row] = tried(parse_pipeline(pipeline_of(POINTS, windows=[TENS | {"size": 20}], keys=[])), engine, 5)
    assert {name: row[name] for name in BY_HAND} == BY_HAND


def test_instants_are_numbers_where_the_page_says_so():
    assert {function for function, column in TAKEN if column == "instant"} - {
        function for function in DECLARED.built_in if DECLARED[function].takes is None
    } == {"median", "quantile"}


@pytest.mark.parametrize("rows_a_batch", [12, 5])
def test_kernels_compute_what_is_taken(rows_a_batch):
    for spec in (pipeline_of(POINTS), lasting(pipeline_of(OVER_TIME))):
        check(tried(parse_pipeline(spec), "kernel", rows_a_batch), parse_pipeline(spec))


@pytest.mark.local
def test_runs_compute_what_is_taken(tmp_path: Path):
    """In two batches, so that partials have been stored; without nested columns, which only Spark reads: their partials are the same."""
    plain_points = [(function, column) for function, column in POINTS if not pa.types.is_nested(TYPES[column])]
    for name, aggregates in (("points", plain_points), ("lasting", OVER_TIME)):
        spec, folder = pipeline_of(aggregates), tmp_path / name
        spec = lasting(spec) if name == "lasting" else spec
        # A last row, of no window that is looked at, completes all others.
        ahead = pa.table({column: pa.nulls(1, kind) for column, kind in TYPES.items()})
        ahead = ahead.set_column(0, "t", pa.array([1000])).set_column(1, "until", pa.array([1000])).set_column(2, "k", pa.array(["c"]))
        places = {"source": {"path": str(folder / "source")}, "sink": {"path": str(folder / "sink")}, "compute": "local"}
        folder.mkdir()
        (folder / "spec.yaml").write_text(yaml.safe_dump(spec | places))
        for part in (ROWS.slice(0, 7), pa.concat_tables([ROWS.slice(7), ahead])):
            write_deltalake(folder / "source", part, mode="append")
            assert main(["run", str(folder / "spec.yaml")]) == 0
        pipeline = parse_pipeline(spec | places)
        assert list(source_problems(pipeline)) == []
        sink = pa.table(DeltaTable(folder / "sink").to_pyarrow_table())
        kinds = {name: sink.schema.field(name).type for name in pipeline.aggregates}
        assert kinds == result_types(pipeline, TYPES)
        check([row for row in sink.to_pylist() if row["k"] != "c"], pipeline)


@pytest.mark.parametrize("function", DECLARED.built_in)
def test_what_is_refused_is_refused_alike_and_in_words_that_are_true(function):
    refused = [column for other, column in EVERY if other == function and (other, column) not in TAKEN]
    for column in refused:
        spec = pipeline_of([(function, column)])
        pipeline = parse_pipeline(lasting(spec) if function == "time_weighted_mean" else spec)
        message = f"pipeline p: aggregates.{function}_{column}: {function} of column '{column}' of type {TYPES[column]}; expected "
        for attempt in (
            lambda pipeline=pipeline: result_types(pipeline, TYPES),
            lambda pipeline=pipeline: tried(pipeline, "kernel", 12),
            lambda pipeline=pipeline: tried(pipeline, "reference", 12),
        ):
            with pytest.raises(SpecError, match=f"^{re.escape(message)}"):
                attempt()


def test_the_column_that_does_not_fit_is_the_one_that_is_named():
    pipeline = parse_pipeline(pipeline_of([]) | {"aggregates": {"line": {"linear_trend": ["double", "text"]}}})
    with pytest.raises(SpecError, match="linear_trend of column 'text' of type string; expected numbers or booleans"):
        result_types(pipeline, TYPES)


def test_json_lines_are_taken_as_columns_are():
    columns = ("truth", "tiny", "double", "text")
    aggregates = [pair for pair in POINTS if pair[1] in columns]
    rows = ROWS.select(["t", "k", "id", "other", *columns]).to_pylist()
    outcome = try_pipeline(pipeline_of(aggregates), rows, engines=["kernel", "reference"], batches=5)
    assert outcome.quarantined == []
    check(outcome.rows, parse_pipeline(pipeline_of(aggregates)))


GREAT_WINDOWS = [
    {"name": "slices", "type": "hopping", "size": 100, "hop": 50},
    {"name": "positions", "type": "sliding", "evict": {"count": 8}, "trigger": {"count": 8}},
    {"name": "near", "type": "sliding", "evict": {"delta": {"column": "t", "by": 90}}, "trigger": {"count": 8}},
    {"name": "visits", "type": "session", "gap": 20},
]
#: Whole numbers whose sum, a small one, leaves 64 bits on its way, whatever stretch of them is combined first.
GREAT = pa.array([2**63 - 1, 2**63 - 1, 2**63 - 1, 5, -(2**63), -(2**63), -(2**63), 4], pa.int64())
#: As many decimals of 38 digits, of which two leave them, and four leave 128 bits.
_ENDS = ["99", "99", "99", "50", "99", "99", "99", "48"]
_DECIMALS = [Decimal(f"{sign}{'9' * 36}.{digits}") for sign, digits in zip("++++----", _ENDS, strict=True)]
GREATEST = pa.array(_DECIMALS, pa.decimal128(38, 2))


def great_rows(values: pa.Array) -> pa.Table:
    return pa.table({"k": ["a"] * 8, "t": range(0, 32, 4), "v": values, "narrow": [0, 1] * 4})


def great(**fields: Any) -> dict[str, Any]:
    aggregates = {"total": {"sum": "v"}, "mean": {"mean": "v"}, "narrow": {"sum": "narrow"}}
    return a_spec(keys=["k"], time=TICKS, windows=GREAT_WINDOWS, aggregates=aggregates) | fields


def check_great(rows: Sequence[Mapping[str, Any]], *results: Any) -> None:
    whole = [row for row in rows if row["narrow"] == 4]
    assert {row["window"] for row in whole} == {window["name"] for window in GREAT_WINDOWS}
    assert {(row["total"], row["mean"]) for row in whole} == {results}


@pytest.mark.parametrize(
    ("values", "results", "parts", "refusal"),
    [
        (GREAT, (6, 6 / 8), [3], r"aggregates\.total: sum over a window is 27670116110564327421, beyond its type"),
        (GREATEST, (Decimal("0.02"), Decimal("0.0025")), [2, 3, 4], "more than 38 digits"),
    ],
    ids=["64 bits", "38 digits"],
)
@pytest.mark.parametrize("rows_a_batch", [8, 3, 1])
def test_a_sum_may_leave_its_type_on_its_way_and_a_window_whose_own_sum_does_is_an_error(values, results, parts, refusal, rows_a_batch):
    for engine in ("kernel", "reference"):
        check_great(tried(parse_pipeline(great()), engine, rows_a_batch, great_rows(values)), *results)
    for number in parts:
        with pytest.raises(AggregateOverflowError, match=refusal):
            tried(parse_pipeline(great(windows=GREAT_WINDOWS[:1])), "kernel", rows_a_batch, great_rows(values).slice(0, number))


@pytest.mark.local
@pytest.mark.parametrize("rows_a_run", [8, 1])
def test_runs_sum_alike_however_the_rows_are_cut(tmp_path: Path, rows_a_run: int):
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(a_spec(tmp_path) | great()))
    rows = pa.concat_tables([great_rows(GREAT), pa.table({"k": ["z"], "t": [1000], "v": [0], "narrow": [0]})])
    for first in range(0, len(rows), rows_a_run):
        write_deltalake(tmp_path / "source", rows.slice(first, rows_a_run), mode="append")
        assert main(["run", str(tmp_path / "spec.yaml")]) == 0
    check_great(pa.table(DeltaTable(tmp_path / "sink").to_pyarrow_table()).to_pylist(), 6, 6 / 8)
