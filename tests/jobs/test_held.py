"""A batch that a rule holds: what the next run, ``status`` and ``plan`` do about it, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.jobs.desk import Desk
from tests.specs import TENS, TICKS
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.expectations.gate import holds_again, last_verdict
from windowmill.expectations.suites import rules
from windowmill.jobs.batch import finishing
from windowmill.windowing.specfile import load_pipeline

FIELDS = {"keys": ["k"], "time": TICKS, "windows": [TENS], "aggregates": {"x": {"max": "x"}}, "compute": "local"}


def at_most(most: float) -> dict[str, Any]:
    """The only rule of these specs: how great ``x`` may be."""
    return {"expectations": [{"type": "expect_column_values_to_be_between", "column": "x", "max_value": most}]}


@pytest.fixture
def held(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    """A pipeline whose first batch is held."""
    desk = Desk(tmp_path, capsys, **FIELDS, **at_most(9.0))
    desk.land(k=["a", "a", "a"], t=[1, 11, 21], x=[5.0, 50.0, 5.0])
    code, _, said = desk.call("run")
    assert (code, "  hold       2 rows, none of which is published" in said, "  publish " in said) == (3, True, False)
    return desk


def validations(desk: Desk) -> int:
    return len({row["at"] for row in DeltaTable(str(desk.folder / "sink.windowmill" / "quality")).to_pyarrow_table().to_pylist()})


def test_by_the_same_rules_a_held_batch_is_not_validated_again(held, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(finishing, "validate_files", lambda *_: pytest.fail("the same rules judge the same rows"))
        code, _, said = held.call("run")
    assert code == 3
    assert "neither the rules nor the limits of quarantine have changed since" in said
    assert 'breaks expect_column_values_to_be_between: {"k": "a", "window": "w", "window_end": 20, "x": 50.0}' in said
    assert "batch 0 is held, nothing was published: 1 of 6 rules not met: expect_column_values_to_be_between(x) failed" in said
    assert validations(held) == 1


@pytest.mark.parametrize("changes", [{}, {"quarantine": {"hold": 0.5}}], ids=["the rule", "a limit of quarantine"])
def test_other_rules_validate_a_held_batch_again(held, changes):
    held.write(**(changes or at_most(8.0)))
    code, _, said = held.call("run")
    assert (code, validations(held)) == (3, 2)
    assert "  hold       batch 0 again; none of its rows is published" in said
    assert held.told("run", code=3) == {"pipeline": "p", "status": "held", "batches": []}
    assert validations(held) == 2, "the last validation counts"
    held.write(**at_most(90.0))
    assert (held.call("run")[0], DeltaTable(str(held.folder / "sink")).to_pyarrow_table().num_rows) == (0, 2)


def test_another_version_of_windowmill_validates_a_held_batch_again(held, monkeypatch):
    monkeypatch.setattr(finishing, "version", lambda _: "99.0")
    assert (held.call("run")[0], validations(held)) == (3, 2)


def test_a_rule_that_could_not_be_evaluated_is_tried_again(held):
    pipeline = load_pipeline(held.path)
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
    pipeline = load_pipeline(held.path)
    found = last_verdict(Places.of(pipeline).quality, Ledger.open(pipeline).generation, 0)
    assert found is not None
    first, *others = found.results
    text = replace(first, **sql)
    assert not holds_again(replace(found, results=(text, *others)), [text, *others])
    also = [replace(others[0], severity="critical", outcome="failed"), *others[1:]]
    assert holds_again(replace(found, results=(text, *also)), [text, *also])


def test_status_says_why_a_batch_is_held_and_what_next(held):
    told = held.told("status")["held_by"]
    row = {"k": "a", "window": "w", "window_end": 20, "x": 50.0}
    assert told == [{"type": "expect_column_values_to_be_between", "column": "x", "message": "1 of 2 rows break the rule", "rows": [row]}]
    lines = " ".join(held.call("status")[1].split())
    assert "held by expect_column_values_to_be_between(x): 1 of 2 rows break the rule k=a, window=w, window_end=20, x=50.0" in lines
    assert "`windowmill release` or `windowmill discard` it, or change the rule or the limits of quarantine and run again" in lines
    quality = DeltaTable(str(held.folder / "sink.windowmill" / "quality"))
    quality.delete()
    assert held.told("status")["held_by"] == [], "the rows of its rules are gone"
    quality.restore(quality.version() - 1)
    assert held.call("release")[0] == 0
    assert held.told("status")["held_by"] is None
    assert "held by" not in held.call("status")[1]


def test_a_plan_names_released_batches_that_broke_the_rules_which_judge_it(held):
    assert held.call("release")[0] == 0
    hourly = {"windows": [TENS, {**TENS, "name": "fives", "size": 5}]}
    held.write(**hourly)
    assert held.told("plan", code=4)["released"] == [{"batch": 0, "rules": ["expect_column_values_to_be_between(x)"]}]
    lines = " ".join(held.call("plan")[1].replace("│", " ").split())
    assert "batch 0 was released although it broke expect_column_values_to_be_between(x); `apply` validates what it publishes" in lines
    assert held.told("plan", "--history", "none", code=4)["released"] == []
    held.write(**hourly, **at_most(90.0))
    assert held.told("plan", code=4)["released"] == []
