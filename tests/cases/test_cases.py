"""Cases from the tests and documentation of other engines, through ``windowmill try``.

A case has the spec, the input rows and what must come out; docs/cases.md explains its fields.
"""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from windowmill.jobs.batch.job import parts_of
from windowmill.jobs.commands import try_command as memory
from windowmill.jobs.commands.try_command import ENGINES, run_try
from windowmill.jobs.layouts.base import Part
from windowmill.windowing.errors import SpecError
from windowmill.windowing.planner import plan
from windowmill.windowing.specfile import parse_pipeline

FOLDER = Path(__file__).parent
ALL = [case for path in sorted(FOLDER.glob("*.json")) for case in json.loads(path.read_text())]
CASES = [case for case in ALL if "refused" not in case]
#: The Spark engine starts a JVM; its own tests run these cases in one session.
LOCAL_ENGINES = sorted(set(ENGINES) - {"spark"})


def run(case: dict[str, Any], folder: Path, engine: str, batch_rows: int | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    spec, rows = folder / "spec.yaml", folder / "rows.jsonl"
    spec.write_text(yaml.safe_dump(case["spec"], sort_keys=False))
    rows.write_text("".join(json.dumps(row) + "\n" for row in case["input"]))
    out, err = io.StringIO(), io.StringIO()
    assert run_try(spec, rows, batch_rows=batch_rows, engine=engine, final=case.get("final", True), stdout=out, stderr=err) == 0
    rows_out, quarantined = ([json.loads(line) for line in stream.getvalue().splitlines()] for stream in (out, err))
    return rows_out, quarantined


def agrees(found: Any, wanted: Any, tolerance: float) -> bool:
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(name in found and agrees(found[name], value, tolerance) for name, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(agrees, found, wanted, [tolerance] * len(wanted)))
    if isinstance(wanted, int | float) and isinstance(found, int | float) and not isinstance(wanted, bool):
        return math.isclose(found, wanted, rel_tol=tolerance, abs_tol=1e-12)
    return bool(found == wanted)


#: Cases in which slices with rows of several batches combine partials in another order, so that a float differs in its last bit.
ROUNDED = {"duckdb-stddev-all", "duckdb-kurtosis-v2", "duckdb-kurtosis-k"}


def is_alike(found: Any, wanted: Any) -> bool:
    """Whether both are equal, but for the rounding of floats: it depends on how an input is cut into batches (docs/numerics.md)."""
    if isinstance(found, float) and isinstance(wanted, float):
        return math.isclose(found, wanted, rel_tol=1e-12, abs_tol=1e-12)
    if isinstance(found, dict) and isinstance(wanted, dict):
        return list(found) == list(wanted) and all(is_alike(found[name], wanted[name]) for name in wanted)
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(is_alike, found, wanted))
    return type(found) is type(wanted) and bool(found == wanted)


def compared(case: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that the case speaks of: not those of the key that is there to move the watermark."""
    rows = [row for row in rows if "clock" not in case or row["key"] != case["clock"]]
    return [row for row in rows if "from" not in case or row["window_start"] >= case["from"]]


def check(case: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    left = compared(case, rows)
    for wanted in case["expected"]:
        match = next((row for row in left if agrees(row, wanted, case.get("tolerance", 1e-9))), None)
        assert match is not None, f"no row for {wanted} among {left}"
        left.remove(match)
    if case.get("match") != "some":
        assert left == []


@pytest.mark.parametrize("engine", LOCAL_ENGINES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_gives_the_rows_of_the_case_however_it_is_cut(case: dict[str, Any], engine: str, tmp_path: Path):
    rows, quarantined = run(case, tmp_path, engine, None)
    check(case, rows)
    assert [row["line"] for row in quarantined] == case.get("quarantined", [])
    again, refused = run(case, tmp_path, engine, 1 if len(case["input"]) < 20 else 7)
    assert refused == quarantined
    assert is_alike(again, rows) if engine == "kernel" and case["id"] in ROUNDED else again == rows


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_try_goes_the_ways_that_explain_names(case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gone: set[str] = set()

    def noted(*given: Any) -> list[Part]:
        parts = parts_of(*given)
        gone.update(part.name for part in parts)
        return parts

    monkeypatch.setattr(memory, "parts_of", noted)
    run(case, tmp_path, "kernel", None)
    assert gone == (set(plan(parse_pipeline(case["spec"]), refusal="no source").layouts) if case["input"] else set())


@pytest.mark.parametrize("case", [case for case in ALL if "refused" in case], ids=lambda case: case["id"])
def test_refuses_the_specs_of_the_case(case: dict[str, Any]):
    for spec in case["refused"]:
        with pytest.raises(SpecError, match="longer than zero"):
            parse_pipeline(spec)


def test_every_case_names_its_source():
    assert len({case["id"] for case in ALL}) == len(ALL) > 200
    assert all(case["source"]["repo"] and case["source"]["path"] for case in ALL)
