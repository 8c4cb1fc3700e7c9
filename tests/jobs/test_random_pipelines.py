"""Random pipelines over random commits: reference, parts over a state in memory, ``try`` and batches over a state table agree. No Spark."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.jobs.batches import Run
from tests.random_pipelines import CONDITION, Case, Row, differences, examples, random_case
from windowmill.jobs.batch.job import parts_of
from windowmill.jobs.commands import try_command as memory
from windowmill.jobs.commands.try_command import KernelEngine, TryBatch, attempt
from windowmill.jobs.dataframe import BoundedWork
from windowmill.jobs.layouts.base import Lifted, Part
from windowmill.jobs.layouts.input import Input
from windowmill.jobs.layouts.lateness import seen_after
from windowmill.windowing.columnar.added_columns import NUMBER_OF
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.planner import plan

pytestmark = [pytest.mark.thorough, pytest.mark.covers("I7")]


def refused_ids(rows: list[Row], refused: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Which rows were refused, in whatever order they came."""
    return sorted((rows[number]["x"], reason) for number, reason in refused)


def by_parts(case: Case, rows: list[Row], batches: list[tuple[int, int]], *, final: bool) -> tuple[list[Row], list[tuple[int, str]]]:
    engine, commits = KernelEngine(case.pipeline, math.inf), np.array(case.commits, np.int64)
    for first, last in batches:
        chosen = [row for row, commit in zip(rows, case.commits, strict=True) if first <= commit < last]
        is_asked = CONDITION in case.pipeline.conditions()
        masks = {CONDITION: pa.array([(row["i"] or 0) > 3 for row in chosen], pa.bool_())} if is_asked else {}
        table = pa.Table.from_pylist(chosen, schema=case.schema)
        engine.feed(TryBatch(table, masks, commits[(commits >= first) & (commits < last)]))
    results = engine.finish(final=final)
    return sorted((dict(row) for row in results.rows), key=case.place), list(results.quarantined)


class Joined:
    """Numbers as text, one after another: neither commutative nor known to the kernels."""

    result = "string"

    def lift(self, number: int) -> str:
        return str(number)

    def combine(self, older: str, newer: str) -> str:
        return f"{older} {newer}"

    def lower(self, text: str) -> str:
        return text


class Shortened(Joined):
    """As ``Joined``; a window takes out what leaves."""

    def deduct(self, total: str, oldest: str) -> str:
        assert total.startswith(f"{oldest} ")
        return total.removeprefix(f"{oldest} ")


@pytest.mark.parametrize("seed", examples(40))
def test_the_order_inside_a_commit_and_the_cut_into_batches_do_not_matter(seed):
    check_orders_and_cuts(random_case(seed))


@pytest.mark.parametrize("seed", examples(25))
def test_a_users_aggregate_takes_rows_in_their_order_however_late_they_come(seed):
    case = random_case(seed, aggregates=1)
    case.spec["time"]["tie_break"] = ["x"]
    case.spec["aggregates"]["joined"] = {"use": f"{__name__}:{'Shortened' if seed % 2 else 'Joined'}", "args": ["x"]}
    check_orders_and_cuts(case)


def check_orders_and_cuts(case: Case) -> None:
    """The parts agree with the reference, in whatever order the rows of a commit come, and however they are cut into batches."""
    rng = random.Random(-case.seed - 1)
    for final in (False, True):
        wanted = case.expected(final=final)
        aside = refused_ids(case.rows, wanted.quarantined)
        rows = case.permuted(rng)
        again = case.expected(rows, final=final)
        assert differences(again.rows, wanted.rows) == []
        assert refused_ids(rows, again.quarantined) == aside
        for batches in (case.batches(rng), [(0, case.commits[-1] + 1)]):
            rows = case.permuted(rng)
            found, refused = by_parts(case, rows, batches, final=final)
            assert differences(found, wanted.rows) == []
            assert refused_ids(rows, refused) == aside


