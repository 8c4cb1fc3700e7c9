"""What a batch lost to quarantine: counts, examples, and the delay that would keep its late rows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.specs import HOURS, TENS, TICKS, a_spec
from windowmill.jobs.batch.finishing import loss_of
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

HOUR = 3_600_000_000
DETAIL = "condition 'v > 1' fails on the row"


def pipeline(*, integers: bool = False, **time: Any) -> Pipeline:
    return parse_pipeline(a_spec(keys=["k"], time=(TICKS if integers else {"column": "t"}) | time, windows=[TENS if integers else HOURS]))


def staged(reasons: list[str], times: list[int | None], watermarks: list[int | None], *, integers: bool = False) -> list[pa.RecordBatch]:
    """Quarantined rows; in order."""
    instant = pa.int64() if integers else pa.timestamp("us", "UTC")
    rows = [{"k": f"k{n}", "t": time, "secret": "v"} for n, time in enumerate(times)]
    columns = {
        "reason": reasons,
        "detail": pa.array([DETAIL if reason == "bad_condition" else None for reason in reasons], pa.string()),
        "event_time": pa.array(times, pa.int64()).cast(instant),
        "watermark": pa.array(watermarks, pa.int64()).cast(instant),
        "row": [json.dumps(row) for row in rows],
    }
    return pa.table(columns).to_batches()


def late(lags: list[int], **axis: Any) -> list[pa.RecordBatch]:
    return staged(["too_late"] * len(lags), [100 * HOUR - lag for lag in lags], [100 * HOUR] * len(lags), **axis)


def told(rows: list[pa.RecordBatch], spec: Pipeline, **given: Any) -> str:
    return loss_of(rows, spec, **{"rows_read": 1_000, "seen": 100 * HOUR, "first": True} | given).describe()


@pytest.mark.parametrize(
    ("time", "lags", "wanted"),
    [
        ({}, [14 * HOUR] * 99, "time.disorder: 14 hours would keep all (now 0)"),
        # The greatest lag is left out: 999 of 1,000 rows are kept.
        ({}, [14 * HOUR] * 98 + [900 * HOUR], "time.disorder: 14 hours would keep 99.9 % (now 0)"),
        ({}, [14 * HOUR] * 97 + [900 * HOUR] * 2, "time.disorder: 38 days would keep all (now 0)"),
        ({}, [14 * HOUR - 1] * 99, "time.disorder: 14 hours would keep all"),
        ({}, [200_000_000] * 99, "time.disorder: 4 minutes would keep all"),
        ({}, [1] * 99, "time.disorder: 1 second would keep all"),
        ({"disorder": "2 hours"}, [14 * HOUR] * 99, "time.disorder: 16 hours would keep all (now 2 hours)"),
        ({"disorder": "2 hours", "lateness": "1 hour"}, [14 * HOUR] * 99, "time.disorder: 15 hours would keep all (now 2 hours)"),
        ({"watermark": "data_interval_end", "lateness": "1 hour"}, [14 * HOUR] * 99, "time.lateness: 14 hours would keep all (now 1 hour)"),
    ],
)
def test_the_delay_that_keeps_the_late_rows_is_measured(time, lags, wanted):
    assert f"{len(lags)} too_late; too_late: {wanted}" in told(late(lags), pipeline(**time))


def test_on_an_integer_axis_the_delay_is_a_number():
    assert "time.disorder: 13 would keep all (now 3)" in told(late([10] * 500, integers=True), pipeline(integers=True, disorder=3))


LAST_3 = {"name": "last", "type": "sliding", "evict": {"count": 3}}


def test_policies_have_no_use_for_lateness():
    by_policies = a_spec(keys=["k"], time={"column": "t", "disorder": "2 hours", "lateness": "1 hour"})
    lags = late([14 * HOUR] * 99)
    alone, beside = (parse_pipeline(by_policies | {"windows": windows}) for windows in ([LAST_3], [LAST_3, HOURS]))
    assert "time.disorder: 16 hours would keep all (now 2 hours)" in told(lags, alone)
    # The window on the grid counts the row.
    assert "time.disorder: 15 hours would keep all (now 2 hours)" in told(lags, beside)
    vouched = parse_pipeline(by_policies | {"windows": [LAST_3], "time": {"column": "t", "watermark": "data_interval_end"}})
    assert "would keep" not in told(lags, vouched)


@pytest.mark.parametrize("seed", range(5))
def test_that_delay_keeps_as_many_rows_as_it_says(seed):
    """Against a recomputation: with the delay, a row is late only if it is further behind the greatest event time before it."""
    rng = np.random.default_rng(seed)
    times = np.arange(2_000) * HOUR // 10 - (rng.random(2_000) < 0.4) * rng.exponential(40 * HOUR, 2_000).astype(np.int64)
    before = np.maximum.accumulate(np.append(times[0], times))[:-1]
    lost = times < before
    rows = staged(["too_late"] * int(lost.sum()), times[lost].tolist(), before[lost].tolist())
    text = told(rows, pipeline(), rows_read=2_000)
    disorder, kept = text.partition("time.disorder: ")[2].split(" would keep ")
    chosen = pipeline(disorder=disorder).time.disorder.elapsed()
    share = 1 - (times < before - chosen).mean()
    assert share >= 0.999
    assert kept.startswith("all" if share == 1 else "99.9")
    unit = 24 * HOUR if "day" in disorder else HOUR
    assert 1 - (times < before - (chosen - 2 * unit)).mean() < 0.999  # and not much more than needed


def test_a_row_whose_watermark_is_unknown_is_compared_with_the_greatest_event_time():
    rows = staged(["too_late"] * 500, [90 * HOUR] * 500, [None] * 500)
    assert "time.disorder: 10 hours would keep all" in told(rows, pipeline(disorder="1 hour"))


def test_how_to_set_it_depends_on_what_has_been_committed():
    first, later = told(late([HOUR] * 500), pipeline()), told(late([HOUR] * 500), pipeline(), first=False)
    assert first.endswith(
        "`windowmill abandon` the batch, set it and run again; history loaded in bulk: run --arrival event_time, which finds no row late"
    )
    assert later.endswith("(now 0); for the rows of earlier batches too, give the pipeline a new sink and backfill it there")


def test_every_reason_is_counted_and_has_a_remedy():
    reasons = ["too_late"] * 300 + ["null_time"] * 20 + ["bad_condition"] * 10 + ["future_time", "bad_time", "time_out_of_range"]
    times = [99 * HOUR if reason == "too_late" else None for reason in reasons]
    text = told(staged(reasons, times, [100 * HOUR] * len(reasons)), pipeline())
    assert text.startswith("300 too_late, 20 null_time, 10 bad_condition, 1 bad_time, 1 future_time, 1 time_out_of_range; too_late: time.")
    assert f"bad_condition: {DETAIL}; use try_cast, or correct the condition or the source" in text
    assert "null_time: fill t in the source, or leave such rows out (source.filter: t is not null)" in text
    assert "raise time.max_future_skew" in text


def test_examples_are_key_time_and_reason_of_a_few_rows():
    reasons = ["too_late"] * 300 + ["null_time"] * 20
    rows = staged(reasons, [99 * HOUR] * 300 + [None] * 20, [100 * HOUR] * 320)
    examples = loss_of(rows, pipeline(), rows_read=1_000, seen=0, first=True).examples
    late_ones = [{"k": key, "t": 99 * HOUR, "reason": "too_late"} for key in ("k0", "k1")]
    assert [dict(example) for example in examples] == [
        *late_ones,
        *({"k": key, "t": None, "reason": "null_time"} for key in ("k300", "k301")),
    ]


def test_no_delay_is_named_where_too_few_rows_are_late_to_matter():
    rows = staged(["too_late"] + ["null_time"] * 500, [99 * HOUR] + [None] * 500, [100 * HOUR] * 501)
    assert "disorder" not in told(rows, pipeline(), rows_read=5_000)
