"""The state table of windows over positions, read and compacted without Spark."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoints.publishing import publish
from tests.strategies import ARRIVALS, between_commits, shared
from tests.windowing.test_columnar import CUTS, STREAMS, Row
from tests.windowing.test_positions import POLICY_WINDOWS, TYPES, Run, compare, in_order, spec_of
from windowmill.checkpoints.state import compaction, searched_files
from windowmill.checkpoints.state.compaction import compact_entries
from windowmill.checkpoints.state.positions import PositionTable
from windowmill.checkpoints.state.wanted import ReadLimit
from windowmill.windowing.columnar.added_columns import KIND
from windowmill.windowing.columnar.positions import KEY_ROW, NODE, WAITING, PositionStage
from windowmill.windowing.errors import StateCorruptError
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

pytestmark = pytest.mark.thorough
NO_LIMIT = ReadLimit(1 << 40, 1 << 40, 1 << 40)


class TableRun(Run):
    """A run whose state is a table."""

    def __init__(self, path: Path, spec: Pipeline) -> None:
        super().__init__(spec)
        self.path, self.restored, self.limit = str(path), self.stored, NO_LIMIT

    def _table(self) -> PositionTable:
        return PositionTable(self.path, self.state.stored_schema)

    def _needed(self, stage: PositionStage, new: pa.Table) -> pa.Table:
        found = self._table().read(stage, new, self.limit)
        assert found is not None
        self.restored = found
        return found

    def feed(self, rows: list[Row], commits: Sequence[int] | None = None, *, final: bool = False) -> None:
        super().feed(rows, commits, final=final)
        publish(self.path, self.stored, self.batches - 1)
        self.stored = self.stored.slice(0, 0)


@pytest.mark.parametrize("column", ["age", "head", "through"])
def test_a_key_may_be_named_as_anything_that_compacting_computes(tmp_path, monkeypatch, column):
    monkeypatch.setitem(TYPES, column, pa.string())
    run = TableRun(tmp_path / "state", spec_of("count_count"))
    spec = run.spec.model_copy(update={"keys": (column,)})
    table = PositionTable(run.path, Run(spec).state.stored_schema)
    entry = {column: "a", "_kind": "key", "_sequence": "s", "_through": 5, "_head": 3}
    node = {column: "a", "_kind": "node", "_sequence": "s", "_batch": 1, "_position": 2}
    rows = [entry | {"_batch": 0}, entry | {"_batch": 1}, node, node | {"_position": 3}]
    publish(run.path, pa.Table.from_pylist(rows, schema=table.schema), 1)
    assert compact_entries(run.path, 2, ["positions"]) == 2


@contextmanager
def searching() -> Iterator[None]:
    """No file is read whole, and row groups have four rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searched_files, "WHOLE_BYTES", 0)
        patch.setattr(compaction, "GROUP_ROWS", 4)
        patch.setattr(compaction, "NEAR_LEVELS", 2)
        yield


@pytest.mark.parametrize("how", [nullcontext, searching])
@shared(2, 6)
@given(
    windows=st.lists(st.sampled_from(sorted(POLICY_WINDOWS)), min_size=1, max_size=3),
    rows=STREAMS,
    cuts=CUTS,
    arrival=ARRIVALS,
    compacted=st.lists(st.integers(-1, 4), min_size=30, max_size=30),
)
def test_batches_over_a_table_that_is_compacted_in_between_equal_one_run(tmp_path_factory, how, windows, rows, cuts, arrival, compacted):
    run = TableRun(tmp_path_factory.mktemp("positions") / "state", spec_of(*windows, arrival=arrival.by))
    commits = arrival.commits(len(rows))
    with how():
        for begin, stop in pairwise([0, *between_commits([cut for cut in cuts if cut < len(rows)], commits), len(rows)]):
            run.feed(rows[begin:stop], commits[begin:stop])
            compact(run, compacted[run.batches])
    compare(run, rows, final=False)


