"""The pipelines that README and the docs show are valid, and so is what the JSON schema says of a spec."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.jobs.test_secrets import FULL
from windowmill.jobs.cli import main
from windowmill.windowing.catalogue import DECLARED
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text())


WHOLE = [pytest.param(text, id=f"{page.name}-{n}") for page in PAGES for n, text in enumerate(blocks(page)) if text.startswith("pipeline:")]
GUIDE = ROOT / "docs" / "writing-a-pipeline.md"


@pytest.mark.parametrize("text", WHOLE)
def test_a_pipeline_on_a_page_is_valid(tmp_path, monkeypatch, text):
    monkeypatch.setenv("WAREHOUSE", "/data")
    path = tmp_path / "p.yaml"
    path.write_text(text)
    assert main(["validate", str(path)]) == 0


def test_the_readme_shows_one():
    assert any("README" in str(case.id) for case in WHOLE)


def test_the_parts_of_the_guide_make_a_valid_pipeline(tmp_path):
    parts = blocks(GUIDE)
    assert len(parts) >= 3
    spec: dict[str, Any] = {"pipeline": "p", "source": {"path": "/data/in"}, "sink": {"path": "/data/out"}}
    for part in parts:
        spec |= yaml.safe_load(part)
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(spec))
    assert main(["validate", str(path)]) == 0


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*.yaml")), ids=lambda path: path.name)
def test_an_example_is_valid(monkeypatch, path):
    monkeypatch.setenv("WAREHOUSE", "/data")
    assert main(["validate", str(path)]) == 0


def test_the_json_schema_takes_what_is_valid_and_says_what_is_not():
    schema = Pipeline.model_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(FULL)
    assert parse_pipeline(FULL)
    assert schema["$defs"]["Time"]["properties"]["max_future_skew"]["default"] == "1 day"
    assert all(name in str(schema) for name in DECLARED)
    for right in ({"median": "v"}, {"quantile": {"column": "v", "q": 0.9}}, {"quantile": {"column": "v", "q": 0.9, "exact": True}}):
        assert validator.is_valid(FULL | {"aggregates": {"x": right}})
    several = {"aggregates": {"x": {"mean": "v", "sum": "v"}}}
    for wrong in (
        several,
        {"aggregates": {"x": {"meen": "v"}}},
        {"aggregates": {"x": {"where": "v > 1"}}},
        {"aggregates": {"x": {"quantile": {"column": "v", "exact": True}}}},
        {"aggregates": {"x": {"quantile": {"column": "v", "q": 0.9, "exact": "yes"}}}},
        {"keyz": []},
        {"emit": "twice"},
        {"pipeline": "P"},
        {"windows": []},
        {"aggregates": {}},
        {"sink": 7},
    ):
        assert not validator.is_valid(FULL | wrong)
    assert not validator.is_valid({name: value for name, value in FULL.items() if name != "time"})
