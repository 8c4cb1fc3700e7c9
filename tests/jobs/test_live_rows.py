"""Which batches of live rows this process computes, and which it leaves to Spark. No Spark."""

from __future__ import annotations

import pytest

from tests.jobs.batches import Run
from tests.jobs.drawn import at, pipeline_of
from windowmill.jobs.layouts import limits

ROWS = [at(0), at(0, k="b"), at(100, k="c")]
TICKS = {"time": "1 minute"}


@pytest.mark.parametrize(
    ("window", "most"),
    [
        ({"type": "sliding", "evict": {"count": 3}, "trigger": TICKS}, 300),
        ({"type": "sliding", "evict": {"count": 3}, "trigger": TICKS, "idle_after": "8 minutes"}, 30),
        ({"type": "sliding", "evict": {"time": "4 minutes"}, "trigger": TICKS}, 18),
        ({"type": "sliding", "evict": {"time": "4 minutes"}, "trigger": TICKS, "empty": "emit"}, 300),
        ({"type": "tumbling", "evict": {"time": "1 day"}, "timezone": "America/New_York"}, 3),
        ({"type": "tumbling", "evict": TICKS}, 3),
        ({"type": "sliding", "evict": {"count": 3}, "trigger": {"count": 1}}, 0),
    ],
)
def test_a_batch_of_very_many_ticks_is_for_spark(window, most, monkeypatch):
    """Of ``ROWS``, the last of which is 100 minutes after the first two."""
    # Events that end with another column than they begin may last: windows with policies keep rows of them.
    run = Run(pipeline_of({"w": window}, end="t"))
    monkeypatch.setattr(limits, "MAX_RESULTS", most)
    run.load(ROWS)
    if most:
        monkeypatch.setattr(limits, "MAX_RESULTS", most - 1)
        with pytest.raises(limits.TooLargeError):
            run.load(ROWS)