def compact(run: TableRun, how: int) -> None:
    """Compact the table: with 1 as if the last batch were still open, with more only the newest batches, with less not at all."""
    if how in (0, 1):
        compact_entries(run.path, run.batches - how, ["positions"])
    elif how > 1:
        compact_entries(run.path, run.batches, ["positions"], first=max(0, run.batches - how))


LONG = {
    "count": {"type": "sliding", "evict": {"count": 300}, "trigger": {"count": 1}},
    "time": {"type": "sliding", "evict": {"time": 300}, "trigger": {"time": 7}},
    "flush": {"type": "tumbling", "evict": {"count": 200}},
}


def long_spec(*windows: str) -> Pipeline:
    """A pipeline of windows over hundreds of tuples."""
    aggregates = {
        "rows": {"count": "*"},
        "total": {"sum": "f"},
        "greatest": {"max": "f"},
        "spread": {"stddev_samp": "f"},
        "at": {"arg_max": ["v", "name"]},
        "p90": {"quantile": {"column": "f", "q": 0.9}},
    }
    return parse_pipeline(
        {
            "pipeline": "p",
            "keys": ["k"],
            "time": {"column": "t", "unit": "none"},
            "windows": [{"name": f"w{number}"} | LONG[name] for number, name in enumerate(windows)],
            "aggregates": aggregates,
        }
    )


def tuples(keys: str, begin: int, end: int) -> list[Row]:
    """A row of one key after the other for each time from ``begin`` until ``end``."""
    return [Row(keys[n % len(keys)], n, n, n % 7, n / 3, "x", True) for n in range(begin, end)]


