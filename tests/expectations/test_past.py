"""Rules that compare a batch with earlier ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from windowmill.expectations.docs import write_docs
from windowmill.expectations.gate import validate
from windowmill.expectations.rule import KEYS, VOLUME
from windowmill.expectations.suites import check_rules, sink_columns
from windowmill.windowing.spec import FRESHNESS

HOUR_US = 3_600_000_000
WEEK_US = 7 * 86_400 * 1_000_000


@dataclass
class Earlier:
    """Earlier runs that read these ``rows``, and the keys of theirs that this batch lacks."""

    rows: Sequence[int] = ()
    a_week_ago: Sequence[int] = ()
    missing: Sequence[str] = ()
    age: int | None = None
    asked: list[Any] = field(default_factory=list)

    def volumes(self, batches: int) -> Sequence[int]:
        return self.rows[-batches:]

    def volumes_ago(self, ago_us: int) -> Sequence[int]:
        assert ago_us == WEEK_US
        return self.a_week_ago

    def age_us(self) -> int | None:
        return self.age

    def keys(self, batches: int, window: str | None) -> tuple[int, Sequence[Mapping[str, Any]]]:
        self.asked.append((batches, window))
        return 10, [{"origin": key} for key in self.missing]


def volume(**arguments: Any) -> dict[str, Any]:
    return {"type": VOLUME, "severity": "warning"} | arguments


@pytest.mark.parametrize(
    ("read", "arguments", "outcome", "message"),
    [
        (50, {"batches": 3, "min_share": 0.5}, "passed", "passed"),
        (49, {"batches": 3, "min_share": 0.5}, "failed", "49 rows read, 0.49 times the 100 of the last 3 runs; expected at least 0.5"),
        (201, {"batches": 3, "max_share": 2}, "failed", "201 rows read, 2.01 times the 100 of the last 3 runs; expected 0 to 2"),
        (200, {"batches": 1, "max_share": 2}, "passed", "passed"),
        (0, {"batches": 1, "min_share": 0.1}, "failed", "0 rows read, 0 times the 110 of the last run; expected at least 0.1"),
        (30, {"ago": "7 days", "min_share": 0.5}, "passed", "passed"),
        (19, {"ago": "7 days", "min_share": 0.5}, "failed",
         "19 rows read, 0.475 times the 40 of the run of 7 days ago; expected at least 0.5"),
    ],
)  # fmt: skip
def test_volume_beside_that_of_earlier_runs(pipeline, batch, read, arguments, outcome, message):
    past = Earlier([1, 90, 100, 110], [40])
    result = validate(batch(), pipeline(volume(**arguments)), rows_read=read, past=past).results[0]
    assert (result.outcome, result.message) == (outcome, message)


@pytest.mark.parametrize(("past", "read"), [(None, 5), (Earlier(), 5), (Earlier([0, 0]), 5)])
def test_without_anything_to_compare_with_the_rule_is_kept(pipeline, batch, past, read):
    verdict = validate(batch(), pipeline(volume(batches=5, min_share=0.5), {"type": KEYS, "batches": 2}), rows_read=read, past=past)
    assert verdict.status == "passed"


def test_missing_keys_hold_the_batch_and_are_named(pipeline, batch):
    past = Earlier(missing=["EWR", "LGA"])
    verdict = validate(batch(), pipeline({"type": KEYS, "batches": 2, "max_missing": 1, "window": "hourly"}), past=past)
    [failed] = verdict.unmet
    assert (verdict.status, past.asked) == ("held", [(2, "hourly")])
    assert (failed.elements, failed.unexpected, failed.examples) == (10, 2, ({"origin": "EWR"}, {"origin": "LGA"}))
    assert failed.message == "2 of 10 keys of the last 2 runs have no row"
    assert "EWR" not in verdict.describe()
    assert validate(batch(), pipeline({"type": KEYS, "batches": 2, "max_missing": 2}), past=past).status == "passed"


def test_a_past_that_cannot_be_read_breaks_the_rule(pipeline, batch):
    class Gone(Earlier):
        def volumes(self, batches: int) -> Sequence[int]:
            raise OSError("no such file\nat all")

    [broken] = validate(batch(), pipeline(volume(batches=5, min_share=0.5)), rows_read=5, past=Gone()).unmet
    assert (broken.outcome, broken.observed) == ("broken", "no such file")


def test_the_freshness_of_numbers_is_refused(pipeline):
    spec = pipeline(
        {"freshness": "2 hours"}, time={"column": "departed_at", "unit": "s"}, windows=[{"name": "h", "type": "tumbling", "size": 60}]
    )
    [problem] = check_rules(spec, sink_columns(spec))
    assert problem == "expectations.0.freshness: got '2 hours', but times are numbers (s), which have no age; remove the rule"


@pytest.mark.parametrize(
    ("age", "outcome", "message"),
    [
        (None, "passed", "no event yet"),
        (-HOUR_US, "passed", "passed"),
        (2 * HOUR_US, "passed", "passed"),
        (2 * HOUR_US + 1, "failed", "the newest event is 2:00:00 old; expected at most 2 hours"),
        (50 * HOUR_US, "failed", "the newest event is 2 days, 2:00:00 old; expected at most 2 hours"),
    ],
)
def test_the_newest_event_is_compared_with_the_time_of_the_run(pipeline, batch, age, outcome, message):
    spec = pipeline({"freshness": "2 hours", "severity": "warning"})
    assert (spec.expectations[0].type, spec.expectations[0].arguments) == (FRESHNESS, {"freshness": "2 hours"})
    result = validate(batch(), spec, rows_read=5, past=Earlier(age=age)).results[0]
    assert (result.outcome, result.message) == (outcome, message)


def test_keys_of_a_global_group_are_refused(pipeline):
    spec = pipeline({"type": KEYS, "batches": 2}, keys=[])
    assert check_rules(spec, sink_columns(spec)) == [f"expectations.0.type: got '{KEYS}', but the pipeline has no keys; remove the rule"]


def test_the_rules_are_on_the_page_in_words(pipeline, batch, tmp_path):
    rules = [volume(batches=5, min_share=0.5, max_share=2), {"type": KEYS, "batches": 2}, {"freshness": "1 hour"}]
    past = Earlier([100], missing=["LGA"], age=WEEK_US)
    verdict = validate(batch(), pipeline(*rules), rows_read=10, rows_quarantined=5, past=past)
    write_docs(tmp_path, verdict, pipeline="delays", batch=0, at=datetime(2024, 1, 1, tzinfo=UTC))
    [page] = tmp_path.glob("batch-*.html")
    assert "The rows read are 0.5 to 2 times those of the last 5 runs." in page.read_text()
    assert "All but 0 keys of the last 2 runs have a row." in page.read_text()
    assert "The newest event is at most 1 hour old." in page.read_text()
    assert "At most 10.00% of the rows read may be quarantined." in page.read_text()
