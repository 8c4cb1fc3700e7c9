"""Rows into packed slices and those into windows: many values, shares of the keys, late rows, and where chunks are cut."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.specs import a_spec
from windowmill.checkpoints.state.tables import slice_schema
from windowmill.windowing.catalogue import DECLARED
from windowmill.windowing.columnar import grid_windows, slices
from windowmill.windowing.columnar.added_columns import CLOSED, LATE, MISSED, REFUSED, TIME
from windowmill.windowing.columnar.hashes import Share
from windowmill.windowing.columnar.results import result_schema
from windowmill.windowing.columnar.slices import Sliced, SliceStage, WindowStage
from windowmill.windowing.counts import Counts
from windowmill.windowing.errors import AggregateOverflowError
from windowmill.windowing.grids import Grids
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.reference import Record, evaluate
from windowmill.windowing.specfile import parse_pipeline

AGGREGATES: dict[str, dict[str, Any]] = {
    "n": {"count": "*"},
    "known": {"count": "f"},
    "large": {"sum": "f", "where": "f > 2"},
    "total": {"sum": "f"},
    "whole": {"sum": "i"},
    "truths": {"sum": "b"},
    "exact": {"sum": "d"},
    "average": {"mean": "f"},
    "exact_average": {"mean": "d"},
    "weighted": {"weighted_mean": ["f", "i"]},
    "product": {"product": "p"},
    "geometric": {"geometric_mean": "p"},
    "low": {"min": "f"},
    "first_text": {"min": "s"},
    "high": {"max": "d"},
    "lows": {"min_count": "s"},
    "highs": {"max_count": "f"},
    "span": {"range": "i"},
    "worst": {"arg_max": ["f", "s"]},
    "best": {"arg_min": ["s", "d"]},
    "opening": {"first": "s"},
    "closing": {"last": "f"},
    "spread": {"stddev_samp": "f"},
    "skew": {"skewness": "f"},
    "tails": {"kurtosis": "f"},
    "together": {"corr": ["f", "i"]},
    "trend": {"linear_trend": ["i", "f"]},
    "bins": {"histogram": {"column": "f", "edges": [-10, 0, 1, 10]}},
    "every": {"bool_and": "b"},
    "some": {"bool_or": "b"},
}
TYPES = {
    "k": pa.string(),
    "g": pa.float64(),
    "t": pa.int64(),
    "x": pa.int64(),
    "f": pa.float64(),
    "p": pa.float64(),
    "i": pa.int64(),
    "d": pa.decimal128(12, 2),
    "s": pa.string(),
    "b": pa.bool_(),
}
#: Aggregates whose partials are Python objects.
OBJECTS: dict[str, dict[str, Any]] = {
    "different": {"count_distinct": "f"},
    "large_texts": {"count_distinct": "s", "where": "f > 2"},
    "about": {"approx_distinct": "s"},
    "joined": {"concat": "s"},
    "all": {"collect": "d"},
    "firsts": {"collect_distinct": "f"},
    "top": {"top_k": {"column": "d", "k": 2}},
    "bottom": {"bottom_k": {"column": "f", "k": 3}},
    "p25": {"quantile": {"column": "f", "q": 0.25}},
    "p95": {"quantile": {"column": "f", "q": 0.95}},
    "p95_exact": {"quantile": {"column": "f", "q": 0.95, "exact": True}},
    "middle": {"median": "f"},
    "own": {"use": "tests.windowing.test_slices:Longest", "args": ["s"]},
}


class Longest:
    """The longest text, the greatest of equally long ones."""

    commutative, result = True, "string"

    def lift(self, text: str) -> list[str]:
        return [text]

    def combine(self, older: list[str], newer: list[str]) -> list[str]:
        return max(older, newer, key=lambda held: (len(held[0]), held[0]))

    def lower(self, partial: list[str]) -> str:
        assert isinstance(partial, list)
        return partial[0]


EVER = 1 << 40


class Case:
    """A pipeline by slices."""

    def __init__(self, aggregates: dict[str, dict[str, Any]]) -> None:
        time = {"column": "t", "tie_break": ["x"], "unit": "none", "disorder": 10**6}
        windows = [
            {"name": "even", "type": "tumbling", "size": 4},
            {"name": "uneven", "type": "hopping", "size": 7, "hop": 3, "origin": 2},
            {"name": "gaps", "type": "hopping", "size": 2, "hop": 5},
        ]
        self.pipeline = parse_pipeline(a_spec(keys=["k", "g"], time=time, windows=windows, aggregates=aggregates))
        self.layout = Layout.of(self.pipeline, TYPES)
        self.grids = Grids.of(self.pipeline)
        self.even = [name for name, _ in self.grids.named].index("even")
        self.schema = slice_schema({key: TYPES[key] for key in self.pipeline.keys}, self.layout)

    def stage(self, batch: int) -> SliceStage:
        return SliceStage(self.pipeline.keys, self.pipeline.time.tie_break, self.layout, self.grids.edges, batch, self.schema)

    def window_stage(self, batch: int, *, keep: bool) -> WindowStage:
        results = result_schema(self.pipeline, TYPES)
        return WindowStage(self.stage(batch), self.grids.named, -EVER, EVER, -EVER if keep else None, results)

    def combined(self, batch: int, parts: Sequence[Sliced], *, keep: bool) -> list[grid_windows.Combined]:
        return list(grid_windows.combined(self.window_stage(batch, keep=keep), parts))


NUMBERS = Case(AGGREGATES)
ALL = Case(AGGREGATES | OBJECTS)


def rows_table(rows: list[dict[str, Any]]) -> pa.Table:
    table = pa.Table.from_pylist(rows, schema=pa.schema(list(TYPES.items())))
    large = [row["f"] is not None and (row["f"] > 2 or row["f"] != row["f"]) for row in rows]
    return table.append_column(TIME, table["t"]).append_column(condition_column("f > 2"), pa.array(large, pa.bool_()))


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (a != a and b != b) or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return all(same(a[name], b[name]) for name in a)
    return bool(a == b)


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    g = row["g"]
    return (str(row["k"]), "nan" if g is not None and g != g else str(g if g is None else 0.0), row["window"], row["window_end"])


def test_every_aggregate_that_slices_can_hold_is_tried():
    tried = {aggregate.function for aggregate in ALL.pipeline.aggregates.values()}
    missing = {name for name, declared in DECLARED.items() if not declared.clipped} - tried
    assert missing == {"var_samp", "var_pop", "stddev_pop", "covar_samp"}, "these share their partials with one that is tried"


def test_quantiles_of_one_column_share_a_partial():
    assert ALL.layout.columns_of("p25") == ALL.layout.columns_of("p95") == ("summary_f",)
    assert ALL.layout.columns_of("p95_exact") == ALL.layout.columns_of("middle") == ("values_in_order_f",)


@pytest.mark.parametrize("cuts", [[], [300, 301, 4_000], list(range(0, 6_000, 700))], ids=len)
def test_quantiles_of_many_values_are_those_of_the_reference_however_batches_are_cut(cuts):
    """More different values in a window than a bounded summary holds."""
    bounded = {f"p{tenths}0": {"quantile": {"column": "f", "q": tenths / 10}} for tenths in (1, 3, 5, 7)}
    exact = {name + "_exact": {"quantile": written["quantile"] | {"exact": True}} for name, written in bounded.items()}
    case = Case(bounded | exact | {"middle": {"median": "f"}})
    rng, empty = np.random.default_rng(7), dict.fromkeys(TYPES, None)
    rows = [
        {**empty, "t": int(t), "k": "a", "x": 0, "f": value}
        for t, value in zip(rng.integers(0, 4, 6_000), rng.lognormal(0, 3, 6_000).tolist(), strict=True)
    ]
    pieces = [rows_table(rows[a:b]) for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True) if a < b]
    lifted = [part for number, table in enumerate(pieces) for part in slices.sliced(case.stage(number), table.to_batches())]
    stage = case.window_stage(len(pieces), keep=False)
    parts = case.combined(len(pieces), lifted, keep=False)
    found = sorted((row for part in parts for bare in part.windows for row in grid_windows.result_rows(stage, bare).to_pylist()), key=place)
    wanted = sorted(evaluate(case.pipeline, [Record(row, frozenset()) for row in rows], final=True).rows, key=place)
    assert [[row[name] for name in case.pipeline.aggregates] for row in found] == [
        [row[name] for name in case.pipeline.aggregates] for row in wanted
    ]
    assert any(row[name] != row[name + "_exact"] for row in found for name in bounded), "no window has too many values to keep"


def shown(stage: WindowStage, parts: list[grid_windows.Combined]) -> list[str]:
    """Result rows; floats as text, so that NaN equals NaN."""
    return sorted(repr(row) for part in parts for bare in part.windows for row in grid_windows.result_rows(stage, bare).to_pylist())


@pytest.mark.parametrize("case", [NUMBERS, ALL], ids=["numbers", "objects"])
def test_shares_of_the_keys_have_the_windows_of_all_keys_to_the_bit(monkeypatch, case):
    monkeypatch.setattr(slices, "CHUNK_ROWS", 7)
    monkeypatch.setattr(grid_windows, "CHUNK_SLICES", 5)
    rng = np.random.default_rng(5)
    empty = dict.fromkeys(TYPES, None)
    rows = [
        {**empty, "t": int(t), "k": rng.choice(["a", "b", "c", "d"]), "g": rng.choice([0.0, math.nan]), "x": 0, "f": v, "p": v, "s": str(v)}
        for t, v in zip(rng.integers(0, 30, 60), rng.lognormal(0, 3, 60).tolist(), strict=True)
    ]
    stage, batches = case.window_stage(0, keep=False), rows_table(rows).to_batches(4)
    wanted = case.combined(0, list(slices.sliced(stage.slices, batches)), keep=False)
    shares = [list(slices.sliced(stage.slices, batches, Share(number, number + 1, 3))) for number in range(3)]
    assert [len(parts) for parts in shares] == [9] * 3, "chunks are cut before shares are taken"
    found = [part for parts in shares for part in grid_windows.combined(stage, parts)]
    assert shown(stage, found) == shown(stage, wanted)
    assert sum(part.rows for parts in shares for part in parts) == 60
    assert len(found) > 3, "keys come in several pieces"


def test_rows_that_came_too_late_are_counted_even_where_a_task_lifts_no_others(monkeypatch):
    monkeypatch.setattr(slices, "CHUNK_ROWS", 2)
    empty = dict.fromkeys(TYPES, None) | {"g": 0.0, "x": 0, "f": 1.0, "p": 1.0, "s": "x"}
    rows = rows_table([empty | {"t": t, "k": key} for t, key in ((1, "a"), (2, "b"), (9, "a"), (3, "b"))])
    refused, missed = [True, True, False, False], ([True, True, False, True], [True, False, False, False], [False] * 4)
    marks = {LATE: [True, True, False, True], CLOSED: pa.array([None] * 4, pa.int64()), REFUSED: refused}
    for name, column in (marks | {f"{MISSED} {index}": each for index, each in enumerate(missed)}).items():
        rows = rows.append_column(name, [pa.array(column)])
    stage = NUMBERS.window_stage(0, keep=False)
    lifted = list(slices.sliced(stage.slices, rows.to_batches(2)))
    names = [name for name, _ in NUMBERS.grids.named]
    for parts, counts, n_rows in ((lifted, (3, 1), 2), (lifted[:1], (2, 1), 0)):
        found = sum((each.counts for each in grid_windows.advanced(stage, parts)), Counts())
        assert found.late_missed == dict(zip(names, counts, strict=False))
        assert (found.rows_applied, found.rows_late) == (n_rows, n_rows // 2)


def test_sums_that_do_not_fit_are_errors_of_windows_alone():
    empty = dict.fromkeys(TYPES, None)
    rows = [{**empty, "t": 0, "i": 2**62, "x": 0}] * 3
    lifted = list(slices.sliced(NUMBERS.stage(0), rows_table(rows).to_batches()))
    with pytest.raises(AggregateOverflowError, match=f"is {3 * 2**62}, beyond its type"):
        NUMBERS.combined(0, lifted, keep=True)


CELLS: dict[str, list[Any]] = {
    "k": ["a", "b", None], "g": [0.0, -0.0, math.nan, None], "x": [0, 1, 2, 3], "i": [*range(-9, 10), None], "b": [True, False, None],
    "f": [-2.5, 0.1, 3e5, -0.0, math.inf, math.nan, None], "p": [0.5, 2.0, 4.0, 0.0, math.inf, math.nan, None],
    "d": [Decimal("1.25"), Decimal("-0.01"), Decimal(0), None], "s": ["", "x", "zé", None],
}  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("case", [NUMBERS, ALL], ids=["numbers", "objects"])
def test_windows_of_slices_are_those_of_the_reference(case, seed):
    rng, parts = random.Random(seed), list[Sliced]()
    rows = [{"t": rng.randint(-9, 20)} | {name: rng.choice(cells) for name, cells in CELLS.items()} for _ in range(25)]
    pieces = [rows[:7], rows[7:11], rows[11:20], rows[20:]]
    for batch in range(2):
        new = [each for piece in pieces[2 * batch :][:2] for each in slices.sliced(case.stage(batch), rows_table(piece).to_batches(4))]
        whole = case.combined(batch, [*parts, *new], keep=not batch)
        if not batch:  # the first batch goes through the state
            state = pa.concat_tables([each.slices for each in whole])
            assert state.num_rows == len(state.group_by([*case.pipeline.keys, "_slice"]).aggregate([]))
            parts = list(slices.restored(case.stage(1), state.to_batches(5)))
    stage = case.window_stage(1, keep=False)
    found = sorted((row for part in whole for bare in part.windows for row in grid_windows.result_rows(stage, bare).to_pylist()), key=place)
    records = [Record(row, frozenset(["f > 2"] if row["f"] is not None and not row["f"] <= 2 else [])) for row in rows]
    wanted = sorted(evaluate(case.pipeline, records, final=True).rows, key=place)
    assert list(map(place, found)) == list(map(place, wanted))
    for got, want in zip(found, wanted, strict=True):
        assert {name: (got[name], value) for name, value in want.items() if not same(got[name], value)} == {}, place(want)


def test_where_chunks_are_cut_does_not_depend_on_batches(monkeypatch):
    monkeypatch.setattr(slices, "CHUNK_ROWS", 5)
    column = pa.record_batch({"n": list(range(23))})
    for size in (1, 3, 5, 7, 23):
        batches = [column.slice(first, size) for first in range(0, 23, size)]
        assert [table.column("n").to_pylist() for table in slices._chunks(batches)] == [
            list(range(a, min(a + 5, 23))) for a in range(0, 23, 5)
        ]
