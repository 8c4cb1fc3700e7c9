"""The state table of windows over positions, read and compacted without Spark."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoints.publishing import publish
from tests.jobs.batches import Run, check, place
from tests.jobs.drawn import SOURCE, Row, at, cuts, inputs, some
from tests.jobs.test_position_batches import AGGREGATES, POLICIES, TUPLES, policies
from tests.matrices import EVERY
from tests.strategies import shared
from windowmill.checkpoints.state import compaction, readers
from windowmill.checkpoints.state.compaction import overgrown_from
from windowmill.checkpoints.state.readers import DeltaState
from windowmill.checkpoints.state.reading import ReadLimit
from windowmill.jobs.layouts import limits
from windowmill.jobs.layouts.input import Input
from windowmill.windowing.columnar.added_columns import KIND
from windowmill.windowing.columnar.hashes import KeysOfShare, Share
from windowmill.windowing.columnar.positions import KEY_ROW, NODE, WAITING, PositionStage
from windowmill.windowing.errors import StateCorruptError

pytestmark = pytest.mark.thorough


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "state")


@pytest.mark.parametrize("column", ["age", "head", "through"])
def test_a_key_may_be_named_as_anything_that_compacting_computes(path, column):
    spec, source = policies("count_count").model_copy(update={"keys": (column,)}), SOURCE.append(pa.field(column, pa.string()))
    run = Run(spec, path, source=source)
    [part] = run.parts(Input(**run.base))
    entry = {column: "a", "_kind": "key", "_sequence": "s", "_through": 5, "_head": 3}
    node = {column: "a", "_kind": "node", "_sequence": "s", "_batch": 1, "_position": 2}
    rows = [entry | {"_batch": 0}, entry | {"_batch": 1}, node, node | {"_position": 3}]
    publish(path, pa.Table.from_pylist(rows, schema=part.schema), 1)
    assert compaction.compact(path, 2, ["positions"]) == 2


@contextmanager
def searching() -> Iterator[None]:
    """No file is read whole, and row groups have four rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "WHOLE_BYTES", 0)
        patch.setattr(compaction, "GROUP_ROWS", 4)
        patch.setattr(compaction, "NEAR_LEVELS", 2)
        yield


def compact(run: Run, how: int) -> None:
    """Compact the table: with 1 as if the last batch were still open, with more only the newest batches, with less not at all."""
    if how in (0, 1):
        compaction.compact(run.path, run.batch - how, ["positions"])
    elif how > 1:
        compaction.compact(run.path, run.batch, ["positions"], first=max(0, run.batch - how))


@pytest.mark.parametrize("how", [nullcontext, searching])
@shared(2, 6)
@given(
    windows=some(POLICIES, 3),
    given=inputs(TUPLES, cuts(25, 25), ["0 seconds"], ["0 seconds"], aggregates=[AGGREGATES]),
    compacted=st.lists(st.integers(-1, 4), min_size=30, max_size=30),
)
def test_batches_over_a_table_that_is_compacted_in_between_are_those_of_the_oracle(tmp_path_factory, how, windows, given, compacted):
    path = str(tmp_path_factory.mktemp("positions") / "state")
    with how():
        check(
            policies(*windows, **given[0]), **given[1] | {"final": False}, path=path, between=lambda run: compact(run, compacted[run.batch])
        )


LONG: dict[str, dict[str, Any]] = {
    "count": {"type": "sliding", "evict": {"count": 300}, "trigger": {"count": 1}},
    "time": {"type": "sliding", "evict": {"time": "300 minutes"}, "trigger": {"time": "7 minutes"}},
    "flush": {"type": "tumbling", "evict": {"count": 200}},
}


def long(*windows: str) -> Any:
    """A pipeline of windows over hundreds of tuples."""
    spread = {"spread": {"stddev_samp": "f"}, "at": {"arg_max": ["i", "s"]}, "p90": {"quantile": {"column": "f", "q": 0.9}}}
    numbers = {"n": {"count": "*"}, "total": {"sum": "f"}, "greatest": {"max": "f"}}
    return policies(*(LONG[name] for name in windows), aggregates=numbers | spread)


def tuples(keys: str, begin: int, end: int) -> list[Row]:
    """A row of one key after the other for each minute from ``begin`` until ``end``."""
    return [at(n, k=keys[n % len(keys)], i=n % 7, f=n / 3) for n in range(begin, end)]


def same_as_one_batch(run: Run, rows: list[Row]) -> None:
    """The results of ``run`` are those of one batch of ``rows`` to the bit."""
    whole = Run(run.pipeline)
    whole.step(rows)
    assert repr(sorted(run.rows, key=place)) == repr(sorted(whole.rows, key=place)) != "[]"


