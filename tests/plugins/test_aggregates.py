"""An aggregate from outside: validated, explained, tried by every engine, computed on Spark, and refused where it does not fit."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pyarrow as pa
import pytest
import yaml

from tests.checkpoints.records import plan
from tests.windowing.kernel_algebra import made_of
from windowmill import aggregate
from windowmill.jobs.cli import main
from windowmill.jobs.spark.session import ship_modules
from windowmill.jobs.user_code import check_code, module_digests
from windowmill.testing import check_aggregate, try_pipeline
from windowmill.windowing.aggregates import aggregate_for
from windowmill.windowing.catalogue import parse_aggregate
from windowmill.windowing.errors import CodeChangedError, PluginError, SpecError
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

TOYS = "tests.plugins.toys.aggregates"
#: What they name in ``recipe``.
RECIPES = "tests.plugins.toys.recipe"
SPEC: dict[str, Any] = {
    "pipeline": "prices",
    "keys": ["shop"],
    "time": {"column": "at", "unit": "s"},
    "windows": [{"name": "rolling", "type": "hopping", "size": 20, "hop": 10}],
    "aggregates": {"n": {"count": "*"}, "spread": {"coefficient_of_variation": "price"}, "lean": {"asymmetry": "price"}},
}
OBJECTS = SPEC | {"aggregates": SPEC["aggregates"] | {"high": {"highest_above": {"column": "price", "limit": 4}}}}
ROWS = [
    {"shop": shop, "at": at, "price": price}
    for shop, at, price in [("a", 1, 2.0), ("a", 3, None), ("a", 8, 5.5), ("b", 9, 1.0), ("a", 14, 3.5), ("a", 27, 8.0), ("b", 28, 4.0)]
]


def wanted(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """A few windows, counted by hand."""
    rows = [
        {
            "shop": "a",
            "window_end": 20,
            "n": 4,
            "spread": statistics.stdev([2.0, 5.5, 3.5]) / statistics.fmean([2.0, 5.5, 3.5]),
            "high": 5.5,
        },
        {"shop": "b", "window_end": 20, "n": 1, "spread": None, "high": None},
    ]
    return [{name: value for name, value in row.items() if name != "high" or "high" in spec["aggregates"]} for row in rows]


@pytest.mark.parametrize("spec", [SPEC, OBJECTS], ids=["slices", "live rows"])
def test_kernel_and_reference_agree_on_it(plug, spec):
    plug(TOYS)
    outcome = try_pipeline(spec, ROWS, engines=["kernel", "reference"], batches="each")
    found = {(row["shop"], row["window_end"]): row for row in outcome.rows}
    for row in wanted(spec):
        got = found[row["shop"], row["window_end"]]
        assert {name: got[name] for name in row} == pytest.approx(row)


@pytest.mark.spark
@pytest.mark.classic  # it changes the workers' environment
@pytest.mark.parametrize("spec", [SPEC, OBJECTS], ids=["slices", "live rows"])
def test_spark_computes_it_too(plug, spark, monkeypatch, spec):
    plug(TOYS)
    monkeypatch.delitem(spark.sparkContext.environment, "WINDOWMILL_PLUGINS", raising=False)
    tried = try_pipeline(spec, ROWS)
    frame = spark.createDataFrame(pa.Table.from_pylist(ROWS))
    columns = ["shop", "window_end", *spec["aggregates"]]
    tried.expect([row.asDict() for row in aggregate(frame, spec).select(*columns).collect()])
    tried.expect(try_pipeline(spec, ROWS, engines="spark").rows)


def test_it_is_validated_and_explained(plug, tmp_path: Path, capsys):
    plug(TOYS)
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(OBJECTS, sort_keys=False))
    assert main(["validate", str(path)]) == 0
    assert main(["explain", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out.split("\n", 1)[1])
    assert [found["function"] for found in told["aggregates"]] == ["count", "coefficient_of_variation", "asymmetry", "highest_above"]


def test_slices_hold_the_atom_that_it_shares(plug):
    plug(TOYS)
    from windowmill.windowing.kernels.layout import Layout

    spec = SPEC | {"aggregates": SPEC["aggregates"] | {"deviation": {"stddev_samp": "price"}}}
    layout = Layout.of(parse_pipeline(spec), {"shop": pa.string(), "at": pa.int64(), "price": pa.float64()})
    assert [atom.kind for atom in layout.atoms] == ["rows", "moments", "moments4"]


def test_the_json_schema_has_it(plug):
    plug(TOYS)
    validator = jsonschema.Draft202012Validator(Pipeline.model_json_schema())
    assert validator.is_valid(OBJECTS)
    assert not validator.is_valid(SPEC | {"aggregates": {"high": {"highest_above": {"column": "price"}}}})
    plug()
    assert not jsonschema.Draft202012Validator(Pipeline.model_json_schema()).is_valid(OBJECTS)


@pytest.mark.parametrize(
    ("aggregates", "message"),
    [
        ({"x": {"coefficient_of_variatoin": "price"}}, "did you mean 'coefficient_of_variation'"),
        ({"x": {"highest_above": "price"}}, "highest_above: got 'price'; expected {column: …, limit: a number}"),
        ({"x": {"highest_above": {"column": "price", "limit": "4"}}}, "expected {column: …, limit: a number}"),
    ],
)
def test_what_is_wrong_with_its_use_is_told_as_of_any(plug, aggregates, message):
    plug(TOYS)
    with pytest.raises(SpecError, match=message.replace("{", r"\{")):
        parse_pipeline(SPEC | {"aggregates": aggregates})


def test_columns_that_it_cannot_take_are_told(plug):
    plug(TOYS)
    from windowmill.windowing.kernels.layout import Layout

    with pytest.raises(SpecError, match="coefficient_of_variation of column 'price' of type string"):
        Layout.of(parse_pipeline(SPEC), {"shop": pa.string(), "at": pa.int64(), "price": pa.string()})


def test_a_result_of_which_no_column_is_made_is_refused(plug):
    plug(TOYS)
    from windowmill.plugins import Declaration, register_aggregate
    from windowmill.windowing.columnar.results import result_types

    def build(spec, types):
        return replace(aggregate_for(parse_aggregate({"collect": "price"}), types), result="decimal")

    register_aggregate(Declaration("odd", build))
    with pytest.raises(
        SpecError, match=r"aggregates\.x: odd gives 'decimal', of which no column is made; let its algebra give one of int64, "
    ):
        result_types(parse_pipeline(SPEC | {"aggregates": {"x": {"odd": "price"}}}), {"price": pa.float64()})


def test_its_laws_are_tried(plug):
    plug(TOYS)
    built = made_of({"coefficient_of_variation": "price"}, ["float64"])
    from tests.plugins.toys.aggregates import plain_variation

    def plain(rows):
        values = [value for (value,) in rows if value is not None]
        return plain_variation(values) if values else None

    check_aggregate(built, [(1.0,), (2.5,), (None,), (4.0,)], plain, examples=25, max_rows=3)
    highest = made_of({"highest_above": {"column": "price", "limit": 2}}, ["float64"])
    check_aggregate(highest, [(1.0,), (2.5,), (None,), (4.0,)], lambda rows: max((v for (v,) in rows if v and v > 2), default=None))


def test_its_module_is_part_of_what_a_batch_depends_on(plug):
    plug(TOYS)
    assert list(module_digests(parse_pipeline(SPEC))) == [TOYS, RECIPES]
    assert module_digests(parse_pipeline(SPEC | {"aggregates": {"n": {"count": "*"}}})) == {}


ALIAS = """
from windowmill.plugins import Declaration, register_aggregate

