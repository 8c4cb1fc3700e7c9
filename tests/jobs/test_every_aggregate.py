"""Every aggregate over every type of column: what the reference page promises, `validate --source` accepts, and `try` and runs compute.

The oracle is plain exact arithmetic over the rows that `collect` says a window holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from tests.specs import TICKS, a_spec
from windowmill.jobs.cli import main
from windowmill.jobs.commands.source_look import source_problems
from windowmill.jobs.commands.try_command import ENGINES
from windowmill.jobs.commands.try_engine import TryBatch
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


EVERY = [(function, column) for function in DECLARED.built_in() for column in COLUMNS]
TAKEN = [(function, column) for function, column in EVERY if is_taken(function, column)]


# -- The oracle


def _total(values: Sequence[Any]) -> Fraction:
    return sum(map(Fraction, values), Fraction(0))


def _decimal(value: Fraction, digits: int) -> Decimal:
    wide = Context(prec=90)
    return wide.divide(Decimal(value.numerator), Decimal(value.denominator)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP, wide)


def _exactly(value: Fraction, values: Sequence[Any], finer: int = 0) -> Any:
    """``value`` in the type of exact results over ``values``."""
    if isinstance(values[0], Decimal):
        return _decimal(value, -int(values[0].as_tuple().exponent) + finer)
    return float(value) if finer or isinstance(values[0], float) else int(value)


def _moment(values: Sequence[Any], power: int) -> Fraction:
    mean = _total(values) / len(values)
    return sum(((Fraction(value) - mean) ** power for value in values), Fraction(0)) / len(values)


def _shape(values: Sequence[Any], power: int, less: float) -> float | None:
    spread = _moment(values, 2)
    return float(_moment(values, power)) / math.sqrt(spread) ** power - less if spread else None


def _geometric(values: Sequence[Any]) -> float:
    if any(value < 0 for value in values):
        return math.nan
    return math.exp(sum(math.log(value) for value in values) / len(values)) if all(values) else 0.0


def _text(value: Any) -> str:
    if isinstance(value, Decimal):
        return f"{value:f}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unique(values: Sequence[Any]) -> list[Any]:
    return [value for place, value in enumerate(values) if value not in values[:place]]


def _quantile(values: Sequence[Any], q: str) -> float:
    return float(sorted(values)[max(0, math.ceil(Fraction(q) * len(values)) - 1)])


def _histogram(values: Sequence[Any]) -> list[int]:
    edges = [Fraction(edge) for edge in ("-1", "0", "0.1", "50", "1e30")]
    return [sum(low <= value < high for value in map(Fraction, values)) for low, high in pairwise(edges)]


def _median(values: Sequence[Any]) -> float:
    ordered = sorted(map(float, values))
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


#: The result over the values of one column, none of them null and at least one.
ONE: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "sum": lambda v: _exactly(_total(v), v),
    "mean": lambda v: _exactly(_total(v) / len(v), v, finer=4),
    "geometric_mean": _geometric,
    "product": lambda v: float(math.prod(map(Fraction, v))),
    "range": lambda v: _exactly(Fraction(max(v)) - Fraction(min(v)), v),
    "min": min,
    "max": max,
    "first": lambda v: v[0],
    "last": lambda v: v[-1],
    "min_count": lambda v: list(v).count(min(v)),
    "max_count": lambda v: list(v).count(max(v)),
    "var_samp": lambda v: float(_moment(v, 2) * len(v) / (len(v) - 1)) if len(v) > 1 else None,
    "var_pop": lambda v: float(_moment(v, 2)),
    "stddev_samp": lambda v: math.sqrt(_moment(v, 2) * len(v) / (len(v) - 1)) if len(v) > 1 else None,
    "stddev_pop": lambda v: math.sqrt(_moment(v, 2)),
    "skewness": lambda v: _shape(v, 3, 0.0),
    "kurtosis": lambda v: _shape(v, 4, 3.0),
    "collect": list,
    "collect_distinct": _unique,
    "concat": lambda v: "".join(map(_text, v)),
    "bool_and": all,
    "bool_or": any,
    "top_k": lambda v: sorted(v, reverse=True)[:2],
    "bottom_k": lambda v: sorted(v)[:2],
    "median": _median,
    "quantile": lambda v: _quantile(v, "0.4"),
    "histogram": _histogram,
}


def _covariance(pairs: Sequence[tuple[Fraction, Fraction]]) -> Fraction:
    x, y = zip(*pairs, strict=True)
    return sum((a * b for a, b in pairs), Fraction(0)) / len(pairs) - _total(x) * _total(y) / len(pairs) ** 2


def _corr(pairs: Sequence[tuple[Fraction, Fraction]]) -> float | None:
    x, y = zip(*pairs, strict=True)
    spread = math.sqrt(_moment(x, 2)) * math.sqrt(_moment(y, 2))
    return float(_covariance(pairs)) / spread if spread else None


def _trend(pairs: Sequence[tuple[Fraction, Fraction]]) -> dict[str, float] | None:
    x, y = zip(*pairs, strict=True)
    if not _moment(x, 2):
        return None
    slope = _covariance(pairs) / _moment(x, 2)
    return {"slope": float(slope), "intercept": float((_total(y) - slope * _total(x)) / len(pairs))}


def _weighted(pairs: Sequence[tuple[Fraction, Fraction]]) -> float | None:
    weights = sum(weight for _, weight in pairs)
    return float(sum(value * weight for value, weight in pairs) / weights) if weights else None


TWO: Mapping[str, Callable[[Sequence[tuple[Fraction, Fraction]]], Any]] = {
    "covar_samp": lambda p: float(_covariance(p) * len(p) / (len(p) - 1)) if len(p) > 1 else None,
    "corr": _corr,
    "linear_trend": _trend,
    "weighted_mean": _weighted,
}


@cache
def oracle(function: str, column: str, ids: tuple[int, ...], start: int | None, end: int) -> Any:
    """The aggregate over the rows ``ids``, which are those of the window [start, end)."""
    rows = [CELLS[index] for index in ids if CELLS[index][column] is not None]
    values = [row[column] for row in rows]
    if function in ("count", "count_distinct", "approx_distinct"):
        return len(values) if function == "count" else len(_unique(values))
    if function in ("arg_min", "arg_max"):
        best = (min if function == "arg_min" else max)(values, default=None)
        return next((row["id"] for row in rows if row[column] == best), None)
    if function == "time_weighted_mean":
        weights = [min(max(row["until"], row["t"] + 1), end) - max(row["t"], start or 0) for row in rows]
        return _weighted([(Fraction(value), Fraction(weight)) for value, weight in zip(values, weights, strict=True)])
    if function in TWO:
        pairs = [(Fraction(row[column]), Fraction(row["other"])) for row in rows if row["other"] is not None]
        return TWO[function](pairs) if pairs else None
    return ONE[function](values) if values else None


def plain(value: Any) -> Any:
    """``value`` with instants as microseconds since 1970, and NaN as itself."""
    if value == "NaN":
        return math.nan
    if isinstance(value, datetime):
        return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return list(map(plain, value)) if isinstance(value, list) else value


CELLS = [{name: plain(cell) for name, cell in row.items()} for row in ROWS.to_pylist()]


def check(rows: Sequence[Mapping[str, Any]], aggregates: Sequence[tuple[str, str]], windows: int) -> None:
    assert len({row["window"] for row in rows}) == windows
    wrong = []
    for row in rows:
        start, end = plain(row["window_start"]), plain(row["window_end"])
        for function, column in aggregates:
            got = plain(row[f"{function}_{column}"])
            want = oracle(function, column, tuple(row["ids"] or ()), start, end)
            # Words of 53 bits leave 9 digits of a fourth moment (docs/numerics.md); text, whole numbers and decimals are exact.
            if type(got) is not type(want) or not close(got, want):
                wrong.append((function, column, row["window"], row["ids"], got, want))
    assert wrong == []


# -- What is asked


def pipeline_of(aggregates: Sequence[tuple[str, str]], **fields: Any) -> dict[str, Any]:
    named = {f"{function}_{column}": written(function, column) for function, column in aggregates}
    return a_spec(keys=["k"], time=TICKS, windows=WINDOWS, aggregates={"ids": {"collect": "id"}, **named}) | fields


def lasting(fields: dict[str, Any]) -> dict[str, Any]:
    return fields | {"time": {**TICKS, "end": "until"}, "windows": WINDOWS[:1]}


POINTS = [pair for pair in TAKEN if pair[0] != "time_weighted_mean"]
OVER_TIME = [pair for pair in TAKEN if pair[0] == "time_weighted_mean"]
ASKED = [(pipeline_of(POINTS), POINTS), (lasting(pipeline_of(OVER_TIME)), OVER_TIME)]


def tried(pipeline: Pipeline, engine: str, rows_a_batch: int, rows: pa.Table = ROWS) -> Sequence[Mapping[str, Any]]:
    run = ENGINES[engine](pipeline, math.inf)
    for first in range(0, len(rows), rows_a_batch):
        part = rows.slice(first, rows_a_batch)
        run.feed(TryBatch(part, {}, np.arange(first, first + len(part))))
    return run.finish(final=True).rows


def test_instants_are_numbers_where_the_page_says_so():
    assert {function for function, column in TAKEN if column == "instant"} - {
        function for function in DECLARED.built_in() if DECLARED[function].takes is None
    } == {"median", "quantile"}


@pytest.mark.parametrize(("engine", "rows_a_batch"), [("reference", 12), ("kernel", 12), ("kernel", 5)])
def test_engines_compute_what_is_taken(engine, rows_a_batch):
    for spec, aggregates in ASKED:
        check(tried(parse_pipeline(spec), engine, rows_a_batch), aggregates, len(spec["windows"]))


def test_runs_compute_what_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In two batches, so that partials have been stored, and with the types that `validate --source` sees.

    Nested columns, which only Spark reads, are left out: their partials are the same.
    """
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
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
        rows = [row for row in sink.to_pylist() if row["k"] != "c"]
        want = tried(pipeline, "reference", 12)
        assert len(rows) == len(want)
        check(rows, aggregates, len(spec["windows"]))