@pytest.mark.parametrize("windows", [["count"], ["count", "time", "flush"], *([["time"], ["flush"]] if EVERY else [])], ids="-".join)
def test_long_windows_are_the_same_to_the_bit_and_few_rows_of_them_are_restored(path, windows):
    rng = random.Random(7)
    rows = [at(n // 3, k=rng.choice("aaab") if n % 50 else None, i=n * 7 % 11, f=1 / (n + 1)) for n in range(750)]
    run = Run(long(*windows), path)
    with searching():
        for number, first in enumerate(range(0, len(rows), 30)):
            new = rows[first : first + 30]
            run.step(new, first)
            if windows == ["count"] and run.restored:
                arrived = Counter(row["k"] for row in new)
                for key, n in Counter(run.restored[0].column("k").to_pylist()).items():
                    assert n <= arrived[key] + 2 * math.log2(300) + 2
            compact(run, {5: 0, 3: 3}.get(number % 6, -1))
    same_as_one_batch(run, rows)


def test_few_row_groups_of_a_large_file_are_decoded(path, monkeypatch):
    run = Run(long("count"), path)
    with searching():
        for begin in range(0, 10_000, 2_000):
            run.step(tuples("abcdefghij", begin, begin + 2_000), begin)
        compaction.compact(path, run.batch, ["positions"])
        [groups] = [pq.ParquetFile(uri.removeprefix("file://")).num_row_groups for uri in DeltaTable(path).file_uris()]
        decoded, read = [], pq.ParquetFile.read_row_groups
        monkeypatch.setattr(pq.ParquetFile, "read_row_groups", lambda *given, **named: decoded.extend(given[1]) or read(*given, **named))
        run.step([at(10_000, k="c")], 10_000)
    assert groups > 1_000
    # Those of entries, and of a key the nodes beside the ends of its window and those of high levels.
    assert 0 < len(decoded) <= 60
    same_as_one_batch(run, [*tuples("abcdefghij", 0, 10_000), at(10_000, k="c")])


@pytest.mark.parametrize("whole", [True, False], ids=["files read whole", "row groups"])
@pytest.mark.parametrize("window", LONG)
def test_tasks_restore_of_their_keys_what_one_process_restores_of_all(path, monkeypatch, window, whole):
    run, compared, read = Run(long(window), path), [], DeltaState.positions

    def both(state: DeltaState, schema: pa.Schema, stage: PositionStage, rows: pa.Table, limit: ReadLimit) -> pa.Table | None:
        found, tasks = read(state, schema, stage, rows, limit), list[pa.Table]()
        for number in range(3):
            own = KeysOfShare(Share(number, number + 1, 3), ["k"])
            tasks.append(read(replace(state, only=own), schema, stage, own.rows(rows), limit))
            assert own.rows(tasks[-1]).num_rows == tasks[-1].num_rows
        assert found is not None
        assert sorted(map(repr, pa.concat_tables(tasks).to_pylist())) == sorted(map(repr, found.to_pylist()))
        compared.append(found)
        return found

    with nullcontext() if whole else searching():
        run.step([*tuples("abbcdefg", 0, 1_200), at(1_200, k=None)])
        compaction.compact(path, run.batch, ["positions"])
        run.step(tuples("ab", 1_201, 1_230), 1_201)
        monkeypatch.setattr(DeltaState, "positions", both)
        run.step([*tuples("bdef", 1_230, 1_250), at(1_250, k=None)], 1_230)
        run.step([at(1_400)], 1_251)
    assert len(compared) == 2
    assert len(set(compared[0].column("k").to_pylist())) >= 4


@pytest.mark.parametrize("windows", [["count"], ["count", "time"]], ids="-".join)
def test_rows_are_restored_of_keys_that_a_batch_touches_or_that_are_due(path, monkeypatch, windows):
    run, rows = Run(long(*windows), path), [at(n, k=f"k{n}", i=n % 7, f=n / 3) for n in range(400)]
    new = [at(500, k="k3"), at(501, k="new")]
    with searching():
        run.step(rows[:200])
        run.step(rows[200:], 200)
        compaction.compact(path, run.batch, ["positions"])
        if "time" not in windows:
            monkeypatch.setattr(limits, "MAX_STATE_ROWS", 100)
        run.step(new, 400)
    restored = set(run.restored[0].column("k").to_pylist())
    # The tuple of k399, the last one before, has waited for the watermark.
    assert len(restored) > 300 if "time" in windows else restored == {"k3", "k399"}
    same_as_one_batch(run, [*rows, *new])


@pytest.mark.parametrize("kind", [KEY_ROW, WAITING, NODE, "newest key"])
@pytest.mark.parametrize("how", [nullcontext, searching])
def test_rows_that_a_file_has_lost_are_told(path, how, kind):
    run = Run(long("count"), path)
    with how():
        for begin in range(0, 400, 40):
            run.step(tuples("ab", begin, begin + 40), begin)
        if kind == "newest key":
            where = (pc.field(KIND) == KEY_ROW) & (pc.field("_batch") == run.batch - 1)
        else:
            compaction.compact(path, run.batch, ["positions"])
            where = (pc.field(KIND) == kind) & (pc.field("k") == "b")
        write_deltalake(path, DeltaTable(path).to_pyarrow_table().filter(~where), mode="overwrite")
        with pytest.raises(StateCorruptError, match="missing"):
            run.step([at(400, k="b")], 400)


def test_new_files_are_merged_with_older_ones_that_are_not_much_larger(path, monkeypatch):
    monkeypatch.setattr(compaction, "FEW_FILES", 8)
    run, merged = Run(long("count"), path), []
    run.step(tuples("a", 0, 2_000))
    for n in range(2_000, 2_000 + 40):
        run.step(tuples("a", n, n + 1), n)
        first = overgrown_from(path)
        if first is not None:
            merged.append(first)
            compaction.compact(path, run.batch, ["positions"], first=first)
        assert len(DeltaTable(path).file_uris()) <= 8
    assert 4 <= len(merged) <= 7
    assert merged[0] > 0, "the large file was rewritten for a few small ones"


def test_a_large_file_that_was_not_written_in_the_order_of_searches_is_rewritten_on_demand(path, monkeypatch):
    monkeypatch.setattr(compaction, "LAID_OUT_ROWS", 1_000)
    run = Run(long("count"), path)
    run.step(tuples("abc", 0, 10))
    with searching():
        run.step(tuples("abc", 10, 2_000), 10)
        assert overgrown_from(path) is None
        assert overgrown_from(path, lay_out=True) == 1
        compaction.compact(path, run.batch, ["positions"], first=1)
        assert overgrown_from(path, lay_out=True) is None
        run.step(tuples("abc", 2_000, 2_010), 2_000)
    same_as_one_batch(run, tuples("abc", 0, 2_010))