register_aggregate(Declaration("average", recipe="{recipes}:MEAN", plain="statistics:fmean", takes="number"))
"""


@pytest.fixture
def average(plug, tmp_path, monkeypatch):
    """A pipeline with an aggregate that two modules may register; its recipe is in a module beside them."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mean_recipes.py").write_text("from windowmill.windowing.kernels.recipes import MEAN\n")
    for module in ("means_one", "means_two"):
        (tmp_path / f"{module}.py").write_text(ALIAS.format(recipes="mean_recipes"))
    plug("means_one")
    return parse_pipeline(SPEC | {"aggregates": {"x": {"average": "price"}}})


def test_an_edited_recipe_is_refused(average, tmp_path):
    planned = plan(3, modules=module_digests(average))
    check_code(average, planned)
    with (tmp_path / "mean_recipes.py").open("a") as file:
        file.write("# edited\n")
    with pytest.raises(CodeChangedError, match="module mean_recipes is not the one that batch 3 ran"):
        check_code(average, planned)


def test_an_aggregate_that_another_module_registers_now_is_refused(plug, average):
    planned = plan(3, modules=module_digests(average))
    plug("means_two")
    with pytest.raises(CodeChangedError, match="module means_one, which batch 3 ran, no longer registers what the spec names"):
        check_code(average, planned)


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ("nowhere.at_all:MEAN", "ModuleNotFoundError: No module named 'nowhere'"),
        ("windowmill.windowing.kernels.recipes:MEEN", "AttributeError: .* has no attribute 'MEEN'"),
        ("windowmill.windowing.kernels.recipes", "AttributeError"),
        (":MEAN", "ValueError: Empty module name"),
    ],
)
def test_a_recipe_that_is_not_there_is_told(plug, part, why):
    from windowmill.plugins import Declaration, register_aggregate
    from windowmill.windowing.kernels.layout import Layout

    register_aggregate(Declaration("average", recipe=part, plain="statistics:fmean"))
    pipeline = parse_pipeline(SPEC | {"aggregates": {"x": {"average": "price"}}})
    module_digests(pipeline)
    with pytest.raises(PluginError, match=f"'{part}' cannot be imported \\({why}.*correct it where the plugin registers it"):
        Layout.of(pipeline, {"shop": pa.string(), "at": pa.int64(), "price": pa.float64()})