@pytest.mark.parametrize("seed", examples(20))
def test_commits_of_lines_give_what_the_reference_says(seed):
    case, rng = random_case(seed, points=True), random.Random(-seed - 1)
    size = rng.choice([1, 2, 3, 7, len(case.rows)])
    case.commits = [number // size for number in range(len(case.rows))]
    wanted = case.expected(final=True)
    shown = [{name: value for name, value in row.items() if name != "retracted"} for row in wanted.rows if not row.get("retracted")]
    for engine in ("kernel", "reference"):
        rows = case.permuted(rng)
        outcome = attempt(case.pipeline, lines(case, rows), rng.choice([None, 1, 4, 9]), engine, commit_rows=size)
        assert differences(sorted((dict(row) for row in outcome.rows), key=case.place), shown) == []
        refused = [(row.line - 1, row.reason) for row in outcome.refused]
        assert refused_ids(rows, refused) == refused_ids(case.rows, wanted.quarantined)


@pytest.mark.parametrize("seed", examples(30))
def test_try_goes_the_ways_that_explain_names(seed: int, monkeypatch: pytest.MonkeyPatch):
    case, gone = random_case(seed, points=True), set[str]()

    def noted(*given: Any) -> list[Part]:
        parts = parts_of(*given)
        gone.update(part.name for part in parts)
        return parts

    monkeypatch.setattr(memory, "parts_of", noted)
    attempt(case.pipeline, lines(case, case.rows), batch_rows=7)
    assert gone == set(plan(case.pipeline, refusal="no source").layouts)


def lines(case: Case, rows: list[Row]) -> bytes:
    """``rows`` as JSON lines."""
    if "unit" not in case.spec["time"]:
        rows = [row | {"t": None if row["t"] is None else f"{np.datetime64(row['t'], 'us')}Z"} for row in rows]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.mark.parametrize("seed", examples(60))
def test_a_bounded_input_gives_what_the_reference_says(seed):
    """The parts of a run over all rows at once, without state, as tasks of ``aggregate(df)`` compute them."""
    case = random_case(seed, usable=True)
    case.rows = [row for row in case.rows if row.get("e") is None or row["e"] >= row["t"]]
    case.commits = [0] * len(case.rows)
    case.spec["time"]["watermark"] = "max_event_time"
    wanted, table = case.expected(final=True), pa.Table.from_pylist(case.rows, schema=case.schema)
    assert wanted.quarantined == []
    bounded = BoundedWork.of(Input(pipeline=case.pipeline, types={field.name: field.type for field in case.schema}, ended=True))
    truth = [(row["i"] or 0) > 3 for row in case.rows]
    rows = bounded.batch.times.of(table).append_column(condition_column(CONDITION), pa.array(truth))
    rows = rows.append_column(NUMBER_OF, pa.array(np.arange(len(rows))))
    bounded = replace(bounded, seen=seen_after(rows, None))
    found = [each for done in bounded.reduce([Lifted(bounded.judged(rows))], None) for each in bounded.tables(done)]
    bounds = {name: pa.int64() for name in ("window_start", "window_end")}
    whole = [each.cast(pa.schema([field.with_type(bounds.get(field.name, field.type)) for field in each.schema])) for each in found]
    shown = [row for each in whole for row in each.drop_columns(["batch"]).to_pylist()]
    assert differences(sorted(shown, key=case.place), wanted.rows) == []


@pytest.mark.parametrize("seed", examples(20))
def test_batches_over_a_state_table_give_what_the_reference_says(tmp_path, seed):
    case, rng = random_case(seed, instants=True, points=True, usable=True), random.Random(-seed - 1)
    case.spec["keys"] = ["k"]
    case.rows = [row | {"k": row["k"] or "d", "s": row["s"] or "q", "f": row["f"]} for row in case.rows]
    run, rows = Run(case.pipeline, str(tmp_path / "state")), case.permuted(rng)
    for first, last in case.batches(rng):
        places = [place for place, commit in enumerate(case.commits) if first <= commit < last]
        run.step(rows[places[0] : places[-1] + 1], places[0], case.commits[places[0] : places[-1] + 1])
    wanted = case.expected()
    assert differences(sorted(run.rows, key=case.place), wanted.rows) == []
    assert refused_ids(rows, run.refused) == refused_ids(case.rows, wanted.quarantined)
