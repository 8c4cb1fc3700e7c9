"""The state table of windows over positions, read and compacted without Spark."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import shared
from tests.windowing.test_columnar import CUTS, STREAMS, Row
from tests.windowing.test_positions import FRONT_WINDOWS, TYPES, Run, compare, spec_of
from windowmill.checkpoints.state.positions import PositionTable, compact_positions
from windowmill.checkpoints.state.wanted import ReadLimit
from windowmill.windowing.columnar.positions import PositionStage

NO_LIMIT = ReadLimit(1 << 40, 1 << 40, 1 << 40)
ROWS = [Row("ab"[n % 2], n, n, n % 7, n / 3, "x", True) for n in range(40)]


class TableRun(Run):
    """A run whose state is a table."""

    def __init__(self, path: Path, *windows: str, **options: Any) -> None:
        super().__init__(spec_of(*windows, **options))
        self.path = str(path)

    def _table(self) -> PositionTable:
        return PositionTable(None, self.path, self.state.stored_schema)

    def _needed(self, stage: PositionStage, new: pa.Table) -> pa.Table:
        found = self._table().read(stage, new, NO_LIMIT)
        assert found is not None
        return found

    def feed(self, rows: list[Row], *, final: bool = False) -> None:
        super().feed(rows, final=final)
        self._table().remember(self.stored, len(self.stored), app_id="app", batch=self.batches - 1, metadata="{}")
        self.stored = self.stored.slice(0, 0)


@pytest.mark.parametrize("column", ["age", "head", "through"])
def test_a_key_may_be_named_as_anything_that_compacting_computes(tmp_path, monkeypatch, column):
    monkeypatch.setitem(TYPES, column, pa.string())
    run = TableRun(tmp_path / "state", "count_count")
    spec = run.spec.model_copy(update={"keys": (column,)})
    table = PositionTable(None, run.path, Run(spec).state.stored_schema)
    entry = {column: "a", "_kind": "key", "_sequence": "s", "_through": 5, "_head": 3}
    node = {column: "a", "_kind": "node", "_sequence": "s", "_batch": 1, "_position": 2}
    rows = [entry | {"_batch": 0}, entry | {"_batch": 1}, node, node | {"_position": 3}]
    table.remember(pa.Table.from_pylist(rows, schema=table.schema), len(rows), app_id="app", batch=1, metadata="{}")
    assert compact_positions(run.path, before_batch=2) == 2


@pytest.fixture
def searched(monkeypatch):
    """Row groups of four rows are chosen in each file; none is read whole."""
    monkeypatch.setattr(searched_files, "WHOLE_BYTES", 0)
    monkeypatch.setattr(positions, "GROUP_ROWS", 4)
    monkeypatch.setattr(positions, "NEAR_LEVELS", 2)


@pytest.mark.parametrize("searches", [False, True])
@shared(2, 6)
@given(
    windows=st.lists(st.sampled_from(sorted(FRONT_WINDOWS)), min_size=1, max_size=3),
    rows=STREAMS,
    cuts=CUTS,
    compacted=st.lists(st.integers(-1, 4), min_size=30, max_size=30),
)
def test_batches_over_a_table_that_is_compacted_in_between_equal_one_run(
    tmp_path_factory, monkeypatch_module, searches, windows, rows, cuts, compacted
):
    run = TableRun(tmp_path_factory.mktemp("positions") / "state", *windows)
    for begin, stop in pairwise([0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]):
        run.feed(rows[begin:stop])
        # Also as if the last batch were still open, and only the newest batches.
        match compacted[run.batches]:
            case 0 | 1 as still_open:
                compact_positions(run.path, run.batches - still_open)
            case back if back > 1:
                compact_positions(run.path, run.batches, max(0, run.batches - back))
    compare(run, rows, final=False)