def test_workers_elsewhere_get_the_module_of_a_recipe(average):
    shipped: list[str] = []
    context = SimpleNamespace(master="spark://elsewhere:7077", environment={}, addPyFile=lambda path: shipped.append(Path(path).name))
    ship_modules(SimpleNamespace(sparkContext=context), average)
    assert shipped == ["mean_recipes.py", "means_one.py"]


def test_workers_elsewhere_get_all_plugins_and_are_told_of_them(plug):
    plug(TOYS, "tests.plugins.toys.command")
    shipped: list[str] = []
    context = SimpleNamespace(master="spark://elsewhere:7077", environment={}, addPyFile=lambda path: shipped.append(Path(path).name))
    ship_modules(SimpleNamespace(sparkContext=context), parse_pipeline(SPEC | {"aggregates": {"n": {"count": "*"}}}))
    assert (context.environment, shipped) == ({}, [])
    ship_modules(SimpleNamespace(sparkContext=context), parse_pipeline(SPEC))
    assert context.environment == {"WINDOWMILL_PLUGINS": f"{TOYS},tests.plugins.toys.command"}
    assert shipped == ["tests.zip"]


_BUILT = {"algebra": "nowhere:build"}
_BESIDE = "the aggregate 'odd' has options in addition to columns .*: leave columns out"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(({"name": name} | _BUILT, f".*{name!r}.* (another name|choose letters)") for name in ("mean", "where", "two words")),
        (
            _BUILT | {"columns": ("x", "y"), "options": ["q"]},
            _BESIDE,
        ),
        (
            _BUILT | {"columns": ("value",), "options": ["q"]},
            _BESIDE,
        ),
        (_BUILT | {"options": ["column"]}, _BESIDE),
        ({}, "the aggregate 'odd' has no recipe; give it one, or algebra, which combines partials that are Python objects"),
        (_BUILT | {"clipped": True}, "the aggregate 'odd' has no recipe; give it one, which clipped aggregates need"),
        ({"recipe": "nowhere:ODD"}, "the aggregate 'odd' has a recipe alone; give it plain too, by which the reference engine computes it"),
    ],
    ids=str,
)
def test_one_that_no_spec_can_name_or_no_engine_compute_is_refused(plug, given, message):
    from windowmill.plugins import Declaration, Option, register_aggregate

    options = {name: Option(lambda value: True, {}) for name in given.get("options", ())}
    with pytest.raises(PluginError, match=f"plugin 'tests.plugins.test_aggregates': {message}"):
        register_aggregate(Declaration(**{"name": "odd"} | given | {"options": options}))


def test_one_that_only_another_process_knows_is_told(plug):
    """As in a worker of Spark, to which a pipeline comes with the name of what a notebook has registered."""
    from windowmill.plugins import Declaration, register_aggregate

    register_aggregate(Declaration("average", "windowmill.windowing.aggregates.order:build_collect"))
    pipeline = parse_pipeline(SPEC | {"aggregates": {"x": {"average": "price"}}})
    plug()
    with pytest.raises(PluginError, match="the aggregate 'average' is not registered in this process; register it in a module"):
        aggregate_for(pipeline.aggregates["x"], ["float64"])
