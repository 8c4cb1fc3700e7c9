"""When a later interval alone is worth a batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from windowmill.jobs.batch.planning import moves_on
from windowmill.windowing.specfile import parse_pipeline


@pytest.mark.parametrize(
    ("changes", "vouched", "moves"),
    [
        ({}, 24, False),
        ({}, 25, True),  # closed through 20
        ({"emit": "revise"}, 19, False),
        ({"emit": "revise"}, 20, True),  # shown when the watermark passes it
        ({"windows": [{"name": "w", "type": "session", "gap": 3}]}, 15, False),
        ({"windows": [{"name": "w", "type": "session", "gap": 3}]}, 16, True),
    ],
    ids=str,
)
def test_a_later_interval_without_new_rows_moves_on_what_ends_by_then(changes: dict[str, Any], vouched: int, moves: bool):
    spec: dict[str, Any] = {
        "pipeline": "p",
        "time": {"column": "t", "unit": "none", "watermark": "data_interval_end", "lateness": 5},
        "windows": [{"name": "w", "type": "tumbling", "size": 10, "origin": 0}],
        "aggregates": {"n": {"count": "*"}},
    }
    ledger: Any = SimpleNamespace(last_commit=SimpleNamespace(outcome=SimpleNamespace(emitted=10)))
    assert moves_on(parse_pipeline(spec | changes), ledger, vouched) is moves