@pytest.mark.parametrize("function", DECLARED.built_in())
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
    check(outcome.rows, aggregates, len(WINDOWS))


#: Whole numbers whose sum, a small one, leaves 64 bits on its way, whatever stretch of them is combined first.
GREAT = [2**63 - 1, 2**63 - 1, 2**63 - 1, 5, -(2**63), -(2**63), -(2**63), 4]
GREAT_WINDOWS = [
    {"name": "slices", "type": "hopping", "size": 100, "hop": 50},
    {"name": "positions", "type": "sliding", "evict": {"count": 8}, "trigger": {"count": 8}},
    {"name": "near", "type": "sliding", "evict": {"delta": {"column": "t", "by": 90}}, "trigger": {"count": 8}},
    {"name": "visits", "type": "session", "gap": 20},
]


#: As many decimals of 38 digits, of which two leave them, and four leave 128 bits.
_ENDS = ["99", "99", "99", "50", "99", "99", "99", "48"]
GREATEST = [Decimal(f"{sign}{'9' * 36}.{digits}") for sign, digits in zip("++++----", _ENDS, strict=True)]


def great_rows() -> list[dict[str, Any]]:
    return [{"k": "a", "t": 4 * place, "v": value, "narrow": place % 2} for place, value in enumerate(GREAT)]


