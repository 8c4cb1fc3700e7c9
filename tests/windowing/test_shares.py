"""Limits of quarantined rows in a spec."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest

from windowmill.windowing.errors import SpecError
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import load_pipeline, parse_pipeline

SPEC: dict[str, Any] = {
    "pipeline": "p", "time": {"column": "t"}, "windows": [{"name": "w", "type": "tumbling", "size": "1 hour"}],
    "aggregates": {"n": {"count": "*"}},
}  # fmt: skip
ACCEPTED = [
    ("1 %", 0.01), ("0.5%", 0.005), (" 12.25 % ", 0.1225), ("100 %", 1.0), ("0%", 0.0), (0.02, 0.02), (0, 0.0), ("never", None),
    (None, None),
]  # fmt: skip
REFUSED = ["101 %", "1", "%", "-1 %", "ten %", 1, 1.0, 10, -0.1, True, float("nan"), [0.1], "1e1 %"]


def limited(**limits: Any) -> Pipeline:
    return parse_pipeline(SPEC | {"quarantine": limits})


@pytest.mark.parametrize(("written", "share"), ACCEPTED)
def test_a_share_is_a_percentage_a_number_below_one_or_never(written, share):
    pipeline = limited(warn="0 %", hold=written)
    assert pipeline.quarantine.hold == share
    assert Pipeline.model_validate(pipeline.model_dump(mode="json")) == pipeline
    jsonschema.validate(SPEC | {"quarantine": {"hold": written}}, Pipeline.model_json_schema())


def test_a_share_of_rows_is_not_more_than_the_same_percentage():
    # 0.7 / 100 is a little less than 7 / 1000.
    for tenths in range(1, 1_000):
        assert limited(warn="0 %", hold=f"{tenths / 10:g} %").quarantine.hold == tenths / 1_000


@pytest.mark.parametrize("written", REFUSED)
def test_any_other_share_is_refused_with_the_path_of_the_field(written):
    with pytest.raises(
        SpecError, match=r"pipeline: quarantine\.hold: got .*expected a percentage such as 1 %, a share from 0 to less than 1"
    ):
        limited(hold=written)


def test_the_defaults():
    limits = parse_pipeline(SPEC).quarantine
    assert (limits.warn, limits.hold) == (0.01, 0.1)


def test_a_spec_as_written(tmp_path):
    text = "pipeline: p\ntime: {column: t}\nwindows: [{name: w, type: tumbling, size: 1 hour}]\naggregates: {n: {count: '*'}}\n"
    (tmp_path / "p.yaml").write_text(text + "quarantine: {warn: 1 %, hold: 25%}\n")
    limits = load_pipeline(tmp_path / "p.yaml").quarantine
    assert (limits.warn, limits.hold) == (0.01, 0.25)


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"warn": "5 %", "hold": "2 %"}, "quarantine.hold: got 2 %; expected at least the share of warn (5 %), or never"),
        ({"hold": 0.001}, "quarantine.hold: got 0.1 %; expected at least the share of warn (1 %), or never"),
        ({"warn": "20 %"}, "quarantine.warn: got 20 %; expected at most the share of hold (10 % by default); raise hold, too"),
    ],
)
def test_a_batch_is_not_held_for_less_than_a_warning(limits, says):
    with pytest.raises(SpecError, match=re.escape(says)):
        limited(**limits)
    assert limited(warn="20 %", hold="never").quarantine.warn == 0.2


def test_the_limits_do_not_change_what_a_pipeline_means():
    assert limited(hold="never").meaning_hash() == parse_pipeline(SPEC).meaning_hash()
