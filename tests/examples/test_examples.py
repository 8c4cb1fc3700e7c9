"""Each example prints what its README shows, and publishes what the reference engine makes of the same deliveries."""

from __future__ import annotations

import importlib
import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from rich.console import Console

from examples.deliveries import Example, play
from examples.flights.results import published_rows
from windowmill.jobs.commands.try_command import attempt
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import load_pipeline

FOLDER = Path(__file__).parents[2] / "examples"
NAMES = ["clickstream", "glucose", "stocks"]
PRINTED = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def example(name: str) -> Example:
    found = importlib.import_module(f"examples.{name}.example").EXAMPLE
    assert isinstance(found, Example)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_an_example_prints_what_its_page_shows_and_publishes_what_recomputation_gives(tmp_path, monkeypatch, name):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    out = io.StringIO()
    play(example(name), tmp_path, Console(file=out, highlight=False, soft_wrap=True, markup=False))
    [printed] = PRINTED.findall((FOLDER / name / "README.md").read_text())
    assert out.getvalue() == printed
    for spec in sorted((FOLDER / name).glob("*.yaml")):
        pipeline = load_pipeline(spec, {"WAREHOUSE": str(tmp_path)})
        rows = published_rows(pipeline)
        published = rows.filter(pc.invert(rows["retracted"])).drop_columns(["batch", "retracted"]).to_pylist()
        assert sorted(map(comparable, published), key=str) == sorted(map(comparable, recomputed(example(name), pipeline)), key=str)


def recomputed(played: Example, pipeline: Pipeline) -> list[Any]:
    """Result rows of the reference engine, each delivery a commit: shorter ones are filled up with empty lines."""
    deliveries = [delivery.rows.to_pylist() for delivery in played.deliveries()]
    longest = max(map(len, deliveries))
    lines = [line for rows in deliveries for line in [*(json.dumps(row, default=str) for row in rows), *[""] * (longest - len(rows))]]
    outcome = attempt(pipeline, "\n".join(lines).encode(), engine="reference", final=False, commit_rows=longest)
    assert outcome.rows
    return list(outcome.rows)


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    """``row`` with instants in microseconds, and floats to nine digits."""
    return {name: _comparable(value) for name, value in row.items()}


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return comparable(value)
    if isinstance(value, datetime):
        aware = value.replace(tzinfo=UTC)
        return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // (datetime.resolution)
    return float(f"{value:.9g}") if isinstance(value, float) else value


def test_every_folder_with_a_program_is_tried():
    assert sorted(path.parent.name for path in FOLDER.glob("*/example.py")) == NAMES