def great(**fields: Any) -> dict[str, Any]:
    aggregates = {"total": {"sum": "v"}, "mean": {"mean": "v"}, "narrow": {"sum": "narrow"}}
    return a_spec(keys=["k"], time=TICKS, windows=GREAT_WINDOWS, aggregates=aggregates) | fields


def check_great(rows: Sequence[Mapping[str, Any]]) -> None:
    whole = [row for row in rows if row["narrow"] == 4]
    assert {row["window"] for row in whole} == {window["name"] for window in GREAT_WINDOWS}
    assert {(row["total"], row["mean"]) for row in whole} == {(sum(GREAT), sum(GREAT) / 8)}


def test_a_sum_may_leave_64_bits_on_its_way():
    check_great(try_pipeline(great(), great_rows(), engines=["kernel", "reference"], batches=["each", 3]).rows)


@pytest.mark.parametrize("rows_a_run", [8, 1])
def test_runs_sum_alike_however_the_rows_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_a_run: int):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    places = {"source": {"path": str(tmp_path / "source")}, "sink": {"path": str(tmp_path / "sink")}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(great() | places))
    rows = [*great_rows(), {"k": "z", "t": 1000, "v": 0, "narrow": 0}]
    for first in range(0, len(rows), rows_a_run):
        write_deltalake(tmp_path / "source", pa.Table.from_pylist(rows[first : first + rows_a_run]), mode="append")
        assert main(["run", str(tmp_path / "spec.yaml")]) == 0
    check_great(pa.table(DeltaTable(tmp_path / "sink").to_pyarrow_table()).to_pylist())


@pytest.mark.parametrize("rows_a_batch", [8, 3, 1])
def test_a_sum_of_decimals_may_leave_38_digits_on_its_way(rows_a_batch: int):
    table = pa.table({"k": ["a"] * 8, "t": range(0, 32, 4), "v": pa.array(GREATEST, pa.decimal128(38, 2)), "narrow": [0, 1] * 4})
    for engine in ("kernel", "reference"):
        rows = tried(parse_pipeline(great()), engine, rows_a_batch, table)
        whole = [row for row in rows if row["narrow"] == 4]
        assert {row["window"] for row in whole} == {window["name"] for window in GREAT_WINDOWS}
        assert {(row["total"], row["mean"]) for row in whole} == {(Decimal("0.02"), Decimal("0.0025"))}
    for number in (2, 3, 4):
        with pytest.raises(AggregateOverflowError, match="more than 38 digits"):
            tried(parse_pipeline(great(windows=GREAT_WINDOWS[:1])), "kernel", rows_a_batch, table.slice(0, number))


def test_a_window_whose_own_sum_leaves_64_bits_is_an_error_in_any_cut():
    rows = great_rows()[:3]
    for rows_a_batch in ("whole", "each"):
        with pytest.raises(AggregateOverflowError, match=r"aggregates\.total: sum over a window is 27670116110564327421, beyond its type"):
            try_pipeline(great(windows=GREAT_WINDOWS[:1]), rows, batches=rows_a_batch)