@pytest.mark.parametrize("windows", [["count"], ["time"], ["flush"], ["count", "time", "flush"]], ids="-".join)
def test_long_windows_are_the_same_to_the_bit_and_few_rows_of_them_are_restored(tmp_path, windows):
    spec, rng = long_spec(*windows), random.Random(7)
    rows = [Row(rng.choice("aaab") if n % 50 else None, n // 3, n // 3, n * 7 % 11, 1 / (n + 1), "x", True) for n in range(1_200)]
    whole, run = Run(spec), TableRun(tmp_path / "state", spec)
    whole.feed(rows)
    restored = []
    with searching():
        for number, first in enumerate(range(0, len(rows), 30)):
            new = rows[first : first + 30]
            run.feed(new)
            restored.append((run.restored, Counter(row.k for row in new)))
            compact(run, {5: 0, 3: 3}.get(number % 6, -1))
    assert sorted(run.rows(), key=in_order) == sorted(whole.rows(), key=in_order) != []
    if windows == ["count"]:
        for found, new in restored:
            for key, n in Counter(found.column("k").to_pylist()).items():
                assert n <= new[key] + 2 * math.log2(300) + 2


def test_few_row_groups_of_a_large_file_are_decoded(tmp_path, monkeypatch):
    run = TableRun(tmp_path / "state", long_spec("count"))
    with searching():
        for begin in range(0, 10_000, 2_000):
            run.feed(tuples("abcdefghij", begin, begin + 2_000))
        compact_entries(run.path, run.batches, ["positions"])
        [groups] = [pq.ParquetFile(uri.removeprefix("file://")).num_row_groups for uri in DeltaTable(run.path).file_uris()]
        decoded = []
        read = pq.ParquetFile.read_row_groups
        monkeypatch.setattr(pq.ParquetFile, "read_row_groups", lambda *given, **named: decoded.extend(given[1]) or read(*given, **named))
        run.feed([Row("c", 10_000, 10_000, 1, 1.0, "x", True)])
    assert groups > 1_000
    # Those of entries, and of a key the nodes beside the ends of its window and those of high levels.
    assert 0 < len(decoded) <= 60
    compare(run, [*tuples("abcdefghij", 0, 10_000), Row("c", 10_000, 10_000, 1, 1.0, "x", True)], final=False)


@pytest.mark.parametrize("windows", [["count"], ["count", "time"]], ids="-".join)
def test_rows_are_restored_of_keys_that_a_batch_touches_or_that_are_due(tmp_path, windows):
    run, rows = TableRun(tmp_path / "state", long_spec(*windows)), [Row(f"k{n}", n, n, n % 7, n / 3, "x", True) for n in range(400)]
    with searching():
        run.feed(rows[:200])
        run.feed(rows[200:])
        compact_entries(run.path, run.batches, ["positions"])
        new = [Row("k3", 500, 400, 1, 1.0, "x", True), Row("new", 501, 401, 1, 1.0, "x", True)]
        run.limit = NO_LIMIT if "time" in windows else ReadLimit(1 << 40, 1 << 40, 100)
        run.feed(new)
    restored = set(run.restored.column("k").to_pylist())
    # The tuple of k399, the last one before, has waited for the watermark.
    assert len(restored) > 300 if "time" in windows else restored == {"k3", "k399"}
    compare(run, [*rows, *new], final=False)


@pytest.mark.parametrize("kind", [KEY_ROW, WAITING, NODE])
@pytest.mark.parametrize("how", [nullcontext, searching])
def test_rows_that_a_file_has_lost_are_told(tmp_path, how, kind):
    run = TableRun(tmp_path / "state", long_spec("count"))
    with how():
        for begin in range(0, 400, 10):
            run.feed(tuples("ab", begin, begin + 10))
        compact_entries(run.path, run.batches, ["positions"])
        rows = DeltaTable(run.path).to_pyarrow_table()
        lost = pc.and_(pc.equal(rows.column(KIND), kind), pc.equal(rows.column("k"), "b"))
        write_deltalake(run.path, rows.filter(pc.invert(lost)), mode="overwrite")
        with pytest.raises(StateCorruptError, match="missing"):
            run.feed([Row("b", 400, 400, 1, 1.0, "x", True)])


@pytest.mark.parametrize("how", [nullcontext, searching])
def test_a_newest_key_row_that_is_lost_is_told(tmp_path, how):
    run = TableRun(tmp_path / "state", long_spec("count"))
    with how():
        for begin in range(0, 400, 10):
            run.feed(tuples("ab", begin, begin + 10))
        rows = DeltaTable(run.path).to_pyarrow_table()
        newest = pc.and_(pc.equal(rows.column(KIND), KEY_ROW), pc.equal(rows.column("_batch"), run.batches - 1))
        write_deltalake(run.path, rows.filter(pc.invert(newest)), mode="overwrite")
        with pytest.raises(StateCorruptError, match="missing"):
            run.feed([Row("b", 400, 400, 1, 1.0, "x", True)])


def test_new_files_are_merged_with_older_ones_that_are_not_much_larger(tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "FEW_FILES", 8)
    run = TableRun(tmp_path / "state", long_spec("count"))
    run.feed(tuples("a", 0, 2_000))
    merged = []
    for n in range(2_000, 2_000 + 40):
        run.feed(tuples("a", n, n + 1))
        first = compaction.overgrown_from(run.path)
        if first is not None:
            merged.append(first)
            compact_entries(run.path, run.batches, ["positions"], first=first)
        assert len(DeltaTable(run.path).file_uris()) <= 8
    assert 4 <= len(merged) <= 7
    assert merged[0] > 0, "the large file was rewritten for a few small ones"


def test_a_large_file_that_was_not_written_in_the_order_of_searches_is_rewritten_on_demand(tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "LAID_OUT_ROWS", 1_000)
    run = TableRun(tmp_path / "state", long_spec("count"))
    run.feed(tuples("abc", 0, 10))
    with searching():
        run.feed(tuples("abc", 10, 2_000))
        assert compaction.overgrown_from(run.path) is None
        assert compaction.overgrown_from(run.path, lay_out=True) == 1
        compact_entries(run.path, run.batches, ["positions"], first=1)
        assert compaction.overgrown_from(run.path, lay_out=True) is None
        run.feed(tuples("abc", 2_000, 2_010))
    compare(run, tuples("abc", 0, 2_010), final=False)
