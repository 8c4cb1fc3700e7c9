"""A type of windows is one module and its registration: each has all of its facts."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, get_args

import pyarrow as pa
import pytest

from tests.kernel_runs import KernelRun
from tests.specs import a_spec
from windowmill.windowing.columnar.keyed import LeafPartials
from windowmill.windowing.columnar.position_batch import DeltaSequence, FrontSequence
from windowmill.windowing.errors import PluginError, SpecError, UnsupportedError
from windowmill.windowing.grids import grid_of, why_no_partials
from windowmill.windowing.layouts import divide
from windowmill.windowing.planner import plan
from windowmill.windowing.reference import rows_of
from windowmill.windowing.reference.events import Course, Tally
from windowmill.windowing.slicing.edges import CumulativeGrid, Grid
from windowmill.windowing.slicing.leaves import Engine, Windows
from windowmill.windowing.slicing.slicers import slicer_of
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline
from windowmill.windowing.windows.base import TYPES, ColumnUse, Spacing, Window, register
from windowmill.windowing.windows.types import PluginWindow, Session

PAIRS = "tests.windowing.test_columnar:pairs"
#: Each type in every form that it has.
FORMS: dict[str, list[dict[str, Any]]] = {
    "tumbling": [{"size": 4}, {"evict": {"count": 3}}, {"evict": {"punctuation": "v > 2"}}],
    "hopping": [{"size": 7, "hop": 3, "origin": 2}],
    "cumulative": [{"size": 6, "step": 2}],
    "session": [{"gap": 2}, {"gap": 2, "max_size": 5}],
    "snapshot": [{}],
    "count": [{"count": 3}],
    "custom": [{"function": PAIRS}],
    "sliding": [
        {"evict": {"delta": {"column": "v", "by": 1}}, "trigger": {"time": 2}},
        {"evict": {"time": 9}, "trigger": {"delta": {"column": "f", "by": 1}}},
    ],
}
CASES = [(name, form) for name, forms in FORMS.items() for form in forms]
SLICER_METHODS = ("apply", "flipped", "due", "snapshot", "restore")


def pipeline_of(window: dict[str, Any], **others: Any) -> Pipeline:
    return parse_pipeline(a_spec(keys=["k"], time={"column": "t", "unit": "none"}, windows=[{"name": "w"} | window]) | others)


def test_every_type_is_tested_in_its_forms():
    assert tuple(FORMS) == tuple(TYPES)


@pytest.mark.parametrize("emit", ["final", "revise"])
@pytest.mark.parametrize(("name", "form"), CASES, ids=str)
def test_every_type_has_all_of_its_facts(name, form, emit):
    pipeline = pipeline_of({"type": name} | form, emit=emit)
    [window] = pipeline.windows
    assert type(window) is TYPES[name]
    assert type(window).__doc__ != Window.__doc__
    assert window.describe().split(":")[0] == name
    assert isinstance(window.spacing(), Spacing)
    assert window.spacing().words
    assert window.reach() >= 1
    assert 1 <= window.windows_of_event() <= window.windows_of_event(100)
    assert window.hop_field in ("hop", "step")
    assert isinstance(window.counted_from, int | datetime | None)
    assert isinstance(window.zone, str | None)
    assert all(isinstance(use, ColumnUse) for use in window.columns().values())
    fields = [*window.columns(), *window.conditions(), *window.functions()]
    assert all(field.partition(".")[0] in type(window).model_fields for field in fields)
    facts = (window.reads_whole_rows, window.numbers_triggers, window.ends_can_coincide, window.ticks_past_its_tuples)
    assert all(isinstance(fact, bool) for fact in facts)
    if window.on_grid or window.follows_policies:
        with pytest.raises(UnsupportedError, match=f"{name} windows are made of partials, and keep no rows"):
            slicer_of(window, pipeline)
    else:
        slicer = slicer_of(window, pipeline)
        assert slicer.engine in get_args(Engine)
        assert all(callable(getattr(slicer, method)) for method in SLICER_METHODS)
        assert {"keys"} <= set(slicer.snapshot())
    assert list(rows_of(window, [], Tally(), Course(True, emit == "revise", 0, 0, 0))) == []


@pytest.mark.parametrize(("name", "form"), CASES, ids=str)
def test_a_type_is_made_of_partials_or_says_why_not(name, form):
    pipeline = pipeline_of({"type": name} | form)
    [window] = pipeline.windows
    of_partials = window.on_grid or window.joins_by_gap or window.follows_policies
    assert why_no_partials(pipeline, 0) == (() if of_partials else (f"windows.0: {name} windows are no fixed grid",))
    found = divide(pipeline, {"k": pa.string(), "v": pa.int64(), "f": pa.float64()})
    assert [found.positions is not None, plan(pipeline).layouts == ("positions",)] == [window.follows_policies] * 2
    if window.joins_by_gap:
        assert window.session_gap() == form["gap"]
        assert window.greatest_size() == form.get("max_size")
    else:
        with pytest.raises(UnsupportedError, match=f"{name} windows join no rows by a gap"):
            window.session_gap()
    if window.on_grid:
        assert isinstance(grid_of(window), CumulativeGrid if name == "cumulative" else Grid)
    else:
        with pytest.raises(UnsupportedError, match=f"{name} windows are no fixed grid"):
            grid_of(window)


@pytest.mark.parametrize(("name", "form"), [(name, form) for name, form in CASES if not {"size", "gap"} & form.keys()], ids=str)
def test_the_engine_that_explain_names_is_the_one_that_runs(monkeypatch, name, form):
    """By positions or live rows, which come in the order of their times: late ones are combined one by one, whatever the engine."""
    pipeline = pipeline_of({"type": name} | form)
    ran: set[str] = set()
    if pipeline.windows[0].follows_policies:
        for sequence in (FrontSequence, DeltaSequence):
            aggregate = sequence._aggregate

            def noting_nodes(sequence: Any, *given: Any, aggregate: Any = aggregate) -> Any:
                ran.add("flatfat")
                return aggregate(sequence, *given)

            monkeypatch.setattr(sequence, "_aggregate", noting_nodes)
    combine = LeafPartials.combine

    def noting(lifted: LeafPartials, windows: Windows) -> Any:
        ran.add(_engine_of(windows))
        return combine(lifted, windows)

    monkeypatch.setattr(LeafPartials, "combine", noting)
    rows = pa.table({"k": ["a"] * 60, "t": range(0, 120, 2), "v": [n % 5 for n in range(60)], "f": [n / 7 for n in range(60)]})
    conditions = {text: pa.array([n % 5 > 2 for n in range(60)]) for text in pipeline.conditions()}
    engine = KernelRun(pipeline)
    engine.feed(rows, conditions)
    assert engine.finish(final=True)[0]
    [choice] = plan(pipeline, refusal="for its rows").windows[0].choices
    assert ran == {choice.engine}


def _engine_of(windows: Windows) -> str:
    """What combines ``windows``: ranges of a sequence, or leaves one by one."""
    return "recompute" if len(windows.members) and not (windows.hi > windows.lo).any() else "two_stacks"


def test_what_types_read_is_told_by_the_path_of_the_field():
    def window(**fields: Any) -> Window:
        return pipeline_of(fields).windows[0]

    sliding = window(type="sliding", **FORMS["sliding"][0])
    assert sliding.columns() == {"evict.delta.column": ColumnUse("v", "number")}
    assert sliding.ticks_past_its_tuples
    assert not window(type="sliding", evict={"time": 9}, trigger={"time": 2}).ticks_past_its_tuples
    assert window(type="tumbling", evict={"punctuation": "v > 2"}).conditions() == {"evict.punctuation": "v > 2"}
    custom = window(type="custom", function=PAIRS)
    assert custom.functions() == {"function": PAIRS}
    assert custom.reads_whole_rows


def test_an_unknown_type_is_refused_with_those_there_are():
    with pytest.raises(SpecError, match="got 'hoping'; expected one of 'tumbling', 'hopping', 'cumulative', 'session', 'snapshot'"):
        pipeline_of({"type": "hoping"})
    with pytest.raises(SpecError, match="got 'each'; expected one of"):
        pipeline_of({"type": "each"})


def test_a_type_that_leaves_something_out_is_not_registered():
    class Half(PluginWindow):
        type: Literal["half"]

        def describe(self) -> str:
            return "half"

    with pytest.raises(TypeError, match=r"Half: lacks reach, reference_rows, slicer; implement them as windowmill\.plugins\.Window says"):
        register(Half)

    class Nameless(Session):
        type: str

    with pytest.raises(TypeError, match=r"Nameless: type: got .*; expected the name that specs give it"):
        register(Nameless)

    class Again(Session):
        type: Literal["hopping"]

    with pytest.raises(PluginError, match="the window type 'hopping' is registered by windowmill itself already"):
        register(Again)
    assert tuple(FORMS) == tuple(TYPES)
