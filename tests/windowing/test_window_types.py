"""A type of windows is one module and its registration: each has all of its facts, and a new one is all that it takes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa
import pytest
import yaml

from tests.windowing.each_window import Each
from windowmill.expectations.suites import rules
from windowmill.jobs.commands.explain import explain
from windowmill.jobs.commands.try_command import run_try
from windowmill.jobs.spec_checks import problems_of
from windowmill.jobs.user_code import module_names
from windowmill.windowing.axis import Grid
from windowmill.windowing.bounds import accepted_times
from windowmill.windowing.columnar.aggregation import Lifted
from windowmill.windowing.columnar.engine import ColumnarEngine
from windowmill.windowing.costs import Shape
from windowmill.windowing.errors import SpecError, UnsupportedError
from windowmill.windowing.planner import plan
from windowmill.windowing.reference import Record, evaluate
from windowmill.windowing.reference.events import Course, Tally
from windowmill.windowing.slicing.leaves import Windows
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline
from windowmill.windowing.windows import registry
from windowmill.windowing.windows.base import ColumnUse, Spacing, Window
from windowmill.windowing.windows.registry import register, window_type, window_types

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
    spec = {"pipeline": "p", "keys": ["k"], "time": {"column": "t", "unit": "none"}, "aggregates": {"n": {"count": "*"}}}
    return parse_pipeline(spec | {"windows": [{"name": "w"} | window]} | others)


def test_every_type_is_tested_in_its_forms():
    assert tuple(FORMS) == window_types()


@pytest.mark.parametrize("emit", ["final", "revise"])
@pytest.mark.parametrize(("name", "form"), CASES, ids=str)
def test_every_type_has_all_of_its_facts(name, form, emit):
    pipeline = pipeline_of({"type": name} | form, emit=emit)
    [window] = pipeline.windows
    assert type(window) is window_type(name)
    assert type(window).__doc__ != Window.__doc__
    assert window.describe().split(":")[0] == name
    assert isinstance(window.shape(pipeline), Shape)
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
    slicer = window.slicer(pipeline)
    assert all(callable(getattr(slicer, method)) for method in SLICER_METHODS)
    assert {"keys"} <= set(slicer.snapshot())
    assert list(window.reference_rows([], Tally(), Course(True, emit == "revise", 0, 0, 0))) == []


@pytest.mark.parametrize(("name", "form"), CASES, ids=str)
def test_a_type_is_a_grid_or_says_why_not(name, form):
    [window] = pipeline_of({"type": name} | form).windows
    problem = window.grid_problem("windows.0")
    if problem is None:
        assert isinstance(window.fixed_grid(), Grid)
    else:
        assert problem.startswith(f"windows.0: {name} windows ")
        with pytest.raises(UnsupportedError, match="are no fixed grid; such windows go by live rows"):
            window.fixed_grid()


@pytest.mark.parametrize(("name", "form"), CASES, ids=str)
def test_the_engine_that_explain_names_is_the_one_that_runs(monkeypatch, name, form):
    """Over rows that come in the order of their times: late ones are combined one by one, whatever the engine."""
    pipeline = pipeline_of({"type": name} | form)
    ran: set[str] = set()
    combine = Lifted.combine

    def noting(lifted: Lifted, windows: Windows) -> Any:
        ran.add(_engine_of(windows))
        return combine(lifted, windows)

    monkeypatch.setattr(Lifted, "combine", noting)
    rows = pa.table({"k": ["a"] * 60, "t": range(0, 120, 2), "v": [n % 5 for n in range(60)], "f": [n / 7 for n in range(60)]})
    conditions = {text: pa.array([n % 5 > 2 for n in range(60)]) for text in pipeline.conditions()}
    engine = ColumnarEngine(pipeline)
    engine.feed(rows, conditions)
    engine.finish(final=True)
    [choice] = plan(pipeline, refusal="for its rows").windows[0].choices
    assert ran == {choice.engine}


def _engine_of(windows: Windows) -> str:
    """What combines ``windows``: circular leaves, ranges of a sequence, or leaves one by one."""
    if windows.ring is not None:
        return "flatfat"
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
    with pytest.raises(SpecError, match="got 'hoping'; expected one of 'tumbling', 'hopping', 'cumulative', 'session', 'snapshot'"):
        window_type("hoping")
    with pytest.raises(SpecError, match="got 'each'; expected one of"):
        pipeline_of({"type": "each"})


def test_a_type_that_leaves_something_out_is_not_registered():
    class Half(Window):
        type: Literal["half"]

        def describe(self) -> str:
            return "half"

    with pytest.raises(TypeError, match=r"Half: lacks reach, reference_rows, shape, slicer; implement them as .*base\.Window says"):
        register(Half)

    class Nameless(Each):
        type: str

    with pytest.raises(TypeError, match=r"Nameless: type: got .*; expected the name that specs give it"):
        register(Nameless)

    class Again(Each):
        type: Literal["session"]

    with pytest.raises(ValueError, match=r"Again: type: 'session' is taken by windowmill\.windowing\.windows\.session\.Session"):
        register(Again)
    assert tuple(FORMS) == window_types()


@pytest.fixture
def each() -> Iterator[None]:
    register(Each)
    yield
    del registry._TYPES["each"]


ROWS = [{"k": "a", "t": 1}, {"k": "b", "t": 1}, {"k": "a", "t": 9}, {"k": "a", "t": 2}, {"k": "b", "t": 8}, {"k": "a", "t": 30}]
EACH = {"type": "each"}


def test_a_new_type_is_parsed_checked_and_explained(each):
    pipeline = pipeline_of(EACH)
    assert type(pipeline.windows[0]) is Each
    assert parse_pipeline(pipeline.model_dump(mode="json")) == pipeline
    assert "Each" in Pipeline.model_json_schema()["$defs"]
    with pytest.raises(SpecError, match=r"windows\.0\.size: unknown field; known here are name, output, empty, type"):
        pipeline_of(EACH | {"size": 3})
    assert accepted_times(pipeline) == (1 - (1 << 62), (1 << 62) - 1)
    assert problems_of(pipeline) == []
    assert module_names(pipeline) == []
    assert rules(pipeline)
    found = plan(pipeline)
    assert found.windows[0].what == "each: one event"
    assert found.why == ("windows.0: each windows are no fixed grid",)
    assert "each: one event" in json.dumps(explain(pipeline).data)


@pytest.mark.parametrize("batch_rows", [None, 1, 2])
@pytest.mark.parametrize("engine", ["kernel", "reference"])
def test_a_new_type_is_computed(each, tmp_path, engine, batch_rows):
    pipeline = pipeline_of(EACH, time={"column": "t", "unit": "none", "disorder": 2, "lateness": 3})
    outcome = evaluate(pipeline, [Record(row) for row in ROWS])
    assert [(row["k"], row["window_start"], row["n"]) for row in outcome.rows] == [
        ("a", 1, 1), ("a", 9, 1), ("a", 30, 1), ("b", 1, 1), ("b", 8, 1),
    ]  # fmt: skip
    assert outcome.quarantined == [(3, "too_late")]
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(pipeline.model_dump(mode="json", exclude_defaults=True)))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    out, err = io.StringIO(), io.StringIO()
    done = run_try(tmp_path / "p.yaml", tmp_path / "rows.jsonl", batch_rows=batch_rows, engine=engine, final=True, stdout=out, stderr=err)
    assert done == 0
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(row["k"], row["window_start"], row["window_end"]) for row in rows] == [
        (row["k"], row["window_start"], row["window_end"]) for row in outcome.rows
    ]
    assert "too_late" in err.getvalue()
