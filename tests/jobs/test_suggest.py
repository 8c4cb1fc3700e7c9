"""``windowmill suggest``: rules from what was published, which later runs of the same kind keep."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from tests.specs import TENS, TICKS, a_spec
from windowmill.expectations.rule import KEYS, VOLUME
from windowmill.jobs.cli import main
from windowmill.jobs.commands.suggest import suggestions_of
from windowmill.windowing.specfile import load_pipeline

BETWEEN, IN_SET, NOT_NULL = (f"expect_column_values_to_{name}" for name in ("be_between", "be_in_set", "not_be_null"))


def run(folder: Path, batch: int, keys: Iterable[str | bool] = "abc", scale: float = 1.0) -> int:
    """Run one version: five rows of each key in ten instants; ``odd`` is null for one key."""
    rows = [(key, 10 * batch + i, scale * (i + 1), None if key == "c" else i) for key in keys for i in (0, 2, 4, 6, 9)]
    k, t, x, odd = zip(*rows, strict=True)
    table = {"k": list(k), "t": list(t), "x": list(x), "odd": pa.array(odd, pa.int64())}
    write_deltalake(str(folder / "source"), pa.table(table), mode="append")
    return main(["run", str(folder / "p.yaml")])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    aggregates = {"n": {"count": "*"}, "mean": {"mean": "x"}, "odd": {"max": "odd"}, "list": {"collect": "x"}}
    fields = {"keys": ["k"], "time": TICKS, "windows": [TENS], "aggregates": aggregates, "compute": "local"}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(a_spec(tmp_path, **fields)))
    return tmp_path


def test_rules_rest_on_what_was_published(folder, capsys):
    for batch in range(14):
        assert run(folder, batch) == 0
    capsys.readouterr()
    assert main(["suggest", str(folder / "p.yaml"), "--json"]) == 0
    found = {(each["rule"]["type"], each["rule"].get("column")): each for each in json.loads(capsys.readouterr().out)["suggestions"]}
    assert set(found) == {
        (BETWEEN, "n"), (BETWEEN, "mean"), (NOT_NULL, "mean"), (NOT_NULL, "list"), (IN_SET, "k"), (VOLUME, None), (KEYS, None),
    }  # fmt: skip
    assert found[BETWEEN, "mean"]["why"] == "99.8 % of 39 values are 5.2 to 5.2; all are within the rule"
    assert found[IN_SET, "k"]["rule"]["value_set"] == ["a", "b", "c"]
    assert found[VOLUME, None]["rule"]["min_share"] == 0.5
    assert found[KEYS, None]["why"] == "each of the latest 8 runs had rows of every key of the 5 before it"


def test_the_rules_go_into_the_spec_and_tell_an_odd_batch(folder, capsys):
    spec = folder / "p.yaml"
    for batch in range(12):
        assert run(folder, batch) == 0
    capsys.readouterr()
    assert main(["suggest", str(spec)]) == 0
    spec.write_text(f"{spec.read_text()}{capsys.readouterr().out}")
    assert main(["validate", str(spec)]) == 0
    assert run(folder, 12) == 0
    assert "verdict passed" in capsys.readouterr().out
    assert run(folder, 13, keys="ad", scale=100) == 0
    assert run(folder, 14) == 0
    assert "verdict warned" in capsys.readouterr().out


def test_outliers_do_not_widen_the_range(tmp_path):
    spec = tmp_path / "p.yaml"
    spec.write_text(yaml.safe_dump(a_spec(tmp_path, time=TICKS, windows=[TENS], aggregates={"x": {"max": "x"}})))
    values = [float(n % 100) for n in range(5_000)] + [1e9, None]
    write_deltalake(str(tmp_path / "sink"), pa.table({"x": values, "batch": [0] * len(values)}))
    [found] = suggestions_of(load_pipeline(spec)).data["suggestions"]
    assert found["rule"] == {"type": BETWEEN, "column": "x", "min_value": 0, "max_value": 149, "severity": "warning"}
    assert found["why"] == "99.8 % of 5,001 values are 0 to 99; 1 is outside of the rule"


def suggested_ranges(folder: Path, windows: list[dict[str, Any]], **columns: list[Any]) -> list[dict[str, Any]]:
    spec = folder / "p.yaml"
    spec.write_text(yaml.safe_dump(a_spec(folder, time=TICKS, windows=windows, aggregates={"x": {"max": "x"}})))
    write_deltalake(str(folder / "sink"), pa.table(columns | {"batch": [0] * len(columns["x"])}))
    return [each for each in suggestions_of(load_pipeline(spec)).data["suggestions"] if each["rule"]["type"] == BETWEEN]


def test_a_range_far_from_zero_has_a_floor(tmp_path):
    [found] = suggested_ranges(tmp_path, [TENS], x=[225.0 + n % 11 for n in range(5_000)])
    assert (found["rule"]["min_value"], found["rule"]["max_value"]) == (220, 240)


def test_windows_that_differ_much_have_rules_of_their_own(tmp_path):
    windows = [TENS, {**TENS, "name": "long", "size": 100}]
    names, values = ["w", "long"] * 500, [float(n % 10 if n % 2 else 500 + n % 20) for n in range(1, 1_001)]
    found = suggested_ranges(tmp_path, windows, window=names, x=values)
    told = [(each["rule"]["row_condition"], each["rule"]["min_value"], each["rule"]["max_value"]) for each in found]
    assert told == [('col("window") == "w"', 0, 13), ('col("window") == "long"', 491, 527)]
    assert found[0]["why"] == "99.8 % of 500 values of w are 1 to 9; all are within the rule"
    (tmp_path / "alike").mkdir()
    [alike] = suggested_ranges(tmp_path / "alike", windows, window=names, x=[float(n % 10) for n in range(1_000)])
    assert "row_condition" not in alike["rule"]


@pytest.mark.parametrize("keys", [("a", ""), (True, False)])
def test_keys_that_no_set_may_hold_are_not_suggested_as_one(folder, capsys, keys):
    spec = folder / "p.yaml"
    for batch in range(17):
        assert run(folder, batch, keys) == 0
    capsys.readouterr()
    assert main(["suggest", str(spec)]) == 0
    suggested = capsys.readouterr().out
    assert BETWEEN in suggested
    assert IN_SET not in suggested
    spec.write_text(f"{spec.read_text()}{suggested}")
    assert main(["validate", str(spec)]) == 0


def test_little_history_gives_no_rules_and_none_is_refused(folder, capsys):
    spec = str(folder / "p.yaml")
    assert main(["suggest", spec]) == 2
    assert "there is no result table yet; run it first" in capsys.readouterr().err
    assert run(folder, 0) == 0
    capsys.readouterr()
    assert main(["suggest", spec]) == 0
    assert capsys.readouterr().out == "# no rules: a rule needs 30 values of a column, or 5 runs\n"
