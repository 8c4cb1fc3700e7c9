"""The pytest plugin that users test their pipelines with."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import strategies as st

from tests.specs import a_spec
from windowmill.testing import Outcome, check_aggregate, try_pipeline
from windowmill.windowing.errors import SpecError, UnsupportedError
from windowmill.windowing.laws import LawError
from windowmill.windowing.specfile import parse_pipeline

ROOT = Path(__file__).parents[2]
HERE = __name__
SPEC: dict[str, Any] = a_spec(
    keys=["k"], windows=[{"name": "hourly", "type": "tumbling", "size": "1 hour"}], aggregates={"n": {"count": "*"}, "mean": {"mean": "v"}}
)
ROWS = [{"k": "a", "t": "2013-01-01T00:10:00Z", "v": 0.1}, {"k": "a", "t": "2013-01-01T01:10:00Z", "v": 0.2}]
CUTS = ["each", 2, ["whole", "each", 3]]


@pytest.mark.parametrize("batches", CUTS, ids=str)
def test_gives_rows_and_quarantined_rows(batches: Any):
    late = {"k": "a", "t": "2013-01-01T00:20:00Z", "v": 1.0}
    outcome = try_pipeline(SPEC, [*ROWS, late], engines=["kernel", "reference"], batches=batches)
    assert [(row["window_end"], row["n"], row["mean"]) for row in outcome.rows] == [
        ("2013-01-01T01:00:00Z", 1, 0.1),
        ("2013-01-01T02:00:00Z", 1, 0.2),
    ]
    assert [(row.index, row.reason, row.row) for row in outcome.quarantined] == [(2, "too_late", late)]


@pytest.mark.parametrize("batches", CUTS, ids=str)
@pytest.mark.parametrize(("commit_rows", "late"), [(1, {2}), (2, {2}), (3, set())], ids=str)
def test_rows_of_a_commit_are_not_late_to_one_another(batches: Any, commit_rows: int, late: set[int]):
    rows = [*ROWS, {"k": "a", "t": "2013-01-01T00:20:00Z", "v": 0.3}]
    outcome = try_pipeline(SPEC, rows, engines=["kernel", "reference"], batches=batches, commit_rows=commit_rows)
    outcome.expect([{"mean": 0.1 if late else 0.2}, {"mean": 0.2}], quarantined=dict.fromkeys(late, "too_late"))


def test_a_spec_is_a_path_a_mapping_or_a_pipeline(tmp_path: Path):
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(SPEC))
    assert try_pipeline(path, ROWS) == try_pipeline(str(path), ROWS) == try_pipeline(SPEC, ROWS) == try_pipeline(parse_pipeline(SPEC), ROWS)


def test_rows_may_hold_dates_and_datetimes_and_nan():
    paris = datetime.timezone(datetime.timedelta(hours=1))
    rows = [
        {"k": "a", "t": datetime.date(2013, 1, 1), "v": float("nan")},
        {"k": "a", "t": datetime.datetime(2013, 1, 1, 1, 30, tzinfo=paris), "v": 1},
    ]
    try_pipeline(SPEC, rows).expect([{"window_start": "2013-01-01T00:00:00Z", "n": 2, "mean": "NaN"}])
    with pytest.raises(TypeError, match="a row holds"):
        try_pipeline(SPEC, [{"k": object(), "t": None}])


def test_the_end_of_the_input_and_the_present_can_be_set():
    assert len(try_pipeline(SPEC, ROWS, final=False).rows) == 1
    skewed = SPEC | {"time": {"column": "t", "max_future_skew": "30 minutes"}}
    outcome = try_pipeline(skewed, ROWS, now=datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC))
    outcome.expect([{"n": 1}], quarantined={1: "future_time"})


EXPECTED = [{"window_start": "2013-01-01T01:00:00Z", "mean": 0.2 + 1e-13}, {"window_start": "2013-01-01T00:00:00Z", "mean": 0.1}]


@pytest.mark.parametrize(
    ("expected", "says"),
    [
        (EXPECTED, None),
        ([EXPECTED[0], EXPECTED[1] | {"mean": 0.3}], r"\{'window_start': '2013-01-01T00:00:00Z'\}: mean: expected 0.3, got 0.1"),
        ([EXPECTED[0], EXPECTED[1] | {"median": 0.1}], r"median: expected 0.1, got '\(no such column\)'"),
        ([*EXPECTED, {"window_start": "later", "mean": 7.0}], r"missing: \{'window_start': 'later', 'mean': 7.0\}"),
        (EXPECTED[:1], r"unexpected: \{'window_start': '2013-01-01T00:00:00Z', 'mean': 0.1\}"),
        ([*EXPECTED, EXPECTED[0]], "missing"),
    ],
)
def test_what_differs_is_told_column_by_column(expected: list[dict[str, Any]], says: str | None):
    outcome = try_pipeline(SPEC, ROWS)
    if says is None:
        outcome.expect(expected, quarantined={})
    else:
        with pytest.raises(AssertionError, match=says) as raised:
            outcome.expect(expected)
        assert len(str(raised.value).splitlines()) == 2
    with pytest.raises(AssertionError, match=r"quarantined: expected \{0: 'too_late'\}, got \{\}"):
        outcome.expect(EXPECTED, quarantined={0: "too_late"})


class Forgetful:
    """Counts how often it has been called, which depends on how the input is cut."""

    calls = 0

    def lift(self, value: int) -> int:
        Forgetful.calls += 1
        return Forgetful.calls

    def combine(self, older: int, newer: int) -> int:
        return older + newer

    def lower(self, partial: int) -> int:
        return partial


def test_a_function_that_remembers_is_found_by_cutting():
    spec = SPEC | {"aggregates": {"odd": {"use": f"{HERE}:Forgetful", "args": ["v"]}}}
    with pytest.raises(AssertionError, match=r"in batches of 1, differs from engine kernel in one batch:\n.*odd: expected"):
        try_pipeline(spec, ROWS, batches="each")


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"engines": "flux"}, UnsupportedError, "use kernel or reference"),
        ({"engines": []}, ValueError, "name at least one"),
        ({"batches": 0}, SpecError, "expected a whole number from 1"),
        ({"commit_rows": 0}, SpecError, "expected a whole number from 1"),
        ({"batches": "some"}, ValueError, "batches: got 'some'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], error: type[Exception], says: str):
    with pytest.raises(error, match=re.escape(says)):
        try_pipeline(SPEC, ROWS, **options)


@pytest.mark.thorough
def test_the_plugin_gives_the_fixture_and_the_guide_is_true(tmp_path: Path):
    widest, tests = re.findall("```python\n(.*?)```", section_of_the_guide(), re.DOTALL)
    (tmp_path / "shop_aggregates.py").write_text(widest)
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / "airport_delays.yaml").write_text(
        yaml.safe_dump(SPEC | {"keys": ["origin"], "time": {"column": "departed_at"}, "aggregates": {"flights": {"count": "*"}}})
    )
    (folder / "test_guide.py").write_text(tests)
    (folder / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    (folder / "test_wrong.py").write_text(f"def test_wrong(try_pipeline):\n    try_pipeline('spec.yaml', {ROWS}).expect([])\n")
    command = [sys.executable, "-m", "pytest", "-p", "windowmill.testing", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-q"]
    paths = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{tmp_path}"}
    ran = subprocess.run([*command, str(folder)], capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False, env=paths)
    assert "1 failed, 2 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "unexpected: {'k': 'a', 'window': 'hourly'" in ran.stdout
    # The trace ends in the user's own line.
    assert "windowmill/testing.py" not in ran.stdout


def section_of_the_guide() -> str:
    return (ROOT / "docs" / "writing-a-pipeline.md").read_text().split("### Your own aggregate")[1].split("\n## ")[0]


class Widest:
    """Right."""

    commutative = idempotent = True

    def lift(self, low: int, high: int) -> tuple[int, int]:
        return low, high

    def combine(self, older: tuple[int, int], newer: tuple[int, int]) -> tuple[int, int]:
        return max(older, newer, key=lambda pair: (pair[1] - pair[0], pair))

    def lower(self, pair: tuple[int, int]) -> int:
        return pair[1] - pair[0]


class Mean:
    """Wrong: means of means."""

    def lift(self, value: float) -> float:
        return value

    def combine(self, older: float, newer: float) -> float:
        return (older + newer) / 2

    def lower(self, mean: float) -> float:
        return mean


def test_an_aggregate_is_checked_by_name_class_or_object():
    pairs = st.tuples(st.integers(-9, 9), st.integers(-9, 9))
    for use in (Widest, Widest(), f"{HERE}:Widest"):
        check_aggregate(use, pairs, lambda rows: max((high - low for low, high in rows), default=None), examples=30)
    for use in (Mean, f"{HERE}:Mean"):
        with pytest.raises(LawError, match="law of associativity") as raised:
            check_aggregate(use, [(0,), (1,)])
        assert (raised.value.law, [len(rows) for rows in raised.value.operands]) == ("associativity", [1, 1, 1])
        told = str(raised.value) if isinstance(use, type) else str(raised.value).replace(f"{HERE}:", "")
        assert told in " ".join(section_of_the_guide().split())
    with pytest.raises(SpecError, match=r"no function lift\(\)"):
        check_aggregate(Outcome([], []), [(1,)])
