"""An engine from outside: weighed by ``explain``, built, and tried against recomputation."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from windowmill.jobs.commands.explain import explain
from windowmill.plugins import Combines, Engine, register_engine
from windowmill.testing import check_engine
from windowmill.windowing.aggregates import aggregate_for
from windowmill.windowing.catalogue import parse_aggregate
from windowmill.windowing.errors import PluginError
from windowmill.windowing.specfile import parse_pipeline
from windowmill.windowing.textbook import ENGINES, admissible, build

TOY = "tests.plugins.toys.engine"
PIPELINE = parse_pipeline(
    {
        "pipeline": "p",
        "time": {"column": "t", "unit": "s"},
        "windows": [{"name": "rolling", "type": "hopping", "size": 60, "hop": 10}],
        "aggregates": {"n": {"count": "*"}},
    }
)
COUNT = aggregate_for(parse_aggregate({"count": "*"}), [])


def test_explain_weighs_it(plug):
    plug(TOY)
    told = explain(PIPELINE, verbose=True)
    [choice] = told.data["windows"][0]["choices"]
    assert [other for other in choice["alternatives"] if other["engine"] == "suffixes"] == [
        {
            "engine": "suffixes",
            "combines": {"formula": "n·m", "value": 6.0},
            "allowed": True,
            "why_not": "combines every suffix anew for each partial that comes",
        }
    ]
    console = Console(width=120, file=io.StringIO())
    with console.capture() as captured:
        console.print(told.text)
    assert "combines every suffix anew" in captured.get()


def test_it_is_built_where_the_algebra_allows_it(plug):
    plug(TOY)
    assert "suffixes" in admissible(COUNT)
    engine = build("suffixes", COUNT)
    for _ in range(3):
        engine.insert((1,))
    engine.evict()
    assert (engine.query(), len(engine)) == ((2,), 2)


def test_its_check_passes(plug):
    plug(TOY)
    check_engine(ENGINES["suffixes"])


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "subtract"])
def test_windowmills_own_pass_the_check(name):
    check_engine(ENGINES[name], examples=10)


def test_an_engine_that_deducts_is_checked_over_an_aggregate_that_can():
    check_engine(ENGINES["subtract"], examples=10)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("return self._totals[-1] if self._totals else self.aggregate.identity", "query gives"),
        ("return self.aggregate.identity", "query gives"),
    ],
)
def test_the_check_finds_what_is_wrong(plug, wrong, message):
    plug(TOY)
    suffixes = ENGINES["suffixes"]
    broken = type("Broken", (suffixes,), {"query": eval(f"lambda self: {wrong.removeprefix('return ')}")})
    with pytest.raises(AssertionError, match=message):
        check_engine(broken)


def test_one_without_a_cost_is_refused(plug):
    class Free(Engine):
        name = "free"

    with pytest.raises(PluginError, match="the engine Free has no cost; set it as an attribute of the class"):
        register_engine(Free)


def test_a_name_that_is_taken_is_refused(plug):
    plug(TOY)
    assert "suffixes" in ENGINES
    again = type("Again", (sys.modules[TOY].Suffixes,), {"cost": Combines("0", lambda n, m: 0)})
    with pytest.raises(PluginError, match=f"the engine 'suffixes' is registered by {TOY} already; give it another name"):
        register_engine(again)
