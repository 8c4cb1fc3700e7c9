"""The state that ``try`` keeps in memory: what later rows have superseded is dropped, and no batch misses it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.jobs.test_random_pipelines import by_parts, refused_ids
from tests.random_pipelines import differences, examples, random_case
from windowmill.checkpoints.state import readers
from windowmill.checkpoints.state.readers import MemoryState
from windowmill.jobs.commands.try_command import attempt
from windowmill.windowing.specfile import parse_pipeline

WINDOWS: dict[str, dict[str, Any]] = {
    "positions": {"type": "sliding", "evict": {"count": 10}, "trigger": {"count": 5}},
    "deltas": {"type": "sliding", "evict": {"delta": {"column": "t", "by": 30}}, "trigger": {"count": 5}},
    "live rows": {"type": "count", "count": 3},
}


@pytest.mark.parametrize("way", WINDOWS)
def test_it_is_as_small_as_what_batches_need(way: str, monkeypatch: pytest.MonkeyPatch):
    sizes, appended, append = list[int](), list[int](), MemoryState.append

    def noted(state: MemoryState, rows: Any) -> None:
        append(state, rows)
        appended.append(rows.num_rows)
        sizes.append(state.rows.num_rows if state.rows is not None else 0)

    monkeypatch.setattr(readers, "FEW_ROWS", 100)
    monkeypatch.setattr(MemoryState, "append", noted)
    spec = {"pipeline": "p", "keys": ["k"], "time": {"column": "t", "unit": "none"}, "windows": [{"name": "w", **WINDOWS[way]}]}
    pipeline = parse_pipeline(spec | {"aggregates": {"n": {"count": "*"}, "total": {"sum": "t"}}})
    data = "".join(json.dumps({"k": t % 5, "t": t}) + "\n" for t in range(6_000)).encode()
    found = attempt(pipeline, data, 60)
    assert sum(appended) > 2_000
    assert max(sizes) < 500
    assert list(found.rows) == list(attempt(pipeline, data).rows)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", examples(40))
def test_batches_need_nothing_that_was_dropped(seed: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(readers, "FEW_ROWS", 0)
    case = random_case(seed)
    for final in (False, True):
        wanted = case.expected(final=final)
        batches = [(commit, commit + 1) for commit in range(case.commits[-1] + 1)]
        found, refused = by_parts(case, case.rows, batches, final=final)
        assert differences(found, wanted.rows) == []
        assert refused_ids(case.rows, refused) == refused_ids(case.rows, wanted.quarantined)
