"""Which batches of live rows this process computes, and which it leaves to Spark. No Spark."""

from __future__ import annotations

from typing import Any

import pytest

from tests.jobs.collecting import LimitedInput
from tests.jobs.test_calendar_batches import arrived
from tests.jobs.test_mixed_batches import COLUMNS, Run, at
from windowmill.jobs.schedulers.local.new_rows import NewRows
from windowmill.jobs.schedulers.local.parts import load
from windowmill.jobs.ways import limits
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.lateness import seen_after
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.checksums import RowCheck
from windowmill.windowing.spec import Pipeline

ROWS = [at(0), at(0, k="b"), at(100, k="c")]
TICKS = {"time": "1 minute"}


def is_computed_here(window: dict[str, Any], path: str) -> bool:
    """Whether this process computes ``ROWS``, the last of which is 100 minutes after the first two."""
    spec = {
        "pipeline": "p",
        "keys": ["k"],
        "time": {"column": "t", "end": "t"},  # events that may last: windows with policies keep rows of them
        "windows": [{"name": "w", **window}],
        "aggregates": {"n": {"count": "*"}},
    }
    pipeline = Pipeline.model_validate(spec)
    run, new = Run(pipeline, path), NewRows(arrived(ROWS))
    seen = seen_after(new.table, None)
    assert seen is not None
    [part] = run.parts(LimitedInput(pipeline=pipeline, types=COLUMNS.arrow, builds_state=True, check=RowCheck(path)))
    try:
        load(part, new, Emission(seen, seen, AXIS_BEGIN, seen), run.table)
    except limits.TooLargeError:
        return False
    return True


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
def test_a_batch_of_very_many_ticks_is_for_spark(window, most, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MAX_RESULTS", most)
    assert is_computed_here(window, str(tmp_path / "state"))
    if most:
        monkeypatch.setattr(limits, "MAX_RESULTS", most - 1)
        assert not is_computed_here(window, str(tmp_path / "state"))
