"""What `verify` finds behind restatements, backfills and changed specs; small cases with their rows. No JVM."""

from __future__ import annotations

import pytest

from tests.faults.world import UNMET
from tests.jobs.days import LAST_2, VISIT, Days
from tests.spark.harness import quiet
from windowmill.jobs.batch import loop
from windowmill.windowing.errors import HeldError

pytestmark = pytest.mark.local


def test_verify_does_not_judge_rows_of_the_quarantine_that_a_backfill_from_the_table_counts(tmp_path):
    days = Days(tmp_path, {"name": "spans", "type": "snapshot"}, keys=[])
    days.append((1, "a", "08:05", 1), (2, "a", "12:05", 2))
    days.run()
    days.append((3, "a", "11:05", 4), (4, "a", "14:05", 8))
    days.run()
    days.update("id = 1", v="16")
    days.run()
    assert days.verified() == (2, [])
    days.backfill()
    n, told = days.verified()
    assert n == 3
    assert len(told) == 1
    assert "which windows count them is not known, 1" in told[0]


def test_verify_leaves_out_rows_that_an_earlier_meaning_of_their_window_has_published(tmp_path):
    brief = VISIT | {"max_size": "2 hours"}
    days = Days(tmp_path, brief)
    days.append((1, "a", "08:05", 1), (2, "a", "12:05", 2), (3, "a", "14:05", 3))
    days.run()
    days.apply(brief | {"gap": "1 hour"}, history=None)
    days.append((4, "a", "16:05", 4), (5, "a", "18:05", 5))
    days.run()
    assert days.verified() == (2, ["rows of visit: an earlier spec published them, 2"])


def test_verify_compares_rows_behind_a_changed_spec_that_was_abandoned(tmp_path):
    days = Days(tmp_path, LAST_2)
    days.append((1, "a", "08:05", 1), (2, "a", "12:05", 2))
    days.run()
    days.spec["expectations"] = UNMET
    with pytest.raises(HeldError):
        days.apply(LAST_2 | {"evict": {"count": 3}})
    loop.abandon(days.pipeline, quiet())
    days.spec |= {"expectations": [], "windows": [LAST_2]}
    assert days.verified() == (1, [])


def test_verify_leaves_out_rows_of_a_window_that_a_variable_has_changed_since(tmp_path):
    by_variable = VISIT | {"max_size": "2 hours", "gap": "${GAP}"}
    days = Days(tmp_path, by_variable)
    days.environment = {"GAP": "30 minutes"}
    days.append((1, "a", "08:05", 1), (2, "a", "08:55", 4), (3, "a", "12:05", 2), (4, "a", "14:05", 3))
    days.run()
    days.environment = {"GAP": "1 hour"}
    days.apply(by_variable, history=None)
    days.append((5, "a", "16:05", 4), (6, "a", "18:05", 5))
    days.run()
    assert days.verified() == (2, ["rows of visit: an earlier spec published them, 3"])


def test_verify_leaves_out_columns_that_an_earlier_spec_did_not_have(tmp_path):
    days = Days(tmp_path, LAST_2)
    days.append((1, "a", "08:05", 1), (2, "a", "12:05", 2))
    days.run()
    days.spec["aggregates"] |= {"low": {"min": "v"}}
    days.apply(LAST_2, history=None)
    days.append((3, "a", "16:05", 4))
    days.run()
    assert days.verified() == (2, ["column low: an earlier spec published them, 1"])


@pytest.mark.parametrize("window", [LAST_2, VISIT | {"max_size": "1 hour"}], ids=lambda window: window["type"])
def test_verify_goes_by_the_watermark_of_the_batches_where_the_newest_rows_are_gone(tmp_path, window):
    days = Days(tmp_path, window)
    days.append((1, "a", "08:05", 1), (2, "b", "12:05", 2))
    days.run()
    days.source.delete("id = 2")
    days.run()
    assert days.latest(window["name"])[0][-2:] == (1, 1)
    assert days.verified() == (1, [])


def test_verify_compares_ticks_behind_which_the_rows_are_gone(tmp_path):
    ticks = {"name": "ticks", "type": "sliding", "evict": {"count": 1}, "trigger": {"time": "1 hour"}}
    days = Days(tmp_path, ticks)
    days.append((1, "a", "08:05", 1), (2, "b", "12:05", 2))
    days.run()
    days.source.delete("id = 2")
    days.run()
    assert len(days.latest("ticks")) > 2
    assert days.verified() == (len(days.latest("ticks")), [])


def test_verify_compares_windows_with_policies_that_were_empty(tmp_path):
    leaps = {"name": "leaps", "type": "sliding", "evict": {"time": "10 minutes"}, "trigger": {"delta": {"column": "v", "by": 5}}}
    days = Days(tmp_path, leaps, time={"lateness": "1 hour"})
    days.append((1, "a", "08:05", 1), (2, "a", "09:05", 20), (3, "a", "10:05", 40), (4, "a", "12:05", 41))
    days.append((5, "a", "11:30", 7))
    days.append((6, "a", "14:05", 41))
    days.run()
    assert None in [row["window_start"] for row in days.rows("leaps")]
    assert days.verified() == (len(days.rows("leaps")), [])
