"""A batch that a rule holds: what the next run, ``status`` and ``plan`` do about it, and what is said of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from tests.specs import TENS, TICKS, a_spec
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.expectations.gate import holds_again, last_verdict
from windowmill.expectations.suites import rules
from windowmill.jobs.batch import closing
from windowmill.jobs.cli import main
from windowmill.windowing.specfile import load_pipeline


class Desk:
    """A spec in a file whose only rule says how great ``x`` may be, and its commands."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys, self.spec = folder, capsys, str(folder / "p.yaml")

    def write(self, most: float, **changes: Any) -> None:
        rule = {"type": "expect_column_values_to_be_between", "column": "x", "max_value": most}
        fields = {"keys": ["k"], "time": TICKS, "windows": [TENS], "aggregates": {"x": {"max": "x"}}, "compute": "local"}
        Path(self.spec).write_text(yaml.safe_dump(a_spec(self.folder, **fields | {"expectations": [rule]} | changes)))

    def land(self, *rows: tuple[str, int, float]) -> None:
        k, t, x = zip(*rows, strict=True)
        write_deltalake(str(self.folder / "source"), pa.table({"k": list(k), "t": list(t), "x": list(x)}), mode="append")

    def call(self, command: str, *more: str) -> tuple[int, str, str]:
        code = main([command, self.spec, *more])
        return code, *self.capsys.readouterr()

    @property
    def validations(self) -> int:
        return len({row["at"] for row in DeltaTable(str(self.folder / "sink.windowmill" / "quality")).to_pyarrow_table().to_pylist()})


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    desk = Desk(tmp_path, capsys)
    desk.write(9.0)
    desk.land(("a", 1, 5.0), ("a", 11, 50.0), ("a", 21, 5.0))
    return desk


@pytest.fixture
def held(desk: Desk) -> Desk:
    assert desk.call("run")[0] == 3
    return desk


def test_by_the_same_rules_a_held_batch_is_not_validated_again(held, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(closing, "validate_files", lambda *_: pytest.fail("the same rules judge the same rows"))
        code, _, said = held.call("run")
    assert code == 3
    assert "neither the rules nor the limits of quarantine have changed since" in said
    assert 'breaks expect_column_values_to_be_between: {"k": "a", "window": "w", "window_end": 20, "x": 50.0}' in said
    assert "batch 0 is held, nothing was published: 1 of 6 rules not met: expect_column_values_to_be_between(x) failed" in said
    assert held.validations == 1


@pytest.mark.parametrize("changes", [{}, {"quarantine": {"hold": 0.5}}], ids=["the rule", "a limit of quarantine"])
def test_other_rules_validate_a_held_batch_again(held, changes):
    held.write(9.0 if changes else 8.0, **changes)
    code, _, said = held.call("run")
    assert (code, held.validations) == (3, 2)
    assert "  hold       batch 0 again; none of its rows is published" in said
    assert held.call("run")[0] == 3
    assert held.validations == 2, "the last validation counts"
    held.write(90.0)
    assert held.call("run")[0] == 0
    assert DeltaTable(str(held.folder / "sink")).to_pyarrow_table().num_rows == 2


def test_another_version_of_windowmill_validates_a_held_batch_again(held, monkeypatch):
    monkeypatch.setattr(closing, "version", lambda _: "99.0")
    assert (held.call("run")[0], held.validations) == (3, 2)


def test_a_rule_that_could_not_be_evaluated_is_tried_again(held):
    pipeline = load_pipeline(held.spec)
    path, generation = Places.of(pipeline).quality, Ledger.open(pipeline).generation
    found = last_verdict(path, generation, 0)
    assert found is not None
    assert holds_again(found, rules(pipeline))
    assert not holds_again(replace(found, results=(replace(found.results[0], outcome="broken"), *found.results[1:])), rules(pipeline))
    assert last_verdict(path, generation, 1) is None


@pytest.mark.parametrize(
    "sql",
    [
        {"type": "unexpected_rows_expectation", "arguments": {"unexpected_rows_query": "SELECT * FROM {batch} WHERE window_end > now()"}},
        {"arguments": {"column": "x", "max_value": 9, "row_condition": {"type": "pass_through", "pass_through_filter": "now() > at"}}},
    ],
    ids=["a query", "a condition"],
)
def test_a_batch_that_sql_alone_holds_is_validated_again(held, sql):
    """It may have read the clock, or a table that has been corrected."""
    pipeline = load_pipeline(held.spec)
    found = last_verdict(Places.of(pipeline).quality, Ledger.open(pipeline).generation, 0)
    assert found is not None
    first, *others = found.results
    text = replace(first, **sql)
    assert not holds_again(replace(found, results=(text, *others)), [text, *others])
    also = [replace(others[0], severity="critical", outcome="failed"), *others[1:]]
    assert holds_again(replace(found, results=(text, *also)), [text, *also])


def test_the_progress_of_a_held_batch_says_that_nothing_is_published(desk):
    _, _, said = desk.call("run")
    assert "  hold       2 rows, none of which is published" in said
    assert "  publish " not in said


def test_status_says_why_a_batch_is_held_and_what_next(held):
    told = json.loads(held.call("status", "--json")[1])["held_by"]
    row = {"k": "a", "window": "w", "window_end": 20, "x": 50.0}
    assert told == [{"type": "expect_column_values_to_be_between", "column": "x", "message": "1 of 2 rows break the rule", "rows": [row]}]
    lines = " ".join(held.call("status")[1].split())
    assert "held by expect_column_values_to_be_between(x): 1 of 2 rows break the rule k=a, window=w, window_end=20, x=50.0" in lines
    assert "`windowmill release` or `windowmill discard` it, or change the rule or the limits of quarantine and run again" in lines
    assert held.call("release")[0] == 0
    assert json.loads(held.call("status", "--json")[1])["held_by"] is None
    assert "held by" not in held.call("status")[1]


def test_a_held_batch_without_rows_of_its_rules_is_told_without_them(held):
    DeltaTable(str(held.folder / "sink.windowmill" / "quality")).delete()
    assert json.loads(held.call("status", "--json")[1])["held_by"] == []


def test_a_plan_names_released_batches_that_broke_the_rules_which_judge_it(held):
    assert held.call("release")[0] == 0
    hourly = {"windows": [TENS, {**TENS, "name": "fives", "size": 5}]}
    held.write(9.0, **hourly)
    assert json.loads(held.call("plan", "--json")[1])["released"] == [{"batch": 0, "rules": ["expect_column_values_to_be_between(x)"]}]
    lines = " ".join(held.call("plan")[1].replace("│", " ").split())
    assert "batch 0 was released although it broke expect_column_values_to_be_between(x); `apply` validates what it publishes" in lines
    assert json.loads(held.call("plan", "--json", "--history", "none")[1])["released"] == []
    held.write(90.0, **hourly)
    assert json.loads(held.call("plan", "--json")[1])["released"] == []
